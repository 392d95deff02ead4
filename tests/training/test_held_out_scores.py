"""What held-out scores decide during a run: learning-rate decay, the end of the run, weight averaging."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from guessing import batch_of, trainer_of
from optimizer_states import load_optimizer_tensors, optimizer_tensors
from torch import nn

from firth.errors import ConfigError
from firth.training.config import OptimConfig
from firth.training.held_out import HeldOut
from firth.training.log import read_log
from firth.training.optim import AveragedSgd, make_optimizer
from firth.training.trainer import Trainer

RATE = 0.1


def run_of(folder: Path, optim: OptimConfig, steps: int = 12, **config: Any) -> Trainer:
    return trainer_of(
        folder,
        [batch_of([0], 1)],
        dev=lambda: iter([batch_of([0], 1)]),
        optim=optim,
        rate=lambda step: RATE,
        config={"steps": steps, "eval_every": 1, **config},
    )


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The evaluations return the scores that a test adds here, in order."""
    given: list[float] = []
    left: Iterator[float] = iter(given)
    monkeypatch.setattr(HeldOut, "score", lambda self: {"guess_loss": 0.0, "loss": next(left)})
    return given


def rates(run: Path) -> list[float]:
    return [event["rate"] for event in read_log(run / "log.jsonl") if event["event"] == "train"]


def test_the_rate_is_halved_whenever_the_loss_is_no_better_and_too_low_a_rate_ends_the_run(
    tmp_path: Path, scores: list[float]
) -> None:
    """As in McCann et al.: three evaluations are no better, and an eighth of the learning rate is below the minimum."""
    scores += [3.0, 2.0, 2.5, 1.0, 1.0, 1.5, 0.5]
    optim = OptimConfig(kind="sgd", decay=0.0, learning_rate=RATE, plateau_factor=0.5, min_learning_rate=0.2 * RATE)
    trainer = run_of(tmp_path / "run", optim)
    assert trainer.fit()
    assert trainer.state.step == 6
    assert rates(tmp_path / "run") == [RATE, RATE, RATE, RATE / 2, RATE / 2, RATE / 4]
    assert trainer.fit()  # the run has already ended
    assert trainer.state.step == 6


def test_two_tenths_with_patience_are_the_annealing_of_taglm(tmp_path: Path, scores: list[float]) -> None:
    """Two evaluations without a better score are a plateau; a learning rate that rounds to the minimum is allowed."""
    scores += [2.0, 3.0, 3.0, 1.9, 3.0, 3.0, 3.0, 3.0]
    optim = OptimConfig(
        kind="adamw",
        learning_rate=RATE,
        decay=0.0,
        plateau_factor=0.1,
        plateau_patience=2,
        min_learning_rate=RATE * 0.1 * 0.1,
    )
    trainer = run_of(tmp_path / "run", optim)
    assert trainer.fit()
    assert trainer.state.step == 8
    parts = [rate / RATE for rate in rates(tmp_path / "run")]
    assert parts == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01])


