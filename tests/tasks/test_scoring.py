"""The scores of every kind of task, computed by hand; the metrics themselves have tests of their own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firth.errors import InputError
from firth.tasks.predictions import Answered, Chosen, Labelled, MultiLabelled, Span, TaggedText, Valued
from firth.tasks.scoring import (
    score_answers,
    score_choices,
    score_from,
    score_label_sets,
    score_labels,
    score_tags,
    score_values,
)
from firth.text.records import Answer, Choice, Question, Tagged, Text


def labelled(*labels: str) -> list[Labelled]:
    return [Labelled(label, 1.0, {label: 1.0}) for label in labels]


def texts(*labels: str | tuple[str, ...] | float | None) -> list[Text]:
    return [Text("a", label, f"f:{i}") for i, label in enumerate(labels, 1)]


def test_labels() -> None:
    scores = score_labels(texts("n", "y", "y", "y"), labelled("n", "y", "n", "y"), ("n", "y"))
    assert scores["accuracy"] == 0.75
    assert scores["f1"] == pytest.approx(2 * 2 / (2 * 2 + 1))  # of the second label
    assert scores["macro_f1"] == pytest.approx((0.8 + 2 / 3) / 2)
    assert scores["mcc"] == pytest.approx((2 * 1 - 0 * 1) / (2 * 2 * 3 * 1) ** 0.5)


def test_f1_is_of_two_labels_only() -> None:
    assert "f1" not in score_labels(texts("a", "b", "c"), labelled("a", "b", "b"), ("a", "b", "c"))


def test_label_sets() -> None:
    answers = [MultiLabelled(("a", "b"), {}), MultiLabelled((), {}), MultiLabelled(("b",), {})]
    scores = score_label_sets(texts(("a", "b"), ("a",), ("b", "a")), answers, ("a", "b"))
    assert scores["micro_f1"] == pytest.approx(2 * 3 / (5 + 3))
    assert scores["macro_f1"] == pytest.approx((2 * 1 / (3 + 1) + 1) / 2)
    assert scores["exact_match"] == pytest.approx(1 / 3)


def test_values() -> None:
    scores = score_values(texts(1.0, 2.0, 3.0), [Valued(2.0), Valued(4.0), Valued(9.0)], ())
    assert scores["spearman"] == pytest.approx(1)
    # Deviations -1, 0, 1 and -3, -1, 4.
    assert scores["pearson"] == pytest.approx(7 / (2 * 26) ** 0.5)
    assert scores["mean_absolute_error"] == pytest.approx(3)


def test_values_from_which_a_pair_is_similar() -> None:
    # Gold - + + -, predicted - + - +: one true positive, one false negative, one false positive.
    values = [Valued(2.999), Valued(3.0), Valued(1.0), Valued(4.5)]
    assert score_from(texts(1.0, 3.0, 5.0, 2.9), values, 3.0) == {"f1": pytest.approx(2 / (2 + 1 + 1))}
    assert score_from(texts(1.0), [Valued(2.0)], 3.0) == {"f1": 0.0}
    assert score_from(texts(1.0, 3.0, 5.0, 2.9), values, 2.0) == {"f1": pytest.approx(2 * 2 / (2 * 2 + 1 + 1))}


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=30))
def test_that_f1_is_scikit_learns(pairs: list[tuple[float, float]]) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    gold, predicted = zip(*pairs, strict=True)
    # As computed by KLUE's baseline.
    expected = metrics.f1_score([x >= 3 for x in gold], [x >= 3 for x in predicted], zero_division=0)
    assert score_from(texts(*gold), [Valued(x) for x in predicted], 3.0)["f1"] == pytest.approx(expected)


def tagged(*sentences: str) -> tuple[list[Tagged], list[TaggedText]]:
    """Sentences given as "gold:predicted" for each word."""
    pairs = [[word.split(":") for word in sentence.split()] for sentence in sentences]
    records = [
        Tagged("x" * len(words), tuple((i, i + 1) for i in range(len(words))), tuple(gold for gold, _ in words))
        for words in pairs
    ]
    return records, [TaggedText(tuple(tag for _, tag in words), (1.0,) * len(words), ()) for words in pairs]


def test_tags_of_entities() -> None:
    scores = score_tags(*tagged("B-PER:B-PER I-PER:O O:O", "B-LOC:B-LOC O:O"), ())
    assert scores["tag_accuracy"] == pytest.approx(4 / 5)
    assert (scores["entity_f1"], scores["precision"], scores["recall"]) == (0.5, 0.5, 0.5)
    assert "entity_macro_f1" not in scores


def test_plain_tags_have_an_accuracy_alone() -> None:
    assert score_tags(*tagged("NOUN:NOUN VERB:NOUN"), ()) == {"tag_accuracy": 0.5}


def test_words_outside_any_entity_are_scored_by_what_is_predicted() -> None:
    assert score_tags(*tagged("O:PER O:O"), ()) == {"tag_accuracy": 0.5}
    assert score_tags(*tagged("O:B-PER O:O"), ())["precision"] == 0
    assert "entity_f1" in score_tags(*tagged("O:O"), ())


@pytest.mark.parametrize("labels", [("O", "B-PER", "I-PER"), ("O", "B-PS", "I-PS")])
def test_a_models_labels_decide_which_scores_there_are(labels: tuple[str, ...]) -> None:
    """Seeds of one run predict differently, but have the same scores."""
    names = [set(score_tags(*tagged(f"O:O O:{tag}"), labels)) for tag in labels]
    assert names == [names[0]] * 3
    assert ("char_f1" in names[0]) == ("B-PS" in labels)
    assert "entity_f1" not in score_tags(*tagged("O:O O:NOUN"), ("NOUN", "O"))


def test_scores_of_characters_are_not_of_words() -> None:
    records = [Tagged("Ann ran", ((0, 3), (4, 7)), ("B-PS", "O"))]
    scores = score_tags(records, [TaggedText(("B-PS", "O"), (1.0, 1.0), ())], ("O", "B-PS", "I-PS"))
    assert scores["entity_f1"] == 1 and not {"char_f1", "char_f1_without_o", "entity_macro_f1"} & set(scores)


def test_tags_of_klue_have_its_scores_without_spaces() -> None:
    records = [Tagged("김 a", ((0, 1), (1, 2), (2, 3)), ("B-PS", "O", "O"))]
    wrong_space = [TaggedText(("B-PS", "B-LC", "O"), (1.0,) * 3, ())]
    scores = score_tags(records, wrong_space, ("O", "B-PS", "I-PS", "B-LC", "I-LC"))
    assert scores["entity_macro_f1"] == 1
    # conlleval knows no spaces: it counts the space's entity.
    assert scores["precision"] == 0.5


def answered(text: str, no_answer_score: float | None = None, best: str = "") -> Answered:
    spans = tuple(Span(t, 0, len(t), 0.0, 0.5) for t in dict.fromkeys((text, best)) if t)
    return Answered(text, 0, len(text), 1.0, no_answer_score, spans)


def question(*answers: str, id: str = "") -> Question:
    return Question("q", "c", tuple(Answer(text, 0) for text in answers), "f:1", id)


def test_answers_by_words_and_by_characters() -> None:
    questions = [question("the cat", "a dog"), question("서울 시")]
    scores = score_answers(questions, [answered("Dog!"), answered("서울")], ())
    assert scores["exact_match"] == 0.5
    found = [value for name, value in scores.items() if name.endswith("f1")]
    # By words (1 + 2/3) / 2; KorQuAD counts characters: "dog" in "a dog" 6/7, "서울" in "서울시" 4/5.
    assert sorted(found) == pytest.approx(sorted([(1 + 2 / 3) / 2, (6 / 7 + 4 / 5) / 2]))


def test_questions_that_share_an_id_count_each() -> None:
    scores = score_answers([question("a1", id="x"), question("b1", id="x")], [answered("a1"), answered("c1")], ())
    assert scores["exact_match"] == 0.5


def test_answers_where_some_have_none() -> None:
    questions = [question("yes"), question(), question()]
    scores = score_answers(questions, [answered("yes"), answered(""), answered("no")], ())
    assert scores["exact_match"] == pytest.approx(2 / 3)
    assert not [name for name in scores if "best" in name]


def test_the_best_threshold_is_looked_for_over_the_answers_themselves() -> None:
    """Both answers were refused; a threshold between -2 and 3 gives the first one, which is right."""
    questions = [question("yes"), question()]
    answers = [answered("", -2.0, best="yes"), answered("", 3.0, best="no")]
    scores = score_answers(questions, answers, ())
    assert scores["exact_match"] == 0.5
    (best,) = (value for name, value in scores.items() if name.startswith("best") and name.endswith("f1"))
    assert best == 1


def test_the_best_threshold_is_below_all_scores_where_answering_nothing_is_best() -> None:
    answers = [answered("no", -2.0, best="no"), answered("no", -3.0, best="no")]
    scores = score_answers([question("yes"), question()], answers, ())
    assert scores["best_squad_f1"] == 0.5 and scores["best_squad_f1_threshold"] == -4


def test_choices() -> None:
    records = [Choice("t", "q", ("a", "b", "c"), label) for label in (0, 2)]
    assert score_choices(records, [Chosen(0, "a", ()), Chosen(1, "b", ())], ()) == {"accuracy": 0.5}


def test_an_example_without_a_label_is_named() -> None:
    message = "^f:1: nothing to compare with: expected a labelled example"
    for score in (score_labels, score_label_sets, score_values):
        with pytest.raises(InputError, match=message):
            score(texts(None), [], ("a", "b"))  # type: ignore[operator]
    with pytest.raises(InputError, match=message):
        score_tags([Tagged("a", ((0, 1),), None, "f:1")], [], ())
    with pytest.raises(InputError, match=message):
        score_answers([Question("q", "c", None, "f:1")], [], ())
    with pytest.raises(InputError, match=message):
        score_choices([Choice("t", "q", ("a", "b"), None, "f:1")], [], ())
