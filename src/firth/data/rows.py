"""Build batches: instances of a shard, shuffled, cut by a token budget, packed and masked.

``RowBatches`` serves masked language modelling (with or without pairs), ``NextTokenBatches`` left-to-right
models, ``CopyBatches`` sequence autoencoders, ``CropBatches`` contrastive learning, ``TranslationBatches`` parallel
text; ``StreamBatches`` cuts one long stream into columns for models with recurrent state.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from firth.data.batch import Batch, Target
from firth.data.hashing import permutation, seed_of
from firth.data.instances import Instances, plan_windows
from firth.data.masking import Masker
from firth.data.shards import Shard
from firth.packed import Rows, Tokens
from firth.text.layouts import Layout
from firth.text.tokenizer import Tokenizer

# Sequences are sorted by length within pools of this many budgets' worth of shuffled sequences.
_POOL_BUDGETS = 32


@runtime_checkable
class Batches(Protocol):
    """The micro-batches of one shard in one epoch, with random access."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Batch: ...


def cut_batches(lengths: np.ndarray, budget_tokens: int, seed: int) -> list[np.ndarray]:
    """Group sequence indices into batches of at most ``budget_tokens`` tokens, similar lengths together.

    Shuffles twice: the sequences before pooling, and the batches at the end.
    """
    order = permutation(seed_of(seed, "rows"), len(lengths))
    pool = np.cumsum(lengths[order]) // (budget_tokens * _POOL_BUDGETS)
    order = order[np.lexsort((lengths[order], pool))]
    ends = np.cumsum(lengths[order])
    cuts, done = [0], 0
    while cuts[-1] < len(order):
        cuts.append(int(np.searchsorted(ends, done + budget_tokens, side="right")))
        done = int(ends[cuts[-1] - 1])
    batches = [order[a:b] for a, b in zip(cuts[:-1], cuts[1:], strict=True)]
    return [batches[i] for i in permutation(seed_of(seed, "batches"), len(batches))]


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Packed sequences: ids (T,), segments (T,), special (T,) True at special tokens, lengths (B,)."""

    ids: np.ndarray
    segments: np.ndarray
    special: np.ndarray
    lengths: np.ndarray

    @property
    def starts(self) -> np.ndarray:
        return np.cumsum(self.lengths) - self.lengths


def row_lengths(instances: Instances, layout: Layout) -> np.ndarray:
    """Length of each sequence with its special tokens."""
    extra = layout.n_special if instances.random_next is None else layout.n_special_pair
    return instances.lengths + extra


def pack_rows(ids: np.ndarray, instances: Instances, chosen: np.ndarray, layout: Layout) -> PackedRows:
    """Pack the chosen instances as sequences, without a loop over sequences or tokens.

    Each sequence is a run of spans (first, A, between, B, last); special tokens come from a small
    table appended to the shard's ids, so one index array gathers every token.
    """
    table = np.array([*layout.first, *layout.between, *layout.last], np.int64)
    first, between, last = len(layout.first), len(layout.between), len(layout.last)
    a, b = instances.a[chosen], instances.b[chosen]
    zero = np.zeros(len(chosen), np.int64)
    if instances.random_next is None:
        begins = np.stack((zero, a[:, 0], zero + first + between), 1)
        sizes = np.stack((zero + first, a[:, 1] - a[:, 0], zero + last), 1)
        from_table, second = np.array([True, False, True]), np.array([0, 0, 0])
    else:
        begins = np.stack((zero, a[:, 0], zero + first, b[:, 0], zero + first + between), 1)
        sizes = np.stack((zero + first, a[:, 1] - a[:, 0], zero + between, b[:, 1] - b[:, 0], zero + last), 1)
        from_table, second = np.array([True, False, True, False, True]), np.array([0, 0, 0, 1, 1])
    flat = sizes.ravel()
    ends = np.cumsum(flat)
    source = np.arange(ends[-1]) + np.repeat(begins.ravel() - (ends - flat), flat)
    special = np.repeat(np.tile(from_table, len(chosen)), flat)
    out = np.empty(len(source), np.int64)
    out[special] = table[source[special]]
    out[~special] = ids[source[~special]]
    segments = np.repeat(np.tile(second, len(chosen)), flat)
    return PackedRows(out, segments, special, sizes.sum(1))


@dataclass(frozen=True, slots=True)
class RowBatches:
    """Batches for masked language modelling; with pairs, also for next-sentence prediction."""

    shard: Shard
    instances: Instances
    cuts: list[np.ndarray]
    layout: Layout
    masker: Masker
    seed: int

    def __len__(self) -> int:
        return len(self.cuts)

    def __getitem__(self, number: int) -> Batch:
        chosen = self.cuts[number]
        rows = pack_rows(self.shard.ids, self.instances, chosen, self.layout)
        keys = self.instances.key[chosen]
        seen, index, label = self.masker(rows.ids, rows.starts, rows.special, keys, self.seed)
        targets = {"mlm": _target(index, label)}
        if self.instances.random_next is not None:
            targets["nsp"] = _target(np.arange(len(chosen)), self.instances.random_next[chosen])
        return Batch(_tokens(rows, seen, self.layout), targets)


@dataclass(frozen=True, slots=True)
class NextTokenBatches:
    """Batches in which every token but the last predicts the next."""

    shard: Shard
    instances: Instances
    cuts: list[np.ndarray]
    layout: Layout

    def __len__(self) -> int:
        return len(self.cuts)

    def __getitem__(self, number: int) -> Batch:
        rows = pack_rows(self.shard.ids, self.instances, self.cuts[number], self.layout)
        has_next = np.ones(len(rows.ids), bool)
        has_next[rows.starts + rows.lengths - 1] = False
        index = np.flatnonzero(has_next)
        targets = {"lm": _target(index, rows.ids[index + 1])}
        return Batch(_tokens(rows, rows.ids, self.layout), targets)


@dataclass(frozen=True, slots=True)
class CopyBatches:
    """Batches of sequences ``A end A end``: the first end predicts A's first token, and each copied token the next.

    Recurrent state is reset for every sequence.
    """

    shard: Shard
    instances: Instances
    cuts: list[np.ndarray]
    layout: Layout

    def __len__(self) -> int:
        return len(self.cuts)

    def __getitem__(self, number: int) -> Batch:
        rows = pack_rows(self.shard.ids, self.instances, self.cuts[number], self.layout)
        written = np.flatnonzero(rows.segments)
        targets = {"lm": _target(written - 1, rows.ids[written])}
        return Batch(_tokens(rows, rows.ids, self.layout), targets, starts_stream=True, ends_stream=True)


@dataclass(frozen=True, slots=True)
class TranslationBatches:
    """Batches of source sequences and, as ``second``, their translations ``start y``; each token predicts the next.

    The last token predicts ``end_id``. ``source`` and ``target``: instances of the two sides, in the same order.
    """

    shard: Shard
    source: Instances
    target: Instances
    cuts: list[np.ndarray]
    layout: Layout
    target_layout: Layout
    end_id: int

    @classmethod
    def cut(
        cls,
        shard: Shard,
        pairs: Instances,
        layout: Layout,
        target_layout: Layout,
        *,
        end_id: int,
        budget_tokens: int,
        seed: int,
    ) -> "TranslationBatches":
        """Cut into batches of at most ``budget_tokens`` tokens on both sides together."""
        source, target = pairs.of_side("a"), pairs.of_side("b")
        lengths = row_lengths(source, layout) + row_lengths(target, target_layout)
        return cls(shard, source, target, cut_batches(lengths, budget_tokens, seed), layout, target_layout, end_id)

    def __len__(self) -> int:
        return len(self.cuts)

    def __getitem__(self, number: int) -> Batch:
        chosen = self.cuts[number]
        rows = pack_rows(self.shard.ids, self.source, chosen, self.layout)
        written = pack_rows(self.shard.ids, self.target, chosen, self.target_layout)
        label = np.roll(written.ids, -1)
        label[written.starts + written.lengths - 1] = self.end_id
        return Batch(
            _tokens(rows, rows.ids, self.layout),
            {"translation": _target(np.arange(len(label)), label)},
            second=_tokens(written, written.ids, self.target_layout),
        )


@dataclass(frozen=True, slots=True)
class CropBatches:
    """Batches of crops: first one crop of each text, then the other of each, in the same order.

    Each sequence's label is the index of the other crop. ``first``, ``second``: instances of the two sides.
    """

    shard: Shard
    first: Instances
    second: Instances
    cuts: list[np.ndarray]
    layout: Layout

    @classmethod
    def cut(cls, shard: Shard, crops: Instances, layout: Layout, *, budget_tokens: int, seed: int) -> "CropBatches":
        """Cut into batches of at most ``budget_tokens`` tokens, both crops together."""
        first, second = crops.of_side("a"), crops.of_side("b")
        lengths = row_lengths(first, layout) + row_lengths(second, layout)
        # A single text has nothing to be compared with.
        cuts = [chosen for chosen in cut_batches(lengths, budget_tokens, seed) if len(chosen) > 1]
        return cls(shard, first, second, cuts, layout)

    def __len__(self) -> int:
        return len(self.cuts)

    def __getitem__(self, number: int) -> Batch:
        chosen = self.cuts[number]
        rows = [pack_rows(self.shard.ids, side, chosen, self.layout) for side in (self.first, self.second)]
        names = ("ids", "segments", "special", "lengths")
        both = PackedRows(*(np.concatenate([getattr(side, name) for side in rows]) for name in names))
        partner = np.roll(np.arange(2 * len(chosen)), len(chosen))
        return Batch(_tokens(both, both.ids, self.layout), {"contrast": _target(np.arange(2 * len(chosen)), partner)})


@dataclass(frozen=True, slots=True)
class StreamBatches:
    """One stream in ``slots × rows`` columns; batch n continues batch ``n - slots``.

    ``columns``: (slots, rows, column length) ids. ``bounds``: the start of each window of a column, and the end.
    Recurrent state is kept per slot. ``backward``: read the stream from its end, each token predicting the one
    before it; batches stay in reading order. ``around``: base length of varied windows, which scales
    the learning rate; None: all windows have one length. ``restart_every``: windows after which
    recurrent state is reset; 0: never.
    """

    columns: np.ndarray
    bounds: np.ndarray
    backward: bool = False
    around: int | None = None
    restart_every: int = 0

    @classmethod
    def cut(
        cls,
        shard: Shard,
        layout: Layout,
        *,
        length: int,
        budget_tokens: int,
        slots: int,
        backward: bool = False,
        window_seed: int | None = None,
        restart_every: int = 0,
    ) -> "StreamBatches":
        """Cut the shard's documents, between the layout's first and last tokens, into columns; drops the remainder.

        With ``window_seed`` window lengths vary around ``length``, and ``budget_tokens`` is the average of a batch.
        """
        bounds = np.stack((shard.document_tokens[:-1], shard.document_tokens[1:]), 1)
        places = np.repeat(bounds.ravel(), np.tile((len(layout.first), len(layout.last)), len(bounds)))
        pieces = np.tile(np.array((*layout.first, *layout.last), np.int64), len(bounds))
        stream = np.insert(shard.ids.astype(np.int64), places, pieces)
        if backward:
            stream = stream[::-1]
        rows = max(budget_tokens // length, 1)
        # A stream too short for that many columns is cut into fewer, of at least two tokens each.
        rows = max(min(rows, len(stream) // (slots * 2)), 1)
        size = len(stream) // (slots * rows)
        columns = (
            stream[: slots * rows * size].reshape(slots, rows, size) if size > 1 else stream[:0].reshape(slots, 1, 0)
        )
        bounds = plan_windows(max(columns.shape[2] - 1, 0), length, window_seed)
        return cls(columns, bounds, backward, None if window_seed is None else length, restart_every)

    def __len__(self) -> int:
        return len(self.columns) * (len(self.bounds) - 1)

    def __getitem__(self, number: int) -> Batch:
        time, slot = divmod(number, len(self.columns))
        columns = self.columns[slot]
        begin, end = self.bounds[time : time + 2].tolist()
        ids, following = columns[:, begin:end], columns[:, begin + 1 : end + 1]
        if self.backward:
            ids, following = ids[:, ::-1], following[:, ::-1]
        rows = Rows.from_lengths([end - begin] * len(ids))
        tokens = Tokens(rows, torch.from_numpy(ids.ravel().copy()))
        target = _target(np.arange(ids.size), following.ravel())
        rate_scale = 1.0 if self.around is None else (end - begin) / self.around
        return Batch(
            tokens, {"lm": target}, starts_stream=resets_state(time, self.restart_every), rate_scale=rate_scale
        )


def resets_state(window: int, restart_every: int) -> bool:
    """Whether recurrent state is reset before a window, given the window's index in its stream."""
    return window % restart_every == 0 if restart_every else window == 0


