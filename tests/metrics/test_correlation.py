"""Pearson and Spearman correlation, by hand, by their properties, and against SciPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from firth.metrics.correlation import pearson, spearman

numbers = st.integers(-50, 50).map(float)
pairs = st.lists(st.tuples(numbers, numbers), min_size=2, max_size=30)


def test_pearson_by_hand() -> None:
    # Deviations from the mean: -1 0 1 and -1 1 0: 1 / sqrt(2 * 2).
    assert pearson(np.array([1.0, 2.0, 3.0]), np.array([4.0, 6.0, 5.0])) == pytest.approx(0.5)


def test_spearman_knows_order_alone() -> None:
    gold = np.array([1.0, 2.0, 3.0, 4.0])
    assert spearman(gold, np.exp(10 * gold)) == pytest.approx(1.0)
    assert spearman(gold, -(gold**3)) == pytest.approx(-1.0)
    assert pearson(gold, np.exp(10 * gold)) < 0.8


def test_spearman_gives_ties_their_mean_rank() -> None:
    # Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5).
    assert spearman(np.array([0.0, 5.0, 5.0, 9.0]), np.array([1.0, 2.0, 3.0, 4.0])) == pytest.approx(np.sqrt(0.9))


@given(pairs)
def test_equal_to_scipy(values: list[tuple[float, float]]) -> None:
    gold, predicted = np.array(values).T
    if len(set(gold)) == 1 or len(set(predicted)) == 1:
        assert pearson(gold, predicted) == spearman(gold, predicted) == 0.0
    else:
        assert pearson(gold, predicted) == pytest.approx(stats.pearsonr(gold, predicted)[0], abs=1e-9)
        assert spearman(gold, predicted) == pytest.approx(stats.spearmanr(gold, predicted)[0], abs=1e-9)


@pytest.mark.parametrize("constant", [[0.1] * 7, [0.0] * 7, [1e300] * 7])
def test_constant_predictions_have_correlation_zero(constant: list[float]) -> None:
    rising = np.arange(7.0)
    for score in (pearson, spearman):
        assert score(rising, np.array(constant)) == score(np.array(constant), rising) == 0.0


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_very_small_and_very_large_numbers(scale: float) -> None:
    gold = np.array([1.0, 2.0, 3.0])
    assert pearson(gold, scale * np.array([4.0, 6.0, 5.0])) == pytest.approx(0.5)


def test_numbers_that_differ_in_the_last_digit_only() -> None:
    assert pearson(np.array([0.0, 1.0]), np.array([1.0, np.nextafter(1.0, 2.0)])) == pytest.approx(1.0)


def test_float32_and_integers_are_welcome() -> None:
    assert pearson(np.array([1, 2, 3]), np.array([4, 6, 5], np.float32)) == pytest.approx(0.5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_are_an_error(bad: float) -> None:
    good = np.arange(3.0)
    for score in (pearson, spearman):
        with pytest.raises(ValueError, match=f"predicted value 1 is {bad}; expected finite"):
            score(good, np.array([0.0, bad, bad]))
        with pytest.raises(ValueError, match=f"gold value 2 is {bad}"):
            score(np.array([0.0, 1.0, bad]), good)


@pytest.mark.parametrize(("gold", "predicted"), [([], []), ([1.0], [1.0, 2.0]), ([[1.0, 2.0]], [[1.0, 2.0]])])
def test_unequal_or_no_values_are_an_error(gold: list[float], predicted: list[float]) -> None:
    for score in (pearson, spearman):
        with pytest.raises(ValueError, match="as many predictions as gold values"):
            score(np.array(gold), np.array(predicted))
