"""The directionality study: its cells on a tiny corpus, their dependencies, and the tables it writes."""

from pathlib import Path
from typing import Any

import pytest

from firth.errors import ConfigError
from firth.finetuning.recipe import build, plain_recipe
from firth.studies import directionality
from firth.studies.directionality import TASKS, VARIANTS, pretrain_cell, pretrain_cells, study_cells, tune_cells
from firth.studies.directionality_report import direction_table, pretraining_table, published_table, write_study_report
from firth.systems import SYSTEMS, size_named
from firth.tasks.datasets import DATASETS
from firth.text.tokenizer import Tokenizer


def cell(score: float, metric: str = "accuracy") -> dict[str, Any]:
    return {"metric": metric, "dev": {"dev": {metric: {"mean": score, "sd": 0.01, "values": [score - 0.01, score]}}}}


FACTS = {
    "pre-training/BERT": {"dev": {"mlm_loss": 5.25, "loss": 5.25}, "seconds": 300.0, "parameters": 7_400_000},
    "tasks/BERT/SST-2": cell(0.75),
    "tasks/GPT/CoNLL-2003": cell(0.5, "entity_f1"),
}


def test_tables_show_what_is_done() -> None:
    header, rows = direction_table(FACTS)
    assert header == ["model", "SST-2, accuracy", "MRPC, accuracy", "SNLI, accuracy", "CoNLL-2003, entity_f1"]
    assert rows == [["BERT", "75.0 ± 1.0", "–", "–", "–"], ["GPT", "–", "–", "–", "50.0 ± 1.0"]]
    assert pretraining_table(FACTS)[1] == [["BERT", "7.4 M", "5.0", "mlm_loss 5.250"]]
    assert published_table()[0] == ["model", "SST-2, accuracy", "MRPC, accuracy"]


@pytest.mark.draws
def test_the_report_has_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page = write_study_report(tmp_path, FACTS).read_text("utf-8")
    assert "<svg" in page and "left to right without NSP" in page


def test_cells_have_sound_recipes_and_wait_for_their_models(tmp_path: Path) -> None:
    first = pretrain_cells(tmp_path / "corpus")
    second = tune_cells(tmp_path / "data", tmp_path / "out")
    assert len(second) == len(VARIANTS) * len(TASKS) == len({c.name for c in second})
    assert {need for c in second for need in c.needs} == {c.name for c in first}
    assert cell_named(second, "left to right, BiLSTM").needs == ("pre-training/left to right without NSP",)
    for variant in VARIANTS.values():
        assert size_named(variant.model)
    for c in second:
        plain = plain_recipe(c.options["recipe"], [], "test")
        kind = DATASETS[plain["task"]].kind if plain["task"] in DATASETS else plain["task"]
        build({"kind": kind, "metric": "x", **plain, "head": {"labels": ["a", "b"]} | plain["head"]}, c.name)


def test_words_are_marked_where_there_are_segment_embeddings(tmp_path: Path, tiny_vocab: Path) -> None:
    tokenizer = Tokenizer.load(tiny_vocab)
    for name, variant in VARIANTS.items():
        system, _ = size_named(variant.model)
        assert variant.marks is SYSTEMS[system].layout(tokenizer).has_segments
        head = cell_named(tune_cells(tmp_path, tmp_path), f"tasks/{name}/MRPC").options["recipe"]["head"]
        assert head.get("mark_shared_words", False) is variant.marks


def cell_named(cells: list[Any], part: str) -> Any:
    return next(c for c in cells if part in c.name)


@pytest.mark.parametrize("name", ["BERT without NSP", "GPT"])
def test_a_model_is_pretrained_and_what_is_done_is_not_done_again(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(directionality, "STEPS", 50)
    options = cell_named(pretrain_cells(tiny_corpus), name).options
    recipe = options["recipe"]
    recipe["train"] |= {"steps": 3, "batch_tokens": 256, "eval_every": 0, "save_every": 0, "log_every": 1}
    recipe["encoder"] |= {"width": 16, "n_layers": 1, "n_heads": 2}
    facts = pretrain_cell(tmp_path, **options)
    assert facts["steps"] == 3 and facts["parameters"] > 0 and facts["dev"]["loss"] > 0
    assert pretrain_cell(tmp_path, **options) == facts


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the folder of the data sets"):
        study_cells(tmp_path / "no", tmp_path, tmp_path / "out")
    with pytest.raises(ConfigError, match="made by make models"):
        study_cells(tmp_path, tmp_path, tmp_path / "out")
    (tmp_path / "en" / "corpus").mkdir(parents=True)
    cells = study_cells(tmp_path, tmp_path, tmp_path / "out")
    assert {cell.name.partition("/")[0] for cell in cells} == {"pre-training", "tasks"}
