"""The same vectors as sentence-transformers, from its folders and from ours."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from published_folders import PIECES, SIZES, encoder_alone, masked, publish

from firth.export.convert import convert
from firth.inference.model import load_model

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")

TEXTS = ["the cat", "a", "", "that moon, in the hut."]


def theirs(*parts: Any, device: str = "cpu") -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(modules=list(parts), device=device)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [False, True])
def test_their_folder_here(mode: str, normalize: bool, tmp_path: Path) -> None:
    folder = publish(tmp_path / "hf", encoder_alone(masked()), architecture="BertModel")
    made = [modules.Transformer(str(folder)), modules.Pooling(SIZES.width, mode)]
    model = theirs(*made, *([modules.Normalize()] if normalize else []))
    model.save(str(tmp_path / "st"))
    ours = load_model(tmp_path / "st", device="cpu")
    assert ours.loaded.tokenizer.pieces == PIECES
    np.testing.assert_allclose(ours.embed(TEXTS), model.encode(TEXTS), rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("normalize", [False, True])
def test_our_folder_there(normalize: bool, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = publish(tmp_path / "hf", encoder_alone(masked()), architecture="BertModel")
    if normalize:
        made = [modules.Transformer(str(folder)), modules.Pooling(SIZES.width, "cls"), modules.Normalize()]
        theirs(*made).save(str(tmp_path / "st"))
        folder = tmp_path / "st"
    convert(folder, tmp_path / "ours", "st")
    model = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    kinds = [type(part).__name__ for part in model]
    assert kinds == ["Transformer", "Pooling"] + ["Normalize"] * normalize
    with torch.no_grad():
        found = model.encode(TEXTS)
    np.testing.assert_allclose(load_model(tmp_path / "ours", device="cpu").embed(TEXTS), found, rtol=0, atol=1e-5)
