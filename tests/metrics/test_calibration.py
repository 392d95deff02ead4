"""Calibration: reliability tables by hand, known temperatures, and edge cases."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firth.metrics.calibration import (
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
    ReliabilityBin,
    careful_temperature,
    cross_fitted,
    expected_calibration_error,
    reliability,
    sigmoid,
    softmax,
)


def drawn(n: int, n_classes: int, temperature: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits whose true temperature is known: gold is sampled from softmax(logits / temperature)."""
    rng = np.random.default_rng(seed)
    logits = 3 * rng.standard_normal((n, n_classes))
    thresholds = softmax(logits / temperature).cumsum(-1)
    return logits, (rng.random((n, 1)) > thresholds[:, :-1]).sum(-1)


def negative_log_likelihood(probabilities: np.ndarray, gold: np.ndarray) -> float:
    return float(-np.log(probabilities[np.arange(len(gold)), gold]).mean())


def test_softmax_by_hand() -> None:
    logits = np.log(np.array([[1.0, 2.0, 5.0]], np.float32))
    assert softmax(logits) == pytest.approx(np.array([[0.125, 0.25, 0.625]]))
    assert softmax(logits).dtype == np.float64


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5))
def test_softmax_of_any_finite_logits_sums_to_one(row: list[float]) -> None:
    probabilities = softmax(np.array([row]))
    assert probabilities.sum() == pytest.approx(1.0)
    assert probabilities[0, np.argmax(row)] == probabilities.max()


def test_sigmoid_of_any_logits() -> None:
    found = sigmoid(np.array([[-1e30, -2.0, 0.0, 2.0, 1e30]], np.float32))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, [[0.0, 0.1192029220, 0.5, 0.8807970780, 1.0]], atol=1e-9)


def test_reliability_by_hand() -> None:
    # Confidence 0.6 correct and 0.75 wrong (bin 3 of 4), 1.0 correct (bin 4 of 4).
    probabilities = np.array([[0.6, 0.4], [0.25, 0.75], [1.0, 0.0]])
    rows = reliability(probabilities, np.array([0, 0, 0]), n_bins=4)
    assert rows == [ReliabilityBin(pytest.approx(0.675), 0.5, 2), ReliabilityBin(1.0, 1.0, 1)]
    error = expected_calibration_error(probabilities, np.array([0, 0, 0]), n_bins=4)
    assert error == pytest.approx((2 * 0.175 + 0) / 3)


def test_a_confidence_on_a_border_belongs_below() -> None:
    probabilities = np.array([[0.5, 0.5], [0.51, 0.49]])
    assert [row.count for row in reliability(probabilities, np.array([0, 0]), n_bins=2)] == [1, 1]


def test_a_confidence_that_rounding_made_larger_than_one() -> None:
    assert [row.count for row in reliability(np.array([[1.0], [1 + 1e-9]]), np.array([0, 0]))] == [2]


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 20), st.integers(0, 99))
def test_reliability_counts_every_example(n: int, n_classes: int, n_bins: int, seed: int) -> None:
    logits, gold = drawn(n, n_classes, 1.0, seed)
    probabilities = softmax(logits)
    rows = reliability(probabilities, gold, n_bins)
    assert sum(row.count for row in rows) == n
    assert sum(row.count * row.accuracy for row in rows) == pytest.approx((probabilities.argmax(-1) == gold).sum())
    assert [row.confidence for row in rows] == sorted(row.confidence for row in rows)
    assert 0 <= expected_calibration_error(probabilities, gold, n_bins) <= 1


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_the_temperature_that_made_the_data_is_found(temperature: float) -> None:
    logits, gold = drawn(20_000, 3, temperature)
    assert careful_temperature(logits, gold) == pytest.approx(temperature, rel=0.05)


def test_the_fitted_temperature_is_the_best_of_a_grid() -> None:
    logits, gold = drawn(20_000, 4, 2.5, seed=3)
    fitted = careful_temperature(logits, gold)
    best = negative_log_likelihood(softmax(logits / fitted), gold)
    for temperature in np.geomspace(MIN_TEMPERATURE, MAX_TEMPERATURE, 40):
        assert best <= negative_log_likelihood(softmax(logits / temperature), gold) + 1e-9


def test_a_fitted_temperature_mends_overconfidence() -> None:
    logits, gold = drawn(5000, 3, 3.0)
    before = expected_calibration_error(softmax(logits), gold)
    after = expected_calibration_error(cross_fitted(logits, gold), gold)
    assert before > 0.2
    assert after < 0.03


def test_many_logits_that_are_all_right_or_all_wrong_end_at_the_bounds() -> None:
    n = 20_000
    logits, shrunk = np.tile([0.01, 0.0], (n, 1)), n / (n + 30)  # towards 1, as if by 30 more examples
    assert careful_temperature(logits, np.zeros(n, int)) == pytest.approx(MIN_TEMPERATURE**shrunk, rel=1e-3)
    assert careful_temperature(100 * logits, np.ones(n, int)) == pytest.approx(MAX_TEMPERATURE**shrunk, rel=1e-3)


