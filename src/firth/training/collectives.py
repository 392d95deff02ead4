"""Collective operations over several processes, on one machine or under torchrun."""

import itertools
import json
import os
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor

from firth.errors import ConfigError
from firth.training.processes import Group

# What a launcher sets beside WORLD_SIZE.
_LAUNCHED = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
RANKS_HERE = "FIRTH_RANKS_HERE"
# Numbers the groups that this process joins, in the same way in all processes.
_groups = itertools.count()


@dataclass(frozen=True, slots=True)
class World:
    """This process's ``rank`` among ``size`` processes. ``group``: their connections, None under torchrun.

    ``sharded``: under torchrun, whether weights, gradients and optimizer state are divided among all; ``recompute``:
    whether limited memory requires recomputing blocks, whatever the recipe says.
    """

    rank: int = 0
    size: int = 1
    group: Group | None = field(default=None, compare=False)
    sharded: bool = False
    recompute: bool = False

    @classmethod
    def of(cls, group: Group | None) -> "World":
        """The world of a group of processes on one machine; None: a single process."""
        return cls() if group is None else cls(group.rank, group.size, group)

    @property
    def leads(self) -> bool:
        """Whether this is the leading process, which writes all files."""
        return self.rank == 0


def join_world() -> World:
    """Join the processes that torchrun started (gloo, or nccl with GPUs); without torchrun, a single process."""
    if os.environ.get("WORLD_SIZE", "1") in ("", "1"):
        return World()
    if absent := [name for name in _LAUNCHED if not os.environ.get(name)]:
        raise ConfigError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']}, but {absent[0]} is not set: start the processes with torchrun, or "
            "unset WORLD_SIZE"
        )
    if not dist.is_initialized():
        # Its functions bind the current process group as a default at import. Imported later (by an optimizer), they
        # keep the group's threads alive past its end, and the process may abort at exit.
        import torch.distributed.nn  # noqa: F401
        from torch._C._distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        cards = torch.cuda.device_count()
        if cards:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % cards)
        enough = cards >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        # torchrun's store outlives a group: without a prefix of its own, the next group would find the last one's
        # addresses there.
        store, rank, size = next(rendezvous("env://"))
        named = PrefixStore(f"group {next(_groups)}", store)
        dist.init_process_group("nccl" if cards and enough else "gloo", store=named, rank=rank, world_size=size)
    return World(dist.get_rank(), dist.get_world_size())


def ranks_here() -> int:
    """How many processes of the run share this machine's memory.

    Under Ray each process sees one GPU, as if its machine had no other, so the number has a variable of its own.
    """
    return int(os.environ.get(RANKS_HERE) or os.environ.get("LOCAL_WORLD_SIZE", "1"))


def leave_world() -> None:
    """Leave the process group, so that torchrun ends cleanly."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def sum_over_ranks(values: dict[str, float], world: World) -> dict[str, float]:
    """Sum each value over all processes, in rank order; under torchrun all must pass the same keys."""
    if world.size == 1:
        return values
    if world.group is not None:
        found: dict[str, float] = {}
        for some in world.group.all_gather(json.dumps(values).encode()):
            for key, value in json.loads(some).items():
                found[key] = found.get(key, 0.0) + value
        return found
    keys = sorted(values)
    total = torch.tensor([values[key] for key in keys], dtype=torch.float64)
    if dist.get_backend() == "nccl":
        total = total.cuda()
    dist.all_reduce(total)
    return dict(zip(keys, total.tolist(), strict=True))


def text_of_leader(text: str) -> str:
    """Under torchrun: the text of the leading process, in every process."""
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).to(device) if text else None
    length = torch.tensor([0 if data is None else data.numel()], device=device)
    dist.broadcast(length, 0)
    if dist.get_rank() or data is None:
        data = torch.empty(int(length), dtype=torch.uint8, device=device)
    dist.broadcast(data, 0)
    return bytes(data.tolist()).decode()


def any_rank(flag: bool, world: World) -> bool:
    """Whether the flag is set in any process, so that all act together."""
    return sum_over_ranks({"flag": float(flag)}, world)["flag"] > 0


def join_texts(texts: list[str], world: World) -> list[str]:
    """Gather the texts of all processes, in rank order."""
    if world.size == 1:
        return texts
    if world.group is None:
        gathered: list[list[str]] = [[]] * world.size
        dist.all_gather_object(gathered, texts)
        return [text for some in gathered for text in some]
    return [text for some in world.group.all_gather(json.dumps(texts).encode()) for text in json.loads(some)]


def barrier(world: World) -> None:
    """Wait until every process arrives."""
    if world.group is not None:
        world.group.all_gather(b"")
    elif world.size > 1:
        dist.barrier()


def gather_tensors(tensors: dict[str, Tensor], world: World) -> list[dict[str, Tensor]]:
    """Gather each process's tensors, by rank, at the leading one (others get an empty list).

    Under torchrun all processes must pass the same names, shapes and dtypes.
    """
    if world.size == 1:
        return [tensors]
    if world.group is not None:
        mine = save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
        return [load(one) for one in world.group.gather(mine)]
    by_rank: list[dict[str, Tensor]] = [{} for _ in range(world.size)]
    for name in sorted(tensors):
        parts = [torch.empty_like(tensors[name]) for _ in range(world.size)]
        dist.all_gather(parts, tensors[name].contiguous())
        for held, part in zip(by_rank, parts, strict=True):
            held[name] = part
    return by_rank if world.leads else []
