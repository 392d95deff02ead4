"""Adagrad as in ELMo's published training."""

import dataclasses

import pytest
import torch
from optimizer_states import load_optimizer_tensors, optimizer_tensors
from torch import Tensor, nn

from firth.errors import ConfigError
from firth.systems import SYSTEMS
from firth.training.config import OptimConfig
from firth.training.optim import make_optimizer

UNROLL = 20
PUBLISHED = OptimConfig(**SYSTEMS["elmo"].pretraining["optim"])


def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2).double()


def gradients(step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(shape, generator=generator).double() for shape in ((2, 3), (2,))]


def updated(made: nn.Linear, optimizer: torch.optim.Optimizer, steps: range, clip: float) -> None:
    for step in steps:
        for parameter, gradient in zip(made.parameters(), gradients(step), strict=True):
            parameter.grad = gradient.clone()
        nn.utils.clip_grad_norm_(made.parameters(), clip)
        optimizer.step()


def test_the_steps_are_those_of_the_published_loss() -> None:
    """Published: gradient of 20 times the mean, clipped to norm 10; squares accumulate from 1; no epsilon."""
    made, theirs = model(), model()
    sums = [torch.ones_like(p) for p in theirs.parameters()]
    updated(made, make_optimizer(made, PUBLISHED), range(6), PUBLISHED.clip_norm)
    for step in range(6):
        scaled = [UNROLL * gradient for gradient in gradients(step)]
        norm = torch.stack([g.square().sum() for g in scaled]).sum().sqrt()
        for parameter, total, gradient in zip(theirs.parameters(), sums, scaled, strict=True):
            gradient = gradient * min(1.0, 10 / float(norm))
            total += gradient**2
            parameter.data -= 0.2 * gradient / total.sqrt()
    for ours, expected in zip(made.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=0)


def test_its_state_is_saved_and_goes_on() -> None:
    whole, halves = model(), model()
    updated(whole, make_optimizer(whole, PUBLISHED), range(6), 1.0)
    optimizer = make_optimizer(halves, PUBLISHED)
    updated(halves, optimizer, range(3), 1.0)
    saved = {name: tensor.clone() for name, tensor in optimizer_tensors(halves, optimizer).items()}
    assert set(saved) == {"weight/step", "weight/sum", "bias/step", "bias/sum"}
    again = make_optimizer(halves, PUBLISHED)
    load_optimizer_tensors(halves, again, saved)
    updated(halves, again, range(3, 6), 1.0)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), halves.parameters(), strict=True))


def test_decay_is_refused() -> None:
    with pytest.raises(ConfigError, match="adagrad does not support it, set it to 0"):
        dataclasses.replace(PUBLISHED, decay=0.01)
    with pytest.raises(ConfigError, match="accumulated=-1"):
        OptimConfig(accumulated=-1.0)
