"""The one trainer: what a step computes, what is evaluated, kept and logged. Resuming is in the contract."""

from pathlib import Path
from typing import Any

import pytest
import torch

from firth.data.batch import Batch, Objective, Step, Target
from firth.data.loader import Place
from firth.data.rows import pack_lists
from firth.errors import ConfigError, TrainingError
from firth.training.checkpoint import list_checkpoints
from firth.training.config import OptimConfig, TrainConfig
from firth.training.log import read_log
from firth.training.trainer import Trainer


class Guess(Objective):
    """One number per piece; the loss of a prediction is (number - 1)²: everything can be computed by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = torch.nn.Parameter(torch.zeros(8))
        self.weights = {"guess": 1.0}

    def forward(self, batch: Batch, carry: Any = None) -> Step:
        target = batch.targets["guess"]
        loss = ((self.numbers[batch.tokens.ids[target.index]] - 1) ** 2).sum()
        return Step({"guess": loss}, {"guess": torch.zeros(())})


def batch_of(ids: list[int], n_targets: int) -> Batch:
    index = torch.arange(n_targets)
    return Batch(pack_lists([ids]), {"guess": Target(index, index)}, "0:0:0:0")


class Fixed:
    """The same micro-batches in every step."""

    def __init__(self, batches: list[Batch]):
        self.batches = batches

    def steps(self, start: Place, *, step: int, rank: int, world: int) -> Any:
        while True:
            yield self.batches[rank::world], start


def trainer_of(run: Path, batches: list[Batch], **more: Any) -> Trainer:
    settings = {"steps": 4, "batch_tokens": 8, "micro_batches": len(batches), "log_every": 1, "save_every": 0}
    config = TrainConfig(**{**settings, **more.pop("config", {})})
    run.mkdir(exist_ok=True)
    return Trainer(
        objective=more.pop("objective", Guess()), source=Fixed(batches), dev=more.pop("dev", None), config=config,
        optim=OptimConfig(decay=0.0, clip_norm=more.pop("clip_norm", 0.0)), rate=lambda step: 0.0, flops=lambda b: 1.0,
        run=run, save_model=lambda folder, facts: (folder / "step").write_text(str(facts["step"])),
        tell=lambda text: None, **more,
    )  # fmt: skip


def test_losses_are_divided_once_by_the_count_of_the_whole_step(tmp_path: Path) -> None:
    """A micro-batch of one prediction and one of three: each of the four weighs a quarter."""
    trainer = trainer_of(tmp_path / "run", [batch_of([0, 1], 1), batch_of([1, 2, 3], 3)])
    sums = trainer.train_step([batch_of([0, 1], 1), batch_of([1, 2, 3], 3)])
    assert sums == {"guess_count": 4, "guess_loss": 4.0, "guess_correct": 0.0}
    gradient = trainer.objective.numbers.grad
    assert gradient is not None
    assert gradient.tolist() == [-0.5, -0.5, -0.5, -0.5, 0, 0, 0, 0]


def test_a_step_without_any_prediction_changes_nothing(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run", [batch_of([0, 1], 0)])
    assert trainer.train_step([batch_of([0, 1], 0)])["guess_loss"] == 0
    assert torch.equal(trainer.objective.numbers.detach(), torch.zeros(8))


def test_gradients_are_clipped_to_their_global_norm(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run", [batch_of([0], 1)], clip_norm=0.1)
    trainer.train_step([batch_of([0], 1)])
    assert trainer.objective.numbers.grad.norm() == pytest.approx(0.1, rel=1e-4)


def test_the_best_model_on_held_out_text_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(
        tmp_path / "run", [batch_of([0], 1)], dev=lambda: iter([batch_of([0], 1)]), config={"eval_every": 1}
    )
    scores = iter([3.0, 1.0, 2.0, 1.5])
    monkeypatch.setattr(Trainer, "evaluate", lambda self: {"guess_loss": 0.0, "loss": next(scores)})
    assert trainer.fit()
    assert (tmp_path / "run" / "model" / "step").read_text() == "2"
    assert (trainer.state.best, trainer.state.best_step) == (1.0, 2)


def test_without_held_out_text_the_last_model_is_kept(tmp_path: Path) -> None:
    assert trainer_of(tmp_path / "run", [batch_of([0], 1)]).fit()
    assert (tmp_path / "run" / "model" / "step").read_text() == "4"


def test_old_checkpoints_go_beyond_the_limit(tmp_path: Path) -> None:
    config = {"steps": 7, "save_every": 2, "keep_checkpoints": 2}
    trainer_of(tmp_path / "run", [batch_of([0], 1)], config=config).fit()
    assert [step for step, _ in list_checkpoints(tmp_path / "run" / "checkpoints")] == [6, 7]


def test_what_the_log_says(tmp_path: Path) -> None:
    config = {"steps": 4, "log_every": 2, "eval_every": 4}
    trainer_of(tmp_path / "run", [batch_of([0, 1], 2)], dev=lambda: iter([batch_of([3], 1)]), config=config).fit()
    events = read_log(tmp_path / "run" / "log.jsonl")
    assert [(e["event"], e["step"]) for e in events] == [("train", 2), ("train", 4), ("dev", 4)]
    assert events[0]["guess_loss"] == 1.0
    assert {"rate", "elapsed_s", "tokens_per_s", "flops_per_s", "guess_accuracy"} <= set(events[0])


def test_tensorboard_events_are_written_when_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    trainer_of(tmp_path / "run", [batch_of([0], 1)], config={"tensorboard": True}).fit()
    assert list((tmp_path / "run").glob("events.out.tfevents.*"))


def test_an_infinite_gradient_stops_with_advice(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run", [batch_of([0], 1)])
    trainer.objective.numbers.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(TrainingError, match="gradient is not finite in step 1, batch 0:0:0:0.*peak_rate"):
        trainer.fit()


@pytest.mark.parametrize("setting", ["steps", "batch_tokens", "micro_batches", "log_every"])
def test_nothing_to_do_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=rf"train\.{setting}=0: expected at least 1"):
        TrainConfig(**{setting: 0})
