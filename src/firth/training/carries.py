"""Recurrent state in checkpoints: that of every micro-batch of a step, whichever process ran it.

Each process numbers the micro-batches of its own part of a step. A checkpoint identifies them by their slot, the number
among those of all processes, so that a different number of processes can resume them.
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
    """The state of a process's micro-batches, by their number in that process, from tensors by slot.

    ``size``: the current number of processes, whatever number wrote the tensors. ValueError for a key without a slot.
    """
    found: dict[int, Carry] = {}
    for key, tensor in tensors.items():
        slot, slash, name = key.partition("/")
        if not (slash and slot.isdecimal()):
            raise ValueError(f"{key[:60]!r}: expected <micro-batch>/<name>")
        if int(slot) % size == rank:
            found.setdefault(int(slot) // size, {})[name] = tensor
    return found
