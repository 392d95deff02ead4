"""The learning study: its cells on a tiny corpus, what they measure, and the table."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from firth.errors import ConfigError
from firth.folder import read_model
from firth.pretraining.recipe import read_recipe
from firth.studies import learning
from firth.studies.learning import LOSSES, SEEDS, VARIANTS, learning_cells, study_cells
from firth.studies.learning_report import learning_table, write_study_report


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [
        {"sentence_good": f"w{i} a b", "sentence_bad": f"b w{i} a", "field": "f", "UID": f"u{i % 2}"} for i in range(20)
    ]
    for name in learning.PAIRS.values():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return tmp_path / "data"


def test_every_variant_has_a_sound_recipe_and_three_seeds(data: Path, tiny_corpus: Path) -> None:
    cells = learning_cells(data, tiny_corpus)
    assert len(cells) == SEEDS * sum(len(variant.budgets) for variant in VARIANTS.values())
    for cell in cells:
        recipe = read_recipe(cell.options["recipe"], cell.options["settings"], cell.name, vocab_size=1000)
        tokens = recipe.train.steps * recipe.train.batch_tokens
        assert tokens == pytest.approx(learning.TOKENS[cell.name.partition("/")[0]], rel=1e-3)


@pytest.mark.parametrize("name", ["both lengths, 20 % masked", "with next sentences", "left to right first"])
def test_a_cell_measures_all_that_the_table_shows(
    data: Path, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(learning, "EVAL_BATCHES", 1)
    (cell, *_) = [c for c in learning_cells(data, tiny_corpus) if name in c.name]
    options: dict[str, Any] = cell.options
    options["recipe"]["train"] |= {"steps": 4, "batch_tokens": 256, "eval_every": 1, "save_every": 0, "log_every": 1}
    options["recipe"]["encoder"] |= {"width": 32, "n_layers": 1, "n_heads": 2, "feed_forward_width": 32}
    facts = cell.work(tmp_path / "cell", **options)
    assert set(facts["held_out"]) == {"64", "128"} and facts["held_out"]["64"]["loss"] > 0
    assert set(facts["pairs"]) == {"BLiMP", "Zorro"}
    assert set(facts["below"]) == {str(loss) for loss in LOSSES}
    assert cell.work(tmp_path / "cell", **options) == facts


def test_what_was_learned_left_to_right_is_where_masked_training_starts(
    data: Path, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "EVAL_BATCHES", 1)
    monkeypatch.setattr(learning, "LOSSES", (100.0,))
    (cell, *_) = [c for c in learning_cells(data, tiny_corpus) if "left to right first/" in c.name]
    options: dict[str, Any] = cell.options | {"share": 0.5}
    options["recipe"]["train"] |= {"steps": 4, "batch_tokens": 256, "eval_every": 1, "save_every": 0, "log_every": 1}
    options["recipe"]["encoder"] |= {"width": 32, "n_layers": 1, "n_heads": 2, "feed_forward_width": 32}
    facts = cell.work(tmp_path, **options)
    first, start = (
        read_model(folder).objective.state_dict()
        for folder in (tmp_path / "left-to-right/checkpoints/step-2", tmp_path / "start")
    )
    assert start.keys() == {name.replace("lm.", "mlm.") for name in first}
    assert all(torch.equal(start[name.replace("lm.", "mlm.")], tensor) for name, tensor in first.items())
    assert facts["below"]["100.0"]["tokens"] == 2 * 256, "what was read left to right counts"


def test_the_first_crossing_counts(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    events = [("dev", 10, 6.4), ("train", 12, 5.0), ("dev", 20, 6.2), ("dev", 30, 5.6), ("dev", 40, 5.4)]
    log.write_text("".join(json.dumps({"event": e, "step": s, "mlm_loss": v}) + "\n" for e, s, v in events))
    assert learning._crossings(log) == {6.3: 20, 5.5: 40, 5.0: None}


FACTS = {
    f"2.5 M/random start/seed {seed}": {
        "below": {"6.3": {"tokens": 2e6, "minutes": 5.0}, "5.5": None, "5.0": None},
        "minutes": 8.0,
        "held_out": {"64": {"loss": 6.5 + seed / 10, "accuracy": 0.1}, "128": {"loss": 6.7, "accuracy": 0.09}},
        "pairs": {"BLiMP": 0.5, "Zorro": 0.55},
    }
    for seed in (1, 2)
}


def test_the_table_has_means_and_what_was_never_reached(tmp_path: Path) -> None:
    header, rows = learning_table(FACTS, "2.5 M")
    assert rows == [
        [
            "random start",
            "2",
            "6.60",
            "6.65 ± 0.07",
            "6.70 ± 0.00",
            "10.0 ± 0.0",
            "2.00 M",
            "–",
            "–",
            "50.0 ± 0.0",
            "55.0 ± 0.0",
            "8.0",
        ]
    ]
    assert len(header) == len(rows[0]) and learning_table(FACTS, "12 M")[1] == []
    assert "random start" in write_study_report(tmp_path, FACTS).read_text("utf-8")


def test_what_is_missing_is_named(data: Path, tmp_path: Path, tiny_corpus: Path) -> None:
    with pytest.raises(ConfigError, match="made by make models"):
        study_cells(data, tmp_path, tmp_path / "out")
    (tmp_path / "en").mkdir()
    (tmp_path / "en" / "corpus").symlink_to(tiny_corpus)
    with pytest.raises(ConfigError, match="no such file"):
        study_cells(tmp_path, tmp_path, tmp_path / "out")
