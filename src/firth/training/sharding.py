"""Updates under torchrun: gradients summed during the backward (DDP), or everything sharded (FSDP2).

Losses are sums divided by global counts, so gradients are summed over processes, never averaged.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from firth.data.batch import Batch, Step
from firth.errors import ConfigError
from firth.packed import Carry, Encoder
from firth.training.collectives import World
from firth.training.config import OptimConfig
from firth.training.optim import check_state, load_state, make_optimizer, state_tensors
from firth.training.update import WholeUpdate, clip_shares

_FLOAT_BYTES = 4


class BucketUpdate(WholeUpdate):
    """Every process has all weights and updates all of them; buckets of gradients are summed during the backward."""

    exchanges = True

    def __init__(self, model: nn.Module, config: OptimConfig, scales: Mapping[str, float]):
        super().__init__(model, config, scales)
        with warnings.catch_warnings():
            # Renamed in torch 2.13; older versions know this name only.
            warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
            # Whether a parameter gets a gradient may depend on the batch; and DDP would otherwise rearrange its buckets
            # after the first step, so that a resumed run would sum in another order.
            self._parallel = nn.parallel.DistributedDataParallel(
                _WithUnused(model), broadcast_buffers=False, gradient_as_bucket_view=True, find_unused_parameters=True
            )
        self._parallel.register_comm_hook(None, _sum_bucket)
        self.model = self._parallel

    def part(self, *, last: bool) -> None:
        # What DDP's no_sync does: gradients add up locally until the last micro-batch.
        self._parallel.require_backward_grad_sync = last


class _WithUnused(nn.Module):
    """A model and one unused parameter: if all are used, DDP warns against searching for unused ones."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.unused = nn.Parameter(next(model.parameters()).new_zeros(1))

    def forward(self, batch: Batch, carry: Carry | None) -> Step:
        step: Step = self.model(batch, carry)
        return step


def _sum_bucket(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    future: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return future


class ShardedUpdate:
    """Each process keeps an equal share of every weight tensor, with its gradients and optimizer state.

    The weights of a block are gathered when the block runs, forward and backward, and dropped after it; its gradients
    are summed and divided among the processes as soon as they exist, for each micro-batch, so that no process ever
    holds all of them. Shares are equal slices along the first dimension; of a short tensor some processes have none.
    """

    exchanges = divided = True

    def __init__(self, model: nn.Module, config: OptimConfig, scales: Mapping[str, float], world: World):
        assert config.kind != "muon", "it updates whole matrices, of which each process has a share"
        if any(p.dtype != torch.float32 for p in model.parameters()):
            raise ConfigError("--sharding full requires float32 weights: give --sharding none")
        shard_model(model, world)
        self.model: nn.Module = model
        self._world, self._most = world, config.clip_norm or float("inf")
        self._named: dict[str, Any] = {name: p for name, p in model.named_parameters() if p.requires_grad}
        # The optimizer works on plain tensors that share memory with the shares.
        shares = {name: p.detach().to_local() for name, p in self._named.items()}
        self._mine = {name: nn.Parameter(share) for name, share in shares.items() if share.numel()}
        self.optimizer = make_optimizer(model, config, scales, self._mine)

    def part(self, *, last: bool) -> None:
        """Do nothing: keeping gradients whole until the last micro-batch would cost the memory that sharding saves."""

    def clear(self) -> None:
        for p in self._named.values():
            p.grad = None
        for p in self._mine.values():
            p.grad = None

    @torch.no_grad()
    def sum_and_clip(self) -> Tensor:
        for name, mine in self._mine.items():
            grad = self._named[name].grad
            mine.grad = None if grad is None else grad.to_local()
        return clip_shares(self._mine.values(), self._most, self._world)

    def step(self) -> None:
        self.optimizer.step()

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        whole = {}
        for name, t in model.state_dict().items():
            # All processes take part in gathering a tensor, and only the leading one keeps it.
            tensor = t.full_tensor() if hasattr(t, "full_tensor") else t
            if self._world.leads:
                whole[name] = tensor.cpu()
        return whole

    @torch.no_grad()
    def load_weights(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        for name, t in model.state_dict().items():
            if not hasattr(t, "to_local"):
                t.copy_(weights[name])
                continue
            local = t.to_local()
            start = self._start(t.shape[0])
            local.copy_(weights[name][start : start + local.shape[0]])

    def _start(self, n: int) -> int:
        """The first of ``n`` indices in this process's share: FSDP2 divides like torch.chunk."""
        return min(self._world.rank * -(-n // self._world.size), n)

    def state(self) -> dict[str, Tensor]:
        """The state of this process's shares; concatenated in rank order, all processes' shares form each tensor."""
        return state_tensors(self._mine, self.optimizer)

    def load(self, state: Mapping[str, Tensor]) -> None:
        check_state(self._named, self.optimizer, state)
        mine = {}
        for key in state:
            name = key.rpartition("/")[0]
            if name in self._mine:
                tensor, share = state[key], self._mine[name]
                start = self._start(self._named[name].shape[0])
                mine[key] = tensor[start : start + share.shape[0]].clone() if tensor.dim() else tensor
        load_state(self._mine, self.optimizer, mine)


def exchanged_bytes(blocks: int, others: int, micro_batches: int, *, sharded: bool) -> int:
    """Bytes of weights and gradients that one step exchanges, given the parameters in ``blocks`` and ``others``.

    Each of n processes sends and receives (n - 1) / n of what is gathered or reduce-scattered, and twice that of what
    is all-reduced. Without sharding every gradient is all-reduced once per step. With it, for each micro-batch of a
    process, blocks are gathered for the forward and again for the backward, the others once, and all gradients are
    reduce-scattered.
    """
    if not sharded:
        return _FLOAT_BYTES * (blocks + others)
    return _FLOAT_BYTES * micro_batches * (3 * blocks + 2 * others)


def shard_model(model: nn.Module, world: World) -> None:
    """Shard the weights of a model over all processes with FSDP2: each block by itself, then the rest."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard
    from torch.utils import _pytree

    if Step not in _pytree.SUPPORTED_NODES:
        # FSDP2 searches a module's output for the tensors where its backward begins.
        _pytree.register_dataclass(Step)
    mesh = init_device_mesh(next(model.parameters()).device.type, (world.size,))
    encoder = getattr(model, "encoder", None)
    for part in [*(encoder.regions() if isinstance(encoder, Encoder) else []), model]:
        fully_shard(part, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # Gloo has no scaled sums, and a factor of one needs none.
            module.set_force_sum_reduction_for_comms(True)


def drop_gathered(model: nn.Module) -> None:
    """Drop the gathered weights that a forward without a backward leaves behind; does nothing for other models."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
