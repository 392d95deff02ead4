"""``firth compare``: every method is scored alike, finished work is kept, and the winner is a model."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth.cli import main
from firth.config import read_json, read_toml
from firth.errors import ConfigError, InputError
from firth.files import write_json
from firth.finetuning import baseline, runs
from firth.finetuning import compare as module
from firth.finetuning import compare_results as module_results
from firth.finetuning.compare import compare
from firth.finetuning.labelled import LabelledData
from firth.finetuning.recipe import LabelledConfig
from firth.finetuning.recommendation import equal_labels, recommendation, verdict
from firth.text.records import Text

VERBS = {"open": "in", "scan": "in", "fetch": "in", "send": "out", "reply": "out", "post": "out"}
THINGS = ("file", "folder", "path", "disk", "letter", "page", "table", "door", "river", "garden")
FAST = {"train.epochs": 1.0, "train.precision": "float32"}


def rows(things: tuple[str, ...]) -> list[str]:
    return [f"{verb} the {thing}\t{label}" for verb, label in VERBS.items() for thing in things]


@pytest.fixture(scope="module", autouse=True)
def no_reports_of_cells() -> Iterator[None]:
    """Plotting takes longer than fitting here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "write_finetune_report", lambda out, recipe, results: out / "report.html")
        patch.setattr(baseline, "write_baseline_report", lambda *arguments, **options: None)
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labelled")
    # One wrong label, and one text with both labels.
    train = [*rows(THINGS), "scan the old house\tout", "Open  the file\tout"]
    (folder / "train.tsv").write_text("\n".join(["text\tlabel", *train]) + "\n", "utf-8")
    (folder / "dev.tsv").write_text("\n".join(["text\tlabel", *rows(("window", "shelf", "mill"))]) + "\n", "utf-8")
    words = "Ann\tB-PER\nsaw\tO\nParis\tB-LOC\n\nBo\tB-PER\nran\tO\n\n"
    (folder / "train.conll").write_text(words * 8, "utf-8")
    (folder / "dev.conll").write_text("Eve\tB-PER\nsaw\tO\nParis\tB-LOC\n", "utf-8")
    return folder


def config(files: Path, kind: str = "tsv") -> LabelledConfig:
    return LabelledConfig(train=str(files / f"train.{kind}"), dev=str(files / f"dev.{kind}"))


