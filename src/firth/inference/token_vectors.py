"""Contextual vectors: every layer's vector of each token and word of a text, and mixes of layers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import get_args
from unicodedata import normalize

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from firth.data.rows import pack_words
from firth.errors import ConfigError, InputError
from firth.folder import Loaded
from firth.inference.batching import in_batches, in_blocks
from firth.inference.defaults import MixName
from firth.inference.outputs import check_finite
from firth.layers.mixing import PoolKind, WeightedSum
from firth.packed import Hidden, Tokens
from firth.text.words import folded_word

# Limits on the characters and texts whose vectors are in memory at a time.
MOST_CHARACTERS = 1 << 15
MOST_TEXTS = 1024

Encode = Callable[[Tokens, tuple[int, ...]], Hidden]


@dataclass(frozen=True, slots=True)
class Unit:
    """A token or word of a text, at characters ``[start:end]``."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Mix:
    """How to combine layers: sum, mean, concatenation, or a scalar mix γ Σ s_l h_l (Peters et al. 2018).

    ``last``: the top k layers; 0: all, the embedding output included. ``weights``: s_l of a scalar mix, from
    the lowest layer up; empty: those that the model learned for its task. ``gamma``: γ for the given weights.
    """

    kind: MixName
    last: int = 0
    weights: tuple[float, ...] = ()
    gamma: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(MixName):
            raise ConfigError(f"mix {self.kind!r}: expected one of {', '.join(get_args(MixName))}")
        if self.last < 0:
            raise ConfigError(f"last={self.last}: expected the number of top layers, or 0 for all")
        if self.kind != "scalar" and (self.weights or self.gamma != 1):
            raise ConfigError(f"weights and gamma apply to a scalar mix, not to {self.kind!r}: leave them out")
        if not np.isfinite([*self.weights, self.gamma]).all():
            raise ConfigError("weights and gamma of a scalar mix: expected finite numbers")


@dataclass(frozen=True, slots=True)
class ResolvedMix:
    """A mix for one model: the layers it reads, and for a scalar mix their factors (γ included)."""

    numbers: tuple[int, ...]
    kind: MixName
    factors: tuple[float, ...] = ()

    def of(self, layers: Sequence[Float[np.ndarray, "n _"]]) -> Float[np.ndarray, "n width"]:
        """Mix ``layers``, which are those of ``numbers`` in order."""
        if self.kind == "concat":
            return np.concatenate(layers, 1)
        share = 1 / len(layers) if self.kind == "mean" else 1.0
        mixed = np.zeros_like(layers[0])
        for factor, layer in zip(self.factors or (share,) * len(layers), layers, strict=True):
            mixed += np.float32(factor) * layer
        return mixed

    def of_hidden(self, hidden: Hidden) -> Float[Tensor, "T width"]:
        """Mix an encoder's output."""
        layers = [hidden.layers[number].float() for number in self.numbers]
        if self.kind == "concat":
            return torch.cat(layers, 1)
        share = 1 / len(layers) if self.kind == "mean" else 1.0
        factors = self.factors or (share,) * len(layers)
        first, *others = (factor * x for factor, x in zip(factors, layers, strict=True))
        return sum(others, first)


def resolve_mix(loaded: Loaded, mix: Mix) -> ResolvedMix:
    """Resolve a mix for a model; ConfigError if its layers do not allow it."""
    widths = loaded.objective.encoder.widths
    if mix.last > len(widths):
        raise ConfigError(f"last={mix.last}: this model has {len(widths)} layers, the embedding output included")
    numbers = tuple(range(len(widths) - mix.last if mix.last else 0, len(widths)))
    factors = tuple(mix.gamma * weight for weight in mix.weights)
    if mix.kind == "scalar" and not mix.weights:
        if mix.last or mix.gamma != 1:
            raise ConfigError(
                "a learned scalar mix has its own layers and γ: leave out last and gamma, or give weights"
            )
        numbers, factors = _learned(loaded)
    elif mix.kind == "scalar" and len(factors) != len(numbers):
        raise ConfigError(f"a scalar mix of {len(numbers)} layers has {len(factors)} weights: expected one per layer")
    chosen = [widths[number] for number in numbers]
    if mix.kind != "concat" and len(set(chosen)) > 1:
        raise ConfigError(
            f"a {mix.kind} of layers with the hidden sizes {chosen}: expected equal ones; use concat, or one layer"
        )
    return ResolvedMix(numbers, mix.kind, factors)


