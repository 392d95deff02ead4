"""The Python code on the command pages runs unchanged, with small models in the folders that the pages name."""

import importlib.util
from pathlib import Path

import pytest
import torch
from typed_pages import DOCS, Reader, blocks_of

import firth
from firth.folder import PRETRAINING, write_model
from firth.systems import SYSTEMS
from firth.tasks.config import ClassifyConfig
from firth.tasks.table import TASKS
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

PAGES = sorted(
    path for path in (DOCS / "verbs").glob("*.md") if any(block.language == "python" for block in blocks_of(path, {}))
)
SIZES = {"width": 16, "n_layers": 2, "n_heads": 2}
FOLDERS = {
    "runs/a": ("bert", {"feed_forward_width": 16, "max_positions": 128}),
    "runs/b": ("bert", {"feed_forward_width": 16, "max_positions": 128}),
    "runs/d": ("bert", {"feed_forward_width": 16, "max_positions": 128}),
    "runs/gpt": ("gpt", {"max_positions": 128}),
    "runs/t": ("transformer", {"feed_forward_width": 16}),
    "runs/mt": ("transformer", {"feed_forward_width": 16}),
}
CLASSIFIERS = ("runs/b", "runs/d")
# Folders that a page creates itself.
MADE = {"finetune": "runs/b", "pretrain": "runs/a"}


def write_small(folder: Path, name: str, letters: str) -> None:
    """Write an untrained model that reads these letters."""
    system_name, sizes = FOLDERS[name]
    system = SYSTEMS[system_name]
    tokenizer = Tokenizer.from_vocab([*SPECIALS, *letters, *(f"##{letter}" for letter in letters)], lowercase=True)
    torch.manual_seed(len(name))
    encoder = system.encoder(system.config(vocab_size=tokenizer.size, **SIZES, **sizes))
    task, model = PRETRAINING, system.objective(encoder, system.objective_config())
    if name in CLASSIFIERS:
        task = "classify"
        model = TASKS[task].model(encoder, ClassifyConfig(labels=("bad", "good")))
    folder.mkdir(parents=True)
    write_model(folder, system_name, task, model, tokenizer, {})


def test_pages_have_python_code() -> None:
    assert len(PAGES) >= 12


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_python_blocks_run_in_their_order(
    page: Path, tmp_path: Path, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text("utf-8")
    letters = "".join(sorted({letter for letter in text.lower() if letter.isalpha() or letter in ".,'?!"}))
    for name in FOLDERS:
        if name in text and name != MADE.get(page.stem):
            write_small(tmp_path / name, name, letters)
    (tmp_path / "corpus").symlink_to(tiny_corpus)
    rows = [f"good\ta warm film of {n}\nbad\ta dull film of {n}\n" for n in range(30)]
    for name, part in (("t.tsv", rows[:20]), ("d.tsv", rows[20:25]), ("test.tsv", rows[25:])):
        (tmp_path / name).write_text("label\ttext\n" + "".join(part), "utf-8")
    reader = Reader(lambda tokens, stdin: 0, {"firth": firth})
    blocks = [block for block in blocks_of(page, {}) if block.language == "python"]
    for block in blocks:
        if all(importlib.util.find_spec(name) is not None for name in block.needs):
            reader.run(block)
