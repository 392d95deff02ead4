"""Scores of prediction files."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from firth.errors import ConfigError, InputError
from firth.finetuning.prediction_files import score_predictions
from firth.finetuning.recipe import LabelledConfig

GOLD = "text\tlabel\none\ta\ntwo\tb\nthree\tb\nfour\ta\n"


def scored(task: str, gold: Path, predictions: Path, **more: Any) -> dict[str, Any]:
    return score_predictions(task, str(gold), str(predictions), **more)


def write(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lines", "a\nb\na\na\n"),
        ("crlf", "a\r\nb\r\na\r\na\r\n"),
        ("glue.tsv", "index\tprediction\n0\ta\n1\tb\n2\ta\n3\ta\n"),
        ("ours.jsonl", "".join(f'{{"label": "{label}", "probability": 0.7}}\n' for label in "abaa")),
    ],
)
def test_labels_are_read_however_they_are_written(tmp_path: Path, name: str, text: str) -> None:
    found = scored("classify", write(tmp_path / "gold.tsv", GOLD), write(tmp_path / name, text))
    # Gold a b b a, predicted a b a a: F1 of a is 4/5, of b 2/3.
    assert found["scores"]["accuracy"] == 0.75
    assert found["scores"]["macro_f1"] == pytest.approx((4 / 5 + 2 / 3) / 2)
    assert found["scores"]["f1"] == pytest.approx(2 / 3)
    assert (found["task"], found["examples"]) == ("classify", 4)


def test_labels_of_json_are_read_as_those_of_the_data(tmp_path: Path) -> None:
    gold = write(tmp_path / "gold.jsonl", '{"text": "x", "label": true}\n{"text": "y", "label": 0}\n')
    assert (
        scored("classify", gold, write(tmp_path / "p.jsonl", '{"label": true}\n{"label": 0}\n'))["scores"]["accuracy"]
        == 1
    )


@pytest.mark.parametrize("choice", ["0.7", "true"])
def test_a_choice_is_a_whole_number(tmp_path: Path, choice: str) -> None:
    gold = write(tmp_path / "g.jsonl", '{"text": "a", "choices": ["x", "y"], "label": 0}\n')
    with pytest.raises(InputError, match="expected the number of the choice, counted from 0"):
        scored("choose", gold, write(tmp_path / "p.jsonl", f'{{"choice": {choice}}}\n'))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\nb\n", "2 predictions for 4 examples"),
        ("a\nb\na\na\nb\n", "5 predictions for 4 examples"),
        ('a\nb\na\n{"lable": "a"}\n', ":4: found no 'label'"),
        ('a\nb\n{"label": \na\n', ":3: not JSON"),
        ('a\nb\na\n{"label": ["a"]}\n', r":4: found \['a'\], expected label"),
        ('a\nb\n{"label": ' + "[" * 100_000 + "\na\n", ":3: not JSON"),
    ],
)
def test_bad_predictions_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        scored("classify", write(tmp_path / "gold.tsv", GOLD), write(tmp_path / "p", text))


def test_columns_without_names_are_found_by_content(tmp_path: Path) -> None:
    rows = [("ham" if n % 3 else "spam", f"a message of some words, number {n}") for n in range(12)]
    (tmp_path / "gold.tsv").write_text("".join(f"{label}\t{text}\n" for label, text in rows), "utf-8")
    (tmp_path / "found.txt").write_text("".join(f"{label}\n" for label, _ in rows), "utf-8")
    found = score_predictions("classify", str(tmp_path / "gold.tsv"), str(tmp_path / "found.txt"))
    assert found["scores"]["accuracy"] == 1 and found["examples"] == 12
    assert any("columns found by content: --columns text=1,label=0" in note for note in found["notes"])


def test_a_label_that_is_only_predicted_is_wrong_and_noted(tmp_path: Path) -> None:
    gold = write(tmp_path / "gold.tsv", "text\tlabel\none\ta\ntwo\ta\n")
    found = scored("classify", gold, write(tmp_path / "p", "a\nc\n"))
    assert found["scores"]["accuracy"] == 0.5
    assert any("predicted labels that no gold example has: c" in note for note in found["notes"])
    # With several labels too: an additional wrong label must not go unnoticed.
    gold = write(tmp_path / "gold.jsonl", '{"text": "x", "labels": ["a"]}\n')
    found = scored("multilabel", gold, write(tmp_path / "p", "a|c\n"))
    assert found["scores"]["micro_f1"] == pytest.approx(2 / 3) and found["scores"]["exact_match"] == 0


def test_a_published_data_set_has_no_other_labels(tmp_path: Path) -> None:
    gold = write(tmp_path / "dev.tsv", "sentence\tlabel\ngood\t1\nbad\t0\n")
    found = scored("glue/sst2", gold, write(tmp_path / "p", "1\n1\n"))
    assert found["scores"]["accuracy"] == 0.5
    with pytest.raises(InputError, match="prediction 2: 'positive': expected one of 0, 1"):
        scored("glue/sst2", gold, write(tmp_path / "p", "1\npositive\n"))
    with pytest.raises(ConfigError, match="--split nope: glue/sst2 has train, dev, test"):
        scored("glue/sst2", gold, write(tmp_path / "p", "1\n1\n"), split="nope")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lines", "x\n\nx|y\n"),
        ("last", "x\n\nx|y"),
        ("glue.tsv", "index\tprediction\n0\tx\n1\t\n2\tx|y\n"),
        ("ours.jsonl", '{"labels": ["x"]}\n\n{"labels": []}\n{"labels": ["x", "y"]}\n'),
    ],
)
def test_a_text_may_have_no_label(tmp_path: Path, name: str, text: str) -> None:
    gold = write(tmp_path / "gold.tsv", "text\tlabel\none\tx\ntwo\t\nthree\tx|y\n")
    found = scored("multilabel", gold, write(tmp_path / name, text))
    assert (
        found["scores"]["micro_f1"] == 1.0
        and found["examples"] == 3
        and not any("predicted" in n for n in found["notes"])
    )


def test_numbers(tmp_path: Path) -> None:
    gold = write(tmp_path / "gold.tsv", "text\tscore\na\t1\nb\t2\nc\t3\n")
    scores = scored("regress", gold, write(tmp_path / "p", "2\n4\n6\n"))["scores"]
    assert scores["pearson"] == pytest.approx(1) and scores["mean_absolute_error"] == 2
    for bad in ("nan", "many", "inf"):
        with pytest.raises(InputError, match=f":2: found '{bad}', expected value"):
            scored("regress", gold, write(tmp_path / "p", f"2\n{bad}\n6\n"))
    with pytest.raises(InputError, match=":2: found 999"):
        scored("regress", gold, write(tmp_path / "p", f'2\n{{"value": {"9" * 400}}}\n6\n'))


def test_a_data_set_has_scores_of_its_own(tmp_path: Path) -> None:
    gold = [
        {"guid": f"g{i}", "sentence1": "a", "sentence2": "b", "labels": {"real-label": value}}
        for i, value in enumerate([0.0, 3.0, 3.2, 5.0])
    ]
    write(tmp_path / "dev.json", json.dumps(gold))
    predictions = write(tmp_path / "p", "0.5\n2.5\n3\n4\n")
    found = scored("klue/sts", tmp_path, predictions)["scores"]
    assert found["f1"] == pytest.approx(2 * 2 / (2 * 2 + 1))
    # Deviations: gold -2.8, 0.2, 0.4, 2.2; predicted -2, 0, 0.5, 1.5.
    assert found["pearson"] == pytest.approx((5.6 + 0.2 + 3.3) / ((7.84 + 0.04 + 0.16 + 4.84) * 6.5) ** 0.5)
    table = "sentence1\tsentence2\tscore\n" + "".join(f"a\tb\t{row['labels']['real-label']}\n" for row in gold)
    assert "f1" not in scored("korsts", write(tmp_path / "sts-dev.tsv", table), predictions)["scores"]


def test_the_diagnostic_set_of_glue(tmp_path: Path) -> None:
    gold = Path(__file__).resolve().parents[1] / "fixtures" / "data" / "glue"
    predictions = write(tmp_path / "p", "contradiction\nentailment\nneutral\nneutral\n")
    scores = scored("glue/ax", gold, predictions)["scores"]
    # Gold has the labels 1, 2 and 1 times, the predictions 1, 1 and 2 times; three are right.
    covariance, spread = 4 * 3 - (1 * 1 + 2 * 1 + 1 * 2), (16 - (1 + 4 + 1)) * (16 - (1 + 1 + 4))
    assert scores["mcc"] == pytest.approx(covariance / spread**0.5) == pytest.approx(0.7)
    assert scores["accuracy"] == 0.75


def test_tags_as_columns_and_as_objects(tmp_path: Path) -> None:
    gold = write(tmp_path / "gold.conll", "Ann B-PER\nsang O\n\nOslo B-LOC\n")
    columns = scored("tag", gold, write(tmp_path / "p.conll", "Ann B-PER I-PER\nsang O O\n\nOslo B-LOC O\n"))
    objects = scored("tag", gold, write(tmp_path / "p.jsonl", '{"tags": ["B-PER", "O"]}\n{"tags": ["O"]}\n'))
    assert columns["scores"] == objects["scores"]
    assert objects["scores"]["precision"] == 1 and objects["scores"]["recall"] == 0.5
    assert objects["scores"]["tag_accuracy"] == pytest.approx(2 / 3)


def test_tags_of_other_words_are_scored_by_their_characters(tmp_path: Path) -> None:
    """Gold words end where entities do, which a prediction does not know."""
    row = {"text": "김연아는 왔다", "entities": [{"start": 0, "end": 3, "label": "PS"}]}
    gold = write(tmp_path / "gold.jsonl", json.dumps(row) + "\n")
    ours = {"tags": ["B-PS", "I-PS", "I-PS", "O", "O", "O"], "offsets": [[n, n + 1] for n in (0, 1, 2, 3, 5, 6)]}
    by_character = scored("tag", gold, write(tmp_path / "c.jsonl", json.dumps(ours) + "\n"))["scores"]
    assert by_character["entity_f1"] == by_character["tag_accuracy"] == 1
    words = {"tags": ["B-PS", "O"], "offsets": [[0, 4], [5, 7]]}
    by_word = scored("tag", gold, write(tmp_path / "w.jsonl", json.dumps(words) + "\n"))["scores"]
    assert by_word["entity_f1"] == 0 and by_word["tag_accuracy"] == pytest.approx(5 / 6)
    wrong = ([[0, 4], [5, 6]], "not those of its words"), ([[0, 4]], "2 tags and 1 offsets"), (3, "as firth predict")
    for other, told in wrong:
        with pytest.raises(InputError, match=told):
            scored("tag", gold, write(tmp_path / "o.jsonl", json.dumps(words | {"offsets": other}) + "\n"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.conll", "New B-LOC\nYork I-LOC\nsang O\n\nOslo S-LOC\n"),
        ("p.jsonl", '{"tags": ["B-LOC", "E-LOC", "O"]}\n{"tags": ["S-LOC"]}\n'),
        ("p.jsonl", '{"tags": ["LOC_B", "LOC_I", "-"]}\n{"tags": ["LOC_B"]}\n'),
    ],
)
def test_tags_of_another_scheme_are_those_of_the_gold_examples(tmp_path: Path, name: str, text: str) -> None:
    """Also where a prediction breaks the scheme, as taggers without a CRF may."""
    gold = write(tmp_path / "gold.conll", "New B-LOC\nYork E-LOC\nsang O\n\nOslo S-LOC\n")
    scores = scored("tag", gold, write(tmp_path / name, text))["scores"]
    assert scores["tag_accuracy"] == scores["entity_f1"] == 1


def test_a_predicted_tag_that_klue_does_not_have_is_wrong(tmp_path: Path) -> None:
    gold = write(tmp_path / "gold.tsv", "안\tB-PS\n감\tO\n\n강\tB-LC\n")
    known = scored("tag", gold, write(tmp_path / "a.conll", "안\tB-PS\n감\tO\n\n강\tO\n"))["scores"]
    other = scored("tag", gold, write(tmp_path / "b.conll", "안\tB-PS\n감\tO\n\n강\tB-XX\n"))["scores"]
    assert "char_f1" in known and "char_f1" not in other
    assert (other["tag_accuracy"], other["entity_f1"]) == (pytest.approx(2 / 3), 0.5)


@pytest.mark.parametrize("name", ["klue.tsv", "letters.conll"])
def test_characters_are_read_in_klues_own_layout(tmp_path: Path, name: str) -> None:
    gold = "## 1\t<안:PS> 감\n안\tB-PS\n \tO\n감\tO\n\n## 2\t강\n강\tB-LC\n"
    predicted = {
        "klue.tsv": gold.replace("B-LC", "O"),
        "letters.conll": "안\tB-PS\n감\tO\n\n강\tO\n",  # as CoNLL, without the spaces
    }
    file, said = write(tmp_path / "gold.tsv", gold), write(tmp_path / name, predicted[name])
    scores = scored("tag", file, said, config=LabelledConfig(format="klue"))["scores"]
    assert (scores["precision"], scores["recall"]) == (1, 0.5)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.conll", "Ann B-PER\n\nOslo B-LOC\n", "p.conll:1: 1 words, .*gold.conll:1 has 2"),
        ("p.conll", "Ann B-PER\nsang O\n", "1 sentences for 2"),
        ("p.jsonl", '{"tags": ["O"]}\n{"tags": ["O"]}\n', "p.jsonl:1: found 1 tags, expected one for each of the 2"),
    ],
)
def test_tags_that_do_not_fit_the_words(tmp_path: Path, name: str, text: str, message: str) -> None:
    gold = write(tmp_path / "gold.conll", "Ann B-PER\nsang O\n\nOslo B-LOC\n")
    with pytest.raises(InputError, match=message):
        scored("tag", gold, write(tmp_path / name, text))


def squad() -> str:
    asked = [
        {"id": "1", "question": "Who?", "answers": [{"text": "Ann", "answer_start": 0}], "is_impossible": False},
        {"id": "2", "question": "Why?", "answers": [], "is_impossible": True},
    ]
    return json.dumps({"data": [{"title": "t", "paragraphs": [{"context": "Ann sang.", "qas": asked}]}]})


def test_answers_by_question(tmp_path: Path) -> None:
    gold = write(tmp_path / "gold.json", squad())
    said = write(tmp_path / "p.json", '{"1": "Ann", "2": "Ann"}')
    assert scored("answer", gold, said)["scores"]["squad_f1"] == 0.5
    assert "best_squad_f1" not in scored("answer", gold, said)["scores"]
    odds = write(tmp_path / "odds.json", '{"1": 0.1, "2": 0.9}')
    found = scored("answer", gold, said, na_prob_file=str(odds))["scores"]
    assert (found["best_squad_f1"], found["best_squad_f1_threshold"]) == (1, 0.1)
    with pytest.raises(InputError, match="2: found None, expected a number"):
        scored("answer", gold, said, na_prob_file=str(write(odds, '{"1": 0.1}')))
    with pytest.raises(InputError, match="2: found 999.*, expected a number"):
        scored("answer", gold, said, na_prob_file=str(write(odds, f'{{"1": 0.1, "2": {"9" * 400}}}')))
    with pytest.raises(InputError, match=r"no answer for 1 questions, such as '2' \(.*qas\[1\]\)"):
        scored("answer", gold, write(tmp_path / "p.json", '{"1": "Ann"}'))
    with pytest.raises(InputError, match="found list, expected an object"):
        scored("answer", gold, write(tmp_path / "p.json", "[]"))


def test_equal_no_answer_scores_count_in_the_order_of_their_file(tmp_path: Path) -> None:
    """Source: SQuAD evaluate-v2.0.py, find_best_thresh, which sorts the scores' own keys."""
    asked = [
        {
            "id": name,
            "question": "?",
            "answers": [{"text": text, "answer_start": "cat mat".index(text)}] if text else [],
        }
        | {"is_impossible": not text}
        for name, text in (("a", "cat"), ("b", ""), ("c", "mat"), ("d", ""))
    ]
    document = {"data": [{"title": "t", "paragraphs": [{"context": "cat mat", "qas": asked}]}]}
    gold = write(tmp_path / "gold.json", json.dumps(document))
    said = write(tmp_path / "p.json", '{"a": "cat", "b": "mat", "c": "mat", "d": "hat"}')
    # By hand, from 2 of 4 without any answer: b and d lose one each, a and c gain one each.
    for scores, best in (('{"b": 0, "d": 0, "a": 0, "c": 1}', 0.5), ('{"a": 0, "b": 0, "c": 1, "d": 0}', 0.75)):
        found = scored("answer", gold, said, na_prob_file=str(write(tmp_path / "odds.json", scores)))["scores"]
        assert found["best_exact_match"] == found["best_squad_f1"] == best


