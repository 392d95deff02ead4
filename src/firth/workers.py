"""Worker processes of a job: they ignore Ctrl-C, which their parent handles, and end when it ends."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import ParamSpec, TypeVar

from firth.errors import ConfigError

# More than one per CPU: a process may wait for the disk while another works.
WORKERS_EACH = 4
P = ParamSpec("P")
R = TypeVar("R")


def cpu_count() -> int:
    """Number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_processors(option: str, number: int, each: int = 1) -> None:
    """Raise ConfigError for more threads or processes than ``each`` times the CPUs that this process may use."""
    most = each * cpu_count()
    if number > most:
        raise ConfigError(f"{option}={number}: expected at most {most}, with {cpu_count()} processors here")


def make_pool(workers: int, start: Callable[..., None], *arguments: object) -> ProcessPoolExecutor:
    """Make a pool whose processes each call ``start(*arguments)`` first; give it work with ``submit``."""
    # Not fork: threads of the parent (the tokenizer library's, torch's) would be left half alive in the child.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, _start, (start, arguments))


def submit(pool: ProcessPoolExecutor, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
    """Like ``pool.submit``, which may start a process; Ctrl-C does not reach that process, even while it starts."""
    # A process inherits which signals are blocked.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(function, *args, **kwargs)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def kill_pool(pool: ProcessPoolExecutor) -> None:
    """Kill the processes at once: if asked to end, one would still finish the work it has already been given."""
    for process in list((pool._processes or {}).values()):
        process.kill()
    pool.shutdown(cancel_futures=True)


def _start(start: Callable[..., None], arguments: tuple[object, ...]) -> None:
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    start(*arguments)


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
