"""A baseline fitted by ``finetune``, from a file to a model that is evaluated and used like any other."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

import firth
from firth.cli import main
from firth.config import read_json
from firth.errors import ConfigError, InputError, SaveError
from firth.finetuning import baseline
from firth.finetuning.baseline import names_baseline, resolve_baseline

VERBS = {"open": "in", "scan": "in", "fetch": "in", "send": "out", "reply": "out", "post": "out"}
THINGS = ("file", "folder", "path", "disk", "letter", "page", "table", "door")


def rows(things: tuple[str, ...]) -> str:
    lines = [f"{verb} the {thing}\t{label}" for verb, label in VERBS.items() for thing in things]
    return "\n".join(["text\tlabel", *lines]) + "\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labelled")
    (folder / "train.tsv").write_text(rows(THINGS), "utf-8")
    (folder / "dev.tsv").write_text(rows(("window", "shelf")), "utf-8")
    sentences = ("Ann/B-PER saw/O Paris/B-LOC", "Paris/B-LOC slept/O", "Bo/B-PER ran/O", "Ida/B-PER saw/O Rome/B-LOC")
    words = ["\n".join(word.replace("/", "\t") for word in sentence.split()) for sentence in sentences]
    (folder / "train.conll").write_text("\n\n".join(words * 3) + "\n", "utf-8")
    (folder / "dev.conll").write_text("Eve\tB-PER\nsaw\tO\nParis\tB-LOC\n", "utf-8")
    return folder


@pytest.fixture(scope="module")
def fitted(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "b"
    made = firth.finetune(
        task="classify",
        model="tfidf",
        train=files / "train.tsv",
        dev=files / "dev.tsv",
        out=out,
        tell=lambda text: None,
    )
    assert made.scores["dev"]["accuracy"] == 1 and isinstance(made.model, firth.Baseline)
    return out


def test_the_folder_is_that_of_a_fine_tuning(fitted: Path, files: Path) -> None:
    assert {path.name for path in fitted.iterdir()} >= {"model", "results.json", "recipe.toml", "report.html"}
    results = read_json(fitted / "results.json")
    assert results["metric"] == "accuracy" and "cross-validation" in results["chosen_on"]
    assert results["breakdown"]["dev"]["labels"]["in"]["examples"] == 6
    assert len(results["settings"]) == len(results["tried"]) > results["chosen"]
    assert 0.05 <= results["calibration"]["temperature"] <= 20
    page = (fitted / "report.html").read_text("utf-8")
    assert "Settings tried" in page and "Top n-grams of each label" in page
    # The recipe reproduces the same model.
    again = firth.finetune(fitted / "recipe.toml", out=fitted.with_name("again"), tell=lambda text: None)
    assert again.results["model"] == results["model"]


def test_evaluate_and_predict_run_it(
    fitted: Path, files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = firth.evaluate(fitted, files / "dev.tsv")
    assert found["scores"]["accuracy"] == 1 and found["examples"] == 12 and found["breakdown"]["labels"]
    assert main(["evaluate", str(fitted), "--data", str(files / "dev.tsv")]) == 0
    assert "accuracy" in capsys.readouterr().out
    assert main(["predict", str(fitted), "open the door", "reply"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["label"] for line in lines] == ["in", "out"] and set(lines[0]["probabilities"]) == {"in", "out"}
    assert main(["predict", str(fitted), "--input", str(files / "dev.tsv")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 12


def test_the_commonest_tag_is_a_model_too(files: Path, tmp_path: Path) -> None:
    arguments = ["--train", files / "train.conll", "--dev", files / "dev.conll", "--out", tmp_path / "t"]
    assert main(["finetune", "--task", "tag", "--model", "commonest-tag", *map(str, arguments)]) == 0
    results = read_json(tmp_path / "t" / "results.json")
    assert results["dev"]["dev"]["entity_f1"]["mean"] > 0.5
    (answer,) = firth.load(tmp_path / "t").predict([["Ann", "saw", "Rome"]])
    assert answer.tags == ("B-PER", "O", "B-LOC") and [entity.text for entity in answer.entities] == ["Ann", "Rome"]


def test_show_recipe_prints_it_and_fits_nothing(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--task", "classify", "--model", "tfidf", "--train", str(files / "train.tsv"), "--show-recipe"]
    assert main(["finetune", *flags]) == 0
    assert 'model = "tfidf"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("task", "model", "settings", "message"),
    [
        ("tag", "tfidf", {}, "task tag is tag: give --model commonest-tag"),
        ("answer", "tfidf", {}, "there is no baseline for it"),
        ("classify", "tfidf", {"train.epochs": 3}, "not trained in steps: leave out train.epochs"),
        ("classify", "tfidf", {"strengths": [0.0]}, "expected numbers above 0"),
        ("classify", "tfidf", {"data.choose_on": "dev"}, "is tuned on training examples only"),
        ("classify", "tfidf", {"metric": "pearson"}, "expected one of"),
        ("classify", "tfidf", {"strength": 3.0}, "unknown key 'strength': did you mean 'strengths'"),
        ("classify", "tfidf", {"train": 3}, "not trained in steps: leave out train, or give"),
    ],
)
def test_wrong_recipes_are_said(
    task: str, model: str, settings: dict[str, object], message: str, files: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        firth.finetune(
            task=task,
            model=model,
            train=files / "train.tsv",
            out=tmp_path / "x",
            settings=settings,
            tell=lambda text: None,
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"model": "tfidf", "task": "classify", "data": 5}, "t: data must be a table of keys, not 5"),
        ({"model": "tfidf", "task": ["classify"]}, "t: key 'task' is missing: give one, such as --task classify"),
    ],
)
def test_values_of_another_type_are_said(plain: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_baseline(plain, [], "t")


@pytest.mark.parametrize("model", [["tfidf"], {"tfidf": 1}, 5])
def test_a_model_that_is_no_name_is_no_baseline(model: Any) -> None:
    assert not names_baseline({"model": model}, [])


def test_one_label_is_said(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("text\tlabel\na\tx\nb\tx\nc\tx\n", "utf-8")
    with pytest.raises(InputError, match="'x'"):
        firth.finetune(task="classify", model="tfidf", train=tmp_path / "t.tsv", out=tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_a_baseline_answers_alone(fitted: Path, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(fitted), "x", "--with", str(fitted)]) == 2
    assert "is a baseline, which answers alone" in capsys.readouterr().err
    assert main(["predict", str(fitted), "x", "--precision", "int8"]) == 2
    assert "leave out precision" in capsys.readouterr().err
    assert main(["fill-mask", str(fitted), "a [MASK]"]) == 2
    assert "has no encoder" in capsys.readouterr().err
    evaluate = ["evaluate", str(fitted), "--data", str(files / "dev.tsv"), "--precision", "auto"]
    for given in (["--recover-text", "published"], ["--max-drop", "1"], ["--with", str(fitted)]):
        assert main([*evaluate, *given]) == 2
        error = capsys.readouterr().err
        assert error.endswith(f"is a baseline, which is evaluated alone: leave out {given[0]}\n")


def test_a_disk_that_is_full_at_the_report_leaves_nothing(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder appears completely or not at all: the same command then makes all of it."""

    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(baseline, "write_baseline_report", full)
    with pytest.raises(SaveError, match="the disk is full"):
        firth.finetune(task="classify", model="tfidf", train=files / "train.tsv", out=tmp_path / "b", tell=print)
    assert list(tmp_path.iterdir()) == []


