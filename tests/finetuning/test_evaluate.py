"""Scores of models."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from firth.errors import ConfigError, InputError
from firth.finetuning.baseline import resolve_baseline, run_baseline
from firth.finetuning.evaluate import compare_precisions, evaluate
from firth.finetuning.finetune import run_resolved
from firth.finetuning.prediction_files import score_predictions
from firth.finetuning.recipe import LabelledConfig
from firth.finetuning.resolve import resolve
from firth.inference.model import load_model
from firth.inference.score import Scored
from firth.manifest import file_sha256
from firth.tasks.breakdown import Breakdown

GOLD = "text\tlabel\none\ta\ntwo\tb\nthree\tb\nfour\ta\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


# -- models --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def classifier(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluate")
    train = write(folder / "t.tsv", "text\tlabel\n" + "".join(f"the river {i}\ta\nwinter {i}\tb\n" for i in range(10)))
    plain = {"task": "classify", "model": str(tiny_run), "data": {"train": str(train)}, "train": {"epochs": 0.1}}
    run_resolved(resolve(plain, ["train.precision=float32"], "test"), folder / "out", tell=lambda text: None)
    return folder / "out"


def test_a_model_and_its_predictions_have_the_same_scores(classifier: Path, tmp_path: Path) -> None:
    gold = write(tmp_path / "gold.tsv", GOLD)
    found = evaluate(classifier, str(gold), LabelledConfig())
    answers = load_model(classifier).predict(["one", "two", "three", "four"])
    said = write(tmp_path / "p", "".join(f"{answer.label}\n" for answer in answers))
    assert found["scores"] == score_predictions("classify", str(gold), str(said))["scores"]


def test_an_unknown_precision_or_split_is_refused(classifier: Path, tmp_path: Path) -> None:
    gold = write(tmp_path / "gold.tsv", GOLD)
    wrong: Any = "bf16"
    with pytest.raises(ConfigError, match="precision='bf16': expected 'float32', 'bfloat16'"):
        evaluate(classifier, gold, precision=wrong, max_drop=1.0)
    with pytest.raises(ConfigError, match="--split nope is for a --task that names a data set"):
        evaluate(classifier, gold, split="nope")


def test_several_models_are_scored_as_one(classifier: Path, tiny_run: Path, tmp_path: Path) -> None:
    gold = write(tmp_path / "gold.tsv", GOLD)
    found = evaluate(classifier, str(gold), LabelledConfig(), others=[classifier / "model"])
    assert found["scores"] == evaluate(classifier, str(gold), LabelledConfig())["scores"]
    assert found["scores"] == evaluate(classifier, gold, others=classifier / "model")["scores"]
    with pytest.raises(ConfigError, match="run is a model for pretraining, .*out for classify"):
        evaluate(classifier, str(gold), LabelledConfig(), others=[tiny_run])
    with pytest.raises(ConfigError, match="evaluate one model"):
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
    assert found["examples"] == 4 and any("malformed rows skipped: 1" in note for note in found["notes"])


def test_pairs_are_refused_by_a_model_of_single_texts(classifier: Path, tmp_path: Path) -> None:
    pairs = write(tmp_path / "pairs.tsv", "text\tsecond\tlabel\none\tthe other\ta\ntwo\tmore\tb\n")
    message = r"pairs\.tsv:2: a pair of texts, and the model has learnt from single texts: .* --columns text=COLUMN"
    with pytest.raises(InputError, match=message):
        evaluate(classifier, str(pairs), LabelledConfig())
    data = {"train": str(write(tmp_path / "t.tsv", GOLD.replace("\none", "\none\ta\nother\tb\none")))}
    tfidf = resolve_baseline({"task": "classify", "model": "tfidf", "data": data}, [], "test")
    run_baseline(tfidf, tmp_path / "tfidf", tell=lambda text: None)
    with pytest.raises(InputError, match=message):
        evaluate(tmp_path / "tfidf", str(pairs), LabelledConfig())


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
@pytest.mark.parametrize("key", ["text", "review"])
def test_the_keys_of_the_training_data_are_read_again(tmp_path: Path, suffix: str, key: str) -> None:
    """Also where a usual name holds other labels."""
    rows = [
        {key: f"{'good' if n % 3 else 'bad'} {n}", "label": "ab"[n % 2], "mood": "ab"[n % 3 > 0]} for n in range(24)
    ]

    def file(name: str, rows: list[dict[str, str]]) -> Path:
        lines = json.dumps(rows) if suffix == ".json" else "".join(json.dumps(row) + "\n" for row in rows)
        return write(tmp_path / f"{name}{suffix}", lines)

    train, columns = file("t", rows), f"text={key},label=mood"
    plain = {"task": "classify", "model": "tfidf", "data": {"train": str(train), "columns": columns}}
    run_baseline(resolve_baseline(plain, [], "test"), tmp_path / "tfidf", tell=lambda text: None)
    found = evaluate(tmp_path / "tfidf", str(train), LabelledConfig())
    assert found["scores"]["accuracy"] == 1
    assert any(
        note.endswith(f"columns {columns}, as in the model's training data (--columns)") for note in found["notes"]
    )
    # A file with the usual names alone.
    usual = file("u", [{"text": row[key], "label": row["mood"]} for row in rows])
    assert evaluate(tmp_path / "tfidf", str(usual), LabelledConfig())["scores"]["accuracy"] == 1
    # The label is missing: a line says so.
    with pytest.raises(InputError, match="found no 'mood'"):
        evaluate(tmp_path / "tfidf", str(file("v", [{key: row[key]} for row in rows])), LabelledConfig())


def test_questions_that_the_model_cannot_refuse_are_noted(tiny_run: Path, tmp_path: Path) -> None:
    def squad(name: str, found: list[list[dict[str, Any]]]) -> str:
        asked = [{"id": f"{name}{n}", "question": f"{name} {n}?", "answers": each} for n, each in enumerate(found)]
        data = [{"paragraphs": [{"context": f"Ann sang {name}.", "qas": asked}]}]
        return str(write(tmp_path / f"{name}.json", json.dumps({"data": data})))

    answer = [{"text": "Ann", "answer_start": 0}]
    said = "the file: 2 of 3 questions have no answer, but the model always gives one (head.can_refuse=false)"
    for name, answers, noted in (("all", [answer] * 4, True), ("some", [answer, answer, [], []], False)):
        plain = {"task": "answer", "model": str(tiny_run), "data": {"train": squad(name, answers)}}
        settings = ["train.precision=float32", "train.epochs=0.1"]
        run_resolved(resolve(plain, settings, "test"), tmp_path / f"{name}-out", tell=lambda text: None)
        notes = evaluate(tmp_path / f"{name}-out", squad("gold", [answer, [], []]))["notes"]
        assert (said in notes) == noted


def test_a_pre_trained_model_has_no_scores(tiny_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not fine-tuned for a task: fine-tune it"):
        evaluate(tiny_run, str(write(tmp_path / "g.tsv", GOLD)), LabelledConfig())


# -- reduced precision ---------------------------------------------------------------------------------------


@pytest.fixture
def own_copy(classifier: Path, tmp_path: Path) -> Path:
    """The classifier, in a folder that a test may write to."""
    shutil.copytree(classifier / "model", tmp_path / "run" / "model")
    return tmp_path / "run"


@pytest.fixture
def gold(tmp_path: Path) -> Path:
    return write(tmp_path / "dev.tsv", "text\tlabel\n" + "the river 1\ta\nwinter 3\tb\nthe mill\ta\nthe queen\tb\n")


def pretend(monkeypatch: pytest.MonkeyPatch, float32: float, fast: float) -> None:
    """Fake the scores of the first pass, in float32, and of the second."""
    scores = iter([{"macro_f1": 0.0, "accuracy": float32}, {"macro_f1": 1.0, "accuracy": fast}])
    monkeypatch.setattr(
        "firth.finetuning.evaluate.score_records", lambda *arguments: Scored(next(scores), Breakdown(labels={}), {})
    )


def test_int8_is_compared_with_float32_and_recorded(own_copy: Path, gold: Path) -> None:
    found = evaluate(own_copy, str(gold), LabelledConfig(), precision="int8", max_drop=100.0)
    plain = evaluate(own_copy, str(gold), LabelledConfig())
    compared = found["compared"]
    assert compared["float32"] == plain["scores"] and "compared" not in plain
    assert found["path"].endswith(", int8") and plain["path"].endswith(", float32")
    assert compared["metric"] == "accuracy" and compared["passed"]
    assert compared["drop"] == pytest.approx(100 * (plain["scores"]["accuracy"] - found["scores"]["accuracy"]))
    model = load_model(own_copy, precision="int8")
    answers = model.predict(["the river 1", "winter 3", "the mill", "the queen"])
    right = [answer.label == label for answer, label in zip(answers, "abab", strict=True)]
    assert found["scores"]["accuracy"] == sum(right) / 4
    assert json.loads((own_copy / "model" / "int8.json").read_text()) == {
        "weights": file_sha256(own_copy / "model" / "model.safetensors"),
        "task": "classify",
        "metric": "accuracy",
        "data": {"dev.tsv": file_sha256(gold)},
        "examples": 4,
        "max_drop": 100,
        "float32": plain["scores"]["accuracy"],
        "int8": found["scores"]["accuracy"],
    }


def test_int8_that_costs_too_much_is_not_recorded(own_copy: Path, gold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr("firth.finetuning.evaluate.score_records", lambda *arguments: pytest.fail("a pass"))
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
    assert compare_precisions("classify", plain, fast, 1)["metric"] == "accuracy"
    assert compare_precisions("glue/cola", plain, fast, 1)["metric"] == "mcc"
    assert compare_precisions("glue/cola", plain, fast, 1)["drop"] == pytest.approx(-10)
    # Tags that are not entities have no entity_f1.
    assert compare_precisions("tag", {"tag_accuracy": 0.5}, {"tag_accuracy": 0.5}, 0) == {
        "float32": {"tag_accuracy": 0.5},
        "metric": "tag_accuracy",
        "drop": 0,
        "max_drop": 0,
        "passed": True,
    }
