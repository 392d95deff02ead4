"""Initialise weights before training: from statistics of the text, from neighbouring or from trained positions.

A small BERT with random initialisation spends its first millions of tokens on a plateau where it predicts the token
frequencies, until attention has learned positions. This can be avoided: see docs/learning.md.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from firth.data.batch import Objective
from firth.data.shards import Corpus
from firth.errors import ConfigError
from firth.layers.attention import SelfAttention
from firth.layers.blocks import PostNormBlock
from firth.models.bert import Bert
from firth.models.gpt import Gpt
from firth.packed import Encoder
from firth.pretraining.config import InitConfig
from firth.pretraining.cooccurrence import cooccurrence_vectors, token_counts

# Angular frequencies of sinusoidal positions, in radians per token, from the fastest to the slowest.
_FASTEST, _SLOWEST = 1.6, 2 * math.pi / 1024
# Penalty in the fit of trained positions: less follows their noise, more flattens them (docs/learning.md).
_RIDGE = 2.0
# Parameters of the systems' objectives, by name: a layer may be as wide as the vocabulary.
_TABLES = (
    "softmax.weight",
    "encoder.embeddings.pieces.weight",
    "encoder.embeddings.weight",
    "encoder.pieces.weight",
    "encoder.words",
)
_OUTPUT_BIASES = ("mlm.bias", "lm.bias", "softmax.bias", "decoder.output.bias", "bias")


@torch.no_grad()
def initialize(objective: Objective, corpus: Corpus, config: InitConfig, tell: Callable[[str], None]) -> None:
    """Overwrite the random weights that ``config`` names, in place; the others stay as they are.

    Sinusoidal positions take as many dimensions as a head has; token vectors are 0 there. ConfigError for parts that
    the model does not have.
    """
    counts = None
    if config.embeddings == "cooccurrence" or config.output_bias == "frequencies":
        counts = token_counts(corpus)
    n_dimensions = _head_width(objective.encoder) if config.positions == "sinusoids" else 0
    if n_dimensions:
        _set_positions(objective.encoder, n_dimensions, config.embedding_deviation)
    if config.embeddings == "cooccurrence":
        assert counts is not None
        table = _table(objective)
        tell("counting token co-occurrences")
        vectors = cooccurrence_vectors(corpus, counts, table.shape[1] - n_dimensions)
        vectors = _of_deviation(vectors, config.embedding_deviation)
        # [MASK] and the like never occur in text. Zeros there would leave LayerNorm nothing but the position to scale
        # up, and every head that looks for a position would attend to masks.
        unseen = torch.from_numpy(counts == 0)
        vectors[unseen] = torch.randn(int(unseen.sum()), vectors.shape[1]) * config.embedding_deviation
        table[:, n_dimensions:] = vectors
    if n_dimensions:
        # A constant added to the sinusoids would move the peak of their products to another position.
        _table(objective)[:, :n_dimensions] = 0
        if isinstance(objective.encoder, Bert):
            objective.encoder.embeddings.segments.weight[:, :n_dimensions] = 0
    if config.output_bias == "frequencies":
        assert counts is not None
        shares = torch.from_numpy((counts + 1) / (counts + 1).sum())
        _output_bias(objective).copy_(shares.log())
    if config.neighbour_heads:
        if not n_dimensions:
            raise ConfigError("init.neighbour_heads requires init.positions='sinusoids'")
        _set_neighbour_heads(objective.encoder, config.neighbour_heads, config.neighbour_gain)


@torch.no_grad()
def extrapolate_positions(encoder: Encoder, n_trained: int) -> None:
    """Overwrite the position embeddings from ``n_trained`` on with an extrapolation of the earlier ones, in place.

    Fits the earlier ones by ridge regression on sinusoids. ConfigError if the model has no positions beyond them.
    """
    table = _reader(encoder)[0].weight
    if not 1 < n_trained < len(table):
        raise ConfigError(
            f"init.trained_positions={n_trained}: expected 2 to {len(table) - 1}; the model has {len(table)}"
        )
    angles = np.outer(np.arange(len(table)), _frequencies(_head_width(encoder)))
    waves = np.concatenate([np.ones((len(table), 1)), np.sin(angles), np.cos(angles)], axis=1)
    penalty = _RIDGE * np.eye(waves.shape[1])
    penalty[0, 0] = 0  # the mean
    known = waves[:n_trained]
    found = np.linalg.solve(known.T @ known + penalty, known.T @ table[:n_trained].double().numpy())
    table[n_trained:] = torch.from_numpy(waves[n_trained:] @ found).to(table.dtype)


def _table(objective: Objective) -> Tensor:
    """The matrix with a row per token: the input embedding, or the softmax of a character-level model."""
    if (found := _first_of(objective, _TABLES)) is None:
        raise ConfigError("init.embeddings: the model has no embedding of tokens: set it to 'random'")
    return found


def _output_bias(objective: Objective) -> Tensor:
    if (found := _first_of(objective, _OUTPUT_BIASES)) is None:
        raise ConfigError("init.output_bias: the model's softmax has no bias: set it to 'zero'")
    return found


def _first_of(objective: Objective, names: Sequence[str]) -> Tensor | None:
    parameters = dict(objective.named_parameters())
    return next((parameters[name] for name in names if name in parameters), None)


def _of_deviation(vectors: Tensor, deviation: float) -> Tensor:
    """Centre the vectors over the vocabulary, then scale each to a root mean square of ``deviation``."""
    vectors = vectors - vectors.mean(0)
    return vectors * (deviation / vectors.pow(2).mean(1, keepdim=True).sqrt().clamp(min=1e-6))


def _reader(encoder: Encoder) -> tuple[nn.Embedding, SelfAttention]:
    """The learned position embeddings of a model, and its first layer's self-attention."""
    if not isinstance(encoder, (Bert, Gpt)):
        raise ConfigError(
            "init.positions='sinusoids' and init.trained_positions require learned positions (BERT, GPT): leave "
            "them out"
        )
    block = encoder.blocks[0]
    assert isinstance(block, PostNormBlock)
    return encoder.embeddings.positions, block.attention


