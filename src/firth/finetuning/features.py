"""Frozen features: encoder outputs of a data set, computed once and cached on disk.

Training a head on a frozen encoder then reads stored vectors instead of running the encoder in every epoch. The stored
vectors replace the encoder: each token carries the index of its vector, and keeps its id and characters for the head.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from firth.errors import CheckpointError
from firth.inference.batching import in_batches
from firth.inference.outputs import unit_counts
from firth.layers.mixing import pool_rows, pool_words
from firth.packed import Encoder, Hidden, Tokens
from firth.progress import Progress
from firth.tasks.features import BiLstmFeatures, Unit
from firth.tasks.model import TaskModel
from firth.tasks.rows import Example, Row, RowWords, collate, make_row, split_rows

SUMMARY = "summary"


class StoredEncoder(Encoder):
    """An encoder that reads its outputs from memory-mapped files, with the ``config`` and widths of the original.

    ``vectors``: (n, width) by layer number, or under ``"summary"``; ``tokens.stored`` indexes them.
    """

    def __init__(self, encoder: Encoder, vectors: dict[int | str, np.ndarray]):
        super().__init__()
        self.config, self.vectors = encoder.config, vectors
        self._widths, self._summary_width = encoder.widths, encoder.summary_width

    @property
    def widths(self) -> tuple[int, ...]:
        return self._widths

    @property
    def summary_width(self) -> int:
        return self._summary_width

    def layer_groups(self) -> list[list[nn.Parameter]]:
        return []

    def forward(self, tokens: Tokens, keep: Sequence[int] = (-1,)) -> Hidden:
        assert tokens.stored is not None, "sequences of store_features refer to vectors"
        layers = {n: self._read(n, tokens.stored) for n in keep}
        first = tokens.stored.index_select(0, tokens.rows.first)
        summary = self._read(SUMMARY, first) if SUMMARY in self.vectors else None
        return Hidden(layers=layers, rows=tokens.rows, summary=summary)

    def _read(self, name: int | str, numbers: Tensor) -> Float[Tensor, "N width"]:
        return torch.from_numpy(self.vectors[name][numbers.cpu().numpy()]).to(numbers.device)


def store_features(
    model: TaskModel, examples: Sequence[Example], folder: Path, *, dtype: torch.dtype, budget_tokens: int = 4096
) -> tuple[StoredEncoder, list[Example]]:
    """Run the encoder of ``model`` over all sequences once; store the vectors in ``folder`` as .npy files, float32.

    Returns the encoder's replacement, and the examples with sequences that refer to the vectors. Only what the
    head reads is stored: one vector per text or word if it needs no more. Vectors left in ``folder`` by an
    earlier call with the same encoder, sequences and features are reused. CheckpointError if the disk
    is too small.
    """
    kind = _kept(model)
    rows = [row for example in examples for row in example.rows]
    counts = [_count(row, kind, model) for row in rows]
    places = split_rows(counts)
    names: list[int | str] = [SUMMARY] if model.features.summary else list(model.features.keep)
    place = folder / _fingerprint(model, rows, kind, dtype)
    if not place.exists():
        shutil.rmtree(folder, ignore_errors=True)  # stale features of other data or another model
        place.mkdir(parents=True)
    missing = [name for name in names if not _file(place, name).exists()]
    if missing:
        _fill(place, model, rows, kind, missing, places, dtype, budget_tokens)
    vectors: dict[int | str, np.ndarray] = {name: np.load(_file(place, name), mmap_mode="r") for name in names}
    referring = iter([_referring(row, place, kind, model) for row, place in zip(rows, places, strict=True)])
    changed = [replace(example, rows=tuple(next(referring) for _ in example.rows)) for example in examples]
    return StoredEncoder(model.encoder, vectors), changed


def _fill(
    folder: Path,
    model: TaskModel,
    rows: Sequence[Row],
    kind: Unit,
    names: Sequence[int | str],
    places: Sequence[slice],
    dtype: torch.dtype,
    budget_tokens: int,
) -> None:
    """Write the vectors of some layers; each file is renamed once it is complete."""
    vectors = _open(folder, names, places[-1].stop, model.encoder)
    with Progress("features", len(rows), "rows") as progress:
        for numbers, arrays in _encoded(model, rows, kind, names, dtype, budget_tokens):
            for i, one in zip(numbers, arrays, strict=True):
                for name, values in one.items():
                    vectors[name][places[i]] = values
            progress.advance(len(numbers))
    for name, array in vectors.items():
        array.flush()  # type: ignore[attr-defined]  # a memory map
        os.replace(_unfinished(folder, name), _file(folder, name))


def _unfinished(folder: Path, name: int | str) -> Path:
    return folder / f".layer-{name}.npy"


def _file(folder: Path, name: int | str) -> Path:
    return folder / f"layer-{name}.npy"


def _fingerprint(model: TaskModel, rows: Sequence[Row], kind: Unit, dtype: torch.dtype) -> str:
    """A hash of the encoder, the sequences and how their tokens are read; the same for any layers."""
    read = model.features
    digest = hashlib.sha256(repr((read.words, read.pool, kind, read.lstm is None, dtype)).encode())
    for name, tensor in sorted(model.encoder.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    for row in rows:
        digest.update(row.ids.tobytes() + row.segments.tobytes())
        if row.chars is not None:
            digest.update(row.chars.tobytes())
        if row.words is not None:
            digest.update(row.words.pieces.tobytes() + row.words.asked.tobytes())
    return digest.hexdigest()[:32]


def _kept(model: TaskModel) -> Unit:
    """The unit that gets one stored vector each: sequences, words, or all tokens."""
    config = model.features.config
    if model.features.unit == "word":
        return "word"
    # Max pooling before layers are mixed, or mean pooling before a norm over tokens, would change the result.
    late = config.layer_norm or (model.features.pool == "max" and config.mix in ("sum", "scalar"))
    # The head's own embeddings and scores are not known yet.
    late = late or isinstance(model.features, BiLstmFeatures) or model.features.scorer is not None
    return "token" if model.features.unit == "token" or late else "row"


def _count(row: Row, kind: Unit, model: TaskModel) -> int:
    if kind == "word":
        assert row.words is not None
        return len(row.words.pieces if model.features.lstm is not None else row.words.asked)
    return 1 if kind == "row" else len(row.ids)


def _open(folder: Path, names: Sequence[int | str], n: int, encoder: Encoder) -> dict[int | str, np.ndarray]:
    sizes = {name: (n, encoder.summary_width if name == SUMMARY else encoder.widths[int(name)]) for name in names}
    needed = sum(4 * rows * width for rows, width in sizes.values())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise CheckpointError(
            f"{folder}: the features take {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free: "
            "read fewer layers (head.network.layers), or fewer examples (data.limit)"
        )
    make: Callable[..., Any] = np.lib.format.open_memmap
    return {name: make(_unfinished(folder, name), "w+", np.float32, shape) for name, shape in sizes.items()}


@torch.inference_mode()
def _encoded(
    model: TaskModel,
    rows: Sequence[Row],
    kind: Unit,
    names: Sequence[int | str],
    dtype: torch.dtype,
    budget_tokens: int,
) -> Iterator[tuple[list[int], list[dict[int | str, np.ndarray]]]]:
    """Yield sequence indices, and the vectors of each by layer."""
    device = next(model.encoder.parameters()).device
    read, keep = model.features, [name for name in names if isinstance(name, int)]
    model.encoder.eval()
    for numbers in in_batches([len(row.ids) for row in rows], budget_tokens):
        tokens = collate([Example((rows[i],), (1,), {}) for i in numbers]).tokens.to(device)
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            hidden = model.read(tokens, keep)
        found: dict[int | str, Tensor] = {number: layer for number, layer in hidden.layers.items()}  # noqa: C416  # the type of keys is wider
        if model.features.summary:
            assert hidden.summary is not None
            found = {SUMMARY: hidden.summary}
        counts = unit_counts(tokens, kind)
        if kind == "row" and not model.features.summary:
            found = {n: pool_rows(x.float(), tokens.rows, read.pool) for n, x in found.items()}
        if kind == "word":
            assert tokens.words is not None
            words = tokens.words
            found = {n: pool_words(x.float(), words.first, words.last, read.words) for n, x in found.items()}
            if model.features.lstm is None:
                found = {n: x.index_select(0, words.asked) for n, x in found.items()}
            else:
                counts = words.rows.lengths.tolist()
        parts = split_rows(counts)
        arrays = {name: values.float().cpu().numpy() for name, values in found.items()}
        yield numbers, [{name: values[part] for name, values in arrays.items()} for part in parts]


def _referring(row: Row, place: slice, kind: Unit, model: TaskModel) -> Row:
    """A sequence whose tokens refer to stored vectors of the original one.

    A word keeps the tokens that represent it if the head reads more than their vector; otherwise one token is enough.
    A sequence vector keeps the segment of its first token, by which towers recognise the second text.
    """
    numbers, own = np.arange(place.start, place.stop), model.features.own is not None
    chars = row.chars if own else None
    if kind == "token":  # token positions are unchanged
        return replace(row, stored=numbers, chars=chars)
    if kind == "row":
        return replace(make_row(np.zeros(1), row.segments[:1]), stored=numbers)
    assert row.words is not None
    words, asked = row.words.pieces, row.words.asked
    if model.features.lstm is None:
        words, asked = words[asked], np.arange(len(asked))
    first, last = words[:, 0], words[:, 1]
    how = model.features.words if own else "first"
    first, last = (last if how == "last" else first), (first if how == "first" else last)
    sizes = last - first + 1
    ends = sizes.cumsum()
    pieces = np.arange(ends[-1]) + (first - ends + sizes).repeat(sizes)
    found = make_row(row.ids[pieces], words=RowWords(np.stack((ends - sizes, ends - 1), 1), asked))
    return replace(found, stored=numbers.repeat(sizes), chars=None if chars is None else chars[pieces])
