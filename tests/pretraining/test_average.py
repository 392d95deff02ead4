"""The mean of models: exact, complete, and only over models of one kind."""

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from firth.errors import CheckpointError, ConfigError
from firth.folder import PRETRAINING, read_model, write_model
from firth.pretraining.average import average
from firth.pretraining.run import pretrain, resolve
from firth.tasks.classify import Classifier
from firth.tasks.config import ClassifyConfig, EmbeddingConfig
from firth.training.checkpoint import list_checkpoints

RECIPE = {
    "model": "transformer-tiny",
    "encoder": {"width": 16, "n_heads": 2, "feed_forward_width": 32},
    "data": {"length": 32},
    "optim": {"kind": "adamw", "learning_rate": 1e-3},
    "train": {"steps": 4, "batch_tokens": 128, "save_every": 1, "keep_checkpoints": 9, "precision": "float32"},
}


@pytest.fixture(scope="module")
def run(tiny_pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("average") / "run"
    pretrain(resolve(RECIPE, [f"data.corpus={tiny_pairs}"], "average"), out, tell=lambda _: None)
    return out


def test_every_tensor_is_the_mean_of_the_last_checkpoints(run: Path, tmp_path: Path) -> None:
    folders = average([run], tmp_path / "mean", last=3)
    assert folders == [run / "checkpoints" / f"step-{n}" for n in (2, 3, 4)]
    parts = [load_file(folder / "model.safetensors") for folder in folders]
    found = load_file(tmp_path / "mean" / "model.safetensors")
    assert set(found) == set(parts[0])
    for name, tensor in found.items():
        expected = torch.stack([part[name].double() for part in parts]).mean(0).float()
        assert torch.equal(tensor, expected), name
        assert not torch.equal(tensor, parts[-1][name]), name


def test_the_mean_is_a_model_like_any_other(run: Path, tmp_path: Path) -> None:
    average([run], tmp_path / "mean", last=2)
    loaded, last = read_model(tmp_path / "mean"), read_model(run / "checkpoints" / "step-4")
    assert loaded.objective.encoder.config == last.objective.encoder.config
    assert loaded.provenance["average"]["steps"] == [3, 4]
    assert "step" not in loaded.provenance
    # Source, target and output still share one matrix.
    names = [name for name, tensor in loaded.objective.state_dict().items() if len(tensor) == loaded.tokenizer.size]
    assert names == ["encoder.pieces.weight"]


def test_no_score_of_a_part_is_said_of_the_mean(tmp_path: Path, tiny_run: Path) -> None:
    """Fine-tuned models record their dev scores; their mean drops these and keeps the base model's record."""
    base = read_model(tiny_run)
    torch.manual_seed(0)
    for number in (1, 2):
        made = Classifier(base.objective.encoder, ClassifyConfig(labels=("a", "b"), temperature=1.0 * number))
        facts = {
            "recipe": {"task": "classify"},
            "seed": number,
            "base": {"system": "bert", "provenance": base.provenance},
            "step": 10 * number,
            "dev": {"accuracy": 0.5 + 0.123 * number},
            "held_out": {"accuracy": 0.5 + 0.123 * number},
        }
        (tmp_path / str(number)).mkdir()
        write_model(tmp_path / str(number), "bert", "classify", made, base.tokenizer, facts)
    average([tmp_path / "1", tmp_path / "2"], tmp_path / "mean")
    found = read_model(tmp_path / "mean")
    assert found.objective.config.temperature == 1.5, "fitted after training, as the weights were before"
    assert found.provenance.keys() & {"dev", "held_out", "seed", "step"} == set()
    assert found.provenance["average"]["steps"] == [10, 20]
    assert found.provenance["base"]["provenance"]["dev"] == base.provenance["dev"]
    for name in ("firth.json", "README.md"):
        text = (tmp_path / "mean" / name).read_text("utf-8")
        assert "0.623" not in text and "accuracy" not in text.replace("mlm_accuracy", "").replace("nsp_accuracy", "")


def test_folders_are_averaged_as_they_are_given(run: Path, tmp_path: Path) -> None:
    folder = run / "checkpoints" / "step-3"
    average([folder, folder, folder], tmp_path / "same")
    assert (tmp_path / "same" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_what_is_not_of_one_kind_is_refused(run: Path, tiny_run: Path, tmp_path: Path) -> None:
    model = run / "checkpoints" / "step-4"
    loaded = read_model(model)
    other = dataclasses.replace(loaded.objective.encoder.config, norm="pre")
    objective = type(loaded.objective)(type(loaded.objective.encoder)(other), loaded.objective.config)
    (tmp_path / "pre").mkdir()
    write_model(tmp_path / "pre", "transformer", PRETRAINING, objective, loaded.tokenizer, {})
    for folder, what in ((tiny_run, "system"), (tmp_path / "pre", "sizes")):
        with pytest.raises(CheckpointError, match=f"differs from .*step-4 in {what}"):
            average([model, folder], tmp_path / "mean")
    loaded.objective.config = dataclasses.replace(loaded.objective.config, label_smoothing=0.3)
    (tmp_path / "smooth").mkdir()
    write_model(tmp_path / "smooth", "transformer", PRETRAINING, loaded.objective, loaded.tokenizer, {})
    with pytest.raises(CheckpointError, match=r"smooth differs from .*step-4 in the option label_smoothing"):
        average([model, tmp_path / "smooth"], tmp_path / "mean")
    (tmp_path / "pooled").mkdir()
    loaded = read_model(model)
    pooled = EmbeddingConfig(pool="first")
    write_model(
        tmp_path / "pooled", "transformer", PRETRAINING, loaded.objective, loaded.tokenizer, {}, embedding=pooled
    )
    with pytest.raises(CheckpointError, match=r"pooled differs from .*step-4 in pooling"):
        average([model, tmp_path / "pooled"], tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


def test_a_run_without_so_many_checkpoints(run: Path, tmp_path: Path) -> None:
    assert list_checkpoints(run / "checkpoints")[0][0] == 0, "the state before the first step, which does not count"
    with pytest.raises(ConfigError, match="model is a single model, without checkpoints: give the folder of its run"):
        average([run / "model"], tmp_path / "mean")
    with pytest.raises(ConfigError, match="has 4 checkpoints, fewer than --last 5: train with train.keep_check"):
        average([run], tmp_path / "mean")
    with pytest.raises(ConfigError, match="at least two checkpoints"):
        average([run], tmp_path / "mean", last=1)
    with pytest.raises(ConfigError, match="no such model folder"):
        average([tmp_path / "nothing"], tmp_path / "mean")
    with pytest.raises(ConfigError, match="exists already"):
        average([run], run)


def test_a_damaged_checkpoint_is_named(run: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(run, tmp_path / "run")
    weights = tmp_path / "run" / "checkpoints" / "step-3" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"step-3.model\.safetensors does not match its checksum"):
        average([tmp_path / "run"], tmp_path / "mean", last=3)
    assert not (tmp_path / "mean").exists()
