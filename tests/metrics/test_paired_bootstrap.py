"""The paired bootstrap over examples."""

import numpy as np
import pytest

from firth.metrics.bootstrap import paired_bootstrap, percentile_interval


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
