"""Updates shared by several processes give the same weights and state as a single process."""

from typing import Any

import pytest
import torch
from groups import in_threads
from torch import Tensor, nn

from firth.errors import ConfigError
from firth.training.collectives import World
from firth.training.config import OptimConfig
from firth.training.optim import AveragedSgd
from firth.training.update import Update, _shares, make_update

KINDS = ["bert_adam", "gpt_adam", "adamw", "adagrad", "sgd"]


def model_of(seed: int = 1) -> nn.Module:
    """Parameters that do not divide into equal shares; one often has no gradient, and one is frozen."""
    # Not torch's global generator, which the threads that act as processes share.
    generator = torch.Generator().manual_seed(seed)
    model = nn.Module()
    for name, shape in {"table": (37, 9), "bias": (5,), "matrix": (20, 30), "alone": (70,), "fixed": (4,)}.items():
        model.register_parameter(name, nn.Parameter(torch.randn(shape, generator=generator)))
    nn.init.zeros_(model.fixed)
    model.fixed.requires_grad_(False)
    return model


def config_of(kind: Any) -> OptimConfig:
    return OptimConfig(kind=kind, learning_rate=0.01, decay=0.0 if kind == "adagrad" else 0.1, clip_norm=0.5)


def make(model: nn.Module, kind: str, world: World) -> Update:
    return make_update(model, config_of(kind), {"matrix": 0.5}, world)


def gradient(name: str, shape: Any, step: int, slot: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1000 * step + 10 * slot + len(name)))


def updates(update: Update, model: nn.Module, world: World, steps: range, n_slots: int = 3) -> list[float]:
    """Run steps with fixed gradients for three micro-batches; return the norms."""
    norms = []
    for step in steps:
        update.clear()
        for slot in range(world.rank, n_slots, world.size):
            for name, p in model.named_parameters():
                # One parameter has a gradient in only one micro-batch, and in some steps in none.
                if name == "fixed" or (name == "alone" and (slot != 1 or step % 2)):
                    continue
                more = gradient(name, p.shape, step, slot)
                p.grad = more if p.grad is None else p.grad + more
        norms.append(float(update.sum_and_clip()))
        update.step()
    return norms


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def walk(world: World, kind: str, steps: int = 4) -> tuple[dict[str, Tensor], dict[str, Tensor], list[float]]:
    model = model_of(seed=1 + world.rank)  # all processes take the leading process's weights
    update = make(model, kind, world)
    norms = updates(update, model, world, range(steps))
    return weights_of(model), update.state(), norms


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 3])
def test_processes_together_do_what_one_does(kind: str, size: int) -> None:
    weights, state, norms = walk(World(), kind)
    for rank, (theirs, their_state, their_norms) in enumerate(in_threads(size, lambda world: walk(world, kind))):
        torch.testing.assert_close(theirs, weights, rtol=1e-5, atol=1e-6)
        assert their_norms == pytest.approx(norms, rel=1e-5)
        # The leading process has the complete state, as a single process does.
        if rank == 0:
            torch.testing.assert_close(their_state, state, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [2, 3])
def test_the_same_number_of_processes_gives_the_same_bits(size: int) -> None:
    first, second = (in_threads(size, lambda world: walk(world, "adamw")) for _ in range(2))
    for (weights, state, norms), (again, state_again, norms_again) in zip(first, second, strict=True):
        assert norms == norms_again
        assert all(torch.equal(weights[name], again[name]) for name in weights)
        assert all(torch.equal(state[name], state_again[name]) for name in state)


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_processes_goes_on_with_the_state_of_another(kind: str) -> None:
    def begin(world: World) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return walk(world, kind, 2)[:2]

    def go_on(world: World, weights: dict[str, Tensor], state: dict[str, Tensor]) -> dict[str, Tensor]:
        model = model_of()
        update = make(model, kind, world)
        model.load_state_dict(weights)
        update.load({key: tensor.clone() for key, tensor in state.items()})
        updates(update, model, world, range(2, 4))
        return weights_of(model)

    whole, _, _ = walk(World(), kind)
    for before in (1, 2, 3):
        weights, state = begin(World()) if before == 1 else in_threads(before, begin)[0]
        for after in (1, 2, 3):
            ended = (
                [go_on(World(), weights, state)]
                if after == 1
                else in_threads(after, lambda world, w=weights, s=state: go_on(world, w, s))  # type: ignore[misc]
            )
            for theirs in ended:
                torch.testing.assert_close(theirs, whole, rtol=1e-5, atol=1e-6)


def test_each_process_holds_its_share_of_the_state_alone() -> None:
    def held(world: World) -> int:
        model = model_of()
        update = make(model, "adamw", world)
        updates(update, model, world, range(1))
        state = update.optimizer.state
        return sum(value["exp_avg"].numel() for value in state.values())

    n_numbers = 37 * 9 + 5 + 20 * 30 + 70
    shares = in_threads(3, held)
    assert sum(shares) == n_numbers
    assert max(shares) <= n_numbers / 3 + 64


def test_weights_are_averaged_over_all_shares() -> None:
    def averaged(world: World) -> dict[str, Tensor]:
        model = model_of()
        update = make(model, "sgd", world)
        updates(update, model, world, range(1))
        assert isinstance(update.optimizer, AveragedSgd)
        update.optimizer.begin_averaging()
        updates(update, model, world, range(1, 4))
        return update.state()

    whole = averaged(World())
    together = in_threads(2, averaged)[0]
    torch.testing.assert_close(together, whole, rtol=1e-5, atol=1e-6)


def test_a_gradient_that_is_not_finite_is_seen_by_all() -> None:
    def broken(world: World) -> float:
        model = model_of()
        update = make(model, "adamw", world)
        update.clear()
        model.bias.grad = torch.full((5,), float("nan") if world.rank else 0.0)
        return float(update.sum_and_clip())

    assert all(norm != norm for norm in in_threads(3, broken))


def test_more_processes_than_the_model_has_room_for() -> None:
    with pytest.raises(ConfigError, match="too small for 2 processes"):
        in_threads(2, lambda world: make_update(nn.Linear(2, 2, bias=False), OptimConfig(), {}, world))


def test_shares_cost_the_same_and_cut_what_may_be_cut_alone() -> None:
    sizes = {"table": 1000, "a": 256, "b": 256, "bias": 64}
    places, bounds = _shares(sizes, {}, 2)
    assert places == [0, 1024, 1280, 1536]
    # Half of 1576 lies inside the table; it is rounded up to a multiple of 64.
    assert bounds == [0, 832, 1600]
    # If the matrices cost four times as much, half of the total is at the end of the first.
    assert _shares(sizes, {"a": 4.0, "b": 4.0}, 2)[1] == [0, 1280, 1600]
    assert _shares(sizes, {"a": 4.0, "b": 4.0}, 3)[1] == [0, 1024, 1280, 1600]
    assert _shares({"a": 100}, {"a": 2.0}, 3)[1] == [0, 0, 128, 128]
