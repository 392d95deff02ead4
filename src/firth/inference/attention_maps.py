"""Attention weights of every head for one sequence, computed explicitly.

The encoder runs as usual, with fused kernels and packed layers; alongside each attention layer the weights are
recomputed from the queries and keys of its projection. A test checks that the two agree.
"""

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from firth.data.rows import pack_lists
from firth.errors import ConfigError, InputError, LengthError
from firth.folder import Loaded
from firth.inference.masks import shorten
from firth.inference.text_scores import TextScore
from firth.layers.attention import SelfAttention
from firth.models.transformer_decoder import CrossAttention, Decoder
from firth.objectives.translation import Translation
from firth.packed import Encoder
from firth.progress import Progress
from firth.tasks.model import TaskModel
from firth.tasks.rows import PairText, marked_pair, marked_texts
from firth.text.layouts import target_layout


@dataclass(frozen=True, slots=True)
class Attention:
    """How much each of T ``tokens`` (a row of ``weights``) attends to each (a column), by layer and head.

    ``keys``: the tokens of the columns if they differ from those of the rows: in a translation the rows are the target
    and the columns the source. ``averaged``: the axes that the weights are averaged over, which then have size 1.
    """

    tokens: list[str]
    weights: Float[np.ndarray, "L N T Tk"]
    keys: list[str] | None = None
    averaged: tuple[Literal["layers", "heads"], ...] = ()

    @property
    def columns(self) -> list[str]:
        """The tokens that are attended to."""
        return self.tokens if self.keys is None else self.keys

    @property
    def layers(self) -> list[str]:
        """Display names of the layers."""
        return ["mean of layers"] if "layers" in self.averaged else _numbered("layer", self.weights.shape[0])

    @property
    def heads(self) -> list[str]:
        """Display names of the heads."""
        return ["mean of heads"] if "heads" in self.averaged else _numbered("head", self.weights.shape[1])

    def mean(self, over: Literal["heads", "layers", "all"]) -> "Attention":
        """Average over the heads of each layer, over all layers for each head, or over both."""
        axes = {"heads": (1,), "layers": (0,), "all": (0, 1)}
        if over not in axes:
            raise ConfigError(f"average {over!r}: expected one of {', '.join(axes)}")
        averaged = {*self.averaged, *(("layers", "heads") if over == "all" else (over,))}
        return replace(
            self, weights=self.weights.mean(axes[over], keepdims=True), averaged=tuple(sorted(averaged, reverse=True))
        )


def _numbered(what: str, n: int) -> list[str]:
    return [f"{what} {number}" for number in range(1, n + 1)]


def attention_of(loaded: Loaded, text: str, second: str | None) -> Attention:
    """Compute the attention over a text or a pair; raises as ``attention_row`` and ``attention_weights``."""
    row, segments = attention_row(loaded, text, second)
    weights = attention_weights(loaded.objective.encoder, row, segments)
    return Attention([loaded.tokenizer.pieces[i] for i in row], weights)


def encodes_apart(loaded: Loaded) -> bool:
    """Whether the model encodes the two texts of a pair as two sequences."""
    return isinstance(loaded.objective, TaskModel) and loaded.objective.joins_rows


def pair_texts(loaded: Loaded, text: str, second: str) -> tuple[PairText, PairText]:
    """The two texts of a pair, with shared words marked if the model marks them."""
    first, other = (loaded.tokenizer.encode(one) for one in (text, second))
    config = loaded.objective.config if isinstance(loaded.objective, TaskModel) else None
    if getattr(config, "mark_shared_words", False):  # heads of taggers do not have it
        return marked_texts((text, first), (second, other))
    return PairText(first.ids), PairText(other.ids)


