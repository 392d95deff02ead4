"""Break an evaluation down: scores per label, confusion matrix, majority baseline."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from firth.metrics.tagging import EntityScores, conlleval
from firth.tasks.predictions import Answered, Chosen, Labelled, MultiLabelled, TaggedText, Valued
from firth.tasks.scoring import has_entities
from firth.tasks.tag_schemes import OUTSIDE, split_tag
from firth.text.records import Choice, Question, Tagged, Text

# Most labels of a confusion matrix, which has a cell for each two of them; of more labels the pairs are listed.
MOST_LABELS = 30
# Two predictions that differ by less than this share of the labels' range count as equal.
_SAME_SHARE = 1e-3


@dataclass(frozen=True, slots=True)
class LabelScore:
    """Scores of one label: gold examples, predictions, matches; precision, recall and F1, each 0 to 1."""

    examples: int
    predicted: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True, slots=True)
class MajorityScore:
    """The score of a constant prediction: the most frequent label, or the mean of numbers."""

    answer: str
    metric: str
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """An evaluation broken down by label.

    ``unit``: what ``labels`` count. ``confusion``: how often a gold label (row) was predicted as another (column), both
    in the order of ``confusion_labels``; for taggers it counts words, without the prefixes of entity tags.
    ``confused``: instead of the matrix of more than ``MOST_LABELS`` labels, the gold and predicted labels that occur
    together, and how often. ``always``: the prediction, if the model made the same one for every example although the
    gold labels differ.
    """

    unit: str = "examples"
    labels: dict[str, LabelScore]
    confusion_labels: tuple[str, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    confused: tuple[tuple[str, str, int], ...] = ()
    majority: MajorityScore | None = None
    always: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data that JSON can hold, with ``confused`` only for many labels."""
        rows = [list(row) for row in self.confusion]
        plain = asdict(self) | {"confusion_labels": list(self.confusion_labels), "confusion": rows}
        confused = [list(pair) for pair in plain.pop("confused")]
        return plain | ({"confused": confused} if confused else {})


def break_down_labels(texts: Sequence[Text], answers: Sequence[Labelled], labels: Sequence[str]) -> Breakdown:
    """Break down single-label classification."""
    gold, predicted = [str(text.label) for text in texts], [answer.label for answer in answers]
    return _of_pairs(gold, predicted, labels, "accuracy")


def break_down_label_sets(texts: Sequence[Text], answers: Sequence[MultiLabelled], labels: Sequence[str]) -> Breakdown:
    """Break down multi-label classification. The baseline is the most frequent set; there is no confusion matrix."""
    gold = [frozenset(text.label if isinstance(text.label, tuple) else ()) for text in texts]
    predicted = [frozenset(answer.labels) for answer in answers]
    scores = {
        label: _score(
            sum(label in some for some in gold),
            sum(label in some for some in predicted),
            sum(label in a and label in b for a, b in zip(gold, predicted, strict=True)),
        )
        for label in labels
    }
    ((commonest, n),) = Counter(gold).most_common(1)
    majority = MajorityScore(_shown_set(commonest), "exact_match", n / len(gold))
    same = _same(gold, predicted)
    return Breakdown(labels=scores, majority=majority, always=None if same is None else _shown_set(same))


def break_down_values(texts: Sequence[Text], answers: Sequence[Valued], labels: Sequence[str]) -> Breakdown:
    """Break down regression. The baseline is the mean absolute error of predicting the mean; lower is better."""
    gold = np.array([text.label for text in texts], np.float64)
    predicted = np.array([answer.value for answer in answers], np.float64)
    mean, spread = float(gold.mean()), float(np.ptp(gold))
    majority = MajorityScore(f"{mean:.4g}", "mean_absolute_error", float(np.abs(gold - mean).mean()))
    constant = len(gold) > 1 and spread > 0 and float(np.ptp(predicted)) <= _SAME_SHARE * spread
    return Breakdown(labels={}, majority=majority, always=f"{float(predicted.mean()):.4g}" if constant else None)


