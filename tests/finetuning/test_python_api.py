"""``firth.finetune``, ``firth.pretrain`` and ``firth.evaluate`` with plain arguments, as a notebook calls them."""

from pathlib import Path

import pytest

import firth
from firth.config import read_json, read_toml, to_toml
from firth.errors import ConfigError
from firth.finetuning import runs as job
from firth.finetuning.resolve import resolve
from firth.pretraining.run import recipe_of

FAST = {"train.precision": "float32", "train.batch_examples": 8, "train.epochs": 1.0}


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plotting takes longer than training here."""
    monkeypatch.setattr(job, "write_finetune_report", lambda out, recipe, results: out / "report.html")


def quiet(text: str) -> None:
    """Report nothing."""


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    rows = [f"the {'river' if i % 2 else 'winter'} {i}\t{'ab'[i % 2]}" for i in range(20)]
    path = tmp_path / "t.tsv"
    path.write_text("\n".join(["text\tlabel", *rows]) + "\n", "utf-8")
    return path


def test_arguments_a_file_and_an_object_say_the_same(tiny_run: Path, labelled: Path, tmp_path: Path) -> None:
    made = firth.finetune(
        task="classify",
        model=tiny_run,
        train=labelled,
        dev=labelled,
        seeds=1,
        out=tmp_path / "a",
        tell=quiet,
        settings=FAST | {"optim.learning_rate": 1e-3},
    )
    assert made.out == tmp_path / "a" and made.results == read_json(tmp_path / "a" / "results.json")
    assert set(made.scores) == {"dev", "held_out"} and 0 <= made.scores["dev"]["accuracy"] <= 1
    assert made.model.predict("the river").label in ("a", "b")
    # The stored recipe, and the equivalent object, each overridden with another seed.
    file = made.out / "recipe.toml"
    again = [
        firth.finetune(file, tmp_path / "b", quiet, settings=["train.seed=2"]),
        firth.finetune(resolve(read_toml(file), {}, "t").recipe, tmp_path / "c", quiet, settings={"train.seed": 2}),
    ]
    assert again[0].results["model"] == again[1].results["model"] != made.results["model"]
    found = firth.evaluate(made.out, labelled)
    assert found["scores"] == {name: pytest.approx(value) for name, value in made.scores["dev"].items()}


def test_what_is_missing_is_named(tiny_run: Path, labelled: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="out is missing"):
        firth.finetune(task="classify", model=tiny_run, train=labelled)
    with pytest.raises(ConfigError, match="arguments: key 'task' is missing"):
        firth.finetune(model=tiny_run, train=labelled, out=tmp_path / "x")
    with pytest.raises(ConfigError, match="unknown key 'optim.learning_rat': did you mean 'optim.learning_rate'"):
        firth.finetune(
            task="classify", model=tiny_run, train=labelled, out=tmp_path / "x", settings={"optim.learning_rat": 1e-3}
        )
    assert not (tmp_path / "x").exists()


def test_pretraining_takes_arguments_a_file_or_an_object(tiny_corpus: Path, tmp_path: Path) -> None:
    settings = {
        "encoder.n_layers": 1,
        "encoder.width": 16,
        "encoder.n_heads": 2,
        "encoder.feed_forward_width": 32,
        "encoder.max_positions": 32,
        "data.length": 32,
        "train.precision": "float32",
        "train.batch_tokens": 64,
    }
    made = firth.pretrain(
        "published", model="bert-tiny", corpus=tiny_corpus, steps=2, out=tmp_path / "a", settings=settings, tell=quiet
    )
    assert made.finished and made.step == 2 and made.model.system_name == "bert"
    file = tmp_path / "recipe.toml"
    recipe = recipe_of(made.run)
    file.write_text(to_toml(recipe), "utf-8")
    assert firth.pretrain(file, tmp_path / "b", quiet, steps=1).step == 1
    assert firth.pretrain(recipe, tmp_path / "c", quiet).step == 2
