"""Entities and their scores: by hand, by their properties, and equal to those of the official scripts."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firth.metrics.tagging import EntityScores, conlleval, entities, klue_ner_scores, token_accuracy

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "metrics"
CONLLEVAL: dict[str, list[dict[str, Any]]] = json.loads((FIXTURES / "conlleval.json").read_text("utf-8"))
KLUE: list[dict[str, Any]] = json.loads((FIXTURES / "klue_ner.json").read_text("utf-8"))

tags = st.builds("{}-{}".format, st.sampled_from("BIES"), st.sampled_from(["A", "B"])) | st.just("O")
sentences = st.lists(st.lists(tags, min_size=1, max_size=8), min_size=1, max_size=4)


def split(lines: list[str]) -> list[list[str]]:
    return [line.split() for line in lines]


def named(case: dict[str, Any]) -> str:
    return case["name"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("B-A I-A O B-B", [("A", 0, 2), ("B", 3, 4)]),
        ("I-A I-A O I-B", [("A", 0, 2), ("B", 3, 4)]),  # IOB1
        ("I-A B-A I-A", [("A", 0, 1), ("A", 1, 3)]),  # IOB1: B separates adjacent entities
        ("I-A E-A E-A", [("A", 0, 2), ("A", 2, 3)]),  # IOE
        ("S-A S-A B-A I-A E-A B-A E-A", [("A", 0, 1), ("A", 1, 2), ("A", 2, 5), ("A", 5, 7)]),  # BIOES
        ("B-A I-B", [("A", 0, 1), ("B", 1, 2)]),
        ("S-A I-A", [("A", 0, 1), ("A", 1, 2)]),
        ("O O", []),
        ("", []),
        ("B I O I", [("", 0, 2), ("", 3, 4)]),
        ("B-A I", [("A", 0, 1), ("", 1, 2)]),
        ("B-no-name I-no-name I-no", [("no-name", 0, 2), ("no", 2, 3)]),
        ("O-A I-A", [("A", 1, 2)]),
    ],
)
def test_entities(line: str, expected: list[tuple[str, int, int]]) -> None:
    assert entities(line.split()) == expected


@given(st.lists(tags))
def test_every_word_but_o_is_in_exactly_one_entity(sentence: list[str]) -> None:
    covered = [i for _, first, end in entities(sentence) for i in range(first, end)]
    assert covered == [i for i, tag in enumerate(sentence) if tag != "O"]
    assert all({tag[2:] for tag in sentence[first:end]} == {label} for label, first, end in entities(sentence))


@pytest.mark.parametrize("case", CONLLEVAL["perl"], ids=named)
def test_equal_to_conlleval(case: dict[str, Any]) -> None:
    scores = conlleval(split(case["gold"]), split(case["predicted"]))
    counts = [scores.overall.n_gold, scores.overall.n_predicted, scores.overall.n_correct]
    assert [scores.n_tokens, *counts] == case["n_tokens_gold_predicted_correct"]
    shares = [scores.token_accuracy, scores.precision, scores.recall, scores.f1]
    # conlleval prints percentages with two decimals.
    assert [100 * share for share in shares] == pytest.approx(case["accuracy_precision_recall_f1"], abs=0.0051)
    by_label = {
        label: [100 * one.precision, 100 * one.recall, 100 * one.f1, one.n_predicted]
        for label, one in scores.by_label.items()
    }
    expected = case["by_label_precision_recall_f1_found"]
    assert list(by_label) == list(expected)
    for label, row in by_label.items():
        assert row == pytest.approx(expected[label], abs=0.0051)


@pytest.mark.parametrize("case", CONLLEVAL["python"], ids=named)
def test_equal_to_conlleval_of_bioes(case: dict[str, Any]) -> None:
    scores = conlleval(split(case["gold"]), split(case["predicted"]))
    assert scores.by_label == {label: EntityScores(*counts) for label, counts in case["by_label"].items()}


def test_conlleval_by_hand() -> None:
    gold = ["B-A I-A O B-B", "B-A"]
    predicted = ["B-A I-A O B-A", "I-A"]
    scores = conlleval(split(gold), split(predicted))
    assert scores.overall == EntityScores(n_gold=3, n_predicted=3, n_correct=2)
    assert scores.by_label == {"A": EntityScores(2, 3, 2), "B": EntityScores(1, 0, 0)}
    assert (scores.precision, scores.recall, scores.f1) == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    assert scores.token_accuracy == pytest.approx(3 / 5)


def test_sets_without_entities_score_zero() -> None:
    scores = conlleval([["O", "O"]], [["O", "O"]])
    assert (scores.precision, scores.recall, scores.f1, scores.token_accuracy) == (0.0, 0.0, 0.0, 1.0)
    assert scores.by_label == {}


def test_entities_end_with_their_sentence() -> None:
    assert conlleval([["B-A"], ["I-A"]], [["B-A"], ["I-A"]]).overall.n_gold == 2


def test_a_sentence_without_words_does_no_harm() -> None:
    assert conlleval([[], ["B-A"]], [[], ["B-A"]]).f1 == 1.0


@given(sentences)
def test_right_tags_score_one(gold: list[list[str]]) -> None:
    scores = conlleval(gold, gold)
    assert scores.token_accuracy == 1.0
    assert scores.f1 == (1.0 if any(map(entities, gold)) else 0.0)


@given(sentences, st.data())
def test_gold_and_predicted_mirror_each_other(gold: list[list[str]], data: st.DataObject) -> None:
    predicted = [data.draw(st.lists(tags, min_size=len(s), max_size=len(s))) for s in gold]
    there, back = conlleval(gold, predicted), conlleval(predicted, gold)
    assert (there.precision, there.recall, there.f1) == (back.recall, back.precision, back.f1)


def test_token_accuracy_takes_any_tags() -> None:
    assert token_accuracy([["NN", "VB"], ["DT"]], [["NN", "JJ"], ["DT"]]) == pytest.approx(2 / 3)


@pytest.mark.parametrize("bad", ["PER", "L-PER", "", "-PER", "b-PER"])
def test_an_unknown_tag_is_an_error(bad: str) -> None:
    with pytest.raises(ValueError, match=f"tag '{bad}' starts with none of B, I, E, S, O"):
        entities(["O", bad])


@pytest.mark.parametrize("score", [conlleval, token_accuracy, klue_ner_scores])
def test_sentences_that_do_not_match_are_an_error(score: Any) -> None:
    with pytest.raises(ValueError, match="sentence 2 has 1 gold tags and 2 predicted"):
        score([["O"], ["O"]], [["O"], ["O", "O"]])
    with pytest.raises(ValueError, match="2 gold, 1 predicted"):
        score([["O"], ["O"]], [["O"]])
    for nothing in ([], [[]]):
        with pytest.raises(ValueError, match="at least one tag"):
            score(nothing, nothing)


@pytest.mark.parametrize("case", KLUE, ids=named)
def test_equal_to_the_klue_baseline(case: dict[str, Any]) -> None:
    scores = klue_ner_scores(split(case["gold"]), split(case["predicted"]))
    assert {name: 100 * score for name, score in scores.items()} == pytest.approx(case["percent"], abs=1e-9)


def test_klue_by_hand() -> None:
    # The second predicted entity starts with I, so it does not count, unlike in conlleval.
    gold, predicted = [["B-PS", "I-PS", "O", "B-DT", "I-DT"]], [["B-PS", "I-PS", "O", "I-DT", "I-DT"]]
    assert conlleval(gold, predicted).f1 == 1.0
    scores = klue_ner_scores(gold, predicted)
    assert scores["entity_macro_f1"] == pytest.approx((1 + 0) / 2)
    # F1: B-DT 0, I-DT 2/3, B-PS, I-PS and O 1; the eight tags that never occur count as 1.
    assert scores["character_macro_f1"] == pytest.approx((0 + 2 / 3 + 11) / 13)
    assert scores["character_macro_f1_without_o"] == pytest.approx((0 + 2 / 3 + 10) / 12)


def test_klue_without_entities_is_zero() -> None:
    scores = klue_ner_scores([["O"]], [["O"]])
    assert scores == {"entity_macro_f1": 0.0, "character_macro_f1": 1.0, "character_macro_f1_without_o": 1.0}


def test_klue_knows_its_thirteen_tags_only() -> None:
    with pytest.raises(ValueError, match="tag 'B-PER' is not one of KLUE-NER's: B-PS I-PS"):
        klue_ner_scores([["O"]], [["B-PER"]])