def test_ids_put_predictions_in_order_and_occur_once(tmp_path: Path) -> None:
    gold = write(tmp_path / "g.tsv", "id\ttext\tlabel\n1\tone\ta\n2\ttwo\tb\n")
    lines = ['{"id": "2", "label": "b"}\n', '{"id": "1", "label": "a"}\n']
    assert scored("classify", gold, write(tmp_path / "p", "".join(lines)))["scores"]["accuracy"] == 1
    with pytest.raises(InputError, match="no prediction for '1'"):
        scored("classify", gold, write(tmp_path / "p", lines[0] * 2))
    write(gold, "id\ttext\tlabel\n1\tone\ta\n1\ttwo\tb\n")
    with pytest.raises(InputError, match=r"g\.tsv:3: found the id '1' again"):
        scored("classify", gold, write(tmp_path / "p", "".join(lines)))


@pytest.mark.parametrize(
    ("gold", "header", "names"),
    [("text\tlabel\none\ta\ntwo\tb\n", "index", "01"), ("id\ttext\tlabel\nx\tone\ta\ny\ttwo\tb\n", "id", "xy")],
)
def test_numbered_lines_may_come_in_any_order(tmp_path: Path, gold: str, header: str, names: str) -> None:
    file = write(tmp_path / "g.tsv", gold)
    lines = [f"{header}\tprediction\n", f"{names[1]}\tb\n", f"{names[0]}\ta\n"]
    assert scored("classify", file, write(tmp_path / "p.tsv", "".join(lines)))["scores"]["accuracy"] == 1
    for wrong in (f"{names[1]}\ta\n", "7\ta\n", "\ta\n"):
        with pytest.raises(InputError, match=r"p\.tsv: expected 0 to 1 in the first column, or the ids"):
            scored("classify", file, write(tmp_path / "p.tsv", "".join([*lines[:2], wrong])))


