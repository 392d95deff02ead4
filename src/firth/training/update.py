"""Update weights: sum gradients over all processes, clip them, and run the optimizer.

A single process updates all weights; ``sharding`` implements the updates under torchrun. Processes on one machine keep
one copy of the weights in shared memory: each updates its share, with an optimizer over that share only. Together they
do the work, and hold the state, of a single process.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn

from firth.errors import ConfigError
from firth.training.collectives import World, barrier, gather_tensors, sum_over_ranks
from firth.training.config import OptimConfig
from firth.training.optim import check_state, load_state, make_optimizer, state_tensors, whole_costs

# Shares start at multiples of this many elements, to align with cache lines and the kernels' vectors.
_ALIGNED = 64
_FLOAT_BYTES = 4


class Update(Protocol):
    """How a trainer turns gradients into new weights."""

    optimizer: torch.optim.Optimizer
    # Computes a training step's losses from a batch and a carry.
    model: nn.Module
    # Whether processes exchange data during forward or backward: then all must run the same number of each.
    exchanges: bool
    # Whether ``state`` covers only this process's shares, which each process then writes.
    divided: bool

    def part(self, *, last: bool) -> None:
        """Begin a micro-batch of the step."""

    def clear(self) -> None:
        """Clear the gradients of the previous step."""

    def sum_and_clip(self) -> Tensor:
        """Sum gradients over all processes and clip them; returns the norm before clipping."""

    def step(self) -> None:
        """Update the weights."""

    def state(self) -> dict[str, Tensor]:
        """The optimizer's state by ``<parameter>/<entry>``, at the leading process."""

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned, for any number of processes; ValueError for invalid entries."""

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        """The full state dict of a model under this update, at the leading process; all processes take part."""

    def load_weights(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        """Load a full state dict."""


def make_update(model: nn.Module, config: OptimConfig, scales: Mapping[str, float], world: World) -> Update:
    """Choose how these processes update the model's trainable weights."""
    if world.size > 1 and world.group is None:
        # Imports much of torch.distributed, which a single process has no use for.
        from firth.training.sharding import BucketUpdate, ShardedUpdate

        if world.sharded:
            return ShardedUpdate(model, config, scales, world)
        return BucketUpdate(model, config, scales)
    if world.group is None:
        return WholeUpdate(model, config, scales)
    return SharedUpdate(model, config, scales, world)


