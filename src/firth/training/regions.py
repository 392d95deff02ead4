"""The parts of an encoder that repeat (the blocks of a Transformer), compiled or recomputed each by itself."""

import functools
import shutil
from os import environ

import torch
from torch.utils.checkpoint import checkpoint

from firth.packed import Encoder


def compile_regions(encoder: Encoder, device: torch.device, backend: str = "inductor") -> bool:
    """Compile the parts that repeat, once for all of them; False, and nothing is changed, without a compiler.

    Numbers of rows and tokens are dynamic: there is one graph for rows of one length and one for rows of several, and
    the first batch of each takes longer.
    """
    if not has_compiler(device):
        return False
    for region in encoder.regions():
        region.compile(dynamic=True, backend=backend)
    return True


def recompute_regions(encoder: Encoder) -> None:
    """Keep only the input of each such part for the backward, and compute the rest again there.

    Source: Chen et al. 2016. Less memory for about a third more computing; the results are equal.
    """
    for region in encoder.regions():
        region.forward = functools.partial(checkpoint, region.forward, use_reentrant=False)


def has_compiler(device: torch.device) -> bool:
    """Whether torch.compile can work here: it wants a C++ compiler for processors, Triton for cards."""
    if device.type == "cpu":
        return any(shutil.which(name) for name in (environ.get("CXX", "g++"), "clang++"))
    from torch.utils._triton import has_triton

    return has_triton()
