"""The trainer: what a step computes, what is evaluated, kept and logged. tests/contract covers resuming."""

import contextlib
import json
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from guessing import Fixed, Guess, batch_of, trainer_of

from firth.data.batch import Batch, Objective, Step
from firth.data.loader import Place
from firth.errors import CheckpointError, ConfigError, TrainingError
from firth.files import write_folder
from firth.training.checkpoint import list_checkpoints, save_tensors
from firth.training.config import TrainConfig
from firth.training.held_out import HeldOut
from firth.training.log import Log, read_log
from firth.training.trainer import Trainer


def test_losses_are_divided_once_by_the_count_of_the_whole_step(tmp_path: Path) -> None:
    """One micro-batch has one prediction, the other three: each of the four weighs a quarter."""
    trainer = trainer_of(tmp_path / "run", [batch_of([0, 1], 1), batch_of([1, 2, 3], 3)])
    sums = trainer.train_step([batch_of([0, 1], 1), batch_of([1, 2, 3], 3)])
    assert sums == {"guess_count": 4, "guess_loss": 4.0, "guess_correct": 0.0}
    gradient = trainer.objective.numbers.grad
    assert gradient is not None
    assert gradient.tolist() == [-0.5, -0.5, -0.5, -0.5, 0, 0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_updates_multiply_in_the_runs_dtype(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    trainer = trainer_of(tmp_path / "run", [batch_of([0, 1], 1)], dtype=dtype)
    seen = []
    monkeypatch.setattr(trainer.update, "step", lambda: seen.append((torch.eye(2) @ torch.eye(2)).dtype))
    trainer.train_step([batch_of([0, 1], 1)])
    assert seen == [dtype]


def test_a_step_without_any_prediction_changes_nothing(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run", [batch_of([0, 1], 0)])
    assert trainer.train_step([batch_of([0, 1], 0)])["guess_loss"] == 0
    assert torch.equal(trainer.objective.numbers.detach(), torch.zeros(8))


@pytest.mark.parametrize("cuts", [[4], [1, 3], [2, 2], [1, 1, 1, 1]])
def test_the_gradient_does_not_depend_on_how_a_step_is_cut(tmp_path: Path, cuts: list[int]) -> None:
    ids = [3, 0, 5, 3]
    batches = [batch_of(ids[sum(cuts[:i]) : sum(cuts[: i + 1])], n) for i, n in enumerate(cuts)]
    trainer = trainer_of(tmp_path / "run", batches)
    assert trainer.train_step(batches)["guess_count"] == 4
    assert trainer.objective.numbers.grad.tolist() == [-0.5, 0, 0, -1, 0, -0.5, 0, 0]


def test_steps_of_one_run_may_have_different_numbers_of_micro_batches(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run", [batch_of([0], 1)])
    for n in (1, 3, 2):
        sums = trainer.train_step([batch_of([0], 1)] * n)
        assert sums["guess_count"] == n
        assert trainer.objective.numbers.grad[0] == -2


class TwoNumbers(Objective):
    """Two parameters with the same gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))
        self.weights = {"guess": 1.0}

    def forward(self, batch: Batch, carry: Any = None) -> Step:
        return Step({"guess": (self.low + self.high).sum()}, {})


def test_a_batch_may_scale_the_rate_of_its_step(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run", [batch_of([0], 1)], rate=lambda step: 0.5)
    for scale in (0.25, 2.0, 1.0):
        trainer.train_step([replace(batch_of([0], 1), rate_scale=scale)])
        assert [group["lr"] for group in trainer.optimizer.param_groups] == [0.5 * scale]


@pytest.mark.parametrize("kind", ["bert_adam", "gpt_adam", "adamw", "sgd"])
def test_scales_multiply_the_rate_of_their_parameters(tmp_path: Path, kind: Any) -> None:
    trainer = trainer_of(
        tmp_path / "run", [batch_of([0], 1)], objective=TwoNumbers(), scales={"low": 0.25},
        rate=lambda step: 0.5 if step == 0 else 0.0, kind=kind,
    )  # fmt: skip
    assert trainer.fit()
    low, high = trainer.objective.low.detach(), trainer.objective.high.detach()
    assert bool((high < 0).all())
    torch.testing.assert_close(low, 0.25 * high)


def test_gradients_are_clipped_to_their_global_norm(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run", [batch_of([0], 1)], clip_norm=0.1)
    trainer.train_step([batch_of([0], 1)])
    assert trainer.objective.numbers.grad.norm() == pytest.approx(0.1, rel=1e-4)


def test_the_best_model_on_held_out_text_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(
        tmp_path / "run", [batch_of([0], 1)], dev=lambda: iter([batch_of([0], 1)]), config={"eval_every": 1}
    )
    scores = iter([3.0, 1.0, 2.0, 1.5])
    monkeypatch.setattr(HeldOut, "score", lambda self: {"guess_loss": 0.0, "loss": next(scores)})
    assert trainer.fit()
    assert (tmp_path / "run" / "model" / "step").read_text() == "2"
    assert (trainer.state.best, trainer.state.best_step) == (1.0, 2)


def judged(run: Path, scores: list[float], **config: Any) -> Trainer:
    """A trainer whose judge returns these scores in order."""
    left = iter(scores)
    return trainer_of(
        run, [batch_of([0], 1)], judge=lambda: {"accuracy": next(left), "other": -1.0}, judged_by="accuracy",
        config={"eval_every": 1, "steps": len(scores), **config},
    )  # fmt: skip


def test_the_judge_keeps_the_model_with_the_highest_score(tmp_path: Path) -> None:
    trainer = judged(tmp_path / "run", [0.25, 0.75, 0.5, 0.75])
    assert trainer.fit()
    # The last of several equal scores is kept, but patience still counts down.
    assert (tmp_path / "run" / "model" / "step").read_text() == "4"
    assert (trainer.state.best, trainer.state.best_step, trainer.state.evaluations_since_best) == (0.75, 4, 2)
    events = [e for e in read_log(tmp_path / "run" / "log.jsonl") if e["event"] == "dev"]
    assert [(e["accuracy"], e["other"]) for e in events] == [(0.25, -1), (0.75, -1), (0.5, -1), (0.75, -1)]


def test_a_score_that_is_not_a_number_is_never_the_best(tmp_path: Path) -> None:
    trainer = judged(tmp_path / "run", [float("nan"), 0.0, float("nan"), -1.0])
    assert trainer.fit()
    assert (trainer.state.best, trainer.state.best_step) == (0.0, 2)


def test_scores_that_are_never_numbers_use_the_patience_up(tmp_path: Path) -> None:
    trainer = judged(tmp_path / "run", [float("nan")] * 6, patience=2)
    assert trainer.fit() and trainer.state.step == 3


def test_the_judge_takes_the_place_of_held_out_text(tmp_path: Path) -> None:
    trainer = judged(tmp_path / "run", [0.5])
    trainer.dev = lambda: iter([batch_of([0], 1)])
    assert trainer.fit() and trainer.state.best == 0.5


def test_patience_ends_a_run(tmp_path: Path) -> None:
    trainer = judged(tmp_path / "run", [0.5, 0.75, 0.75, 0.5, 0.25, 0.9], patience=3)
    assert trainer.fit()
    assert (trainer.state.step, trainer.state.best_step) == (5, 3)
    # The run is saved where it ended.
    assert list_checkpoints(tmp_path / "run" / "checkpoints")[-1][0] == 5


def test_a_better_score_renews_the_patience(tmp_path: Path) -> None:
    trainer = judged(tmp_path / "run", [0.5, 0.25, 0.6, 0.5, 0.7, 0.6], patience=2)
    assert trainer.fit() and trainer.state.step == 6


def test_a_run_that_ended_early_stays_ended_when_it_is_resumed(tmp_path: Path) -> None:
    assert judged(tmp_path / "run", [0.5, 0.25, 0.25, 0.9], patience=2).fit()
    again = judged(tmp_path / "run", [1.0] * 4, patience=2)
    again.resume(lambda folder: again.objective.state_dict())
    assert again.fit()
    assert (again.state.step, again.state.best, again.state.best_step) == (3, 0.5, 1)
    assert (tmp_path / "run" / "model" / "step").read_text() == "1"


def test_patience_is_remembered_over_a_stop(tmp_path: Path) -> None:
    """The run is stopped after one evaluation without a better score; the next one ends it."""
    assert judged(tmp_path / "run", [0.5, 0.25], patience=2).fit()
    again = judged(tmp_path / "run", [0.25] * 4, patience=2)
    again.resume(lambda folder: again.objective.state_dict())
    assert again.state.evaluations_since_best == 1
    assert again.fit() and again.state.step == 3


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


def test_tensorboard_events_up_to_the_checkpoint_stay(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    path = tmp_path / "log.jsonl"
    for steps, offset, resumed in (([5, 10, 15], 0, 0), ([15, 20], None, 10)):
        if offset is None:
            offset = len(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
        with contextlib.closing(Log(path, offset, tensorboard=True, step=resumed)) as log:
            for step in steps:
                log.write("dev", step, loss=float(step + resumed))
    events = accumulator.EventAccumulator(str(tmp_path)).Reload().Scalars("dev/loss")
    assert [(e.step, e.value) for e in events] == [(5, 5), (10, 10), (15, 25), (20, 30)]
    assert [line["step"] for line in read_log(path)] == [5, 10, 15, 20]


def test_an_infinite_gradient_stops_with_advice(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run", [batch_of([0], 1)])
    trainer.objective.numbers.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(TrainingError, match="gradient is not finite in step 1, batch 0:0:0:0.*learning_rate"):
        trainer.fit()


def test_a_first_held_out_loss_that_is_no_number_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(tmp_path / "run", [batch_of([0], 1)], dev=lambda: iter([batch_of([0], 1)]))
    monkeypatch.setattr(HeldOut, "score", lambda self: {"loss": math.nan})
    with pytest.raises(TrainingError, match=r"after step 4 the held-out loss is not finite\. Usual causes: "):
        trainer.fit()
    assert not (tmp_path / "run" / "model").exists()


@pytest.mark.parametrize("dev", [None, lambda: iter([batch_of([0], 1)])])
def test_weights_that_the_last_update_broke_are_no_model(tmp_path: Path, dev: Any) -> None:
    trainer = trainer_of(tmp_path / "run", [batch_of([0], 1)], dev=dev, config={"steps": 1}, rate=lambda step: math.inf)
    with pytest.raises(TrainingError, match=r"after step 1 numbers is not finite\. Usual causes: .* too low$"):
        trainer.fit()
    assert not (tmp_path / "run" / "model").exists()


@pytest.mark.parametrize("setting", ["batch_tokens", "log_every"])
def test_nothing_to_do_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=rf"train\.{setting}=0: expected at least 1"):
        TrainConfig(**{setting: 0})


class AsksToStop(Objective):
    """A guess whose third forward pass sends SIGTERM to this process; ``changes`` makes each pass change a buffer."""

    def __init__(self, changes: bool = False) -> None:
        super().__init__()
        self.guess = Guess()
        self.weights = {"guess": 1.0}
        self.n_forwards, self.changes = 0, changes
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, batch: Batch, carry: Any = None) -> Step:
        self.n_forwards += 1
        if self.changes:
            self.mean += 1
        if self.n_forwards == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.guess(batch, carry)


@pytest.mark.parametrize(("changes", "n_forwards", "step"), [(False, 3, 0), (True, 5, 1)])
def test_a_long_step_ends_with_the_micro_batch_in_hand(
    tmp_path: Path, changes: bool, n_forwards: int, step: int
) -> None:
    """Unless its forward passes have changed state that a resumed run could not undo."""
    objective = AsksToStop(changes)
    trainer = trainer_of(tmp_path / "run", [batch_of([0], 1)] * 5, objective=objective)
    assert not trainer.fit()
    assert (objective.n_forwards, trainer.state.step) == (n_forwards, step)
    assert [number for number, _ in list_checkpoints(tmp_path / "run" / "checkpoints")] == [step]
    assert bool(objective.guess.numbers.grad is not None and not step) == (not step)


def test_a_stop_in_the_last_step_does_not_stop_the_training_but_is_known(tmp_path: Path) -> None:
    def judge() -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGTERM)
        return {"score": 1.0}

    trainer = trainer_of(tmp_path / "run", [batch_of([0], 1)], config={"steps": 1}, judge=judge, judged_by="score")
    assert trainer.fit() and trainer.asked_to_stop
    assert trainer_of(tmp_path / "other", [batch_of([0], 1)], config={"steps": 1}).asked_to_stop is False


class NeverReady:
    """From the second step on, micro-batches are never ready; meanwhile a stop is requested."""

    def steps(self, start: Place, *, step: int, rank: int, world: int) -> Any:
        yield [batch_of([0], 1)], start
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            signal.pause()


def test_a_run_stops_while_its_batches_are_made(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run", [batch_of([0], 1)])
    trainer.source = NeverReady()
    assert not trainer.fit()
    assert [number for number, _ in list_checkpoints(tmp_path / "run" / "checkpoints")] == [1]


class ReadyLate(Fixed):
    """A stop is requested while the second step's micro-batches are being made."""

    def steps(self, start: Place, *, step: int, rank: int, world: int) -> Any:
        for number, made in enumerate(super().steps(start, step=step, rank=rank, world=world)):
            if number == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            yield made


@pytest.mark.parametrize(("exchanges", "step"), [(False, 1), (True, 2)])
def test_processes_that_exchange_gradients_take_the_step_that_others_may_be_in(
    tmp_path: Path, exchanges: bool, step: int
) -> None:
    trainer = trainer_of(tmp_path / "run", [batch_of([0], 1)])
    trainer.source = ReadyLate([batch_of([0], 1)])
    trainer.update.exchanges = exchanges
    assert not trainer.fit()
    assert [number for number, _ in list_checkpoints(tmp_path / "run" / "checkpoints")] == [step]


def test_what_a_step_holds_in_memory_is_bounded() -> None:
    with pytest.raises(ConfigError, match=r"micro_batches=2000000000 .*at most 67,108,864 tokens per step"):
        TrainConfig(micro_batches=2_000_000_000)


def test_a_resumed_run_says_what_is_other_now_and_what_is_gone(tmp_path: Path) -> None:
    first = trainer_of(tmp_path / "run", [batch_of([0], 1)], config={"steps": 1})
    first.state.environment |= {"processes": 2, "sharding": "full"}
    assert first.fit()
    again, heard = trainer_of(tmp_path / "run", [batch_of([0], 1)], config={"steps": 1}), list[str]()
    again.tell = heard.append
    again.resume(lambda folder: again.objective.state_dict())
    (said,) = heard
    assert said.startswith("changed since the run began: processes 2 -> 1, sharding full -> none. The batches stay")


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_the_logged_rate_is_the_applied_one(tmp_path: Path, scale: float) -> None:
    batch = replace(batch_of([0], 1), rate_scale=scale)
    trainer = trainer_of(tmp_path / "run", [batch], rate=lambda step: 0.1, config={"steps": 1})
    assert trainer.fit()
    (event,) = (one for one in read_log(tmp_path / "run" / "log.jsonl") if one["event"] == "train")
    assert event["rate"] == pytest.approx(0.1 * scale) == trainer.optimizer.param_groups[0]["lr"]


def checkpoint_of(tmp_path: Path) -> Path:
    trainer = trainer_of(tmp_path / "run", [batch_of([0], 1)], config={"steps": 1})
    assert trainer.fit()
    return list_checkpoints(tmp_path / "run" / "checkpoints")[-1][1]


def sealed(checkpoint: Path) -> None:
    """Write a manifest that matches the current files."""
    inside = {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}

    def fill(folder: Path) -> None:
        for path, data in inside.items():
            target = folder / path.relative_to(checkpoint)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(data)

    write_folder(checkpoint, fill)


def resumed(tmp_path: Path) -> None:
    trainer_of(tmp_path / "run", [batch_of([0], 1)], config={"steps": 1}).resume(
        lambda folder: {"numbers": torch.zeros(8)}
    )


@pytest.mark.parametrize(
    "change",
    [
        {"step": "1"}, {"step": -1}, {"step": True}, {"place": 3}, {"place": "x"}, {"scores": [None]},
        {"identity": []}, {"unknown": 1}, {"pending": {"a": "b"}}, {"best": "nan"}, {"log_offset": 1.5},
        {"step": 10**18}, {"step": None}, {"place": None}, {"scores": None},
    ],
)  # fmt: skip
def test_a_state_that_no_run_has_written_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    """A field that is None here is omitted."""
    checkpoint = checkpoint_of(tmp_path)
    path = checkpoint / "train" / "state.json"
    state = json.loads(path.read_text()) | change
    path.write_text(json.dumps({name: state[name] for name in state if change.get(name, 0) is not None}))
    sealed(checkpoint)
    with pytest.raises(CheckpointError, match=r"state\.json is not what this run writes"):
        resumed(tmp_path)


OPTIMIZERS: list[dict[str, torch.Tensor]] = [
    {"other/exp_avg": torch.zeros(8)},
    {"numbers": torch.zeros(8)},
    {"numbers/exp_avg": torch.zeros(3)},
    {"numbers/exp_avg": torch.zeros(8)},
    {"numbers/step": torch.zeros(8), "numbers/exp_avg": torch.zeros(8), "numbers/exp_avg_sq": torch.zeros(8)},
    {"numbers/exp_avg": torch.zeros(8, dtype=torch.int64)},
]


@pytest.mark.parametrize("tensors", OPTIMIZERS)
def test_an_optimizer_of_something_else_is_named(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    checkpoint = checkpoint_of(tmp_path)
    save_tensors(checkpoint / "train" / "optimizer.safetensors", tensors)
    sealed(checkpoint)
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors is not what this run writes"):
        resumed(tmp_path)


def test_an_optimizer_without_tensors_is_named(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path)
    state = checkpoint / "train" / "state.json"
    assert json.loads(state.read_text())["step"] > 0
    save_tensors(checkpoint / "train" / "optimizer.safetensors", {})
    sealed(checkpoint)
    with pytest.raises(CheckpointError, match="is not what this run writes: it has no tensors"):
        resumed(tmp_path)


@pytest.mark.parametrize("name", ["hidden", "x/hidden", "-1/hidden"])
def test_recurrent_state_of_something_else_is_named(tmp_path: Path, name: str) -> None:
    checkpoint = checkpoint_of(tmp_path)
    save_tensors(checkpoint / "train" / "carry.safetensors", {name: torch.zeros(1)})
    sealed(checkpoint)
    with pytest.raises(CheckpointError, match=r"carry\.safetensors is not what this run writes"):
        resumed(tmp_path)