@pytest.fixture(scope="module")
def compared(files: Path, tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared") / "c"
    compare("classify", config(files), out, models=[str(tiny_run)], sizes=(30,), settings=FAST, tell=lambda text: None)
    return out


def test_every_way_is_scored_with_intervals_and_costs(compared: Path) -> None:
    results = read_json(compared / "compare.json")
    assert list(results["ways"]) == ["baseline", "frozen-1", "fine-tuned-1", "joint-1"] and not results["skipped"]
    for row in results["ways"].values():
        low, high = row["interval"]
        assert 0 <= low <= row["score"] <= high <= 1 and row["labels"] == 62
        assert row["seconds"] > 0 and row["megabytes"] > 0 and row["predict_ms"] > 0
        assert 0 <= row["calibration_error"] <= 1
    assert [n for n, _ in results["curve"]["baseline"]] == [30, 62]
    # Twenty steps of pre-training cannot beat TF-IDF where single words determine the label.
    assert results["winner"] == "baseline" and results["recommendation"].startswith("Use the baseline (accuracy ")
    assert results["recommendation"].count(". ") == 1
    page = (compared / "report.html").read_text("utf-8")
    assert results["recommendation"].split(":")[0] in page and "<svg" in page and "http" not in page.split("<style>")[0]


def test_macro_f1_and_the_majority_baseline_stand_beside_accuracy(
    compared: Path, files: Path, tiny_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = read_json(compared / "compare.json")
    assert results["beside"] == ["macro_f1"]
    # Each label has half of the dev examples; the F1 of the label that is never predicted is 0.
    majority = results["majority"]
    assert majority["answer"] == "in" and majority["scores"]["accuracy"] == 0.5
    assert majority["scores"]["macro_f1"] == pytest.approx(1 / 3)
    page = (compared / "report.html").read_text("utf-8")
    assert "majority baseline: always in" in page and "0.3333" in page and "macro_f1" in page
    found = module.Comparison(compared, results)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "compare", lambda *arguments, **options: found)
        flags = ["--train", str(files / "train.tsv"), "--dev", str(files / "dev.tsv"), "--models", str(tiny_run)]
        assert main(["compare", *flags, "--out", str(compared)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert "  majority baseline: always in: accuracy 0.5000  macro_f1 0.3333" in printed
    macro = results["ways"]["joint-1"]["scores"]["macro_f1"]
    assert any(line.startswith("  joint run") and f"macro_f1 {macro:.4f}" in line for line in printed)


def test_scores_of_unequal_numbers_of_labels_are_not_set_beside_each_other_as_equals(
    files: Path, tmp_path: Path, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.extrapolate_s

    def endless(n: int, done: dict[int, Any], *, same_epochs: bool) -> float:
        return 1e6 if "epochs" in done[max(done)] else real(n, done, same_epochs=same_epochs)

    monkeypatch.setattr(module, "extrapolate_s", endless)
    options = {"models": [str(tiny_run)], "sizes": (30,), "settings": FAST, "tell": lambda text: None}
    results = compare("classify", config(files), tmp_path / "c", **options).results  # type: ignore[arg-type]
    assert {name: row["labels"] for name, row in results["ways"].items()} == {
        "baseline": 62,
        "frozen-1": 30,
        "fine-tuned-1": 30,
        "joint-1": 30,
    }
    equal = results["equal_labels"]
    assert equal["labels"] == 30 and equal["scores"]["baseline"] == dict(results["curve"]["baseline"])[30]
    assert "The time ended before all had the same labels (baseline 62, frozen run 30" in results["recommendation"]
    at_30 = f"with 30 labels each, accuracy is baseline {equal['scores']['baseline']:.4f}, frozen run "
    assert at_30 in results["recommendation"]
    assert "with 62 labels): " in results["recommendation"] and " with 30 labels is " in results["recommendation"]


def test_models_of_one_folder_name_are_told_apart() -> None:
    names = [way.name for way in module.ways_of("tag", ["runs/a/model", "runs/b/model", "runs/c"])]
    assert names == ["baseline", "fine-tuned runs/a/model", "fine-tuned runs/b/model", "fine-tuned c"]


def test_labels_that_may_be_wrong_are_listed(compared: Path) -> None:
    results = read_json(compared / "compare.json")
    assert any(s["text"] == "scan the old house" and s["predicted"] == "in" for s in results["suspects"])
    (conflict,) = results["conflicts"]
    assert set(conflict["labels"]) == {"in", "out"} and len(conflict["where"]) == 2


def test_the_winner_is_a_model(compared: Path) -> None:
    model = firth.load(compared / "model")
    assert isinstance(model, firth.Baseline) and model.predict("fetch the window").label == "in"


def test_what_is_done_is_kept(compared: Path, files: Path, tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a cell that is done was fitted again")

    monkeypatch.setattr(module, "run_baseline", never)
    monkeypatch.setattr(module, "run_resolved", never)
    before = read_json(compared / "compare.json")
    options = {"models": [str(tiny_run)], "sizes": (30,), "settings": FAST, "tell": lambda text: None}
    compare("classify", config(files), compared, **options)  # type: ignore[arg-type]
    assert read_json(compared / "compare.json") == before
    with pytest.raises(ConfigError, match="holds a comparison with other models"):
        compare("classify", config(files), compared, **{**options, "models": ["firth-mini-en"]})  # type: ignore[arg-type]


def test_settings_of_encoders_do_not_apply_to_a_frozen_one(files: Path, tmp_path: Path, tiny_run: Path) -> None:
    settings = FAST | {"adapt.frozen_groups": 1, "adapt.layer_decay": 0.9, "head.network.dropout": 0.2}
    options = {"models": [str(tiny_run)], "sizes": (), "settings": settings, "tell": lambda text: None}
    compare("classify", config(files), tmp_path / "c", **options)  # type: ignore[arg-type]
    found = [
        read_toml(next((tmp_path / "c" / "cells" / way).glob("*/run/recipe.toml")))
        for way in ("frozen-1", "fine-tuned-1")
    ]
    assert [recipe["adapt"]["frozen_groups"] for recipe in found] == [-1, 1]
    assert [recipe["adapt"]["layer_decay"] for recipe in found] == [1.0, 0.9]
    assert [recipe["head"]["network"]["dropout"] for recipe in found] == [0.2, 0.2]


def test_a_joint_model_is_fitted_again_once_another_encoder_is_there(
    compared: Path, files: Path, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "c"
    shutil.copytree(compared, out)
    cell = next((out / "cells" / "joint-1").glob("62/cell.json"))
    whole = read_json(cell)
    assert whole["encoders"] == ["cells/frozen-1/62/run", "cells/fine-tuned-1/62/run"]
    write_json(cell, whole | {"encoders": whole["encoders"][:1], "scores": {"accuracy": 0.0, "macro_f1": 0.0}})
    options = {"models": [str(tiny_run)], "sizes": (30,), "settings": FAST, "tell": lambda text: None}
    compare("classify", config(files), out, **options)  # type: ignore[arg-type]
    again = read_json(cell)
    assert (again["encoders"], again["scores"]) == (whole["encoders"], whole["scores"])


def test_what_has_changed_is_not_compared_with_what_has_not(files: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(files, folder)
    options = {"sizes": (30,), "tell": lambda text: None}
    compare("classify", config(folder), tmp_path / "c", **options)  # type: ignore[arg-type]
    train = folder / "train.tsv"
    lines = train.read_text("utf-8").splitlines(keepends=True)
    train.write_text("".join(lines[:-1]), "utf-8")
    with pytest.raises(ConfigError, match="holds a comparison with other training examples"):
        compare("classify", config(folder), tmp_path / "c", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("models", "message"), [(True, "did you mean 'optim.learning_rate'"), (False, "--models")])
def test_wrong_settings_are_known_before_anything_is_written(
    files: Path, tmp_path: Path, tiny_run: Path, models: bool, message: str
) -> None:
    given = [str(tiny_run)] if models else []
    with pytest.raises(ConfigError, match=message):
        compare("classify", config(files), tmp_path / "c", models=given, settings={"optim.lerning_rate": 1})
    assert not (tmp_path / "c").exists()


def test_a_budget_too_short_says_what_was_skipped(files: Path, tmp_path: Path, tiny_run: Path) -> None:
    heard: list[str] = []
    found = compare(
        "classify",
        config(files),
        tmp_path / "c",
        models=[str(tiny_run)],
        minutes=1e-4,
        settings=FAST,
        tell=heard.append,
    )
    assert list(found.results["ways"]) == ["baseline"] and len(found.results["skipped"]) == 3
    assert any(line.startswith("skipped: fine-tuned run with 62 labels") for line in heard)
    assert "nothing else was fitted" in found.results["recommendation"]
    # Twenty seconds for each of the two models, and little for the joint one.
    assert found.results["minutes_for_all"] == 1
    assert "with --minutes 1 the same command does what was skipped, and keeps what is done" in heard
    page = (tmp_path / "c" / "report.html").read_text("utf-8")
    assert "<h2>Skipped</h2>" in page and "With --minutes 1 the same command" in page


def test_a_first_fit_that_would_take_too_long_is_skipped(
    files: Path, tmp_path: Path, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "estimate_s", lambda resolved: 0.0 if resolved.recipe.adapt.frozen_groups else 1500.0)
    options = {"models": [str(tiny_run)], "minutes": 20, "settings": FAST, "tell": lambda text: None}
    found = compare("classify", config(files), tmp_path / "c", **options).results  # type: ignore[arg-type]
    assert "frozen-1" in found["ways"] and "fine-tuned-1" not in found["ways"]
    assert any(re.search(r"^fine-tuned run .* labels: about 25:00 for the first", why) for why in found["skipped"])
    assert found["minutes_for_all"] == 26


def test_taggers_are_compared_with_the_commonest_tag(
    files: Path, tmp_path: Path, tiny_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--train", files / "train.conll", "--dev", files / "dev.conll"]
    flags = [*data, "--models", tiny_run, "--out", tmp_path / "c"]
    settings = [text for key, value in FAST.items() for text in ("--set", f"{key}={json.dumps(value)}")]
    assert main(["compare", "--task", "tag", *map(str, flags), *settings]) == 0
    printed = capsys.readouterr().out
    assert "baseline" in printed and "entity_f1" in printed and "fine-tuned" in printed and "next: " in printed
    assert firth.load(tmp_path / "c" / "model").task == "tag"


def test_a_draw_without_a_rare_label_says_so(tmp_path: Path) -> None:
    lines = [
        f"{verb} the {thing} {n}\t{label}"
        for verb, label in (("open", "a"), ("shut", "b"))
        for n in range(6)
        for thing in THINGS
    ]
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text("\n".join(["text\tlabel", *lines, "call Bo\trare"]) + "\n", "utf-8")
    told: list[str] = []
    results = compare("classify", config(tmp_path), tmp_path / "c", sizes=(20,), tell=told.append).results
    note = "with 20 labels: labels without a training example, which cannot be learned: 'rare'"
    assert any(line.startswith(note) for line in told) and any(line.startswith(note) for line in results["notes"])
    assert not results["skipped"]


def test_a_draw_without_a_rare_label_is_left_out(tmp_path: Path) -> None:
    """The sample of 20 contains neither of the two rare examples; that of 50 contains one."""
    lines = [f"open the {thing} {n}\tcommon" for n in range(6) for thing in THINGS] + [
        "call Bo\trare",
        "mail the form\trare",
    ]
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text("\n".join(["text\tlabel", *lines]) + "\n", "utf-8")
    told: list[str] = []
    results = compare("classify", config(tmp_path), tmp_path / "c", sizes=(20, 50), tell=told.append).results
    (skipped,) = results["skipped"]
    assert skipped.startswith("all candidates with 20 labels: ") and f"skipped: {skipped}" in told
    assert results["minutes_for_all"] is None
    assert [n for n, _ in results["curve"]["baseline"]] == [50, 62]


@pytest.mark.parametrize("key", ["data.limit", "data", "head.labels", "metric", "from_scratch"])
def test_what_all_ways_share_is_not_set_for_some(key: str, files: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--set {key}: all candidates are compared on the same data, task"):
        compare("classify", config(files), tmp_path / "c", settings={key: "1"}, tell=lambda text: None)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("dev", "minutes", "task", "error", "message"),
    [
        ("", 5, "classify", InputError, "the file is empty, expected at least one example"),
        ("text\tlabel\na\tnew\n", 5, "classify", InputError, "found the label 'new', expected one of the 2 known"),
        ("text\tlabel\na\tin\n", 0, "classify", ConfigError, "--minutes 0: expected more than 0"),
        (
            "text\tlabel\na\tin\n",
            5,
            "answer",
            ConfigError,
            "compare supports classify, multilabel, regress, tag, not answer",
        ),
        (None, 5, "classify", ConfigError, "--dev is missing"),
    ],
)
def test_wrong_input_is_said_before_anything_is_written(
    dev: str | None, minutes: float, task: str, error: type[Exception], message: str, files: Path, tmp_path: Path
) -> None:
    if dev is not None:
        (tmp_path / "dev.tsv").write_text(dev, "utf-8")
    data = LabelledConfig(train=str(files / "train.tsv"), dev=str(tmp_path / "dev.tsv") if dev is not None else "")
    with pytest.raises(error, match=message):
        compare(task, data, tmp_path / "c", minutes=minutes, tell=lambda text: None)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("firth-mini-kr", "'firth-mini-kr' is no folder, no shipped model and no size"),
        ("runs/none", "runs/none"),
        ("bert-mini", "only a size, without weights"),
        ("tfidf", "tfidf is fitted in every comparison: leave it out of the models"),
    ],
)
def test_a_model_that_is_none_is_said_before_anything_is_fitted(
    model: str, message: str, files: Path, tmp_path: Path
) -> None:
    data = LabelledConfig(train=str(files / "train.tsv"), dev=str(files / "dev.tsv"))
    with pytest.raises(ConfigError, match=message):
        compare("classify", data, tmp_path / "c", models=[model], minutes=5, tell=lambda text: None)
    assert not (tmp_path / "c").exists()


def facts(score: float, low: float, high: float) -> dict[str, Any]:
    row = {"labels": 50, "predict_ms": 2.0, "megabytes": 20.0, "way": "fine-tuned m", "score": score, "units": 20}
    base = row | {"score": 0.8, "megabytes": 1.0, "way": "baseline"}
    best = row | {"over_baseline": score - 0.8, "over_baseline_interval": [low, high], "sign_test": 0.01}
    return {
        "ways": {"baseline": base, "fine-tuned-1": best},
        "best": "fine-tuned-1" if score > 0.8 else "baseline",
        "winner": "fine-tuned-1" if low > 0 else "baseline",
        "metric": "accuracy",
        "examples": {"train": 100, "dev": 20},
        "names": {"baseline": "baseline", "fine-tuned-1": "fine-tuned m"},
        "equal_labels": None,
        "split": "dev",
        "shared": 0,
        "majority": {"answer": "in", "scores": {"accuracy": 0.5}},
    }


def test_only_what_is_surely_better_is_recommended() -> None:
    cases = ((0.9, 0.05, 0.15), (0.82, -0.01, 0.05), (0.7, -0.2, 0.0))
    sure, unsure, worse = (recommendation(facts(*case)) for case in cases)
    assert sure.startswith("Use fine-tuned m: accuracy 0.9000, with 50 of 100 labels, 10.0 points above the baseline")
    assert unsure.startswith("Use the baseline (accuracy 0.8000): fine-tuned m is not reliably better, 2.0 points")
    assert "10.0 points below the baseline" in worse and all(text.count(". ") == 1 for text in (sure, unsure, worse))


def test_few_differences_prove_nothing() -> None:
    row = facts(0.9, 0.05, 0.15)["ways"]["fine-tuned-1"]
    assert verdict(row) == verdict(row | {"sign_test": None}) == "better"
    assert verdict(row | {"over_baseline_interval": [-0.2, -0.1]}) == "worse"
    for few in ({"sign_test": 0.0625}, {"over_baseline_interval": [0.0, 0.1]}, {"units": 5}):
        assert verdict(row | few) == "not reliably better"
    assert verdict(row | {"over_baseline_interval": [-0.2, -0.1], "sign_test": 0.12}) == "not reliably better"
    results = facts(0.9, 0.05, 0.15) | {"winner": "baseline"}
    results["ways"]["fine-tuned-1"]["sign_test"] = 0.0625
    assert "is not reliably better, 10.0 points above" in recommendation(results)
    assert "+5.0 to +15.0; exact sign test p = 0.062)" in recommendation(results)


def test_five_examples_or_one_document_prove_nothing() -> None:
    results = facts(0.9, 0.1, 0.1) | {"winner": "baseline"}
    for row in results["ways"].values():
        row |= {"units": 1, "sign_test": None}
    said = recommendation(results)
    assert said.startswith("Use the baseline (accuracy 0.8000): fine-tuned m is not reliably better, 10.0 points above")
    assert said.endswith("No difference on 1 group of dev examples is reliable: give at least 6 with --dev.")
    for row in results["ways"].values():
        row |= {"units": 5}
    results["examples"]["dev"] = 5
    assert recommendation(results).endswith("No difference on 5 dev examples is reliable: give at least 6 with --dev.")


def test_of_the_ways_that_are_reliably_better_the_best_wins() -> None:
    """Even if another scores more, without being reliably better than the baseline."""
    labels = ("no", "yes")
    dev = [Text(f"text {n}", labels[n % 2]) for n in range(200)]

    def cell(way: str, wrong: set[int]) -> dict[str, Any]:
        answers = [labels[(n + (n in wrong)) % 2] for n in range(200)]
        scores = {"accuracy": 1 - len(wrong) / 200}
        return {
            "way": way,
            "labels": 10,
            "answers": answers,
            "scores": scores,
            "notes": [],
            "noted": {"cut": len(way)},
            "predict_ms": 1.0,
            "megabytes": 1.0,
            "seconds": 1.0,
            "calibration_error": 0.0,
        }

    cells = {
        "baseline": {10: cell("baseline", set(range(60)))},
        "frozen": {10: cell("frozen m", set(range(100, 145)))},  # 60 are right that were wrong, 45 the reverse
        "joint": {10: cell("joint m", set(range(48)))},  # 12 more are right, none less
    }
    labelled = LabelledData(
        "classify", ("accuracy",), [*dev[:8]], [*dev[8:10]], {"dev": dev}, {"labels": labels}, ["a"]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module_results, "_doubts", lambda *arguments: {})
        results = module_results.compare_fits("classify", labelled, {n: n for n in cells}, cells, [], Path())
    assert results["best"] == "frozen" and results["winner"] == "joint"
    assert "Use joint: accuracy 0.7600" in results["recommendation"]
    assert "frozen scores 0.7750, which is not reliably above the baseline." in results["recommendation"]
    assert results["notes"] == ["a", "baseline, frozen m: dev, cut: 8", "joint m: dev, cut: 7"]


def test_a_dev_file_of_training_examples_is_said_with_the_recommendation() -> None:
    results = facts(0.9, 0.05, 0.15)
    assert "training examples too" not in recommendation(results | {"shared": 1})
    said = "But 12 of 20 dev examples are training examples too: all scores are too high."
    assert said in recommendation(results | {"shared": 12})


def test_ways_that_were_not_fitted_are_named() -> None:
    results = facts(0.9, 0.05, 0.15)
    results["names"] |= {"joint-1": "joint m"}
    assert recommendation(results).endswith(
        "Not fitted in the time: joint m; more --minutes may change the recommendation."
    )
    del results["ways"]["fine-tuned-1"]
    assert "Not fitted" not in recommendation(results | {"best": "baseline", "winner": "baseline"})


def test_no_better_than_the_commonest_label_is_said() -> None:
    results = facts(0.82, -0.01, 0.05)
    assert "Nothing is better" not in recommendation(results)
    results["majority"]["scores"]["accuracy"] = 0.85
    assert recommendation(results).endswith(" Nothing is better than always in (accuracy 0.8500).")


def test_the_time_of_a_fit_counts_what_came_before_a_stop(files: Path, tmp_path: Path, tiny_run: Path) -> None:
    options = {"models": [str(tiny_run)], "sizes": (30,), "settings": FAST, "tell": lambda text: None}
    compare("classify", config(files), tmp_path / "c", **options)  # type: ignore[arg-type]
    folder = tmp_path / "c" / "cells" / "fine-tuned-1"
    cell = next(folder.rglob("cell.json"))
    result = next(cell.parent.glob("run/runs/*/result.json"))
    result.write_text(json.dumps(json.loads(result.read_text()) | {"elapsed_s": 1000.0}))
    cell.unlink()
    compare("classify", config(files), tmp_path / "c", **options)  # type: ignore[arg-type]
    assert json.loads(cell.read_text())["seconds"] >= 1000


def scored_texts(files: Path) -> dict[str, list[str]]:
    """Labelled lines of other kinds: with several labels, and with values."""
    several = {verb: f"{label},moves" if verb in ("fetch", "send") else label for verb, label in VERBS.items()}
    values = {verb: number for number, verb in enumerate(VERBS)}
    return {
        "multilabel": [f"{verb} the {thing}\t{several[verb]}" for verb in VERBS for thing in THINGS],
        "regress": [f"{verb} the {thing}\t{values[verb]}" for verb in VERBS for thing in THINGS],
    }


@pytest.mark.parametrize(("kind", "metric"), [("multilabel", "micro_f1"), ("regress", "spearman")])
def test_other_kinds_of_labels_are_compared_four_ways(
    kind: str, metric: str, files: Path, tmp_path: Path, tiny_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = scored_texts(files)[kind]
    (tmp_path / "train.tsv").write_text("\n".join(["text\tlabel", *lines[::2], *lines[1::4]]) + "\n", "utf-8")
    (tmp_path / "dev.tsv").write_text("\n".join(["text\tlabel", *lines[3::4]]) + "\n", "utf-8")
    data = LabelledConfig(train=str(tmp_path / "train.tsv"), dev=str(tmp_path / "dev.tsv"))
    out = tmp_path / "c"
    found = compare(kind, data, out, models=[str(tiny_run)], sizes=(), settings=FAST, tell=lambda text: None)
    results = found.results
    assert list(results["ways"]) == ["baseline", "frozen-1", "fine-tuned-1", "joint-1"] and not results["skipped"]
    assert results["metric"] == metric and results["ways"]["baseline"]["score"] > 0.9
    joint = firth.load(out / "cells" / "joint-1" / str(results["examples"]["train"]) / "run")
    assert isinstance(joint, firth.Baseline) and joint.system == "joint" and joint.task == kind
    # Only compare's own lines: none from the evaluations inside it.
    assert "held-out:" not in capsys.readouterr().err
    run = out / "cells" / "joint-1" / str(results["examples"]["train"]) / "run"
    assert main(["evaluate", str(run), "--data", data.dev, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert scores[metric] == pytest.approx(results["ways"]["joint-1"]["score"])


def test_a_model_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    config = LabelledConfig(train="t.tsv", dev="d.tsv")
    with pytest.raises(ConfigError, match="runs/a is given twice: give each model once"):
        compare("classify", config, tmp_path / "out", models=["runs/a", "runs/b", "runs/a"])
    assert not (tmp_path / "out").exists()


def test_ways_may_have_no_number_of_labels_in_common() -> None:
    """After more minutes a joint model of few labels may wait for its encoder, while that of many is there."""
    assert equal_labels({"baseline": {100: 0.5, 1000: 0.6}, "joint": {1000: 0.7}, "tuned": {100: 0.6}}) is None
    equal = equal_labels({"baseline": {100: 0.5, 1000: 0.6}, "tuned": {100: 0.6}})
    assert equal == {"labels": 100, "scores": {"baseline": 0.5, "tuned": 0.6}}


def test_examples_of_a_group_are_drawn_together() -> None:
    """Answers that differ by group alone leave an interval as wide as that of the groups."""
    records = [Text("t", label="ab"[n % 2], group=str(n // 50)) for n in range(100)]
    labelled = LabelledData("classify", ("accuracy",), [], [], {"dev": records}, {"labels": ("a", "b")}, [], "")
    answers = [["ab"[n % 2] if n < 50 else "a" for n in range(100)]]
    drawn = module_results._draws(labelled, records, module_results._units(records), answers)
    assert set(np.unique(drawn)) == {0.5, 0.75, 1.0}
