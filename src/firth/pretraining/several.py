"""Choose how many processes share a pre-training run, and their part of a step."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch

from firth.config import read_json
from firth.data.batch import Objective
from firth.data.shards import Corpus
from firth.errors import ConfigError, InputError
from firth.machine import Machine, find_machine, free_memory, sizes_only
from firth.memory import Memory, estimate_memory
from firth.pretraining.length import MOST_EPOCHS
from firth.pretraining.recipe import Pretrain
from firth.training.checkpoint import list_checkpoints
from firth.training.collectives import World, any_rank, ranks_here

Processes = int | Literal["auto"]
Sharding = Literal["auto", "none", "full"]

# Starting a process takes seconds: with fewer floating-point operations one process is as fast.
SHORT_RUN_FLOPS = 5e12
_SHORT_RUN_MINUTES = 1.0
# Each process compares only the crops of its own micro-batch: there is little to learn from a few.
_FEWEST_PAIRS = 32


def count_processes(recipe: Pretrain, run: Path, asked: Processes) -> int:
    """Choose the number of processes: as requested, else as before, else one for each thread.

    On a CPU several single-threaded processes train faster than one with several threads. With a GPU or for a
    short run it is one; with little memory, as many as fit. ConfigError if that many cannot share a step.
    """
    if asked != "auto" and asked < 1:
        raise ConfigError(f"processes={asked}: expected at least 1, or auto")
    if asked == 1:
        return 1
    machine = find_machine(recipe.train.precision)
    most = most_processes(recipe)
    if asked != "auto":
        if machine.device.type != "cpu":
            raise ConfigError(f"--processes {asked}: one process per GPU; for several GPUs start them with torchrun")
        if asked > most:
            of_the = "train.micro_batches" if recipe.train.micro_batches else "rows a step"
            raise ConfigError(f"--processes {asked}: at most {most} can share a step of {most} {of_the}")
        return asked
    if machine.device.type != "cpu":
        return 1
    n = min(torch.get_num_threads(), most)
    if before := _before(run):
        return min(before, n)
    if n == 1:
        return 1
    n_parameters = sum(p.numel() for p in outline(recipe).parameters())
    # Two operations per parameter and token in each of three products: forward, and the gradients of both factors.
    if 6 * n_parameters * _most_tokens(recipe) < SHORT_RUN_FLOPS or 0 < recipe.train.minutes < _SHORT_RUN_MINUTES:
        return 1
    free = free_memory(machine.device)
    while n > 1 and free is not None and memory_of(for_processes(recipe, n), machine, n).total > free:
        n -= 1
    return n


def for_processes(recipe: Pretrain, n: int) -> Pretrain:
    """Set the number of micro-batches: as given, else one for each of ``n`` processes.

    Their total tokens per step, and per evaluation, stay the same. The recipe stores the number, so
    batches are the same for any number of processes that resume the run.
    """
    train = recipe.train
    if train.micro_batches:
        return recipe
    n = min(n, most_slots(recipe))
    return dataclasses.replace(
        recipe,
        train=dataclasses.replace(
            train, micro_batches=n, batch_tokens=train.batch_tokens // n, eval_batches=train.eval_batches * n
        ),
    )


def most_processes(recipe: Pretrain) -> int:
    """The maximum number of processes that can share a step: each has a micro-batch, as given or as fits."""
    return recipe.train.micro_batches or most_slots(recipe)


def most_slots(recipe: Pretrain) -> int:
    """The maximum number of micro-batches that can each hold a sequence, or of crops enough to compare."""
    sequences = {"translations": 2, "crops": 2 * _FEWEST_PAIRS}.get(recipe.data.instances, 1)
    return max(recipe.train.batch_tokens // (sequences * max(recipe.data.lengths)), 1)


def _most_tokens(recipe: Pretrain) -> float:
    """Upper estimate of the tokens that a run reads."""
    train = recipe.train
    if train.steps:
        return float(train.steps * train.slots * train.batch_tokens)
    if train.minutes:
        return math.inf
    n_tokens = sum(info.tokens for info in Corpus(recipe.data.corpus).shards("train"))
    return (train.epochs or MOST_EPOCHS) * n_tokens


def _before(run: Path) -> int | None:
    """The number of processes of a run at its last checkpoint."""
    for _, path in reversed(list_checkpoints(run / "checkpoints")):
        try:
            found = read_json(path / "train" / "state.json")["environment"]["processes"]
        except (InputError, KeyError, TypeError):
            continue  # damaged, which resuming will report
        if isinstance(found, int) and found > 0:
            return found
    return None


def outline(recipe: Pretrain) -> Objective:
    """The recipe's objective without weights, to measure its size."""
    with sizes_only():
        return recipe.row.objective(recipe.row.encoder(recipe.encoder), recipe.objective)


