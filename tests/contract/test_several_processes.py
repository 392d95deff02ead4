"""``firth pretrain`` with several processes: the batches of one, exact resume, and an end without orphans."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from systems_under_test import tiny_recipe
from test_resume import Killed, check_equal_curves, silent, what_counts

import firth.training.trainer as trainer_module
from firth.config import read_json, to_toml
from firth.errors import ConfigError, TrainingError
from firth.pretraining import several
from firth.pretraining.run import pretrain, recipe_of, resume
from firth.pretraining.several import count_processes, for_processes
from firth.training.checkpoint import list_checkpoints

pytestmark = pytest.mark.unchecked

# A system with recurrent state; a number of micro-batches that two processes cannot share evenly.
STREAM = ("lstm", "train.micro_batches=3")


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch reports two threads. A run that ends sets this number again, so the real one is restored afterwards."""
    before = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    yield
    torch.set_num_threads(before)


def at_step(number: int, then: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the leading process do something before a step."""
    original = trainer_module.Trainer.train_step

    def watched(self: Any, batches: Any) -> Any:
        if self.state.step == number:
            then(self)
        return original(self, batches)

    monkeypatch.setattr(trainer_module.Trainer, "train_step", watched)


def test_several_processes_read_the_batches_of_one(tiny_corpus: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe("bert", tiny_corpus, "train.micro_batches=2")
    pretrain(recipe, tmp_path / "one", silent, processes=1)
    assert pretrain(recipe, tmp_path / "two", silent, processes=2).finished
    check_equal_curves(tmp_path / "one", tmp_path / "two", ("mlm_loss", "nsp_loss", "loss"))


def test_stopped_or_killed_and_resumed_with_as_many_is_equal_bit_for_bit(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two_threads: None
) -> None:
    recipe = tiny_recipe(STREAM[0], tiny_corpus, STREAM[1])
    pretrain(recipe, tmp_path / "whole", silent, processes=2)
    with monkeypatch.context() as patch:
        at_step(6, lambda trainer: os.kill(os.getpid(), signal.SIGTERM), patch)
        outcome = pretrain(recipe, tmp_path / "stopped", silent, processes=2)
    # Stopped between its two micro-batches of the seventh step, which no process then counts.
    assert (outcome.finished, outcome.step) == (False, 6)
    children: list[Any] = []

    def kill(trainer: Any) -> None:
        children.extend(trainer.world.group._children)
        children[0].kill()

    with monkeypatch.context() as patch:
        at_step(7, kill, patch)
        with pytest.raises(TrainingError, match="process 2 of 2 was killed, probably because memory ran out"):
            pretrain(recipe, tmp_path / "killed", silent, processes=2)
    assert all(child.poll() is not None for child in children)
    for name in ("stopped", "killed"):
        # The number of processes is not given: it is as before.
        heard: list[str] = []
        assert resume(tmp_path / name, heard.append).finished
        assert what_counts(tmp_path / name) == what_counts(tmp_path / "whole")
        assert any("2 processes" in text for text in heard) and not any("changed" in text for text in heard)


def test_another_number_goes_on_and_says_what_that_means(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny_recipe(STREAM[0], tiny_corpus, STREAM[1])
    pretrain(recipe, tmp_path / "one", silent, processes=1)
    with monkeypatch.context() as patch:
        at_step(7, _die, patch)
        with pytest.raises(Killed):
            pretrain(recipe, tmp_path / "cut", silent, processes=3)
    heard: list[str] = []
    assert resume(tmp_path / "cut", heard.append, processes=2).finished
    assert any("processes 3 -> 2. The batches stay the same, the weights will differ in rounding" in t for t in heard)
    check_equal_curves(tmp_path / "one", tmp_path / "cut", ("lm_loss", "loss"))


def _die(trainer: Any) -> None:
    raise Killed


def test_a_bad_batch_of_another_process_is_named(tiny_corpus: Path, tmp_path: Path) -> None:
    """A learning rate that makes all weights infinite: all losses are not finite, and each batch is named."""
    settings = ("train.micro_batches=2", "optim.learning_rate=1e38", "optim.warmup_share=0", "optim.clip_norm=0")
    recipe = tiny_recipe("bert", tiny_corpus, *settings)
    with pytest.raises(TrainingError, match=r"not (a number|finite) in step \d, batch 0:0:0:\d+, 0:0:0:\d+\. Inspect"):
        pretrain(recipe, tmp_path / "run", silent, processes=2)


def test_an_error_of_another_process_is_told_once(tiny_corpus: Path, tmp_path: Path) -> None:
    """All processes fail alike: the run reports the leading one's message, and nothing is left behind."""
    shutil.copytree(tiny_corpus, tmp_path / "corpus")
    recipe = tiny_recipe("bert", tmp_path / "corpus", "train.micro_batches=2", "encoder.vocab_size=17")
    with pytest.raises(ConfigError, match="encoder.vocab_size=17"):
        pretrain(recipe, tmp_path / "run", silent, processes=2)
    assert not (tmp_path / "run").exists()


def start(run: Path, recipe: Path) -> "subprocess.Popen[str]":
    """Start ``firth pretrain`` with two processes in a session of its own; returns after the first score."""
    process = subprocess.Popen(
        [sys.executable, "-m", "firth", "pretrain", str(recipe), "--out", str(run), "--processes", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "held-out" in line:
            break
    return process


@pytest.fixture
def endless(tiny_corpus: Path, tmp_path: Path) -> Path:
    """The recipe of a run that continues until it is stopped."""
    recipe = tiny_recipe("bert", tiny_corpus, "train.steps=1000000", "train.micro_batches=0")
    (tmp_path / "recipe.toml").write_text(to_toml(recipe))
    return tmp_path / "recipe.toml"


def test_ctrl_c_saves_once_and_says_how_to_go_on(endless: Path, tmp_path: Path) -> None:
    process = start(tmp_path / "run", endless)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.count("interrupted: stopped after step") == 1
    assert "Traceback" not in errors
    step, path = list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    assert f"step {step} " in errors
    assert read_json(path / "train" / "state.json")["environment"]["processes"] == 2
    # The saved recipe has the values left open: two micro-batches, with the same number of tokens in total.
    train = recipe_of(tmp_path / "run").train
    assert (train.micro_batches, train.batch_tokens, train.eval_batches) == (2, 96, 6)


def test_none_outlives_a_run_that_is_killed(endless: Path, tmp_path: Path) -> None:
    process = start(tmp_path / "run", endless)
    process.kill()
    # The other process shares stderr: this returns when both have ended.
    process.communicate()
    assert process.returncode == -signal.SIGKILL


class TestCount:
    """The number of processes, and the share of each."""

    def recipe(self, corpus: Path, *settings: str) -> Any:
        return tiny_recipe("bert", corpus, "train.micro_batches=0", *settings)

    def test_a_short_run_has_one(self, tiny_corpus: Path, tmp_path: Path, two_threads: None) -> None:
        assert count_processes(self.recipe(tiny_corpus), tmp_path, "auto") == 1

    def test_a_long_run_has_one_for_each_thread(self, tiny_corpus: Path, tmp_path: Path, two_threads: None) -> None:
        assert count_processes(self.recipe(tiny_corpus, "train.steps=1000000"), tmp_path, "auto") == 2

    def test_a_step_of_one_micro_batch_has_one(self, tiny_corpus: Path, tmp_path: Path, two_threads: None) -> None:
        recipe = self.recipe(tiny_corpus, "train.steps=1000000", "train.micro_batches=1")
        assert count_processes(recipe, tmp_path, "auto") == 1
        with pytest.raises(ConfigError, match="--processes 2: at most 1 can share a step of 1 train.micro_batches"):
            count_processes(recipe, tmp_path, 2)

    def test_each_has_a_row_at_least(self, tiny_corpus: Path, tmp_path: Path) -> None:
        # Rows of up to 48 in a step of 192 tokens.
        with pytest.raises(ConfigError, match="--processes 5: at most 4 can share a step"):
            count_processes(self.recipe(tiny_corpus), tmp_path, 5)
        assert for_processes(self.recipe(tiny_corpus), 4).train.batch_tokens == 48

    def test_where_memory_is_short_there_are_fewer(
        self, tiny_corpus: Path, tmp_path: Path, two_threads: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(several, "free_memory", lambda device: 3e8)
        assert count_processes(self.recipe(tiny_corpus, "train.steps=1000000"), tmp_path, "auto") == 1

    def test_a_recipe_that_says_how_many_keeps_them(self, tiny_corpus: Path) -> None:
        recipe = self.recipe(tiny_corpus, "train.micro_batches=3")
        assert for_processes(recipe, 2) is recipe

    def test_all_of_the_held_out_text_stays_all(self, tiny_corpus: Path) -> None:
        assert for_processes(self.recipe(tiny_corpus, "train.eval_batches=0"), 2).train.eval_batches == 0
