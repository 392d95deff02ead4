"""Question answering scores: equal to those of the official scripts, and by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest

from firth.metrics.question_answering import (
    korquad_v1,
    normalise_answer,
    normalise_korean_answer,
    squad_v1,
    squad_v2,
)

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "metrics"
Scorer = Callable[[dict[str, list[str]], dict[str, str]], dict[str, float]]


def golden(name: str) -> Any:
    return json.loads((FIXTURES / f"{name}.json").read_text("utf-8"))


BY_QUESTION = [
    pytest.param(squad_v1, golden("squad_v1"), id="squad_v1"),
    pytest.param(korquad_v1, golden("korquad_v1"), id="korquad_v1"),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat's a-an an!", "cats aan"),  # punctuation is removed before articles
        ("“the” A.", "“ ”"),
        ("Theatre an", "theatre"),
        ("1,000", "1000"),
        ("the", ""),
        ("Zürich\u00a0 \tÉ", "zürich é"),
    ],
)
def test_normalise_answer(text: str, expected: str) -> None:
    assert normalise_answer(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("《삼국사기》", "삼국사기"), ("서울(한양)", "서울 한양"), ("‘가’ “나”", "가 “나”"), ("3.1 The", "31 the")],
)
def test_normalise_korean_answer(text: str, expected: str) -> None:
    assert normalise_korean_answer(text) == normalise_korean_answer(normalize("NFD", text)) == expected


@pytest.mark.parametrize(("scorer", "case"), BY_QUESTION)
def test_each_answer_against_each_prediction_equals_the_script(scorer: Scorer, case: dict[str, Any]) -> None:
    for answer, exact_match, f1 in zip(case["texts"], case["exact_match"], case["f1"], strict=True):
        scores = [scorer({"q": [answer]}, {"q": prediction}) for prediction in case["texts"]]
        assert [one["exact_match"] for one in scores] == exact_match, answer
        assert [one["f1"] for one in scores] == pytest.approx(f1, abs=1e-6), answer


@pytest.mark.parametrize(("scorer", "case"), BY_QUESTION)
def test_a_set_equals_the_script(scorer: Scorer, case: dict[str, Any]) -> None:
    scores = scorer(case["gold"], case["predictions"])
    assert scores == pytest.approx(case["expected"] | {"total": 60, "missing": 2}, abs=1e-9)


def test_squad_v1_by_hand() -> None:
    gold = {"a": ["the red house", "a house"], "b": ["1066"], "c": ["x"], "d": ["y"]}
    scores = squad_v1(gold, {"a": "red old house", "b": "1066.", "c": "The", "other": "?"})
    # a: 2 common words of 3 and 2; b is correct; c is empty; d has no prediction.
    assert scores == pytest.approx({"exact_match": 25, "f1": (0.8 + 1) / 4 * 100, "total": 4, "missing": 1})


def test_an_empty_answer_to_an_empty_gold_answer() -> None:
    assert squad_v1({"q": ["the"]}, {"q": ""}) == {"exact_match": 100, "f1": 0, "total": 1, "missing": 0}
    assert squad_v2({"q": ["the"]}, {"q": ""})["f1"] == 100


def test_korquad_compares_characters() -> None:
    # 1394년 and 1394년부터: 5 common characters of 5 and 7. Only exact match counts the space.
    assert korquad_v1({"q": ["1394년"]}, {"q": "1394년부터"})["f1"] == pytest.approx(100 * 10 / 12)
    assert korquad_v1({"q": ["서울 한양"]}, {"q": "서울한양"}) == {
        "exact_match": 0,
        "f1": 100,
        "total": 1,
        "missing": 0,
    }


@pytest.mark.parametrize("case", golden("squad_v2"))
def test_squad_v2_equals_the_script(case: dict[str, Any]) -> None:
    scores = squad_v2(case["gold"], case["predictions"], case["no_answer_scores"], case["threshold"])
    assert scores == pytest.approx(case["expected"] | {"missing": 0}, abs=1e-9)


def test_squad_v2_by_hand() -> None:
    gold = {"a": ["red house"], "b": [], "c": [], "d": ["x"]}
    scores = squad_v2(gold, {"a": "house", "b": "", "c": "no", "d": ""})
    assert scores == pytest.approx(
        {
            "exact": 25,
            "f1": 100 * (2 / 3 + 1) / 4,
            "total": 4,
            "missing": 0,
            "HasAns_exact": 0,
            "HasAns_f1": 100 / 3,
            "HasAns_total": 2,
            "NoAns_exact": 50,
            "NoAns_f1": 50,
            "NoAns_total": 2,
        }
    )


def test_a_score_above_the_threshold_silences_the_answer() -> None:
    gold, predictions = {"a": ["x"], "b": []}, {"a": "x", "b": "y"}
    scores = {"a": 0.5, "b": 0.6}
    assert squad_v2(gold, predictions, scores, threshold=0.5)["exact"] == 100
    assert squad_v2(gold, predictions, scores, threshold=0.4)["exact"] == 50
    assert squad_v2(gold, predictions, scores, threshold=0.6)["exact"] == 50
    assert squad_v2(gold, predictions, scores, threshold=float("-inf"))["NoAns_exact"] == 100


def test_the_best_threshold_reaches_its_score() -> None:
    gold = {"a": ["x"], "b": [], "c": ["z"], "d": []}
    predictions = {"a": "x", "b": "y", "c": "z z", "d": "w"}
    scores = {"a": -3.0, "b": -0.5, "c": -1.0, "d": 4.0}
    found = squad_v2(gold, predictions, scores, 0.0)
    assert found["best_f1_thresh"] == -1.0
    assert squad_v2(gold, predictions, scores, -1.0)["f1"] == found["best_f1"]
    assert found["best_f1"] == pytest.approx(100 * (1 + 2 / 3 + 2) / 4)
    assert (found["best_exact"], found["best_exact_thresh"]) == (75.0, -3.0)


def test_the_better_order_has_the_higher_average_precision() -> None:
    gold, predictions = {"a": ["x"], "b": [], "c": ["z"]}, {"a": "x", "b": "y", "c": "z"}
    assert squad_v2(gold, predictions, {"a": 0.0, "c": 0.1, "b": 0.2})["pr_f1_ap"] == 100
    # Precision 0 at recall 0, 1/2 at recall 1/2, 2/3 at recall 1.
    assert squad_v2(gold, predictions, {"b": 0.0, "a": 0.1, "c": 0.2})["pr_f1_ap"] == pytest.approx(100 * 7 / 12)


def test_missing_predictions_score_nothing_anywhere() -> None:
    gold = {"a": ["x"], "b": [], "c": ["y"], "d": []}
    scores = squad_v2(gold, {"a": "x"}, {"a": 0.1, "b": 0.9, "c": 0.2, "d": 0.3}, threshold=0.5)
    assert (scores["exact"], scores["missing"], scores["NoAns_exact"], scores["best_f1"]) == (25, 3, 0, 25)


@pytest.mark.parametrize("scorer", [squad_v1, squad_v2, korquad_v1])
def test_no_questions_are_an_error(scorer: Scorer) -> None:
    with pytest.raises(ValueError, match="at least one question"):
        scorer({}, {"a": "x"})


@pytest.mark.parametrize("scorer", [squad_v1, korquad_v1])
def test_a_question_without_answers_is_an_error(scorer: Scorer) -> None:
    with pytest.raises(ValueError, match="question 'b' has no gold answer"):
        scorer({"a": ["x"], "b": []}, {"a": "x"})


@pytest.mark.parametrize("scorer", [squad_v1, squad_v2, korquad_v1])
def test_a_text_in_place_of_a_list_of_answers_is_an_error(scorer: Any) -> None:
    with pytest.raises(ValueError, match="question 'a' has the answer 'xyz'; expected a list"):
        scorer({"a": "xyz"}, {"a": "x"})


@pytest.mark.parametrize("scores", [{"a": 0.1}, {"a": 0.1, "b": float("nan")}])
def test_a_question_without_a_no_answer_score_is_an_error(scores: dict[str, float]) -> None:
    gold, predictions = {"a": ["x"], "b": []}, {"a": "x", "b": ""}
    with pytest.raises(ValueError, match="question 'b' has no no-answer score"):
        squad_v2(gold, predictions, scores)
