"""Score predictions against gold answers: all metrics of each kind of task.

Names are those of ``firth.tasks.datasets``; correlations may be below 0.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from firth.errors import InputError
from firth.metrics.classification import accuracy, binary_f1, macro_f1, matthews, multilabel_scores
from firth.metrics.correlation import pearson, spearman
from firth.metrics.question_answering import korquad_v1, squad_v1, squad_v2
from firth.metrics.tagging import KLUE_NER_TAGS, conlleval, klue_ner_scores, token_accuracy
from firth.tasks.predictions import Answered, Chosen, Labelled, MultiLabelled, TaggedText, Valued
from firth.tasks.tag_schemes import OUTSIDE, split_tag
from firth.tasks.tag_units import unit_of
from firth.text.records import Choice, Question, Tagged, Text

Scores = dict[str, float]

# The metrics that can select a model, by kind of task; the first is the default.
METRICS: dict[str, tuple[str, ...]] = {
    "classify": ("accuracy", "macro_f1", "mcc", "f1"),
    "multilabel": ("micro_f1", "macro_f1", "exact_match"),
    "regress": ("spearman", "pearson"),
    "tag": ("entity_f1", "tag_accuracy", "precision", "recall", "entity_macro_f1", "char_f1", "char_f1_without_o"),
    "answer": ("squad_f1", "exact_match", "char_f1", "char_exact_match"),
    "choose": ("accuracy",),
}


def score_labels(texts: Sequence[Text], answers: Sequence[Labelled], labels: Sequence[str]) -> Scores:
    """Score single labels: ``accuracy``, ``macro_f1``, ``mcc``; with two labels also ``f1`` of the second."""
    numbers = {label: i for i, label in enumerate(labels)}
    gold = np.array([numbers[_gold(text.label, text.where)] for text in texts])
    predicted = np.array([numbers[answer.label] for answer in answers])
    scores = {
        "accuracy": accuracy(gold, predicted),
        "macro_f1": macro_f1(gold, predicted),
        "mcc": matthews(gold, predicted),
    }
    if len(labels) == 2:
        scores["f1"] = binary_f1(gold, predicted)
    return scores


def score_label_sets(texts: Sequence[Text], answers: Sequence[MultiLabelled], labels: Sequence[str]) -> Scores:
    """Score label sets: ``micro_f1``, ``macro_f1`` and ``exact_match``."""
    gold = np.array([[label in _gold(text.label, text.where) for label in labels] for text in texts])
    predicted = np.array([[label in answer.labels for label in labels] for answer in answers])
    return multilabel_scores(gold, predicted)


def score_values(texts: Sequence[Text], answers: Sequence[Valued], labels: Sequence[str]) -> Scores:
    """Score numbers: ``pearson``, ``spearman`` and ``mean_absolute_error``."""
    gold = np.array([_gold(text.label, text.where) for text in texts], np.float64)
    predicted = np.array([answer.value for answer in answers], np.float64)
    error = float(np.abs(gold - predicted).mean())
    return {"pearson": pearson(gold, predicted), "spearman": spearman(gold, predicted), "mean_absolute_error": error}


def score_from(texts: Sequence[Text], answers: Sequence[Valued], positive_from: float) -> Scores:
    """Score numbers as a binary decision: ``f1`` of the texts whose value is at least ``positive_from``.

    Source: KLUE-benchmark/KLUE-baseline klue_baseline/metrics/functional.py, klue_sts_f1.
    """
    gold = np.array([_gold(text.label, text.where) for text in texts], np.float64)
    predicted = np.array([answer.value for answer in answers], np.float64)
    return {"f1": binary_f1((gold >= positive_from).astype(np.int64), (predicted >= positive_from).astype(np.int64))}


def score_tags(records: Sequence[Tagged], answers: Sequence[TaggedText], labels: Sequence[str]) -> Scores:
    """Score tags: ``tag_accuracy``; for entities ``entity_f1``, ``precision``, ``recall``.

    For characters with KLUE's tags also ``entity_macro_f1`` and ``char_f1``, as its baseline computes them, and
    ``char_f1_without_o``, as its documentation defines it.

    ``labels`` decide on these, not the predictions: all seeds of a run have the same scores.
    """
    gold = [_gold(record.tags, record.where) for record in records]
    predicted = [answer.tags for answer in answers]
    scores = {"tag_accuracy": token_accuracy(gold, predicted)}
    if has_entities(gold, predicted, labels):
        found = conlleval(gold, predicted)
        scores |= {"entity_f1": found.f1, "precision": found.precision, "recall": found.recall}
        if of_klue(labels) and unit_of(records) == "character":
            letters = [[record.text[a:b] != " " for a, b in record.spans] for record in records]
            klue = klue_ner_scores(_only(gold, letters), _only(predicted, letters))
            scores["entity_macro_f1"] = klue["entity_macro_f1"]
            scores["char_f1"] = klue["character_macro_f1"]
            scores["char_f1_without_o"] = klue["character_macro_f1_without_o"]
    return scores


def of_klue(labels: Sequence[str]) -> bool:
    """Whether all entities are KLUE's, in any scheme; some scores are defined only for them."""
    entities, known = ({split_tag(tag)[1] for tag in tags} - {""} for tags in (labels, KLUE_NER_TAGS))
    return bool(entities) and entities <= known


