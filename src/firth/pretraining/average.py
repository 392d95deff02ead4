"""``firth average``: average the weights of checkpoints or models.

Source: Vaswani et al. 2017, §6.1: the last five checkpoints of the base model.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from firth.config import to_dict
from firth.errors import CheckpointError, ConfigError
from firth.files import check_new, make_folder
from firth.folder import Loaded, find_model, read_model, write_model
from firth.names import locate
from firth.training.checkpoint import list_checkpoints

# Options that are fitted to held-out examples after training: they are averaged along with the weights.
_FITTED = frozenset({"temperature", "threshold"})
# Facts about a single model that do not hold for a mean.
_OF_ONE = frozenset({"step", "seed", "dev", "held_out"})


def average(models: Sequence[str | Path], out: str | Path, *, last: int = 5) -> list[Path]:
    """Write model folder ``out``: the arithmetic mean of the models, or of the ``last`` checkpoints of one run.

    Returns the averaged folders. ConfigError if there are too few, CheckpointError for one that is
    damaged, or differs from the first in sizes, tokenizer or objective.
    """
    out = Path(out)
    check_new(out)
    folders = [locate(model) for model in models]
    if len(folders) == 1:
        folders = _last_checkpoints(folders[0], last)
    first, steps = mean_of(folders)
    made: dict[str, Any] = {
        **first.provenance,
        "average": {"folders": [str(folder) for folder in folders], "steps": steps},
    }

    def fill(folder: Path) -> None:
        write_model(
            folder,
            first.system_name,
            first.task,
            first.objective,
            first.tokenizer,
            made,
            untrained=first.untrained,
            embedding=first.embedding,
        )

    make_folder(out, fill)
    return folders


def mean_of(folders: Sequence[Path]) -> tuple[Loaded, list[Any]]:
    """The first model with the arithmetic mean of all models' weights, without its scores, and the step of each.

    CheckpointError for one that is damaged, or differs from the first in sizes, tokenizer or objective.
    """
    first = read_model(folders[0])
    sums = {name: tensor.double() for name, tensor in first.objective.state_dict().items()}
    steps = [first.provenance.get("step")]
    options = first.objective.config
    fitted = {name: [getattr(options, name)] for name in _FITTED if hasattr(options, name)}
    for folder in folders[1:]:
        loaded = read_model(folder)
        _check_same(first, loaded, folders[0], folder)
        for name, tensor in loaded.objective.state_dict().items():
            sums[name] += tensor
        steps.append(loaded.provenance.get("step"))
        for name, found in fitted.items():
            found.append(getattr(loaded.objective.config, name))
    _set_means(first, sums, len(folders))
    first.objective.config = replace(options, **{name: fmean(found) for name, found in fitted.items()})
    provenance = {key: value for key, value in first.provenance.items() if key not in _OF_ONE}
    return replace(first, provenance=provenance), steps


def _last_checkpoints(run: Path, last: int) -> list[Path]:
    """The newest checkpoints of a run, without the state before its first step."""
    if last < 2:
        raise ConfigError(f"--last {last}: averaging needs at least two checkpoints")
    found = [path for step, path in list_checkpoints(run / "checkpoints") if step]
    if len(found) < last:
        # Reports what is wrong with a missing path.
        find_model(run)
        if not found:
            raise ConfigError(
                f"{run} is a single model, without checkpoints: give the folder of its run, or more models"
            )
        n = f"{len(found)} checkpoint{'' if len(found) == 1 else 's'}"
        raise ConfigError(
            f"{run} has {n}, fewer than --last {last}: train with train.keep_checkpoints={last} or more "
            "and a train.save_every that makes as many, or average fewer"
        )
    return found[-last:]


def _check_same(first: Loaded, other: Loaded, first_folder: Path, folder: Path) -> None:
    pairs = {
        "system": (first.system_name, other.system_name),
        "task": (first.task, other.task),
        "sizes": (first.objective.encoder.config, other.objective.encoder.config),
        "tokenizer": (first.tokenizer.fingerprint, other.tokenizer.fingerprint),
        "parts that are not learnt": (first.untrained, other.untrained),
        "pooling": (first.embedding, other.embedding),
    }
    ours, theirs = (to_dict(loaded.objective.config) for loaded in (first, other))
    for option in sorted({*ours, *theirs} - _FITTED):
        pairs[f"the option {option}"] = (ours.get(option), theirs.get(option))
    for what, (ours, theirs) in pairs.items():
        if ours != theirs:
            raise CheckpointError(f"{folder} differs from {first_folder} in {what}: they cannot be averaged")


@torch.no_grad()
def _set_means(loaded: Loaded, sums: dict[str, Tensor], n: int) -> None:
    """Set the means: summed in float64, divided once, rounded once to the model's dtype; integers are kept."""
    state = loaded.objective.state_dict()
    for name, tensor in state.items():
        if tensor.is_floating_point():
            tensor.copy_(sums[name] / n)
