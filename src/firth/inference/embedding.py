"""Embed texts in three steps: texts -> sequences -> pooled sequences -> vectors.

The first and the last need only the tokenizer; between them ``embed_stream`` or the server runs the model in batches.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import SupportsIndex, TypeVar, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from firth.data.rows import pack_words
from firth.errors import ConfigError
from firth.folder import Loaded
from firth.inference.batching import in_batches, in_blocks
from firth.inference.outputs import check_finite
from firth.inference.token_vectors import Mix, ResolvedMix, resolve_mix, text_room
from firth.layers.mixing import pool_rows
from firth.packed import Hidden
from firth.tasks.config import Pool
from firth.tasks.learnt import POOLER, pretrained_summary

T = TypeVar("T")
AT_ONCE = 2048  # texts
# Characters of the texts whose tokens are in memory at a time; fewer than the words that an open vocabulary remembers.
MOST_CHARACTERS = 1 << 19


def embed_stream(
    loaded: Loaded,
    texts: Iterable[str],
    layer: int,
    pool: Pool | None,
    mix: Mix | None,
    *,
    device: torch.device,
    budget_tokens: int,
    at_once: int = AT_ONCE,
) -> Iterator[Float[np.ndarray, " H"]]:
    """Yield the vector of each text, as ``firth.Model.embed`` gives it.

    Holds ``at_once`` texts in memory, fewer if they are long.
    """
    layer, how, unit = check_embedding(loaded, layer, pool)
    if mix is not None and how == "summary":
        raise ConfigError("the summary vector exists only at the top layer: leave out the mix, or choose another pool")
    if mix is not None and layer != layer_number(loaded, -1):
        raise ConfigError(f"layer {layer} is one layer, and mix combines several: leave one of them out")
    choice = layer if mix is None else resolve_mix(loaded, mix)
    for some in in_blocks(texts, at_once, MOST_CHARACTERS):
        yield from _embed_some(loaded, some, choice, how, unit, device, budget_tokens)


def _embed_some(
    loaded: Loaded,
    texts: list[str],
    choice: int | ResolvedMix,
    pool: Pool,
    unit: bool,
    device: torch.device,
    budget_tokens: int,
) -> Iterator[np.ndarray]:
    by_text = embedding_rows(loaded, texts)
    rows = [row for windows in by_text for row in windows]
    pooled: list[Tensor] = [torch.empty(0)] * len(rows)
    for numbers in in_batches([len(row) for row in rows], budget_tokens):
        vectors = pooled_rows(loaded, [rows[i] for i in numbers], choice, pool, device)
        for i, vector in zip(numbers, vectors, strict=True):
            pooled[i] = vector
    for windows, found in zip(by_text, windows_of(by_text, pooled), strict=True):
        joined = join_windows(found, [len(row) for row in windows], pool, unit)
        check_finite([joined])
        yield joined


def layer_number(loaded: Loaded, layer: SupportsIndex) -> int:
    """Resolve a layer to its index from 0; ConfigError for one that the model lacks."""
    n_layers = len(loaded.objective.encoder.widths) - 1
    if isinstance(layer, bool) or not hasattr(layer, "__index__") or not -n_layers - 1 <= layer.__index__() <= n_layers:
        raise ConfigError(
            f"layer {layer}: this model has layers 0 (embeddings) to {n_layers}, or -1 to -{n_layers + 1}"
        )
    return layer.__index__() % (n_layers + 1)


def check_embedding(loaded: Loaded, layer: int, pool: Pool | None) -> tuple[int, Pool, bool]:
    """Resolve the layer's index, the pooling, and whether to normalise; ConfigError for what the model lacks.

    Without ``pool``: the model's default, which may normalise.
    """
    number = layer_number(loaded, layer)
    own = loaded.embedding
    how, unit = (own.pool, own.normalize) if pool is None else (pool, False)
    if how not in get_args(Pool):
        raise ConfigError(f"pool {how!r}: expected one of {', '.join(get_args(Pool))}")
    if how == "summary" and not _has_summary(loaded):
        raise ConfigError("this model was trained without its summary vector: choose another pool")
    if how == "summary" and number != layer_number(loaded, -1):
        raise ConfigError(
            f"the summary vector exists only at the top layer: leave out layer {layer}, or choose another pool"
        )
    return number, how, unit


def _has_summary(loaded: Loaded) -> bool:
    """Whether the encoder's summary vector of a text was trained, in pre-training or for the model's task."""
    features = getattr(loaded.objective, "features", None)
    if features is not None and features.summary:
        return True
    return POOLER not in loaded.untrained and pretrained_summary(loaded.system_name, loaded.provenance)


def embedding_rows(loaded: Loaded, texts: Sequence[str]) -> list[list[list[int]]]:
    """The sequences of each text: one, or consecutive windows if it is longer than the model was trained on."""
    return rows_of_ids(loaded, loaded.tokenizer.ids_many(texts))


def rows_of_ids(loaded: Loaded, texts: Sequence[Sequence[int]]) -> list[list[list[int]]]:
    """As ``embedding_rows``, for token ids."""
    layout, framed = loaded.layout, loaded.system.layout(loaded.tokenizer)
    room = text_room(loaded)
    # No sequence may be empty: without special tokens an empty text would have no vector.
    return [
        [layout.single(ids[begin : begin + room]) or framed.single(ids) for begin in range(0, max(len(ids), 1), room)]
        for ids in texts
    ]


def windows_of(by_text: Sequence[Sequence[object]], found: Iterable[T]) -> list[list[T]]:
    """Group the outputs of all sequences, in order, by text."""
    outputs = iter(found)
    return [list(islice(outputs, len(windows))) for windows in by_text]


@torch.inference_mode()
def pooled_rows(
    loaded: Loaded, rows: Sequence[list[int]], choice: int | ResolvedMix, pool: Pool, device: torch.device
) -> list[Float[Tensor, " H"]]:
    """The vector of each sequence from a layer or a mix of layers, all in one batch; float32 on the host."""
    tokens = pack_words(rows, loaded.tokenizer)
    keep = (choice,) if isinstance(choice, int) else choice.numbers
    hidden = loaded.objective.encoder(tokens.to(device), keep=keep)
    states = hidden.top if isinstance(choice, int) else choice.of_hidden(hidden)
    return list(_pool(hidden, states, pool))


@torch.inference_mode()
def layer_means(loaded: Loaded, rows: Sequence[list[int]], device: torch.device) -> list[list[Float[Tensor, " width"]]]:
    """The mean over each sequence of every layer, 0 (embeddings) first, all in one batch; float32 on the host."""
    hidden, numbers = _all_layers(loaded, rows, device)
    layers = [_pool(hidden, hidden.layers[number], "mean") for number in numbers]
    return [list(vectors) for vectors in zip(*layers, strict=True)]


@torch.inference_mode()
def token_rows(
    loaded: Loaded, rows: Sequence[list[int]], layer: int, device: torch.device
) -> list[Float[np.ndarray, "T H"]]:
    """The vectors of each sequence's tokens in a layer, all in one batch."""
    hidden = loaded.objective.encoder(pack_words(rows, loaded.tokenizer).to(device), keep=(layer,))
    return [part.numpy() for part in hidden.top.float().cpu().split([len(row) for row in rows])]


