"""Pairs spilled to disk come back in the same order as pairs kept in memory."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firth.corpus.fingerprints import mix
from firth.corpus.spill import Spill, groups


@settings(max_examples=30)
@given(st.lists(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 99)), max_size=20)), st.integers(1, 300))
def test_spilled_or_not_the_order_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[tuple[int, int]]], memory: int
) -> None:
    folder = tmp_path_factory.mktemp("spill")
    expected = sorted((int(mix(np.array([key], np.uint64))[0]), value) for part in parts for key, value in part)
    for limit in (memory, 1 << 30):
        spill = Spill(folder, f"a{limit}", limit)
        for part in parts:
            spill.add(mix(np.array([key for key, _ in part], np.uint64)), np.array([v for _, v in part], np.uint64))
        read: list[tuple[int, int]] = []
        for keys, values in spill.sorted_parts():
            read += zip(keys.tolist(), values.tolist(), strict=True)
        assert read == expected
        assert not list(folder.iterdir()), "what was read is gone"


def test_more_than_the_memory_goes_to_disk(tmp_path: Path) -> None:
    spill = Spill(tmp_path, "a", 1000)
    for begin in range(0, 1000, 100):
        spill.add(mix(np.arange(begin, begin + 100, dtype=np.uint64)), np.arange(100, dtype=np.uint64))
    assert spill.spilled and sum(path.stat().st_size for path in tmp_path.iterdir()) > 15_000
    sizes = [len(keys) for keys, _ in spill.sorted_parts()]
    assert sum(sizes) == 1000 and max(sizes) < 30


def test_groups_of_equal_keys() -> None:
    starts, sizes = groups(np.array([3, 3, 5, 9, 9, 9]))
    assert (starts.tolist(), sizes.tolist()) == ([0, 2, 3], [2, 1, 3])
    assert [a.tolist() for a in groups(np.zeros(0, np.uint64))] == [[], []]