def test_numbers_without_a_header_are_those_of_the_examples(tmp_path: Path) -> None:
    gold = write(tmp_path / "g.tsv", "text\tlabel\none\ta\ntwo\tb\n")
    for text in ("1\tb\n0\ta\n", "Index\tPrediction\n1\tb\n0\ta\n"):
        assert scored("classify", gold, write(tmp_path / "p.tsv", text))["scores"]["accuracy"] == 1


def test_a_column_of_ids_is_not_one_of_numbers(tmp_path: Path) -> None:
    """Ids that are the numbers of other examples: the header decides, and without one nothing is guessed."""
    gold = write(tmp_path / "g.tsv", "id\ttext\tlabel\n2\tone\ta\n0\ttwo\tb\n1\tthree\tb\n")
    lines = "0\tb\n1\tb\n2\ta\n"
    assert scored("classify", gold, write(tmp_path / "p.tsv", f"id\tprediction\n{lines}"))["scores"]["accuracy"] == 1
    by_number = scored("classify", gold, write(tmp_path / "p.tsv", f"index\tprediction\n{lines}"))
    assert by_number["scores"]["accuracy"] == pytest.approx(1 / 3)
    with pytest.raises(InputError, match=r"p\.tsv: the first column may number .*: add a first line"):
        scored("classify", gold, write(tmp_path / "p.tsv", lines))


