"""Models shipped with the package: how they are made from a run, and that they are complete and small."""

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch

from firth.folder import read_model
from firth.names import SHIPPED, WEIGHTS
from firth.training.checkpoint import load_tensors

SCRIPT = Path(__file__).parents[1] / "scripts" / "ship.py"
MOST_BYTES = 40_000_000


@pytest.fixture
def ship(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("ship", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "WEIGHTS", tmp_path / "weights")
    monkeypatch.setattr(module, "RECORD", tmp_path / "docs" / "results" / "finetuning.json")
    return module


def test_a_run_becomes_a_model_of_the_package(ship: ModuleType, tiny_run: Path, tmp_path: Path) -> None:
    for _ in range(2):  # a second time replaces the first
        ship.main("firth-mini-en", tiny_run)
    (folder,) = (tmp_path / "weights").iterdir()
    assert folder.name == "firth-mini-en"
    assert {t.dtype for t in load_tensors(folder / "model.safetensors").values()} == {torch.bfloat16}
    state, full = (read_model(place).objective.state_dict() for place in (folder, tiny_run))
    assert all(torch.equal(state[name], full[name].to(torch.bfloat16).to(t.dtype)) for name, t in full.items())
    card = (folder / "README.md").read_text("utf-8")
    evaluations = [json.loads(line) for line in (tiny_run / "log.jsonl").read_text().splitlines() if '"dev"' in line]
    for part in ("language: en", "| licence | files |", f"loss {evaluations[-1]['mlm_loss']:.3f}", "## Limits"):
        assert part in card
    assert "Not recorded yet." in card


@pytest.mark.parametrize("name", SHIPPED)
def test_the_scores_in_a_card_are_those_recorded_now(
    ship: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(ship, "RECORD", SCRIPT.parents[1] / "docs" / "results" / "finetuning.json")
    card = (WEIGHTS / name / "README.md").read_text("utf-8")
    assert ship.renewed(name, card) == card, "run scripts/results.py"
    assert "| 0.0 |" not in ship.renewed(name, "## Scores\n\n| 0.0 |\n\n## Limits\n")


def test_scores_are_those_of_the_record(ship: ModuleType, tmp_path: Path) -> None:
    def cell(*values: float) -> dict[str, object]:
        examples = {"train": 900, "held_out": 100}
        return {"metric": "accuracy", "examples": examples, "dev": {"dev": {"accuracy": {"values": values}}}}

    facts = {
        "labels/SST-2/1000/pre-trained": cell(0.7, 0.8025, 0.81),
        "labels/SST-2/1000/baseline": cell(0.75),
        "tasks/NSMC/pre-trained": cell(0.9),
    }
    (tmp_path / "r.json").write_text(json.dumps({"facts": facts}))
    table = ship.scores("firth-mini-en", tmp_path / "r.json")
    assert "| SST-2 | accuracy | 1,000 | 80.2 | 75.0 |" in table and "NSMC" not in table
    assert "| NSMC | accuracy | 1,000 | 90.0 | – |" in ship.scores("firth-mini-ko", tmp_path / "r.json")
    assert ship.scores("firth-mini-en", tmp_path / "none.json") == "Not recorded yet."


def test_what_is_not_finished_is_not_shipped(ship: ModuleType, tiny_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    lines = (run / "log.jsonl").read_text().splitlines()
    kept = [line for line in lines if not ('"dev"' in line and '"step": 20' in line)]
    (run / "log.jsonl").write_text("\n".join(kept) + "\n")
    with pytest.raises(SystemExit, match=f"{run} is not finished: firth pretrain --resume"):
        ship.main("firth-mini-en", run)
    with pytest.raises(SystemExit, match="expected one of firth-mini-en, firth-mini-ko"):
        ship.main("mini", tiny_run)
    assert not (tmp_path / "weights").exists()


def test_what_is_shipped_is_whole_and_small() -> None:
    here = [WEIGHTS / name for name in SHIPPED if (WEIGHTS / name).exists()]
    if not here:
        pytest.skip("no shipped model in this tree: make models")
    size = sum(path.stat().st_size for folder in here for path in folder.rglob("*"))
    assert size < MOST_BYTES
    for folder in here:
        assert read_model(folder).task == "pretraining"
        assert "Not recorded yet." not in (folder / "README.md").read_text("utf-8")
