"""The representation study: valid cells, their dependencies, pre-training for a fixed time, and the tables."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from firth.config import read_json
from firth.errors import ConfigError
from firth.finetuning.recipe import build, plain_recipe
from firth.folder import read_model
from firth.studies import representations
from firth.studies.finetuning import ROWS
from firth.studies.representations import (
    LABELS,
    MIXED,
    REPRESENTATIONS,
    TASKS,
    ULMFIT_STARTS,
    label_cells,
    mix_cells,
    pretrain_cell,
    pretrain_cells,
    steps_within,
    study_cells,
    task_cells,
    text_cell,
    text_cells,
    usage,
)
from firth.studies.representations_report import (
    cost_table,
    label_curves,
    layer_table,
    representation_table,
    write_study_report,
)
from firth.systems import size_named
from firth.tasks.datasets import DATASETS
from firth.tasks.scoring import METRICS


def cell(score: float, metric: str = "accuracy", **more: Any) -> dict[str, Any]:
    found = {"mean": score, "sd": 0.01, "values": [score - 0.01, score]}
    return {"metric": metric, "dev": {"dev": {metric: found}}, "cpu_s": 360.0, "peak_mb": 900, **more}


FACTS = {
    "pre-training/BERT": {"dev": {"mlm_loss": 5.25}, "cpu_s": 600.0, "parameters": 7_400_000, "peak_mb": 700},
    "tasks/BERT/SST-2": cell(0.75),
    "tasks/TagLM/CoNLL-2003": cell(0.5, "entity_f1"),
    "layers/English POS/seed 1": cell(0.9, "tag_accuracy", shares=[0.2, 0.5, 0.3]),
    "layers/English POS/seed 2": cell(0.8, "tag_accuracy", shares=[0.3, 0.4, 0.3]),
    f"labels/100/{ULMFIT_STARTS[0]}": cell(0.4, examples={"train": 90, "held_out": 10}),
}


def test_tables_show_what_is_done() -> None:
    header, rows = representation_table(FACTS)
    assert header[1:] == [f"{task}, {score}" for task, score in TASKS.items()]
    assert rows == [["TagLM", "50.0 ± 1.0", "–", "–", "–"], ["BERT", "–", "–", "75.0 ± 1.0", "–"]]
    assert cost_table(FACTS)[1] == [["BERT", "7.4 M", "10.0", 700, "mlm_loss 5.25", "2.0", 900]]
    assert layer_table(FACTS)[1] == [
        ["English POS", "0.25 (0.20 to 0.30)", "0.45 (0.40 to 0.50)", "0.30 (0.30 to 0.30)", "85.0"]
    ]
    assert label_curves(FACTS) == {ULMFIT_STARTS[0]: ([100.0], [60.0])}


@pytest.mark.draws
def test_the_report_has_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page = write_study_report(tmp_path, FACTS).read_text("utf-8")
    assert "<svg" in page and "language model" in page and "AG News" in page


def test_cells_have_sound_recipes_and_wait_for_their_models(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    texts, first = text_cells(data, out), pretrain_cells(data, out)
    second = task_cells(data, out)
    labels = label_cells(data, out)
    rest = [*mix_cells(data, out), *labels]
    every = {c.name: c for c in (*texts, *first, *second, *rest)}
    assert len(every) == len([*texts, *first, *second, *rest])
    assert all(need in every for c in every.values() for need in c.needs)
    # TagLM uses ELMo's model and runs only the tagging tasks.
    assert len(second) == len(REPRESENTATIONS) * len(TASKS) - 2
    assert every["tasks/TagLM/CoNLL-2003"].needs == ("pre-training/ELMo",)
    assert "pre-training/word2vec" in every["pre-training/CoVe"].needs
    assert len(rest) == 3 * len(MIXED) + 1 + len(LABELS) * len(ULMFIT_STARTS)
    for row in REPRESENTATIONS.values():
        assert row.reads or row.vectors or size_named(row.model)
    for name, score in TASKS.items():
        task = next(row.task for row in ROWS if row.name == name)
        assert score in (DATASETS[task].metrics if task in DATASETS else METRICS[task])
    # Each gradually unfrozen layer group trains for at least one epoch: the head, the embeddings, the layers.
    n_groups = 1 + size_named(REPRESENTATIONS["ULMFiT"].model)[1]["n_layers"] + 1
    for c in labels[1:]:
        recipe = c.options["recipe"]
        assert recipe.get("adapt", {}).get("unfreeze") == "at_once" or recipe["train"]["epochs"] >= n_groups + 1
    for c in (*second, *rest):
        plain = plain_recipe(c.options["recipe"], [], "test")
        kind = DATASETS[plain["task"]].kind if plain["task"] in DATASETS else plain["task"]
        build({"kind": kind, "metric": "x", **plain, "head": {"labels": ["O", "B-a"]} | plain["head"]}, c.name)


@pytest.mark.parametrize("name", ["GPT", "ELMo", "ULMFiT", "LSTM language model"])
def test_a_model_is_pretrained_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text = tmp_path / "a.txt"
    text.write_text("\n\n".join(f"The {n} cats sat on {n} mats. They were {n} black cats." for n in range(60)), "utf-8")
    kind = REPRESENTATIONS[name].text
    made = text_cell(
        tmp_path / "cells" / "text" / kind,
        kind="words" if kind == "words" else "wordpiece",
        size=60 if kind == "words" else 80,
        train=[str(text)],
        dev=[shutil.copy(text, tmp_path / "dev.txt")],
    )
    assert made["documents"] == 60
    monkeypatch.setattr(representations, "steps_within", lambda recipe, folder, cpu_seconds: int(cpu_seconds))
    found = next(c for c in pretrain_cells(tmp_path, tmp_path) if c.name == f"pre-training/{name}")
    small: dict[str, Any] = {"width": 16, "n_layers": 1}
    small |= {"GPT": {"n_heads": 2}, "ELMo": {"cells": 16, "filters": [[1, 8]]}}.get(name, {})
    small |= {"hidden_width": 16, "n_layers": 2} if name == "ULMFiT" else {}
    recipe = found.options["recipe"]
    recipe["encoder"] = {**recipe.get("encoder", {}), **small}
    recipe["train"] = {**recipe.get("train", {}), "batch_tokens": 256}
    folder = tmp_path / "cells" / found.name
    facts = pretrain_cell(folder, recipe=recipe, cpu_seconds=3.0, vectors="")
    assert facts["steps"] == 3 and facts["parameters"] > 0 and facts["cpu_s"] >= 0 and facts["dev"]["loss"] > 0
    assert read_model(folder / "model").objective is not None
    # A finished cell is only read.
    assert pretrain_cell(folder, recipe=recipe, cpu_seconds=3.0, vectors="")["dev"] == facts["dev"]


def test_updates_are_counted_by_the_clock(tiny_corpus: Path, tmp_path: Path) -> None:
    recipe = {
        "model": "bert-tiny",
        "data": {"corpus": str(tiny_corpus), "length": 32, "instances": "documents"},
        "encoder": {"width": 16, "n_layers": 1, "n_heads": 2, "feed_forward_width": 16},
        "train": {"batch_tokens": 256},
    }
    assert steps_within(recipe, tmp_path, 60.0) > 10 and steps_within(recipe, tmp_path, 1e-9) == 1
    assert not any(tmp_path.iterdir())


def test_time_and_memory_add_up_over_stops(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), usage(tmp_path):
        sum(range(3_000_000))
        raise KeyboardInterrupt
    first = read_json(tmp_path / "usage.json")
    with usage(tmp_path) as used:
        sum(range(3_000_000))
    assert used["cpu_s"] >= first["cpu_s"] and used.get("peak_mb", 1) > 0


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the folder of the data sets"):
        study_cells(tmp_path / "no", tmp_path, tmp_path / "out")
