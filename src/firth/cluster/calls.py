"""Call functions as Ray tasks, each in a process of its own, with CPUs of its own; calls that die are restarted."""

import contextlib
import dataclasses
import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import firth.errors
from firth.cluster.connection import Cluster
from firth.errors import ConfigError, FirthError, TrainingError
from firth.files import lock
from firth.progress import Status

# How often a call is restarted if its process or node dies.
RETRIES = 3
# Seconds that calls may take to save and end when asked to.
_STOP_S = 120.0
# Seconds that a dead process may hold its folder, and the variable that tells a restarted call to wait for that.
_FREE_S, _AGAIN = 60.0, "FIRTH_STARTED_AGAIN"
# Seconds between checks whether the head is still alive.
_LOOK_S = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A function of a module, as ``module:name``, and its arguments, which are plain data.

    ``folder``: the folder that the function locks, as the only one to write there. ``log``: the file there, if any, to
    which it writes its progress. ``cpus``: CPUs for it alone, and its number of threads. ``gpus``: GPUs that only it
    sees. ``environment``: further variables.
    """

    function: str
    arguments: Mapping[str, Any]
    folder: Path
    log: str = ""
    cpus: int = 1
    gpus: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ended:
    """The outcome of a call: a ``value`` or a ``problem``. ``lost``: the problem is that its process or node died."""

    value: Any = None
    problem: BaseException | None = None
    lost: bool = False


def start(call: Call, **options: Any) -> Any:
    """Start a call; returns Ray's reference to its result. ``options``: further options of the Ray task."""
    import ray

    # Its process ends with it, so that nothing is left in memory for the next one. Retries are left to the caller.
    task = ray.remote(max_calls=1)(_perform).options(
        num_cpus=call.cpus, num_gpus=call.gpus, max_retries=0, name=call.function, **options
    )
    environment = {"OMP_NUM_THREADS": str(call.cpus), "OMP_WAIT_POLICY": "PASSIVE", **call.environment}
    return task.remote(call.function, dict(call.arguments), str(call.folder), os.getcwd(), environment)


def ended(reference: Any) -> Ended:
    """Return the outcome of a finished call, with the error that it raised."""
    import ray

    try:
        found = ray.get(reference)
    except ray.exceptions.TaskCancelledError:
        return Ended(problem=KeyboardInterrupt())
    except ray.exceptions.RayTaskError as error:  # it could not even start
        return Ended(problem=RuntimeError(str(error)))
    except ray.exceptions.OutOfMemoryError:
        return Ended(problem=TrainingError("its node ran out of memory, so Ray ended its process"), lost=True)
    except ray.exceptions.RayError as error:
        node = isinstance(error, (ray.exceptions.NodeDiedError, ray.exceptions.ObjectLostError))
        what = "its node was lost" if node else "its process died (was there enough memory?)"
        return Ended(problem=TrainingError(what), lost=True)
    if "value" in found:
        return Ended(found["value"])
    if found["kind"] == "KeyboardInterrupt":  # not requested from here
        return Ended(problem=TrainingError("its node shuts down"), lost=True)
    if found["kind"]:
        return Ended(problem=getattr(firth.errors, found["kind"])(found["text"]))
    return Ended(problem=RuntimeError(f"a call on a node failed:\n{found['text']}"))


def wait(references: Sequence[Any], cluster: Cluster) -> list[Any]:
    """Wait for calls to end; returns those that have ended, possibly none. TrainingError if the head is lost."""
    import ray

    done, _ = ray.wait(list(references), num_returns=1, timeout=_LOOK_S)
    if done:  # at most one, though others may have ended too
        done, _ = ray.wait(list(references), num_returns=len(references), timeout=0)
    else:
        cluster.check()
    return done


def stop(references: Sequence[Any], cluster: Cluster, show: Callable[[], None] = lambda: None) -> None:
    """Ask calls to save and end, as Ctrl-C does, and wait for them; after two minutes, or a second Ctrl-C, kill them.

    ``show``: called while waiting.
    """
    import ray

    left, give_up_s = list(references), time.monotonic() + _STOP_S
    try:
        for reference in left:
            ray.cancel(reference)
        while left and time.monotonic() < give_up_s:
            done = wait(left, cluster)
            left = [reference for reference in left if reference not in done]
            show()
    finally:
        kill(left)


def kill(references: Sequence[Any]) -> None:
    """End the processes of calls at once."""
    import ray

    for reference in references:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.cancel(reference, force=True)


class Calls:
    """Calls by name that run as soon as the cluster has CPUs for them."""

    def __init__(self, cluster: Cluster, tell: Callable[[str], None]):
        self.cluster, self.tell, self._status = cluster, tell, Status()
        self._running: dict[Any, tuple[str, Call, int]] = {}

    def start(self, name: str, call: Call) -> None:
        """Start a call, or queue it."""
        self._running[start(call)] = name, call, 0

    def next(self) -> tuple[str, Ended]:
        """Wait for the next call to end; one whose process or node died is restarted, at most RETRIES times."""
        while True:
            done = wait(list(self._running), self.cluster)[:1]
            if done:
                self._status.clear()
            else:
                self._status.show_last_of({n: c.folder / c.log for n, c, _ in self._running.values() if c.log})
            for reference in done:
                name, call, retried = self._running.pop(reference)
                found = ended(reference)
                if not found.lost or retried == RETRIES:
                    return name, found
                self.tell(f"{name}: {found.problem}; it starts again ({retried + 1} of {RETRIES})")
                again = dataclasses.replace(call, environment={**call.environment, _AGAIN: "1"})
                self._running[start(again)] = name, again, retried + 1

    def stop(self) -> None:
        """Ask all running calls to save and end."""
        self._status.clear()
        stop(list(self._running), self.cluster)
        self._running.clear()

    def values(self, calls: Mapping[str, Call]) -> Iterator[tuple[str, Any]]:
        """Run calls by name; yields name and value of each as it ends. The first error, or Ctrl-C, stops the others."""
        try:
            for name, call in calls.items():
                self.start(name, call)
            for _ in calls:
                name, found = self.next()
                if found.problem is not None:
                    raise TrainingError(f"{name}: {found.problem}") if found.lost else found.problem
                yield name, found.value
        except BaseException as error:
            if not (isinstance(error, TrainingError) and self.cluster.lost):
                self.stop()
            raise


def wait_until_free(folder: Path) -> None:
    """Wait until no process holds the lock of a folder: one that died with its node may take a moment to end.

    It gives up after a minute; whoever locks the folder next then gets the error that it is in use.
    """
    give_up_s = time.monotonic() + _FREE_S
    while folder.is_dir() and time.monotonic() < give_up_s:
        try:
            with lock(folder):
                return
        except ConfigError:
            time.sleep(0.5)


def _perform(
    function: str, arguments: dict[str, Any], folder: str, here: str, environment: dict[str, str]
) -> dict[str, Any]:
    """In a process on a node: call the function in the folder ``here``; errors are returned as data.

    They are not raised: exceptions would have to be told apart from Ray's own, and Ray would print their tracebacks.
    """
    os.environ.update(environment)
    try:
        os.chdir(here)
        if environment.get(_AGAIN):
            wait_until_free(Path(folder))
        module, _, name = function.partition(":")
        value = getattr(importlib.import_module(module), name)(**arguments)
        return {"value": value}
    except FirthError as error:
        return {"kind": type(error).__name__, "text": str(error)}
    except KeyboardInterrupt:
        return {"kind": "KeyboardInterrupt", "text": ""}
    except Exception:
        return {"kind": "", "text": traceback.format_exc()}
    finally:
        sys.stderr.flush()
