"""Scores of models and of files of predictions."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from firth.config import file_sha256
from firth.errors import ConfigError, InputError
from firth.finetuning.evaluate import compare, evaluate, score_predictions
from firth.finetuning.recipe import LabelledConfig
from firth.finetuning.run import finetune, resolve
from firth.inference.model import load

GOLD = "text\tlabel\none\ta\ntwo\tb\nthree\tb\nfour\ta\n"


def scored(task: str, gold: Path, predictions: Path, **more: Any) -> dict[str, Any]:
    return score_predictions(task, str(gold), str(predictions), LabelledConfig(), **more)


def write(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


# -- predictions ---------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\nb\n", "2 predictions for 4 examples"),
        ("a\nb\na\na\nb\n", "5 predictions for 4 examples"),
        ('a\nb\na\n{"lable": "a"}\n', ":4: found no 'label'"),
        ('a\nb\n{"label": \na\n', ":3: not JSON"),
    ],
)
def test_bad_predictions_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        scored("classify", write(tmp_path / "gold.tsv", GOLD), write(tmp_path / "p", text))


def test_a_label_that_is_only_predicted_is_wrong_and_noted(tmp_path: Path) -> None:
    gold = write(tmp_path / "gold.tsv", "text\tlabel\none\ta\ntwo\ta\n")
    found = scored("classify", gold, write(tmp_path / "p", "a\nc\n"))
    assert found["scores"]["accuracy"] == 0.5
    assert any("predicted, but not a label of any gold example: c" in note for note in found["notes"])
    # Of several labels too: a false one more may not go unseen.
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


def test_numbers(tmp_path: Path) -> None:
    gold = write(tmp_path / "gold.tsv", "text\tscore\na\t1\nb\t2\nc\t3\n")
    scores = scored("regress", gold, write(tmp_path / "p", "2\n4\n6\n"))["scores"]
    assert scores["pearson"] == pytest.approx(1) and scores["mean_absolute_error"] == 2
    for bad in ("nan", "many", "inf"):
        with pytest.raises(InputError, match=f":2: found '{bad}', expected value"):
            scored("regress", gold, write(tmp_path / "p", f"2\n{bad}\n6\n"))


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
    # Gold has 1, 2, 1 of the labels, predicted are 1, 1, 2; three are right.
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
    assert scored("answer", gold, said, odds=str(odds))["scores"]["best_squad_f1"] == 1
    with pytest.raises(InputError, match=r"no answer for 1 questions, such as '2' \(.*qas\[1\]\)"):
        scored("answer", gold, write(tmp_path / "p.json", '{"1": "Ann"}'))
    with pytest.raises(InputError, match="found list, expected an object"):
        scored("answer", gold, write(tmp_path / "p.json", "[]"))


def test_ids_put_predictions_in_order_and_occur_once(tmp_path: Path) -> None:
    gold = write(tmp_path / "g.tsv", "id\ttext\tlabel\n1\tone\ta\n2\ttwo\tb\n")
    lines = ['{"id": "2", "label": "b"}\n', '{"id": "1", "label": "a"}\n']
    assert scored("classify", gold, write(tmp_path / "p", "".join(lines)))["scores"]["accuracy"] == 1
    with pytest.raises(InputError, match="no prediction for '1'"):
        scored("classify", gold, write(tmp_path / "p", lines[0] * 2))
    write(gold, "id\ttext\tlabel\n1\tone\ta\n1\ttwo\tb\n")
    with pytest.raises(InputError, match=r"g\.tsv:3: found the id '1' again"):
        scored("classify", gold, write(tmp_path / "p", "".join(lines)))


def test_choices(tmp_path: Path) -> None:
    gold = write(tmp_path / "g.jsonl", '{"text": "x", "choices": ["p", "q"], "label": 1}\n' * 2)
    assert scored("choose", gold, write(tmp_path / "p", '1\n{"choice": 0}\n'))["scores"] == {"accuracy": 0.5}


# -- models --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def classifier(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluate")
    train = write(folder / "t.tsv", "text\tlabel\n" + "".join(f"the river {i}\ta\nwinter {i}\tb\n" for i in range(10)))
    plain = {"task": "classify", "model": str(tiny_run), "data": {"train": str(train)}, "train": {"epochs": 0.1}}
    finetune(*resolve(plain, ["train.precision=float32"], "test"), folder / "out", tell=lambda text: None)
    return folder / "out"


def test_a_model_and_its_predictions_have_the_same_scores(classifier: Path, tmp_path: Path) -> None:
    gold = write(tmp_path / "gold.tsv", GOLD)
    found = evaluate(classifier, str(gold), LabelledConfig())
    answers = load(classifier).predict(["one", "two", "three", "four"])
    said = write(tmp_path / "p", "".join(f"{answer.label}\n" for answer in answers))
    assert found["scores"] == scored("classify", gold, said)["scores"]


def test_several_models_are_scored_as_one(classifier: Path, tiny_run: Path, tmp_path: Path) -> None:
    gold = write(tmp_path / "gold.tsv", GOLD)
    found = evaluate(classifier, str(gold), LabelledConfig(), others=[classifier / "model"])
    assert found["scores"] == evaluate(classifier, str(gold), LabelledConfig())["scores"]
    with pytest.raises(ConfigError, match="run is a model for pretraining, .*out for classify"):
        evaluate(classifier, str(gold), LabelledConfig(), others=[tiny_run])
    with pytest.raises(ConfigError, match="judge one model"):
        evaluate(classifier, str(gold), LabelledConfig(), precision="bfloat16", max_drop=1.0, others=[classifier])


def test_one_class_alone_and_long_texts_are_scored(classifier: Path, tmp_path: Path) -> None:
    gold = write(tmp_path / "gold.tsv", "text\tlabel\n" + "winter " * 600 + "\tb\nx\tb\n")
    found = evaluate(classifier, str(gold), LabelledConfig())
    assert set(found["scores"]) == {"accuracy", "macro_f1", "mcc", "f1"}
    assert any("windows: 1" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("glue/stsb", "is a model for classify, but glue/stsb is a task of kind regress"),
        ("tag", "is a model for classify, but tag is a task of kind tag"),
        ("clasify", "did you mean 'classify'"),
    ],
)
def test_a_model_of_another_task(classifier: Path, tmp_path: Path, task: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate(classifier, str(write(tmp_path / "g.tsv", GOLD)), LabelledConfig(), task=task)


def test_a_label_the_model_never_saw(classifier: Path, tmp_path: Path) -> None:
    gold = write(tmp_path / "gold.tsv", GOLD + "five\tc\n")
    with pytest.raises(InputError, match=r"gold.tsv:6: .*'c'.*a, b"):
        evaluate(classifier, str(gold), LabelledConfig())
    found = evaluate(classifier, str(gold), LabelledConfig(skip_bad=True))
    assert found["examples"] == 4 and any("bad rows left out: 1" in note for note in found["notes"])


def test_a_pre_trained_model_has_no_scores(tiny_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has not learnt a task yet: fine-tune it"):
        evaluate(tiny_run, str(write(tmp_path / "g.tsv", GOLD)), LabelledConfig())


# -- fewer bits ----------------------------------------------------------------------------------------------


@pytest.fixture
def own_copy(classifier: Path, tmp_path: Path) -> Path:
    """The classifier, in a folder that a test may write into."""
    shutil.copytree(classifier / "model", tmp_path / "run" / "model")
    return tmp_path / "run"


@pytest.fixture
def gold(tmp_path: Path) -> Path:
    return write(tmp_path / "dev.tsv", "text\tlabel\n" + "the river 1\ta\nwinter 3\tb\nthe mill\ta\nthe queen\tb\n")


def pretend(monkeypatch: pytest.MonkeyPatch, float32: float, fast: float) -> None:
    """Scores of the first pass, which is float32's, and of the second."""
    scores = iter([{"macro_f1": 0.0, "accuracy": float32}, {"macro_f1": 1.0, "accuracy": fast}])
    monkeypatch.setattr("firth.finetuning.evaluate._scores", lambda *arguments: (next(scores), {}))


