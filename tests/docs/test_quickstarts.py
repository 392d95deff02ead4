"""The quickstarts of both READMEs, typed unchanged, with a small model and short runs for what takes minutes."""

import io
import re
import sys
from pathlib import Path

import pytest
from typed_pages import DOCS, Block, Reader, blocks_of

from firth.cli import main

ROOT = DOCS.parent
# The prefix of quickstart titles, by page.
TITLES = {"README.md": "Quickstart: ", "README.ko.md": "빠른 시작: "}
# Replacements in a quickstart's commands, so that they take seconds.
SHORTER = {
    "README.md": {
        "--size 4000": "--size 300",
        "--out runs/a --minutes 30": "--out runs/a --steps 4",
        "--out runs/spam": "--out runs/spam --epochs 1 --seeds 1",
        "--out runs/names": "--out runs/names --epochs 1",
    },
    "README.ko.md": {
        "--size 8000": "--size 300",
        "--out runs/a --minutes 30": "--out runs/a --steps 4",
        "--out runs/reviews": "--out runs/reviews --epochs 1 --seeds 1",
        "--out runs/names": "--out runs/names --epochs 1",
    },
}
MESSAGES = [f"ham\tsee you at {n} in the market\nspam\twin {n} free holidays now\n" for n in range(50)]
LINES = "The stock market fell.\nThe mill is empty.\nShe plays the violin.\nThe bank was closed.\nHe is a pianist.\n"
SENTENCES = [f"Ada\tB-PER\nlived\tO\nin\tO\nLondon\tB-LOC\n{n}\tO\n\nThe\tO\nmill\tO\n{n}\tO\n\n" for n in range(30)]
SYLLABLES = [f"농\tB-PS\n부\tI-PS\n는\tO\n \tO\n{n}\tO\n\n강\tB-LC\n가\tI-LC\n에\tO\n{n}\tO\n\n" for n in range(10)]


def quickstarts(page: str) -> dict[str, list[Block]]:
    """The code blocks of each quickstart section, by title."""
    blocks = list(blocks_of(ROOT / page, {}))
    sections = re.split(r"^## ", (ROOT / page).read_text("utf-8"), flags=re.MULTILINE)
    return {
        section.partition("\n")[0].partition(": ")[2]: [b for b in blocks if b.text in section]
        for section in sections
        if section.startswith(TITLES[page])
    }


SECTIONS = {(page, title): blocks for page in TITLES for title, blocks in quickstarts(page).items()}


@pytest.mark.parametrize("page", TITLES)
def test_every_quickstart_has_commands(page: str) -> None:
    found = [blocks for (of, _), blocks in SECTIONS.items() if of == page]
    assert len(found) >= 4
    assert all(any(block.language == "sh" for block in blocks) for blocks in found)


@pytest.mark.parametrize("page", TITLES)
def test_what_is_shortened_is_there(page: str) -> None:
    text = "".join(block.text for (of, _), blocks in SECTIONS.items() if of == page for block in blocks)
    assert [given for given in SHORTER[page] if given not in text] == []


@pytest.mark.parametrize(("page", "title"), SECTIONS)
def test_quickstarts_run(
    page: str, title: str, tmp_path: Path, tiny_text: Path, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
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
        "names.tsv": SYLLABLES[:8],
        "names-dev.tsv": SYLLABLES[8:],
    }
    for name, lines in files.items():
        (tmp_path / name).write_text("".join(lines), "utf-8")
    (tmp_path / "mytext.txt").write_bytes(tiny_text.read_bytes())
    (tmp_path / "src").symlink_to(ROOT / "src")
    reader = Reader(firth)
    for block in SECTIONS[page, title]:
        text = re.sub("firth-mini-(en|ko)", str(tiny_run), block.text)
        for given, shorter in SHORTER[page].items():
            text = text.replace(given, shorter)
        reader.run(Block(block.language, text))
