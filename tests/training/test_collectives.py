"""How processes started by torchrun join, with or without GPUs. GPUs and the second process are simulated."""

import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from firth.errors import ConfigError
from firth.training.collectives import RANKS_HERE, World, join_world, ranks_here, sum_over_ranks


@pytest.mark.parametrize(
    ("cards", "local_processes", "backend", "card"),
    [(0, 2, "gloo", None), (2, 2, "nccl", 1), (1, 2, "gloo", 0), (4, 1, "nccl", 1)],
)
def test_each_process_has_a_gpu_of_its_own_or_all_exchange_through_the_host(
    cards: int, local_processes: int, backend: str, card: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[Any] = []
    chosen: list[int] = []
    launched = {"WORLD_SIZE": 2, "RANK": 1, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": local_processes}
    for name, value in (launched | {"MASTER_ADDR": "here", "MASTER_PORT": 1}).items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    # The package exports a function of the same name, which hides the module.
    meeting = sys.modules["torch.distributed.rendezvous"]
    monkeypatch.setattr(meeting, "rendezvous", lambda url: iter([(dist.HashStore(), 1, 2)]))
    monkeypatch.setattr(dist, "init_process_group", lambda kind, **more: joined.append((kind, more["rank"])))
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    assert join_world() == World(1, 2)
    assert joined == [(backend, 1)]
    assert chosen == ([] if card is None else [card])


def test_a_size_without_a_launcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "")
    assert join_world() == World()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match="WORLD_SIZE=2, but RANK is not set: start the processes with torchrun"):
        join_world()


def test_sums_are_made_where_the_backend_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL sums only tensors on the GPU."""
    moved: list[Tensor] = []

    def to_gpu(tensor: Tensor) -> Tensor:
        moved.append(tensor)
        return tensor

    monkeypatch.setattr(torch.Tensor, "cuda", to_gpu)
    monkeypatch.setattr(dist, "all_reduce", lambda total: total.mul_(2))
    for backend, n_moved in (("gloo", 0), ("nccl", 1)):
        monkeypatch.setattr(dist, "get_backend", lambda backend=backend: backend)
        assert sum_over_ranks({"b": 1.0, "a": 0.5}, World(0, 2)) == {"a": 1.0, "b": 2.0}
        assert len(moved) == n_moved


def test_processes_that_share_a_machine_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_WORLD_SIZE", RANKS_HERE):
        monkeypatch.delenv(name, raising=False)
    assert ranks_here() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert ranks_here() == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")  # one GPU each, as Ray shows them
    monkeypatch.setenv(RANKS_HERE, "8")
    assert ranks_here() == 8
