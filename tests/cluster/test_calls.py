"""Cells of a study and runs of a fine-tuning as tasks of a Ray cluster."""

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import node_work
import pytest

from firth.errors import ConfigError
from firth.studies.cells import StudyCell, run_cells


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
    with pytest.raises(KeyboardInterrupt, match="the same command resumes from there"):
        run_cells(cells, tmp_path / "out", 0, lambda _: None, on)
    thread.join()
    assert (tmp_path / "out/cell/saved").exists()
    assert not (tmp_path / "out/cell/cell.json").exists()


def test_a_fine_tuning_on_nodes_is_that_of_one_machine(
    tmp_path: Path, tiny_run: Path, on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from firth.finetuning import finetune, runs

    monkeypatch.setattr(runs, "write_finetune_report", lambda out, recipe, results: out / "report.html")
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


def test_a_comparison_on_nodes_is_that_of_one_machine(
    tmp_path: Path, tiny_run: Path, on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from firth.finetuning import compare
    from firth.finetuning.recipe import LabelledConfig

    lines = [
        f"{who} {does}\t{label}"
        for who in ("the baker", "our teacher", "the queen", "a child")
        for does, label in (("walked to the river", "river"), ("wrote before winter", "winter"))
        for _ in range(4)
    ]
    for name in ("t.tsv", "d.tsv"):
        (tmp_path / name).write_text("text\tlabel\n" + "\n".join(lines) + "\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    settings = {"train.precision": "float32", "train.batch_examples": 8, "train.epochs": 1.0}

    def compared(out: str, on: str) -> dict[str, Any]:
        config = LabelledConfig(train="t.tsv", dev="d.tsv")
        found = compare.compare(
            "classify", config, out, models=[str(tiny_run)], sizes=(16,), settings=settings, on=on, tell=lambda _: None
        )
        assert (Path(out) / "model/firth.json").is_file()
        # Other thread counts sum in other orders.
        plain = json.dumps(json.loads(json.dumps(found.results), parse_float=lambda digits: round(float(digits), 6)))
        times = ("seconds", "predict_ms", "megabytes", "recommendation")
        return json.loads(plain, object_hook=lambda d: {k: v for k, v in d.items() if k not in times})

    there = compared("there", on)
    assert there == compared("here", "") and len(there["ways"]) == 4
    assert "training examples" in Path("there/cells/fine-tuned-1/16/cell.log").read_text("utf-8")
    # Nothing is left to do: the same command reads the stored fits, with or without a cluster.
    assert compared("there", "") == there


def test_layers_are_probed_on_nodes_as_on_one_machine(
    tmp_path: Path, tiny_run: Path, on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from firth.finetuning.layer_probes import LayerProbing, probe_layers
    from firth.inference.model import load_model

    sentence = [("the", "DET"), ("baker", "NOUN"), ("walked", "VERB"), ("slowly", "ADV")]
    (tmp_path / "treebank").mkdir()
    for split in ("train", "dev"):
        blocks = []
        for number in range(12):
            rows = sentence[: 3 + number % 2]
            blocks.append("".join(f"{i}\t{w}\t{w}\t{t}\t_\t_\t0\t_\t_\t_\n" for i, (w, t) in enumerate(rows, start=1)))
        (tmp_path / "treebank" / f"{split}.conllu").write_text("\n".join(blocks) + "\n", "utf-8")
    shutil.copytree(tiny_run, tmp_path / "other")
    monkeypatch.chdir(tmp_path)
    models = [(name, load_model(name)) for name in (str(tiny_run), "other")]
    data = [("ud-pos", Path("treebank"))]

    def probed(out: str, on: str) -> dict[str, Any]:
        found = probe_layers(models, data, Path(out), LayerProbing(words=60), on=on, tell=lambda _: None)
        return json.loads(json.dumps(found), parse_float=lambda digits: round(float(digits), 6))

    assert probed("there", on) == probed("here", "")
    assert json.loads(Path("there/probe.json").read_text("utf-8"))["models"][1]["model"] == "other"
