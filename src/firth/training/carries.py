"""Recurrent state in checkpoints: of every micro-batch of a step, whichever process had it.

Each process knows its own micro-batches by their number in its part of a step; a checkpoint names them by their slot,
the number among those of all processes, so that another number of processes can take them up.
"""

from collections.abc import Iterable, Mapping

from torch import Tensor

from firth.packed import Carry


def plain_carries(carries: Mapping[int, Carry]) -> dict[str, Tensor]:
    """The tensors of one process by ``<its micro-batch>/<name>``."""
    return {f"{number}/{name}": tensor for number, carry in carries.items() for name, tensor in carry.items()}


def by_slot(by_rank: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of all processes (``plain_carries`` of each, by rank) by ``<slot>/<name>``."""
    ranks = list(by_rank)
    found = {}
    for rank, tensors in enumerate(ranks):
        for key, tensor in tensors.items():
            number, name = key.split("/", 1)
            found[f"{int(number) * len(ranks) + rank}/{name}"] = tensor
    return found


def carries_of_rank(tensors: Mapping[str, Tensor], rank: int, size: int) -> dict[int, Carry]:
    """The state of a process's micro-batches, by their number there, from tensors by slot.

    ``size``: processes there are now, however many wrote it. ValueError for a tensor that no slot has.
    """
    found: dict[int, Carry] = {}
    for key, tensor in tensors.items():
        slot, slash, name = key.partition("/")
        if not (slash and slot.isdecimal()):
            raise ValueError(f"{key[:60]!r}: expected <micro-batch>/<name>")
        if int(slot) % size == rank:
            found.setdefault(int(slot) // size, {})[name] = tensor
    return found
