"""What is fitted after training, against numbers worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest

from firth.finetuning.calibrate import calibrate
from firth.inference.score import EncodedSplit
from firth.tasks.answer import Passage, answer_answers
from firth.tasks.choose import choose_answers
from firth.tasks.classify import classify_answers, multilabel_answers
from firth.tasks.config import AnswerConfig, ChooseConfig, ClassifyConfig, MultiLabelConfig, RegressConfig
from firth.tasks.rows import Example, Outputs
from firth.text.records import Answer, Choice, Question, Text


def logits_of(rows: list[list[float]]) -> list[Outputs]:
    """One row per text."""
    return [[{"logits": np.array([row], np.float32)}] for row in rows]


def test_a_temperature_makes_shares_come_true() -> None:
    # Four texts, all predicted as a by 4 logits, three of them rightly: a share of 3/4 is a logit of ln 3.
    texts = [Text("x", label) for label in "aaab"] * 2500
    outputs = logits_of([[4.0, 0.0]] * 10_000)
    options, figures = calibrate("classify", ClassifyConfig(labels=("a", "b")), EncodedSplit(texts, [], {}), outputs)
    # Few examples would pull it towards 1: see the next test.
    assert options.temperature == pytest.approx(4 / math.log(3), rel=5e-3)
    answer = classify_answers(texts, [Example((), (1,), {})] * 10_000, outputs, options)[0]
    assert answer.probability == pytest.approx(0.75, abs=2e-3)
    assert figures["error_before"] == pytest.approx(1 / (1 + math.exp(-4)) - 0.75, abs=1e-4)
    assert figures["error_after"] < 0.05


def test_a_handful_of_right_answers_does_not_make_probabilities_of_one() -> None:
    texts = [Text("x", "a"), Text("x", "b")]
    options, _ = calibrate(
        "classify", ClassifyConfig(labels=("a", "b")), EncodedSplit(texts, [], {}), logits_of([[1.0, 0.0], [0.0, 1.0]])
    )
    assert 0.7 < options.temperature < 1


def test_fifty_right_answers_do_not_sharpen_a_model_that_is_sure() -> None:
    # As fine-tuning ends on a small held-out set: all right, each at odds of more than a hundred to one.
    texts = [Text("x", "a")] * 50
    options, figures = calibrate(
        "classify", ClassifyConfig(labels=("a", "b")), EncodedSplit(texts, [], {}), logits_of([[8.0, 0.0]] * 50)
    )
    assert 1 < options.temperature < 2
    assert figures["reliability_after"][0][0] < 1 - 1e-3


def choice_outputs(scores: list[list[float]]) -> tuple[list[Example], list[Outputs]]:
    examples = [Example((), (1,) * len(row), {}) for row in scores]
    return examples, [[{"logits": np.array([[score]], np.float32)} for score in row] for row in scores]


def test_a_temperature_of_questions_with_unequal_numbers_of_choices() -> None:
    # The third choice of every second question is never right and never likely: it must not count.
    records = [Choice("x", "", ("p", "q") if i % 2 else ("p", "q", "r"), [0, 0, 0, 1][i % 4]) for i in range(80)]
    examples, outputs = choice_outputs([[4.0, 0.0] if i % 2 else [4.0, 0.0, -200.0] for i in range(80)])
    options, figures = calibrate("choose", ChooseConfig(), EncodedSplit(records, examples, {}), outputs)
    # One in 82 right answers counts as wrong, one in 82 wrong ones as right.
    right = (0.75 * 81 + 0.25) / 82
    assert options.temperature == pytest.approx((4 / math.log(right / (1 - right))) ** (80 / 110), rel=1e-2)
    assert options.temperature == figures["temperature"]
    assert choose_answers(records, examples, outputs, options)[1].probabilities == pytest.approx((0.83, 0.17), abs=0.01)


def test_the_threshold_of_several_labels_is_the_best_and_nearest_to_a_half() -> None:
    def logit(share: float) -> float:
        return math.log(share / (1 - share))

    # a is right at a share of 0.32, wrong at 0.18: thresholds of 0.2 to 0.3 are perfect; 0.3 is nearest to a half.
    texts = [Text("x", ("a",)), Text("y", ())]
    outputs = logits_of([[logit(0.32)], [logit(0.18)]])
    options, figures = calibrate("multilabel", MultiLabelConfig(labels=("a",)), EncodedSplit(texts, [], {}), outputs)
    assert (options.threshold, figures["micro_f1"]) == (0.3, 1.0)
    examples = [Example((), (1,), {})] * 2
    assert [answer.labels for answer in multilabel_answers(texts, examples, outputs, options)] == [("a",), ()]


def asked(scores: list[tuple[float, float]]) -> tuple[list[Question], list[Example], list[Outputs]]:
    """Questions about one word: (score of "no answer", score of the word); every second question has no answer."""
    records, outputs = [], list[Outputs]()
    for i, (none, word) in enumerate(scores):
        records.append(Question("q", "Ann", (Answer("Ann", 0),) if i % 2 == 0 else ()))
        row = np.array([none / 2, -50.0, word / 2], np.float32)
        outputs.append([{"start": row, "end": row}])
    passage = Passage(np.array([[0, 3]]), ((0, 1),), 2)
    return records, [Example((), (1,), {}, passage)] * len(scores), outputs


@pytest.mark.parametrize(
    "scores",
    [
        [(2.0, 0.0), (6.0, 0.0), (1.0, 0.0), (7.0, 0.0)],  # "no answer" scores too high
        [(-9.0, 0.0), (-5.0, 0.0), (-8.0, 0.0), (-4.0, 0.0)],  # too low
    ],
)
def test_the_threshold_of_no_answer_parts_questions_with_an_answer_from_those_without(
    scores: list[tuple[float, float]],
) -> None:
    records, examples, outputs = asked(scores)
    given = AnswerConfig(can_refuse=True)
    options, figures = calibrate("answer", given, EncodedSplit(records, examples, {}), outputs)
    assert figures["f1"] == 1.0
    texts = [answer.text for answer in answer_answers(records, examples, outputs, options)]
    assert texts == ["Ann", "", "Ann", ""]
    assert [answer.text for answer in answer_answers(records, examples, outputs, given)] != texts


@pytest.mark.parametrize("answers", [(), (Answer("Ann", 0),)])
def test_questions_of_one_kind_leave_the_threshold_where_it_was(answers: tuple[Answer, ...]) -> None:
    records, examples, outputs = asked([(3.0, 0.0), (-1.0, 0.0), (9.0, 0.0), (-2.0, 0.0)])
    records = [Question("q", "Ann", answers) for _ in records]
    options, _ = calibrate("answer", AnswerConfig(can_refuse=True), EncodedSplit(records, examples, {}), outputs)
    assert options.threshold == 0


def test_of_equally_good_thresholds_the_nearest_to_zero_is_taken() -> None:
    """A wrong answer costs nothing, whether it is given or refused."""
    records, examples, outputs = asked([(-9.0, 0.0), (9.0, 0.0), (-8.0, 0.0), (8.0, 0.0)])
    options, figures = calibrate("answer", AnswerConfig(can_refuse=True), EncodedSplit(records, examples, {}), outputs)
    assert (options.threshold, figures["f1"]) == (0, 1)


def test_where_no_answer_at_all_is_best_none_is_given() -> None:
    records, examples, outputs = asked([(3.0, 0.0), (1.0, 0.0), (9.0, 0.0), (2.0, 0.0)])
    records = [Question("q", "Ann", ()) for _ in records[:3]] + [Question("q", "Ann", (Answer("Bob", 0),))]
    options, figures = calibrate("answer", AnswerConfig(can_refuse=True), EncodedSplit(records, examples, {}), outputs)
    assert figures["f1"] == 0.75
    assert {answer.text for answer in answer_answers(records, examples, outputs, options)} == {""}


@pytest.mark.parametrize(("kind", "options"), [("regress", RegressConfig()), ("answer", AnswerConfig())])
def test_other_tasks_stay_as_they_are(kind: str, options: Any) -> None:
    assert calibrate(kind, options, EncodedSplit([], [], {}), []) == (options, {})
