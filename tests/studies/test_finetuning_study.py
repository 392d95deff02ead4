"""The fine-tuning study: its cells, the baselines it compares with, and the tables it writes."""

import csv
from pathlib import Path
from typing import Any

import pytest

from firth.config import read_json, read_toml
from firth.data.shards import Corpus
from firth.errors import ConfigError, InputError
from firth.finetuning.labelled import LabelledData
from firth.finetuning.recipe import build, plain_recipe
from firth.folder import read_model
from firth.manifest import MANIFEST
from firth.studies import finetuning
from firth.studies.finetuning import (
    BASELINE,
    PRETRAINED,
    ROWS,
    SCRATCH,
    baseline_answers,
    baseline_cell,
    prepare_own_text,
    recipe_of,
    study_cells,
)
from firth.studies.finetuning_report import (
    baselines,
    feature_table,
    label_curves,
    label_table,
    task_table,
    write_study_report,
)
from firth.tasks.datasets import DATASETS
from firth.tasks.scoring import score_choices, score_tags, score_values
from firth.text.records import Choice, Tagged, Text


def cell(score: float, metric: str = "accuracy", **more: Any) -> dict[str, Any]:
    values = {"mean": score, "sd": 0.01, "values": [score, score]}
    examples = {"train": 7200, "held_out": 800}
    return {"metric": metric, "examples": examples, "dev": {"dev": {metric: values}}, "seconds_a_run": 61.4, **more}


def drawn(*values: float) -> dict[str, Any]:
    scores = {"accuracy": {"mean": sum(values) / len(values), "sd": 0.01, "values": list(values)}}
    return cell(0, examples={"train": 900, "held_out": 100}) | {"dev": {"dev": scores}, "draws": len(values)}


FACTS = {
    f"tasks/SST-2/{PRETRAINED}": cell(0.75),
    f"tasks/SST-2/{BASELINE}": cell(0.79, what="words")
    | {"dev": {"dev": {"accuracy": {"mean": 0.79, "sd": 0.0, "values": [0.79]}}}},
    f"tasks/CoNLL-2003/{PRETRAINED}": cell(0.5, "entity_f1"),
    "features/top layer, BiLSTM": cell(0.45, "entity_f1"),
    f"labels/SST-2/100/{PRETRAINED}": cell(0.6, examples={"train": 90, "held_out": 10}),
    f"labels/SST-2/1000/{PRETRAINED}": drawn(0.71, 0.72, 0.73),
    f"labels/SST-2/1000/{BASELINE}": drawn(0.70, 0.70, 0.72),
}


def test_tables_show_what_is_done_and_leave_the_rest_open() -> None:
    header, rows = task_table(FACTS)
    assert rows[0] == ["SST-2", "accuracy", "75.0 ± 1.0", "–", "–", "79.0", 61]
    assert baselines(FACTS) == "Baselines: words (SST-2)."
    assert [row[0] for row in rows] == ["SST-2", "CoNLL-2003"] and len(header) == len(rows[0])
    assert feature_table(FACTS) == [["top layer, BiLSTM", "45.0 ± 1.0", 61], ["fine-tuned, linear", "50.0 ± 1.0", 61]]
    assert label_table(FACTS)[1] == [
        ["SST-2", "accuracy", "100", "–", "60.0 ± 1.0", "–", "–", "–"],
        ["SST-2", "accuracy", "1,000", "–", "72.0 ± 1.0", "–", "70.7 ± 1.0", "+1.3 ± 1.4"],
        ["SST-2", "accuracy", "all", "–", "75.0 ± 1.0", "–", "79.0", "-4.0"],
    ]
    assert label_curves(FACTS) == {
        PRETRAINED: ([100.0, 1000.0, 8000.0], pytest.approx([60.0, 72.0, 75.0])),
        BASELINE: ([1000.0, 8000.0], pytest.approx([212 / 3, 79.0])),
    }