@dataclass(frozen=True, slots=True)
class MixedBatches:
    """The batches of several shards in one random order. ``order``: (n, 2), indices of the part and its batch."""

    parts: list[Batches]
    order: np.ndarray
    place: str

    @classmethod
    def of(cls, parts: list[Batches], seed: int | None, place: str) -> "MixedBatches":
        """Combine all batches of the parts, shuffled by the seed; without one, in order."""
        pairs = [(part, number) for part, batches in enumerate(parts) for number in range(len(batches))]
        order = np.array(pairs, np.int64).reshape(-1, 2)
        return cls(parts, order if seed is None else order[permutation(seed, len(order))], place)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, number: int) -> Batch:
        part, inner = self.order[number].tolist()
        return replace(self.parts[part][inner], place=f"{self.place}:{number}")


def _target(index: np.ndarray, label: np.ndarray) -> Target:
    return Target(torch.from_numpy(np.ascontiguousarray(index)), torch.from_numpy(np.ascontiguousarray(label)))


def _tokens(rows: PackedRows, seen: np.ndarray, layout: Layout) -> Tokens:
    segments = torch.from_numpy(rows.segments) if layout.has_segments else None
    return Tokens(Rows.from_lengths(rows.lengths), torch.from_numpy(seen), segments)


def pack_lists(rows: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None = None) -> Tokens:
    """Pack lists of ids (special tokens included)."""
    ids = torch.tensor([i for row in rows for i in row], dtype=torch.int64)
    kinds = None if segments is None else torch.tensor([s for row in segments for s in row], dtype=torch.int64)
    return Tokens(Rows.from_lengths([len(row) for row in rows]), ids, kinds)


def pack_words(rows: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Tokens:
    """Pack lists of ids with the characters of tokens, if ``tokenizer`` provides them."""
    tokens = pack_lists(rows)
    chars = tokenizer.characters(tokens.ids.numpy())
    if chars is None:
        return tokens
    known = tokens.ids.where(tokens.ids < tokenizer.size, tokenizer.unk_id)
    return replace(tokens, ids=known, chars=torch.from_numpy(chars.astype(np.int32)))
