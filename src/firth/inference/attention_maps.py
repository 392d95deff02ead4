"""Attention weights of every head for one sequence, computed explicitly.

The encoder runs as it always does, fused kernels and packed layers included, and beside each attention the weights are
computed once more from the queries and keys of its own projection. A test holds the two to one another.
"""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from firth.data.rows import pack_lists
from firth.errors import ConfigError
from firth.layers.attention import SelfAttention
from firth.packed import Encoder


@dataclass(frozen=True, slots=True)
class Attention:
    """Of a row of T ``pieces``: how much each (a row of ``weights``) takes from each (a column), by layer and head."""

    pieces: list[str]
    weights: Float[np.ndarray, "L N T T"]


def attention_weights(
    encoder: Encoder, ids: Sequence[int], segments: Sequence[int] | None = None
) -> Float[np.ndarray, "L N T T"]:
    """The weights of all layers over one row; they add up to 1 over the last axis.

    ConfigError for an encoder without such layers, and for a compiled one, whose layers cannot be watched.
    """
    layers = attention_layers(encoder)
    if not layers:
        raise ConfigError("this model has no attention whose weights could be shown: only Transformers have")
    seen: list[Tensor] = []

    def watch(layer: SelfAttention, given: tuple[Any, ...], _: Tensor) -> None:
        seen.append(head_weights(layer, given[0]))

    device, was_training = next(encoder.parameters()).device, encoder.training
    encoder.eval()
    with torch.inference_mode(), ExitStack() as hooks:
        for layer in layers:
            handle = layer.register_forward_hook(watch)
            hooks.callback(handle.remove)
        encoder(pack_lists([ids], None if segments is None else [segments]).to(device), keep=())
    encoder.train(was_training)
    if len(seen) < len(layers):
        raise ConfigError("the layers of a compiled model cannot be watched: load it without compile")
    return torch.stack(seen).cpu().numpy()


def attention_layers(encoder: Encoder) -> list[SelfAttention]:
    """The layers whose weights can be shown, from the bottom up."""
    return [module for module in encoder.modules() if isinstance(module, SelfAttention)]


def head_weights(layer: SelfAttention, x: Float[Tensor, "T H"]) -> Float[Tensor, "N T T"]:
    """softmax(q kᵀ / √D) of each head over one row, float32 (Vaswani et al. 2017, §3.2.1)."""
    q, k, _ = layer.query_key_value(x).unflatten(-1, (3, layer.n_heads, -1)).permute(1, 2, 0, 3)
    with torch.autocast(x.device.type, enabled=False):
        scores = q.float() @ k.float().transpose(1, 2) / math.sqrt(q.shape[-1])
    if layer.causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1)
