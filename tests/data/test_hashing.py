"""The hash behind all data: its bits are fixed and uniform, and every key counts."""

import numpy as np
import pytest

from firth.data.hashing import below, draw, permutation, seed_of, uniform

PINNED_SEED = 4039841130317957583
PINNED_DRAW = [7408624347353687684, 17062479499537327564, 14045982692654127670]
PINNED_TWO_KEYS = [7633872724082743699, 16345834640735995154, 11973031024902516903]
PINNED_ORDER = [0, 3, 2, 6, 1, 5, 7, 4]


def test_bits_stay_what_they_are() -> None:
    """Different bits would change the batches of every resumed run."""
    assert seed_of(12345, 0, "mask") == PINNED_SEED
    assert draw(7, np.arange(3)).tolist() == PINNED_DRAW
    assert draw(7, np.arange(3), 5).tolist() == PINNED_TWO_KEYS
    assert permutation(3, 8).tolist() == PINNED_ORDER


def test_every_key_counts_and_so_does_their_order() -> None:
    values = {int(draw(*keys)[0]) for keys in ((1, 2), (2, 1), (1, 2, 0), (1, 0, 2), (1, 2, 2), (0, 2, 1))}
    assert len(values) == 6
    assert len({seed_of(*keys) for keys in ((1, 2), (12,), (2, 1), ("1", 2, ""), (1, "a"))}) == 5


def test_a_draw_does_not_depend_on_its_company() -> None:
    keys = np.array([5, 9, 2**40, 0])
    together = draw(3, keys)
    assert together.tolist() == [int(draw(3, int(key))[0]) for key in keys]
    grid = draw(3, keys[:, None], np.arange(2)[None])
    assert grid.shape == (4, 2)
    assert int(grid[2, 1]) == int(draw(3, 2**40, 1)[0])


def chi_square(values: np.ndarray, n_bins: int) -> float:
    expected = len(values) / n_bins
    return float(((np.bincount(values, minlength=n_bins) - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("keys", [np.arange(20_000), np.arange(20_000) << 16, np.arange(20_000) * 2**32])
def test_draws_are_uniform(keys: np.ndarray) -> None:
    """Chi-square over 16 or 100 bins of the high, middle and low bits; 5 standard deviations allowed."""
    bits = draw(11, keys)
    for values, n in (
        (below(bits, 100), 100),
        ((bits >> np.uint64(30)) & np.uint64(15), 16),
        (bits & np.uint64(15), 16),
    ):
        statistic = chi_square(np.asarray(values).astype(np.int64), n)
        assert abs(statistic - (n - 1)) < 5 * (2 * (n - 1)) ** 0.5
    shares = uniform(bits)
    assert shares.min() >= 0 and shares.max() < 1
    assert abs(shares.mean() - 0.5) < 5 / (12 * len(keys)) ** 0.5


def test_neighbouring_keys_and_seeds_are_unrelated() -> None:
    a, b = uniform(draw(1, np.arange(20_000))), uniform(draw(2, np.arange(20_000)))
    for one, other in ((a, b), (a[:-1], a[1:])):
        assert abs(float(np.corrcoef(one, other)[0, 1])) < 5 / len(one) ** 0.5


def test_below_stays_below_its_limits() -> None:
    limits = np.array([1, 2, 3, 1000, 2**31 - 1])
    top = np.full(5, np.uint64(2**64 - 1))
    assert below(top, limits).tolist() == (limits - 1).tolist()
    assert below(np.zeros(5, np.uint64), limits).tolist() == [0] * 5
    assert below(top, limits).dtype == np.int64
    assert uniform(top).max() < 1


def test_permutation_holds_each_number_once_and_moves_them() -> None:
    order = permutation(9, 1000)
    assert sorted(order.tolist()) == list(range(1000))
    assert not np.array_equal(order, permutation(10, 1000))
    assert np.array_equal(order, permutation(9, 1000))
    assert abs(float(np.corrcoef(order, np.arange(1000))[0, 1])) < 0.2
    assert permutation(9, 0).tolist() == []
    # Each number is equally likely to come first.
    firsts = np.array([permutation(seed, 5)[0] for seed in range(4000)])
    assert chi_square(firsts, 5) < 4 + 5 * 8**0.5
