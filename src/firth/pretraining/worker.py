"""A worker process of a run: ``python -m firth.pretraining.worker``, started by the leading one."""

import tomllib
from pathlib import Path
from typing import Any

from firth.machine import reuse_memory
from firth.pretraining.recipe import read_resolved_recipe
from firth.pretraining.run import sized, train
from firth.progress import silent
from firth.training.collectives import World
from firth.training.processes import Group, join_group


def work(group: Group, message: dict[str, Any]) -> None:
    """Train beside the leading process, with the recipe in its message."""
    reuse_memory()
    recipe = read_resolved_recipe(tomllib.loads(message["recipe"]), "recipe")
    part = sized if message.get("measure") else train
    part(recipe, Path(message["run"]), World.of(group), silent, n_threads=message["threads"])


if __name__ == "__main__":
    join_group(work)
