"""The command line as a function for tests."""

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from firth.cli import main


@dataclass(frozen=True)
class Result:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The error: exactly one line on stderr, the last, must begin with the program's name."""
        lines = [line for line in self.err.splitlines() if line.startswith("firth: ")]
        assert len(lines) == 1 and self.err.endswith(lines[0] + "\n"), self.err
        assert "Traceback" not in self.err
        return lines[0].removeprefix("firth: ")


Firth = Callable[..., Result]
Typing = Callable[..., list[int]]


class _Typed(io.StringIO):
    """A person at a terminal, who types the next line once the previous one is answered."""

    def __init__(self, answers: io.StringIO, lines: tuple[str, ...]):
        super().__init__()
        self.answers, self.lines, self.seen = answers, lines, list[int]()

    def isatty(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:
        if len(self.seen) == len(self.lines):
            return ""
        self.seen.append(self.answers.getvalue().count("\n"))
        return self.lines[len(self.seen) - 1] + "\n"


@pytest.fixture
def typing(monkeypatch: pytest.MonkeyPatch) -> Typing:
    """``typing(command, "a", "b")``: how many lines the command had printed before each line was typed."""

    def run(command: Callable[[], object], *lines: str) -> list[int]:
        printed = io.StringIO()
        typed = _Typed(printed, lines)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", typed)
            patch.setattr(sys, "stdout", printed)
            command()
        assert printed.getvalue().count("\n") == len(lines)
        return typed.seen

    return run


@pytest.fixture
def firth(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Firth:
    """``firth("vocab", path, stdin=b"...")`` runs the command in this process."""

    def run(*tokens: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        code = main([str(token) for token in tokens])
        return Result(code, *capsys.readouterr())

    return run
