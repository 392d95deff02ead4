"""Quality gate: int8 is refused without its record; the record belongs to the weights and affects nothing else."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from firth.errors import CheckpointError, ConfigError
from firth.files import write_folder
from firth.folder import read_model, write_model
from firth.inference.gate import GATE, Gate, check_gate, gated_folder, record_gate
from firth.inference.model import load_model
from firth.manifest import check_folder, file_sha256
from firth.tasks.classify import Classifier
from firth.tasks.config import ClassifyConfig


def write(folder: Path, base: Path, seed: int) -> None:
    """Write a run's model: a complete folder with its manifest, replacing an older one."""
    loaded = read_model(base)
    torch.manual_seed(seed)
    model = Classifier(loaded.objective.encoder, ClassifyConfig(labels=("a", "b")))
    write_folder(folder, lambda new: write_model(new, "bert", "classify", model, loaded.tokenizer, {}))


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    write(tmp_path / "run" / "model", tiny_run, seed=0)
    return tmp_path / "run"


def gate(folder: Path, **changed: Any) -> Gate:
    facts: dict[str, Any] = {
        "weights": file_sha256(folder / "model.safetensors"),
        "task": "classify",
        "data": {"dev.tsv": "0" * 64},
        "examples": 10,
        "metric": "accuracy",
        "float32": 0.75,
        "int8": 0.749,
        "max_drop": 0.5,
    }
    return Gate(**facts | changed)


def refusal(model: str | Path) -> str:
    with pytest.raises(ConfigError) as error:
        load_model(model, precision="int8")
    text = str(error.value)
    assert text.startswith("precision='int8': ") and "\n" not in text
    return text


def test_int8_wants_its_record(run: Path) -> None:
    command = f"firth evaluate {run} --data DEV --precision int8"
    assert refusal(run) == f"precision='int8': not yet shown to match float32: {command}"
    record_gate(run / "model", gate(run / "model"), passed=True)
    model = load_model(run, precision="int8")
    assert model.path.endswith(", int8") and model.device.type == "cpu"
    assert model.predict("the river").label in "ab"
    assert model.embed(["the river"]).shape == (1, 32)
    # Other precisions do not read it.
    assert load_model(run).path.endswith(", float32")


def test_the_record_says_all_that_was_compared(run: Path) -> None:
    record_gate(run / "model", gate(run / "model"), passed=True)
    found = json.loads((run / "model" / GATE).read_text())
    assert found == {
        "weights": file_sha256(run / "model" / "model.safetensors"),
        "task": "classify",
        "examples": 10,
        "data": {"dev.tsv": "0" * 64},
        "metric": "accuracy",
        "float32": 0.75,
        "int8": 0.749,
        "max_drop": 0.5,
    }


def test_a_failed_comparison_takes_the_record_away(run: Path) -> None:
    for passed, exists in ((False, False), (True, True), (False, False)):
        record_gate(run / "model", gate(run / "model"), passed=passed)
        assert (run / "model" / GATE).exists() == exists
    assert "not yet shown" in refusal(run)


def test_other_weights_are_refused(run: Path) -> None:
    record_gate(run / "model", gate(run / "model", weights="1" * 64), passed=True)
    path = run / "model" / GATE
    assert f"{path} belongs to other weights than the model's: firth evaluate {run} " in refusal(run)
    for text in ("", "[]", "{}", '{"weights": null}', "\0"):
        path.write_text(text, "utf-8")
        assert "firth evaluate" in refusal(run)


def test_a_replaced_model_has_no_record(run: Path, tiny_run: Path) -> None:
    record_gate(run / "model", gate(run / "model"), passed=True)
    old = run / "model" / GATE
    kept = old.read_bytes()
    write(run / "model", tiny_run, seed=1)
    assert not old.exists() and "not yet shown" in refusal(run)
    old.write_bytes(kept)
    assert "belongs to other weights" in refusal(run)


def test_the_folder_stays_whole_and_may_be_copied(run: Path, tmp_path: Path) -> None:
    folder = run / "model"
    before = (folder / "manifest.json").read_bytes()
    record_gate(folder, gate(folder), passed=True)
    check_folder(folder)
    assert (folder / "manifest.json").read_bytes() == before
    # A copy has the same weights, so the record is valid there.
    shutil.copytree(folder, tmp_path / "copy")
    check_folder(tmp_path / "copy")
    assert load_model(tmp_path / "copy", precision="int8").path.endswith("int8")
    # A folder that is published again may list it, and can be compared again.
    write_folder(tmp_path / "published", lambda new: shutil.copytree(folder, new, dirs_exist_ok=True))
    record_gate(tmp_path / "published", gate(folder, max_drop=0.1), passed=True)
    assert load_model(tmp_path / "published", precision="int8").path.endswith("int8")
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == []


def test_a_model_without_a_task_cannot_be_compared(tiny_run: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_run / "model", tmp_path / "model")
    assert "is not fine-tuned, so no score can show" in refusal(tmp_path)
    record_gate(tmp_path / "model", gate(tmp_path / "model"), passed=True)
    assert "is not fine-tuned, so no score can show" in refusal(tmp_path)


def test_models_of_other_tools_are_converted_first(run: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    shutil.copytree(run / "model", foreign)
    for name in ("firth.json", "manifest.json"):
        (foreign / name).unlink()
    assert load_model(foreign).loaded.task == "classify"
    assert f"create one with firth convert {foreign} --out FOLDER" in refusal(foreign)


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent: no such model folder"):
        load_model(tmp_path / "absent", precision="int8")
    with pytest.raises(CheckpointError, match="is not a model folder"):
        check_gate(tmp_path)
    with pytest.raises(CheckpointError, match="is not a model folder"):
        gated_folder(tmp_path)


def test_a_record_that_cannot_be_written(run: Path) -> None:
    (run / "model" / GATE).mkdir()
    with pytest.raises(CheckpointError, match=f"{GATE} cannot be written: "):
        record_gate(run / "model", gate(run / "model"), passed=True)
    assert sorted(path.name for path in (run / "model").iterdir() if path.name.startswith(".")) == []
