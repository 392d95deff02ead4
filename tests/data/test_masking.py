"""Masking: exact counts, the published shares, whole words, and the same masks for a sequence in any batch."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firth.data.config import MaskingConfig
from firth.data.masking import Masker
from firth.errors import ConfigError

V, MASK_ID = 60, 4
CONTINUES = np.arange(V) >= 30  # tokens 30 to 59 start with ##


def masker(length: int = 128, **options: float | bool) -> Masker:
    return Masker(MaskingConfig(**options), MASK_ID, CONTINUES, length)  # type: ignore[arg-type]


def rows(lengths: list[int], seed: int = 0, *, pair: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, starts and special-token flags of sequences ``[2] … [3] … [3]``."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, V, sum(lengths))
    starts = np.cumsum([0, *lengths[:-1]])
    special = np.zeros(len(ids), bool)
    for start, length in zip(starts.tolist(), lengths, strict=True):
        places = {0, length - 1} | ({length // 2} if pair and length > 4 else set())
        for place in places:
            special[start + place] = True
            ids[start + place] = 2 if place == 0 else 3
    return ids, starts, special


def counts(index: np.ndarray, starts: np.ndarray) -> list[int]:
    return np.bincount(np.searchsorted(starts, index, side="right") - 1, minlength=len(starts)).tolist()


LENGTHS = st.lists(st.integers(3, 40), min_size=1, max_size=6)


@settings(max_examples=100)
@given(LENGTHS, st.sampled_from([0, 1, 3]), st.sampled_from([0.15, 0.5]))
def test_each_row_has_exactly_the_published_number(lengths: list[int], most: int, share: float) -> None:
    """min(most, max(1, round(length · share))) with Python's round; fewer only if there are fewer candidates."""
    ids, starts, special = rows(lengths)
    make = masker(40, share=share, max_predictions=most)
    _, index, _ = make(ids, starts, special, np.arange(len(lengths)), 1)
    ceiling = most or math.ceil(share * 40)
    candidates = [int((~special[s : s + n]).sum()) for s, n in zip(starts.tolist(), lengths, strict=True)]
    expected = [min(ceiling, max(1, round(n * share)), free) for n, free in zip(lengths, candidates, strict=True)]
    assert counts(index, starts) == expected


@pytest.mark.parametrize(("length", "n"), [(10, 2), (30, 4), (50, 8), (3, 1), (128, 19)])
def test_halves_are_rounded_to_even(length: int, n: int) -> None:
    """10 · 0.15 = 1.5 gives 2, 30 · 0.15 = 4.5 gives 4, 50 · 0.15 = 7.5 gives 8."""
    ids, starts, special = rows([length])
    _, index, _ = masker()(ids, starts, special, np.array([0]), 1)
    assert len(index) == n


def test_the_usual_ceilings() -> None:
    config = MaskingConfig()
    assert (config.most(128), config.most(512)) == (20, 77)
    assert MaskingConfig(max_predictions=5).most(512) == 5


@settings(max_examples=50)
@given(LENGTHS, st.booleans())
def test_special_pieces_are_never_chosen_and_the_rest_is_left_alone(lengths: list[int], whole_words: bool) -> None:
    ids, starts, special = rows(lengths)
    before = ids.copy()
    seen, index, label = masker(share=0.5, whole_words=whole_words)(ids, starts, special, np.arange(len(lengths)), 1)
    assert not special[index].any()
    assert np.array_equal(ids, before)
    assert np.array_equal(label, ids[index])
    assert np.array_equal(index, np.unique(index))
    others = np.ones(len(ids), bool)
    others[index] = False
    assert np.array_equal(seen[others], ids[others])


def test_a_row_of_specials_only_asks_for_nothing() -> None:
    ids, special = np.array([2, 3, 2, 9, 3]), np.array([True, True, True, False, True])
    for whole_words in (False, True):
        _, index, label = masker(whole_words=whole_words)(ids, np.array([0, 2]), special, np.array([0, 1]), 1)
        assert (index.tolist(), label.tolist()) == ([3], [9])
        seen, index, _ = masker(whole_words=whole_words)(ids[:2], np.array([0]), special[:2], np.array([0]), 1)
        assert (seen.tolist(), index.tolist()) == ([2, 3], [])


def test_shares_of_masked_kept_and_random() -> None:
    ids, starts, special = rows([100] * 1500)
    ids[~special] = 7
    seen, index, _ = masker()(ids, starts, special, np.arange(1500), 1)
    n = len(index)
    masked = seen[index] == MASK_ID
    same = seen[index] == 7
    for share, expected in ((masked, 0.8 + 0.1 / V), (same, 0.1 + 0.1 / V)):
        assert abs(share.mean() - expected) < 5 * math.sqrt(expected / n)
    random = seen[index][~masked & ~same]
    # Any token may be the replacement, special tokens included, all equally often.
    found = np.bincount(random, minlength=V)
    expected_each = 0.1 * n / V
    assert found[[0, 1, 2, 3]].min() > 0
    others = np.delete(found, [MASK_ID, 7])
    chi_square = float(((others - expected_each) ** 2 / expected_each).sum())
    assert abs(chi_square - len(others)) < 5 * math.sqrt(2 * len(others))


