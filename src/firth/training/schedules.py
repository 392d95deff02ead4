"""Learning-rate schedules, as fractions of the peak. Steps count from 0: the first update uses ``rate(0)``.

A schedule is a function of the updates done, the length of the warm-up (which may be fractional) and the
updates of the whole run. In most, the first update has learning rate 0, as published.
"""

import math
from collections.abc import Callable
from functools import partial

from firth.training.config import OptimConfig


def linear(step: int, warmup: float, total: int) -> float:
    """Linear from 0 over the warm-up, then linear decay along the line from 1 at step 0 to 0 at the end.

    Source: google-research/bert optimization.py, which rounds the warm-up down. The learning rate drops slightly where
    the warm-up meets the line.
    """
    steps = int(warmup)
    return step / steps if step < steps else _line(step, total)


def gpt_linear(step: int, warmup: float, total: int) -> float:
    """Linear warm-up and linear decay; the decay is also a factor during the warm-up.

    Source: openai/finetune-transformer-lm opt.py, warmup_linear.
    """
    return _warming(step, warmup) * _line(step, total)


def cosine(step: int, warmup: float, total: int) -> float:
    """Linear from 0 over the warm-up, then half a cosine, from 1 at step 0 to 0 at the end.

    Source: Radford et al. 2018, §4.1; openai/finetune-transformer-lm opt.py, warmup_cosine. Differs: a warm-up shorter
    than one update is dropped.
    """
    if step <= warmup and warmup >= 1:
        return step / warmup
    return (1 + math.cos(math.pi * min(step, total) / total)) / 2


def constant(step: int, warmup: float, total: int) -> float:
    """Linear from 0 over the warm-up, then always 1.

    Source: openai/finetune-transformer-lm opt.py, warmup_constant.
    """
    return _warming(step, warmup)


def inverse_sqrt(step: int, warmup: float, total: int) -> float:
    """Linear over the warm-up, then decay by the inverse square root of the step, counted from 1.

    Source: Vaswani et al. 2017, §5.3; its peak is 1 / √(hidden size · warm-up).
    """
    longest = max(warmup, 1.0)
    return min((step + 1) / longest, math.sqrt(longest / (step + 1)))


def slanted(step: int, warmup: float, total: int) -> float:
    """The slanted triangle: linear from 1/32 to 1 over the warm-up, then linear down to 1/32 again.

    Source: Howard & Ruder 2018, equation 3, with ratio 32; the warm-up is its cut, rounded down.
    Differs: rounding never takes the learning rate below 1/32; a warm-up shorter than one update is dropped.
    """
    cut = int(warmup)
    if step < cut:
        height = step / cut
    else:
        fall = cut * (total / warmup - 1) if cut else total
        height = max(1 - (step - cut) / fall, 0.0) if fall else 1.0
    return (1 + height * (_RATIO - 1)) / _RATIO


def _warming(step: int, warmup: float) -> float:
    """The share of the peak; a warm-up shorter than one update is dropped, or the first update would do nothing."""
    return step / warmup if step <= warmup and warmup >= 1 else 1.0


def _line(step: int, total: int) -> float:
    return 1 - min(step, total) / total


# Ratio of the highest to the lowest learning rate of the slanted triangle.
_RATIO = 32

SCHEDULES: dict[str, Callable[[int, float, int], float]] = {
    "linear": linear,
    "gpt_linear": gpt_linear,
    "cosine": cosine,
    "constant": constant,
    "inverse_sqrt": inverse_sqrt,
    "slanted": slanted,
}


def _rate(step: int, optim: OptimConfig, total: int) -> float:
    return optim.learning_rate * SCHEDULES[optim.schedule](step, optim.warmup_share * total, total)


def rate_of(optim: OptimConfig, total: int) -> Callable[[int], float]:
    """The learning rate as a function of the step, for a run of ``total`` updates."""
    return partial(_rate, optim=optim, total=total)
