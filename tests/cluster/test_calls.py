"""Cells of a study and runs of a fine-tuning as tasks of a Ray cluster."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import node_work
import pytest

from firth.errors import ConfigError
from firth.studies.cells import StudyCell, run_cells

pytestmark = pytest.mark.slow  # starts processes


def test_cells_are_done_on_nodes_once_and_the_dead_start_again(tmp_path: Path, on: str) -> None:
    cells = [
        StudyCell("part/2", node_work.square, {"number": 2}),
        StudyCell("wrong", node_work.square, {"number": -1}),
        StudyCell("mistake", node_work.square, {"number": 0}),
        StudyCell("after", node_work.square, {"number": 3}, ("part/2",)),
        StudyCell("once", node_work.killed, {"times": 1}),
        StudyCell("always", node_work.killed, {"times": 9}),
    ]
    told: list[str] = []
    facts = run_cells(cells, tmp_path, 0, told.append, on)
    assert facts == {
        "part/2": {"square": 4, "threads": "1"},
        "after": {"square": 9, "threads": "1"},
        "once": {"killed": 1},
    }
    assert told[0].startswith("Ray at 127.0.0.2:") and "2 CPUs on 2 nodes" in told[0]
    assert told[1] == "6 cells, 0 done; 2 at a time"
    assert any("wrong: failed: a number below 0;" in text for text in told)
    assert "once: its process died (was there enough memory?); it starts again (1 of 3)" in told
    assert "always: its process died (was there enough memory?); it starts again (3 of 3)" in told
    assert (tmp_path / "part/2/cell.log").read_text() == "working on 2\n"
    assert (tmp_path / "mistake/cell.log").read_text().endswith("ZeroDivisionError: a mistake\n")
    assert (tmp_path / "always/cell.log").read_text() == "its process died (was there enough memory?)\n"
    again: list[str] = []
    done = [cell for cell in cells if cell.name in facts]
    assert run_cells(done, tmp_path, 1, again.append) == facts and again[0].startswith("3 cells, 3 done")


def test_a_stop_lets_cells_save(tmp_path: Path, on: str) -> None:
    begun = tmp_path / "begun"

    def interrupt() -> None:
        give_up_s = time.monotonic() + 120
        while not begun.exists() and time.monotonic() < give_up_s:
            time.sleep(0.1)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    cells = [StudyCell("cell", node_work.stopped, {"started": str(begun)})]
    with pytest.raises(KeyboardInterrupt, match="the same command goes on from there"):
        run_cells(cells, tmp_path / "out", 0, lambda _: None, on)
    thread.join()
    assert (tmp_path / "out/cell/saved").exists()
    assert not (tmp_path / "out/cell/cell.json").exists()


def test_a_fine_tuning_on_nodes_is_that_of_one_machine(
    tmp_path: Path, tiny_run: Path, on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from firth.finetuning import finetune

    monkeypatch.setattr(finetune, "write_finetune_report", lambda out, recipe, results: out / "report.html")
    lines = [
        f"{who} {does}\t{label}"
        for who in ("the baker", "our teacher", "the queen", "a child")
        for does, label in (("walked to the river", "river"), ("wrote before winter", "winter"))
        for _ in range(4)
    ]
    (tmp_path / "t.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n", "utf-8")
    monkeypatch.chdir(tmp_path)  # paths are read as they are written here, on nodes too

    def tuned(out: str, on: str) -> dict[str, Any]:
        told: list[str] = []
        found = finetune.finetune(
            task="classify",
            model=tiny_run,
            train="t.tsv",
            seeds=2,
            out=out,
            settings={
                "train.precision": "float32",
                "train.batch_examples": 8,
                "train.epochs": 1,
                "grid": ["optim.learning_rate=1e-3,1e-4"],
                "adapt.frozen_groups": -1,
            },
            processes=1,
            on=on,
            tell=told.append,
        )
        assert not on or any(text.startswith("[4/4] ") for text in told)
        plain = json.dumps(found.results)
        return json.loads(plain, object_hook=lambda d: {k: v for k, v in d.items() if k != "elapsed_s"})

    assert tuned("there", on) == tuned("here", "")
    names = {str(path.relative_to("here")) for path in Path("here").rglob("*") if path.is_file()}
    found = {str(path.relative_to("there")) for path in Path("there").rglob("*") if path.is_file()}
    assert {name for name in found if not name.endswith(("run.log", ".lock"))} == names - {".lock"}


def test_an_error_on_a_node_is_that_of_one_machine(tmp_path: Path, on: str) -> None:
    with pytest.raises(ConfigError, match="--on slurm: expected ray or an address such as ray://head:10001"):
        run_cells([StudyCell("a", node_work.square, {"number": 1})], tmp_path / "out", 0, lambda _: None, "slurm")
    assert not (tmp_path / "out").exists()
