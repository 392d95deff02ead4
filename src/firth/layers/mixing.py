"""Scalar mixes of layers, and pooling of tokens into one vector per word or sequence.

Source: Peters et al. 2018 (ELMo), eq. 1, for the weighted sum; Devlin et al. 2018, Table 7, for the others.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from firth.errors import ConfigError
from firth.packed import Rows

MixKind = Literal["one", "sum", "scalar", "concat"]
PoolKind = Literal["first", "mean", "last"]

# ELMo's epsilon, added to the variance of a layer.
NORM_EPSILON = 1e-12


class OneLayer(nn.Module):
    """Reads a single layer."""

    def __init__(self, layers: tuple[int, ...], width: int):
        super().__init__()
        self.layers, self.width = layers, width

    def forward(self, layers: dict[int, Float[Tensor, "T _"]]) -> Float[Tensor, "T width"]:
        return layers[self.layers[0]]


class LayerSum(nn.Module):
    """Sums layers of equal width."""

    def __init__(self, layers: tuple[int, ...], width: int):
        super().__init__()
        self.layers, self.width = layers, width

    def forward(self, layers: dict[int, Float[Tensor, "T _"]]) -> Float[Tensor, "T width"]:
        first, *rest = (layers[number] for number in self.layers)
        return sum(rest, first)


class LayerConcat(nn.Module):
    """Concatenates layers in the given order; their widths may differ."""

    def __init__(self, layers: tuple[int, ...], width: int):
        super().__init__()
        self.layers, self.width = layers, width

    def forward(self, layers: dict[int, Float[Tensor, "T _"]]) -> Float[Tensor, "T width"]:
        return torch.cat([layers[number] for number in self.layers], dim=1)


class WeightedSum(nn.Module):
    """ELMo's scalar mix γ Σ s_j h_j with s = softmax(scalars), γ and scalars learned; initially the layers' mean.

    Source: Peters et al. 2018, eq. 1. ``layer_norm`` first normalises each layer to mean 0 and variance 1
    over all tokens and features of the batch, without gain (allenai/bilm-tf, elmo.py): a
    token's vector then depends slightly on the rest of the batch.
    """

    def __init__(self, layers: tuple[int, ...], width: int, *, layer_norm: bool = False):
        super().__init__()
        self.layers, self.width, self.layer_norm = layers, width, layer_norm
        self.scalars = nn.Parameter(torch.zeros(len(layers)))
        self.gamma = nn.Parameter(torch.ones(()))

    def weights(self) -> Float[Tensor, " L"]:
        """The softmax weight of each of ``layers``."""
        return self.scalars.softmax(0)

    def forward(self, layers: dict[int, Float[Tensor, "T _"]]) -> Float[Tensor, "T width"]:
        chosen = [layers[number] for number in self.layers]
        if self.layer_norm:
            chosen = [_normalised(layer) for layer in chosen]
        first, *rest = (weight * layer for weight, layer in zip(self.weights(), chosen, strict=True))
        return self.gamma * sum(rest, first)


# The result of ``make_mix``. ``width``: of its output; ``layers``: indices of the layers that it reads.
LayerMix = OneLayer | LayerSum | WeightedSum | LayerConcat


def make_mix(kind: MixKind, layers: Sequence[int], widths: Sequence[int], *, layer_norm: bool = False) -> LayerMix:
    """Build a module that combines an encoder's layers ``{number: (T, H)}`` to ``(T, width)``.

    ``layers``: indices 0 (embeddings) to L, or from the top: -1 is L. ``widths``: of all the encoder's
    layers, 0 to L. ``layer_norm`` (see ``WeightedSum``) requires "scalar".
    """
    numbers = _layer_numbers(layers, len(widths))
    chosen = [widths[number] for number in numbers]
    if kind not in get_args(MixKind):
        raise ConfigError(f"mix {kind!r} of layers: expected one of {', '.join(get_args(MixKind))}")
    if layer_norm and kind != "scalar":
        raise ConfigError(f"mix {kind!r} with layer_norm: only 'scalar' has it; leave layer_norm out")
    if kind == "one" and len(numbers) > 1:
        raise ConfigError(
            f"mix 'one' of the layers {list(layers)}: expected a single layer; name one, or choose another mix"
        )
    if kind == "concat":
        return LayerConcat(numbers, sum(chosen))
    if len(set(chosen)) > 1:
        raise ConfigError(
            f"mix {kind!r} of the layers {list(numbers)} with widths {chosen}: expected one width; "
            "choose layers of equal width, or the mix 'concat'"
        )
    if kind == "scalar":
        return WeightedSum(numbers, chosen[0], layer_norm=layer_norm)
    return OneLayer(numbers, chosen[0]) if kind == "one" else LayerSum(numbers, chosen[0])


def pool_words(
    x: Float[Tensor, "T H"], first: Int[Tensor, " W"], last: Int[Tensor, " W"], how: PoolKind
) -> Float[Tensor, "W H"]:
    """Pool token vectors to word vectors: the first token, the last, or the mean.

    Word w is the tokens ``first[w]`` to ``last[w]``, both included. Means are accumulated in at least float32.
    """
    n_pieces = last - first + 1
    if bool((n_pieces < 1).any()):
        word = int((n_pieces < 1).nonzero()[0])
        raise ValueError(f"word {word} is the tokens {int(first[word])} to {int(last[word])}: expected at least one")
    if how == "first":
        return x.index_select(0, first)
    if how == "last":
        return x.index_select(0, last)
    if how != "mean":
        raise ConfigError(f"pooling {how!r} of a word's tokens: expected one of {', '.join(get_args(PoolKind))}")
    word_of_piece = torch.arange(len(first), device=x.device).repeat_interleave(n_pieces)
    before = n_pieces.cumsum(0) - n_pieces
    place = torch.arange(len(word_of_piece), device=x.device) - before.index_select(0, word_of_piece)
    pieces = x.index_select(0, first.index_select(0, word_of_piece) + place)
    fine = torch.promote_types(x.dtype, torch.float32)
    sums = pieces.new_zeros(len(first), x.shape[1], dtype=fine).index_add(0, word_of_piece, pieces.to(fine))
    return (sums / n_pieces[:, None]).to(x.dtype)


def pool_rows(x: Float[Tensor, "T H"], rows: Rows, how: str) -> Float[Tensor, "B H"]:
    """Pool each sequence to one vector: its first or last token, or the mean or maximum over all."""
    if how in ("first", "last"):
        return x.index_select(0, rows.first if how == "first" else rows.last)
    return pool_runs(x, rows.lengths, how)


def pool_runs(x: Float[Tensor, "N H"], counts: Int[Tensor, " R"], how: str) -> Float[Tensor, "R H"]:
    """Pool each of R consecutive runs of vectors by mean, sum or maximum; ``counts``: run lengths, at least 1.

    Sums and means are accumulated in at least float32.
    """
    owner = torch.arange(counts.numel(), device=x.device).repeat_interleave(counts, output_size=x.shape[0])
    if how in ("mean", "sum"):
        fine = torch.promote_types(x.dtype, torch.float32)
        sums = x.new_zeros(counts.numel(), x.shape[1], dtype=fine).index_add(0, owner, x.to(fine))
        return (sums / counts[:, None] if how == "mean" else sums).to(x.dtype)
    start = x.new_zeros(counts.numel(), x.shape[1])
    return start.scatter_reduce(0, owner[:, None].expand_as(x), x, "amax", include_self=False)


def log_totals(
    scores: Float[Tensor, " N"], owner: Int[Tensor, " N"], n: int
) -> tuple[Float[Tensor, " R"], Float[Tensor, " R"]]:
    """For each of ``n`` owners of scores, the logarithm of their summed exponentials, and their largest score."""
    highest = scores.new_full((n,), -torch.inf).scatter_reduce(0, owner, scores.detach(), "amax")
    total = scores.new_zeros(n).index_add(0, owner, (scores - highest.index_select(0, owner)).exp())
    return total.log() + highest, highest


def attend_runs(
    x: Float[Tensor, "N H"], scores: Float[Tensor, " N"], counts: Int[Tensor, " R"]
) -> Float[Tensor, "R H"]:
    """The mean of each of R consecutive runs of vectors, weighted by the softmax of its scores.

    Source: Yang et al. 2016, §2.2, with a score that is linear in the vector. Computed in at least float32.
    """
    fine = torch.promote_types(x.dtype, torch.float32)
    owner = torch.arange(counts.numel(), device=x.device).repeat_interleave(counts, output_size=x.shape[0])
    highest = scores.new_full((counts.numel(),), -torch.inf).scatter_reduce(0, owner, scores.detach(), "amax")
    weights = (scores - highest.index_select(0, owner)).to(fine).exp()
    totals = weights.new_zeros(counts.numel()).index_add(0, owner, weights)
    weights = weights / totals.index_select(0, owner)
    return pool_runs(x.to(fine) * weights[:, None], counts, "sum").to(x.dtype)


def _normalised(layer: Float[Tensor, "T H"]) -> Float[Tensor, "T H"]:
    variance, mean = torch.var_mean(layer, correction=0)
    return (layer - mean) * (variance + NORM_EPSILON).rsqrt()


def _layer_numbers(layers: Sequence[int], n_widths: int) -> tuple[int, ...]:
    """``layers`` counted from 0, in their order."""
    for layer in layers:
        if not -n_widths <= layer < n_widths:
            raise ConfigError(
                f"layer {layer} of an encoder with layers 0 (embeddings) to {n_widths - 1}: expected one of these, "
                f"or -1 (the top) to -{n_widths}"
            )
    numbers = tuple(layer % n_widths for layer in layers)
    if not numbers or len(set(numbers)) < len(numbers):
        raise ConfigError(f"a mix of the layers {list(layers)}: expected at least one, each once")
    return numbers