def test_int8_is_compared_with_float32_and_recorded(own_copy: Path, gold: Path) -> None:
    found = evaluate(own_copy, str(gold), LabelledConfig(), precision="int8", max_drop=100)
    plain = evaluate(own_copy, str(gold), LabelledConfig())
    compared = found["compared"]
    assert compared["float32"] == plain["scores"] and "compared" not in plain
    assert found["path"].endswith(", int8") and plain["path"].endswith(", float32")
    assert compared["metric"] == "accuracy" and compared["passed"]
    assert compared["drop"] == pytest.approx(100 * (plain["scores"]["accuracy"] - found["scores"]["accuracy"]))
    model = load(own_copy, precision="int8")
    answers = model.predict(["the river 1", "winter 3", "the mill", "the queen"])
    right = [answer.label == label for answer, label in zip(answers, "abab", strict=True)]
    assert found["scores"]["accuracy"] == sum(right) / 4
    assert json.loads((own_copy / "model" / "int8.json").read_text()) == {
        "weights": file_sha256(own_copy / "model" / "model.safetensors"), "task": "classify", "metric": "accuracy",
        "data": {"dev.tsv": file_sha256(gold)}, "examples": 4, "max_drop": 100,
        "float32": plain["scores"]["accuracy"], "int8": found["scores"]["accuracy"],
    }  # fmt: skip


