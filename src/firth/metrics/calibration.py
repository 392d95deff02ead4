"""Calibration error of a classifier, and the temperature that reduces it."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0
# A fitted temperature is shrunk towards 1 as if by this many further examples.
_DOUBT = 30
_THRESHOLDS = tuple(round(0.05 * i, 2) for i in range(1, 20))


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """The predictions of one range of confidence; well calibrated means ``confidence`` equals ``accuracy``."""

    confidence: float
    accuracy: float
    count: int


def softmax(logits: Float[np.ndarray, "n K"]) -> Float[np.ndarray, "n K"]:
    """Probabilities of the classes, in float64; safe for logits of any finite size."""
    _check_table("logits", logits)
    weights = np.exp(_below_largest(logits))
    return weights / weights.sum(-1, keepdims=True)


def sigmoid(logits: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Probabilities of labels that do not exclude each other, in float64; safe for logits of any size."""
    return 1 / (1 + np.exp(-np.clip(logits.astype(np.float64), -500, 500)))


def reliability(
    probabilities: Float[np.ndarray, "n K"], gold: Int[np.ndarray, " n"], n_bins: int = 15
) -> list[ReliabilityBin]:
    """The bins of a reliability diagram: equal ranges of confidence, lowest first, without empty ones.

    Confidence is the probability of the most probable class; range m of M holds (m-1)/M < confidence <= m/M.
    Source: Guo et al. 2017, §2.
    """
    _check("probabilities", probabilities, gold)
    if n_bins < 1:
        raise ValueError(f"n_bins is {n_bins}; expected at least 1")
    if probabilities.min() < 0 or probabilities.max() > 1 + 1e-6:
        raise ValueError("expected probabilities from 0 to 1; softmax makes them from logits")
    confidence = probabilities.max(-1)
    right = probabilities.argmax(-1) == gold
    # Rounding may leave a probability slightly above 1.
    number = np.clip(np.ceil(confidence * n_bins).astype(int) - 1, 0, n_bins - 1)
    chosen = (number == i for i in np.unique(number))
    return [ReliabilityBin(float(confidence[at].mean()), float(right[at].mean()), int(at.sum())) for at in chosen]


def expected_calibration_error(
    probabilities: Float[np.ndarray, "n K"], gold: Int[np.ndarray, " n"], n_bins: int = 15
) -> float:
    """Mean distance between accuracy and confidence over the bins of ``reliability``, weighted by count, 0 to 1.

    Source: Guo et al. 2017, §2.
    """
    gaps = [abs(row.accuracy - row.confidence) * row.count for row in reliability(probabilities, gold, n_bins)]
    return sum(gaps) / len(gold)


def careful_temperature(logits: Float[np.ndarray, "n K"], gold: Int[np.ndarray, " n"]) -> float:
    """The temperature T, 0.05 to 20, for which softmax(logits / T) gives the gold classes the highest probability.

    Nothing is assumed that a few examples cannot show, such as that no prediction is ever wrong: the runner-up of each
    gold class is correct with probability 1 / (n + 2), since n correct predictions in a row promise no better; and T is
    shrunk towards 1, as if by 30 more examples. It is 1 if no other value is better, as with a single class.

    Source: Guo et al. 2017, §4.2 (temperature scaling); Platt 1999, §2.2 (targets of n + 1 in n + 2).
    """
    _check("logits", logits, gold)
    fitted = _best_temperature(_below_largest(logits), gold, doubt=1 / (len(gold) + 2))
    return fitted ** (len(gold) / (len(gold) + _DOUBT))


def _best_temperature(below: np.ndarray, gold: np.ndarray, doubt: float) -> float:
    bounds = (math.log(MIN_TEMPERATURE), math.log(MAX_TEMPERATURE))
    # Convex in 1/T, so it has a single minimum in log T; there both bounds are equally far from T = 1.
    # Imported here: the import takes longer than labelling one text, and only training fits a temperature.
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(lambda log_t: _loss(below, gold, math.exp(log_t), doubt), bounds=bounds, method="bounded")
    return math.exp(found.x) if found.fun < _loss(below, gold, 1.0, doubt) else 1.0


def best_threshold(shares: Float[np.ndarray, "n K"], gold: Bool[np.ndarray, "n K"]) -> tuple[float, float]:
    """The probability threshold of labels with the best micro F1, 0.05 to 0.95, and that F1.

    Ties go to the threshold nearest to 0.5.
    """
    found = {}
    for threshold in _THRESHOLDS:
        holds = shares >= threshold
        found[threshold] = 2 * int((gold & holds).sum()) / max(int(gold.sum()) + int(holds.sum()), 1)
    best = max(_THRESHOLDS, key=lambda t: (found[t], -abs(t - 0.5)))
    return best, found[best]


def cross_fitted(
    logits: Float[np.ndarray, "n K"], gold: Int[np.ndarray, " n"], folds: int = 5, seed: int = 0
) -> Float[np.ndarray, "n K"]:
    """Calibrated probabilities of a labelled set, each example's temperature fitted on the other folds.

    Their calibration error is therefore that of data the temperature has not seen. Folds are assigned at random by
    ``seed``; there are at most as many as examples, and a single example keeps temperature 1.
    """
    _check("logits", logits, gold)
    if folds < 2:
        raise ValueError(f"folds is {folds}; expected at least 2")
    probabilities = softmax(logits)
    n = len(gold)
    if n == 1:
        return probabilities
    for held_out in np.array_split(np.random.default_rng(seed).permutation(n), min(folds, n)):
        others = np.setdiff1d(np.arange(n), held_out)
        temperature = careful_temperature(logits[others], gold[others])
        weights = np.exp(_below_largest(logits[held_out]) / temperature)
        probabilities[held_out] = weights / weights.sum(-1, keepdims=True)
    return probabilities


def _below_largest(logits: np.ndarray) -> np.ndarray:
    """Logits minus the largest of their row, for numerical stability."""
    logits = logits.astype(np.float64)
    with np.errstate(over="ignore"):
        return np.maximum(logits - logits.max(-1, keepdims=True), -1e100)


def _loss(below: np.ndarray, gold: np.ndarray, temperature: float, doubt: float) -> float:
    """Mean negative log likelihood, where the runner-up of each gold class is correct with probability ``doubt``."""
    scaled = below / temperature
    rows = np.arange(len(gold))
    right = scaled[rows, gold]
    if scaled.shape[1] > 1:
        others = scaled.copy()
        others[rows, gold] = -np.inf
        right = (1 - doubt) * right + doubt * others.max(-1)
    return float(np.mean(np.log(np.exp(scaled).sum(-1)) - right))


def _check(name: str, table: np.ndarray, gold: np.ndarray) -> None:
    _check_table(name, table)
    if gold.shape != table.shape[:1]:
        raise ValueError(f"expected one gold class for each row: got {name} {table.shape} and gold {gold.shape}")
    if gold.min() < 0 or gold.max() >= table.shape[1]:
        wrong = gold[(gold < 0) | (gold >= table.shape[1])][0]
        raise ValueError(f"gold class {wrong} is not one of the {table.shape[1]} classes, 0 to {table.shape[1] - 1}")


def _check_table(name: str, table: np.ndarray) -> None:
    if table.ndim != 2 or not table.size:
        raise ValueError(f"expected {name} of shape (examples, classes), at least one of each: got {table.shape}")
    if not np.isfinite(table).all():
        raise ValueError(f"{name} of row {np.argwhere(~np.isfinite(table))[0][0]} are not all finite numbers")
