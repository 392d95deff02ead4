"""The report of a fine-tuning: every number that it must show, on one self-contained page."""

import json
import re
from pathlib import Path
from typing import Any

from firth.finetuning.recipe import Finetune, LabelledConfig
from firth.finetuning.report import write_finetune_report
from firth.tasks.config import ClassifyConfig

RECIPE = Finetune(
    model="runs/a",
    task="classify",
    kind="classify",
    metric="accuracy",
    data=LabelledConfig(train="t.tsv"),
    head=ClassifyConfig(labels=("a", "b")),
)


def score(mean: float, interval: float | None) -> dict[str, Any]:
    return {"mean": mean, "sd": 0.02, "interval": interval, "best": mean + 0.01, "values": [mean, mean + 0.01]}


def one_run(seed: int, best: float, *, is_collapsed: bool) -> dict[str, Any]:
    return {
        "seed": seed,
        "settings": ["optim.learning_rate=1e-4"],
        "best": best,
        "best_step": 3,
        "steps": 9,
        "elapsed_s": 90.0,
        "collapsed": is_collapsed,
        "folder": f"runs/seed-{seed}",
    }


def results() -> dict[str, Any]:
    return {
        "task": "classify",
        "metric": "accuracy",
        "chosen_on": "held-out training examples",
        "examples": {"train": 1234, "held_out": 56, "dev": 78},
        "dev": {"dev": {"accuracy": score(0.8125, 0.05), "macro_f1": score(0.7, None)}},
        "held_out": {"accuracy": score(0.83, 0.01)},
        "runs": [one_run(1, 0.84, is_collapsed=False), one_run(2, 0.51, is_collapsed=True)],
        "calibration": {
            "temperature": 1.625,
            "error_before": 0.1234,
            "error_after": 0.0321,
            "reliability_before": [[0.9, 0.8, 10]],
            "reliability_after": [[0.8, 0.8, 10]],
        },
        "notes": ["malformed rows skipped: 1; the first 1:", "  t.tsv:7: <broken>"],
    }


BREAKDOWN = {
    "unit": "examples",
    "always": "a",
    "majority": {"answer": "a", "metric": "accuracy", "score": 0.75},
    "labels": {
        "a": {"examples": 3, "predicted": 4, "precision": 0.75, "recall": 1.0, "f1": 0.8571},
        "b": {"examples": 1, "predicted": 0, "precision": 0.0, "recall": 0.0, "f1": 0.0},
    },
    "confusion_labels": ["a", "b"],
    "confusion": [[3, 0], [1, 0]],
}


def test_mistakes_are_shown_with_the_words_that_mattered(tmp_path: Path) -> None:
    words = [["not", -0.4], ["<good>", 0.25], ["film", 0.0]]
    mistake = {"where": "t.tsv:7", "gold": "a", "predicted": "b", "probability": 0.97, "words": words}
    page = write(tmp_path, results() | {"best_seed": 1, "mistakes": {"split": "dev", "examples": [mistake]}})
    assert "t.tsv:7: a, predicted b (97%)" in page
    tokens = re.findall(r'<span class="token" title="([^"]*)"><bdi dir="ltr" style="([^"]*)">([^<]*)', page)
    assert [(hint, text) for hint, _, text in tokens] == [
        ("log-odds -0.40", "not"),
        ("log-odds +0.25", "&lt;good&gt;"),
        ("log-odds +0.00", "film"),
    ]
    assert ["dashed" in style for _, style, _ in tokens] == [True, False, False]


