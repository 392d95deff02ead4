"""Processes under torchrun, with replicated or sharded weights: equal results, exact resume, less memory."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from systems_under_test import NO_PLOTS, tiny_recipe
from test_resume import check_equal_curves, silent, what_counts

from firth.config import to_toml
from firth.errors import ConfigError
from firth.manifest import check_folder
from firth.pretraining.run import pretrain
from firth.training.checkpoint import list_checkpoints
from firth.training.log import read_log

pytestmark = pytest.mark.unchecked

# Runs each job in turn, in the processes of one launch, and prints what a process holds and exchanges.
PROGRAM = (
    NO_PLOTS
    + """
import contextlib, dataclasses, errno, gc, json, os, signal, sys, threading, tomllib
from pathlib import Path
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from firth.errors import SaveError
from firth.pretraining import several
from firth.pretraining.run import pretrain, resume
from firth.pretraining.recipe import read_resolved_recipe
from firth.training import saver
from firth.training.collectives import join_world
from firth.training.trainer import Trainer

class Traffic(TorchDispatchMode):
    n_bytes = 0
    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op.namespace == "c10d" and "wait" not in str(op):
            sizes = [t.numel() * t.element_size() for t in tree_leaves(args)
                     if isinstance(t, torch.Tensor) and t.dtype == torch.float32]
            self.n_bytes += max(sizes, default=0)
        return op(*args, **(kwargs or {}))

save, free_memory = saver.save_share, several.free_memory
def saved(train, state, rank, size):
    # After the first checkpoint, of step 0, in the process that is not the leading one.
    if rank and "step-0" not in str(train):
        if "late" in job:
            found["waited"] = beyond.wait(60)
        if "full" in job:
            raise OSError(errno.ENOSPC, "No space left on device")
    save(train, state, rank, size)
saver.save_share = saved

step, found = Trainer.train_step, {}
def watched(self, batches):
    if self.state.step == job.get("late"):
        beyond.set()
    if self.state.step + 1 == self.stop_at and self.world.leads:
        os.kill(os.getpid(), signal.SIGTERM)
    with Traffic() as traffic:
        sums = step(self, batches)
    held, seen = 0, set()
    for p in self.objective.parameters():
        for t in (p, p.grad):
            t = t.to_local() if hasattr(t, "to_local") else t
            if t is not None and t.untyped_storage().data_ptr() not in seen:
                # Shares of gradients lie in one piece of memory.
                seen.add(t.untyped_storage().data_ptr())
                held += t.untyped_storage().nbytes()
    for state in self.optimizer.state.values():
        held += sum(t.numel() * t.element_size() for t in state.values())
    encoder = self.objective.encoder
    blocks = sum(p.numel() for block in encoder.regions() for p in block.parameters())
    found.update(held=held, traffic=traffic.n_bytes, blocks=blocks, micro_batches=len(batches),
                 parameters=sum(p.numel() for p in self.objective.parameters()))
    return sums
Trainer.train_step = watched
children = []
for rank in range(1, int(os.environ.get("FORKS", 1))):
    if child := os.fork():
        children.append(child)
    else:
        children, os.environ["RANK"], os.environ["LOCAL_RANK"] = [], str(rank), str(rank)
        break
recipe = read_resolved_recipe(tomllib.loads(Path(sys.argv[1]).read_text()), "recipe")
for job in json.loads(sys.argv[2]):
    Trainer.stop_at, beyond, heard = job.get("stop", 0), threading.Event(), []
    several.free_memory = lambda device: job.get("free") or free_memory(device)
    run = Path(job["run"])
    found["error"] = ""
    try:
        if run.exists():
            found["step"] = resume(run, heard.append, sharding=job["sharding"]).step
        else:
            join_world()
            if torch.distributed.is_initialized():
                torch.distributed.barrier()
            train = dataclasses.replace(recipe.train, **job.get("train", {}))
            found["step"] = pretrain(
                dataclasses.replace(recipe, train=train), run, heard.append, sharding=job["sharding"]
            ).step
    except SaveError as error:
        found["error"] = str(error)
    with contextlib.suppress(BrokenPipeError):
        said = json.dumps({"job": job, "rank": int(os.environ["RANK"]), "said": heard, **found})
        print(said + "\\n", end="", flush=True)  # one write: the processes share this output
    # The sharded model is a reference cycle that holds the connections of the group just left.
    gc.collect()
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""
)


def torchrun(n: int, folder: Path, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run each job in ``n`` processes under torchrun; returns the report of rank 0 on each job."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}"]
    return launch(launcher, folder, jobs, rank=0)


