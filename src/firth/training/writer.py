"""Write checkpoints in a thread while training continues."""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

_Result = TypeVar("_Result")

# Copies are made only if this many times their size is free: the step that follows needs memory too.
_ROOM = 2.0
# The best model and a checkpoint of the same step may wait together.
_WAITING = 2


class BackgroundWriter:
    """Runs write jobs in order, in one thread. ``close`` waits for all of them.

    A job works on copies: training changes the originals. The error of a job is raised by the next call.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="firth-checkpoint")
        self._jobs: deque[Future[Any]] = deque()

    def submit(self, job: Callable[[], _Result]) -> Future[_Result]:
        """Queue a job; waits while two are unfinished, which bounds the memory of copies."""
        self._finish(_WAITING - 1)
        future = self._pool.submit(job)
        self._jobs.append(future)
        return future

    def check(self) -> None:
        """Raise the error of a finished job, if there is one. Does not wait."""
        while self._jobs and self._jobs[0].done():
            self._jobs.popleft().result()

    def close(self) -> None:
        """Wait until everything is written; raises the first error."""
        try:
            self._finish(0)
        finally:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _finish(self, left: int) -> None:
        while len(self._jobs) > left:
            self._jobs.popleft().result()


def room_for_copies(tensors: Iterable[Tensor], free: float | None) -> bool:
    """Whether copies of the tensors fit into ``free`` bytes of host memory, with room to train; None: unknown."""
    return free is None or _ROOM * sum(t.numel() * t.element_size() for t in tensors) <= free


def copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the host. Tied tensors, which share memory, share one copy."""
    made: dict[tuple[int, torch.Size, tuple[int, ...]], Tensor] = {}
    found = {}
    for name, t in tensors.items():
        key = (t.data_ptr(), t.shape, t.stride())
        if key not in made or not t.numel():
            made[key] = t.detach().to("cpu", copy=True)
        found[name] = made[key]
    return found
