"""Labelled examples as training steps: whole batches, each example once per epoch, resumable at any place."""

from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firth.data.batch import Batch
from firth.data.loader import Place
from firth.tasks.example_source import ExampleSource
from firth.tasks.rows import Example, make_row, target


def example(number: int, *lengths: int) -> Example:
    """Rows of the given lengths whose first token is the example's number, which is also its label."""
    rows = tuple(make_row([number, *[1] * (n - 1)]) for n in lengths)
    return Example(rows, (len(rows),), {"label": target([0], [np.int64(number)])})


def source(lengths: list[int], *, batch: int = 4, budget: int = 12, seed: int = 7) -> ExampleSource:
    return ExampleSource([example(i, n) for i, n in enumerate(lengths)], batch, budget, seed)


BEGIN = Place()


def walk(made: ExampleSource, n: int, start: Place = BEGIN, **more: int) -> Iterator[tuple[list[Batch], Place]]:
    return islice(made.steps(start, step=0, **more), n)


def numbers(batches: list[Batch]) -> list[int]:
    return [int(i) for batch in batches for i in batch.targets["label"].label]


@settings(max_examples=40)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=23), st.integers(1, 8), st.integers(4, 30))
def test_an_epoch_holds_each_example_at_most_once_in_whole_batches(lengths: list[int], size: int, budget: int) -> None:
    made = source(lengths, batch=size, budget=budget)
    per_epoch = max(len(lengths) // size, 1)
    assert made.steps_per_epoch == per_epoch
    epochs: list[list[int]] = [[], []]
    for number, (batches, place) in enumerate(walk(made, 2 * per_epoch), start=1):
        found = numbers(batches)
        assert len(found) == min(size, len(lengths))
        epochs[(number - 1) // per_epoch] += found
        assert place == Place(epoch=number // per_epoch, batch=number % per_epoch)
        for batch in batches:
            assert batch.tokens.rows.n_tokens <= budget or batch.tokens.rows.n_rows == 1
            # Labels stay with their rows.
            assert batch.tokens.ids[batch.tokens.rows.first].tolist() == batch.targets["label"].label.tolist()
    for epoch in epochs:
        assert len(epoch) == len(set(epoch)) > len(lengths) - size


def test_epochs_are_in_different_orders_and_seeds_too() -> None:
    made = source([3] * 20)
    first = [numbers(batches) for batches, _ in walk(made, 10)]
    assert sorted(sum(first[:5], [])) == sorted(sum(first[5:], [])) == list(range(20))
    assert first[:5] != first[5:]
    assert first == [numbers(batches) for batches, _ in walk(source([3] * 20), 10)]
    assert first != [numbers(batches) for batches, _ in walk(source([3] * 20, seed=8), 10)]


def test_the_rest_that_makes_no_batch_is_another_one_each_epoch() -> None:
    made = source([3] * 9)
    rests = [set(range(9)) - set(sum((numbers(b) for b, _ in walk(made, 2, Place(epoch=e))), [])) for e in range(12)]
    assert all(len(rest) == 1 for rest in rests)
    assert len(set.union(*rests)) > 3


def test_the_stream_can_be_entered_at_any_place() -> None:
    made = source([2, 3, 4, 5, 6, 7, 8, 9, 30, 1])
    seen = list(walk(made, 7))
    places = [BEGIN, *(place for _, place in seen)]
    for step, place in enumerate(places[:-1]):
        batches, following = next(walk(made, 1, place))
        assert [b.place for b in batches] == [b.place for b in seen[step][0]]
        assert numbers(batches) == numbers(seen[step][0])
        assert following == seen[step][1]
        assert {b.place for b in batches} == {str(place)}


def test_an_example_beyond_the_budget_goes_alone() -> None:
    made = source([5, 40, 5, 40], batch=4, budget=12)
    ((batches, _),) = walk(made, 1)
    assert sorted(numbers(batches)) == [0, 1, 2, 3]
    for batch in batches:
        found = batch.targets["label"].label.tolist()
        assert not set(found) & {1, 3} or len(found) == 1


def test_all_rows_of_an_example_stay_together_and_count() -> None:
    made = ExampleSource([example(i, 4, 4) for i in range(4)], 4, 17, seed=1)
    ((batches, _),) = walk(made, 1)
    assert [batch.tokens.rows.lengths.tolist() for batch in batches] == [[4] * 4, [4] * 4]
    assert all(batch.rows_per_example is not None and batch.rows_per_example.tolist() == [2, 2] for batch in batches)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_a_step(world: int) -> None:
    made = source([6, 7, 8, 9, 10, 11, 12, 1], batch=8)
    ((whole, place),) = walk(made, 1)
    parts = [next(walk(made, 1, rank=rank, world=world)) for rank in range(world)]
    assert [following for _, following in parts] == [place] * world
    shared = [numbers(batches) for batches, _ in parts]
    assert sorted(sum(shared, [])) == sorted(numbers(whole)) == list(range(8))
    # Micro-batch m of a process is micro-batch m · world + rank of the step.
    assert [numbers([whole[i]]) for i in range(0, len(whole), world)] == [numbers([b]) for b in parts[0][0]]


def test_fewer_examples_than_a_batch_are_one_step_an_epoch() -> None:
    made = source([3, 4], batch=32)
    assert made.steps_per_epoch == 1
    steps = list(walk(made, 3))
    assert [sorted(numbers(batches)) for batches, _ in steps] == [[0, 1]] * 3
    assert [place.epoch for _, place in steps] == [1, 2, 3]
