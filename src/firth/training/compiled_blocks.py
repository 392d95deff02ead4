"""Compile or recompute the repeated parts of an encoder (Transformer blocks), each separately."""

import functools
import shutil
from os import environ

import torch
from torch.utils.checkpoint import checkpoint

from firth.packed import Encoder


def compile_regions(encoder: Encoder, device: torch.device, backend: str = "inductor") -> bool:
    """Compile each repeated part; returns False and changes nothing without a compiler.

    Numbers of sequences and tokens are dynamic: there is one graph for batches of one length and one for mixed lengths,
    and the first batch of each takes longer.
    """
    if not has_compiler(device):
        return False
    # ``firth.machine.deterministic`` does not configure the compiler if that is not imported yet.
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())
    for region in encoder.regions():
        region.compile(dynamic=True, backend=backend)
    return True


def recompute_regions(encoder: Encoder) -> None:
    """Activation checkpointing: keep only the input of each part, and recompute the rest in the backward pass.

    Source: Chen et al. 2016. Less memory for about a third more computation; equal results.
    """
    for region in encoder.regions():
        region.forward = functools.partial(checkpoint, region.forward, use_reentrant=False)


def has_compiler(device: torch.device) -> bool:
    """Whether torch.compile works here: it requires a C++ compiler, and Triton on a GPU, which calls one too."""
    if not any(shutil.which(name) for name in (environ.get("CXX", "g++"), "clang++")):
        return False
    if device.type == "cpu":
        return True
    from torch.utils._triton import has_triton

    return has_triton()
