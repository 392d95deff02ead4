"""Recipes: defaults that depend on the model, refused settings, and every recipe file of the repository."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from firth.config import read_toml, to_dict, to_toml
from firth.errors import ConfigError
from firth.folder import PRETRAINING
from firth.names import locate
from firth.pretraining.recipe import Pretrain, read_recipe
from firth.pretraining.run import recipe_at
from firth.recipes import NAMED, read_recipe_file
from firth.text.tokenizer_kinds import WORDPIECE

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def recipe(model: str = "bert-mini", *settings: str) -> Pretrain:
    return read_recipe({"model": model}, settings, "test", vocab_size=100)


@pytest.mark.parametrize("path", [*sorted(RECIPES.glob("*.toml")), *filter(None, NAMED.values())], ids=lambda p: p.stem)
def test_every_recipe_file_is_valid_and_says_what_it_is(path: Path) -> None:
    read_recipe(read_toml(path), [], str(path), vocab_size=16000)
    assert path.read_text().startswith("# ")


def test_what_is_not_said_follows_from_the_model() -> None:
    assert recipe().encoder.width == 256
    assert recipe().objective.next_sentence
    assert recipe("bert-ltr-mini").encoder.causal
    assert recipe("bert-ltr-mini").data.instances == "documents"
    assert recipe("lstm-small").data.instances == "streams"
    without = recipe("bert-mini", "data.instances=documents")
    assert not without.objective.next_sentence


def test_a_runs_recipe_serves_another_size_and_corpus() -> None:
    """It names every size of its own model, which must not be those of another."""
    run = to_dict(recipe("bert-tiny", "encoder.dropout=0.3"))
    larger = read_recipe(run, ["model=bert-small"], "run", vocab_size=500)
    assert larger.encoder == recipe("bert-small", "encoder.dropout=0.3", "encoder.vocab_size=500").encoder
    kept = read_recipe(run, ["model=bert-small", "encoder.n_layers=3"], "run", vocab_size=500)
    assert (kept.encoder.n_layers, kept.encoder.width) == (3, larger.encoder.width)
    other = read_recipe(run, ["data.corpus=other"], "run", vocab_size=500)
    assert (other.encoder.vocab_size, other.encoder.width) == (500, 128)
    assert read_recipe(run, (), "run", vocab_size=500).encoder == recipe("bert-tiny", "encoder.dropout=0.3").encoder


def test_a_model_goes_on_with_the_sequences_it_was_trained_on(tmp_path: Path) -> None:
    """Else its next fine-tuning would read a summary vector that a few steps have trained."""

    def of(model: Path, *settings: str) -> Pretrain:
        return read_recipe({"model": str(model)}, settings, "test")

    mini = locate("firth-mini-en")
    found = of(mini)
    assert not found.objective.next_sentence
    assert (found.data.instances, found.data.length, found.data.long_length) == ("documents", 64, 512)
    assert found.data.mixed_lengths and found.data.long_share == 0.3
    shorter = of(mini, "data.length=128")
    assert (shorter.data.instances, shorter.data.length, shorter.data.long_length) == ("documents", 128, 0)
    assert not shorter.objective.next_sentence
    share = of(mini, "data.long_share=0.5")
    assert (share.data.instances, share.data.long_length, share.data.long_share) == ("documents", 512, 0.5)
    asked = of(mini, "data.instances=pairs")
    assert asked.objective.next_sentence and (asked.data.length, asked.data.long_length) == (128, 0)


def test_a_model_of_characters_goes_on_with_its_own_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its filters are tuples in the model's configuration, and lists in the recipe's file."""
    run = recipe("elmo-mini")
    model = SimpleNamespace(
        task=PRETRAINING,
        system_name="elmo",
        tokenizer=SimpleNamespace(kind=WORDPIECE),
        provenance={},
        objective=SimpleNamespace(encoder=SimpleNamespace(config=run.encoder)),
    )
    monkeypatch.setattr("firth.pretraining.recipe.open_model", lambda name: model)
    again = read_recipe(to_dict(run) | {"model": str(tmp_path)}, (), "run")
    assert again.encoder == run.encoder and isinstance(run.encoder.filters, tuple)


def test_a_corpus_at_an_address_is_looked_for_when_it_is_read(tmp_path: Path) -> None:
    for corpus in ("s3://bucket/corpus", "memory://corpus"):
        (tmp_path / "recipe.toml").write_text(to_toml(recipe("bert-tiny", f"data.corpus={corpus}")), "utf-8")
        assert recipe_at(tmp_path, None).data.corpus == corpus
    assert recipe_at(tmp_path, "here").data.corpus == "here"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["optim.peak_raet=1"], r"unknown key 'optim.peak_raet': did you mean 'optim.learning_rate'"),
        (["learning_rate=1"], r"unknown key 'learning_rate': here it is 'optim.learning_rate'"),
        (["train.learning_rate=1"], r"here it is 'optim.learning_rate'"),
        (["optim.peak_rate=1"], r"'optim.peak_rate': it is now called 'optim.learning_rate'"),
        (["train.max_steps=1"], r"here it is 'train.steps'"),
        (["train.steps=-1"], r"train.steps=-1: expected 0 or more"),
        (["train.steps=5", "train.minutes=1"], r"train.steps=5 and train.minutes=1 each set the length of the run"),
        (["train.steps=many"], r"train.steps = 'many': expected int"),
        (["train.steps=true"], r"train.steps = True: expected int"),
        (["encoder.n_heads=7"], r"width=256 is not a multiple of n_heads=7"),
        (["encoder.causal=true"], r"encoder.causal=True: bert has False"),
        (["data.length=1024"], r"data.length=1024 is above encoder.max_positions=512"),
        (["data.instances=streams"], r"data.instances='streams' does not suit bert"),
        (["data.instances=documents", "objective.next_sentence=true"], r"needs data.instances='pairs'"),
        (["masking.mask=0.95"], r"expected a sum of at most 1"),
        (["train=3"], r"train must be a table"),
        (["train=3", "foo=1"], r"train must be a table"),
        (["nonsense"], r"expected key=value"),
        (["model=bert-minni"], r"'bert-minni' is no folder, no shipped model and no size: did you mean bert-mini"),
        (["model=./nothing"], r"nothing: no such model folder"),
        (["system=lstm"], r"system='lstm', but model 'bert-mini' is a bert"),
    ],
)
def test_what_does_not_fit_is_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        recipe("bert-mini", *settings)
    assert "\n" not in str(caught.value)


def test_a_named_recipe_does_not_depend_on_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small").mkdir()
    assert read_recipe_file("small")["init"]["embeddings"] == "cooccurrence"
    Path("small.toml").write_text('model = "bert-tiny"\n')
    assert read_recipe_file("small.toml") == {"model": "bert-tiny"}
