"""Checkpoints are written in a thread: training continues, and each checkpoint has the state of its own step."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from guessing import batch_of, trainer_of

from firth.errors import CheckpointError
from firth.manifest import check_folder
from firth.training.checkpoint import list_checkpoints, load_tensors, save_tensors
from firth.training.trainer import Trainer
from firth.training.writer import BackgroundWriter, copies

TIMEOUT_S = 60


def saving(run: Path, **config: Any) -> Trainer:
    """A trainer that saves after every step, with weights that change at each step."""
    trainer = trainer_of(
        run, [batch_of([0, 1], 2)], rate=lambda step: 0.1, config={"save_every": 1, "keep_checkpoints": 9, **config}
    )
    trainer.saver.save_model = lambda folder, facts, weights: save_tensors(folder / "model.safetensors", weights)
    return trainer


def saved(run: Path) -> dict[int, bytes]:
    """The weights and optimizer state in each checkpoint, by step."""
    names = ("model.safetensors", "train/optimizer.safetensors")
    return {n: b"".join((path / name).read_bytes() for name in names) for n, path in list_checkpoints(run)}


def test_training_goes_on_while_the_state_is_written(tmp_path: Path) -> None:
    trainer = saving(tmp_path / "run", steps=3, save_every=2)
    beyond, step = threading.Event(), trainer.train_step
    write, waited = trainer.saver.save_model, list[bool]()

    def slow(folder: Path, facts: dict[str, Any], weights: Any) -> None:
        if facts["step"] == 2:
            waited.append(beyond.wait(TIMEOUT_S))
        write(folder, facts, weights)

    def counted(batches: Any) -> Any:
        if trainer.state.step == 2:
            beyond.set()
        return step(batches)

    trainer.saver.save_model, trainer.train_step = slow, counted  # type: ignore[method-assign]
    assert trainer.fit()
    assert waited == [True]
    assert [n for n, _ in list_checkpoints(tmp_path / "run" / "checkpoints")] == [2, 3]


def test_a_checkpoint_is_of_its_own_step_however_late_it_is_written(
    tmp_path: Path,
) -> None:
    late = saving(tmp_path / "late")
    gate, write = threading.Event(), late.saver.save_model

    def wait(folder: Path, facts: dict[str, Any], weights: Any) -> None:
        assert gate.wait(TIMEOUT_S)
        write(folder, facts, weights)

    late.saver.save_model, step = wait, late.train_step

    def opens(batches: Any) -> Any:
        if late.state.step == 2:
            gate.set()
        return step(batches)

    late.train_step = opens  # type: ignore[method-assign]
    assert late.fit()
    heard: list[str] = []
    at_once = saving(tmp_path / "once")
    at_once.saver.tell = heard.append
    at_once.saver.free = lambda: 10.0
    assert at_once.fit()
    assert heard == ["too little memory to copy the state: training waits while checkpoints are written"]
    found = saved(tmp_path / "late" / "checkpoints")
    assert found == saved(tmp_path / "once" / "checkpoints")
    assert len(set(found.values())) == len(found) == 4


@pytest.mark.parametrize("broken", [2, 4])
def test_a_failing_disk_stops_the_run_with_one_line(broken: int, tmp_path: Path) -> None:
    trainer = saving(tmp_path / "run")
    write = trainer.saver.save_model

    def full(folder: Path, facts: dict[str, Any], weights: Any) -> None:
        if facts["step"] == broken:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(folder, facts, weights)

    trainer.saver.save_model = full
    with pytest.raises(CheckpointError, match="disk is full"):
        trainer.fit()
    left = list_checkpoints(tmp_path / "run" / "checkpoints")
    assert [n for n, _ in left][: broken - 1] == list(range(1, broken))
    for _, path in left:
        check_folder(path)


PROGRAM = """
import sys
from pathlib import Path
from test_writer import saving
trainer = saving(Path(sys.argv[1]))
write = trainer.saver.save_model
def stuck(folder, facts, weights):
    write(folder, facts, weights)
    if facts["step"] == 3:
        print("writing", flush=True)
        sys.stdin.read()
trainer.saver.save_model = stuck
trainer.fit()
"""


def test_a_kill_while_writing_leaves_the_last_whole_checkpoint(tmp_path: Path) -> None:
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parents[1] / "src")])
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, tmp_path / "run"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "writing\n"
        child.send_signal(signal.SIGKILL)
    assert [n for n, _ in list_checkpoints(tmp_path / "run" / "checkpoints")] == [1, 2]
    again = saving(tmp_path / "run")
    again.resume(lambda folder: load_tensors(folder / "model.safetensors"))
    assert again.state.step == 2
    assert again.fit()
    whole = saving(tmp_path / "whole")
    assert whole.fit()
    assert saved(tmp_path / "run" / "checkpoints") == saved(tmp_path / "whole" / "checkpoints")
    assert all(not entry.name.endswith(".tmp") for entry in (tmp_path / "run" / "checkpoints").iterdir())


def test_jobs_run_in_order_and_the_first_error_is_raised() -> None:
    writer, done = BackgroundWriter(), list[int]()
    writer.submit(lambda: done.append(1))
    writer.submit(lambda: done.append(2))
    writer.close()
    assert done == [1, 2]
    writer = BackgroundWriter()
    writer.submit(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        writer.close()


def test_copies_share_memory_where_the_tensors_do() -> None:
    weight = torch.arange(3.0)
    made = copies({"in": weight, "out": weight, "other": torch.ones(3)})
    assert made["in"].data_ptr() == made["out"].data_ptr() != weight.data_ptr()
    weight += 1
    assert made["in"].tolist() == [0, 1, 2]
