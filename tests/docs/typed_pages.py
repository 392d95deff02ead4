"""The code blocks of the documentation's pages, and how they are run."""

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"((?:<!-- test: [^\n]* -->\n)*)```(sh|python)\n(.*?)```", re.DOTALL)
_REPLACE = re.compile(r"<!-- test: (.+) instead of (.+) -->")
_NEEDS = re.compile(r"<!-- test: needs (\w+) -->")
_SKIP = "<!-- test: not run,"


@dataclass(frozen=True)
class Block:
    """A code block of a page: its language, its text as run by tests, and the packages that it needs."""

    language: str
    text: str
    needs: tuple[str, ...] = ()


def blocks_of(page: Path, names: dict[str, str]) -> Iterator[Block]:
    """The blocks of a page in order, with its comments' replacements; ``names``: stand-ins, such as TINY_RUN."""
    for notes, language, text in _BLOCK.findall(page.read_text("utf-8")):
        if notes.startswith(_SKIP):
            continue
        for new, old in _REPLACE.findall(notes):
            assert old in text, f"{page}: a note replaces {old!r}, which the block does not have"
            text = text.replace(old, names.get(new, new))
        yield Block(language, text, tuple(_NEEDS.findall(notes)))


@dataclass
class Reader:
    """Types what a page says, in one folder and one Python session."""

    firth: Callable[..., int]
    python: dict[str, Any] = field(default_factory=dict)

    def run(self, block: Block) -> None:
        """Run a block; AssertionError or the block's own error if it fails."""
        if block.language == "python":
            exec(compile(block.text, "page", "exec"), self.python)
            return
        rest = block.text.replace("\\\n", "").split("\n")
        while rest:
            line = rest.pop(0)
            if "<<'EOF'" in line:
                end = rest.index("EOF")
                line, rest = "\n".join([line, *rest[: end + 1]]), rest[end + 1 :]
            self._command(line)

    def _command(self, line: str) -> None:
        given, pipe, behind = line.partition(" | firth ")
        if match := re.fullmatch(r"(firth .*) < (\S+)", line):
            self._firth(match[1], Path(match[2]).read_bytes())
        elif pipe:
            found = subprocess.run(["bash", "-c", given], capture_output=True, check=True)
            self._firth("firth " + behind, found.stdout)
        elif line.startswith("firth "):
            self._firth(line, b"")
        elif line.strip():
            subprocess.run(["bash", "-c", line], check=True)

    def _firth(self, line: str, stdin: bytes) -> None:
        tokens = shlex.split(line, comments=True)[1:]
        code = self.firth(tokens, stdin)
        assert code == 0, f"{line}: exit code {code}"