def test_a_metric_of_the_data_set_alone_may_choose(tmp_path: Path) -> None:
    """KLUE-STS counts pairs from 3 on as positive, which other regression does not."""
    rows = [
        {
            "guid": f"{verb}-{thing}-{near}",
            "sentence1": f"{verb} the {thing}",
            "sentence2": f"{verb if near else 'drop'} the {thing if near else 'sky'}",
            "labels": {"real-label": 4.0 if near else 1.0},
        }
        for verb in VERBS
        for thing in THINGS
        for near in (True, False)
    ]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.json").write_text(json.dumps(rows), "utf-8")
    made = firth.finetune(
        task="klue/sts",
        model="tfidf",
        data=tmp_path,
        out=tmp_path / "b",
        settings={"metric": "f1"},
        tell=lambda text: None,
    )
    assert made.scores["dev"]["f1"] > 0.9


def test_a_model_of_characters_tags_the_characters_of_words_in_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tags = ["B-PS", "I-PS", "I-PS", "O", "O", "O", "O"]
    rows = [{"tokens": list(text), "ner_tags": tags} for text in ("김연아는 왔다", "김연아는 갔다")]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 4), "utf-8")
    (tmp_path / "d.conll").write_text("김연아는 B-PS\n왔다 O\n", "utf-8")
    options = {"task": "tag", "model": "commonest-tag", "train": tmp_path / "t.jsonl", "out": tmp_path / "b"}
    firth.finetune(**options, tell=lambda text: None)  # type: ignore[arg-type]
    assert main(["predict", str(tmp_path / "b"), "--input", str(tmp_path / "d.conll")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["words"] == list("김연아는왔다") and answer["tags"] == ["B-PS", "I-PS", "I-PS", "O", "O", "O"]
