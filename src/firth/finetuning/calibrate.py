"""Fit a temperature or a threshold on held-out examples after training."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from firth.inference.score import EncodedSplit
from firth.metrics.calibration import (
    best_threshold,
    careful_temperature,
    cross_fitted,
    expected_calibration_error,
    reliability,
    sigmoid,
    softmax,
)
from firth.metrics.question_answering import squad_v2
from firth.tasks.answer import answer_answers
from firth.tasks.choose import choose_scores
from firth.tasks.classify import text_logits
from firth.tasks.rows import Example, Outputs

_MOST_LEVELS = 200


def calibrate(kind: str, options: Any, split: EncodedSplit, outputs: Sequence[Outputs]) -> tuple[Any, dict[str, Any]]:
    """Calibrate a task; returns its options with the fitted value, and figures that show the effect.

    Classification and multiple choice: a temperature, with the calibration error before and after (cross-fitted: each
    example's temperature comes from the others). Multi-label: the threshold with the best micro F1.
    Questions that may have no answer: the threshold with the best F1. Other tasks are unchanged.
    """
    records, examples = split.records, split.examples
    if kind == "classify":
        gold = np.array([options.labels.index(record.label) for record in records])
        return tempered(options, text_logits(outputs, options.merge), gold)
    if kind == "choose":
        gold = np.array([record.label for record in records])
        scores = [choose_scores(e, rows, options.windows.merge) for e, rows in zip(examples, outputs, strict=True)]
        if len({len(row) for row in scores}) > 1:
            # Questions with fewer choices than others: a missing choice gets probability 0.
            most = max(map(len, scores))
            scores = [np.pad(row, (0, most - len(row)), constant_values=row.min() - 1e4) for row in scores]
        return tempered(options, np.stack(scores), gold)
    if kind == "multilabel":
        return _multilabel(options, records, outputs)
    if kind == "answer" and options.can_refuse:
        return _refusing(options, records, examples, outputs)
    return options, {}


def tempered(options: Any, logits: np.ndarray, gold: np.ndarray) -> tuple[Any, dict[str, Any]]:
    """Fit a temperature; returns the options with it, and calibration error before and after, with reliability bins."""
    before, after = softmax(logits), cross_fitted(logits, gold)
    temperature = careful_temperature(logits, gold)
    figures = {
        "temperature": temperature,
        "error_before": expected_calibration_error(before, gold),
        "error_after": expected_calibration_error(after, gold),
        "reliability_before": [list(dataclasses.astuple(row)) for row in reliability(before, gold)],
        "reliability_after": [list(dataclasses.astuple(row)) for row in reliability(after, gold)],
    }
    return dataclasses.replace(options, temperature=temperature), figures


def _multilabel(options: Any, records: Sequence[Any], outputs: Sequence[Outputs]) -> tuple[Any, dict[str, Any]]:
    shares = sigmoid(text_logits(outputs, options.windows.merge))
    gold = np.array([[label in record.label for label in options.labels] for record in records])
    best, f1 = best_threshold(shares, gold)
    return dataclasses.replace(options, threshold=best), {"threshold": best, "micro_f1": f1}


def _refusing(
    options: Any, records: Sequence[Any], examples: Sequence[Example], outputs: Sequence[Outputs]
) -> tuple[Any, dict[str, Any]]:
    always = dataclasses.replace(options, threshold=float(np.finfo(np.float64).max))
    answers = answer_answers(records, examples, outputs, always)
    gold = {str(i): [a.text for a in record.answers or ()] for i, record in enumerate(records)}
    texts = {str(i): next((s.text for s in a.n_best if s.text), "") for i, a in enumerate(answers)}
    found = {str(i): a.no_answer_score for i, a in enumerate(answers)}
    refusals = {name: min(score, 1e9) for name, score in found.items() if score is not None}
    scores = {}
    # Questions of one kind do not tell where to draw the line: it stays where "no answer" scores like an answer.
    one_kind = len(set(map(bool, gold.values()))) < 2
    for threshold in [0.0] if one_kind else [0.0, *_levels(sorted(refusals.values()))]:
        given = {name: "" if refusals[name] > threshold else text for name, text in texts.items()}
        scores[threshold] = squad_v2(gold, given)["f1"]
    best = max(scores, key=lambda threshold: (scores[threshold], -abs(threshold)))
    return dataclasses.replace(options, threshold=best), {"threshold": best, "f1": scores[best] / 100}


def _levels(refusals: Sequence[float]) -> list[float]:
    """Candidate thresholds: one below all scores, and evenly spread ones among them.

    Differs: SQuAD's search moves question by question, which overstates the score where no-answer scores are equal.
    """
    distinct = sorted(set(refusals))
    step = max(len(distinct) // _MOST_LEVELS, 1)
    return [distinct[0] - 1, *distinct[::step], distinct[-1]]