@torch.inference_mode()
def layer_rows(
    loaded: Loaded, rows: Sequence[list[int]], device: torch.device
) -> list[list[Float[np.ndarray, "T width"]]]:
    """The vectors of each sequence's tokens in every layer, 0 (embeddings) first, all in one batch."""
    hidden, numbers = _all_layers(loaded, rows, device)
    lengths = [len(row) for row in rows]
    layers = [hidden.layers[number].float().cpu().split(lengths) for number in numbers]
    return [[part.numpy() for part in parts] for parts in zip(*layers, strict=True)]


def _all_layers(loaded: Loaded, rows: Sequence[list[int]], device: torch.device) -> tuple[Hidden, range]:
    encoder = loaded.objective.encoder
    numbers = range(len(encoder.widths))
    return encoder(pack_words(rows, loaded.tokenizer).to(device), keep=tuple(numbers)), numbers


def join_windows(
    windows: Sequence[Float[Tensor, " H"]], lengths: Sequence[int], pool: Pool, unit: bool
) -> Float[np.ndarray, " H"]:
    """Combine the vectors of a text's sequences, weighted by ``lengths``; ``unit``: scale to length 1."""
    vector: np.ndarray = _join(windows, lengths, pool).numpy()
    return vector / max(float(np.linalg.norm(vector)), 1e-12) if unit else vector


def _pool(hidden: Hidden, states: Float[Tensor, "T H"], pool: Pool) -> Float[Tensor, "B P"]:
    """Pool each sequence to one vector, float32 on the host."""
    if pool == "summary":
        assert hidden.summary is not None
        return hidden.summary.float().cpu()
    return pool_rows(states.float(), hidden.rows, pool).cpu()


def _join(windows: Sequence[Tensor], lengths: Sequence[int], pool: Pool) -> Tensor:
    """Combine the windows of one text."""
    if len(windows) == 1:
        return windows[0]
    stacked = torch.stack(list(windows))
    if pool == "mean":
        weights = torch.tensor(lengths, dtype=torch.float32)
        return (stacked * weights[:, None]).sum(0) / weights.sum()
    if pool == "max":
        return stacked.amax(0)
    if pool == "summary":
        return stacked.mean(0)
    return stacked[0 if pool == "first" else -1]
