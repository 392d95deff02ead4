"""Accuracy, the variants of F1 and Matthews correlation, by hand and against scikit-learn."""

from collections.abc import Callable

import numpy as np
import pytest

from firth.metrics.classification import accuracy, binary_f1, macro_f1, matthews, multilabel_scores

Score = Callable[[np.ndarray, np.ndarray], float]


def test_accuracy_by_hand() -> None:
    assert accuracy(np.array([0, 1, 2, 2]), np.array([0, 1, 1, 2])) == 0.75


def test_macro_f1_by_hand() -> None:
    # F1 of class 0: 1. Class 1: 1 TP, 1 FP: 2/3. Class 2: 1 TP, 1 FN: 2/3.
    assert macro_f1(np.array([0, 1, 2, 2]), np.array([0, 1, 1, 2])) == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)


def test_a_class_that_only_one_side_has_counts_as_zero() -> None:
    assert macro_f1(np.array([0, 0]), np.array([0, 3])) == pytest.approx((2 / 3 + 0) / 2)


def test_binary_f1_is_that_of_one_class() -> None:
    gold, predicted = np.array([1, 1, 1, 0, 0]), np.array([1, 1, 0, 1, 0])
    assert binary_f1(gold, predicted) == pytest.approx(4 / 6)
    assert binary_f1(gold, predicted, positive=0) == pytest.approx(2 / 4)


def test_binary_f1_of_a_class_that_nobody_has_is_zero() -> None:
    assert binary_f1(np.array([0, 0]), np.array([0, 0])) == 0.0


def test_matthews_by_hand() -> None:
    # TP 3, TN 2, FP 1, FN 2: (6 - 2) / sqrt(4 * 5 * 3 * 4).
    gold, predicted = np.array([1, 1, 1, 1, 1, 0, 0, 0]), np.array([1, 1, 1, 0, 0, 1, 0, 0])
    assert matthews(gold, predicted) == pytest.approx(4 / np.sqrt(240))


def test_matthews_of_right_and_wrong() -> None:
    gold = np.array([0, 1, 1, 0, 1])
    assert matthews(gold, gold) == 1.0
    assert matthews(gold, 1 - gold) == -1.0


def test_matthews_is_zero_where_one_side_has_a_single_class() -> None:
    mixed, ones = np.array([0, 1, 1]), np.array([1, 1, 1])
    assert matthews(mixed, ones) == matthews(ones, mixed) == matthews(ones, ones) == 0.0


def test_matthews_is_exact_for_large_counts() -> None:
    # TP = TN = 3n, FP = FN = n: 8 / 16 for any n; the product of the four sums is 2^76.
    n = 2**17
    gold = np.repeat([1, 0, 0, 1], [3 * n, 3 * n, n, n])
    predicted = np.repeat([1, 0, 1, 0], [3 * n, 3 * n, n, n])
    assert matthews(gold, predicted) == 0.5


def test_multilabel_by_hand() -> None:
    gold = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0]], bool)
    predicted = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0]], bool)
    # TP 2, gold 3, predicted 3. F1 by label: 1, 0, and 0 for the label that never occurs.
    scores = multilabel_scores(gold, predicted)
    assert scores == pytest.approx({"micro_f1": 4 / 6, "macro_f1": 1 / 3, "exact_match": 1 / 3})


def test_multilabel_without_any_label_is_zero_but_matches() -> None:
    empty = np.zeros((2, 3), bool)
    assert multilabel_scores(empty, empty) == {"micro_f1": 0.0, "macro_f1": 0.0, "exact_match": 1.0}


def test_equal_to_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(1)
    for n in (5, 200):
        gold, predicted = rng.integers(0, 7, n), rng.integers(0, 7, n)
        assert accuracy(gold, predicted) == pytest.approx(metrics.accuracy_score(gold, predicted), abs=1e-12)
        assert matthews(gold, predicted) == pytest.approx(metrics.matthews_corrcoef(gold, predicted), abs=1e-12)
        expected = metrics.f1_score(gold, predicted, average="macro", zero_division=0)
        assert macro_f1(gold, predicted) == pytest.approx(expected, abs=1e-12)
        gold, predicted = gold > 2, predicted > 3
        expected = metrics.f1_score(gold, predicted, zero_division=0)
        assert binary_f1(gold.astype(int), predicted.astype(int)) == pytest.approx(expected, abs=1e-12)


def test_multilabel_equal_to_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(2)
    gold, predicted = rng.random((60, 5)) < 0.3, rng.random((60, 5)) < 0.3
    gold[:, 4] = predicted[:, 4] = False
    scores = multilabel_scores(gold, predicted)
    for average in ("micro", "macro"):
        expected = metrics.f1_score(gold, predicted, average=average, zero_division=0)
        assert scores[f"{average}_f1"] == pytest.approx(expected, abs=1e-12)
    assert scores["exact_match"] == pytest.approx(metrics.accuracy_score(gold, predicted))


@pytest.mark.parametrize("score", [accuracy, macro_f1, binary_f1, matthews])
@pytest.mark.parametrize(("gold", "predicted"), [([], []), ([0], [0, 1])])
def test_labels_that_do_not_match_are_an_error(score: Score, gold: list[int], predicted: list[int]) -> None:
    with pytest.raises(ValueError, match="as many predictions as labels"):
        score(np.array(gold, int), np.array(predicted, int))


@pytest.mark.parametrize(("gold", "predicted"), [((0, 3), (0, 3)), ((2, 0), (2, 0)), ((2, 3), (2, 4)), ((2,), (2,))])
def test_label_tables_that_do_not_match_are_an_error(gold: tuple[int, ...], predicted: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="two tables"):
        multilabel_scores(np.zeros(gold, bool), np.zeros(predicted, bool))


def test_probabilities_in_place_of_labels_are_an_error() -> None:
    with pytest.raises(ValueError, match="True and False: got bool and float64"):
        multilabel_scores(np.zeros((2, 2), bool), np.zeros((2, 2)))