def fork(n: int, folder: Path, jobs: list[dict[str, Any]], *, rank: int = 0) -> list[dict[str, Any]]:
    """The same in processes forked from one that has imported everything, which saves seconds in each."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    names = {"FORKS": n, "RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n, "MASTER_PORT": port}
    variables = {name: str(value) for name, value in names.items()} | {"MASTER_ADDR": "127.0.0.1"}
    return launch([], folder, jobs, rank=rank, **variables)


def launch(
    launcher: list[str], folder: Path, jobs: list[dict[str, Any]], *, rank: int, **variables: str
) -> list[dict[str, Any]]:
    (folder / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, *launcher, str(folder / "program.py"), str(folder / "recipe.toml"), json.dumps(jobs)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", **variables},
    )
    # The process that fails first may not print the most: its peers report the lost connection to it.
    errors = [line for line in done.stderr.splitlines() if "Error" in line or "exitcode" in line or "Fatal" in line]
    said = "\n".join([*errors, "", done.stderr[-5000:]])
    assert done.returncode == 0, said
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr, said
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [report for report in reports if report["rank"] == rank]


@pytest.fixture
def recipe(tiny_corpus: Path, tmp_path: Path) -> Any:
    found = tiny_recipe(
        "bert", tiny_corpus, "train.micro_batches=4", "train.batch_tokens=96", "train.steps=4", "train.eval_every=2"
    )
    (tmp_path / "recipe.toml").write_text(to_toml(found))
    return found


LOSSES = ("mlm_loss", "nsp_loss", "loss")


def test_two_processes_compute_what_one_does_and_resume_bit_for_bit(recipe: Any, tmp_path: Path) -> None:
    """With replicated and with sharded weights."""
    pretrain(recipe, tmp_path / "one", silent)
    names = ("whole", "shared", "whole-cut", "shared-cut")
    jobs = [{"run": str(tmp_path / "whole"), "sharding": "none"}, {"run": str(tmp_path / "shared"), "sharding": "full"}]
    for name in names[2:]:
        sharding = "none" if name.startswith("whole") else "full"
        jobs += [{"run": str(tmp_path / name), "sharding": sharding, "stop": stop} for stop in (2, 0)]
    reports = torchrun(2, tmp_path, jobs)
    assert [report["step"] for report in reports] == [4, 4, 2, 4, 2, 4]
    for name in names:
        check_equal_curves(tmp_path / "one", tmp_path / name, LOSSES) if not name.endswith("cut") else None
        for _, path in list_checkpoints(tmp_path / name / "checkpoints"):
            check_folder(path)
    for name in names[:2]:
        assert what_counts(tmp_path / name) == what_counts(tmp_path / f"{name}-cut")
    # The exchanged bytes match theory: gradients once per step; weights and gradients of each micro-batch.
    from firth.training.sharding import exchanged_bytes

    for report in reports[:2]:
        others = report["parameters"] - report["blocks"]
        sharded = report["job"]["sharding"] == "full"
        expected = exchanged_bytes(report["blocks"], others, report["micro_batches"], sharded=sharded)
        assert report["traffic"] == pytest.approx(expected, rel=0.03), report


def test_a_run_is_resumed_by_four_one_and_two_processes(recipe: Any, tmp_path: Path) -> None:
    """The batches stay the same; each of four processes holds little more than a quarter of the state."""
    recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, steps=6))
    (tmp_path / "recipe.toml").write_text(to_toml(recipe))
    pretrain(recipe, tmp_path / "one", silent, processes=1)
    run = str(tmp_path / "run")
    (report,) = fork(4, tmp_path, [{"run": run, "sharding": "full", "stop": 1}])
    # Weight, gradient and Adam's two means, in four bytes each.
    assert report["held"] <= 0.27 * 16 * report["parameters"]
    assert report["step"] == 1
    (report,) = fork(1, tmp_path, [{"run": run, "sharding": "auto", "stop": 3}])
    assert any("processes 4 -> 1" in text for text in report["said"])
    reports = fork(2, tmp_path, [{"run": run, "sharding": "none", "stop": 4}, {"run": run, "sharding": "full"}])
    assert any("processes 1 -> 2" in text for text in reports[0]["said"])
    assert reports[-1]["step"] == 6
    check_last(tmp_path / "one", tmp_path / "run")


def test_training_goes_on_while_shares_are_written(recipe: Any, tmp_path: Path) -> None:
    """A checkpoint holds its own step, and is complete once all processes have written; one full disk stops all."""
    names = ("plain", "late", "full", "recomputed")
    plain, late, full, recomputed = ({"run": str(tmp_path / name), "sharding": "full"} for name in names)
    for job in (plain, late, full):
        job["train"] = {"save_every": 2}
    # The share of step 2 is written once step 3 begins, or never.
    jobs = [plain, late | {"late": 2}, full | {"full": True}, full, recomputed | {"sharding": "auto", "free": 1e6}]
    reports = fork(2, tmp_path, jobs, rank=1)
    assert [report["error"] for report in reports if report["job"] != jobs[2]] == [""] * 4
    assert reports[1]["waited"]
    assert "process 2 of 2 could not finish it: No space left on device; all processes need" in reports[2]["error"]
    for name in names:
        # Recomputed blocks give the same values.
        assert what_counts(tmp_path / name) == what_counts(tmp_path / "plain")
    for name in names[:3]:
        assert [n for n, _ in list_checkpoints(tmp_path / name / "checkpoints")] == [2, 4]
        for _, path in list_checkpoints(tmp_path / name / "checkpoints"):
            check_folder(path)
        assert not list((tmp_path / name).rglob("*.tmp"))


def check_last(one: Path, other: Path) -> None:
    """Check that losses are equal where both runs logged: a stop adds lines of its own."""
    first, second = ({(e["event"], e["step"]): e for e in read_log(run / "log.jsonl")} for run in (one, other))
    both = [(first[key], second[key]) for key in first if key in second and key[0] == "dev"]
    assert len(both) == 3
    for ours, theirs in both:
        for name in LOSSES:
            assert theirs[name] == pytest.approx(ours[name], rel=1e-5)


def test_what_cannot_be_divided_is_said(recipe: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="several processes that torchrun starts"):
        pretrain(recipe, tmp_path / "run", silent, sharding="full")
    assert not (tmp_path / "run").exists()
