"""Question answering metrics of SQuAD 1.1, SQuAD 2.0 and KorQuAD 1.0, as their official scripts compute them.

Gold answers are a mapping from question id to the accepted answers, predictions one from question id to the answer.
All scores are in percent, as the scripts print them. A question without a prediction scores 0 and is counted in
``missing``; predictions for other questions are ignored.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from unicodedata import normalize

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_KOREAN_QUOTES = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


def normalise_answer(text: str) -> str:
    """Lower-case text without ASCII punctuation, articles (a, an, the) and surplus white space, removed in this order.

    Source: normalize_answer of SQuAD's evaluate-v1.1.py and evaluate-v2.0.py. Accents and other punctuation stay.
    Differs: letters that macOS decomposes are composed, so that an answer is equal to itself.
    """
    text = normalize("NFC", text).lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def normalise_korean_answer(text: str) -> str:
    """Lower-case text with quotes and brackets made spaces, without other ASCII punctuation and surplus white space.

    Source: normalize_answer of KorQuAD's evaluate-v1.0.py. Differs: syllables that macOS decomposes are composed, so
    that an answer is equal to itself.
    """
    return " ".join(normalize("NFC", text).translate(_KOREAN_QUOTES).lower().translate(_NO_PUNCTUATION).split())


def squad_v1(gold: Mapping[str, Sequence[str]], predictions: Mapping[str, str]) -> dict[str, float]:
    """``exact_match``, ``f1`` (over words; the best of the accepted answers), ``total`` and ``missing``.

    Source: SQuAD's evaluate-v1.1.py, whose F1 of two empty answers is 0.
    """
    return _score(gold, predictions, normalise_answer, str.split)


def korquad_v1(gold: Mapping[str, Sequence[str]], predictions: Mapping[str, str]) -> dict[str, float]:
    """``exact_match``, ``f1`` (over characters, spaces left out), ``total`` and ``missing``.

    Source: KorQuAD's evaluate-v1.0.py. The exact match does compare spaces.
    """
    return _score(gold, predictions, normalise_korean_answer, lambda text: list(text.replace(" ", "")))


def squad_v2(
    gold: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    no_answer_scores: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """``exact``, ``f1``, ``total`` and ``missing``, and the same for the questions with and without answers.

    A question without gold answers is unanswerable: its correct prediction is "". With ``no_answer_scores``, one for
    each question, a prediction counts as "" if the score is above ``threshold``, and the result also has the best
    scores that any threshold reaches, those thresholds (``best_f1_thresh`` …), and average precisions in the order of
    the scores: ``pr_exact_ap``, ``pr_f1_ap``, and ``pr_oracle_ap`` for answers that are all correct.

    Source: SQuAD's evaluate-v2.0.py. Differs: the script stops at a question without a prediction.
    """
    _check_gold(gold)
    exact, f1 = _raw_scores(gold, predictions)
    if no_answer_scores is None:
        return _summary(gold, predictions, exact, f1)
    order = _ascending(gold, no_answer_scores)
    silent = {name for name in order if name in predictions and no_answer_scores[name] > threshold}
    result = _summary(gold, predictions, _silenced(exact, gold, silent), _silenced(f1, gold, silent))
    for measure, scores in (("exact", exact), ("f1", f1)):
        best, at = _best(gold, predictions, scores, order, no_answer_scores)
        result |= {f"best_{measure}": best, f"best_{measure}_thresh": at}
    if any(gold.values()):
        oracle = {name: float(bool(answers)) for name, answers in gold.items()}
        for measure, scores in (("exact", exact), ("f1", f1), ("oracle", oracle)):
            result[f"pr_{measure}_ap"] = _average_precision(gold, scores, order, no_answer_scores)
    return result


def _score(
    gold: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    normalise: Callable[[str], str],
    units: Callable[[str], list[str]],
) -> dict[str, float]:
    """Exact match and F1 over the units (words or characters) of normalised answers."""
    _check_gold(gold)
    exact = f1 = 0.0
    missing = 0
    for name, answers in gold.items():
        if not answers:
            raise ValueError(f"question {name!r} has no gold answer; only SQuAD 2.0 has questions without")
        if name not in predictions:
            missing += 1
            continue
        prediction = normalise(predictions[name])
        accepted = [normalise(answer) for answer in answers]
        exact += prediction in accepted
        f1 += max(_overlap_f1(units(answer), units(prediction)) for answer in accepted)
    total = len(gold)
    return {"exact_match": 100 * exact / total, "f1": 100 * f1 / total, "total": total, "missing": missing}


def _overlap_f1(gold: list[str], predicted: list[str]) -> float:
    """F1 of two bags; 0 without common elements, even if both are empty."""
    common = (Counter(gold) & Counter(predicted)).total()
    return 2 * common / (len(gold) + len(predicted)) if common else 0.0


def _raw_scores(
    gold: Mapping[str, Sequence[str]], predictions: Mapping[str, str]
) -> tuple[dict[str, float], dict[str, float]]:
    """Exact match and F1 of each question, 0 to 1, as SQuAD 2.0 counts them."""
    exact, f1 = dict.fromkeys(gold, 0.0), dict.fromkeys(gold, 0.0)
    for name in gold.keys() & predictions.keys():
        prediction = normalise_answer(predictions[name])
        # An answer that normalises to nothing, such as "The", does not count.
        accepted = list(filter(None, map(normalise_answer, gold[name]))) or [""]
        exact[name] = float(prediction in accepted)
        # If one side is empty, F1 is 1 if both are, which is the exact match.
        overlaps = [_overlap_f1(answer.split(), prediction.split()) for answer in accepted]
        f1[name] = max(exact[name], *overlaps)
    return exact, f1


def _silenced(scores: Mapping[str, float], gold: Mapping[str, Sequence[str]], silent: set[str]) -> dict[str, float]:
    return {name: float(not gold[name]) if name in silent else score for name, score in scores.items()}


def _summary(
    gold: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    exact: Mapping[str, float],
    f1: Mapping[str, float],
) -> dict[str, float]:
    answerable = [name for name in gold if gold[name]]
    unanswerable = [name for name in gold if not gold[name]]
    result: dict[str, float] = {}
    for prefix, names in (("", list(gold)), ("HasAns_", answerable), ("NoAns_", unanswerable)):
        if names:
            result[f"{prefix}exact"] = 100 * sum(exact[name] for name in names) / len(names)
            result[f"{prefix}f1"] = 100 * sum(f1[name] for name in names) / len(names)
            result[f"{prefix}total"] = len(names)
    result["missing"] = sum(name not in predictions for name in gold)
    return result


def _ascending(gold: Mapping[str, Sequence[str]], no_answer_scores: Mapping[str, float]) -> list[str]:
    """The questions by rising no-answer score; ties keep the order of ``no_answer_scores``, as in the script."""
    for name in gold:
        if math.isnan(no_answer_scores.get(name, math.nan)):
            raise ValueError(f"question {name!r} has no no-answer score, or one that is not a number")
    return sorted((name for name in no_answer_scores if name in gold), key=no_answer_scores.__getitem__)


def _best(
    gold: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    scores: Mapping[str, float],
    order: list[str],
    no_answer_scores: Mapping[str, float],
) -> tuple[float, float]:
    """The best score in percent that a threshold on the no-answer scores reaches, and the threshold.

    Source: find_best_thresh of SQuAD's evaluate-v2.0.py, kept unchanged. Questions are answered one by one, the surest
    first; the threshold is the score of the question after which the total was highest. It is 0 if answering none is
    best, which is right for probabilities only, and a threshold among equal scores overstates the best score.
    """
    # If nothing is answered, all unanswerable questions are correct.
    total = best = float(sum(not gold[name] for name in order if name in predictions))
    threshold = 0.0
    for name in order:
        if gold[name]:
            total += scores[name]
        elif predictions.get(name):
            total -= 1
        if total > best:
            best, threshold = total, no_answer_scores[name]
    return 100 * best / len(gold), threshold


def _average_precision(
    gold: Mapping[str, Sequence[str]],
    scores: Mapping[str, float],
    order: list[str],
    no_answer_scores: Mapping[str, float],
) -> float:
    n_answerable = sum(bool(answers) for answers in gold.values())
    right = area = recall = 0.0
    for rank, name in enumerate(order, start=1):
        if gold[name]:
            right += scores[name]
        # A threshold can only fall between different scores.
        if rank == len(order) or no_answer_scores[name] != no_answer_scores[order[rank]]:
            area += right / rank * (right / n_answerable - recall)
            recall = right / n_answerable
    return 100 * area


def _check_gold(gold: Mapping[str, Sequence[str]]) -> None:
    if not gold:
        raise ValueError("expected at least one question with its answers, found none")
    for name, answers in gold.items():
        if isinstance(answers, str):
            raise ValueError(f"question {name!r} has the answer {answers!r}; expected a list of answers")
