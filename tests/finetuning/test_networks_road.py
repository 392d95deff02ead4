"""Networks on an encoder, end to end: fine-tuned, stopped and resumed, used, scored, probed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from firth.errors import ConfigError, InputError
from firth.finetuning import runs as job
from firth.finetuning.evaluate import evaluate
from firth.finetuning.finetune import resume, run_resolved
from firth.finetuning.probe import _settings, probe
from firth.finetuning.recipe import LabelledConfig
from firth.finetuning.resolve import Resolved, resolve
from firth.folder import read_model
from firth.inference.model import load_model
from firth.training import trainer

QUIET: Callable[[str], None] = lambda text: None  # noqa: E731  # reports nothing
WORDS = ("river", "queen", "mill", "baker", "winter", "market")


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plotting takes longer than training here; the report has tests of its own."""
    monkeypatch.setattr(job, "write_finetune_report", lambda out, recipe, results: out / "report.html")


@pytest.fixture
def recipe(tiny_run: Path, tmp_path: Path) -> dict[str, Any]:
    """Pairs that match or not: a single text does not reveal it. One text of each stands alone."""
    lines = ["text\tsecond\tlabel"]
    for i, a in enumerate(WORDS):
        lines += [f"the {a}\tthe {b}\t{'same' if a == b else 'other'}" for b in (a, WORDS[i - 1], a, WORDS[i - 2])]
    file = tmp_path / "t.tsv"
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return {"task": "classify", "model": str(tiny_run), "data": {"train": str(file), "dev": str(file)}}


SMALL = ["train.precision=float32", "train.batch_examples=8", "head.network.width=6"]


def test_the_design_is_learnt_stopped_and_gone_on_with(
    recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [*SMALL, "train.epochs=3"]
    recipe |= {"head_preset": "bcn"}
    found, base, data = resolve(recipe, settings, "t")
    assert (found.head.network.kind, found.head.windows.long, found.adapt.frozen_groups) == ("biattentive", "cut", -1)
    assert (found.optim.kind, found.optim.learning_rate, found.head.network.dropout) == ("adamw", 1e-3, 0.2)
    whole = run_resolved(Resolved(found, base, data), tmp_path / "whole", tell=QUIET)
    assert whole.results["calibration"]["temperature"] > 0

    step = trainer.Trainer.train_step

    def stopped(self: trainer.Trainer, batches: Any) -> dict[str, float]:
        if self.state.step == 4:
            raise KeyboardInterrupt
        return step(self, batches)

    monkeypatch.setattr(trainer.Trainer, "train_step", stopped)
    with pytest.raises(KeyboardInterrupt):
        run_resolved(Resolved(found, base, data), tmp_path / "parts", tell=QUIET)
    monkeypatch.undo()
    monkeypatch.setattr(job, "write_finetune_report", lambda out, recipe, results: out / "report.html")
    resume(tmp_path / "parts", tell=QUIET)
    ours, theirs = (read_model(tmp_path / name).objective.state_dict() for name in ("parts", "whole"))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())

    scored = evaluate(tmp_path / "parts", recipe["data"]["dev"], LabelledConfig())
    assert scored["scores"] == pytest.approx(whole.results["scored"][0]["dev"]["dev"])
    answers = load_model(tmp_path / "parts").predict([("the mill", "the mill"), ("the mill", "the queen")])
    assert [answer.windows for answer in answers] == [1, 1]
    assert json.loads((tmp_path / "parts/model/config.json").read_text("utf-8"))["model_type"] == "firth-bert"


def test_two_texts_are_compared(recipe: dict[str, Any], tmp_path: Path) -> None:
    """Its own examples, from the embeddings up: a linear head on two texts cannot do this."""
    settings = [
        "train.precision=float32",
        "train.batch_examples=12",
        "head.network.width=12",
        "train.epochs=30",
        "optim.learning_rate=1e-2",
        "head.network.layers=[0]",
        "head.network.dropout=0.0",
        "data.choose_on=dev",
        "train.evaluations_per_epoch=0",
    ]
    found = run_resolved(resolve(recipe | {"head_preset": "bcn"}, settings, "t"), tmp_path / "out", tell=QUIET)
    assert found.results["dev"]["dev"]["accuracy"]["mean"] > 0.95


def test_the_design_is_for_labels_of_texts(recipe: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"head_preset='bcn' is for classify, not for a task of kind regress"):
        resolve(recipe | {"head_preset": "bcn", "task": "regress"}, [], "t")


def test_probing_is_by_a_linear_head(recipe: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"head\.network: probing always uses a linear head; leave it out"):
        probe(recipe, ["head.network.hidden_width=5"], "t", tmp_path / "probe", tell=QUIET)


def test_a_probe_says_that_its_head_is_not_the_systems_own(recipe: dict[str, Any]) -> None:
    found, _, _ = resolve(recipe, [], "t")
    own, _, _ = resolve(recipe, ["head.network.hidden_width=50"], "t")
    assert "head.network.hidden_width=0" in _settings(own)
    assert "head.network.hidden_width=0" not in _settings(found)


def test_similarity_is_learnt_from_pairs_with_values(tiny_run: Path, tmp_path: Path) -> None:
    lines = ["text\tsecond\tlabel"]
    for i, a in enumerate(WORDS):
        lines += [f"the {a}\tthe {b}\t{4 if a == b else 1}" for b in (a, WORDS[i - 1], a, WORDS[i - 2])]
    file = tmp_path / "t.tsv"
    file.write_text("\n".join(lines) + "\n", "utf-8")
    data = {"train": str(file), "dev": str(file)}
    found = resolve(
        {"task": "similarity", "model": str(tiny_run), "data": data},
        [*SMALL[:2], "train.epochs=12", "optim.learning_rate=2e-3"],
        "t",
    )
    recipe = found.recipe
    assert (recipe.task, recipe.head_preset, recipe.head.network.kind) == ("regress", "towers", "towers")
    done = run_resolved(found, tmp_path / "out", tell=QUIET)
    assert done.scores["dev"]["pearson"] > 0.8
    same, other = load_model(tmp_path / "out").predict([("the mill", "the mill"), ("the mill", "the queen")])
    assert same.value > other.value

    single_lines = [f"the {word}\t{at}" for at, word in enumerate(WORDS)]
    file.write_text("\n".join(["text\tlabel", *single_lines]) + "\n", "utf-8")
    single = {"task": "similarity", "model": str(tiny_run), "data": {"train": str(file)}}
    for compare in ("features", "cosine"):
        with pytest.raises(InputError, match="found one text, expected two to compare"):
            run_resolved(resolve(single, [f"head.network.compare={compare}"], "t"), tmp_path / "none", tell=QUIET)
    with pytest.raises(InputError, match="a single text, and the model has learnt from pairs of texts"):
        load_model(tmp_path / "out").predict(["the mill"])
    assert not (tmp_path / "none/recipe.toml").exists()