def break_down_tags(records: Sequence[Tagged], answers: Sequence[TaggedText], labels: Sequence[str]) -> Breakdown:
    """Break down tagging: entities by type, or words by tag. Confusion matrix and baseline count words."""
    gold = [tuple(record.tags or ()) for record in records]
    predicted = [answer.tags for answer in answers]
    of_entities = has_entities(gold, predicted, labels)
    name = _type_of if of_entities else str
    words = [[name(tag) for tags in some for tag in tags] for some in (gold, predicted)]
    known = sorted({*words[0], *words[1]}, key=lambda label: (of_entities and label == OUTSIDE, label))
    found = replace(_of_pairs(words[0], words[1], known, "tag_accuracy"), unit="words")
    if not of_entities:
        return found
    # The baseline uses tags as they are scored, prefix included.
    ((commonest, n),) = Counter(tag for tags in gold for tag in tags).most_common(1)
    return replace(
        found,
        unit="entities",
        majority=MajorityScore(commonest, "tag_accuracy", n / len(words[0])),
        labels={label: _of_counts(score) for label, score in conlleval(gold, predicted).by_label.items()},
    )


def break_down_answers(questions: Sequence[Question], answers: Sequence[Answered], labels: Sequence[str]) -> Breakdown:
    """Break down question answering by answerable or not. The baseline never answers; None if all have answers."""
    gold = ["answer" if question.answers else "no answer" for question in questions]
    predicted = ["answer" if answer.text else "no answer" for answer in answers]
    texts = [answer.text for answer in answers]
    same = _same([tuple(a.text for a in question.answers or ()) for question in questions], texts)
    always = None if same is None else same or "no answer"
    if "no answer" not in gold:
        return Breakdown(unit="questions", labels={}, always=always)
    refused = MajorityScore("no answer", "exact_match", gold.count("no answer") / len(gold))
    found = _of_pairs(gold, predicted, ("answer", "no answer"), "exact_match")
    return replace(found, unit="questions", majority=refused, always=always)


def break_down_choices(records: Sequence[Choice], answers: Sequence[Chosen], labels: Sequence[str]) -> Breakdown:
    """Break down multiple choice by the index of the choice, from 0."""
    most = max(len(record.choices) for record in records)
    gold, predicted = [str(record.label) for record in records], [str(answer.choice) for answer in answers]
    return _of_pairs(gold, predicted, [str(number) for number in range(most)], "accuracy")


def _of_pairs(gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str], metric: str) -> Breakdown:
    n_gold, n_predicted, n_pairs = Counter(gold), Counter(predicted), Counter(zip(gold, predicted, strict=True))
    best = max(labels, key=n_gold.__getitem__)
    found = Breakdown(
        labels={label: _score(n_gold[label], n_predicted[label], n_pairs[label, label]) for label in labels},
        confusion_labels=tuple(labels),
        majority=MajorityScore(best, metric, n_gold[best] / len(gold)),
        always=_same(gold, predicted),
    )
    if len(labels) > MOST_LABELS:
        return replace(found, confused=tuple((*pair, n) for pair, n in n_pairs.most_common()))
    return replace(found, confusion=tuple(tuple(n_pairs[a, b] for b in labels) for a in labels))


def _score(n_gold: int, n_predicted: int, n_right: int) -> LabelScore:
    return _of_counts(EntityScores(n_gold, n_predicted, n_right))


def _of_counts(found: EntityScores) -> LabelScore:
    return LabelScore(found.n_gold, found.n_predicted, found.precision, found.recall, found.f1)


def _same(gold: Sequence[Hashable], predicted: Sequence[Any]) -> Any:
    """The prediction made for every example although the gold labels differ; else None."""
    return predicted[0] if len(set(gold)) > 1 and len(set(predicted)) == 1 else None


def _type_of(tag: str) -> str:
    return OUTSIDE if tag == OUTSIDE else split_tag(tag)[1]


def _shown_set(labels: frozenset[str]) -> str:
    return ", ".join(sorted(labels)) or "no label"
