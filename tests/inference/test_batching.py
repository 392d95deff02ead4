"""Which sequences are batched together."""

import ctypes
import subprocess
import sys
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firth.inference.batching import in_batches, in_blocks
from firth.inference.fast import row_step, sequence_step


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 100))
def test_every_row_once_within_the_budget_longest_first(lengths: list[int], budget: int) -> None:
    batches = list(in_batches(lengths, budget))
    order = [number for batch in batches for number in batch]
    assert sorted(order) == list(range(len(lengths)))
    sizes = [lengths[number] for number in order]
    assert sizes == sorted(sizes, reverse=True)
    for batch in batches:
        assert batch and (len(batch) == 1 or sum(lengths[i] for i in batch) <= budget)


def test_batches_of_many_sentences_have_few_sizes() -> None:
    """A kernel is compiled for each size, and its allocations fragment the heap, which made memory grow."""
    random, sizes, rows = Random(0), set[int](), set[int]()
    for _ in range(100):
        lengths = [random.randint(3, 30) for _ in range(1024)]
        for batch in in_batches(lengths, 4096):
            n_tokens = sum(lengths[i] for i in batch)
            sizes.add(n_tokens + -n_tokens % row_step(n_tokens))
            rows.add(len(batch) + -len(batch) % sequence_step(len(batch)))
    assert len(sizes) <= 4 and len(rows) <= 3


@pytest.mark.parametrize(
    ("lengths", "batches"),
    [
        ([], []),
        ([5], [[0]]),
        ([3, 9, 4], [[1], [2, 0]]),
        ([20, 2], [[0], [1]]),
        ([2, 2, 2], [[0, 1, 2]]),
        ([2, 2, 2, 2, 2, 2], [[0, 1, 2], [3, 4, 5]]),  # not five and one
    ],
)
def test_batches_by_hand(lengths: list[int], batches: list[list[int]]) -> None:
    assert list(in_batches(lengths, 10)) == batches


def test_blocks_are_complete_with_enough_texts_or_characters() -> None:
    texts = ["a", "b", "cdefgh", "", "i", "j", "k"]
    assert list(in_blocks(texts, 3, 6)) == [["a", "b", "cdefgh"], ["", "i", "j"], ["k"]]
    assert list(in_blocks(texts, 9, 2)) == [["a", "b"], ["cdefgh"], ["", "i", "j"], ["k"]]
    assert list(in_blocks([], 3, 6)) == []
    taken = list[str]()
    next(in_blocks((taken.append(text) or text for text in texts), 2, 100))  # type: ignore[func-returns-value]
    assert taken == ["a", "b"], "no text is read before its block is wanted"


_GAPS = """
import torch
from firth.inference.batching import in_batches
from firth.machine import _resident, reuse_memory

reuse_memory()
for numbers in in_batches([1] * 9, 1):  # what a batch takes here
    pass
before, kept = _resident(), []
for numbers in in_batches([1], 1):
    # What outlives a batch keeps the gaps below it from going back to the system by themselves.
    large = [(torch.ones(1 << 18), kept.append(torch.ones(100)))[0] for _ in range(200)]
    del large
    within = _resident()
print(within - before, _resident() - before)
"""


def test_what_batches_have_freed_goes_back_once_the_process_has_grown() -> None:
    """For an endless stream of lines of different lengths, memory must not grow with their number."""
    if sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("this C library gives memory back by its own rules")
    ran = subprocess.run([sys.executable, "-c", _GAPS], capture_output=True, text=True, check=True)
    within, after = map(int, ran.stdout.split())
    assert within > 190 << 20
    assert after < 30 << 20
