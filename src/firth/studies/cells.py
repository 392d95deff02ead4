"""A study as a table of cells: each is one piece of work in a folder of its own, done once, in any order.

Cells run in worker processes, here or on a Ray cluster; the output of each goes to ``cell.log`` in its folder. A
stopped cell resumes when the same study is started again.
"""

import contextlib
import hashlib
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from firth.cluster.calls import Call, Calls
from firth.cluster.connection import connect_to
from firth.config import read_json
from firth.errors import ConfigError, FirthError, TrainingError
from firth.files import lock, open_log, write_json
from firth.progress import Status, format_duration
from firth.workers import cpu_count, make_pool, submit

# What cells found, by their names.
Facts = Mapping[str, Any]
DONE, LOG = "cell.json", "cell.log"
FACTS = "study.json"
# Seconds between checks of the cells' progress.
_LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class StudyCell:
    """``work(folder, **options)`` returns the cell's facts (plain data); it is a function of a module, found by name.

    ``needs``: the names of the cells that must be done before it. ``prepare``: creates its inputs if they are missing,
    before any cell is started. ``alone``: it gets all CPUs, as no other cell is ready at the same time.
    """

    name: str
    work: Callable[..., dict[str, Any]]
    options: dict[str, Any]
    needs: tuple[str, ...] = ()
    prepare: Callable[[], None] | None = None
    alone: bool = False


def check_data(folder: Path) -> None:
    """Raise ConfigError if the folder of the data sets does not exist."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder (--data: the folder of the data sets)")


def check_corpus(folder: Path) -> None:
    """Raise ConfigError if a corpus made by ``make models`` does not exist."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder (made by make models)")


def run_study(
    cells: Sequence[StudyCell],
    out: Path,
    *,
    only: Sequence[str] = (),
    workers: int,
    tell: Callable[[str], None],
    on: str = "",
) -> dict[str, dict[str, Any]]:
    """Run or resume the cells whose names contain one of ``only`` (empty: all), and the cells that they need.

    ``workers``: how many run at once; 0: one per CPU. ``on``: a Ray cluster, as ``connect`` reads it.
    Returns the facts of every cell that is done, and writes them to ``out/study.json``. ConfigError if no cell has
    such a name; TrainingError at the end if some failed: the others are done, and the log of each failed one says why.
    """
    chosen = select(cells, only)
    if not chosen:
        raise ConfigError(f"--only {' '.join(only)}: no cell has such a name")
    collect_facts(cells, out / "cells")  # refuse cells made with other options now, not after hours
    for cell in chosen:
        if cell.prepare is not None:
            cell.prepare()
    done = run_cells(chosen, out / "cells", workers, tell, on)
    facts = collect_facts(cells, out / "cells")
    write_json(out / FACTS, facts)
    missing = [cell.name for cell in chosen if cell.name not in done]
    if missing:
        log = out / "cells" / missing[0] / LOG
        raise TrainingError(f"{len(missing)} cells failed or wait for one that did, such as {missing[0]}: see {log}")
    return facts


def select(cells: Sequence[StudyCell], only: Sequence[str]) -> list[StudyCell]:
    """Select the cells whose names contain one of ``only`` (empty: all), and those that they need, in order."""
    by_name = {cell.name: cell for cell in cells}
    wanted = [cell.name for cell in cells if not only or any(part in cell.name for part in only)]
    for name in wanted:  # grows during the loop
        wanted += [need for need in by_name[name].needs if need not in wanted]
    return [cell for cell in cells if cell.name in wanted]


