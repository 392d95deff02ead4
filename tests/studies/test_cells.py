"""Cells of a study: each runs once, in its own process; a failing cell does not stop the others."""

import os
import shutil
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from firth.config import read_json
from firth.errors import ConfigError, InputError, TrainingError
from firth.files import write_json
from firth.progress import Status
from firth.studies import cells
from firth.studies.cells import DONE, StudyCell, collect_facts, run_cells, run_study, select, stamps_of
from firth.workers import submit


def work(folder: Path, *, number: int) -> dict[str, Any]:
    if number < 0:
        raise InputError("a number below 0")
    if number == 0:
        raise ZeroDivisionError("a mistake")
    (folder / "seen").write_text((folder / "seen").read_text() + "x" if (folder / "seen").exists() else "x")
    print(f"working on {number}", file=sys.stderr)
    return {"square": number * number}


def test_cells_are_done_once_and_failures_are_told(tmp_path: Path) -> None:
    cells = [StudyCell(f"part/{n}", work, {"number": n}) for n in (2, -1, 3)]
    told: list[str] = []
    facts = run_cells(cells, tmp_path, 2, told.append)
    assert facts == {"part/2": {"square": 4}, "part/3": {"square": 9}}
    assert any("part/-1: failed: a number below 0" in text for text in told)
    assert (tmp_path / "part/2/cell.log").read_text() == "working on 2\n"
    assert (tmp_path / "part/-1/cell.log").read_text() == "a number below 0\n"
    again: list[str] = []
    assert run_cells(cells, tmp_path, 1, again.append) == facts
    assert (tmp_path / "part/2/seen").read_text() == "x" and again[0].startswith("3 cells, 2 done")


def test_a_mistake_of_ours_leaves_its_traceback_in_the_log(tmp_path: Path) -> None:
    assert run_cells([StudyCell("zero", work, {"number": 0})], tmp_path, 1, lambda _: None) == {}
    log = (tmp_path / "zero/cell.log").read_text()
    assert log.startswith("Traceback") and log.endswith("ZeroDivisionError: a mistake\n")


def half(folder: Path, *, go: str) -> dict[str, Any]:
    print("half way", file=sys.stderr, flush=True)
    give_up_s = time.monotonic() + 60
    while not Path(go).exists() and time.monotonic() < give_up_s:
        time.sleep(0.01)
    return {}


def test_how_far_a_cell_is_can_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, shown = tmp_path / "go", list[str]()

    def show(self: Status, text: str) -> None:
        shown.append(text)
        go.touch()

    monkeypatch.setattr(Status, "show", show)
    monkeypatch.setattr(cells, "_LOOK_S", 0.01)
    assert run_cells([StudyCell("cell", half, {"go": str(go)})], tmp_path / "out", 1, lambda _: None) == {"cell": {}}
    assert shown[0] == "cell: half way"


def killed(folder: Path) -> dict[str, Any]:
    os._exit(9)


def process(folder: Path) -> dict[str, Any]:
    return {"process": os.getpid()}


def test_a_process_that_is_killed_takes_its_own_cell_alone_with_it(tmp_path: Path) -> None:
    told: list[str] = []
    cells = [StudyCell("killed", killed, {}), StudyCell("one", process, {}), StudyCell("two", process, {})]
    facts = run_cells(cells, tmp_path, 1, told.append)
    assert set(facts) == {"one", "two"} and facts["one"] != facts["two"]
    assert any("killed: failed: its process was killed" in text for text in told)
    assert (tmp_path / "killed" / "cell.log").read_text() == "its process was killed: was there enough memory?\n"


def asleep(folder: Path) -> dict[str, Any]:
    (folder / "pid").write_text(str(os.getpid()))
    signal.pause()
    return {}


