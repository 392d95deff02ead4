"""``firth finetune`` with several processes: the batches of a single process, exact resume, and refusals."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import firth.training.trainer as trainer_module
from firth.errors import ConfigError
from firth.finetuning import runs as job
from firth.finetuning import several
from firth.finetuning.finetune import Finetuned, resume, run_resolved
from firth.finetuning.resolve import resolve
from firth.finetuning.several import count_processes
from firth.folder import read_model
from firth.machine import find_machine
from firth.tasks.example_source import ExampleSource
from firth.tasks.rows import Example, Row
from firth.training.log import read_log

SETTINGS = ["train.precision=float32", "train.batch_examples=6", "train.epochs=2", "adapt.dropout=0.1"]


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "write_finetune_report", lambda out, recipe, results: out / "report.html")


@pytest.fixture
def recipe(tiny_run: Path, tmp_path: Path) -> dict[str, Any]:
    words = ("river", "queen", "mill", "baker", "winter", "market")
    lines = [f"the {word} and the {words[at // 6]}\t{at % 2}" for at, word in enumerate(words * 4)]
    file = tmp_path / "t.tsv"
    file.write_text("\n".join(["text\tlabel", *lines]) + "\n", "utf-8")
    return {"task": "classify", "model": str(tiny_run), "data": {"train": str(file), "dev": str(file)}}


def silent(text: str) -> None:
    pass


def tuned(recipe: dict[str, Any], out: Path, *settings: str, processes: Any = 2) -> Finetuned:
    return run_resolved(resolve(recipe, [*SETTINGS, *settings], "t"), out, silent, processes=processes)


def state(out: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = read_model(out).objective.state_dict()
    return found


def stop_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C arrives between two steps: finished work is saved."""
    original = trainer_module.Trainer.train_step

    def watched(self: Any, batches: Any) -> Any:
        if self.state.step == step:
            self._asked = lambda: True
            self._given_up = True
        return original(self, batches)

    monkeypatch.setattr(trainer_module.Trainer, "train_step", watched)


def test_two_processes_read_the_batches_of_one(recipe: dict[str, Any], tmp_path: Path) -> None:
    tuned(recipe, tmp_path / "two")
    tuned(recipe, tmp_path / "one", "train.micro_batches=2", processes=1)
    assert (tmp_path / "two/recipe.toml").read_text() == (tmp_path / "one/recipe.toml").read_text()
    logs = [read_log(next((tmp_path / name).glob("runs/*/log.jsonl"))) for name in ("one", "two")]
    one, two = ([event["loss"] for event in log if event["event"] == "train"] for log in logs)
    assert len(one) > 1 and two == pytest.approx(one, rel=1e-4)
    ours, theirs = state(tmp_path / "one"), state(tmp_path / "two")
    for name, tensor in ours.items():
        torch.testing.assert_close(theirs[name], tensor, rtol=1e-3, atol=1e-5, msg=name)


def test_stopped_and_resumed_it_is_equal_bit_for_bit(
    recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned(recipe, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_at(4, patch)
        with pytest.raises(KeyboardInterrupt, match="firth finetune --resume"):
            tuned(recipe, tmp_path / "parts")
    assert not (tmp_path / "parts/results.json").exists()
    resume(tmp_path / "parts", silent, processes=2)
    ours = state(tmp_path / "parts")
    assert all(torch.equal(tensor, ours[name]) for name, tensor in state(tmp_path / "whole").items())
    assert not list((tmp_path / "parts").glob("runs/*/checkpoints"))


def test_a_run_that_began_with_one_process_resumes_with_one(
    recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its updates have one part. A second process would have none, and the first must not leave it half of them."""
    tuned(recipe, tmp_path / "whole", processes=1)
    with monkeypatch.context() as patch:
        stop_at(4, patch)
        with pytest.raises(KeyboardInterrupt):
            tuned(recipe, tmp_path / "parts", processes=1)
    with pytest.raises(ConfigError, match="--processes 2: at most 1 can share an update of 1 train.micro_batches"):
        resume(tmp_path / "parts", silent, processes=2)
    monkeypatch.setattr(several, "SHORT_RUN_FLOPS", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    resume(tmp_path / "parts", silent)
    ours = state(tmp_path / "parts")
    assert all(torch.equal(tensor, ours[name]) for name, tensor in state(tmp_path / "whole").items())


def test_what_processes_cannot_share_is_refused(recipe: dict[str, Any], tmp_path: Path) -> None:
    n_groups = len(resolve(recipe, SETTINGS, "t").base.encoder(1, None).layer_groups())
    for settings, message in (
        (["adapt.frozen_groups=-1"], "--processes 2: of a frozen encoder only the head learns"),
        ([f"adapt.frozen_groups={n_groups}"], "--processes 2: of a frozen encoder only the head learns"),
        (["head.network.hidden_width=4", "head.network.pool=mean"], r"--processes 2: this head has running statistics"),
        (["train.batch_examples=1"], "--processes 2: at most 1 can share an update"),
    ):
        wanted = [s for s in SETTINGS if not s.startswith("adapt")] + settings
        with pytest.raises(ConfigError, match=message):
            run_resolved(resolve(recipe, wanted, "t"), tmp_path / "out", silent, processes=2)
        assert not (tmp_path / "out/recipe.toml").exists()
        shutil.rmtree(tmp_path / "out", ignore_errors=True)


def test_one_process_for_a_short_run_and_one_for_each_thread_of_a_long_one(
    recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    found, base, _ = resolve(recipe, SETTINGS, "t")
    model = found.row.model(base.encoder(1, None), found.head)
    machine = find_machine("float32")
    assert count_processes(found, model, 1e3, machine, "auto", frozen=False) == 1
    assert count_processes(found, model, 1e12, machine, "auto", frozen=False) == 3
    resumed = resolve(recipe, [*SETTINGS, "train.micro_batches=2"], "t").recipe
    assert count_processes(resumed, model, 1e3, machine, "auto", frozen=False) == 2


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 6), st.integers(5, 60))
def test_an_update_has_as_many_parts_as_it_is_asked_for(lengths: list[int], parts: int, budget: int) -> None:
    examples = [Example((Row(np.zeros(n, np.int64), np.zeros(n, np.int64)),), (1,), {}) for n in lengths]
    source = ExampleSource(examples, len(examples), budget, seed=1, parts=parts)
    cut = source.cut(np.arange(len(examples)))
    assert np.concatenate(cut).tolist() == list(range(len(examples))), "none is lost, and their order stays"
    assert len(cut) >= min(parts, len(examples)) and all(len(part) for part in cut)
    for part in cut:
        assert len(part) == 1 or sum(lengths[i] for i in part) <= budget
