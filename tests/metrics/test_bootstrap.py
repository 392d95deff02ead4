"""Confidence intervals over seeds: by hand, against SciPy, and for edge cases."""

import numpy as np
import pytest
from scipy import stats

from firth.metrics.bootstrap import mean_interval, paired_bootstrap, percentile_interval, sign_test


def test_mean_interval_by_hand() -> None:
    # Student's t with 2 degrees of freedom: 4.302653 from the tables.
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


@pytest.mark.parametrize(("better", "worse"), [(5, 0), (6, 0), (0, 6), (10, 3), (4, 4), (300, 250)])
def test_the_sign_test_equals_scipy(better: int, worse: int) -> None:
    assert sign_test(better, worse) == pytest.approx(stats.binomtest(better, better + worse).pvalue)
    assert sign_test(0, 0) == 1


def test_differences_are_paired_and_intervals_are_those_of_the_mean() -> None:
    rng = np.random.default_rng(1)
    a = rng.normal(0, 1, 400)
    b = a + 0.1
    draws = paired_bootstrap(lambda i: (a[i].mean(), b[i].mean()), len(a), seed=0, draws=800)
    assert draws.shape == (800, 2)
    # b is better by the same amount on every example, whatever is sampled.
    assert np.allclose(draws[:, 1] - draws[:, 0], 0.1)
    low, high = percentile_interval(draws[:, 0])
    half = 1.96 * a.std() / np.sqrt(len(a))
    assert low == pytest.approx(a.mean() - half, abs=0.015) and high == pytest.approx(a.mean() + half, abs=0.015)
    again = paired_bootstrap(lambda i: (a[i].mean(), b[i].mean()), len(a), seed=0, draws=800)
    assert np.array_equal(draws, again)


def test_what_cannot_be_resampled_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at least 1"):
        paired_bootstrap(lambda i: (0.0,), 0, seed=0)
    assert all(np.isnan(percentile_interval(np.array([np.nan]))))