def run_cells(
    cells: Sequence[StudyCell], out: Path, workers: int, tell: Callable[[str], None], on: str = ""
) -> dict[str, dict[str, Any]]:
    """Run the cells that are not done yet; return the facts of all by name. Failures are reported and left out.

    The cells that a cell needs are among ``cells``; if one failed, the cell is not started. ConfigError for a cell that
    was done with other options, or from other needed cells: its folder belongs to another study.
    """
    with lock(out), connect_to(on, out, tell) as cluster:
        ready = done(cells, out)
        todo = [cell for cell in cells if cell.name not in ready]
        cpus = cpu_count() if cluster is None else cluster.cpus
        workers = min(workers or cpus, max(len(todo), 1))
        tell(f"{len(cells)} cells, {len(ready)} done; {workers} at a time")
        # Each cell gets its share of the CPUs.
        share = max(cpus // workers, 1)
        if cluster is None:
            _run(todo, stamps_of(cells), workers, tell, _Processes(out, share, cpus))
        else:
            most = max(node.cpus for node in cluster.nodes())
            tasks = _Tasks(out, min(share, most), most, Calls(cluster, tell), bool(cluster.gpus))
            _run(todo, stamps_of(cells), workers, tell, tasks)
    return collect_facts(cells, out)


def collect_facts(cells: Sequence[StudyCell], out: Path) -> dict[str, dict[str, Any]]:
    """Read the facts of the cells that are done."""
    ready = done(cells, out)
    return {cell.name: read_json(out / cell.name / DONE)["facts"] for cell in cells if cell.name in ready}


def stamps_of(cells: Sequence[StudyCell]) -> dict[str, str]:
    """A hash for each cell, by name: of its options and of the hashes of the cells that it needs."""
    by_name, stamps = {cell.name: cell for cell in cells}, dict[str, str]()

    def stamp(name: str) -> str:
        if name not in stamps:
            made_of = [by_name[name].options, [stamp(need) for need in by_name[name].needs]]
            stamps[name] = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]
        return stamps[name]

    for name in by_name:
        stamp(name)
    return stamps


def done(cells: Sequence[StudyCell], out: Path) -> set[str]:
    """Return the names of the cells that are done; ConfigError if one was done with other options."""
    stamps = stamps_of(cells)
    found = set()
    for cell in cells:
        file = out / cell.name / DONE
        if not file.is_file():
            continue
        if read_json(file).get("stamp") != stamps[cell.name]:
            raise ConfigError(
                f"{file} was made with other options, or from a cell that was: choose another --out, or delete "
                f"{file.parent}"
            )
        found.add(cell.name)
    return found


class _Workers(Protocol):
    """Where cells run."""

    def start(self, cell: StudyCell, stamp: str) -> None: ...

    def next(self) -> list[tuple[StudyCell, float | BaseException]]:
        """Wait until some cells end; return the seconds that each took, or the error with which it failed."""
        ...

    def stop(self) -> None:
        """Ask the running cells to save and stop."""
        ...


def _run(
    todo: Sequence[StudyCell],
    stamps: Mapping[str, str],
    workers: int,
    tell: Callable[[str], None],
    place: _Workers,
) -> None:
    started_at_s, n_done, n_running = time.monotonic(), 0, 0
    try:
        waiting, lacking = list(todo), {cell.name for cell in todo}
        while True:
            ready = [cell for cell in waiting if lacking.isdisjoint(cell.needs)]
            for cell in ready[: workers - n_running]:
                waiting.remove(cell)
                n_running += 1
                place.start(cell, stamps[cell.name])
            if not n_running:
                break
            for cell, found in place.next():
                n_running -= 1
                n_done += 1
                left_s = (time.monotonic() - started_at_s) / n_done * (len(todo) - n_done)
                if not isinstance(found, BaseException):
                    lacking.remove(cell.name)
                state = f"failed: {found}" if isinstance(found, BaseException) else f"{format_duration(found)}"
                tell(f"[{n_done}/{len(todo)}] {cell.name}: {state}; about {format_duration(left_s)} left")
    except KeyboardInterrupt:
        place.stop()
        raise KeyboardInterrupt("the same command resumes from there") from None


