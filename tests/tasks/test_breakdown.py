"""What a score hides: numbers per label, confusion matrices, baselines, and models with constant predictions."""

import json
import tracemalloc
from typing import Any

import pytest

from firth.tasks.breakdown import Breakdown
from firth.tasks.predictions import Answered, Chosen, Labelled, MultiLabelled, TaggedText, Valued
from firth.tasks.table import TASKS
from firth.text.records import Answer, Choice, Question, Tagged, Text


def labelled(gold: str, predicted: str) -> Breakdown:
    texts, answers = [Text("x", label) for label in gold], [Labelled(label, 1.0, {}) for label in predicted]
    return TASKS["classify"].break_down(texts, answers, ("a", "b", "c"))


def tagged(gold: list[str], predicted: list[str]) -> Breakdown:
    words = " ".join("w" for _ in gold)
    record = Tagged(words, tuple((2 * i, 2 * i + 1) for i in range(len(gold))), tuple(gold))
    return TASKS["tag"].break_down([record], [TaggedText(tuple(predicted), (), ())], ())


def test_labels_are_counted_and_scored() -> None:
    found = labelled("aaabbc", "aabbba")
    assert found.confusion_labels == ("a", "b", "c")
    assert found.confusion == ((2, 1, 0), (0, 2, 0), (1, 0, 0))
    a = found.labels["a"]
    assert (a.examples, a.predicted) == (3, 3)
    assert (a.precision, a.recall, a.f1) == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    assert (found.labels["c"].predicted, found.labels["c"].f1) == (0, 0)
    assert found.majority is not None and found.always is None
    assert (found.majority.answer, found.majority.metric, found.majority.score) == ("a", "accuracy", 0.5)
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict()


def test_many_labels_have_a_list_in_the_place_of_a_matrix() -> None:
    names = [f"label {n}" for n in range(50_000)]
    texts = [Text("x", names[n]) for n in (7, 7, 7, 9)]
    answers = [Labelled(names[n], 1.0, {}) for n in (8, 7, 8, 9)]
    tracemalloc.start()
    found = TASKS["classify"].break_down(texts, answers, names)
    assert tracemalloc.get_traced_memory()[1] < 50e6  # a matrix would take 20 GB
    tracemalloc.stop()
    assert found.confusion == ()
    assert found.confused == (("label 7", "label 8", 2), ("label 7", "label 7", 1), ("label 9", "label 9", 1))
    assert (found.labels["label 7"].examples, found.labels["label 8"].predicted) == (3, 2)
    assert found.majority is not None and (found.majority.answer, found.majority.score) == ("label 7", 0.75)
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict() and len(found.to_dict()["confused"]) == 3
    assert "confused" not in labelled("ab", "ab").to_dict()


@pytest.mark.parametrize(
    ("gold", "predicted", "always"),
    [("aab", "aaa", "a"), ("aab", "ccc", "c"), ("aab", "aba", None), ("aaa", "aaa", None)],
)
def test_one_answer_for_all_is_flagged_where_the_labels_differ(gold: str, predicted: str, always: str | None) -> None:
    assert labelled(gold, predicted).always == always


def test_sets_of_labels() -> None:
    texts = [Text("x", ("a",)), Text("x", ("a", "b")), Text("x", ("a",))]
    answers = [MultiLabelled(labels, {}) for labels in (("a",), ("a",), ("a",))]
    found = TASKS["multilabel"].break_down(texts, answers, ("a", "b"))
    assert [(s.examples, s.predicted, s.recall) for s in found.labels.values()] == [(3, 3, 1), (1, 0, 0)]
    assert found.majority is not None
    assert (found.majority.answer, found.majority.score) == ("a", pytest.approx(2 / 3))
    assert found.always == "a" and not found.confusion


def test_numbers_have_their_mean_as_baseline() -> None:
    texts = [Text("x", value) for value in (1.0, 2.0, 6.0)]
    task = TASKS["regress"]
    found = task.break_down(texts, [Valued(3.0), Valued(3.0), Valued(3.001)], ())
    assert found.majority is not None
    assert (found.majority.answer, found.majority.score) == ("3", 2.0)
    assert found.always == "3"
    assert task.break_down(texts, [Valued(1.0), Valued(2.0), Valued(3.0)], ()).always is None


def test_entities_are_counted_by_type_and_words_confused() -> None:
    found = tagged(["B-PER", "I-PER", "O", "B-LOC", "O"], ["B-PER", "I-PER", "O", "B-PER", "O"])
    assert found.unit == "entities"
    assert {k: (s.examples, s.predicted) for k, s in found.labels.items()} == {"LOC": (1, 0), "PER": (1, 2)}
    assert found.labels["PER"].precision == 0.5
    assert found.confusion_labels == ("LOC", "PER", "O")
    assert found.confusion == ((0, 1, 0), (0, 2, 0), (0, 0, 2))
    assert found.majority is not None and (found.majority.answer, found.majority.score) == ("O", 0.4)
    assert tagged(["B-PER", "O"], ["O", "O"]).always == "O"


def test_plain_tags_are_counted_by_word() -> None:
    found = tagged(["NOUN", "VERB", "NOUN"], ["NOUN", "NOUN", "NOUN"])
    assert (found.unit, found.confusion, found.always) == ("words", ((2, 0), (1, 0)), "NOUN")
    assert found.majority is not None and found.majority.score == pytest.approx(2 / 3)


def answered(*texts: str) -> list[Any]:
    return [Answered(text, 0, 0, 1.0, None, ()) for text in texts]


def test_questions_without_an_answer_make_a_baseline() -> None:
    with_answer, without = Question("q", "c", (Answer("c", 0),)), Question("q", "c", ())
    task = TASKS["answer"]
    found = task.break_down([with_answer, without, without], answered("c", "", "c"), ())
    assert found.confusion == ((1, 0), (1, 1))
    assert found.majority is not None and found.majority.score == pytest.approx(2 / 3)
    assert found.always is None
    assert task.break_down([with_answer, without], answered("", ""), ()).always == "no answer"
    assert task.break_down([with_answer], answered("c"), ()).majority is None


def test_choices_are_counted_by_place() -> None:
    records = [Choice("x", "", ("a", "b", "c"), label) for label in (0, 2, 2)]
    found = TASKS["choose"].break_down(records, [Chosen(2, "", ()) for _ in records], ())
    assert found.confusion == ((0, 0, 1), (0, 0, 0), (0, 0, 2))
    assert (found.always, found.labels["2"].examples) == ("2", 2)
