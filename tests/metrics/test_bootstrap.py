"""Intervals over seeds and the paired test: by hand, next to SciPy, and where they must not be fooled."""

import itertools

import numpy as np
import pytest
from scipy import stats

from firth.metrics import bootstrap
from firth.metrics.bootstrap import mean_interval, paired_permutation_p


def test_mean_interval_by_hand() -> None:
    # Student's t with 2 degrees of freedom: 4.302653 of the tables.
    mean, sd, half_width = mean_interval([1.0, 2.0, 3.0])
    assert (mean, sd) == (2.0, 1.0)
    assert half_width == pytest.approx(4.302653 / np.sqrt(3), rel=1e-6)


def test_mean_interval_equals_scipy() -> None:
    values = [0.81, 0.79, 0.835, 0.8, 0.77]
    mean, _, half_width = mean_interval(values)
    low, high = stats.t.interval(0.95, 4, loc=np.mean(values), scale=stats.sem(values))
    assert half_width is not None
    assert (mean - half_width, mean + half_width) == pytest.approx((low, high))


def test_one_value_has_no_interval() -> None:
    assert mean_interval([0.7]) == (0.7, 0.0, None)
    assert mean_interval([0.5, 0.5]) == (0.5, 0.0, 0.0)


@pytest.mark.parametrize("values", [[], np.array([])])
def test_no_values_are_an_error(values: list[float]) -> None:
    with pytest.raises(ValueError, match="at least one value"):
        mean_interval(values)


def test_values_that_are_no_numbers_are_an_error() -> None:
    with pytest.raises(ValueError, match="number 1 of the values is nan"):
        mean_interval([0.5, float("nan")])


def exact_p(differences: np.ndarray) -> float:
    signs = np.array(list(itertools.product([-1, 1], repeat=len(differences))))
    return float((np.abs(signs @ differences) >= abs(differences.sum()) - 1e-12).mean())


@pytest.mark.parametrize("differences", [[1, 1, 1, 1, 1, 1], [1, 1, 1, -1, 0.5, 2], [0.1, 0.2, 0.3, -0.1, 0.1, 0.7]])
def test_p_is_near_that_of_all_swaps(differences: list[float]) -> None:
    a = np.array(differences)
    found = paired_permutation_p(a, np.zeros(6), seed=0)
    assert found == pytest.approx(exact_p(a), abs=4 * np.sqrt(0.25 / 10_000))


def test_systems_that_do_alike_have_p_one() -> None:
    scores = np.array([0.0, 1.0, 1.0])
    assert paired_permutation_p(scores, scores, seed=0) == 1.0
    assert paired_permutation_p(np.array([1.0, 0.0]), np.array([0.0, 1.0]), seed=0) == 1.0


def test_a_clear_difference_is_clear_and_never_impossible() -> None:
    ones, zeros = np.ones(100), np.zeros(100)
    assert paired_permutation_p(ones, zeros, seed=0) == paired_permutation_p(zeros, ones, seed=0) == 1 / 10_001
    assert paired_permutation_p(ones, zeros, seed=0, draws=9) == 0.1


def test_examples_on_which_both_do_alike_do_not_count() -> None:
    a, b = np.array([1.0, 1, 1, 0, 0.5]), np.array([0.0, 0, 0, 1, 0])
    padded = np.concatenate([a, np.ones(500)]), np.concatenate([b, np.ones(500)])
    assert paired_permutation_p(*padded, seed=3) == paired_permutation_p(a, b, seed=3)


def test_ties_count_in_spite_of_rounding() -> None:
    # Every draw has a sum of size 0.3 or more: 0.1 + 0.2 is a hair more than 0.3.
    assert paired_permutation_p(np.array([0.3]), np.array([0.0]), seed=0) == 1.0
    assert paired_permutation_p(np.array([0.1, 0.2, 0.3]), np.zeros(3), seed=0) == pytest.approx(0.25, abs=0.02)


def test_p_depends_on_the_seed_alone() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random(50) + 0.1, rng.random(50)
    first = paired_permutation_p(a, b, seed=1)
    assert first == paired_permutation_p(a, b, seed=1)
    assert first != paired_permutation_p(a, b, seed=2)


def test_equal_systems_are_seldom_told_apart() -> None:
    rng = np.random.default_rng(0)
    found = [paired_permutation_p(*rng.standard_normal((2, 40)), seed=i, draws=200) for i in range(200)]
    assert np.mean(np.array(found) <= 0.05) == pytest.approx(0.05, abs=0.04)


def test_many_examples_are_drawn_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "BLOCK", 25)
    a = np.array([1.0, 1, 1, -1, 0.5, 2])
    # Four rows at once, and two at last.
    found = paired_permutation_p(a, np.zeros(6), seed=0, draws=4002)
    assert found == pytest.approx(exact_p(a), abs=0.03)


def test_scores_that_do_not_match_are_an_error() -> None:
    for a, b in [([1.0], [1.0, 2.0]), ([], []), ([[1.0]], [[1.0]])]:
        with pytest.raises(ValueError, match="as many scores of a as of b"):
            paired_permutation_p(np.array(a), np.array(b), seed=0)
    with pytest.raises(ValueError, match="number 0 of the differences is nan"):
        paired_permutation_p(np.array([np.nan]), np.array([1.0]), seed=0)
    with pytest.raises(ValueError, match="draws is 0"):
        paired_permutation_p(np.ones(2), np.zeros(2), seed=0, draws=0)
