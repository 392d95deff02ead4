"""Ensembles: average the probabilities of several models of one task.

Source: Howard & Ruder 2018, §3.3 (bidirectional language model): a forward and a backward classifier. Each model
reads a text in its own tokens and windows and applies its own temperature; only predictions are combined.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from firth.baseline.model import Baseline
from firth.errors import ConfigError
from firth.folder import Loaded
from firth.inference.answering import answer_records, read_records, task_model
from firth.inference.model import Model
from firth.tasks.items import AT_ONCE, check_several, in_chunks, listed
from firth.tasks.learnt import learnt_pairs
from firth.tasks.predictions import Answered, Chosen, Labelled, MultiLabelled, Prediction, Span, Valued
from firth.tasks.rows import Example, Outputs
from firth.tasks.table import TASKS
from firth.tasks.tag import tag_answers
from firth.text.records import Choice, Question, Record, Text

# The sequences of some records and their outputs from one model.
Read = tuple[list[Example], list[Outputs]]


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Averages the predictions of models: ``firth.Ensemble([firth.load(a), firth.load(b)]).predict(texts)``.

    They may differ in system, tokenizer and lengths, but not in task or labels. The order of labels may differ;
    predictions use the first model's. ConfigError for models of different tasks or labels, or a task that cannot be
    averaged.
    """

    models: Sequence[Model | Baseline]

    def __post_init__(self) -> None:
        object.__setattr__(self, "models", tuple(self.models))  # a list could change later
        for number, model in enumerate(self.models, 1):
            if not isinstance(model, Model):
                raise ConfigError(f"model {number} is a baseline ({model.system}), which answers alone")
        check_members(self._members, [f"model {number}" for number in range(1, len(self.models) + 1)])

    @property
    def _members(self) -> list[Loaded]:
        return [cast(Model, model).loaded for model in self.models]

    def predict(self, items: Any) -> Any:
        """As ``Model.predict``, with probabilities and values averaged over the models."""
        given, several = listed(items)
        found = [answer for _, answer in self.predict_stream(given)]
        return found if several else found[0]

    def predict_stream(self, items: Iterable[Any], at_once: int = AT_ONCE) -> Iterator[tuple[Record, Prediction]]:
        """As ``Model.predict_stream``, averaged over the models."""
        return ensemble_stream(self._members, map(self.models[0].record, check_several(items)), at_once=at_once)


def check_members(members: Sequence[Loaded], names: Sequence[str]) -> None:
    """Check that models can be averaged, else ConfigError; ``names``: the models' names, for messages."""
    if not members:
        raise ConfigError("an ensemble needs at least one model")
    first, first_name = members[0], names[0]
    if len(members) > 1 and first.task not in _AVERAGED:
        raise ConfigError(
            f"models for {first.task} cannot be averaged, only those for {', '.join(_AVERAGED)}: use one alone"
        )
    for member, name in zip(members, names, strict=True):
        if member.task != first.task:
            raise ConfigError(
                f"{name} is a model for {member.task}, {first_name} for {first.task}: an ensemble needs "
                "models of one task"
            )
        if {learnt_pairs(member.provenance), learnt_pairs(first.provenance)} == {True, False}:
            raise ConfigError(
                f"of {name} and {first_name}, one has learnt from pairs of texts and the other from single texts: an "
                "ensemble needs models of one kind of input"
            )
        theirs, ours = task_model(member).config, task_model(first).config
        labels = set(getattr(theirs, "labels", ())) ^ set(getattr(ours, "labels", ()))
        if labels:
            raise ConfigError(
                f"{name} has other labels than {first_name}: only one of them knows "
                f"{', '.join(map(repr, sorted(labels)))}; average models that were fine-tuned on the same labels"
            )
        if getattr(theirs, "can_refuse", None) != getattr(ours, "can_refuse", None):
            refuses = name if theirs.can_refuse else first_name
            raise ConfigError(
                f"of {name} and {first_name}, only {refuses} has learnt from questions without an answer: average "
                "models that were fine-tuned on the same kind of questions"
            )
        if member.task == "tag":
            _check_taggers(member, first, f"{name} and {first_name}")


def _check_taggers(one: Loaded, other: Loaded, names: str) -> None:
    ours, theirs = task_model(one).config, task_model(other).config
    for key in ("unit", "scheme"):
        if getattr(ours, key) != getattr(theirs, key):
            raise ConfigError(f"{names} differ in head.{key}: {getattr(ours, key)}, {getattr(theirs, key)}")
    # Characters that share a token share its tag: different tokens would tag different spans.
    if ours.unit == "character" and one.tokenizer.fingerprint != other.tokenizer.fingerprint:
        raise ConfigError(f"{names} tag characters by different tokens: average models of one tokenizer")


def ensemble_stream(
    members: Sequence[Loaded], records: Iterable[Record], *, at_once: int = AT_ONCE, noted: Counter[str] | None = None
) -> Iterator[tuple[Record, Prediction]]:
    """As ``firth.inference.answering.answer_stream``, for several models that pass ``check_members``."""
    return in_chunks(partial(ensemble_records, members), records, at_once, noted)