def test_a_label_may_be_named_as_a_column_is(tmp_path: Path) -> None:
    gold = write(tmp_path / "g.tsv", "text\tlabel\none\tid\ntwo\tb\n")
    assert scored("classify", gold, write(tmp_path / "p", "id\nb\n"))["scores"]["accuracy"] == 1


def test_labels_that_look_alike_are_one(tmp_path: Path) -> None:
    gold = write(tmp_path / "g.tsv", "text\tlabel\none\t긍정\ntwo\t부정\n")
    decomposed = unicodedata.normalize("NFD", "긍정 \n부정\n")
    assert scored("classify", gold, write(tmp_path / "p", decomposed))["scores"]["accuracy"] == 1
    assert scored("multilabel", gold, write(tmp_path / "p", decomposed))["scores"]["micro_f1"] == 1


def test_choices(tmp_path: Path) -> None:
    gold = write(tmp_path / "g.jsonl", '{"text": "x", "choices": ["p", "q"], "label": 1}\n' * 2)
    assert scored("choose", gold, write(tmp_path / "p", '1\n{"choice": 0}\n'))["scores"] == {"accuracy": 0.5}
    with pytest.raises(InputError, match=":2: found inf, expected the number of the choice"):
        scored("choose", gold, write(tmp_path / "p", '1\n{"choice": 1e999}\n'))