def attention_row(loaded: Loaded, text: str, second: str | None) -> tuple[list[int], list[int] | None]:
    """Return the token ids of a text or pair as the model reads them, and the segments of a pair, with shared words
    marked if the model marks them.

    LengthError for more tokens than the model reads, InputError for none.
    """
    tokenizer, layout = loaded.tokenizer, loaded.layout
    row: list[int] = layout.single(tokenizer.encode(text).ids)
    segments: list[int] | None = None
    if second is not None:
        if encodes_apart(loaded):
            raise ConfigError("this model encodes the two texts of a pair separately: give one text")
        pair = pair_texts(loaded, text, second)
        if not len(pair[1]):
            raise InputError(f"the second text, {shorten(second)}, has no tokens: give one with a word in it")
        row, segments = marked_pair(layout, *pair)
    if loaded.max_length is not None and len(row) > loaded.max_length:
        raise LengthError(
            f"{shorten(text)} has {len(row)} tokens, the model reads at most {loaded.max_length}: shorten it"
        )
    if not row:
        raise InputError(f"{shorten(text)} has no tokens: give a text with a word in it")
    return row, segments


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
    thread = threading.get_ident()

    def watch(layer: SelfAttention, given: tuple[Any, ...], _: Tensor) -> None:
        if threading.get_ident() == thread:  # others may use the same model
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
    """softmax(q kᵀ / √D) of each head over one sequence, float32; without √D if not ``scaled``.

    Source: Vaswani et al. 2017, §3.2.1.
    """
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
    w (1 - w), the factor that multiplies the gradient; 0 when saturated.
    """

    layer: int
    largest: float
    largest_unscaled: float
    slope: float
    slope_unscaled: float


def saturations(encoder: Encoder, ids: Sequence[int], segments: Sequence[int] | None = None) -> list[Saturation]:
    """Compute the saturation of each layer over one sequence, from the bottom up, on the trained model's own inputs.

    Rows that can attend to only one token are left out; InputError if none are left. Otherwise raises as
    ``attention_weights``.
    """
    if len(ids) == 1:
        raise InputError("the text has one token, which can attend to itself alone: give a longer one")
    kinds = [attention_weights(encoder, ids, segments, scaled=scaled) for scaled in (True, False)]
    found = []
    for number, (layer, *weights) in enumerate(zip(attention_layers(encoder), *kinds, strict=True), start=1):
        # Under left-to-right attention the first row can attend only to itself.
        rows = [x[:, 1:] if layer.causal else x for x in weights]
        largest = [float(x.max(-1).mean()) for x in rows]
        slope = [float((x * (1 - x)).sum(-1).mean()) for x in rows]
        found.append(Saturation(number, *largest, *slope))
    return found


def cross_attention(loaded: Loaded, source: str, target: str | Callable[[str], str], device: torch.device) -> Attention:
    """Compute the attention weights from a translation's tokens to those of its source.

    ``target``: the translation, or a function that produces it.
    ConfigError for a model without such attention, InputError for an empty source.
    """
    objective, tokenizer = loaded.objective, loaded.tokenizer
    if not isinstance(objective, Translation):
        raise ConfigError(
            f"a model of system {loaded.system_name} for {loaded.task} has no cross-attention: firth pretrain "
            "--model transformer-mini with a corpus of translations trains one that has"
        )
    written_text = target if isinstance(target, str) else target(source)
    ids = tokenizer.encode(source).ids
    if not ids:
        raise InputError(f"{shorten(source)} has no tokens: give a text with a word in it")
    rows = [loaded.layout.single(ids), target_layout(tokenizer).single(tokenizer.encode(written_text).ids)]
    read, written = (pack_lists([row]).to(device) for row in rows)
    weights = cross_weights(objective.decoder, lambda: objective.written(read, written))
    # Each row of the weights belongs to the token predicted at that position: the one after the token read.
    pieces = [tokenizer.pieces[i] for i in (*rows[1][1:], tokenizer.end_id)]
    return Attention(pieces, weights, [tokenizer.pieces[i] for i in rows[0]])


@torch.inference_mode()
def cross_weights(decoder: Decoder, run: Callable[[], object]) -> Float[np.ndarray, "L N Tt Ts"]:
    """Collect each block's attention weights from target to source tokens while ``run`` processes one pair."""
    seen: list[Tensor] = []
    thread = threading.get_ident()

    def watch(layer: CrossAttention, given: tuple[Any, ...], _: Tensor) -> None:
        if threading.get_ident() != thread:  # others may use the same model
            return
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


def head_importance(encoder: Encoder, score: Callable[[], Iterable[TextScore]]) -> Float[np.ndarray, "L N"]:
    """Measure how far silencing each head lowers a token's mean log-probability, in nats.

    ``score()``: scores the texts. ConfigError for an encoder without attention, InputError if no token is scored.
    """
    layers = attention_layers(encoder)
    if not layers:
        raise ConfigError("this model has no attention heads to leave out: only Transformers have")

    def mean() -> float:
        values = [token.log_probability for found in score() for token in found.tokens]
        if not values:
            raise InputError("the texts have no token that the model scores: give longer ones")
        return sum(values) / len(values)

    whole, losses = mean(), list[list[float]]()
    with Progress("leaving out heads", sum(layer.n_heads for layer in layers), "heads") as progress:
        for layer in layers:
            losses.append([])
            for head in range(layer.n_heads):
                with without_head(layer, head):
                    losses[-1].append(whole - mean())
                progress.advance(1)
    return np.array(losses, np.float32)


@contextmanager
def without_head(layer: SelfAttention, head: int) -> Iterator[None]:
    """Silence one head of a layer inside the context: it contributes nothing to the layer's output in this thread."""
    thread = threading.get_ident()

    def silence(module: nn.Module, given: tuple[Any, ...]) -> tuple[Tensor] | None:
        if threading.get_ident() != thread:
            return None
        (context,) = given
        heads = context.unflatten(-1, (layer.n_heads, -1)).clone()
        heads[..., head, :] = 0
        return (heads.flatten(-2),)

    handle = layer.output.register_forward_pre_hook(silence)
    try:
        yield
    finally:
        handle.remove()