class _Processes:
    """Runs cells in processes on this machine: each has ``threads`` threads, one that runs alone ``most``."""

    def __init__(self, out: Path, threads: int, most: int):
        self.out, self.threads, self.most = out, threads, most
        self._running: dict[Future[float], tuple[StudyCell, ProcessPoolExecutor]] = {}
        self._pools = list[ProcessPoolExecutor]()  # all that may have a process, listed before it starts
        self._status = Status()

    def start(self, cell: StudyCell, stamp: str) -> None:
        # Libraries read this when the process starts.
        os.environ["OMP_NUM_THREADS"] = str(self.most if cell.alone else self.threads)
        # One process per cell: memory that one leaves behind, or its being killed, does not affect the next.
        self._pools.append(pool := make_pool(1, _begin))
        self._running[submit(pool, _run_cell, cell, stamp, self.out)] = cell, pool

    def next(self) -> list[tuple[StudyCell, float | BaseException]]:
        found: list[tuple[StudyCell, float | BaseException]] = []
        while not (ended := wait(self._running, _LOOK_S, FIRST_COMPLETED).done):
            self._status.show_last_of({cell.name: self.out / cell.name / LOG for cell, _ in self._running.values()})
        self._status.clear()
        for future in ended:
            cell, pool = self._running.pop(future)
            pool.shutdown()
            self._pools.remove(pool)
            problem = future.exception()
            if isinstance(problem, BrokenProcessPool):
                problem = _killed(self.out / cell.name)
            found.append((cell, problem or future.result()))
        return found

    def stop(self) -> None:
        self._status.clear()
        _stop(self._pools)


class _Tasks:
    """Runs cells as tasks on a Ray cluster. Cells are sent as the names of their functions and their options."""

    def __init__(self, out: Path, threads: int, most: int, calls: Calls, gpu: bool):
        self.out, self.threads, self.most, self.calls, self.gpu = out, threads, most, calls, gpu
        self._running: dict[str, StudyCell] = {}

    def start(self, cell: StudyCell, stamp: str) -> None:
        self._running[cell.name] = cell
        work = f"{cell.work.__module__}:{cell.work.__qualname__}"
        arguments = {"name": cell.name, "work": work, "options": cell.options, "stamp": stamp}
        call = Call(
            function=f"{__name__}:run_cell_on_node",
            arguments={**arguments, "out": str(self.out)},
            folder=self.out / cell.name,
            log=LOG,
            cpus=self.most if cell.alone else self.threads,
            gpus=int(self.gpu),
        )
        self.calls.start(cell.name, call)

    def next(self) -> list[tuple[StudyCell, float | BaseException]]:
        name, found = self.calls.next()
        problem = _killed(self.out / name, str(found.problem)) if found.lost else found.problem
        return [(self._running.pop(name), problem or found.value)]

    def stop(self) -> None:
        self.calls.stop()


def run_cell_on_node(*, name: str, work: str, options: dict[str, Any], stamp: str, out: str) -> float:
    """Run a cell on a node of a cluster, as ``_run_cell``."""
    module, _, function = work.partition(":")
    cell = StudyCell(name, getattr(importlib.import_module(module), function), options)
    with lock(Path(out) / name):
        return _run_cell(cell, stamp, Path(out))


def _killed(folder: Path, why: str = "its process was killed: was there enough memory?") -> TrainingError:
    """Create the error for a cell whose process was killed, and write it to the cell's log."""
    problem = TrainingError(why)
    folder.mkdir(parents=True, exist_ok=True)
    with open_log(folder / LOG) as log:
        print(problem, file=log)
    return problem


def _stop(pools: Sequence[ProcessPoolExecutor]) -> None:
    """Ask the workers to save and stop."""
    for pool in pools:
        for process in list(pool._processes.values()):
            process.terminate()
    for pool in pools:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Do nothing except start the process."""


def _run_cell(cell: StudyCell, stamp: str, out: Path) -> float:
    """Run a cell, with its output and any error in its log; returns the seconds it took."""
    folder = out / cell.name
    folder.mkdir(parents=True, exist_ok=True)
    started_at_s = time.monotonic()
    with open_log(folder / LOG) as log, contextlib.redirect_stderr(log):
        try:
            facts = cell.work(folder, **cell.options)
        except FirthError as error:
            print(error, file=log)
            raise
        except Exception:
            traceback.print_exc(file=log)
            raise
    elapsed_s = round(time.monotonic() - started_at_s, 1)
    write_json(folder / DONE, {"facts": facts, "options": cell.options, "stamp": stamp, "elapsed_s": elapsed_s})
    sys.stderr.flush()
    return elapsed_s
