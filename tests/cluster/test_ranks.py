"""Pre-training on a Ray cluster: the ranks, and what happens when one of them, a node or the head dies."""

import contextlib
import copy
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import NODE

from firth.config import read_json
from firth.errors import ConfigError, TrainingError
from firth.files import file_sha256
from firth.pretraining.on_cluster import world_size
from firth.pretraining.run import pretrain, resume

pytestmark = pytest.mark.slow  # starts processes

STEPS = 120
RANK = "ray::firth.pretraining.on_cluster:train_rank"


@pytest.fixture
def recipe(tiny_corpus: Path) -> dict[str, Any]:
    return {
        "model": "bert-tiny",
        "encoder": {"width": 32, "n_layers": 2, "n_heads": 2, "feed_forward_width": 64, "max_positions": 64},
        "data": {"length": 32, "corpus": str(tiny_corpus)},
        "optim": {"learning_rate": 1e-3},
        "train": {
            "steps": STEPS,
            "batch_tokens": 128,
            "micro_batches": 2,
            "log_every": 20,
            "eval_every": 60,
            "save_every": 20,
            "precision": "float32",
        },
    }


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    """What a run of two ranks leaves that nothing disturbs, once a test has made one."""
    return {}


def processes_of(name: str) -> list[Any]:
    """The processes on this machine that Ray has given this name."""
    import psutil
    import ray  # noqa: F401  # which brings psutil

    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if " ".join(process.cmdline()).startswith(name):
                found.append(process)
    return found


@contextlib.contextmanager
def once_begun(run: Path, act: Callable[[], None]) -> Iterator[None]:
    """Inside, ``act`` is called as soon as the run has its first checkpoint after the begin."""

    def watch() -> None:
        give_up_s = time.monotonic() + 240
        while time.monotonic() < give_up_s:
            if (run / "checkpoints" / "step-20").is_dir():
                act()
                return
            time.sleep(0.01)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def left_by(run: Path) -> dict[str, Any]:
    """What a finished run leaves: its last weights and its log, times aside."""
    events = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    times = ("elapsed_s", "tokens_per_s", "flops_per_s", "time")
    kept = [{key: value for key, value in event.items() if key not in times} for event in events]
    last = run / "checkpoints" / f"step-{STEPS}"
    return {
        "weights": file_sha256(last / "model.safetensors"),
        "log": kept,
        "place": read_json(last / "train/state.json")["place"],
    }


def test_a_killed_rank_costs_nothing_but_time(
    recipe: dict[str, Any], tmp_path: Path, on: str, undisturbed: dict[str, Any]
) -> None:
    told: list[str] = []
    outcome = pretrain(copy.deepcopy(recipe), tmp_path / "a", told.append, on=on)
    assert outcome.finished and outcome.step == STEPS
    assert "2 ranks on 2 of 2 nodes" in told and any("2 processes of" in text for text in told)
    undisturbed |= left_by(tmp_path / "a")
    told.clear()
    with once_begun(tmp_path / "b", lambda: processes_of(RANK)[-1].kill()):
        assert pretrain(recipe, tmp_path / "b", told.append, on=on).finished
    (again,) = (text for text in told if "all start again" in text)
    assert "its process died" in again and "(1 of 3)" in again
    assert any(text.startswith(f"resuming {tmp_path / 'b'} at step ") for text in told)
    assert left_by(tmp_path / "b") == undisturbed


def test_the_ranks_that_still_fit_go_on_with_the_same_batches(
    recipe: dict[str, Any], tmp_path: Path, on: str, nodes: Any, undisturbed: dict[str, Any]
) -> None:
    def remove() -> None:
        raylet = processes_of(RANK)[0].ppid()
        (node,) = (n for n in nodes.worker_nodes if n.all_processes["raylet"][0].process.pid == raylet)
        nodes.remove_node(node, allow_graceful=False)

    told: list[str] = []
    try:
        with once_begun(tmp_path / "a", remove):
            assert pretrain(recipe, tmp_path / "a", told.append, on=on).finished
    finally:
        nodes.add_node(num_cpus=1, **NODE)
    assert "2 ranks on 2 of 2 nodes" in told and "1 rank on 1 of 1 nodes" in told
    found = left_by(tmp_path / "a")
    assert found["place"] == undisturbed["place"]
    assert [event["step"] for event in found["log"]] == [event["step"] for event in undisturbed["log"]]
    for event, like in zip(found["log"], undisturbed["log"], strict=True):
        assert event["mlm_loss"] == pytest.approx(like["mlm_loss"], rel=1e-3)


def test_a_stop_saves_and_a_resume_without_the_cluster_goes_on(recipe: dict[str, Any], tmp_path: Path, on: str) -> None:
    told: list[str] = []
    with once_begun(tmp_path / "a", lambda: os.kill(os.getpid(), signal.SIGINT)):
        outcome = pretrain(recipe, tmp_path / "a", told.append, on=on)
    assert not outcome.finished and 20 <= outcome.step < STEPS
    assert "stopping: the ranks save a checkpoint" in told
    assert (tmp_path / "a" / "checkpoints" / f"step-{outcome.step}").is_dir()
    assert resume(tmp_path / "a", lambda _: None, processes=1).finished


def test_errors_of_a_rank_are_raised_at_once(recipe: dict[str, Any], tmp_path: Path, on: str) -> None:
    told: list[str] = []
    recipe["optim"] = {"learning_rate": 1e30}
    with pytest.raises(TrainingError, match="the loss is not a number in step"):
        pretrain(recipe, tmp_path / "a", told.append, on=on)
    assert not any("start again" in text for text in told)
    with pytest.raises(ConfigError, match="--processes 3: the cluster has 2 CPUs"):
        pretrain(recipe, tmp_path / "b", told.append, on=on, processes=3)
    assert not (tmp_path / "b").exists()


def test_restarts_come_to_an_end(recipe: dict[str, Any], tmp_path: Path, on: str) -> None:
    with (
        once_begun(tmp_path / "a", lambda: processes_of(RANK)[0].kill()),
        pytest.raises(TrainingError, match="to resume: firth pretrain --resume"),
    ):
        pretrain(recipe, tmp_path / "a", lambda _: None, on=on, restarts=0)


@pytest.mark.parametrize(("slots", "room", "size"), [(8, 8, 8), (8, 7, 4), (6, 4, 3), (5, 4, 1), (4, 9, 4), (3, 0, 1)])
def test_the_size_of_the_world_divides_the_step(slots: int, room: int, size: int) -> None:
    assert world_size(slots, room) == size
