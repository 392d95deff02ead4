"""The translation study: its recipe is the published one, and the whole study runs on a few lines."""

import random
from pathlib import Path

import pytest

from firth.config import read_toml
from firth.errors import ConfigError
from firth.studies import cells, translation
from firth.studies.translation import BEAM, BEST, GREEDY, MEAN, NEWEST, RECIPE, TRAINING, study_cells
from firth.studies.translation_report import perplexity_curve, score_signatures, score_table, training_text

ROOT = Path(__file__).resolve().parents[2]


def test_the_recipe_beside_it_is_the_same() -> None:
    recipe = read_toml(ROOT / "recipes" / "transformer-multi30k.toml")
    assert recipe.pop("data").pop("corpus") and RECIPE["data"] == {"length": 64}
    assert recipe == {key: value for key, value in RECIPE.items() if key != "data"}


def lines_of(n: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(["red", "blue", "green", "one", "two", "three", "cat", "dog"], k=4)) for _ in range(n)]


def test_the_whole_study_on_a_few_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sacrebleu")
    folder = tmp_path / "data" / "multi30k"
    folder.mkdir(parents=True)
    for name, n, seed in (("train", 60, 1), ("val", 6, 2)):
        lines = lines_of(n, seed)
        (folder / f"{name}.en").write_text("\n".join(lines) + "\n", "utf-8")
        (folder / f"{name}.de").write_text("\n".join(line.upper() for line in lines) + "\n", "utf-8")
    monkeypatch.setattr(translation, "PIECES", 40)
    monkeypatch.setattr(translation, "LAST", 2)
    small = {
        **RECIPE,
        "encoder": {"width": 16, "n_layers": 1, "n_heads": 2, "feed_forward_width": 16},
        "train": {
            "steps": 3,
            "batch_tokens": 128,
            "save_every": 1,
            "eval_every": 1,
            "keep_checkpoints": 3,
            "precision": "float32",
        },
    }
    monkeypatch.setattr(translation, "RECIPE", small)

    def in_this_process(todo, out, workers, tell, on):  # type: ignore[no-untyped-def]  # as run_cells
        stamps, ready = cells.stamps_of(todo), cells.done(todo, out)
        for cell in todo:
            if cell.name not in ready:
                cells._run_cell(cell, stamps[cell.name], out)
        return cells.collect_facts(todo, out)

    monkeypatch.setattr(cells, "run_cells", in_this_process)
    monkeypatch.setattr(
        translation, "SEARCHES", {GREEDY: {"beam": 1}, BEAM: {"beam": 2}, "no penalty": {"length_penalty": 0.0}}
    )
    out = tmp_path / "out"
    study = study_cells(tmp_path / "data", tmp_path / "models", out)
    facts = cells.run_study(study, out, workers=2, tell=lambda _: None)
    assert set(facts) == {
        TRAINING,
        *(f"scores/{model}/{search}" for model in (BEST, NEWEST, MEAN) for search in (GREEDY, BEAM)),
        f"scores/{MEAN}/no penalty",
    }
    assert facts[TRAINING]["steps"] == 3 and [step for step, *_ in facts[TRAINING]["dev"]] == [1, 2, 3]
    # The mean, the best and the last are three models.
    assert (out / "cells" / TRAINING / "mean" / "model.safetensors").is_file()
    header, rows = score_table(facts)
    assert len(header) == 4 and len(rows) == 6
    assert "bleu: nrefs:1" in score_signatures(facts) and "3 steps" in training_text(facts[TRAINING])
    assert perplexity_curve(facts)["held out"][0] == [1.0, 2.0, 3.0]
    # Finished cells are only read.
    assert cells.run_study(study, out, workers=2, tell=lambda _: None) == facts


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"multi30k.train\.en: no such file, nor with \.gz"):
        study_cells(tmp_path, tmp_path, tmp_path / "out")
