"""Which rows go through the model together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firth.inference.batching import in_batches


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 100))
def test_every_row_once_within_the_budget_longest_first(lengths: list[int], budget: int) -> None:
    batches = list(in_batches(lengths, budget))
    order = [number for batch in batches for number in batch]
    assert sorted(order) == list(range(len(lengths)))
    sizes = [lengths[number] for number in order]
    assert sizes == sorted(sizes, reverse=True)
    for batch in batches:
        assert batch and (len(batch) == 1 or sum(lengths[i] for i in batch) <= budget)
    # No batch is ended early: the first row of the next one would not have fitted.
    for batch, following in zip(batches, batches[1:], strict=False):
        assert sum(lengths[i] for i in batch) + lengths[following[0]] > budget


@pytest.mark.parametrize(
    ("lengths", "batches"),
    [([], []), ([5], [[0]]), ([3, 9, 4], [[1], [2, 0]]), ([20, 2], [[0], [1]]), ([2, 2, 2], [[0, 1, 2]])],
)
def test_batches_by_hand(lengths: list[int], batches: list[list[int]]) -> None:
    assert list(in_batches(lengths, 10)) == batches