@pytest.mark.parametrize(("threshold", "answerable", "unanswerable"), [(None, 0, 1), (0.5, 0, 1), (3.0, 1, 0)])
def test_predictions_above_the_threshold_count_as_no_answer(
    tmp_path: Path, threshold: float | None, answerable: float, unanswerable: float
) -> None:
    """By hand: "Ann" answers the first question, the second has no answer; the threshold is 1.0 unless given."""
    gold, said = write(tmp_path / "gold.json", squad()), write(tmp_path / "p.json", '{"1": "Ann", "2": "Ann"}')
    odds = write(tmp_path / "odds.json", '{"1": 1.5, "2": 2.5}')
    found = scored("answer", gold, said, na_prob_file=str(odds), na_prob_threshold=threshold)["scores"]
    assert (found["answerable_exact_match"], found["answerable_f1"]) == (answerable, answerable)
    assert (found["unanswerable_exact_match"], found["unanswerable_f1"]) == (unanswerable, unanswerable)
    # The best threshold's result depends on the scores alone.
    assert found["best_exact_match"] == 1 and found["best_exact_match_threshold"] == 1.5


def test_the_scores_of_our_own_predictions_can_have_a_threshold(tmp_path: Path) -> None:
    gold = write(tmp_path / "gold.json", squad())
    lines = [{"id": "1", "text": "Ann", "no_answer_score": -1.0}, {"id": "2", "text": "Ann", "no_answer_score": 0.5}]
    said = write(tmp_path / "p.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    assert scored("answer", gold, said)["scores"]["squad_f1"] == 0.5
    assert scored("answer", gold, said, na_prob_threshold=0.0)["scores"]["squad_f1"] == 1
    # An answer that the model refused by its own threshold is given by a higher one.
    lines[0] |= {"text": "", "n_best": [{"text": ""}, {"text": "Ann"}]}
    refused = write(tmp_path / "r.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    assert scored("answer", gold, refused, na_prob_threshold=0.0)["scores"]["squad_f1"] == 1
    assert scored("answer", gold, refused, na_prob_threshold=-2.0)["scores"]["squad_f1"] == 0.5


def test_no_answer_scores_are_for_questions(tmp_path: Path) -> None:
    gold, said = write(tmp_path / "gold.json", squad()), write(tmp_path / "p.json", '{"1": "Ann", "2": ""}')
    with pytest.raises(ConfigError, match="are for question answering, not for classify"):
        scored("classify", gold, said, na_prob_threshold=1.0)
    with pytest.raises(ConfigError, match="are for question answering, not for translate"):
        scored("translate", gold, said, na_prob_file="x")
    with pytest.raises(InputError, match="has no no-answer scores: give them with --na-prob-file"):
        scored("answer", gold, said, na_prob_threshold=1.0)
    with pytest.raises(ConfigError, match="belongs to a .json of answers by question id"):
        scored("answer", gold, write(tmp_path / "p.jsonl", ""), na_prob_file="x")