def _learned(loaded: Loaded) -> tuple[tuple[int, ...], tuple[float, ...]]:
    mixes = [module for module in loaded.objective.modules() if isinstance(module, WeightedSum)]
    if not mixes:
        raise ConfigError(
            "this model has not learned a scalar mix: give its weights, or train one with firth finetune "
            "--set head.network.mix=scalar"
        )
    if mixes[0].layer_norm:
        raise ConfigError("this model's scalar mix normalises layers over a whole batch: give weights instead")
    shares = mixes[0].weights().detach().float() * float(mixes[0].gamma.detach())
    return mixes[0].layers, tuple(shares.tolist())


@dataclass(frozen=True, slots=True)
class TextVectors:
    """The contextual vectors of a text's tokens, without special tokens, float32.

    ``spans``: the tokens ``[first:last]`` of each word. ``numbers``: the stored layers (0 is the embedding
    output), ``each`` their vectors (n, H) in that order. A word is a run of letters and digits, one punctuation mark,
    or one ideograph. A text without tokens has arrays of length 0.
    """

    text: str
    tokens: tuple[Unit, ...]
    words: tuple[Unit, ...]
    spans: tuple[tuple[int, int], ...]
    numbers: tuple[int, ...]
    each: tuple[Float[np.ndarray, "n _"], ...]

    @property
    def layers(self) -> Float[np.ndarray, "L n H"]:
        """All layers of the tokens, (L + 1, n, H); ConfigError if their hidden sizes differ."""
        if len({x.shape[1] for x in self.each}) > 1:
            sizes = [x.shape[1] for x in self.each]
            raise ConfigError(f"this model's layers have the hidden sizes {sizes}: use one layer, or concat")
        return np.stack(self.each)

    @property
    def word_layers(self) -> Float[np.ndarray, "L W H"]:
        """All layers of the words, (L + 1, W, H): each word is the mean of its tokens."""
        return np.stack([self.of_words(x) for x in self.layers])

    def layer(self, number: int) -> Float[np.ndarray, "n H"]:
        """The tokens' vectors of a layer; -1 is the last stored one. ConfigError for one that is not stored."""
        if number not in self.numbers and not -len(self.each) <= number < 0:
            raise ConfigError(f"layer {number}: these vectors are of the layers {', '.join(map(str, self.numbers))}")
        return self.each[self.numbers.index(number) if number >= 0 else number]

    def mixed(self, mix: ResolvedMix) -> Float[np.ndarray, "n H"]:
        """The tokens' vectors of a mix of layers."""
        return mix.of([self.layer(number) for number in mix.numbers])

    def of_words(self, x: Float[np.ndarray, "n H"], pool: PoolKind = "mean") -> Float[np.ndarray, "W H"]:
        """Pool the vectors of tokens to words: the mean, the first, or the last."""
        if pool not in get_args(PoolKind):
            raise ConfigError(f"pooling {pool!r} of a word's tokens: expected one of {', '.join(get_args(PoolKind))}")
        if not self.spans:
            return np.zeros((0, x.shape[1]), np.float32)
        firsts, lasts = np.array(self.spans).T
        if pool != "mean":
            return x[firsts if pool == "first" else lasts - 1]
        return (np.add.reduceat(x, firsts, 0, np.float32) / (lasts - firsts)[:, None]).astype(np.float32)

    def word_at(self, word: str) -> int:
        """The index of the first word with this spelling, or else ignoring case; InputError if there is none.

        Decomposed and composed letters are equal.
        """
        texts, word = [normalize("NFC", unit.text) for unit in self.words], normalize("NFC", word)
        if word in texts:
            return texts.index(word)
        folded = [folded_word(text) for text in texts]
        if folded_word(word) not in folded:
            raise InputError(f"{word!r} is not a word of {self.text[:60]!r}: its words are {', '.join(texts[:20])}")
        return folded.index(folded_word(word))


