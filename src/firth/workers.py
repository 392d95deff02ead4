"""Worker processes of a job: they ignore Ctrl-C, which their parent handles, and end when it ends.

Little text is read without any: it is done before they would have started.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import ParamSpec, TypeVar

from firth.errors import ConfigError

# More than one per CPU: a process may wait for the disk while another works.
WORKERS_EACH = 4
# Text (bytes on disk) that one process has read in the time in which others start.
LITTLE_TEXT = 2_000_000
P = ParamSpec("P")
R = TypeVar("R")


def cpu_count() -> int:
    """Number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_processors(option: str, number: int, each: int = 1) -> None:
    """Raise ConfigError for no threads or processes, or more than ``each`` times the CPUs that this process may use."""
    if number < 1:
        raise ConfigError(f"{option}={number} is not possible; pass 1 or more")
    most = each * cpu_count()
    if number > most:
        raise ConfigError(f"{option}={number}: expected at most {most}, with {cpu_count()} processors here")


def make_pool(workers: int, start: Callable[..., None], *arguments: object) -> ProcessPoolExecutor:
    """Make a pool whose processes each call ``start(*arguments)`` first; give it work with ``submit``."""
    # Not fork: threads of the parent (the tokenizer library's, torch's) would be left half alive in the child.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, _start, (workers, start, arguments))


class ThisProcess(Executor):
    """Does work at once, in the process that submits it."""

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
        """Do the work; an error of it is that of the future."""
        future: Future[R] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def make_pool_for_text(n_bytes: int, workers: int, start: Callable[..., None], *arguments: object) -> Executor:
    """Like ``make_pool``, for text of ``n_bytes`` on disk; this process alone if it is little, or for one worker."""
    if workers > 1 and n_bytes >= LITTLE_TEXT:
        return make_pool(workers, start, *arguments)
    start(*arguments)
    return ThisProcess()


def submit(pool: Executor, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
    """Like ``pool.submit``, which may start a process; Ctrl-C does not reach that process, even while it starts.

    Work of this process is finished before Ctrl-C stops it.
    """
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


def _start(workers: int, start: Callable[..., None], arguments: tuple[object, ...]) -> None:
    if workers > 1:  # the tokenizer library would start as many threads in each
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    start(*arguments)


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
