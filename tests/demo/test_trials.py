"""The demo's comparison, run in several processes."""

import multiprocessing
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from firth.demo import trials as job
from firth.demo.settings import DOCSTRINGS, FRESH, TFIDF, DemoSettings
from firth.demo.trials import Trials
from firth.errors import FirthError
from firth.text.records import Text

WAYS = [(DOCSTRINGS, TFIDF), (DOCSTRINGS, FRESH)]


@pytest.fixture
def tiny_trials(tiny_run: Path, tmp_path: Path) -> Trials:
    """Eight trials next to a pre-trained model."""
    texts = [
        Text(f"{word} number {i} of {part}", part, f"stdlib:{part}{i // 4}:f{i}")
        for part, word in (("files", "open"), ("email", "send"))
        for i in range(24)
    ]
    settings = DemoSettings(per_class=(2, 4), draws=2, tune_steps=2, tune_texts=4, precision="float32")
    (tmp_path / "run").symlink_to(tiny_run)
    return Trials(tmp_path, 1, settings, {DOCSTRINGS: texts}, tmp_path / "weights")


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the machine has two CPUs."""
    monkeypatch.setattr(job, "cpu_count", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


def test_two_processes_give_the_scores_of_one(tiny_trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_trials.run(WAYS, lambda _: None)
    alone = tiny_trials.scores()
    (tiny_trials.out / "scores.jsonl").unlink()
    monkeypatch.setattr(job, "cpu_count", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    said: list[str] = []
    tiny_trials.run(WAYS, said.append)
    assert len(alone) == len(said) == 8 and all("left" in line for line in said)
    assert set(tiny_trials.scores()) == set(alone)
    tiny_trials.run(WAYS, said.append)
    assert len(said) == 8  # nothing is scored twice


@pytest.mark.usefixtures("two_processors")
def test_ctrl_c_keeps_scores_and_leaves_no_process(tiny_trials: Trials) -> None:
    def interrupt(_: str) -> NoReturn:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny_trials.run(WAYS, interrupt)
    assert len(tiny_trials.scores()) == 1 and not multiprocessing.active_children()
    assert not list(tiny_trials.out.glob(".*"))


@pytest.mark.usefixtures("two_processors")
def test_a_killed_process_is_said(tiny_trials: Trials) -> None:
    def kill(_: str) -> None:
        for child in multiprocessing.active_children():
            child.kill()

    with pytest.raises(FirthError, match="a process of the demo was killed"):
        tiny_trials.run(WAYS, kill)
    assert len(tiny_trials.scores()) >= 1
