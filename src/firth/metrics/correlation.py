"""Pearson and Spearman correlation."""

import numpy as np
from jaxtyping import Float


def pearson(gold: Float[np.ndarray, " n"], predicted: Float[np.ndarray, " n"]) -> float:
    """Pearson's correlation, -1 to 1. GLUE reports it for STS-B.

    Differs: 0 where either side is constant (a single pair included), where the textbook has no value and
    scipy.stats.pearsonr gives NaN, so that a model that has learned nothing has a score.
    """
    gold, predicted = _checked(gold, predicted)
    if _is_constant(gold) or _is_constant(predicted):
        return 0.0
    return float(np.clip(_unit(gold) @ _unit(predicted), -1.0, 1.0))


def spearman(gold: Float[np.ndarray, " n"], predicted: Float[np.ndarray, " n"]) -> float:
    """Spearman's correlation, -1 to 1: Pearson's correlation of the ranks; equal values share their mean rank.

    Source: scipy.stats.spearmanr. Differs: 0 where either side is constant, see ``pearson``.
    """
    gold, predicted = _checked(gold, predicted)
    return pearson(_ranks(gold), _ranks(predicted))


def _ranks(values: np.ndarray) -> np.ndarray:
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    # The last of equal values has the rank cumsum, the first cumsum - counts + 1.
    return (counts.cumsum() - (counts - 1) / 2)[index]


def _unit(values: np.ndarray) -> np.ndarray:
    """The deviations from the mean, scaled to length 1."""
    # Scaled first: squares of very large or very small numbers leave the range of floats.
    values = values / np.abs(values).max()
    deviations = values - values.mean()
    return deviations / np.linalg.norm(deviations)


def _is_constant(values: np.ndarray) -> bool:
    # Compares values: rounding keeps their deviations from the mean from being exactly 0.
    return bool((values == values[0]).all())


def _checked(gold: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if gold.shape != predicted.shape or gold.ndim != 1 or not len(gold):
        raise ValueError(
            f"expected as many predictions as gold values, at least one: got {gold.shape}, {predicted.shape}"
        )
    gold, predicted = gold.astype(np.float64), predicted.astype(np.float64)
    for name, values in (("gold", gold), ("predicted", predicted)):
        if not np.isfinite(values).all():
            at = int(np.flatnonzero(~np.isfinite(values))[0])
            raise ValueError(f"{name} value {at} is {values[at]}; expected finite numbers")
    return gold, predicted