@pytest.mark.parametrize(("mask", "keep"), [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.5, 0.5)])
def test_other_shares(mask: float, keep: float) -> None:
    ids, starts, special = rows([100] * 50)
    ids[~special] = 7
    seen, index, label = masker(mask=mask, keep=keep)(ids, starts, special, np.arange(50), 1)
    assert label.tolist() == [7] * len(index)
    pieces = set(seen[index].tolist())
    if mask + keep == 1.0:
        assert pieces <= {MASK_ID, 7}
        assert (MASK_ID in pieces) == (mask > 0) and (7 in pieces) == (keep > 0)
    else:
        assert len(pieces) > V // 2


def test_every_place_is_equally_likely() -> None:
    ids, starts, special = rows([20] * 6000, pair=False)
    _, index, _ = masker()(ids, starts, special, np.arange(6000), 1)
    by_place = np.bincount(index % 20, minlength=20)
    assert by_place[0] == by_place[19] == 0
    expected = 3 * 6000 / 18
    assert np.abs(by_place[1:19] - expected).max() < 5 * math.sqrt(expected)


@pytest.mark.parametrize("whole_words", [False, True])
def test_a_row_is_masked_alike_in_any_company(whole_words: bool) -> None:
    lengths = [30, 5, 40, 12]
    ids, starts, special = rows(lengths)
    keys = np.array([11, 7, 3, 90])
    make = masker(whole_words=whole_words)
    seen, index, label = make(ids, starts, special, keys, 1)
    for order in ([0], [1], [2], [3], [3, 1], [2, 0, 3, 1]):
        parts = [slice(int(starts[i]), int(starts[i]) + lengths[i]) for i in order]
        some_ids = np.concatenate([ids[p] for p in parts])
        some_special = np.concatenate([special[p] for p in parts])
        some_starts = np.cumsum([0, *(lengths[i] for i in order[:-1])])
        got = make(some_ids, some_starts, some_special, keys[order], 1)
        assert np.array_equal(got[0], np.concatenate([seen[p] for p in parts]))
        chosen = [np.flatnonzero((index >= p.start) & (index < p.stop)) for p in parts]
        assert np.array_equal(got[2], np.concatenate([label[c] for c in chosen]))
        moved = [index[c] - p.start + s for c, p, s in zip(chosen, parts, some_starts.tolist(), strict=True)]
        assert np.array_equal(got[1], np.concatenate(moved))


def test_seed_and_key_decide() -> None:
    ids, starts, special = rows([40])
    results = {
        (seed, key): masker()(ids, starts, special, np.array([key]), seed)[1].tobytes()
        for seed in (1, 2)
        for key in (0, 1, 500_000)
    }
    assert len(set(results.values())) == 6


def words_of(ids: np.ndarray, special: np.ndarray) -> list[list[int]]:
    """The published grouping of one sequence: a ## token joins the group before it, if there is one."""
    groups: list[list[int]] = []
    for place in np.flatnonzero(~special).tolist():
        if CONTINUES[ids[place]] and groups:
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


@settings(max_examples=150)
@given(LENGTHS, st.sampled_from([0.15, 0.4]), st.integers(0, 50))
def test_whole_words_are_whole_and_fit(lengths: list[int], share: float, seed: int) -> None:
    ids, starts, special = rows(lengths, seed)
    _, index, _ = masker(share=share, whole_words=True)(ids, starts, special, np.arange(len(lengths)), seed)
    chosen = set(index.tolist())
    for start, length in zip(starts.tolist(), lengths, strict=True):
        part = slice(start, start + length)
        groups = [[start + p for p in group] for group in words_of(ids[part], special[part])]
        taken = [group for group in groups if set(group) & chosen]
        assert all(set(group) <= chosen for group in taken)
        wanted = min(math.ceil(share * 128), max(1, round(length * share)))
        used = sum(map(len, taken))
        assert used <= wanted
        # No group that was left out would still fit.
        assert all(used + len(group) > wanted for group in groups if group not in taken)


def test_sub_tokens_of_a_word_have_fates_of_their_own() -> None:
    ids, starts, special = rows([60] * 400)
    seen, index, _ = masker(whole_words=True)(ids, starts, special, np.arange(400), 1)
    masked = dict(zip(index.tolist(), (seen[index] == MASK_ID).tolist(), strict=True))
    pairs = [(masked[i - 1], masked[i]) for i in masked if CONTINUES[ids[i]] and i - 1 in masked]
    assert {(True, True), (True, False), (False, True)} <= set(pairs)


@pytest.mark.parametrize(
    "options",
    [{"share": 0.0}, {"share": 1.1}, {"mask": 0.8, "keep": 0.3}, {"mask": -0.1}, {"max_predictions": -1}],
)
def test_impossible_shares_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="masking"):
        MaskingConfig(**options)  # type: ignore[arg-type]
