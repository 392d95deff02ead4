"""Packed rows: the plan partitions the tokens, and gathering into rectangles and scattering back is the identity."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from firth.packed import (
    GROUP_MULTIPLE,
    LENGTH_BUCKETS,
    RECTANGLE_COST,
    SHORT_ROW,
    SLOT_COST,
    Hidden,
    Rows,
    Tokens,
    Words,
    from_padded,
    kept_layers,
    like_lengths,
    plan_groups,
    to_padded,
)

LENGTHS = st.lists(st.integers(1, 70), min_size=1, max_size=12)


def test_offsets_and_positions_by_hand() -> None:
    rows = Rows.from_lengths([3, 1, 2])
    assert rows.offsets.tolist() == [0, 3, 4, 6]
    assert rows.offsets.dtype == torch.int32
    assert rows.positions.tolist() == [0, 1, 2, 0, 0, 1]
    assert rows.row_of_token().tolist() == [0, 0, 0, 1, 2, 2]
    assert rows.turned().tolist() == [2, 1, 0, 3, 5, 4]
    assert (rows.n_rows, rows.n_tokens) == (3, 6)
    assert (rows.lengths.tolist(), rows.first.tolist(), rows.last.tolist()) == (
        [3, 1, 2],
        [0, 3, 4],
        [2, 3, 5],
    )


def test_plan_by_hand() -> None:
    """Rows of 2 and 1 share a rectangle of two columns; the pad slot repeats the last token of its row."""
    plan = plan_groups(np.array([2, 1]), [np.array([0, 1])])
    assert plan.gather.tolist() == [0, 1, 2, 2]
    assert plan.scatter.tolist() == [0, 1, 2]
    assert plan.groups.tolist() == [[2, 2, 1]]
    assert not plan.in_order


def slots_of(rows: Rows) -> Iterator[tuple[int, int, int, int]]:
    """Slot, row length, column and rectangle length of every slot of a plan, group by group."""
    slot, row = 0, 0
    for n, longest, _ in rows.plan.groups.tolist():
        for length in rows.plan.lengths[row : row + n].tolist():
            for column in range(longest):
                yield slot, length, column, longest
                slot += 1
        row += n


@settings(max_examples=50)
@given(LENGTHS)
def test_the_plan_holds_every_token_once(lengths: list[int]) -> None:
    rows = Rows.from_lengths(lengths)
    plan = rows.plan
    # Scatter undoes gather, on every token.
    assert torch.equal(plan.gather[plan.scatter], torch.arange(sum(lengths)))
    slots = list(slots_of(rows))
    assert len(slots) == plan.gather.numel()
    assert int(plan.groups[:, 0].sum()) == len(lengths)
    assert sorted(plan.lengths.tolist()) == sorted(lengths)
    owner, position = rows.row_of_token()[plan.gather].tolist(), rows.positions[plan.gather].tolist()
    for slot, length, column, _ in slots:
        assert lengths[owner[slot]] == length
        assert position[slot] == min(column, length - 1)
    real = [slot for slot, length, column, _ in slots if column < length]
    assert sorted(plan.scatter.tolist()) == real


@settings(max_examples=50)
@given(LENGTHS)
def test_groups_of_long_rows_are_of_near_equal_length(lengths: list[int]) -> None:
    rows = Rows.from_lengths(lengths)
    row = 0
    for n, longest, ragged in rows.plan.groups.tolist():
        members = rows.plan.lengths[row : row + n].tolist()
        assert longest == max(members)
        assert longest < SHORT_ROW or longest - min(members) < GROUP_MULTIPLE
        assert ragged == (min(members) < longest)
        row += n


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    """All ways to split a list into contiguous parts."""
    for cuts in itertools.product([False, True], repeat=len(items) - 1):
        pieces = [[items[0]]]
        for item, cut in zip(items[1:], cuts, strict=True):
            pieces.append([item]) if cut else pieces[-1].append(item)
        yield pieces


@settings(max_examples=60)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.floats(0, 20))
def test_rows_of_like_lengths_take_the_fewest_slots(lengths: list[int], extra: float) -> None:
    each = np.array(lengths)
    groups = like_lengths(each, each, extra * each)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(lengths)))
    cost = sum(max(lengths[i] for i in group) * (len(group) + extra) for group in groups)
    ordered = sorted(lengths, reverse=True)
    least = min(sum(piece[0] * (len(piece) + extra) for piece in pieces) for pieces in partitions(ordered))
    assert cost == pytest.approx(least)
    longest = [max(lengths[i] for i in group) for group in groups]
    assert longest == sorted(longest, reverse=True)


@settings(max_examples=60)
@given(st.lists(st.integers(1, 80), min_size=1, max_size=8))
def test_short_rows_share_rectangles_where_that_costs_least(lengths: list[int]) -> None:
    groups = [(n, longest) for n, longest, _ in Rows.from_lengths(lengths).plan.groups.tolist() if longest < SHORT_ROW]
    cost = sum(n * longest * (longest + SLOT_COST) + RECTANGLE_COST for n, longest in groups)
    ordered = sorted((length for length in lengths if length < SHORT_ROW), reverse=True)
    found = (
        sum(len(piece) * piece[0] * (piece[0] + SLOT_COST) + RECTANGLE_COST for piece in pieces)
        for pieces in partitions(ordered)
    )
    assert cost == pytest.approx(min(found) if ordered else 0)


@settings(max_examples=50)
@given(LENGTHS)
def test_in_order_says_that_slots_are_tokens(lengths: list[int]) -> None:
    plan = Rows.from_lengths(lengths).plan
    assert plan.in_order == torch.equal(plan.gather, torch.arange(sum(lengths)))


@pytest.mark.parametrize(
    ("lengths", "in_order"),
    [([5, 5, 5], True), ([20, 5], False), ([5, 20], False), ([5, 90], True), ([5, 4], False), ([7], True)],
)
def test_in_order_where_it_is_known(lengths: list[int], in_order: bool) -> None:
    assert Rows.from_lengths(lengths).plan.in_order is in_order


@settings(max_examples=50)
@given(st.lists(st.integers(1, 700), min_size=1, max_size=4))
@example([1, 32])
@example([33])
@example([512])
@example([513])
def test_max_length_is_a_bucket_above_the_longest(lengths: list[int]) -> None:
    rows = Rows.from_lengths(lengths)
    longest = max(lengths)
    assert rows.longest == longest
    if longest > LENGTH_BUCKETS[-1]:
        assert rows.max_length == longest
    else:
        assert rows.max_length == min(b for b in LENGTH_BUCKETS if b >= longest)


@pytest.mark.parametrize("lengths", [[], [3, 0, 2], [0], [4, -1]])
def test_a_row_without_tokens_is_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        Rows.from_lengths(lengths)


@settings(max_examples=50)
@given(LENGTHS, st.sampled_from([(), (3,), (2, 2)]))
def test_padded_and_back(lengths: list[int], more: tuple[int, ...]) -> None:
    rows = Rows.from_lengths(lengths)
    x = torch.randn(rows.n_tokens, *more)
    padded, mask = to_padded(x, rows, fill=-7.0)
    assert padded.shape == (len(lengths), max(lengths), *more)
    assert mask.sum(1).tolist() == lengths
    assert bool((padded[~mask] == -7.0).all())
    again, rows_again = from_padded(padded, mask)
    assert torch.equal(again, x)
    assert torch.equal(rows_again.offsets, rows.offsets)
    assert torch.equal(rows_again.plan.gather, rows.plan.gather)


def test_gradients_pass_through_a_rectangle() -> None:
    rows = Rows.from_lengths([2, 3])
    x = torch.randn(5, 2, requires_grad=True)
    padded, mask = to_padded(x, rows)
    (from_padded(padded, mask)[0] * torch.arange(5.0)[:, None]).sum().backward()
    assert x.grad is not None
    assert x.grad[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_integers_keep_their_type() -> None:
    padded, _ = to_padded(torch.tensor([4, 5, 6]), Rows.from_lengths([1, 2]))
    assert padded.dtype == torch.int64
    assert padded.tolist() == [[4, 0], [5, 6]]


@pytest.mark.parametrize("mask", [[[0, 1, 1]], [[1, 0, 1]], [[1, 1, 0], [0, 1, 0]]])
def test_padding_that_is_not_on_the_right_is_refused(mask: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="pad on the right"):
        from_padded(torch.zeros(len(mask), 3), torch.tensor(mask, dtype=torch.bool))


def test_a_padded_row_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        from_padded(torch.zeros(2, 2), torch.tensor([[True, True], [False, False]]))


def test_moving_tokens_leaves_the_groups_on_the_host() -> None:
    rows = Rows.from_lengths([3, 20])
    moved = Tokens(rows, torch.arange(23), torch.zeros(23, dtype=torch.int64)).to("meta")
    assert moved.segments is not None
    for tensor in (moved.ids, moved.segments, moved.rows.offsets, moved.rows.positions):
        assert tensor.device.type == "meta"
    plan = moved.rows.plan
    assert {plan.gather.device.type, plan.scatter.device.type, plan.lengths.device.type} == {"meta"}
    assert plan.groups.device.type == "cpu"
    assert torch.equal(plan.groups, rows.plan.groups)
    # Known without reading from the device.
    assert (moved.rows.longest, moved.rows.max_length, moved.rows.n_rows) == (20, 32, 2)


def test_tokens_without_segments_move() -> None:
    assert Tokens(Rows.from_lengths([2]), torch.arange(2)).to("meta").segments is None


def test_kept_layers_count_from_both_ends() -> None:
    assert kept_layers((0, -1), 4) == {0, 4}
    assert kept_layers((-5, 4, 2), 4) == {0, 2, 4}
    assert kept_layers((), 4) == frozenset()
    for layer in (5, -6):
        with pytest.raises(ValueError, match=rf"layer {layer} .*to 4"):
            kept_layers((layer,), 4)


def test_top_is_the_highest_kept_layer() -> None:
    low, high = torch.zeros(2, 3), torch.ones(2, 3)
    assert Hidden({3: high, 1: low}, Rows.from_lengths([2])).top is high


def words_of_two_rows() -> Words:
    return Words(
        first=torch.tensor([0, 2, 3]),
        last=torch.tensor([1, 2, 4]),
        rows=Rows.from_lengths([2, 1]),
        asked=torch.tensor([1, 2]),
        asked_rows=Rows.from_lengths([1, 1]),
    )


def test_words_move_with_their_tokens() -> None:
    """Move to the meta device, which has no storage: a tensor left behind would still have some."""
    tokens = Tokens(Rows.from_lengths([3, 2]), torch.arange(5), words=words_of_two_rows())
    moved = tokens.to("meta")
    assert moved.words is not None and moved.segments is None
    parts = (moved.ids, moved.words.first, moved.words.last, moved.words.asked)
    assert {part.device.type for part in parts} == {"meta"}
    for rows in (moved.rows, moved.words.rows, moved.words.asked_rows):
        assert (rows.offsets.device.type, rows.positions.device.type) == ("meta", "meta")
        # The grouping of rows is read on the host.
        assert rows.plan.groups.device.type == "cpu"


def test_words_stay_as_they_are_on_their_own_device() -> None:
    words = words_of_two_rows()
    again = words.to("cpu")
    assert torch.equal(again.first, words.first) and torch.equal(again.last, words.last)
    assert again.rows.lengths.tolist() == [2, 1] and again.asked_rows.lengths.tolist() == [1, 1]
