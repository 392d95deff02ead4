"""``firth attention``."""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from firth import load
from firth.folder import read_model, write_model
from firth.tasks.config import ClassifyConfig
from firth.tasks.table import TASKS


def test_a_picture_is_written(firth, tiny_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "maps.png"
    result = firth("attention", tiny_run, "The old farmer.", "--second", "A mill?", "--out", out)
    n_pieces = len(load(tiny_run).attention("The old farmer.", "A mill?").tokens)
    assert (result.code, result.err) == (0, "")
    assert result.out == f"{out}: 2 layers, 2 heads each, over {n_pieces} tokens\n"
    assert out.read_bytes().startswith(b"\x89PNG")


def test_numbers_as_json(firth, tiny_run: Path) -> None:
    found = json.loads(firth("attention", tiny_run, "The old farmer.", "--json").out)
    expected = load(tiny_run).attention("The old farmer.")
    assert found["tokens"] == expected.tokens
    np.testing.assert_array_equal(np.array(found["weights"], np.float32), expected.weights)


@pytest.mark.parametrize(
    ("tokens", "parts"),
    [
        (["a"], ["--out is missing", "--json"]),
        (["a", "--out", "x.png", "--json"], ["leave out --out, or --json"]),
        (["a", "--out", "x.jpg"], ["x.jpg", "new .png or .svg file"]),
        (["a", "--out", "absent/x.png"], ["absent/x.png", "new .png or .svg file"]),
        (["the old farmer " * 40, "--json"], ["at most 64", "shorten"]),
    ],
)
def test_what_cannot_be_shown(
    firth, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: list[str], parts: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = firth("attention", tiny_run, *tokens)
    assert result.code == 2
    assert [part for part in parts if part not in result.complaint] == []
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_stays(firth, tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "x.png").write_text("mine")
    assert "x.png" in firth("attention", tiny_run, "a", "--out", tmp_path / "x.png").complaint
    assert (tmp_path / "x.png").read_text() == "mine"


def test_explain(firth, tiny_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.html"
    result = firth("explain", tiny_run, "The queen looked at the river.", "--out", out)
    assert result.code == 0 and result.out.startswith(f"{out}: Tokens, ") and out.stat().st_size > 5000
    assert "exists already" in firth("explain", tiny_run, "The queen.", "--out", out).complaint
    picture = firth("explain", tiny_run, "a", "--out", out.with_suffix(".png"))
    assert "expected the name of a new .html file" in picture.complaint
    unknown = firth("explain", tiny_run, "The queen.", "--word", "zebra", "--out", tmp_path / "b.html")
    assert unknown.code == 2 and "no text has this word" in unknown.complaint


def test_an_svg_that_stands_alone(firth, tiny_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.svg"
    assert firth("attention", tiny_run, "The <old> farmer & mill.", "--average", "heads", "--out", out).code == 0
    root = ElementTree.parse(out).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    words = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert words.count("[CLS]") == 3 and "layer 2" in words
    assert "mean of heads" in words and "head 1" not in words


def test_measures_of_heads(firth, tiny_run: Path) -> None:
    text = "The old farmer walked to the river."
    read = json.loads(firth("attention", tiny_run, text, "--show", "importance", "--json").out)["importance"]
    assert np.shape(read) == (2, 2)
    np.testing.assert_allclose(read, load(tiny_run).head_importance([text]), atol=1e-5)
    lines = firth("attention", tiny_run, text, "--show", "saturation").out.splitlines()
    assert len(lines) == 3 and lines[1].startswith("  layer 1")
    assert "measures whole heads" in firth("attention", tiny_run, text, "--show", "importance", "--cross").complaint
    assert "has no cross-attention" in firth("attention", tiny_run, text, "--cross", "--json").complaint


def test_a_model_that_predicts_no_tokens_has_no_importance_of_heads(firth, tiny_run: Path, tmp_path: Path) -> None:
    loaded = read_model(tiny_run)
    classifier = TASKS["classify"].model(loaded.objective.encoder, ClassifyConfig(labels=("a", "b")))
    (tmp_path / "m").mkdir()
    write_model(tmp_path / "m", loaded.system_name, "classify", classifier, loaded.tokenizer, {})
    refused = firth("attention", tmp_path / "m", "the old farmer", "--show", "importance")
    assert refused.code == 2 and "give a pre-trained BERT or GPT" in refused.complaint


@pytest.mark.parametrize("show", ["importance", "saturation"])
def test_measures_of_heads_are_drawn(firth, tiny_run: Path, tmp_path: Path, show: str) -> None:
    text, out = "The old farmer walked to the river.", tmp_path / "a.svg"
    assert "is drawn as .svg" in firth("attention", tiny_run, text, "--show", show, "--out", "a.png").complaint
    assert firth("attention", tiny_run, text, "--show", show, "--out", out).code == 0
    words = [e.text for e in ElementTree.parse(out).getroot().iter("{http://www.w3.org/2000/svg}text")]
    model = load(tiny_run)
    if show == "importance":
        assert "head 2" in words and f"{model.head_importance([text])[0, 1]:+.3f}" in words
    else:
        assert "layer 2" in words and f"{model.saturation(text)[1].largest_unscaled:.2f}" in words