def test_a_stop_while_a_cell_is_being_begun_ends_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt comes after the process has started and before it is recorded."""

    def interrupted(*given: Any) -> Any:
        submit(*given)
        begun, give_up_s = tmp_path / "cell" / "pid", time.monotonic() + 60
        while not begun.exists() or not begun.read_text():
            assert time.monotonic() < give_up_s, "the process has not begun"
        raise KeyboardInterrupt

    monkeypatch.setattr(cells, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt, match="the same command resumes from there"):
        run_cells([StudyCell("cell", asleep, {})], tmp_path, 1, lambda _: None)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "cell" / "pid").read_text()), 0)


def test_a_cell_waits_for_what_it_needs(tmp_path: Path) -> None:
    cells = [
        StudyCell("second", work, {"number": 2}, ("first",)),
        StudyCell("first", work, {"number": 1}),
        StudyCell("after a failure", work, {"number": 3}, ("second", "failing")),
        StudyCell("failing", work, {"number": -1}),
    ]
    told: list[str] = []
    with pytest.raises(TrainingError, match="2 cells failed or wait for one that did, such as after a failure"):
        run_study(cells, tmp_path, only=(), workers=2, tell=told.append)
    assert set(read_json(tmp_path / "study.json")) == {"first", "second"}
    assert not any("after a failure" in text for text in told)
    order = [text.split(": ")[0] for text in told if "first" in text or "second" in text]
    assert [text.partition(" ")[2] for text in order] == ["first", "second"]


def threads(folder: Path) -> dict[str, Any]:
    return {"threads": os.environ["OMP_NUM_THREADS"]}


def test_what_a_chosen_cell_reads_is_made_before_and_one_that_runs_alone_has_all_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "cpu_count", lambda: 4)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # undoes what the study sets
    made: list[str] = []
    study = [
        StudyCell("first", threads, {}, prepare=partial(made.append, "a"), alone=True),
        StudyCell("second", threads, {}, ("first",)),
        StudyCell("not chosen", threads, {}, prepare=partial(made.append, "b")),
    ]
    facts = run_study(study, tmp_path, only=["second"], workers=2, tell=lambda _: None)
    assert facts == {"first": {"threads": "4"}, "second": {"threads": "2"}} and made == ["a"]
    assert run_study([StudyCell("only", threads, {})], tmp_path / "b", workers=2, tell=lambda _: None) == {
        "only": {"threads": "4"}
    }


def test_chosen_cells_bring_what_they_need() -> None:
    cells = [
        StudyCell("a", work, {}),
        StudyCell("b", work, {}, ("a",)),
        StudyCell("c/x", work, {}, ("b",)),
        StudyCell("c/y", work, {}),
    ]
    assert [cell.name for cell in select(cells, ["x"])] == ["a", "b", "c/x"]
    assert [cell.name for cell in select(cells, ["c/"])] == ["a", "b", "c/x", "c/y"]
    assert select(cells, []) == cells and select(cells, ["z"]) == []


def test_no_cell_of_that_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no cell has such a name"):
        run_study([StudyCell("a", work, {})], tmp_path, only=["b"], workers=1, tell=print)


def test_what_was_made_otherwise_is_not_taken_for_done(tmp_path: Path) -> None:
    def cells(first: int) -> list[StudyCell]:
        return [
            StudyCell("first", work, {"number": first}),
            StudyCell("second", work, {"number": 5}, ("first",)),
            StudyCell("alone", work, {"number": 3}),
        ]

    stamps, others = stamps_of(cells(1)), stamps_of(cells(2))
    assert stamps == stamps_of(cells(1)[::-1]) and stamps["alone"] == others["alone"]
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / DONE, {"facts": {"square": 1}, "stamp": stamps[name]})
    assert set(collect_facts(cells(1), tmp_path)) == {"first", "second"}
    shutil.rmtree(tmp_path / "first")
    with pytest.raises(ConfigError, match="second/cell.json was made with other options, or from a cell that"):
        collect_facts(cells(2), tmp_path)
    (tmp_path / "out/cells").mkdir(parents=True)
    shutil.move(tmp_path / "second", tmp_path / "out/cells/second")
    with pytest.raises(ConfigError, match="second/cell.json"):
        run_study(cells(2), tmp_path / "out", only=["alone"], workers=1, tell=print)
    assert not (tmp_path / "out/cells/alone").exists()
