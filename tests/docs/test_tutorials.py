"""The commands of the tutorials work, with small models in place of large ones."""

import importlib.util
import io
import sys
from pathlib import Path

import pytest
from typed_pages import DOCS, Reader, blocks_of

from firth.cli import main
from firth.folder import PRETRAINING, write_model
from firth.systems import SYSTEMS
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

PAGES = ["own-labels", "own-text", "korean", "published-weights"]


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_text: Path) -> Reader:
    """A reader in a folder that contains only ``mytext/``, a folder of text."""

    def firth(tokens: list[str], stdin: bytes) -> int:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        return main(tokens)

    monkeypatch.chdir(tmp_path)
    (tmp_path / "mytext").mkdir()
    (tmp_path / "mytext" / "a.txt").write_bytes(tiny_text.read_bytes())
    return Reader(firth)


def write_reader_of(text: str, folder: Path) -> None:
    """Write a BERT with random weights whose vocabulary has the letters of a text."""
    letters = sorted({letter for letter in text if letter.isalpha()})
    pieces = [*SPECIALS, *letters, *(f"##{letter}" for letter in letters)]
    sizes = {"width": 8, "n_layers": 1, "n_heads": 2, "feed_forward_width": 8, "max_positions": 64}
    system = SYSTEMS["bert"]
    model = system.objective(system.encoder(system.config(vocab_size=len(pieces), **sizes)), system.objective_config())
    folder.mkdir()
    write_model(folder, "bert", PRETRAINING, model, Tokenizer.from_vocab(pieces, lowercase=True), {})


def test_every_tutorial_is_run() -> None:
    assert sorted(path.stem for path in (DOCS / "tutorials").glob("*.md")) == sorted(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_tutorial_run_in_their_order(
    page: str, reader: Reader, tiny_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, korean = DOCS / "tutorials" / f"{page}.md", tmp_path / "tiny-korean"
    if page == "korean":
        write_reader_of(path.read_text("utf-8"), korean)
    names = {"TINY_RUN": str(tiny_run), "TINY_HF": str(tiny_run / "model"), "TINY_KOREAN": str(korean)}
    blocks = list(blocks_of(path, names))
    assert len(blocks) > 2
    for block in blocks:
        if all(importlib.util.find_spec(name) is not None for name in block.needs):
            reader.run(block)
    assert "Traceback" not in capfd.readouterr().err
