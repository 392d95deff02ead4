"""Pre-training on a Ray cluster: the ranks, and what happens when one of them, a node or the head dies."""

import contextlib
import copy
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import NODE

from firth.config import read_json, to_toml
from firth.errors import ConfigError, TrainingError
from firth.manifest import file_sha256
from firth.pretraining.on_cluster import LOG, world_size
from firth.pretraining.run import pretrain, resolve, resume

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
    """What an undisturbed run of two ranks leaves, once a test has made one."""
    return {}


def processes_of(name: str) -> list[Any]:
    """The processes on this machine that Ray has given this name."""
    import psutil
    import ray  # noqa: F401  # which makes psutil importable

    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if " ".join(process.cmdline()).startswith(name):
                found.append(process)
    return found


@contextlib.contextmanager
def once_begun(run: Path, act: Callable[[], None]) -> Iterator[None]:
    """Call ``act`` within the context as soon as the run has its first checkpoint after the initial one."""

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
    """What a finished run leaves: its last weights and its log, except times."""
    events = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    times = ("elapsed_s", "tokens_per_s", "flops_per_s", "time")
    kept = [{key: value for key, value in event.items() if key not in times} for event in events]
    last = run / "checkpoints" / f"step-{STEPS}"
    return {
        "weights": file_sha256(last / "model.safetensors"),
        "log": kept,
        "place": read_json(last / "train/state.json")["place"],
    }


def node_of(rank: Any, nodes: Any) -> Any:
    """The node, among those added by tests, on which the process of a rank runs."""
    return next(n for n in nodes.worker_nodes if n.all_processes["raylet"][0].process.pid == rank.ppid())


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
        nodes.remove_node(node_of(processes_of(RANK)[0], nodes), allow_graceful=False)

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


def test_a_slow_node_is_waited_for(
    recipe: dict[str, Any], tmp_path: Path, on: str, undisturbed: dict[str, Any]
) -> None:
    """A node and its Ray pause for some seconds, then resume."""

    def pause() -> None:
        rank = processes_of(RANK)[0]
        paused = [rank, rank.parent()]
        for process in paused:
            process.suspend()
        threading.Event().wait(4)
        for process in paused:
            process.resume()

    told: list[str] = []
    with once_begun(tmp_path / "a", pause):
        assert pretrain(recipe, tmp_path / "a", told.append, on=on).finished
    assert not any("start again" in text for text in told)
    assert left_by(tmp_path / "a") == undisturbed


def test_a_node_that_is_cut_off_is_left_out_and_writes_nothing_when_it_comes_back(
    recipe: dict[str, Any], tmp_path: Path, on: str, nodes: Any, undisturbed: dict[str, Any]
) -> None:
    """The node is left out while it is silent, which is longer than Ray waits for it."""
    cut: list[Any] = []

    def cut_off() -> None:
        # Not the leading rank, which holds the run's lock and writes its log.
        log = str(tmp_path / "a" / LOG)
        rank = next(one for one in processes_of(RANK) if log not in {file.path for file in one.open_files()})
        cut.append(node_of(rank, nodes))
        cut.extend((rank, rank.parent()))
        for process in cut[1:]:
            process.suspend()

    told: list[str] = []
    try:
        with once_begun(tmp_path / "a", cut_off):
            assert pretrain(recipe, tmp_path / "a", told.append, on=on).finished
        assert any("its node was lost; all start again" in text for text in told)
        assert "1 rank on 1 of 1 nodes" in told
        left = left_by(tmp_path / "a")
        for process in cut[1:]:
            process.resume()
        # When Ray declares the node dead, the node's Ray exits, and then the rank does: once this process, the parent
        # of that Ray, has collected its exit status.
        for process in reversed(cut[1:]):
            process.wait(60)
        assert left_by(tmp_path / "a") == left and left["place"] == undisturbed["place"]
    finally:
        for process in cut[1:]:
            with contextlib.suppress(Exception):
                process.kill()
        for node in cut[:1]:
            nodes.remove_node(node, allow_graceful=False)
            nodes.add_node(num_cpus=1, **NODE)


def test_of_two_runs_the_second_waits(recipe: dict[str, Any], tmp_path: Path, on: str) -> None:
    first, second = (tmp_path / name for name in "ab")
    (tmp_path / "recipe.toml").write_text(to_toml(resolve(copy.deepcopy(recipe), [], "test")), "utf-8")
    command = [sys.executable, "-m", "firth", "pretrain", str(tmp_path / "recipe.toml"), "--out", str(first)]
    command += ["--on", "ray", "--steps", "600"]
    going = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        give_up_s = time.monotonic() + 120
        while not (first / "checkpoints" / "step-20").is_dir() and time.monotonic() < give_up_s:
            assert going.poll() is None, going.stderr and going.stderr.read()
            time.sleep(0.01)
        told: list[str] = []
        assert pretrain(recipe, second, told.append, on=on).finished
        assert "waiting until 2 CPUs are free" in told
        _, errors = going.communicate(timeout=60)
        assert going.returncode == 0, errors
        assert (first / "checkpoints" / "step-600").is_dir()
    finally:
        going.kill()


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
    with pytest.raises(TrainingError, match="the loss is not a number in step [0-9]+, batch "):
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