@pytest.mark.parametrize("n", [1, 10, 50, 500])
@pytest.mark.parametrize("margin", [1.0, 9.0, 30.0])
def test_right_answers_promise_no_more_than_their_number(n: int, margin: float) -> None:
    # n correct answers cannot show an error rate below about 1 in n, however confident the model is.
    logits, gold = np.tile([margin, 0.0], (n, 1)), np.zeros(n, int)
    careful = careful_temperature(logits, gold)
    confidence = softmax(logits / careful)[0, 0]
    assert confidence <= max(softmax(logits)[0, 0], 1 - 1 / (n + 2))
    if n == 500:
        assert confidence == pytest.approx(1 - 1 / (n + 2), abs=0.002)


def test_few_examples_move_the_temperature_little_and_many_find_it() -> None:
    logits, gold = drawn(20_000, 3, 4.0)
    assert careful_temperature(logits, gold) == pytest.approx(4.0, rel=0.05)
    assert 0.7 < careful_temperature(logits[:5], gold[:5]) < 2.0
    # A padded choice, its logit far below the others, is never the runner-up.
    padded = np.pad(logits, ((0, 0), (0, 1)), constant_values=-1e4)
    assert careful_temperature(padded, gold) == pytest.approx(careful_temperature(logits, gold), rel=1e-3)


def test_one_class_or_no_difference_keeps_temperature_one() -> None:
    assert careful_temperature(np.array([[5.0], [-3.0]]), np.array([0, 0])) == 1.0
    assert careful_temperature(np.zeros((3, 2)), np.array([0, 1, 1])) == 1.0


@pytest.mark.parametrize("size", [1e4, 1e200, 1.7e308])
def test_huge_logits(size: float) -> None:
    logits, gold = np.array([[size, -size], [-size, size], [0.0, size]]), np.array([0, 1, 0])
    assert MIN_TEMPERATURE <= careful_temperature(logits, gold) <= MAX_TEMPERATURE
    assert np.isfinite(cross_fitted(logits, gold)).all()


def test_cross_fitting_uses_the_other_folds_only() -> None:
    logits, gold = drawn(40, 3, 2.0)
    changed = gold.copy()
    changed[7] = (gold[7] + 1) % 3
    before, after = cross_fitted(logits, gold), cross_fitted(logits, changed)
    # The temperature of example 7 does not depend on its own label; those of the other folds do.
    assert (before[7] == after[7]).all()
    assert (before != after).any(-1).sum() == 32


def test_cross_fitting_leaves_the_order_of_classes() -> None:
    logits, gold = drawn(40, 3, 2.0)
    assert (cross_fitted(logits, gold).argsort(-1) == logits.argsort(-1)).all()
    assert (cross_fitted(logits, gold) == cross_fitted(logits, gold)).all()
    assert (cross_fitted(logits, gold, seed=1) != cross_fitted(logits, gold)).any()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_fewer_examples_than_folds(n: int) -> None:
    logits, gold = drawn(n, 3, 1.0)
    probabilities = cross_fitted(logits, gold)
    assert probabilities.sum(-1) == pytest.approx(np.ones(n))
    if n == 1:
        assert (probabilities == softmax(logits)).all()


@pytest.mark.parametrize("score", [expected_calibration_error, reliability, careful_temperature, cross_fitted])
def test_bad_input_is_an_error(score: object) -> None:
    good = np.full((2, 2), 0.5)
    for table, gold, message in [
        (good, np.array([0]), "one gold class for each row"),
        (good, np.array([0, 2]), "gold class 2 is not one of the 2 classes"),
        (good, np.array([-1, 0]), "gold class -1"),
        (np.zeros((0, 2)), np.zeros(0, int), "at least one of each"),
        (np.zeros(2), np.zeros(2, int), r"shape \(examples, classes\)"),
        (np.array([[0.5, 0.5], [np.nan, 0.5]]), np.array([0, 0]), "of row 1 are not all finite"),
    ]:
        with pytest.raises(ValueError, match=message):
            score(table, gold)  # type: ignore[operator]


def test_bad_settings_are_an_error() -> None:
    table, gold = np.full((2, 2), 0.5), np.array([0, 1])
    with pytest.raises(ValueError, match="n_bins is 0"):
        reliability(table, gold, n_bins=0)
    with pytest.raises(ValueError, match="folds is 1"):
        cross_fitted(table, gold, folds=1)
    with pytest.raises(ValueError, match="probabilities from 0 to 1"):
        reliability(np.array([[2.0, -1.0]]), np.array([0]))
    with pytest.raises(ValueError, match="logits of row 0"):
        softmax(np.array([[np.inf, 0.0]]))
