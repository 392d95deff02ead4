"""How long a fine-tuning is likely to take, before it has begun."""

import math
import time
from collections.abc import Mapping
from typing import Any

import torch

from firth.finetuning.recipe import epochs_for
from firth.finetuning.resolve import Resolved
from firth.finetuning.small import growth
from firth.finetuning.train import split_of
from firth.machine import find_machine
from firth.systems import SYSTEMS
from firth.tasks.rows import collate

# Examples whose sequences are built; the others count as they do on average.
_SAMPLE = 256
# The share of the matrix rate that the updates of a small encoder reach, evaluations included.
_SHARE = 0.45
# A matrix product of this many rows is repeated for this long.
_ROWS, _MEASURED_S = 128, 0.2
# Of systems whose configuration names no width.
_WIDTH = 512
# The shortest time that a clock can tell.
_TICK_S = 1e-7
# Safety factor on a time that another fit tells.
_DOUBT = 1.2
# Operations of the forward pass, as a share of those of a training step.
_FORWARD = 1 / 3
# How often the best run reads the dev files: for its scores, and for the comparison.
_READS = 2


def estimate_s(resolved: Resolved) -> float:
    """Seconds that the runs of a fine-tuning take on this machine: its operations at a share of the matrix rate.

    A frozen encoder reads each example once. 0 on a GPU, where a fit takes about as long as its start.
    """
    recipe, base, labelled = resolved
    if find_machine(recipe.train.precision).device.type != "cpu":
        return 0.0
    some = labelled.train[:_SAMPLE]
    batch = collate(split_of(base, recipe, some).examples)
    flops = SYSTEMS[base.system_name].flops(base.config, batch) * len(labelled.train) / len(some)
    if recipe.adapt.frozen_groups == -1:
        times = _FORWARD
    else:
        times = recipe.train.epochs * recipe.train.seeds * getattr(recipe.head, "passes", 1)
    times += _READS * _FORWARD * sum(map(len, labelled.dev.values())) / len(labelled.train)
    return times * flops / (_SHARE * _matrix_rate(int(getattr(base.config, "width", _WIDTH))))


def extrapolate_s(n: int, done: Mapping[int, Mapping[str, Any]], *, same_epochs: bool) -> float:
    """Seconds that a fit to ``n`` examples takes, from the largest of those that are ``done``, by their numbers.

    ``same_epochs``: any number of examples is read equally often.
    """
    before = max(done)
    seconds = _DOUBT * float(done[before]["seconds"])
    if same_epochs:
        return seconds * n / before
    # Examples read over all epochs: small sets are read more often, for enough updates, and larger ones take no less.
    read = done[before].get("epochs", epochs_for(before)) * before
    return seconds * max(epochs_for(n) * n, read * growth(n) / growth(before)) / read


def _matrix_rate(width: int) -> float:
    """Floating-point operations per second of a product as large as those of a feed-forward layer, on all threads.

    The fastest of several: others may have been interrupted.
    """
    x, weight = torch.zeros(_ROWS, width), torch.zeros(width, 4 * width)
    fastest_s, until_s = math.inf, time.perf_counter() + _MEASURED_S
    while time.perf_counter() < until_s or fastest_s == math.inf:
        started_at_s = time.perf_counter()
        x @ weight
        fastest_s = min(fastest_s, time.perf_counter() - started_at_s)
    return 2 * _ROWS * width * 4 * width / max(fastest_s, _TICK_S)
