"""Estimate the memory of a training run before it starts, and refuse it if there is too little."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from firth.errors import ConfigError
from firth.machine import Machine, free_memory
from firth.packed import Encoder
from firth.systems import System

# Bytes per parameter in float32: for itself and Adam's two running means; for its gradient.
_PARAMETER_BYTES, _GRADIENT_BYTES = 12, 4
# Square roots of Adam's means, which an update computes for all parameters at once.
_UPDATE_BYTES = 4
# What the loss over the vocabulary and the libraries take. Measured, not derived.
_FIXED_BYTES = 1.7e8
# Factor by which an estimate may exceed the true value.
_DOUBT = 1.35


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in bytes: for weights with gradients and optimizer state, for the work on a micro-batch of any size, and
    for what grows with its tokens."""

    parameters: float
    fixed: float
    growing: float

    @property
    def total(self) -> float:
        return self.parameters + self.fixed + self.growing


def estimate_memory(
    model: nn.Module,
    system: System,
    config: Any,
    dtype: torch.dtype,
    tokens: int,
    *,
    recompute: bool,
    processes: int = 1,
    shares: int = 1,
) -> Memory:
    """Estimate peak memory of a training step with micro-batches of ``tokens``, within a third.

    ``model`` may be on the meta device. benchmarks/training_memory.py compares estimates with measurements. For
    several processes on one machine, which share weights and optimizer state: the total of all. With ``shares``: for
    one of that many processes, which have equal shares of all tensors (full sharding).
    """
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad) + sum(b.numel() for b in model.buffers())
    # Matrix products in a smaller dtype need a copy of the weights in it.
    casts = 0 if dtype == torch.float32 else dtype.itemsize * (trained + frozen)
    kept = system.activation_bytes(config, dtype.itemsize)[recompute]
    # Each process has its own gradients, and writes what others need of them.
    gradients = _GRADIENT_BYTES * (2 * processes - 1)
    frozen_bytes = 4 * frozen * processes
    fixed, growing = processes * (casts + _FIXED_BYTES) + _UPDATE_BYTES * trained / shares, processes * tokens * kept
    if shares > 1:
        # Besides its share: all parameters outside the blocks, gathered, and one block, with their gradients.
        blocks = [sum(p.numel() for p in block.parameters()) for block in _blocks(model)]
        gathered = 2 * _GRADIENT_BYTES * (trained + frozen - sum(blocks) + max(blocks, default=0))
        parameters = (_PARAMETER_BYTES + _GRADIENT_BYTES) * trained / shares + 4 * frozen / shares
        return Memory(parameters, fixed + gathered, growing)
    return Memory((_PARAMETER_BYTES + gradients) * trained + frozen_bytes, fixed, growing)


def _blocks(model: nn.Module) -> list[nn.Module]:
    encoder = getattr(model, "encoder", None)
    return encoder.regions() if isinstance(encoder, Encoder) else []


def check_memory(need: Memory, machine: Machine, batch_tokens: int, *, recompute: bool) -> str:
    """Describe the memory needed and available; ConfigError if the run certainly does not fit.

    ``batch_tokens``: of a micro-batch. ``recompute``: whether recomputing blocks would need less.
    """
    free = free_memory(machine.device)
    words = f"memory: about {_shown(need.total)} ({_shown(need.parameters)} of it weights, gradients and optimizer)"
    if free is None:
        return words
    words += f", {_shown(free)} free"
    if need.total <= free:
        return words
    if need.total <= _DOUBT * free:
        return f"{words}: it may not fit"
    room = int(batch_tokens * (free - need.parameters - need.fixed) / need.growing)
    if room < 1:
        raise ConfigError(f"{words}: the model itself is too large for this machine; choose a smaller one")
    also = ", or set train.recompute=true" if recompute else ""
    raise ConfigError(
        f"{words}: of a micro-batch of {batch_tokens:,} tokens about {room:,} fit: lower train.batch_tokens in that "
        f"proportion{also}"
    )


def _shown(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.1f} GB"
