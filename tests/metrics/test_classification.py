"""Accuracy and macro F1, by hand and next to an independent scorer."""

import numpy as np
import pytest

from firth.metrics.classification import accuracy, macro_f1


def test_accuracy_by_hand() -> None:
    assert accuracy(np.array([0, 1, 2, 2]), np.array([0, 1, 1, 2])) == 0.75


def test_macro_f1_by_hand() -> None:
    # Class 0: 1 right of 1 and 1. Class 1: 1 right, 1 too many: 2/3. Class 2: 1 right, 1 missed: 2/3.
    assert macro_f1(np.array([0, 1, 2, 2]), np.array([0, 1, 1, 2])) == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)


def test_a_class_that_only_one_side_has_counts_as_zero() -> None:
    assert macro_f1(np.array([0, 0]), np.array([0, 3])) == pytest.approx((2 / 3 + 0) / 2)


def test_equal_to_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(1)
    for n in (1, 5, 200):
        gold, predicted = rng.integers(0, 7, n), rng.integers(0, 7, n)
        assert accuracy(gold, predicted) == pytest.approx(metrics.accuracy_score(gold, predicted), abs=1e-12)
        expected = metrics.f1_score(gold, predicted, average="macro", zero_division=0)
        assert macro_f1(gold, predicted) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("gold", "predicted"), [([], []), ([0], [0, 1])])
def test_labels_that_do_not_match_are_an_error(gold: list[int], predicted: list[int]) -> None:
    for score in (accuracy, macro_f1):
        with pytest.raises(ValueError, match="as many predictions as labels"):
            score(np.array(gold, int), np.array(predicted, int))
