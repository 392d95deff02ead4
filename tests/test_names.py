"""Names of models: paths, shipped models, sizes, and the messages for names that match nothing."""

import shutil
from pathlib import Path

import pytest

import firth
from firth import names
from firth.baseline.model import BASELINES
from firth.errors import ConfigError
from firth.formats.table import find_format
from firth.names import HUB, PUBLISHED, locate, not_found
from firth.pretraining.run import resolve
from firth.systems import SIZES, count_parameters, resolve_model
from firth.text.published import load_tokenizer


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def shipped(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation with a shipped model."""
    weights = tmp_path_factory.mktemp("weights")
    shutil.copytree(tiny_run / "model", weights / "firth-mini-en")
    monkeypatch.setattr(names, "WEIGHTS", weights)
    return weights / "firth-mini-en"


def test_a_folder_needs_no_slash(here: Path, tiny_run: Path, tiny_corpus: Path) -> None:
    shutil.copytree(tiny_run / "model", here / "mine")
    assert resolve_model("mine") == "./mine"
    recipe = resolve({"model": "mine", "data": {"corpus": str(tiny_corpus), "length": 32}}, (), "test")
    assert recipe.model == "./mine" and recipe.encoder.width == 32


def test_a_size_is_taken_where_no_folder_has_its_name(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert resolve_model("bert-mini") == "bert-mini"
    assert not capsys.readouterr().err
    (here / "bert-mini").mkdir()
    assert resolve_model("bert-mini") == "./bert-mini"
    assert "bert-mini is a folder here: it is used instead of the size" in capsys.readouterr().err


def test_a_shipped_model_has_a_name(
    here: Path, shipped: Path, tiny_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert firth.load("firth-mini-en").loaded.task == "pretraining"
    assert find_format("firth-mini-en").path == shipped
    assert load_tokenizer("firth-mini-en").size == 300
    recipe = resolve({"model": "firth-mini-en", "data": {"corpus": str(tiny_corpus), "length": 32}}, (), "test")
    assert recipe.model == "firth-mini-en" and recipe.encoder.width == 32
    with pytest.raises(ConfigError, match="firth-mini-ko is not part of this installation: .*make models"):
        resolve_model("firth-mini-ko")
    (here / "firth-mini-en").mkdir()
    assert locate("firth-mini-en") == Path("firth-mini-en")
    assert "is a folder here: it is used instead of the shipped model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bert-base-uncased", "hub:google-bert/bert-base-uncased"),
        ("google-bert/bert-base-uncased", "did you mean hub:google-bert/bert-base-uncased?"),
        ("someone/some-model", "a model of the Hugging Face hub is named hub:someone/some-model"),
        ("bert-mini", "firth pretrain --model bert-mini makes a model of it"),
        ("./bert-mini", "firth pretrain --model bert-mini"),
        ("runs/spma", "did you mean runs/spam?"),
        ("run/spam", "did you mean runs/spam?"),
        ("firth-mini-em", "did you mean firth-mini-en?"),
        ("firth-mini", "did you mean firth-mini-ko or firth-mini-en?"),
    ],
)
def test_what_may_be_meant(here: Path, name: str, said: str) -> None:
    (here / "runs" / "spam").mkdir(parents=True)
    with pytest.raises(ConfigError, match="no such model folder") as caught:
        find_format(name)
    assert said in str(caught.value)


def test_nothing_is_guessed_of_a_name_like_no_other(here: Path) -> None:
    assert not_found("qqqqqq", SIZES) == ""
    # A size has no weights, which is what was looked for.
    assert not_found("coev", SIZES) == ""
    with pytest.raises(ConfigError, match="'qqqqqq' is no folder, no shipped model and no size: firth models lists"):
        resolve_model("qqqqqq")
    with pytest.raises(ConfigError, match=f"{HUB}{PUBLISHED['bert-base-cased']} .extra hub."):
        resolve_model("bert-base-cased")


def test_a_baseline_may_be_meant(here: Path) -> None:
    with pytest.raises(ConfigError, match="tfidf is a baseline, without layers or weights to start from"):
        resolve_model("tfidf")
    with pytest.raises(ConfigError, match="'tf-idf' is no folder, .* did you mean tfidf"):
        resolve_model("tf-idf")
    assert set(names.BASELINE_NAMES) == set(BASELINES)


def test_parameters_are_counted_without_weights() -> None:
    # Google's BERT-base has 109,482,240 parameters with a vocabulary of 30,522 tokens, 768 parameters each.
    assert count_parameters("bert-base") == 109_482_240 - 522 * 768