def test_the_best_runs_labels_baseline_and_confusions(tmp_path: Path) -> None:
    page = write(tmp_path, results() | {"best_seed": 1, "breakdown": {"dev": BREAKDOWN}})
    cells = [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[dh][^>]*>.*?</t[dh]>", page)]
    at = cells.index("label")
    assert cells[at : at + 12] == [
        "label",
        "examples",
        "predicted",
        "precision",
        "recall",
        "F1",
        "a",
        "3",
        "4",
        "0.7500",
        "1.0000",
        "0.8571",
    ]
    at = cells.index("gold")
    assert cells[at : at + 9] == ["gold", "a", "b", "a", "3", "0", "b", "1", "0"]
    assert "Always predicting a: accuracy 0.7500." in page
    assert "Warning: the model predicts the same for every example: a" in page


def test_a_matrix_that_fits_no_page_is_in_the_results(tmp_path: Path) -> None:
    names = [f"label {n}" for n in range(31)]
    many = BREAKDOWN | {"confusion_labels": names, "confusion": [], "confused": [["label 1", "label 2", 3]]}
    page = write(tmp_path, results() | {"best_seed": 1, "breakdown": {"dev": many}})
    assert "Which of the 31 labels are predicted as which others is in results.json." in page


def write(folder: Path, found: dict[str, Any]) -> str:
    for run in found["runs"]:
        log = folder / run["folder"] / "log.jsonl"
        log.parent.mkdir(parents=True)
        events = [
            {"event": "train", "step": 3, "loss": 0.7},
            {"event": "dev", "step": 3, "accuracy": 0.5},
            {"event": "train", "step": 9, "loss": 0.4},
            {"event": "dev", "step": 9, "accuracy": run["best"]},
        ]
        log.write_text("".join(json.dumps(event) + "\n" for event in events))
    path = write_finetune_report(folder, RECIPE, found)
    assert path == folder / "report.html"
    return path.read_text("utf-8")


def test_scores_runs_curves_and_what_reading_met(tmp_path: Path) -> None:
    page = write(tmp_path, results())
    cells = [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[dh][^>]*>.*?</t[dh]>", page)]
    assert "0.8125 ± 0.0200" in cells and "0.7625 – 0.8625" in cells
    assert cells[cells.index("macro_f1") : cells.index("macro_f1") + 4] == ["macro_f1", "0.7000 ± 0.0200", "", "0.7100"]
    at = cells.index("optim.learning_rate=1e-4, seed 2")
    assert cells[at : at + 6] == ["optim.learning_rate=1e-4, seed 2", "0.5100", "3", "9", "1.5", "collapsed"]
    assert cells.count("collapsed") == 1
    assert "1,234 training examples" in page and "dev: 78 examples" in page
    assert "a temperature of 1.625" in page and "0.1234 before and 0.0321 after" in page
    assert "t.tsv:7: &lt;broken&gt;" in page
    assert "train = &quot;t.tsv&quot;" in page or 'train = "t.tsv"' in page
    for title in ("Training loss", "Held out: accuracy", "Reliability"):
        assert title in page
    assert "http://" not in re.sub(r"http://www\.w3\.org\S*|http://purl\S*|http://creative\S*", "", page)


def test_one_run_has_no_deviation(tmp_path: Path) -> None:
    one = {"mean": 0.9, "sd": 0.0, "interval": None, "best": 0.9, "values": [0.9]}
    page = write(tmp_path, results() | {"dev": {"dev": {"accuracy": one}}, "held_out": {"accuracy": one}})
    cells = [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[dh][^>]*>.*?</t[dh]>", page)]
    at = cells.index("score")
    assert cells[at : at + 4] == ["score", "value", "accuracy", "0.9000"]
    assert "±" not in page and "interval" not in page


def test_bins_of_the_reliability_diagram_have_counts(tmp_path: Path) -> None:
    page = write(tmp_path, results())
    cells = [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[dh][^>]*>.*?</t[dh]>", page)]
    at = cells.index("temperature scaling")
    assert cells[at + 4 : at + 12] == ["before", "0.9000", "0.8000", "10", "after", "0.8000", "0.8000", "10"]


def test_without_dev_file_and_temperature(tmp_path: Path) -> None:
    page = write(tmp_path, results() | {"dev": {}, "calibration": {}, "notes": []})
    assert "Held out: 56 examples" in page
    assert "dev: 78" not in page and "Reliability" not in page and "Notes on the data" not in page
