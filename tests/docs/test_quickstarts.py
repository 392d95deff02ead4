"""The README's quickstarts, typed as they stand, with a small model and short runs in place of what takes minutes."""

import io
import re
import sys
from pathlib import Path

import pytest
from typed_pages import DOCS, Block, Reader, blocks_of

from firth.cli import main

README = DOCS.parent / "README.md"
# What a quickstart's command is given so that it takes seconds.
SHORTER = {
    "--size 4000": "--size 300",
    "--out runs/a --minutes 30": "--out runs/a --steps 4",
    "--out runs/spam": "--out runs/spam --epochs 1",
    "--out runs/names": "--out runs/names --epochs 1",
}
MESSAGES = [f"ham\tsee you at {n} in the market\nspam\twin {n} free holidays now\n" for n in range(50)]
LINES = "The stock market fell.\nThe mill is empty.\nShe plays the violin.\nThe bank was closed.\nHe is a pianist.\n"
SENTENCES = [f"Ada\tB-PER\nlived\tO\nin\tO\nLondon\tB-LOC\n{n}\tO\n\nThe\tO\nmill\tO\n{n}\tO\n\n" for n in range(30)]


def quickstarts() -> dict[str, list[Block]]:
    """The code blocks of each section whose title begins with Quickstart."""
    blocks = list(blocks_of(README, {}))
    sections = re.split(r"^## ", README.read_text("utf-8"), flags=re.MULTILINE)
    return {
        section.partition("\n")[0].partition(": ")[2]: [b for b in blocks if b.text in section]
        for section in sections
        if section.startswith("Quickstart")
    }


SECTIONS = quickstarts()


def test_every_quickstart_has_commands() -> None:
    assert len(SECTIONS) >= 4
    assert all(any(block.language == "sh" for block in blocks) for blocks in SECTIONS.values())


def test_what_is_shortened_is_there() -> None:
    text = "".join(block.text for blocks in SECTIONS.values() for block in blocks)
    assert [given for given in SHORTER if given not in text] == []


@pytest.mark.parametrize("title", SECTIONS)
def test_quickstarts_run(
    title: str, tmp_path: Path, tiny_text: Path, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def firth(tokens: list[str], stdin: bytes) -> int:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        return main(tokens)

    monkeypatch.chdir(tmp_path)
    files = {
        "train.tsv": MESSAGES[:40],
        "dev.tsv": MESSAGES[40:],
        "lines.txt": LINES,
        "names.conll": SENTENCES[:20],
        "names-dev.conll": SENTENCES[20:],
    }
    for name, lines in files.items():
        (tmp_path / name).write_text("".join(lines), "utf-8")
    (tmp_path / "mytext.txt").write_bytes(tiny_text.read_bytes())
    reader = Reader(firth)
    for block in SECTIONS[title]:
        text = block.text.replace("firth-mini-en", str(tiny_run))
        for given, shorter in SHORTER.items():
            text = text.replace(given, shorter)
        reader.run(Block(block.language, text))
