"""Bootstrap: confidence intervals over seeds, and paired resamples of several systems."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int

CONFIDENCE = 0.95


def mean_interval(values: Sequence[float]) -> tuple[float, float, float | None]:
    """Mean, standard deviation and half width of the 95 % confidence interval of the mean, over runs (seeds).

    Student's t interval, mean ± t sd / sqrt(n) with n - 1 degrees of freedom; the standard deviation divides by
    n - 1. A single value has standard deviation 0 and no interval (None).
    """
    if not len(values):
        raise ValueError("expected at least one value, found none")
    array = np.asarray(values, np.float64)
    _check_finite("values", array)
    n = len(array)
    if n == 1:
        return float(array[0]), 0.0, None
    sd = float(array.std(ddof=1))
    from scipy.special import stdtrit  # imported here: slow to import, and predictions do not need it

    t = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))
    return float(array.mean()), sd, t * sd / math.sqrt(n)


def paired_bootstrap(
    score: Callable[[Int[np.ndarray, " n"]], Sequence[float]], n: int, seed: int, draws: int = 1000
) -> Float[np.ndarray, "draws systems"]:
    """Scores of several systems on ``draws`` resamples of the same ``n`` examples, with replacement.

    ``score(numbers)`` returns every system's score on the examples with these indices, so differences between columns
    are paired. Source: Efron and Tibshirani 1993, §8.3.
    """
    if n < 1 or draws < 1:
        raise ValueError(f"n is {n}, draws is {draws}; expected at least 1 of each")
    rng = np.random.default_rng(seed)
    return np.array([score(rng.integers(0, n, n)) for _ in range(draws)], np.float64)


def sign_test(better: int, worse: int) -> float:
    """The exact two-sided p-value of paired outcomes that differ; 1 if none does. Source: McNemar 1947; binomial test.

    With few differences a bootstrap interval is too narrow: it never contains 0 if all differences have one sign.
    """
    from scipy.special import bdtr  # imported here: see mean_interval

    return min(1.0, 2 * float(bdtr(min(better, worse), better + worse, 0.5)))


def percentile_interval(values: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """The 95 % interval of bootstrap values, ignoring those that are not finite."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return math.nan, math.nan
    low, high = np.quantile(finite, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _check_finite(name: str, values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueError(f"number {at} of the {name} is {values[at]}; expected finite numbers")
