"""Batches of sequences, compared with plain loops, and streams whose columns continue across batches."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from firth.data.batch import Batch
from firth.data.config import MaskingConfig
from firth.data.instances import Instances, plan_documents, plan_pairs
from firth.data.masking import Masker
from firth.data.rows import (
    MixedBatches,
    NextTokenBatches,
    RowBatches,
    StreamBatches,
    cut_batches,
    pack_lists,
    pack_rows,
    row_lengths,
)
from firth.data.shards import Shard
from firth.text.layouts import Layout

BERT = Layout((101,), (102,), (102,), has_segments=True)
LONGER = Layout((101, 103), (102,), (104, 105), has_segments=True)
STREAM = Layout((), (102,), (102,), has_segments=False)


def shard(document_lengths: list[list[int]], dtype: Any = np.uint16) -> Shard:
    """A shard whose ids count up from 0, so that each id shows its position."""
    sentences = np.cumsum([0, *(n for document in document_lengths for n in document)])
    documents = np.cumsum([0, *map(len, document_lengths)])
    return Shard("train-00000", np.arange(sentences[-1]).astype(dtype), sentences, documents)


SHARD = shard([[3, 4, 2, 5], [6], [2, 2, 2, 2, 2], [9, 1]] * 3)


def pairs() -> Instances:
    return plan_pairs(SHARD.sentences, SHARD.documents, 12, 0.1, 1, 0)


def windows() -> Instances:
    return plan_documents(SHARD.document_tokens, 7, 1, 0)


@pytest.mark.parametrize("layout", [BERT, LONGER, STREAM])
@pytest.mark.parametrize("make", [pairs, windows])
def test_packing_equals_a_loop_over_rows(layout: Layout, make: Any) -> None:
    instances = make()
    chosen = np.array([4, 0, 7, 2])
    expected_ids, expected_segments, expected_special, lengths = [], [], [], []
    for number in chosen.tolist():
        a = SHARD.ids[slice(*instances.a[number])].tolist()
        first = [*layout.first, *a]
        special = [1] * len(layout.first) + [0] * len(a)
        second: list[int] = []
        if instances.random_next is None:
            first += layout.last
            special += [1] * len(layout.last)
        else:
            first += layout.between
            second = [*SHARD.ids[slice(*instances.b[number])].tolist(), *layout.last]
            special += [1] * len(layout.between) + [0] * (len(second) - len(layout.last)) + [1] * len(layout.last)
        expected_ids += first + second
        expected_segments += [0] * len(first) + [1] * len(second)
        expected_special += special
        lengths.append(len(first) + len(second))
    packed = pack_rows(SHARD.ids, instances, chosen, layout)
    assert packed.ids.tolist() == expected_ids
    assert packed.segments.tolist() == expected_segments
    assert packed.special.astype(int).tolist() == expected_special
    assert packed.lengths.tolist() == lengths == row_lengths(instances, layout)[chosen].tolist()
    assert packed.starts.tolist() == [0, *np.cumsum(lengths)[:-1].tolist()]


@settings(max_examples=100)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=120), st.integers(40, 100), st.integers(0, 9))
def test_batches_hold_every_row_once_within_the_budget(lengths: list[int], budget: int, seed: int) -> None:
    sizes = np.array(lengths)
    batches = cut_batches(sizes, budget, seed)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert all(len(batch) and sizes[batch].sum() <= budget for batch in batches)
    again = cut_batches(sizes, budget, seed)
    assert [b.tolist() for b in batches] == [b.tolist() for b in again]


def test_batches_hold_rows_of_similar_length_in_random_order() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(5, 60, 3000)
    batches = cut_batches(sizes, 500, 1)
    spread = np.mean([np.ptp(sizes[batch]) for batch in batches])
    assert spread < 5
    means = np.array([sizes[batch].mean() for batch in batches])
    assert abs(float(np.corrcoef(means, np.arange(len(means)))[0, 1])) < 5 / len(means) ** 0.5
    # Nearly full: at most one shortest sequence is wasted, except at the end of a pool.
    fill = np.array([sizes[batch].sum() for batch in batches]) / 500
    assert fill.mean() > 0.9
    assert [b.tolist() for b in cut_batches(sizes, 500, 2)] != [b.tolist() for b in batches]


def test_no_rows_make_no_batches() -> None:
    assert cut_batches(np.zeros(0, np.int64), 100, 1) == []


def masked_batches(instances: Instances, share: float = 0.3) -> RowBatches:
    masker = Masker(MaskingConfig(share=share), 99, np.zeros(110, bool), 20)
    cuts = cut_batches(row_lengths(instances, BERT), 60, 3)
    return RowBatches(SHARD, instances, cuts, BERT, masker, 5)


def test_masked_batches_say_what_was_there() -> None:
    instances = pairs()
    made = masked_batches(instances)
    assert instances.random_next is not None
    rows_seen = 0
    for number in range(len(made)):
        batch, chosen = made[number], made.cuts[number]
        plain = pack_rows(SHARD.ids, instances, chosen, BERT)
        target = batch.targets["mlm"]
        restored = batch.tokens.ids.clone()
        restored[target.index] = target.label
        assert restored.tolist() == plain.ids.tolist()
        assert batch.tokens.segments is not None
        assert batch.tokens.segments.tolist() == plain.segments.tolist()
        assert batch.tokens.rows.lengths.tolist() == plain.lengths.tolist()
        assert batch.targets["nsp"].index.tolist() == list(range(len(chosen)))
        assert batch.targets["nsp"].label.tolist() == instances.random_next[chosen].tolist()
        assert batch.counts() == {"mlm": len(target.label), "nsp": len(chosen)}
        rows_seen += len(chosen)
    assert rows_seen == len(instances.key)


def test_windows_have_no_next_sentence_target() -> None:
    assert set(masked_batches(windows())[0].targets) == {"mlm"}


def test_a_row_is_the_same_in_whatever_batch_it_comes() -> None:
    instances = pairs()
    made = masked_batches(instances)
    alone = RowBatches(SHARD, instances, [np.array([i]) for i in range(len(instances.key))], BERT, made.masker, 5)
    for batch, chosen in zip(made, made.cuts, strict=False):
        parts = batch.tokens.ids.split(batch.tokens.rows.lengths.tolist())
        for row, part in zip(chosen.tolist(), parts, strict=True):
            assert torch.equal(alone[row].tokens.ids, part)


def test_next_token_batches_ask_for_every_token_but_the_first() -> None:
    instances = windows()
    cuts = cut_batches(row_lengths(instances, BERT), 40, 3)
    made = NextTokenBatches(SHARD, instances, cuts, BERT)
    for number in range(len(made)):
        batch = made[number]
        ids = batch.tokens.ids
        index, label = batch.targets["lm"].index, batch.targets["lm"].label
        assert sorted(set(range(len(ids))) - set(index.tolist())) == batch.tokens.rows.last.tolist()
        assert torch.equal(label, ids[index + 1])
        assert torch.equal(batch.tokens.rows.row_of_token()[index], batch.tokens.rows.row_of_token()[index + 1])


def stream(length: int = 5, budget: int = 15, slots: int = 2) -> StreamBatches:
    return StreamBatches.cut(SHARD, STREAM, length=length, budget_tokens=budget, slots=slots)


def whole_stream() -> list[int]:
    """All documents, each ended by token 102."""
    bounds = SHARD.document_tokens.tolist()
    return [i for a, b in zip(bounds[:-1], bounds[1:], strict=True) for i in [*range(a, b), 102]]


def columns_of(made: StreamBatches, slot: int) -> tuple[list[list[int]], list[list[int]]]:
    """The inputs and targets of each row of one slot, over all its batches."""
    slots, rows, _ = made.columns.shape
    read: list[list[int]] = [[] for _ in range(rows)]
    asked: list[list[int]] = [[] for _ in range(rows)]
    for number in range(slot, len(made), slots):
        batch: Batch = made[number]
        assert batch.starts_stream == (number == slot)
        lengths = batch.tokens.rows.lengths.tolist()
        assert len(lengths) == rows and len(set(lengths)) == 1
        for row, (ids, labels) in enumerate(
            zip(batch.tokens.ids.split(lengths), batch.targets["lm"].label.split(lengths), strict=True)
        ):
            read[row] += ids.tolist()
            asked[row] += labels.tolist()
        assert batch.targets["lm"].index.tolist() == list(range(len(batch.tokens.ids)))
    return read, asked


@pytest.mark.parametrize(("length", "budget", "slots"), [(5, 15, 2), (4, 4, 1), (7, 30, 3), (1000, 1000, 1)])
def test_streams_go_on_in_every_slot(length: int, budget: int, slots: int) -> None:
    made = stream(length, budget, slots)
    assert len(made) % slots == 0
    text = whole_stream()
    n_slots, rows, size = made.columns.shape
    assert rows * min(length, size - 1) <= budget
    for slot in range(slots):
        read, asked = columns_of(made, slot)
        for row in range(rows):
            begin = (slot * rows + row) * size
            assert read[row] == text[begin : begin + size - 1]
            assert asked[row] == text[begin + 1 : begin + size]
    # Only the remainder of cutting into columns is not read.
    assert len(text) - n_slots * rows * size < n_slots * rows


def test_state_may_begin_anew_after_some_windows() -> None:
    made = StreamBatches.cut(SHARD, STREAM, length=5, budget_tokens=15, slots=2, restart_every=3)
    begins = [made[number].starts_stream for number in range(len(made))]
    assert len(begins) > 8 and begins == [number // 2 % 3 == 0 for number in range(len(made))]


def test_a_short_stream_has_fewer_columns_and_an_empty_one_none() -> None:
    small = StreamBatches.cut(shard([[3]]), STREAM, length=8, budget_tokens=80, slots=1)
    assert small.columns.shape == (1, 2, 2) and len(small) == 1
    for slots in (3, 4):
        none = StreamBatches.cut(shard([[2]]), STREAM, length=8, budget_tokens=80, slots=slots)
        assert len(none) == 0


def test_documents_of_a_stream_begin_and_end_as_the_layout_says() -> None:
    layout = Layout((1,), (102,), (2, 3), has_segments=False)
    three = Shard("train-00000", np.arange(10, 16), np.array([0, 2, 2, 6]), np.array([0, 1, 2, 3]))
    made = StreamBatches.cut(three, layout, length=100, budget_tokens=100, slots=1)
    assert made.columns.ravel().tolist() == [1, 10, 11, 2, 3, 1, 2, 3, 1, 12, 13, 14, 15, 2, 3]


def test_a_backward_stream_is_read_from_its_end_in_reading_order() -> None:
    text = whole_stream()
    made = StreamBatches.cut(SHARD, STREAM, length=5, budget_tokens=5, slots=1, backward=True)
    end = len(text)
    for number in range(len(made)):
        batch = made[number]
        ids, label = batch.tokens.ids.tolist(), batch.targets["lm"].label.tolist()
        assert batch.starts_stream == (number == 0)
        assert ids == text[end - len(ids) : end] and label == text[end - len(ids) - 1 : end - 1]
        end -= len(ids)
    assert end == 1, "the first token of the text is only asked for"


def test_lists_are_packed() -> None:
    tokens = pack_lists([[1, 2, 3], [4]], [[0, 0, 1], [0]])
    assert tokens.segments is not None
    assert (tokens.ids.tolist(), tokens.segments.tolist()) == ([1, 2, 3, 4], [0, 0, 1, 0])
    assert tokens.rows.offsets.tolist() == [0, 3, 4]
    assert pack_lists([[1]]).segments is None


def test_mixing_keeps_every_batch_once_and_says_where_it_stands() -> None:
    parts = [masked_batches(pairs()), masked_batches(windows()), masked_batches(windows(), share=0.1)]
    mixed = MixedBatches.of(list(parts), 7, "0:1:2")
    assert len(mixed) == sum(len(part) for part in parts)
    assert mixed[3].place == "0:1:2:3"
    expected = sorted(part[i].tokens.ids.tolist() for part in parts for i in range(len(part)))
    assert sorted(mixed[i].tokens.ids.tolist() for i in range(len(mixed))) == expected
    first = mixed.order[: len(mixed) // 2, 0]
    assert set(first.tolist()) == {0, 1, 2}, "each part is met early"
    unmixed = MixedBatches.of(list(parts), None, "")
    assert unmixed.order[:, 0].tolist() == sorted(unmixed.order[:, 0].tolist())
