"""How many processes share a fine-tuning run."""

import dataclasses

import torch

from firth.errors import ConfigError
from firth.finetuning.recipe import Finetune
from firth.machine import Machine
from firth.pretraining.several import SHORT_RUN_FLOPS, Processes
from firth.tasks.model import TaskModel


def count_processes(
    recipe: Finetune, model: TaskModel, n_tokens: float, machine: Machine, asked: Processes, *, frozen: bool
) -> int:
    """How many processes a run has: as many as asked for, or one for each thread.

    On a CPU several processes of one thread each train faster than one with several threads. There is one on a GPU, in
    a short run, with a frozen encoder (its vectors are computed once), and for a head with running statistics
    (batch norm). ``n_tokens``: that the run reads. ``frozen``: whether the whole encoder is (``base.freeze``).
    ConfigError if that many cannot share an update.
    """
    most, alone = recipe.train.micro_batches or recipe.train.batch_examples, _alone(model, machine, frozen)
    if asked != "auto":
        if asked < 1:
            raise ConfigError(f"processes={asked}: expected at least 1, or auto")
        if asked > 1 and alone:
            raise ConfigError(f"--processes {asked}: {alone}: leave it out")
        if asked > most:
            of_the = "train.micro_batches" if recipe.train.micro_batches else "examples"
            raise ConfigError(
                f"--processes {asked}: at most {most} can share an update of {most} {of_the}; leave it out"
            )
        return asked
    n_parameters = sum(p.numel() for p in model.parameters())
    # A run that resumes keeps its parts, however short it is.
    short = not recipe.train.micro_batches and 6 * n_parameters * n_tokens < SHORT_RUN_FLOPS
    return 1 if alone or short else min(torch.get_num_threads(), most)


def _alone(model: TaskModel, machine: Machine, frozen: bool) -> str:
    """Why a run must have one process; empty if it need not."""
    if machine.device.type != "cpu":
        return "a GPU has one process"
    if frozen:
        return "of a frozen encoder only the head learns, which one process does faster"
    if any(True for _ in model.head.buffers()):
        return "this head has running statistics (batch norm), which processes would not share"
    return ""


def for_processes(recipe: Finetune, n: int) -> Finetune:
    """Set the number of micro-batches: as given, else one for each of ``n`` processes.

    The recipe stores the number, so batches are the same for any number of processes that resume the run.
    """
    if recipe.train.micro_batches:
        return recipe
    return dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, micro_batches=n))
