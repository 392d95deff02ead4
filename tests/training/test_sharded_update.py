"""The share of BERT-base that one of four processes holds under full sharding, measured without the other three."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from firth.data.batch import Batch, Target
from firth.data.rows import pack_lists
from firth.machine import unfilled
from firth.systems import SIZES, SYSTEMS
from firth.training.collectives import World
from firth.training.config import OptimConfig
from firth.training.sharding import ShardedUpdate

VOCAB_SIZE = 30_522


@pytest.fixture
def one_of_four() -> Iterator[World]:
    """The leading process of four, with collective operations that exchange nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        yield World(0, 4, sharded=True)
    finally:
        dist.destroy_process_group()


def held_by(update: ShardedUpdate) -> int:
    """Bytes of weights, gradients and optimizer state."""
    tensors: list[Any] = []
    for p in update.model.parameters():
        tensors += [p.to_local(), p.grad.to_local()]  # type: ignore[operator, union-attr]
    tensors += [t for state in update.optimizer.state.values() for t in state.values()]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def test_each_of_four_processes_holds_a_quarter_of_bert_base(one_of_four: World) -> None:
    row = SYSTEMS["bert"]
    _, sizes = SIZES["bert-base"]
    config = row.config(**sizes, vocab_size=VOCAB_SIZE)
    objective = unfilled(lambda: row.objective(row.encoder(config), row.objective_config()))
    n_parameters = sum(p.numel() for p in objective.parameters())
    assert n_parameters > 109e6
    update = ShardedUpdate(objective, OptimConfig(), {}, one_of_four)
    tokens = pack_lists([[2, 5, 3]], [[0, 0, 1]])
    target = Target(torch.tensor([1]), torch.tensor([5]))
    step = update.model(Batch(tokens, {"mlm": target, "nsp": Target(torch.tensor([0]), torch.tensor([1]))}), None)
    torch.stack(list(step.losses.values())).sum().backward()
    update.sum_and_clip()
    update.step()
    # Weight, gradient and both Adam moments, four bytes each.
    share = held_by(update) / (16 * n_parameters)
    assert 0.25 <= share <= 0.3