class Undivided:
    """The common part of updates in which every process can access all weights."""

    exchanges = divided = False

    def part(self, *, last: bool) -> None:
        """Nothing to prepare."""

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        return model.state_dict()

    def load_weights(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        model.load_state_dict(weights)


class WholeUpdate(Undivided):
    """A single process updates all weights."""

    def __init__(self, model: nn.Module, config: OptimConfig, scales: Mapping[str, float]):
        self.model, self.optimizer = model, make_optimizer(model, config, scales)
        self._most = config.clip_norm or float("inf")
        self._named = {name: p for name, p in model.named_parameters() if p.requires_grad}

    def clear(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def sum_and_clip(self) -> Tensor:
        return nn.utils.clip_grad_norm_(self._named.values(), self._most)

    def step(self) -> None:
        self.optimizer.step()

    def state(self) -> dict[str, Tensor]:
        return state_tensors(self._named, self.optimizer)

    def load(self, state: Mapping[str, Tensor]) -> None:
        check_state(self._named, self.optimizer, state)
        load_state(self._named, self.optimizer, state)


class SharedUpdate(Undivided):
    """Keeps the weights in shared memory; each process updates an equal share of them.

    All weights are concatenated; a share is a contiguous span, so most parameters belong to one process and a few are
    split between two. A process writes the gradients that others need into shared memory, and adds what the others
    wrote to those of its own share, in rank order, so the sum is reproducible.
    """

    def __init__(self, model: nn.Module, config: OptimConfig, scales: Mapping[str, float], world: World):
        assert world.group is not None
        self.model = model
        self._world, self._group, self._most = world, world.group, config.clip_norm or float("inf")
        self._named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if any(p.dtype != torch.float32 for p in self._named.values()):
            raise ConfigError("several processes require float32 weights: give --processes 1")
        costs = whole_costs(model, config)
        sizes = {name: p.numel() for name, p in self._named.items()}
        places, bounds = _shares(sizes, costs, world.size)
        total = bounds[-1]
        # The weights, then the gradients that each process passes to others.
        memory = self._group.share(_FLOAT_BYTES * total * (1 + world.size))
        numbers = torch.frombuffer(memory, dtype=torch.float32)
        self._sent = numbers[total:].unflatten(0, (world.size, total))
        # By parameter: its offset, and the part of it (from, to) that each process updates.
        self._places = places
        self._parts = [
            [(max(a, start) - start, min(b, start + p.numel()) - start) for a, b in pairwise(bounds)]
            for start, p in zip(places, self._named.values(), strict=True)
        ]
        for start, p in zip(places, self._named.values(), strict=True):
            shared = numbers[start : start + p.numel()].view_as(p)
            if world.leads:
                shared.copy_(p.detach())
            p.data = shared
        barrier(world)
        self._mine: dict[str, nn.Parameter] = {}
        for (name, p), parts in zip(self._named.items(), self._parts, strict=True):
            a, b = parts[world.rank]
            if a < b:
                data = p.detach()
                self._mine[name] = nn.Parameter(data if b - a == p.numel() else data.view(-1)[a:b])
        if not self._mine:
            raise ConfigError(f"the model is too small for {world.size} processes: give fewer --processes")
        self.optimizer = make_optimizer(model, config, scales, self._mine)

    def clear(self) -> None:
        for p in self._named.values():
            p.grad = None

    @torch.no_grad()
    def sum_and_clip(self) -> Tensor:
        rank, found = self._world.rank, bytearray()
        for p, start, parts in zip(self._named.values(), self._places, self._parts, strict=True):
            found.append(p.grad is not None)
            if p.grad is None:
                continue
            flat = p.grad.reshape(-1)
            for owner, (a, b) in enumerate(parts):
                if owner != rank and a < b:
                    self._sent[rank, start + a : start + b] = flat[a:b]
        # Wait until all have written. A parameter that no process reached has no gradient.
        reached = self._group.all_gather(bytes(found))
        for number, (name, p) in enumerate(self._named.items()):
            a, b = self._parts[number][rank]
            if a >= b:
                continue
            start, mine = self._places[number], self._mine[name]
            senders = [r for r, has in enumerate(reached) if r != rank and has[number]]
            others = [self._sent[r, start + a : start + b] for r in senders]
            mine.grad = None
            if p.grad is None and not others:
                continue
            total = torch.zeros_like(mine).view(-1) if p.grad is None else p.grad.reshape(-1)[a:b]
            for other in others:
                total += other
            mine.grad = total.view_as(mine)
        return clip_shares(self._mine.values(), self._most, self._world)

    def step(self) -> None:
        self.optimizer.step()
        # Wait: the next forward reads all weights.
        barrier(self._world)

    def state(self) -> dict[str, Tensor]:
        by_rank = gather_tensors(state_tensors(self._mine, self.optimizer), self._world)
        whole: dict[str, Tensor] = {}
        numbers = {name: number for number, name in enumerate(self._named)}
        for rank, tensors in enumerate(by_rank):
            for key, tensor in tensors.items():
                name = key.rsplit("/", 1)[0]
                p, (a, b) = self._named[name], self._parts[numbers[name]][rank]
                if not tensor.dim() or b - a == p.numel():
                    whole[key] = tensor
                else:
                    whole.setdefault(key, torch.empty(p.shape, dtype=tensor.dtype)).view(-1)[a:b] = tensor
        return whole

    def load(self, state: Mapping[str, Tensor]) -> None:
        check_state(self._named, self.optimizer, state)
        mine = {}
        for number, name in enumerate(self._named):
            if name not in self._mine:
                continue
            a, b = self._parts[number][self._world.rank]
            for key in (key for key in state if key.rsplit("/", 1)[0] == name):
                tensor = state[key]
                part = tensor.reshape(-1)[a:b].view_as(self._mine[name]) if tensor.dim() else tensor
                mine[key] = part.clone()
        load_state(self._mine, self.optimizer, mine)


def clip_shares(shares: Iterable[nn.Parameter], most: float, world: World) -> Tensor:
    """Clip the gradients of all processes' shares to the norm ``most``, as of one vector; returns their norm before."""
    parameters = [p for p in shares if p.grad is not None]
    squares = sum(float(torch.linalg.vector_norm(p.grad)) ** 2 for p in parameters if p.grad is not None)
    norm = torch.tensor(sum_over_ranks({"squares": squares}, world)["squares"]).sqrt()
    nn.utils.clip_grads_with_norm_(parameters, most, norm)
    return norm


def _aligned(n: int) -> int:
    return -(-n // _ALIGNED) * _ALIGNED


def _shares(sizes: Mapping[str, int], costs: Mapping[str, float], n: int) -> tuple[list[int], list[int]]:
    """The offset of each parameter, and the bounds of ``n`` shares of equal cost (0 first).

    ``costs``: per element, where not 1. Parameters named there are not split.
    """
    places, ends, end = [], [0.0], 0
    for name, size in sizes.items():
        places.append(end)
        end = _aligned(end + size)
        ends.append(ends[-1] + size * costs.get(name, 1.0))
    bounds = [0]
    for share in range(1, n):
        wanted = ends[-1] * share / n
        number = bisect_left(ends, wanted) - 1
        part = (wanted - ends[number]) / (ends[number + 1] - ends[number])
        name, size = list(sizes.items())[number]
        part = float(part >= 0.5) if name in costs else part
        bounds.append(max(places[number] + _aligned(round(part * size)), bounds[-1]))
    return places, [*bounds, end]
