"""How many processes share a pre-training run, and what each has of a step."""

import dataclasses
import math
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

Processes = int | Literal["auto"]

# To start a process takes seconds: a run of fewer floating-point operations ends about as soon with one.
SHORT_RUN_FLOPS = 5e12
_SHORT_RUN_MINUTES = 1.0


def count_processes(recipe: Pretrain, run: Path, asked: Processes) -> int:
    """How many processes a run in ``run`` has: as many as asked for; or as before; or one for each thread.

    On a CPU several processes of one thread each train faster than one with several threads. With a GPU, in a short
    run, and where memory is too small for more, it is one. ConfigError where so many cannot share a step.
    """
    if asked == 1:
        return 1
    machine = find_machine(recipe.train.precision)
    most = recipe.train.micro_batches or _most_slots(recipe)
    if asked != "auto":
        if machine.device.type != "cpu":
            raise ConfigError(f"--processes {asked}: a GPU has one process each; for several start them by torchrun")
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
    n_parameters = sum(p.numel() for p in _outline(recipe).parameters())
    # Two operations a parameter and token in each of three products: forward, and the gradients of both factors.
    if 6 * n_parameters * _most_tokens(recipe) < SHORT_RUN_FLOPS or 0 < recipe.train.minutes < _SHORT_RUN_MINUTES:
        return 1
    free = free_memory(machine.device)
    while n > 1 and free is not None and memory_of(for_processes(recipe, n), machine, n).total > free:
        n -= 1
    return n


def for_processes(recipe: Pretrain, n: int) -> Pretrain:
    """The recipe with a number of micro-batches: as given, else one for each of ``n`` processes.

    Then those of a step, and those of an evaluation, have as many tokens together as one had before. They are of the
    recipe from here on, so the batches are the same whatever number of processes goes on with the run.
    """
    train = recipe.train
    if train.micro_batches:
        return recipe
    n = min(n, _most_slots(recipe))
    return dataclasses.replace(
        recipe,
        train=dataclasses.replace(
            train, micro_batches=n, batch_tokens=train.batch_tokens // n, eval_batches=train.eval_batches * n
        ),
    )


def _most_slots(recipe: Pretrain) -> int:
    """So many micro-batches have at least a row each."""
    sides = 2 if recipe.data.instances == "translations" else 1
    return max(recipe.train.batch_tokens // (sides * max(recipe.data.lengths)), 1)


def _most_tokens(recipe: Pretrain) -> float:
    """About how many tokens a run reads, at most."""
    train = recipe.train
    if train.steps:
        return float(train.steps * train.slots * train.batch_tokens)
    if train.minutes:
        return math.inf
    n_tokens = sum(info.tokens for info in Corpus(recipe.data.corpus).shards("train"))
    return (train.epochs or MOST_EPOCHS) * n_tokens


def _before(run: Path) -> int | None:
    """The number of processes that a run had when it was last saved."""
    for _, path in reversed(list_checkpoints(run / "checkpoints")):
        try:
            found = read_json(path / "train" / "state.json")["environment"]["processes"]
        except (InputError, KeyError, TypeError):
            continue  # damaged: what is said of that is said when it is resumed
        if isinstance(found, int) and found > 0:
            return found
    return None


def _outline(recipe: Pretrain) -> Objective:
    """The recipe's objective without any weights, to see how large it is."""
    with sizes_only():
        return recipe.row.objective(recipe.row.encoder(recipe.encoder), recipe.objective)


def memory_of(recipe: Pretrain, machine: Machine, n: int) -> Memory:
    """What ``n`` processes need for a recipe, together. Nothing is made to find out."""
    return estimate_memory(
        _outline(recipe),
        recipe.row,
        recipe.encoder,
        machine.dtype,
        recipe.train.batch_tokens,
        recompute=recipe.train.recompute,
        processes=n,
    )