def test_few_labels_are_drawn_several_times_and_alike_for_all_starts(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetuning, "DRAWS", 2)
    lines = [f"{['good', 'fine', 'nice'][i % 3]} river {i}\tyes\npoor dull mill {i}\tno" for i in range(20)]
    file = tmp_path / "t.tsv"
    file.write_text("text\tlabel\n" + "\n".join(lines) + "\n", "utf-8")
    files = {"train": str(file), "dev": str(file), "limit": 20}
    recipe = {"task": "classify", "data": files}
    tuned = {**recipe, "model": str(tiny_run), "train": {"epochs": 1.0, "precision": "float32"}}
    (folder := tmp_path / "cell").mkdir()
    facts = finetuning.drawn_tune_cell(folder, recipe=tuned, settings=[])
    assert facts["draws"] == 2 and facts["examples"]["train"] + facts["examples"]["held_out"] == 20
    seeds = [read_toml(folder / f"draw-{n}" / "run" / "recipe.toml") for n in range(2)]
    assert [(one["data"]["limit_seed"], one["train"]["seed"], one["train"]["seeds"]) for one in seeds] == [
        (0, 0, 1),
        (1, 1, 1),
    ]
    accuracy = facts["dev"]["dev"]["accuracy"]
    assert len(accuracy["values"]) == 2 and accuracy["mean"] == pytest.approx(sum(accuracy["values"]) / 2)
    assert finetuning.drawn_tune_cell(folder, recipe=tuned, settings=[]) == facts, "what is done is kept"
    baseline = finetuning.drawn_baseline_cell(tmp_path, recipe=recipe)
    parts = [
        baseline_cell(tmp_path, recipe={**recipe, "data": files | {"limit_seed": n}})["dev"]["dev"]["accuracy"]["mean"]
        for n in range(2)
    ]
    assert baseline["dev"]["dev"]["accuracy"]["values"] == parts and baseline["what"].startswith("TF-IDF")


@pytest.mark.draws
def test_the_report_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page = write_study_report(tmp_path, FACTS).read_text("utf-8")
    assert "CoNLL-2003" in page and "<svg" in page


def test_every_row_is_a_sound_recipe_and_every_cell_has_a_name_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    cells = study_cells(tmp_path / "data", tmp_path / "models", tmp_path / "out")
    names = [c.name for c in cells]
    divided = {c.name.split("/")[1] for c in cells if c.prepare is not None}
    assert divided == {row.name for row in ROWS if any(str(v).startswith("@") for v in row.data.values())}
    assert len(set(names)) == len(names) and {n.split("/")[-1] for n in names} >= {PRETRAINED, SCRATCH, BASELINE}
    for row in ROWS:
        plain = plain_recipe(recipe_of(row, tmp_path, tmp_path), [], "test")
        kind = DATASETS[row.task].kind if row.task in DATASETS else row.task
        labels = {"labels": ["a", "b"]} if kind in ("classify", "tag") else {}
        build({"kind": kind, "metric": "x", **plain, "head": labels | plain["head"]}, row.name)


def test_a_model_goes_on_with_the_text_of_its_task_and_what_the_dev_file_has_is_left_out(
    tiny_run: Path, tmp_path: Path
) -> None:
    row = next(row for row in ROWS if row.name == "CoLA")
    own_text = row.own_text | {
        "data": {"instances": "documents", "length": 32},
        "train": {"batch_tokens": 256, "epochs": 1.0, "precision": "float32"},
    }
    shared = "and the captain of the old mill walked slowly down to the river in the evening"
    lines = [f"the captain number {n} walked to the river, and it was the last\t{n % 2}" for n in range(60)]
    (tmp_path / "t.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n", "utf-8")
    (tmp_path / "d.tsv").write_text(f"text\tlabel\n{shared}\t1\na winter\t0\n", "utf-8")
    (tmp_path / "more.txt").write_text(f"wood and water, {shared}\nAn Evening in winter\n" * 2, "utf-8")
    files = {"train": str(tmp_path / "t.tsv"), "dev": str(tmp_path / "d.tsv"), "limit": 20}
    recipe = {"model": str(tiny_run), "task": "classify", "data": files}
    folder = tmp_path / "cell"
    folder.mkdir()
    options: dict[str, Any] = {"recipe": recipe, "own_text": own_text, "more_text": str(tmp_path / "more.txt")}
    facts = finetuning.adapt_cell(folder, **options)
    assert facts["steps"] > 1 and facts["tokens"] > 500
    text = (folder / "text.txt").read_text("utf-8").splitlines()
    # The text has all training examples, though the recipe trains on few.
    assert sum("captain number" in line for line in text) == 60 and "an evening in winter" in text, (
        "lower-cased as the task's own are"
    )
    assert read_json(folder / "corpus" / MANIFEST)["train"][0]["documents"] < 63  # of 64, two of them in the dev file
    assert shared in (folder / "corpus" / "README.md").read_text("utf-8")
    assert read_model(folder / "run").provenance["dev"] == facts["dev"]
    assert finetuning.adapt_cell(folder, **options) == facts


def test_folders_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the folder of the data sets"):
        study_cells(tmp_path / "no", tmp_path, tmp_path / "out")