def has_entities(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], labels: Sequence[str]) -> bool:
    """Whether tags mark entities, in any scheme; part-of-speech tags do not.

    Gold tags decide; if all of them are O, the labels; without any (a file of predictions), the predicted tags.
    """
    for tags in ({tag for sentence in gold for tag in sentence}, {*labels}):
        if tags - {OUTSIDE}:
            return any(split_tag(tag)[0] for tag in tags - {OUTSIDE})
    return all(split_tag(tag)[0] for sentence in predicted for tag in sentence)


def _only(sentences: Sequence[Sequence[str]], kept: Sequence[Sequence[bool]]) -> list[list[str]]:
    return [[tag for tag, keep in zip(*pair, strict=True) if keep] for pair in zip(sentences, kept, strict=True)]


def score_answers(questions: Sequence[Question], answers: Sequence[Answered], labels: Sequence[str]) -> Scores:
    """Score answers: ``exact_match`` and ``squad_f1``, by SQuAD 2.0's rules if some question has no answer.

    If all have one, also KorQuAD's ``char_exact_match`` and ``char_f1``. For SQuAD 2.0 also ``answerable_…`` and
    ``unanswerable_…`` (HasAns and NoAns of its script); with no-answer scores ``best_squad_f1`` and
    ``best_exact_match``, reached with the best threshold on these scores, and that threshold (``…_threshold``).
    """
    # By position, because two questions may share an id.
    gold = {str(i): [a.text for a in _gold(q.answers, q.where)] for i, q in enumerate(questions)}
    texts = {name: answer.text for name, answer in zip(gold, answers, strict=True)}
    if all(gold.values()):
        words, letters = squad_v1(gold, texts), korquad_v1(gold, texts)
        return {
            "exact_match": words["exact_match"] / 100,
            "squad_f1": words["f1"] / 100,
            "char_exact_match": letters["exact_match"] / 100,
            "char_f1": letters["f1"] / 100,
        }
    found = squad_v2(gold, texts)
    parts = {
        "exact": "exact_match",
        "f1": "squad_f1",
        "HasAns_exact": "answerable_exact_match",
        "HasAns_f1": "answerable_f1",
        "NoAns_exact": "unanswerable_exact_match",
        "NoAns_f1": "unanswerable_f1",
    }
    scores = {ours: found[theirs] / 100 for theirs, ours in parts.items() if theirs in found}
    refusals = {name: a.no_answer_score for name, a in zip(gold, answers, strict=True)}
    known = {name: value for name, value in refusals.items() if value is not None}
    if len(known) == len(gold):
        # The threshold decides whether to answer, so the best one is searched over the answers themselves.
        best = {name: next((s.text for s in a.n_best if s.text), "") for name, a in zip(gold, answers, strict=True)}
        found = squad_v2(gold, best, known)
        for theirs, ours in (("best_f1", "best_squad_f1"), ("best_exact", "best_exact_match")):
            threshold = found[f"{theirs}_thresh"]
            if threshold not in known.values():  # answering none is best, which the script knows of probabilities only
                threshold = min(known.values()) - 1
            scores |= {ours: found[theirs] / 100, f"{ours}_threshold": threshold}
    return scores


def score_choices(records: Sequence[Choice], answers: Sequence[Chosen], labels: Sequence[str]) -> Scores:
    """``accuracy``."""
    gold = np.array([_gold(record.label, record.where) for record in records])
    return {"accuracy": accuracy(gold, np.array([answer.choice for answer in answers]))}


def _gold(found: Any, where: str) -> Any:
    if found is None:
        raise InputError(f"{where}: nothing to compare with: expected a labelled example")
    return found
