"""Process groups run as threads of the test: same sockets and shared memory, no start-up time."""

import os
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

from firth.training.collectives import World
from firth.training.processes import Group

T = TypeVar("T")


def in_threads(size: int, work: Callable[[World], T]) -> list[T]:
    """Run ``work`` in every process of a group; return the results by rank."""
    memory = os.memfd_create("test")
    pairs = [socket.socketpair() for _ in range(1, size)]
    groups = [Group(0, size, [ours for ours, _ in pairs], memory)]
    groups += [Group(rank, size, [theirs], memory) for rank, (_, theirs) in enumerate(pairs, start=1)]
    found: dict[int, T] = {}
    errors: list[BaseException] = []

    def one(group: Group) -> None:
        try:
            found[group.rank] = work(World.of(group))
        except BaseException as error:
            errors.append(error)
            for line in group.lines:
                line.close()

    threads = [threading.Thread(target=one, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for pair in pairs:
        for end in pair:
            end.close()
    os.close(memory)
    if errors:
        raise errors[0]
    return [found[rank] for rank in range(size)]
