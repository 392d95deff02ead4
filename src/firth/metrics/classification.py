"""Scores of a classification: how often it is right, over all texts and in the mean over classes."""

import numpy as np
from jaxtyping import Int


def accuracy(gold: Int[np.ndarray, " n"], predicted: Int[np.ndarray, " n"]) -> float:
    """Share of predictions that are right, 0 to 1. Raises ValueError for no or unequally many labels."""
    _check(gold, predicted)
    return float(np.mean(gold == predicted))


def macro_f1(gold: Int[np.ndarray, " n"], predicted: Int[np.ndarray, " n"]) -> float:
    """F1 of each class that occurs in either array, and their mean, 0 to 1: rare classes weigh like common ones.

    F1 is 2 TP / (2 TP + FP + FN), which is 0 for a class that is never right.
    Source: scikit-learn f1_score(average="macro"), whose classes are also those of both arrays.
    """
    _check(gold, predicted)
    n_classes = int(max(gold.max(), predicted.max())) + 1
    right = np.bincount(gold[gold == predicted], minlength=n_classes)
    # Each text counts once where it belongs and once where it was put: 2 TP + FN + FP.
    both = np.bincount(gold, minlength=n_classes) + np.bincount(predicted, minlength=n_classes)
    present = both > 0
    return float(np.mean(2 * right[present] / both[present]))


def _check(gold: np.ndarray, predicted: np.ndarray) -> None:
    if gold.shape != predicted.shape or gold.ndim != 1 or not len(gold):
        raise ValueError(f"expected as many predictions as labels, at least one: got {gold.shape}, {predicted.shape}")
