"""Bootstrap: confidence intervals over seeds, and paired tests of two systems."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int

CONFIDENCE = 0.95
# Signs drawn at once, so that any number of examples and draws fits into memory.
BLOCK = 2**22


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
    from scipy.special import stdtrit  # not above: predictions need none, and it takes long to import

    t = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))
    return float(array.mean()), sd, t * sd / math.sqrt(n)


def paired_permutation_p(
    a: Float[np.ndarray, " n"], b: Float[np.ndarray, " n"], seed: int, draws: int = 10_000
) -> float:
    """Two-sided p value of the hypothesis that systems a and b are equally good, from their scores per example.

    If they are, swapping the two scores of any example changes nothing: p is the share of random swaps whose mean
    difference is at least as large as the real one, the real one counted too, so that p is never 0.
    Source: Fisher's randomisation test for matched pairs; Phipson and Smyth 2010 for counting the real one.
    """
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise ValueError(f"expected as many scores of a as of b, at least one: got {a.shape}, {b.shape}")
    if draws < 1:
        raise ValueError(f"draws is {draws}; expected at least 1")
    differences = a.astype(np.float64) - b
    _check_finite("differences", differences)
    # Examples on which both do alike cannot tell them apart.
    differences = differences[differences != 0]
    if not len(differences):
        return 1.0
    # Sums of the same numbers in another order differ by rounding; they are ties.
    observed = abs(differences.sum()) - 1e-9 * np.abs(differences).sum()
    rng = np.random.default_rng(seed)
    rows = max(1, BLOCK // len(differences))
    n_as_large = 0
    for start in range(0, draws, rows):
        swapped = rng.integers(0, 2, (min(rows, draws - start), len(differences)), np.int8)
        sums = differences.sum() - 2 * (swapped @ differences)
        n_as_large += int((np.abs(sums) >= observed).sum())
    return (1 + n_as_large) / (1 + draws)


def paired_bootstrap(
    score: Callable[[Int[np.ndarray, " n"]], Sequence[float]], n: int, seed: int, draws: int = 1000
) -> Float[np.ndarray, "draws systems"]:
    """Scores of several systems on ``draws`` resamples of the same ``n`` examples, with replacement.

    ``score(numbers)`` gives every system's score on the examples with these numbers, so that differences between
    columns are paired. Source: Efron and Tibshirani 1993, §8.3.
    """
    if n < 1 or draws < 1:
        raise ValueError(f"n is {n}, draws is {draws}; expected at least 1 of each")
    rng = np.random.default_rng(seed)
    return np.array([score(rng.integers(0, n, n)) for _ in range(draws)], np.float64)


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