def _head_width(encoder: Encoder) -> int:
    return encoder.widths[0] // _reader(encoder)[1].n_heads


def _frequencies(n_dimensions: int) -> np.ndarray:
    return np.geomspace(_FASTEST, _SLOWEST, n_dimensions // 2)


def _set_positions(encoder: Encoder, n_dimensions: int, deviation: float) -> None:
    """Position p gets ±sin(ω p) and ±cos(ω p) in dimensions 2f and 2f + 1, and zeros beyond ``n_dimensions``.

    Signs alternate from frequency to frequency: the mean, which LayerNorm subtracts, then hardly depends on p.
    """
    table = _reader(encoder)[0].weight
    angles = np.outer(np.arange(len(table)), _frequencies(n_dimensions))
    amplitudes = deviation * math.sqrt(2) * (-1.0) ** np.arange(n_dimensions // 2)
    table.zero_()
    table[:, 0:n_dimensions:2] = torch.from_numpy(np.sin(angles) * amplitudes).to(table.dtype)
    table[:, 1:n_dimensions:2] = torch.from_numpy(np.cos(angles) * amplitudes).to(table.dtype)


def _set_neighbour_heads(encoder: Encoder, offsets: tuple[int, ...], gain: float) -> None:
    """Head h starts with queries that match the key at position p + ``offsets[h]`` best, while there are heads.

    Keys read the sinusoids of their position, queries the same rotated by the angles of the offset: their product is
    Σ cos(ω (p + offset - p')), which is highest at p' = p + offset.
    """
    attention, width = _reader(encoder)[1], _head_width(encoder)
    queries, keys, _ = attention.query_key_value.weight.chunk(3)
    even = torch.arange(0, 2 * (width // 2), 2)
    for head, offset in enumerate(offsets[: attention.n_heads]):
        angles = torch.from_numpy(_frequencies(width) * offset).to(queries.dtype)
        cosine, sine = angles.cos() * gain, angles.sin() * gain
        query, key = (part[head * width : (head + 1) * width] for part in (queries, keys))
        query.zero_()
        key.zero_()
        query[even, even], query[even, even + 1] = cosine, sine
        query[even + 1, even + 1], query[even + 1, even] = cosine, -sine
        key[even, even] = key[even + 1, even + 1] = torch.full_like(cosine, gain)
