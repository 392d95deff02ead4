"""Classification metrics: accuracy, F1, macro F1, Matthews correlation."""

import math

import numpy as np
from jaxtyping import Bool, Int


def accuracy(gold: Int[np.ndarray, " n"], predicted: Int[np.ndarray, " n"]) -> float:
    """Share of correct predictions, 0 to 1. ValueError for no labels, or unequal numbers of them."""
    _check(gold, predicted)
    return float(np.mean(gold == predicted))


def macro_f1(gold: Int[np.ndarray, " n"], predicted: Int[np.ndarray, " n"]) -> float:
    """F1 of each class in either array, and their mean, 0 to 1: rare classes count as much as common ones.

    F1 is 2 TP / (2 TP + FP + FN), which is 0 for a class that is never right.
    Source: scikit-learn f1_score(average="macro"), whose classes are also those of both arrays.
    """
    _check(gold, predicted)
    n_gold, n_predicted, n_right = _counts(gold, predicted)
    # Each text counts once where it belongs and once where it was put: 2 TP + FN + FP.
    both = n_gold + n_predicted
    present = both > 0
    return float(np.mean(2 * n_right[present] / both[present]))


def binary_f1(gold: Int[np.ndarray, " n"], predicted: Int[np.ndarray, " n"], positive: int = 1) -> float:
    """F1 of one class, 0 to 1, and 0 where it occurs in neither array. GLUE reports it for MRPC and QQP.

    Source: scikit-learn f1_score(average="binary").
    """
    _check(gold, predicted)
    is_gold, is_predicted = gold == positive, predicted == positive
    return _f1(int((is_gold & is_predicted).sum()), int(is_gold.sum() + is_predicted.sum()))


def matthews(gold: Int[np.ndarray, " n"], predicted: Int[np.ndarray, " n"]) -> float:
    """Matthews correlation, -1 to 1; 0 where either array holds a single class. GLUE reports it for CoLA and AX.

    For two classes (TP TN - FP FN) / sqrt((TP + FP) (TP + FN) (TN + FP) (TN + FN)); for more its usual extension R_K.
    Source: Gorodkin 2004; scikit-learn matthews_corrcoef.
    """
    _check(gold, predicted)
    # Python's integers: products of four counts do not fit into 64 bits from 65 536 texts on.
    n_gold, n_predicted, n_right = (counts.tolist() for counts in _counts(gold, predicted))
    n = len(gold)
    covariance = n * sum(n_right) - sum(g * p for g, p in zip(n_gold, n_predicted, strict=True))
    spread = (n * n - sum(g * g for g in n_gold)) * (n * n - sum(p * p for p in n_predicted))
    return covariance / math.sqrt(spread) if spread else 0.0


def multilabel_scores(gold: Bool[np.ndarray, "n K"], predicted: Bool[np.ndarray, "n K"]) -> dict[str, float]:
    """``micro_f1``, ``macro_f1`` and ``exact_match`` of texts that may carry any number of K labels, each 0 to 1.

    Micro F1 pools all decisions, macro F1 is the mean over all K labels, exact match is the share of texts whose
    labels are all right. A label that occurs in neither array has F1 0.
    Source: scikit-learn f1_score(average="micro" and "macro", zero_division=0) and accuracy_score.
    """
    if gold.shape != predicted.shape or gold.ndim != 2 or not gold.size:
        raise ValueError(f"expected two tables (texts, labels) of one shape: got {gold.shape} and {predicted.shape}")
    if gold.dtype != bool or predicted.dtype != bool:
        raise ValueError(f"expected tables of True and False: got {gold.dtype} and {predicted.dtype}")
    n_right = (gold & predicted).sum(0).tolist()
    n_both = (gold.sum(0) + predicted.sum(0)).tolist()
    return {
        "micro_f1": _f1(sum(n_right), sum(n_both)),
        "macro_f1": sum(map(_f1, n_right, n_both)) / len(n_both),
        "exact_match": float(np.mean((gold == predicted).all(1))),
    }


def _f1(n_right: int, n_both: int) -> float:
    return 2 * n_right / n_both if n_both else 0.0


def _counts(gold: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts of each class as gold, as predicted, and as both."""
    n_classes = int(max(gold.max(), predicted.max())) + 1
    right = gold[gold == predicted]
    n_gold, n_predicted, n_right = (np.bincount(labels, minlength=n_classes) for labels in (gold, predicted, right))
    return n_gold, n_predicted, n_right


def _check(gold: np.ndarray, predicted: np.ndarray) -> None:
    if gold.shape != predicted.shape or gold.ndim != 1 or not len(gold):
        raise ValueError(f"expected as many predictions as labels, at least one: got {gold.shape}, {predicted.shape}")
