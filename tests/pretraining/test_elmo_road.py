"""The ELMo pipeline in miniature: words -> language model -> frozen layers under a tagger -> predictions."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth.cli import main
from firth.errors import ConfigError, TokenizerError
from firth.export.convert import convert
from firth.finetuning.finetune import run_resolved
from firth.finetuning.resolve import Resolved
from firth.finetuning.resolve import resolve as resolve_task
from firth.folder import read_model
from firth.pretraining.replay import replay
from firth.pretraining.run import pretrain, resolve
from firth.text.open_words import OpenWords
from firth.training.log import read_log

RECIPE: dict[str, Any] = {
    "model": "elmo-mini",
    "encoder": {"width": 12, "cells": 24, "character_width": 4, "filters": [[1, 8], [2, 8], [3, 16]]},
    "data": {"length": 8},
    "train": {"steps": 80, "batch_tokens": 256, "eval_every": 10, "save_every": 0, "precision": "float32"},
}
# Town names are capitalised and end in -ton or -ville, so characters identify even unseen ones.
TOWNS = ["Alton", "Bolton", "Carlton", "Danville", "Evansville", "Felton", "Granville", "Hilton"]
OTHERS = ["walked", "painted", "river", "harbour", "winter", "farmer", "quiet", "market"]


def silent(_: str) -> None:
    """Say nothing."""


@pytest.fixture(scope="module")
def run(tiny_word_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("elmo") / "run"
    pretrain(resolve(RECIPE, [f"data.corpus={tiny_word_corpus}"], "tiny recipe"), out, tell=silent)
    return out


def test_both_perplexities_fall(run: Path) -> None:
    first, *_, last = (event for event in read_log(run / "log.jsonl") if event["event"] == "dev")
    for term in ("forward", "backward"):
        assert last[f"{term}_loss"] < first[f"{term}_loss"] < math.log(80)
    assert last["loss"] == pytest.approx((last["forward_loss"] + last["backward_loss"]) / 2)


def test_its_settings_are_the_published_ones(tiny_word_corpus: Path) -> None:
    recipe = resolve({"model": "elmo"}, [f"data.corpus={tiny_word_corpus}"], "flags")
    assert (recipe.optim.kind, recipe.optim.learning_rate, recipe.optim.schedule) == ("adagrad", 0.2, "constant")
    assert (recipe.data.length, recipe.train.batch_tokens, recipe.objective.negatives) == (20, 5120, 8192)
    assert (recipe.encoder.width, recipe.encoder.cells, recipe.encoder.n_layers) == (512, 4096, 2)


def test_a_batch_of_both_streams_is_made_again(run: Path) -> None:
    shown = replay(run, "0:0:0:1", silent)
    assert set(shown["losses"]) == {"forward", "backward"}
    row = shown["rows"][0]
    assert len(row["text"].split()) == len(row["second"].split()) == 8
    pieces = row["text"].split()
    assert [word for _, word in row["forward"]][:-1] == pieces[1:] or "</s>" in dict(row["forward"]).values()
    assert len(row["forward"]) == len(row["backward"]) == 8


def test_the_folder_reads_any_word(run: Path) -> None:
    model = firth.load(run)
    assert isinstance(model.loaded.tokenizer, OpenWords)
    assert [piece.token for piece in model.tokenize("the zyzzyva .")] == ["the", "zyzzyva", "."]
    one, same, other = model.embed(["the zyzzyva", "the zyzzyva", "the zyzzyvas"])
    assert np.array_equal(one, same) and not np.allclose(one, other)


def test_words_that_it_cannot_predict_are_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It reads any word, but its softmax has only those of its vocabulary."""
    assert main(["score-text", str(run), "the river and the zyzzyva"]) == 0
    assert "predicted as" not in capsys.readouterr().err
    assert main(["score-text", str(run), "the zyzzyva zyzzyvas"]) == 0
    told = "'the zyzzyva zyzzyvas': 2 of 3 words are predicted as <unk>: the scores mean little"
    assert told in capsys.readouterr().err


