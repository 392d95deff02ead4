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


@pytest.fixture
def firth(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Firth:
    """``firth("vocab", path, stdin=b"...")`` runs the command in this process."""

    def run(*tokens: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        code = main([str(token) for token in tokens])
        return Result(code, *capsys.readouterr())

    return run
