"""sentence-transformers folders: their parts, what is ignored, and what is written."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from published_folders import encoder_alone, masked, publish

from firth.convert.sentence_transformers import read_sentence_model, write_sentence_model
from firth.errors import CheckpointError
from firth.formats.table import find_format, open_model, read_format
from firth.inference.model import load_model
from firth.tasks.config import EmbeddingConfig

MEAN = {"word_embedding_dimension": 8, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
OLD = "sentence_transformers.models"


def parts(*kinds: str, transformer: str = "", package: str = OLD) -> list[dict[str, Any]]:
    places = [transformer, *(f"{i}_{kind}" for i, kind in enumerate(kinds[1:], start=1))]
    return [
        {"idx": i, "name": str(i), "path": place, "type": f"{package}.{kind}"}
        for i, (kind, place) in enumerate(zip(kinds, places, strict=True))
    ]


def layout(folder: Path, modules: Any, pooling: Any = MEAN, **about: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if about:
        (folder / "sentence_bert_config.json").write_text(json.dumps(about))
    return folder


@pytest.mark.parametrize(
    ("pooling", "pool"),
    [
        (MEAN, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "first"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"embedding_dimension": 8, "pooling_mode": "mean", "include_prompt": True}, "mean"),
        ({"pooling_mode": "cls"}, "first"),
        ({"pooling_mode": ["max"]}, "max"),
    ],
)
def test_ways_to_pool(pooling: Any, pool: str, tmp_path: Path) -> None:
    found = read_sentence_model(layout(tmp_path, parts("Transformer", "Pooling"), pooling))
    assert found.embedding == EmbeddingConfig(pool=pool) and found.transformer == tmp_path  # type: ignore[arg-type]


def test_unit_length_and_old_places(tmp_path: Path) -> None:
    modules = parts("Transformer", "Pooling", "Normalize", transformer="0_Transformer")
    found = read_sentence_model(layout(tmp_path, modules))
    assert found.embedding.normalize and found.transformer == tmp_path / "0_Transformer"
    modules = parts("Transformer", package="sentence_transformers.base.modules.transformer")
    assert read_sentence_model(layout(tmp_path, modules)).embedding == EmbeddingConfig()


@pytest.mark.parametrize(
    ("modules", "pooling", "message"),
    [
        (parts("Transformer", "Pooling", "Dense"), MEAN, "parts Transformer, Pooling, Dense: Firth reads"),
        (parts("CLIPModel"), MEAN, "parts CLIPModel: Firth reads"),
        (parts("Transformer", "Pooling", transformer="../x"), MEAN, "path '../x': expected a folder in this one"),
        (parts("Transformer", "Pooling", transformer="/etc"), MEAN, "path '/etc': expected a folder in this one"),
        ([], MEAN, "parts : Firth reads"),
        ({}, MEAN, "parts : Firth reads"),
        ([3], MEAN, "expected a list of parts"),
        ([{"path": ""}], MEAN, "expected a list of parts"),
        (parts("Transformer", "Pooling"), {"pooling_mode_mean_tokens": False}, "pooling of no kind: expected one of"),
        (parts("Transformer", "Pooling"), MEAN | {"pooling_mode_max_tokens": True}, "mean_tokens and pooling_mode_max"),
        (
            parts("Transformer", "Pooling"),
            {"pooling_mode_weightedmean_tokens": True},
            "pooling pooling_mode_weightedmean",
        ),
        (parts("Transformer", "Pooling"), [], "expected a JSON object"),
    ],
)
def test_what_does_not_fit_is_named(modules: Any, pooling: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_sentence_model(layout(tmp_path, modules, pooling))


def test_what_is_not_followed_is_said(tmp_path: Path) -> None:
    folder = layout(tmp_path, parts("Transformer", "Pooling"), max_seq_length=16, do_lower_case=True)
    (folder / "config_sentence_transformers.json").write_text('{"default_prompt_name": "query"}')
    notes = " ".join(read_sentence_model(folder).notes)
    assert "cuts texts at 16 tokens" in notes and "do_lower_case" in notes and "default prompt" in notes


@pytest.mark.parametrize("place", ["", "0_Transformer"])
def test_a_model_embeds_in_its_own_way_unless_asked(place: str, tmp_path: Path) -> None:
    objective = masked()
    folder = tmp_path / "st"
    publish(folder / place if place else folder, encoder_alone(objective), architecture="BertModel")
    layout(folder, parts("Transformer", "Pooling", "Normalize", transformer=place), {"pooling_mode_cls_token": True})
    found = read_format(find_format(folder))
    assert ("embedding", "first, made of length 1") in found.facts
    model = load_model(folder, device="cpu")
    first = model.embed("the cat", pool="first")
    assert abs(float(np.linalg.norm(first)) - 1) > 0.1
    np.testing.assert_allclose(model.embed("the cat"), first / np.linalg.norm(first), atol=1e-6)
    assert model.embed(["the cat", "a"]).dtype == np.float32
    assert torch.equal(
        open_model(folder).objective.encoder.state_dict()["embeddings.pieces.weight"],
        objective.encoder.state_dict()["embeddings.pieces.weight"],
    )


@pytest.mark.parametrize("embedding", [EmbeddingConfig(), EmbeddingConfig(pool="first", normalize=True)])
def test_there_and_back(embedding: EmbeddingConfig, tmp_path: Path) -> None:
    write_sentence_model(tmp_path, embedding, 8, 32)
    found = read_sentence_model(tmp_path)
    assert (found.embedding, found.transformer) == (embedding, tmp_path)
    assert json.loads((tmp_path / "sentence_bert_config.json").read_text())["max_seq_length"] == 32


def test_a_pooling_that_they_do_not_have(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="knows no pooling 'summary', only first, mean, max, last"):
        write_sentence_model(tmp_path, EmbeddingConfig(pool="summary"), 8, 32)