def memory_of(recipe: Pretrain, machine: Machine, n: int, *, shares: int = 1) -> Memory:
    """Estimate the memory of ``n`` processes together, or of one of ``shares`` under full sharding; allocates none."""
    return estimate_memory(
        outline(recipe),
        recipe.row,
        recipe.encoder,
        machine.dtype,
        recipe.train.batch_tokens,
        recompute=recipe.train.recompute,
        processes=n,
        shares=shares,
    )


def check_sharding(asked: Sharding) -> None:
    """Raise ConfigError for ``full`` if the processes are those of one machine, or there is only one."""
    if asked == "full":
        raise ConfigError(
            "--sharding full is for several processes that torchrun starts; those of one machine (--processes) "
            "always share one copy of weights and optimizer state"
        )


def with_sharding(recipe: Pretrain, world: World, asked: Sharding, tell: Callable[[str], None]) -> World:
    """Choose whether the processes that torchrun started divide weights, gradients and optimizer state.

    auto: if one of them has too little memory for all. Unless ``asked`` is none, blocks are recomputed if memory is
    still not enough. ConfigError if ``asked`` is full and that is impossible.
    """
    if world.group is not None:
        check_sharding(asked)
        return world
    if asked == "none":
        return world
    barred = _barred(recipe)
    if asked == "full" and barred:
        raise ConfigError(f"--sharding full: {barred}")
    machine = find_machine(recipe.train.precision)
    free = free_memory(machine.device)
    if free is not None and machine.device.type == "cpu":
        free /= ranks_here()

    def lacks(recipe: Pretrain, shares: int) -> str:
        """A message if a process has too little memory; empty if all have enough."""
        need = memory_of(recipe, machine, 1, shares=shares).total
        if not any_rank(free is not None and need > free, world):
            return ""
        room = "unknown" if free is None else f"{free / 1e9:.1f} GB"
        return f"takes {need / 1e9:.1f} GB, a process has {room}"

    heard = []
    sharded = asked == "full"
    if not sharded and (lack := lacks(recipe, 1)):
        sharded = not barred
        heard.append(f"sharding {'full' if sharded else 'none'}: all of it {lack}" + (f": {barred}" if barred else ""))
    shares = world.size if sharded else 1
    less = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, recompute=True))
    saves = memory_of(less, machine, 1, shares=shares).total < memory_of(recipe, machine, 1, shares=shares).total
    recompute = False
    if saves and (lack := lacks(recipe, shares)):
        recompute = True
        heard.append(f"blocks are recomputed in the backward pass: a step that keeps everything {lack}")
    for text in heard if world.leads else ():
        tell(text)
    return dataclasses.replace(world, sharded=sharded, recompute=recompute)


def _barred(recipe: Pretrain) -> str:
    """Why a run cannot divide its weights; empty if it can."""
    if recipe.optim.kind == "muon":
        return "optim.kind=muon updates whole matrices: use adamw or bert_adam"
    return "train.compile=true does not work with it: set it to false" if recipe.train.compile else ""