def test_weights_are_averaged_from_the_first_score_that_is_worse_than_the_best_so_many_before(
    tmp_path: Path, scores: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    """The sixth score is worse than the second, with three between; the fifth is worse only than a more recent one."""
    scores += [2.0, 1.0, 1.6, 0.6, 0.9, 1.1, 1.0, 1.0]
    trainer = run_of(tmp_path / "run", OptimConfig(kind="sgd", decay=0.0, averaged_after=3), steps=8)
    seen: list[torch.Tensor] = []
    step = trainer.train_step
    trainer.train_step = lambda batches: (step(batches), seen.append(trainer.objective.numbers.detach().clone()))[0]  # type: ignore[method-assign,func-returns-value]  # records the weights after each update
    assert trainer.fit()
    assert capsys.readouterr().err.count("weights are averaged from here on") == 1
    torch.testing.assert_close(trainer.objective.numbers.detach(), seen[-1])
    optimizer = trainer.optimizer
    assert isinstance(optimizer, AveragedSgd)
    with optimizer.averaged():
        torch.testing.assert_close(trainer.objective.numbers.detach(), torch.stack(seen[6:]).mean(0))
    assert torch.equal(trainer.objective.numbers.detach(), seen[-1])


def test_the_kept_model_and_its_score_are_of_the_averages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One parameter that oscillates: only its mean is near 1."""
    trainer = run_of(tmp_path / "run", OptimConfig(kind="sgd", decay=0.0, clip_norm=0.0, averaged_after=1), steps=30)
    trainer.rate = lambda step: 0.99  # each step multiplies the distance to 1 by 1 - 2·0.99 = -0.98
    kept: list[float] = []
    trainer.saver.save_model = lambda folder, facts, weights: kept.append(float(weights["numbers"][0]))
    scored: list[float] = []

    def score(self: HeldOut) -> dict[str, float]:
        scored.append(float(self.objective.numbers.detach()[0]))
        return {"loss": (scored[-1] - 1) ** 2 + (0.5 if len(scored) == 3 else 0.0)}

    monkeypatch.setattr(HeldOut, "score", score)
    assert trainer.fit()
    # The last write is the checkpoint, with the weights themselves; the one before is the best model, an average.
    assert kept[-1] == pytest.approx(float(trainer.objective.numbers.detach()[0]))
    assert abs(kept[-1] - 1) > 0.3
    assert trainer.state.best is not None and trainer.state.best < 1e-3
    assert trainer.state.best == pytest.approx((kept[-2] - 1) ** 2)


@pytest.mark.parametrize("stop_at", [2, 4, 5, 7])
def test_a_resumed_run_falls_and_averages_as_if_it_had_not_been_stopped(
    tmp_path: Path, scores: list[float], stop_at: int
) -> None:
    looks = [2.0, 1.0, 1.6, 1.7, 0.9, 1.1, 1.0, 1.0]
    optim = OptimConfig(kind="sgd", decay=0.1, averaged_after=1, plateau_factor=0.5)
    scores += looks
    whole = run_of(tmp_path / "whole", optim, steps=8)
    assert whole.fit()

    scores += looks
    first = run_of(tmp_path / "parts", optim, steps=stop_at, save_every=1)
    assert first.fit()
    second = run_of(tmp_path / "parts", optim, steps=8)
    numbers = first.objective.numbers.detach().clone()
    second.resume(lambda folder: {"numbers": numbers})
    assert second.fit()
    assert torch.equal(second.objective.numbers, whole.objective.numbers)
    assert (second.state.plateaus, second.state.scores) == (whole.state.plateaus, whole.state.scores)
    ours, theirs = (optimizer_tensors(t.objective, t.optimizer) for t in (second, whole))
    assert ours.keys() == theirs.keys() == {"numbers/average", "numbers/updates"}
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_sgd_is_pytorchs_with_decay_of_matrices_through_the_gradient() -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()
    theirs.load_state_dict(ours.state_dict())
    optimizer = make_optimizer(ours, OptimConfig(kind="sgd", learning_rate=0.5, decay=0.01))
    for _ in range(4):
        x = torch.randn(5, 3).double()
        for model in (ours, theirs):
            model.zero_grad()
            model(x).square().sum().backward()
        optimizer.step()
        with torch.no_grad():
            theirs.weight -= 0.5 * (theirs.weight.grad + 0.01 * theirs.weight)
            theirs.bias -= 0.5 * theirs.bias.grad
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_averages_are_those_of_pytorchs_asgd_which_leaves_the_first_out() -> None:
    """PyTorch's ASGD, averaging from the first update and without learning-rate decay, as the released code uses it."""
    torch.manual_seed(0)
    ours, theirs = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()
    theirs.load_state_dict(ours.state_dict())
    made = make_optimizer(ours, OptimConfig(kind="sgd", learning_rate=0.05, decay=0.0))
    assert isinstance(made, AveragedSgd)
    peer = torch.optim.ASGD(theirs.parameters(), lr=0.05, lambd=0.0, t0=0)
    for number in range(6):
        if number == 1:
            made.begin_averaging()
        x = torch.randn(5, 3).double()
        for model, optimizer in ((ours, made), (theirs, peer)):
            model.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
    assert not made.begin_averaging(), "it has begun"
    with made.averaged():
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a.detach(), peer.state[b]["ax"])


def test_averages_are_saved_from_the_moment_they_begin() -> None:
    made = nn.Linear(2, 1)
    optimizer = make_optimizer(made, OptimConfig(kind="sgd", decay=0.0))
    assert isinstance(optimizer, AveragedSgd)
    assert optimizer_tensors(made, optimizer) == {}
    optimizer.begin_averaging()
    again = make_optimizer(made, OptimConfig(kind="sgd", decay=0.0))
    load_optimizer_tensors(made, again, optimizer_tensors(made, optimizer))
    assert set(optimizer_tensors(made, again)) == {"weight/average", "weight/updates", "bias/average", "bias/updates"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"averaged_after": 5}, "optim.averaged_after=5: requires optim.kind=sgd"),
        (
            {"min_learning_rate": 0.03},
            "min_learning_rate=0.03: requires optim.plateau_factor below 1; set both or neither",
        ),
        (
            {"learning_rate": 0.01, "min_learning_rate": 0.03, "plateau_factor": 0.5},
            "optim.min_learning_rate=0.03: must not exceed optim.learning_rate=0.01",
        ),
        ({"plateau_factor": 0.0}, "plateau_factor=0.0"),
        ({"plateau_factor": 2.0}, "plateau_factor=2.0"),
        ({"plateau_factor": 0.5, "plateau_patience": 0}, "plateau_patience=0"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OptimConfig(**options)


def test_without_held_out_text_patience_has_nothing_to_count(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.patience requires held-out text"):
        trainer_of(tmp_path / "run", [batch_of([0], 1)], config={"patience": 1})


@pytest.mark.parametrize("options", [{"plateau_factor": 0.5}, {"kind": "sgd", "averaged_after": 5}])
def test_without_held_out_text_there_is_nothing_to_go_by(tmp_path: Path, options: dict[str, Any]) -> None:
    optim = OptimConfig(decay=0.0, **options)
    with pytest.raises(ConfigError, match="require held-out text, and there is none"):
        trainer_of(tmp_path / "run", [batch_of([0], 1)], optim=optim)
    with pytest.raises(ConfigError, match="during training: train.eval_every=0 has one, at the end"):
        optim.check_evaluations(0, "train.eval_every")
    optim.check_evaluations(1, "train.eval_every")
    OptimConfig().check_evaluations(0, "train.eval_every")
