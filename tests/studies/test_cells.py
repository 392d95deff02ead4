"""Cells of a study: each is done once, in a process of its own; one that fails does not stop the others."""

import sys
from pathlib import Path
from typing import Any

import pytest

from firth.errors import InputError
from firth.studies.cells import Cell, run_cells

pytestmark = pytest.mark.slow  # starts processes


def work(folder: Path, *, number: int) -> dict[str, Any]:
    if number < 0:
        raise InputError("a number below 0")
    (folder / "seen").write_text((folder / "seen").read_text() + "x" if (folder / "seen").exists() else "x")
    print(f"working on {number}", file=sys.stderr)
    return {"square": number * number}


def test_cells_are_done_once_and_failures_are_told(tmp_path: Path) -> None:
    cells = [Cell(f"part/{n}", work, {"number": n}) for n in (2, -1, 3)]
    told: list[str] = []
    facts = run_cells(cells, tmp_path, 2, told.append)
    assert facts == {"part/2": {"square": 4}, "part/3": {"square": 9}}
    assert any("part/-1: failed: a number below 0" in text for text in told)
    assert (tmp_path / "part/2/cell.log").read_text() == "working on 2\n"
    again: list[str] = []
    assert run_cells(cells, tmp_path, 1, again.append) == facts
    assert (tmp_path / "part/2/seen").read_text() == "x" and again[0].startswith("3 cells, 2 done")
