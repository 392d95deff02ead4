"""Texts -> rows -> micro-batches: windows cover everything, pairs are truncated as published, targets stay aligned."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from firth.errors import ConfigError
from firth.tasks.config import WindowConfig
from firth.tasks.rows import (
    Example,
    PairText,
    Row,
    RowMaker,
    RowWords,
    collate,
    cut_pair,
    make_row,
    merge_outputs,
    spans,
    split_rows,
    target,
)
from firth.text.layouts import Layout, bert_layout, source_layout
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

TOKENIZER = Tokenizer.from_vocab([*SPECIALS, "a", "b"], lowercase=True)
CLS, SEP = TOKENIZER.start_id, TOKENIZER.end_id
# Stand-ins for tokens, all different, so that a row shows which tokens it has.
FIRST, SECOND = 1000, 2000


def maker(
    length: int = 16, *, layout: Callable[[Tokenizer], Layout] = bert_layout, most: int | None = None, **windows: object
) -> RowMaker:
    return RowMaker(TOKENIZER, layout(TOKENIZER), WindowConfig(length=length, **windows), most)  # type: ignore[arg-type]


def pieces(n: int, start: int = FIRST) -> list[int]:
    return list(range(start, start + n))


def text(n: int, start: int = FIRST) -> PairText:
    return PairText(pieces(n, start))


def ids(rows: Sequence[Row]) -> list[list[int]]:
    return [row.ids.tolist() for row in rows]


# --- marked words ---------------------------------------------------------------------------------


def test_shared_words_of_a_pair_are_in_segments_of_their_own() -> None:
    made = maker(11)
    (pair,) = made.pair_texts([("b a", "c a b a")], mark=True)
    (whole,) = made.pair(*pair)
    assert whole.segments.tolist() == [0, 2, 2, 0, 1, 3, 3, 3, 1]
    turned = [0, 0, 2, 2, 2, 0, 3, 3, 1]
    assert [row.segments.tolist() for row in made.both_orders(*pair)] == [whole.segments.tolist(), turned]
    # Windows carry the marks of the whole text.
    (long,) = made.pair_texts([("a", "b b a b b b a b b")], mark=True)
    assert [row.segments.tolist() for row in made.pair(*long)] == [
        [0, 2, 0, 1, 1, 3, 1, 1, 1, 3, 1],
        [0, 2, 0, 1, 1, 1, 3, 1, 1, 1],
    ]
    (plain,) = made.pair_texts([("b a", "c a b a")], mark=False)
    (row,) = made.pair(*plain)
    assert row.ids.tolist() == whole.ids.tolist() and row.segments.tolist() == (whole.segments % 2).tolist()


# --- windows --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "room", "stride", "expected"),
    [
        (0, 4, 2, [(0, 0)]),
        (1, 4, 2, [(0, 1)]),
        (4, 4, 2, [(0, 4)]),
        (5, 4, 2, [(0, 4), (2, 5)]),
        (6, 4, 2, [(0, 4), (2, 6)]),
        (7, 4, 2, [(0, 4), (2, 6), (4, 7)]),
        (9, 4, 4, [(0, 4), (4, 8), (8, 9)]),
        # A stride larger than the room would leave tokens out.
        (9, 4, 100, [(0, 4), (4, 8), (8, 9)]),
    ],
)
def test_windows_by_hand(n: int, room: int, stride: int, expected: list[tuple[int, int]]) -> None:
    assert spans(n, room, stride) == expected


@settings(max_examples=200)
@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 30))
def test_windows_are_those_of_the_published_loop(n: int, room: int, stride: int) -> None:
    """The loop of run_squad.py: a start and a length, until the end is reached."""
    start, expected = 0, []
    while start < n:
        length = min(n - start, room)
        expected.append((start, start + length))
        if start + length == n:
            break
        start += min(length, stride)
    assert spans(n, room, stride) == expected


@settings(max_examples=100)
@given(st.integers(0, 80), st.integers(11, 30), st.integers(0, 40), st.sampled_from([bert_layout, source_layout]))
def test_the_rows_of_a_long_text_cover_every_piece(
    n: int, length: int, stride: int, layout: Callable[[Tokenizer], Layout]
) -> None:
    made = maker(length, layout=layout, stride=stride)
    found = made.single(pieces(n))
    assert not any(row.cut for row in found)
    rows = ids(found)
    n_first, n_last = len(made.layout.first), len(made.layout.last)
    parts = [row[n_first : len(row) - n_last] for row in rows]
    assert all(len(row) <= length for row in rows)
    assert all(row == made.layout.single(part) for row, part in zip(rows, parts, strict=True))
    assert sorted({piece for part in parts for piece in part}) == pieces(n)
    # Windows are contiguous runs of tokens, one stride apart, with no gap between two of them.
    assert all(part == pieces(len(part), part[0]) for part in parts if part)
    for one, other in zip(parts, parts[1:], strict=False):
        assert other[0] - one[0] == min(stride or max((length - n_first - n_last) // 2, 1), len(one))
        assert other[0] <= one[-1] + 1
    assert made.noted == ({"read in windows": 1} if len(rows) > 1 else {})


def test_a_text_that_fits_is_one_row_whatever_the_stride() -> None:
    made = maker(12, stride=1)
    assert ids(made.single(pieces(10))) == [[CLS, *pieces(10), SEP]]
    assert not made.noted


def test_a_text_without_pieces_is_a_row_of_special_pieces() -> None:
    assert ids(maker().single([])) == [[CLS, SEP]]
    assert ids(maker(layout=source_layout).single([])) == [[SEP]]


def test_a_text_that_is_cut_loses_its_end_and_is_counted() -> None:
    made = maker(12, long="cut")
    (cut,), (whole,) = made.single(pieces(11)), made.single(pieces(10))
    assert cut.ids.tolist() == whole.ids.tolist() == [CLS, *pieces(10), SEP]
    assert (cut.cut, whole.cut, made.noted) == (True, False, {"cut": 1})


# --- pairs ----------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 50))
@example(7, 7, 3)
@example(3, 9, 0)
def test_a_pair_is_cut_as_published(n_a: int, n_b: int, room: int) -> None:
    """Tokens are removed one by one from the end of the longer text, or of the second if the lengths are equal."""
    a, b = list(range(n_a)), list(range(n_b))
    while len(a) + len(b) > room:
        (a if len(a) > len(b) else b).pop()
    assert cut_pair(n_a, n_b, room) == (len(a), len(b))


def test_a_pair_that_fits_is_one_row_with_two_segments() -> None:
    (row,) = maker(16).pair(text(2), text(3, SECOND))
    assert row.ids.tolist() == [CLS, *pieces(2), SEP, *pieces(3, SECOND), SEP]
    assert row.segments.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_cut_pair_by_hand() -> None:
    made = maker(12, long="cut")  # room for nine tokens
    (row,) = made.pair(text(8), text(5, SECOND))
    assert row.ids.tolist() == [CLS, *pieces(5), SEP, *pieces(4, SECOND), SEP] and row.cut
    assert made.noted == {"cut": 1}


def test_windows_go_over_the_longer_text_of_a_pair() -> None:
    made = maker(15, stride=2)  # room for twelve tokens
    assert ids(made.pair(text(4), text(11, SECOND))) == [
        [CLS, *pieces(4), SEP, *pieces(8, SECOND), SEP],
        [CLS, *pieces(4), SEP, *pieces(8, SECOND + 2), SEP],
        [CLS, *pieces(4), SEP, *pieces(7, SECOND + 4), SEP],
    ]
    rows = made.pair(text(10), text(3, SECOND))
    assert ids(rows) == [
        [CLS, *pieces(9), SEP, *pieces(3, SECOND), SEP],
        [CLS, *pieces(8, FIRST + 2), SEP, *pieces(3, SECOND), SEP],
    ]
    assert rows[0].segments.tolist() == [0] * 11 + [1] * 4
    assert made.noted == {"read in windows": 2}


def test_the_other_text_of_a_pair_may_take_half_of_a_row() -> None:
    made = maker(15)
    rows = ids(made.pair(text(9), text(20, SECOND)))
    assert all(row[: 6 + 2] == [CLS, *pieces(6), SEP] for row in rows)
    assert made.noted == {"one text of a pair cut": 1, "read in windows": 1}


def test_the_text_that_is_read_in_windows_can_be_said() -> None:
    made = maker(15, stride=3)
    rows = ids(made.pair(text(10), text(12, SECOND), window_first=True))
    assert rows == [
        [CLS, *pieces(6), SEP, *pieces(6, SECOND), SEP],
        [CLS, *pieces(6, FIRST + 3), SEP, *pieces(6, SECOND), SEP],
        [CLS, *pieces(4, FIRST + 6), SEP, *pieces(6, SECOND), SEP],
    ]


def test_the_other_text_gets_all_that_a_short_windowed_one_leaves() -> None:
    made = maker(15)
    assert ids(made.pair(text(2), text(30, SECOND), window_first=True)) == [
        [CLS, *pieces(2), SEP, *pieces(10, SECOND), SEP]
    ]
    assert made.noted == {"one text of a pair cut": 1}


@settings(max_examples=100)
@given(
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(11, 30),
    st.integers(0, 9),
    st.sampled_from([None, True, False]),
    st.sampled_from([bert_layout, source_layout]),
)
def test_the_rows_of_a_pair_fit_and_cover_the_windowed_text(
    n_a: int, n_b: int, length: int, stride: int, first: bool | None, layout: Callable[[Tokenizer], Layout]
) -> None:
    made = maker(length, layout=layout, stride=stride)
    rows = made.pair(text(n_a), text(n_b, SECOND), window_first=first)
    found = {int(piece) for row in rows for piece in row.ids if piece >= FIRST}
    assert all(len(row.ids) == len(row.segments) <= length for row in rows)
    windowed = pieces(n_a) if (n_a > n_b if first is None else first) else pieces(n_b, SECOND)
    assert set(windowed) <= found
    is_cut = found != {*pieces(n_a), *pieces(n_b, SECOND)}
    assert made.noted["one text of a pair cut"] == int(is_cut)
    assert all(row.cut == is_cut for row in rows)
    for row in rows:
        part_a = [p for p in row.ids.tolist() if FIRST <= p < SECOND]
        part_b = [p for p in row.ids.tolist() if p >= SECOND]
        assert (row.ids.tolist(), row.segments.tolist()) == made.layout.pair(part_a, part_b)


def test_lengths_that_cannot_serve_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"windows\.length=65: this model reads sequences of at most 64"):
        maker(65, most=64)
    with pytest.raises(ConfigError, match=r"windows\.length=10: expected at least 11"):
        maker(10)
    with pytest.raises(ConfigError, match=r"windows\.length=-1: expected 0 or more"):
        WindowConfig(length=-1)


def test_the_length_is_that_of_the_model_unless_said() -> None:
    assert maker(0, most=64).length == 64
    assert maker(20, most=64).length == 20
    assert maker(0).length == 512


# --- micro-batches --------------------------------------------------------------------------------


def words(bounds: list[tuple[int, int]], asked: list[int]) -> RowWords:
    return RowWords(np.array(bounds), np.array(asked))


def test_targets_count_texts_rows_and_words_of_the_batch() -> None:
    rows = [make_row([CLS, 7, SEP]), make_row([CLS, SEP]), make_row([CLS, 8, 9, SEP])]
    one = Example((rows[0], rows[1]), (1, 1), {"choice": target([0], [1]), "start": target([0, 1], [2, 0])})
    other = Example((rows[2], rows[0], rows[1]), (2, 1), {"choice": target([0], [0]), "start": target([0, 1], [3, 1])})
    batch = collate([one, other, one], "3:1:0:2")
    assert batch.place == "3:1:0:2"
    assert batch.tokens.rows.lengths.tolist() == [3, 2, 4, 3, 2, 3, 2]
    assert batch.tokens.ids.tolist() == [CLS, 7, SEP, CLS, SEP, CLS, 8, 9, SEP, CLS, 7, SEP, CLS, SEP] + [
        CLS,
        7,
        SEP,
        CLS,
        SEP,
    ]
    assert batch.rows_per_example is not None
    assert batch.rows_per_example.tolist() == [1, 1, 2, 1, 1, 1]
    assert batch.targets["choice"].index.tolist() == [0, 2, 4]
    assert batch.targets["choice"].label.tolist() == [1, 0, 1]
    assert batch.targets["start"].index.tolist() == [0, 1, 2, 3, 5, 6]
    assert batch.targets["start"].label.tolist() == [2, 0, 3, 1, 2, 0]
    assert batch.counts() == {"choice": 3, "start": 6}


def test_words_and_their_targets_count_those_of_the_batch() -> None:
    one = make_row([CLS, 7, 8, 9, SEP], words=words([(1, 1), (2, 3)], [1]))
    two = make_row([CLS, 7, 8, SEP], words=words([(1, 1), (2, 2)], [0, 1]))
    rows = ((one, [4]), (two, [5, 6]))
    examples = [Example((row,), (1,), {"tag": target(range(len(tags)), tags)}) for row, tags in rows]
    batch = collate([*examples, examples[0]])
    found = batch.tokens.words
    assert found is not None
    assert (found.first.tolist(), found.last.tolist()) == ([1, 2, 6, 7, 10, 11], [1, 3, 6, 7, 10, 12])
    assert found.rows.lengths.tolist() == [2, 2, 2]
    assert found.asked.tolist() == [1, 2, 3, 5]
    assert found.asked_rows.lengths.tolist() == [1, 2, 1]
    assert batch.targets["tag"].index.tolist() == [0, 1, 2, 3]
    assert batch.targets["tag"].label.tolist() == [4, 5, 6, 4]


def test_segments_are_given_only_where_some_are_not_the_first() -> None:
    single, (pair,) = make_row([CLS, 7, SEP]), maker().pair(PairText([7]), PairText([8]))
    assert collate([Example((single,), (1,), {})]).tokens.segments is None
    both = collate([Example((single,), (1,), {}), Example((pair,), (1,), {})]).tokens.segments
    assert both is not None and both.dtype == torch.int64
    assert both.tolist() == [0, 0, 0, 0, 0, 0, 1, 1]


def test_labels_keep_their_kind() -> None:
    row = make_row([CLS, SEP])
    number = collate([Example((row,), (1,), {"value": target([0], [np.float32(2.5)])})])
    several = collate([Example((row,), (1,), {"label": target([0], [np.array([0, 1], np.float32)])})] * 2)
    assert number.targets["value"].label.dtype == torch.float32
    assert several.targets["label"].label.tolist() == [[0, 1], [0, 1]]
    assert several.counts() == {"label": 4}


def test_runs_one_after_the_other() -> None:
    assert split_rows([2, 0, 3]) == [slice(0, 2), slice(2, 2), slice(2, 5)]
    assert split_rows([]) == []


def test_outputs_of_windows_become_one() -> None:
    windows = [np.array([1.0, 5.0]), np.array([3.0, 0.0]), np.array([5.0, 1.0])]
    assert merge_outputs(windows, "mean").tolist() == [3, 2]
    assert merge_outputs(windows, "max").tolist() == [5, 5]
