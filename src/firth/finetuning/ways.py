"""The ways to learn a task that ``firth compare`` sets side by side: baseline, frozen features, fine-tuning, both."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firth.finetuning.recipe import LabelledConfig

# The baseline of each kind of task that can be compared.
BASELINE = {"classify": "tfidf", "multilabel": "tfidf", "regress": "tfidf", "tag": "commonest-tag"}
KINDS = tuple(BASELINE)
# Mean pooling: an untrained first token says little.
_FROZEN = {"adapt.frozen_groups": -1, "head.network.pool": "mean"}
# Settings that a frozen encoder has no use for.
_OF_ENCODERS = ("adapt.frozen_groups", "adapt.dropout", "adapt.layer_decay", "adapt.unfreeze", "head.auxiliary_lm")


@dataclass(frozen=True, slots=True)
class Way:
    """One way to learn the task: ``name`` for display, ``folder`` for its cells."""

    name: str
    folder: str
    model: str
    frozen: bool = False
    baseline: bool = False
    joint: bool = False


def ways_of(kind: str, models: Sequence[str]) -> list[Way]:
    """The baseline, and for each model frozen features, fine-tuning, and a joint model with the baseline.

    Tags are learned by the baseline and by fine-tuning alone.
    """
    ways = [Way("baseline", "baseline", BASELINE[kind], baseline=True)]
    short = Counter(Path(model).name for model in models)
    for number, model in enumerate(models, start=1):
        name = Path(model).name if short[Path(model).name] == 1 else model
        if kind != "tag":
            ways.append(Way(f"frozen {name}", f"frozen-{number}", model, frozen=True))
        ways.append(Way(f"fine-tuned {name}", f"fine-tuned-{number}", model))
        if kind != "tag":
            ways.append(Way(f"joint {name}", f"joint-{number}", model, joint=True))
    return ways


def recipe_of_way(way: Way, task: str, data: LabelledConfig) -> dict[str, Any]:
    """The recipe of a fit, without settings."""
    return {"model": way.model, "task": task, "data": dataclasses.asdict(data)}


def settings_of_way(way: Way, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a fine-tuning: the user's; for a frozen encoder only those that apply to it, and its own."""
    if not way.frozen:
        return dict(settings)
    kept = {key: value for key, value in settings.items() if key not in _OF_ENCODERS}
    if kept.get("optim.kind") == "muon":  # it updates the blocks of the encoder
        del kept["optim.kind"]
    return _FROZEN | kept
