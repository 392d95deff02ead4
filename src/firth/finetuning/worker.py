"""One of the processes of a fine-tuning run: ``python -m firth.finetuning.worker``, started by the leading one."""

import contextlib
from pathlib import Path
from typing import Any

import torch

from firth.finetuning.runs import train_beside
from firth.machine import reuse_memory
from firth.training.collectives import World
from firth.training.processes import Group, join_group


def work(group: Group, message: dict[str, Any]) -> None:
    """Train one run beside the leading process."""
    reuse_memory()
    torch.set_num_threads(message["threads"])
    # Asked to stop, all processes stop after the same step; the leading one says so.
    with contextlib.suppress(KeyboardInterrupt):
        train_beside(Path(message["out"]), message["number"], message["seed"], World.of(group))


if __name__ == "__main__":
    join_group(work)