def test_a_published_model_goes_on_with_text_of_ours(tiny_word_corpus: Path, run: Path, tmp_path: Path) -> None:
    """It has no vocabulary and no softmax: both come from the corpus, only the encoder is its own."""
    pytest.importorskip("h5py")
    convert(run, tmp_path / "published", "elmo")
    data = {**RECIPE, "model": str(tmp_path / "published"), "encoder": {}}
    settings = [f"data.corpus={tiny_word_corpus}", "train.steps=2", "train.eval_every=0", "train.seed=7"]
    settings.append("optim.learning_rate=0.001")
    heard: list[str] = []
    pretrain(resolve(data, settings, "flags"), tmp_path / "on", tell=heard.append)
    assert any("has no trained softmax: initialised randomly" in text for text in heard)
    old, new = (read_model(folder).objective.state_dict() for folder in (run, tmp_path / "on"))
    assert old.keys() == new.keys()
    moved = {name: float((new[name] - old[name]).norm() / old[name].norm()) for name in old if "weight" in name}
    assert moved.pop("softmax.weight") > 1 and max(moved.values()) < 0.1


def sentences(towns: list[str]) -> str:
    lines = []
    for number in range(24):
        words = [OTHERS[number % 8], towns[number % len(towns)], OTHERS[(number * 3 + 1) % 8]]
        lines.append("".join(f"{word}\t{'B-LOC' if word in towns else 'O'}\n" for word in words))
    return "\n".join(lines)


def test_frozen_layers_under_a_tagger(run: Path, tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text(sentences(TOWNS))
    (tmp_path / "dev.conll").write_text(sentences(["Ashton", "Nashville"]))
    plain = {
        "model": str(run),
        "task": "tag",
        "data": {
            "train": str(tmp_path / "train.conll"),
            "columns": "word=0,tag=1",
            "dev": str(tmp_path / "dev.conll"),
            "format": "conll",
            "held_out": 0.2,
        },
    }
    settings = [
        "head.network.kind=bilstm",
        "head.network.layers=[0, 1, 2]",
        "head.network.mix=scalar",
        "head.network.lstm_layers=1",
        "head.network.lstm_width=8",
        "head.network.second_mix=true",
        "head.network.mix_l2=0.01",
        "head.network.layer_norm=true",
        "head.network.dropout=0.1",
        "train.epochs=25",
        "optim.learning_rate=0.02",
        "train.precision=float32",
        "train.batch_examples=4",
    ]
    recipe, base, labelled = resolve_task(plain, settings, "flags")
    assert recipe.adapt.frozen_groups == -1 and recipe.optim.kind == "adamw"
    run_resolved(Resolved(recipe, base, labelled), tmp_path / "tagger", tell=silent)
    before, after = (read_model(folder).objective.encoder.state_dict() for folder in (run, tmp_path / "tagger"))
    assert all((before[name] == after[name]).all() for name in before)
    model = firth.load(tmp_path / "tagger")
    scores = json.loads((tmp_path / "tagger" / "model" / "firth.json").read_text())
    assert scores["system"] == "elmo" and scores["task"] == "tag"
    found = model.predict("walked Ashton quiet")
    assert [entity.text for entity in found.entities] == ["Ashton"]


def test_pieces_of_words_are_refused(tiny_corpus: Path, tiny_vocab: Path, tmp_path: Path) -> None:
    recipe = resolve(RECIPE, [f"data.corpus={tiny_corpus}"], "flags")
    with pytest.raises(TokenizerError, match="requires whole words, these are tokens of the kind WordPiece"):
        pretrain(recipe, tmp_path / "run", tell=silent)
    with pytest.raises(ConfigError, match="data.instances='pairs' does not suit elmo"):
        resolve(RECIPE, [f"data.corpus={tiny_corpus}", "data.instances=pairs"], "flags")
