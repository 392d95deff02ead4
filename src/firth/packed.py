"""Packed sequences: many sequences in one tensor, without padding.

A batch is B sequences (rows) of different lengths, concatenated along an axis of T tokens. ``Rows`` says
where each begins and holds the *plan* by which attention works on groups of rows of near-equal
length; ``Tokens`` is what an encoder reads, ``Hidden`` what it returns. ``to_padded`` and
``from_padded`` are for code that needs a rectangle. Letters in shapes: ``docs/shapes.md``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from firth.errors import LengthError

# Recurrent state between the batches of one stream, by name.
Carry = dict[str, Tensor]

# Linear layers that hold several stacked projections: their number, by the last part of the layer's name.
JOINT_PROJECTIONS = {"query_key_value": 3, "key_value": 2}

# Values that ``Rows.max_length`` is rounded up to, so that kernels and compiled graphs see few different ones.
LENGTH_BUCKETS = (32, 64, 128, 256, 512)
# Rows shorter than SHORT_ROW share a rectangle in the plan where that costs least. Costs are in scores of slot pairs: a
# rectangle costs RECTANGLE_COST, a slot SLOT_COST. Longer rows share one if their lengths round up to the same multiple
# (at most 7 slots wasted per row). Source: benchmarks/attention.py.
SHORT_ROW = 64
RECTANGLE_COST, SLOT_COST = 8000.0, 64.0
GROUP_MULTIPLE = 8


M = TypeVar("M", bound="_Moves")


class _Moves:
    """Moves a frozen dataclass of tensors to a device, field by field."""

    def to(self: M, device: torch.device | str) -> M:
        moved = {
            f.name: value.to(device)
            for f in fields(self)  # type: ignore[arg-type]  # only dataclasses use this
            if isinstance(value := getattr(self, f.name), (Tensor, _Moves)) and f.name != "sizes"
        }
        return replace(self, **moved)  # type: ignore[type-var]  # only dataclasses use this


@dataclass(frozen=True, slots=True)
class Plan(_Moves):
    """Rectangles of near-equal rows, for attention: P slots in G groups, made once per batch on the host.

    Two tensors hold all of it, so that a compiled graph accepts any batch: ``flat`` is the concatenation of
    ``lengths``, ``gather`` and ``scatter``; ``sizes`` (always on the host) has (B, P, ``in_order``) in its first line,
    then ``groups``.
    """

    flat: Int[Tensor, " _"]
    sizes: Int[Tensor, "_ 3"]

    @property
    def lengths(self) -> Int[Tensor, " B"]:
        """Lengths of the rows, in the order of the groups."""
        return self.flat[: int(self.sizes[0, 0])]

    @property
    def gather(self) -> Int[Tensor, " P"]:
        """For each slot, the token it holds (a pad slot repeats its row's last token)."""
        n_rows, n_slots, _ = self.sizes[0].tolist()
        return self.flat[n_rows : n_rows + n_slots]

    @property
    def scatter(self) -> Int[Tensor, " T"]:
        """For each token, its slot."""
        n_rows, n_slots, _ = self.sizes[0].tolist()
        return self.flat[n_rows + n_slots :]

    @property
    def groups(self) -> Int[Tensor, "G 3"]:
        """For each group: number of rows, length of the rectangle, and 1 if some row is shorter."""
        return self.sizes[1:]

    @property
    def in_order(self) -> bool:
        """Whether the slots are exactly the tokens in order, so that nothing needs gathering."""
        return bool(self.sizes[0, 2])


def plan_groups(lengths: np.ndarray, row_groups: Sequence[np.ndarray]) -> Plan:
    """Make the plan in which the rows of each group (row numbers) share a rectangle as long as the longest."""
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    gather, valid, groups = [], [], []
    for rows in row_groups:
        longest = int(lengths[rows].max())
        column = np.arange(longest)
        gather.append((starts[rows, None] + np.minimum(column, lengths[rows, None] - 1)).ravel())
        valid.append((column < lengths[rows, None]).ravel())
        groups.append((len(rows), longest, int(lengths[rows].min() < longest)))
    all_gather, all_valid = np.concatenate(gather), np.concatenate(valid)
    scatter = np.empty(int(lengths.sum()), np.int64)
    scatter[all_gather[all_valid]] = np.flatnonzero(all_valid)
    in_order = all_valid.all() and (all_gather == np.arange(len(all_gather))).all()
    ordered = [lengths[rows] for rows in row_groups]
    return Plan(
        flat=torch.from_numpy(np.concatenate([*ordered, all_gather, scatter])),
        sizes=torch.tensor([(len(lengths), len(all_gather), int(in_order)), *groups], dtype=torch.int64),
    )


def like_lengths(lengths: np.ndarray, row_costs: np.ndarray, group_costs: np.ndarray | float) -> list[np.ndarray]:
    """Divide rows (row numbers) into groups of similar lengths, the longest first, at the lowest total cost.

    A group costs its number of rows × ``row_costs`` + ``group_costs``, both of its longest row.
    """
    if len(lengths) == 1:  # the usual batch of an interactive user
        return [np.zeros(1, np.int64)]
    each, first, counts = np.unique(-lengths, return_index=True, return_counts=True)
    a_row, a_group = row_costs[first], np.broadcast_to(group_costs, lengths.shape)[first]
    rows_before = np.concatenate([[0], np.cumsum(counts)])
    least, begins = np.zeros(len(each) + 1), np.zeros(len(each), np.int64)
    for end in range(1, len(each) + 1):
        # The last group spans length indices ``begin`` to ``end``.
        costs = least[:end] + a_row[:end] * (rows_before[end] - rows_before[:end]) + a_group[:end]
        begins[end - 1] = costs.argmin()
        least[end] = costs.min()
    groups, end = list[np.ndarray](), len(each)
    while end:
        begin = begins[end - 1]
        groups.append(np.flatnonzero((-lengths >= each[begin]) & (-lengths <= each[end - 1])))
        end = begin
    return groups[::-1]


@dataclass(frozen=True, slots=True)
class Rows(_Moves):
    """Where each of B rows begins and ends among T tokens: row b is ``[offsets[b]:offsets[b + 1]]``."""

    offsets: Int[Tensor, " _"]  # (B + 1,)
    positions: Int[Tensor, " T"]  # place of each token in its row, from 0
    max_length: int  # the longest row, rounded up to one of LENGTH_BUCKETS (exact beyond them)
    plan: Plan

    @classmethod
    def from_lengths(cls, lengths: Sequence[int] | np.ndarray) -> "Rows":
        """Rows of the given lengths; each must hold at least one token."""
        sizes = np.asarray(lengths, np.int64)
        if sizes.size == 0 or sizes.min() < 1:
            raise ValueError(f"every row needs at least one token, got lengths {sizes.tolist()}")
        offsets = np.concatenate(([0], np.cumsum(sizes)))
        starts, longest = offsets[:-1], int(sizes.max())
        short, long = np.flatnonzero(sizes < SHORT_ROW), np.flatnonzero(sizes >= SHORT_ROW)
        each = sizes[short]
        row_groups = [short[group] for group in like_lengths(each, each * (each + SLOT_COST), RECTANGLE_COST)][::-1]
        ceilings = -(-sizes[long] // GROUP_MULTIPLE)
        row_groups += [long[ceilings == ceiling] for ceiling in np.unique(ceilings)]
        return cls(
            offsets=torch.from_numpy(offsets.astype(np.int32)),
            positions=torch.from_numpy(np.arange(offsets[-1]) - np.repeat(starts, sizes)),
            max_length=next((b for b in LENGTH_BUCKETS if b >= longest), longest),
            plan=plan_groups(sizes, row_groups),
        )

    @property
    def n_rows(self) -> int:
        return self.offsets.numel() - 1

    @property
    def n_tokens(self) -> int:
        return self.positions.numel()

    @property
    def longest(self) -> int:
        """Length of the longest row, from the host's part of the plan, without a device synchronisation."""
        return int(self.plan.groups[:, 1].max())

    @property
    def lengths(self) -> Int[Tensor, " B"]:
        return self.offsets.diff()

    @property
    def first(self) -> Int[Tensor, " B"]:
        """Index of each row's first token."""
        return self.offsets[:-1]

    @property
    def last(self) -> Int[Tensor, " B"]:
        """Index of each row's last token."""
        return self.offsets[1:] - 1

    def row_of_token(self) -> Int[Tensor, " T"]:
        """The row each token belongs to."""
        rows = torch.arange(self.n_rows, device=self.offsets.device)
        return rows.repeat_interleave(self.lengths, output_size=self.n_tokens)

    def turned(self) -> Int[Tensor, " T"]:
        """Indices of the tokens with every row reversed."""
        n_tokens = torch.arange(self.n_tokens, device=self.offsets.device)
        return (self.first + self.last).index_select(0, self.row_of_token()) - n_tokens

    def select(self, chosen: Int[Tensor, " R"]) -> tuple["Rows", Int[Tensor, " T"]]:
        """Select rows in the given order (any may be taken several times); also returns the indices of their tokens."""
        rows = Rows.from_lengths(self.lengths.index_select(0, chosen).cpu().numpy()).to(self.offsets.device)
        return rows, self.first.index_select(0, chosen).index_select(0, rows.row_of_token()) + rows.positions


@dataclass(frozen=True, slots=True)
class Words(_Moves):
    """The W words of B rows, for tasks that label each: tokens ``first`` to ``last`` (both included).

    ``rows``: the words of each row. ``asked``: the words to be answered for (the others are context); ``asked_rows``:
    how many of them each row has.
    """

    first: Int[Tensor, " W"]
    last: Int[Tensor, " W"]
    rows: Rows
    asked: Int[Tensor, " M"]
    asked_rows: Rows


@dataclass(frozen=True, slots=True)
class Tokens(_Moves):
    """What an encoder reads: T tokens in B rows; ``segments`` and ``chars`` only for systems that have them.

    ``words``: which tokens form a word, for tasks on words. ``chars``: the characters of each token, for systems whose
    tokens are words read by their characters (``text/characters.py``); ``ids`` then tell which words are known.
    ``stored``: the number of each token's vector, where vectors on disk replace an encoder.
    """

    rows: Rows
    ids: Int[Tensor, " T"]
    segments: Int[Tensor, " T"] | None = None
    words: Words | None = None
    chars: Int[Tensor, "T C"] | None = None
    stored: Int[Tensor, " T"] | None = None


@dataclass(frozen=True, slots=True)
class Hidden:
    """What an encoder returns.

    ``layers``: those that were kept, by number (0 = embedding output, L = top). ``summary``: the system's own
    vector for each row, or None. ``carry``: recurrent state after the rows' last tokens, or None.
    """

    layers: dict[int, Float[Tensor, "T width"]]
    rows: Rows
    summary: Float[Tensor, "B H"] | None = None
    carry: Carry | None = None

    @property
    def top(self) -> Float[Tensor, "T H"]:
        """The highest layer that was kept."""
        return self.layers[max(self.layers)]


class Encoder(nn.Module):
    """The interface of every system's encoder: tokens in, hidden states out.

    ``config``: its sizes. ``widths``: the hidden sizes of layers 0 (embeddings) to L. ``layer_groups()``: a partition
    of all parameters from bottom to top, for freezing, layer-wise learning rates and gradual unfreezing.
    ``encoder(tokens, keep=(-1,))`` returns ``Hidden`` with the requested layers; systems with recurrent state also
    take ``carry``. Methods that raise NotImplementedError here are defined by each system's encoder.
    """

    config: Any

    @property
    def widths(self) -> tuple[int, ...]:
        raise NotImplementedError

    @property
    def summary_width(self) -> int:
        """Size of ``Hidden.summary``."""
        return self.widths[-1]

    @property
    def causal(self) -> bool:
        """Whether a token's vectors do not depend on later tokens, so that they can predict the next one."""
        return False

    @property
    def piece_embedding(self) -> Float[Tensor, "V H"]:
        """The input embedding, for objectives that share it with the output matrix."""
        raise NotImplementedError

    def layer_groups(self) -> list[list[nn.Parameter]]:
        raise NotImplementedError

    def step(self, tokens: Tokens, past: Any) -> tuple[Float[Tensor, "T H"], Any]:
        """Return the top states of tokens that continue rows, and the next call's ``past``; None: the rows begin.

        For systems that generate text."""
        raise NotImplementedError

    def regions(self) -> list[nn.Module]:
        """The repeated modules (blocks), each compiled or recomputed separately; none by default."""
        return []


def kept_layers(keep: Sequence[int], n_layers: int) -> frozenset[int]:
    """Resolve ``keep`` to layer numbers 0 … n_layers; -1 is the top, as in a list of n_layers + 1 layers."""
    for layer in keep:
        if not -n_layers - 1 <= layer <= n_layers:
            raise ValueError(f"layer {layer} of an encoder with layers 0 (embeddings) to {n_layers}")
    return frozenset(layer % (n_layers + 1) for layer in keep)


def check_length(rows: Rows, most: int) -> None:
    """Raise LengthError if a sequence is longer than an encoder with ``most`` position embeddings can read."""
    # ``max_length`` first: it decides for nearly every batch, and is a constant in a compiled graph.
    if rows.max_length > most and rows.longest > most:
        raise LengthError(
            f"a sequence has {rows.longest} tokens, the model reads at most {most} (encoder.max_positions): "
            f"cut it or read it in windows"
        )


def to_padded(x: Tensor, rows: Rows, fill: float = 0.0) -> tuple[Tensor, Bool[Tensor, "B S"]]:
    """Convert packed ``(T, …)`` to a rectangle ``(B, S, …)`` and a mask that is True at real tokens."""
    n_columns = int(rows.lengths.max())
    mask = torch.arange(n_columns, device=x.device) < rows.lengths[:, None]
    slot = rows.row_of_token() * n_columns + rows.positions
    flat = x.new_full((rows.n_rows * n_columns, *x.shape[1:]), fill)
    return flat.index_copy(0, slot, x).unflatten(0, (rows.n_rows, n_columns)), mask


def from_padded(x: Tensor, mask: Bool[Tensor, "B S"]) -> tuple[Tensor, Rows]:
    """Convert a rectangle ``(B, S, …)`` with real tokens first in each row to packed ``(T, …)`` and its rows."""
    lengths = mask.sum(1)
    if not torch.equal(mask, torch.arange(mask.shape[1], device=mask.device) < lengths[:, None]):
        raise ValueError("the real tokens of each row must come first: pad on the right")
    rows = Rows.from_lengths(lengths.cpu().numpy()).to(x.device)
    slot = rows.row_of_token() * mask.shape[1] + rows.positions
    return x.flatten(0, 1).index_select(0, slot), rows
