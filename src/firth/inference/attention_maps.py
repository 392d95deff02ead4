"""Attention weights of every head for one sequence, computed explicitly.

The encoder runs as usual, with fused kernels and packed layers; beside each attention the weights are
computed again from the queries and keys of its projection. A test checks that the two agree.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from firth.data.rows import pack_lists
from firth.errors import ConfigError
from firth.layers.attention import SelfAttention
from firth.models.transformer_decoder import CrossAttention, Decoder
from firth.packed import Encoder


@dataclass(frozen=True, slots=True)
class Attention:
    """How much each of T ``tokens`` (a row of ``weights``) takes from each (a column), by layer and head.

    ``keys``: the columns, where they are other tokens: the source of a translation, whose target the rows are.
    """

    tokens: list[str]
    weights: Float[np.ndarray, "L N T Tk"]
    keys: list[str] | None = None

    @property
    def columns(self) -> list[str]:
        """The tokens that are attended to."""
        return self.tokens if self.keys is None else self.keys

    def mean(self, over: Literal["heads", "layers", "all"]) -> "Attention":
        """The average over the heads of each layer, over all layers for each head, or over both."""
        axes = {"heads": (1,), "layers": (0,), "all": (0, 1)}
        if over not in axes:
            raise ConfigError(f"average {over!r}: expected one of {', '.join(axes)}")
        return replace(self, weights=self.weights.mean(axes[over], keepdims=True))


def attention_weights(
    encoder: Encoder, ids: Sequence[int], segments: Sequence[int] | None = None, *, scaled: bool = True
) -> Float[np.ndarray, "L N T T"]:
    """Compute the attention weights of all layers over one sequence; they sum to 1 over the last axis.

    ``scaled``: as in ``head_weights``. ConfigError for an encoder without attention, and for a compiled one, whose
    layers cannot be hooked.
    """
    layers = attention_layers(encoder)
    if not layers:
        raise ConfigError("this model has no attention weights: only Transformers have")
    seen: list[Tensor] = []

    def watch(layer: SelfAttention, given: tuple[Any, ...], _: Tensor) -> None:
        seen.append(head_weights(layer, given[0], scaled=scaled))

    device, was_training = next(encoder.parameters()).device, encoder.training
    with torch.inference_mode(), ExitStack() as hooks:
        encoder.eval()
        hooks.callback(encoder.train, was_training)
        for layer in layers:
            handle = layer.register_forward_hook(watch)
            hooks.callback(handle.remove)
        encoder(pack_lists([ids], None if segments is None else [segments]).to(device), keep=())
    if len(seen) < len(layers):
        raise ConfigError("a compiled model hides its attention layers: load it without compile")
    return torch.stack(seen).cpu().numpy()


def attention_layers(encoder: Encoder) -> list[SelfAttention]:
    """The self-attention layers, from the bottom up."""
    return [module for module in encoder.modules() if isinstance(module, SelfAttention)]


def head_weights(layer: SelfAttention, x: Float[Tensor, "T H"], *, scaled: bool = True) -> Float[Tensor, "N T T"]:
    """softmax(q kᵀ / √D) of each head over one row, float32 (Vaswani et al. 2017, §3.2.1); without √D if not scaled."""
    q, k, _ = layer.query_key_value(x).unflatten(-1, (3, layer.n_heads, -1)).permute(1, 2, 0, 3)
    with torch.autocast(x.device.type, enabled=False):
        scores = q.float() @ k.float().transpose(1, 2) / (math.sqrt(q.shape[-1]) if scaled else 1.0)
    if layer.causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1)


@dataclass(frozen=True, slots=True)
class Saturation:
    """How sharp the softmax of a layer is, over its heads and rows, with the published 1/√D and without.

    ``largest``: the mean of each row's largest weight, 1 when saturated. ``slope``: the mean over rows of the sum of
    w (1 - w), which is what a gradient is multiplied by; 0 when saturated.
    """

    layer: int
    largest: float
    largest_unscaled: float
    slope: float
    slope_unscaled: float


def saturations(encoder: Encoder, ids: Sequence[int], segments: Sequence[int] | None = None) -> list[Saturation]:
    """The saturation of each layer over one row, from the bottom up; the layers' inputs are the trained model's own.

    Rows that can attend to one token only are left out. Errors as in ``attention_weights``.
    """
    kinds = [attention_weights(encoder, ids, segments, scaled=scaled) for scaled in (True, False)]
    # Under left-to-right attention the first row has no choice.
    kinds = [x[:, :, 1:] for x in kinds]
    found = []
    for layer, (with_root, without) in enumerate(zip(*kinds, strict=True), start=1):
        largest = [float(x.max(-1).mean()) if x.size else math.nan for x in (with_root, without)]
        slope = [float((x * (1 - x)).sum(-1).mean()) if x.size else math.nan for x in (with_root, without)]
        found.append(Saturation(layer, *largest, *slope))
    return found


@torch.inference_mode()
def cross_weights(decoder: Decoder, run: Callable[[], object]) -> Float[np.ndarray, "L N Tt Ts"]:
    """The weights of the target's tokens over the source's, by block, while ``run`` reads one pair."""
    seen: list[Tensor] = []

    def watch(layer: CrossAttention, given: tuple[Any, ...], _: Tensor) -> None:
        x, _, (keys, _), _ = given
        q = layer.query(x).unflatten(-1, (layer.n_heads, -1)).transpose(0, 1).float()
        scores = q @ keys.permute(1, 2, 0).float() / math.sqrt(q.shape[-1])
        seen.append(scores.softmax(-1))

    with ExitStack() as hooks:
        for module in decoder.modules():
            if isinstance(module, CrossAttention):
                hooks.callback(module.register_forward_hook(watch).remove)
        run()
    return torch.stack(seen).cpu().numpy()


@contextmanager
def without_head(layer: SelfAttention, head: int) -> Iterator[None]:
    """Inside, one head of a layer gives nothing to the layer's output."""

    def silence(module: nn.Module, given: tuple[Any, ...]) -> tuple[Tensor]:
        (context,) = given
        heads = context.unflatten(-1, (layer.n_heads, -1)).clone()
        heads[..., head, :] = 0
        return (heads.flatten(-2),)

    handle = layer.output.register_forward_pre_hook(silence)
    try:
        yield
    finally:
        handle.remove()