def test_int8_that_costs_too_much_is_not_recorded(
    own_copy: Path, gold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = own_copy / "model" / "int8.json"
    for float32, int8, passed in [(0.8, 0.794, False), (0.8, 0.795, True), (0.8, 0.9, True), (0.8, math.nan, False)]:
        pretend(monkeypatch, float32, int8)
        found = evaluate(own_copy, str(gold), LabelledConfig(), precision="int8")
        assert found["scores"]["accuracy"] is int8 and found["compared"]["float32"]["accuracy"] == float32
        assert found["compared"]["max_drop"] == 0.5 and found["compared"]["passed"] == passed
        assert record.exists() == passed, "a comparison that failed leaves no older record"
    pretend(monkeypatch, 0.8, 0.794)
    evaluate(own_copy, str(gold), LabelledConfig(), precision="int8", max_drop=0.7)
    found = json.loads(record.read_text())
    assert (found["float32"], found["int8"], found["max_drop"]) == (0.8, 0.794, 0.7)


def test_bfloat16_is_compared_only_if_asked_and_never_recorded(
    own_copy: Path, gold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firth.machine.has_fast_bfloat16", lambda: True)
    found = evaluate(own_copy, str(gold), LabelledConfig(), precision="bfloat16")
    assert "compared" not in found and found["path"].endswith(", bfloat16")
    found = evaluate(own_copy, str(gold), LabelledConfig(), precision="auto", max_drop=0.2)
    assert found["compared"]["float32"] == evaluate(own_copy, str(gold), LabelledConfig())["scores"]
    assert not (own_copy / "model" / "int8.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_drop": 0.5}, "--max-drop compares another precision with float32: give --precision"),
        ({"precision": "int8", "max_drop": -1.0}, "--max-drop -1.0: expected points from 0 to 100"),
        ({"precision": "int8", "max_drop": math.nan}, "--max-drop nan: expected points from 0 to 100"),
    ],
)
def test_comparisons_that_are_none(classifier: Path, gold: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate(classifier, str(gold), LabelledConfig(), **options)


def test_what_cannot_be_computed_is_said_before_the_first_pass(
    own_copy: Path, gold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firth.machine.has_fast_bfloat16", lambda: False)
    monkeypatch.setattr("firth.finetuning.evaluate._scores", lambda *arguments: pytest.fail("a pass"))
    with pytest.raises(ConfigError, match="precision='bfloat16'"):
        evaluate(own_copy, str(gold), LabelledConfig(), precision="bfloat16", max_drop=1.0)


def test_the_files_of_a_data_set_are_recorded(own_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 0.5, 0.5)
    monkeypatch.setattr("firth.finetuning.evaluate.check_labels", lambda records, labels, problems: records)
    dev = write(tmp_path / "dev.tsv", "sentence\tlabel\ngood\t1\nbad\t0\n")
    evaluate(own_copy, str(tmp_path), LabelledConfig(), task="glue/sst2", precision="int8")
    found = json.loads((own_copy / "model" / "int8.json").read_text())
    assert (found["task"], found["data"]) == ("glue/sst2", {"dev.tsv": file_sha256(dev)})


def test_the_score_that_a_task_is_known_by_is_compared() -> None:
    plain, fast = {"accuracy": 0.9, "mcc": 0.5}, {"accuracy": 0.8, "mcc": 0.6}
    assert compare("classify", plain, fast, 1)["metric"] == "accuracy"
    assert compare("glue/cola", plain, fast, 1)["metric"] == "mcc"
    assert compare("glue/cola", plain, fast, 1)["drop"] == pytest.approx(-10)
    # Tags that are no entities have no entity_f1.
    assert compare("tag", {"tag_accuracy": 0.5}, {"tag_accuracy": 0.5}, 0) == {
        "float32": {"tag_accuracy": 0.5}, "metric": "tag_accuracy", "drop": 0, "max_drop": 0, "passed": True
    }  # fmt: skip