def vectors_stream(
    loaded: Loaded,
    texts: Iterable[str],
    numbers: Sequence[int],
    *,
    encode: Encode,
    budget_tokens: int,
    at_once: int = MOST_TEXTS,
) -> Iterator[TextVectors]:
    """Yield the vectors of each text in some layers, in order; holds ``at_once`` texts, fewer if they are long.

    A text longer than the model's maximum is read in windows that overlap by half; a token's vector comes from the
    window in which it has the most context. ConfigError for a model too short for any text, CheckpointError if vectors
    are not finite.
    """
    for some in in_blocks(texts, at_once, MOST_CHARACTERS):
        yield from _some(loaded, some, numbers, encode, budget_tokens)


def text_room(loaded: Loaded) -> int:
    """How many tokens of a text a sequence holds besides the special ones; ConfigError if none."""
    room = (loaded.window_length or 10**9) - loaded.layout.n_special
    if room < 1:
        raise ConfigError(
            f"the model reads at most {loaded.max_length} tokens, of which {loaded.layout.n_special} are special: no "
            "text fits"
        )
    return room


def _some(
    loaded: Loaded, texts: list[str], numbers: Sequence[int], encode: Encode, budget_tokens: int
) -> Iterator[TextVectors]:
    layout, widths, room = loaded.layout, loaded.objective.encoder.widths, text_room(loaded)
    encoded = loaded.tokenizer.encode_many(texts)
    found = [tuple(np.zeros((len(row.ids), widths[k]), np.float32) for k in numbers) for row in encoded]
    rows, wanted = list[list[int]](), list[tuple[int, int, int, int]]()
    for number, row in enumerate(encoded):
        for begin, first, last in windows(len(row.ids), room, causal=loaded.objective.encoder.causal):
            rows.append(layout.single(row.ids[begin : begin + room]))
            wanted.append((number, begin, first, last))
    for chosen in in_batches([len(row) for row in rows], budget_tokens):
        hidden = encode(pack_words([rows[i] for i in chosen], loaded.tokenizer), tuple(numbers))
        starts = hidden.rows.first.tolist()
        for place, k in enumerate(numbers):
            layer = hidden.layers[k].float().cpu().numpy()
            for start, i in zip(starts, chosen, strict=True):
                number, begin, first, last = wanted[i]
                at = start + len(layout.first) + first - begin
                found[number][place][first:last] = layer[at : at + last - first]
    for text, row, each in zip(texts, encoded, found, strict=True):
        check_finite(each)
        tokens = tuple(Unit(loaded.tokenizer.piece(i), a, b) for i, (a, b) in zip(row.ids, row.offsets, strict=True))
        begins = [i for i in range(len(row.ids)) if i == 0 or row.words[i] != row.words[i - 1]]
        spans = tuple(pairwise([*begins, len(row.ids)]))
        words = tuple(
            Unit(text[tokens[a].start : tokens[b - 1].end], tokens[a].start, tokens[b - 1].end) for a, b in spans
        )
        yield TextVectors(text, tokens, words, spans, tuple(numbers), each)


def windows(n: int, room: int, *, causal: bool = False) -> list[tuple[int, int, int]]:
    """Split n tokens into windows of ``room``: the start of each, and the tokens [first, last) to take from it.

    Every token is taken once, from the window in which it is farthest from the nearer edge; for a causal
    model, from the one with the most tokens before it.
    """
    if n <= room:
        return [(0, 0, n)] if n else []
    step = max(room // 2, 1)
    begins = [*range(0, n - room, step), n - room]
    cuts = [0]
    for before, after in pairwise(begins):
        end = before + room  # of the previous window; the two share [after, end)
        cuts.append(end if causal else (after + end) // 2)
    return [(begin, a, b) for begin, (a, b) in zip(begins, pairwise([*cuts, n]), strict=True)]
