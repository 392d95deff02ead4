"""The length of a run: minutes and epochs become steps, which are stored."""

import dataclasses
import json
from pathlib import Path

import pytest

from firth.errors import ConfigError
from firth.pretraining import run as job
from firth.pretraining.length import DEFAULT_MINUTES, MOST_EPOCHS, Pace, describe_length, length_settings, with_steps
from firth.pretraining.recipe import Pretrain
from firth.training.collectives import World
from firth.training.trainer import Trainer

PACE = Pace(step_s=0.5, step_tokens=2000.0, epoch_steps=100.0, dev_batches=30)


def recipe_with(corpus: Path, **train: float) -> Pretrain:
    """A tiny recipe whose length ``train`` sets."""
    plain = {
        "model": "bert-tiny",
        "encoder": {"width": 32, "n_layers": 1, "n_heads": 2, "feed_forward_width": 64, "max_positions": 64},
        "data": {"length": 32, "corpus": str(corpus)},
        "train": {"batch_tokens": 256, "precision": "float32", "log_every": 2, **train},
    }
    return job.resolve(plain, (), "test")


def test_minutes_leave_time_for_evaluations(tiny_corpus: Path) -> None:
    given = recipe_with(tiny_corpus, minutes=10)
    sized = with_steps(given, PACE).train
    # 1,200 steps of 0.5 s; an evaluation of 30 batches takes as long as 10 steps, and all evaluations 5 % of the time.
    assert sized.steps == 1200 - 6 * 10
    assert sized.eval_every == 190 and sized.steps // sized.eval_every == 6
    assert (sized.minutes, sized.epochs, sized.save_every) == (0.0, 0.0, 600)


def test_processes_take_the_length_of_the_leading_one(tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that evaluate or save at different steps would wait for each other forever."""
    paces = [PACE, dataclasses.replace(PACE, step_s=0.47)]
    own = [with_steps(recipe_with(tiny_corpus, minutes=10), pace).train for pace in paces]
    names = ("steps", "eval_every", "save_every")
    assert all(getattr(own[0], name) != getattr(own[1], name) for name in names)
    sent: dict[str, float] = {}

    def gathered(values: dict[str, float], world: World) -> dict[str, float]:
        for name, value in values.items():
            sent[name] = sent.get(name, 0.0) + value
        return dict(sent)

    monkeypatch.setattr(job, "sum_over_ranks", gathered)
    for rank, pace in enumerate(paces):
        monkeypatch.setattr(job, "measure_pace", lambda *args, pace=pace, **options: pace)
        found = job.sized(recipe_with(tiny_corpus, minutes=10), Path("run"), World(rank, 2), lambda text: None).train
        assert [getattr(found, name) for name in names] == [getattr(own[0], name) for name in names]


def test_epochs_need_no_speed(tiny_corpus: Path) -> None:
    assert with_steps(recipe_with(tiny_corpus, epochs=2.5), PACE).train.steps == 250


def test_without_a_length_a_run_has_minutes_and_stops_repeating_a_small_text(tiny_corpus: Path) -> None:
    given = recipe_with(tiny_corpus)
    assert with_steps(given, PACE).train.steps == 60 * DEFAULT_MINUTES / PACE.step_s - 10 * 10
    small = dataclasses.replace(PACE, epoch_steps=10.0)
    resolved = with_steps(given, small)
    assert resolved.train.steps == 10 * MOST_EPOCHS
    assert "(40 epochs, more gain little)" in describe_length(resolved, small, given)


def test_what_minutes_come_to_is_said(tiny_corpus: Path) -> None:
    given = recipe_with(tiny_corpus, minutes=10)
    told = describe_length(with_steps(given, PACE), PACE, given)
    assert told == (
        "length: 1,140 steps (10 minutes): 2.28M tokens, 11 epochs of the corpus, about 9:30 at 4k tokens/s"
    )
    often = dataclasses.replace(PACE, epoch_steps=2.0)
    assert "more than 40 epochs gain little" in describe_length(with_steps(given, often), often, given)


def test_evaluations_that_were_asked_for_more_often_stay(tiny_corpus: Path) -> None:
    assert with_steps(recipe_with(tiny_corpus, minutes=10, eval_every=7), PACE).train.eval_every == 7
    assert with_steps(recipe_with(tiny_corpus, minutes=10, eval_every=0), PACE).train.eval_every == 0


def test_minutes_leave_time_for_the_evaluations_of_a_long_run(tiny_corpus: Path) -> None:
    sized = with_steps(recipe_with(tiny_corpus, minutes=600, eval_every=1000), PACE).train
    # 72,000 steps of 0.5 s; an evaluation takes as long as 10 steps.
    assert sized.eval_every == 1000 and 71_990 <= sized.steps * (1 + 10 / 1000) <= 72_010


def test_a_run_has_a_step_however_short_it_is(tiny_corpus: Path) -> None:
    assert with_steps(recipe_with(tiny_corpus, minutes=1e-6), PACE).train.steps == 1


def test_one_length_replaces_that_of_a_recipe() -> None:
    assert length_settings(None, None, None) == {}
    assert length_settings(5, None, None) == {"train.minutes": 5, "train.epochs": 0, "train.steps": 0}
    with pytest.raises(ConfigError, match="--minutes and --steps each set the length"):
        length_settings(5, None, 7)
    with pytest.raises(ConfigError, match="--epochs=-1: expected a finite number above 0"):
        length_settings(None, -1, None)


def test_the_steps_are_stored_and_a_resumed_run_is_not_measured_again(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_MEASURE_S", 0.0)
    recipe = recipe_with(tiny_corpus, epochs=0.5)
    told: list[str] = []
    made = job.pretrain(recipe, tmp_path / "run", told.append)
    steps = job.recipe_of(made.run).train.steps
    assert made.finished and made.step == steps > 1
    assert any(text.startswith(f"length: {steps:,} steps (0.5 epochs)") for text in told)

    # Stop after three steps, without a final checkpoint.
    original = Trainer.train_step

    def stopping(self: Trainer, batches: object) -> object:
        if self.state.step == 3:
            raise RuntimeError
        return original(self, batches)  # type: ignore[arg-type]  # batches of a step

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", stopping)
        with pytest.raises(RuntimeError):
            job.pretrain(recipe, tmp_path / "other", told.append)
    with monkeypatch.context() as patch:
        patch.setattr(job, "sized", None)
        assert job.resume(tmp_path / "other", told.append).step == steps
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("run", "other")]
    assert weights[0] == weights[1]
    losses = [
        [json.loads(line).get("loss") for line in (tmp_path / name / "log.jsonl").read_text("utf-8").splitlines()]
        for name in ("run", "other")
    ]
    assert losses[0] == losses[1]


def test_several_processes_agree_on_the_steps(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_MEASURE_S", 0.1)
    made = job.pretrain(recipe_with(tiny_corpus, minutes=0.02), tmp_path / "run", lambda text: None, processes=2)
    assert made.finished and made.step == job.recipe_of(made.run).train.steps
