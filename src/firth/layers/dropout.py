"""Dropout that is cheap on CPUs, with random numbers that are a function of a seed.

One 32-bit random number per element would be too slow beside the matrix products. Four elements share one 64-bit
number, 16 bits each: the probability is a multiple of 1 / 65,536, and kept elements are scaled accordingly, so that
the expectation is exact.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from firth.layers.operators import operator, shapes_of

_LEVELS = 2**16


class Dropout(nn.Module):
    """Sets each element to 0 with probability ``p``, else divides it by 1 - p; the identity outside training.

    Source: Srivastava et al. 2014. On a CPU ``p`` is rounded to a multiple of 1 / 65,536.
    """

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        return x * keep_mask(x.shape, self.p, draw_seed(self.p)) * kept_scale(self.p)


def draw_seed(p: float) -> Tensor:
    """Sample a seed for ``keep_mask`` from torch's generator (which the trainer seeds for each micro-batch)."""
    return torch.randint(2**62, (1,)) if p else torch.zeros(1, dtype=torch.int64)


def kept_scale(p: float) -> float:
    """The factor of kept elements: 1 / (1 - p), with p as ``keep_mask`` rounds it."""
    return _LEVELS / (_LEVELS - _dropped_levels(p))


def keep_mask(shape: Sequence[int], p: float, seed: Tensor) -> Tensor:
    """Sample a mask: True keeps an element, independently with probability 1 - p."""
    return _keep_mask(shape, _dropped_levels(p) - _LEVELS // 2, seed)


def _dropped_levels(p: float) -> int:
    return min(round(p * _LEVELS), _LEVELS - 1)


@operator("firth::keep_mask")
def _keep_mask(shape: Sequence[int], lowest_kept: int, seed: Tensor) -> Tensor:
    n = 1
    for size in shape:
        n *= size
    generator = torch.Generator().manual_seed(int(seed))
    draws = torch.empty(-(-n // 4), dtype=torch.int64).random_(-(2**63), None, generator=generator)
    return (draws.view(torch.int16)[:n] >= lowest_kept).view(shape)


@shapes_of(_keep_mask)
def _(shape: Sequence[int], lowest_kept: int, seed: Tensor) -> Tensor:
    return torch.empty(shape, dtype=torch.bool)