def test_arc_is_divided_without_losing_a_row(tmp_path: Path) -> None:
    (tmp_path / "arc-easy").mkdir()
    rows = [[f'Which "word", number {i}?', "a", "b", "c", "d", "B"] for i in range(50)]
    text = "".join(finetuning._csv_line(row) for row in rows)
    (tmp_path / "arc-easy" / "dev.csv").write_text(text, "utf-8")
    finetuning._split_arc(tmp_path, tmp_path / "out")
    files = [tmp_path / "out/arc-easy" / f"{name}.csv" for name in ("train", "dev")]
    parts = [list(csv.reader(file.read_text("utf-8").splitlines())) for file in files]
    assert sorted(parts[0] + parts[1]) == sorted(rows) and 3 < len(parts[1]) < 20
    with pytest.raises(InputError, match="no such file"):
        finetuning._split_arc(tmp_path / "other", tmp_path / "another")


def test_trec_is_divided_without_losing_a_row(tmp_path: Path) -> None:
    (tmp_path / "trec").mkdir()
    lines = [f"NUM:count How many mills are there in village {i} ?\n" for i in range(80)]
    (tmp_path / "trec" / "train.txt").write_text("".join(lines), "utf-8")
    for _ in range(2):
        finetuning._split_trec(tmp_path, tmp_path / "out")
    parts = [(tmp_path / "out/trec" / name).read_text("utf-8").splitlines(True) for name in ("train.txt", "dev.txt")]
    assert sorted(parts[0] + parts[1]) == sorted(lines) and 2 < len(parts[1]) < 20


TAGS = {"labels": ["O", "B-PER", "I-PER"], "scheme": "BIO", "unit": "word"}


def data(kind: str, train: list[Any]) -> LabelledData:
    return LabelledData(kind, ("spearman",), train[:-2], train[-2:], {}, TAGS if kind == "tag" else {})


def test_baselines_answer_each_kind_of_task() -> None:
    pairs = [
        Text("a cat sat", 5.0, second="the cat sat"),
        Text("a cat sat", 0.0, second="rain fell"),
        Text("red mill", 4.0, second="red mills"),
        Text("red mill", 1.0, second="blue sky"),
    ]
    values = baseline_answers(data("regress", pairs), pairs)
    assert score_values(pairs, values, ())["spearman"] > 0.5
    assert all(0 <= v.value <= 5 for v in values)
    choices = [Choice("", "Where does the river run?", ("to the sea the river runs", "a hat"), 0) for _ in range(4)]
    assert score_choices(choices, baseline_answers(data("choose", choices), choices), ())["accuracy"] == 1
    tagged = [
        Tagged("Ann ran", ((0, 3), (4, 7)), ("B-PER", "O")),
        Tagged("Ann Bo", ((0, 3), (4, 6)), ("B-PER", "O")),
        Tagged("ran", ((0, 3),), ("O",)),
    ]
    found = baseline_answers(data("tag", tagged), [Tagged("new Ann", ((0, 3), (4, 7)), ("O", "B-PER"))])
    assert found[0].tags == ("O", "B-PER")
    assert score_tags(tagged, baseline_answers(data("tag", tagged), tagged), ())["entity_f1"] == 1


def test_baselines_learn_labels(tmp_path: Path) -> None:
    lines = [f"{['good', 'fine', 'nice'][i % 3]} film {i}\tyes\nbad poor dull film {i}\tno" for i in range(20)]
    file = tmp_path / "t.tsv"
    file.write_text("text\tlabel\n" + "\n".join(lines) + "\n", "utf-8")
    facts = baseline_cell(tmp_path, recipe={"task": "classify", "data": {"train": str(file), "dev": str(file)}})
    assert facts["dev"]["dev"]["accuracy"]["mean"] == 1 and facts["metric"] == "accuracy"


def test_own_text_is_read_with_the_tokenizer_of_a_shipped_model(tmp_path: Path) -> None:
    rows = [
        f"long before the war the {noun} there was very {state}\t{n % 2}"
        for n, noun in enumerate(("river", "mill"))
        for state in ("old", "new")
    ]
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text("\n".join([f"{split} {row}" for row in rows * 2]) + "\n", "utf-8")
    data = {"train": str(tmp_path / "train.tsv"), "dev": str(tmp_path / "dev.tsv"), "columns": "text=0,label=1"}
    recipe = {"task": "classify", "model": "firth-mini-en", "data": data}
    prepare_own_text(tmp_path, tmp_path / "corpus", recipe, "")
    assert Corpus(tmp_path / "corpus").tokenizer.size == 16_000