def ensemble_records(members: Sequence[Loaded], records: Sequence[Any]) -> tuple[list[Any], dict[str, int]]:
    """As ``answer_records``, for several models. Each count of long texts is the largest of any model."""
    if len(members) == 1:
        return answer_records(members[0], records)
    task, configs = TASKS[members[0].task], [task_model(member).config for member in members]
    reads: list[Read] = []
    answers = []
    noted = Counter[str]()
    for member, config in zip(members, configs, strict=True):
        examples, outputs, long = read_records(member, records)
        reads.append((examples, outputs))
        answers.append(task.answers(records, examples, outputs, config))
        noted |= Counter(long)
    several = list(zip(*answers, strict=True))
    if members[0].task == "tag":
        means = tag_answers(records, reads[0][0], _mean_of_words(reads, configs), configs[0])
    else:
        mean_of = _MEANS[members[0].task]
        means = [mean_of(record, each, configs) for record, each in zip(records, several, strict=True)]
    found = [
        replace(mean, windows=max(answer.windows for answer in each), cut=any(answer.cut for answer in each))
        for mean, each in zip(means, several, strict=True)
    ]
    return found, dict(noted)


def _mean_of_words(reads: Sequence[Read], configs: Sequence[Any]) -> list[Outputs]:
    """Average taggers: each word's mean probabilities and most probable tag, as outputs of the first model.

    The models' windows start and end at different words, so words are matched by record and position in it.
    """
    labels = configs[0].labels
    sums: dict[tuple[int, int], np.ndarray] = {}
    for (examples, outputs), config in zip(reads, configs, strict=True):
        order = [config.labels.index(label) for label in labels]
        for example, (row,) in zip(examples, outputs, strict=True):
            for word, shares in zip(example.about, row["probability"][:, order].astype(np.float64), strict=True):
                place = word.record, word.first_unit
                sums[place] = sums.get(place, 0.0) + shares
    found: list[Outputs] = []
    for example in reads[0][0]:
        words = [sums[word.record, word.first_unit] / len(reads) for word in example.about]
        shares = np.array(words).reshape(-1, len(labels))
        found.append([{"tag": shares.argmax(1), "probability": shares}])
    return found


def _labelled(record: Text, answers: Sequence[Labelled], configs: Sequence[Any]) -> Labelled:
    shares = _shares(answers)
    best = max(shares, key=shares.__getitem__)
    return Labelled(best, shares[best], shares)


def _multilabelled(record: Text, answers: Sequence[MultiLabelled], configs: Sequence[Any]) -> MultiLabelled:
    shares, threshold = _shares(answers), _mean([config.threshold for config in configs])
    return MultiLabelled(tuple(label for label, share in shares.items() if share >= threshold), shares)


def _valued(record: Text, answers: Sequence[Valued], configs: Sequence[Any]) -> Valued:
    return Valued(_mean([answer.value for answer in answers]))


def _chosen(record: Choice, answers: Sequence[Chosen], configs: Sequence[Any]) -> Chosen:
    shares = [_mean(each) for each in zip(*(answer.probabilities for answer in answers), strict=True)]
    best = shares.index(max(shares))
    return Chosen(best, record.choices[best], tuple(shares))


def _answered(record: Question, answers: Sequence[Answered], configs: Sequence[Any]) -> Answered:
    """Choose the text with the highest mean probability; a model whose n-best list lacks it counts as 0.

    "No answer" counts as a span of its own; a question is refused if the mean of the models' no-answer scores, each
    relative to its threshold, is above 0.
    """
    # By text: of several places each model names the one that it finds most probable.
    shares, surest = dict[str, float](), dict[str, Span]()
    for answer in answers:
        for span in answer.n_best:
            shares[span.text] = shares.get(span.text, 0.0) + span.probability / len(answers)
            if span.text not in surest or span.probability > surest[span.text].probability:
                surest[span.text] = span
    # Ties keep the order of the first model's list.
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    n_best = tuple(
        replace(surest[text], score=math.log(max(share, 1e-30)), probability=share) for text, share in ranked
    )
    difference = None
    if all(answer.no_answer_score is not None for answer in answers):
        beyond = [a.no_answer_score - config.threshold for a, config in zip(answers, configs, strict=True)]
        difference = _mean(beyond) + configs[0].threshold
    refused = difference is not None and difference > configs[0].threshold
    chosen = next((span for span in n_best if bool(span.text) != refused), n_best[0])
    return Answered(chosen.text, chosen.start, chosen.end, chosen.probability, difference, n_best)


def _shares(answers: Sequence[Labelled] | Sequence[MultiLabelled]) -> dict[str, float]:
    """The mean probability of each label, in the order of the first model's labels."""
    return {label: _mean([a.probabilities[label] for a in answers]) for label in answers[0].probabilities}


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


# Combines the predictions of several models for one record, by kind of task; tags are combined from the outputs.
_MEANS: dict[str, Callable[[Any, Sequence[Any], Sequence[Any]], Any]] = {
    "classify": _labelled,
    "multilabel": _multilabelled,
    "regress": _valued,
    "choose": _chosen,
    "answer": _answered,
}
_AVERAGED = (*_MEANS, "tag")
