"""``firth compare``: compare a baseline, frozen features, fine-tuning and both together on a user's labels.

out/
├── identity.json    hashes of data and options: the same command resumes, other data is refused
├── cells/WAY/N/     one fit to N examples: run/ (a fine-tuning folder), cell.json, and cell.log if a node ran it
├── compare.json     every number of the report
├── report.html
└── model/           the winner, a model folder

The most informative cells for their time run first: the baseline at every number of labels, then all models from few
labels to all. A cell runs only if its estimated time, taken from the previous cell of its way, fits the budget. On Ray
the cells of one number of labels run in parallel.
"""

import contextlib
import dataclasses
import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firth.cluster.calls import Call, Calls
from firth.cluster.connection import Cluster, connect_to
from firth.config import read_json, read_toml
from firth.errors import ConfigError, FirthError, InputError
from firth.files import holds_something, lock, open_log, remove_folder, write_folder, write_json
from firth.finetuning.base import Base, read_base
from firth.finetuning.baseline import resolve_baseline, run_baseline
from firth.finetuning.compare_report import write_compare_report
from firth.finetuning.compare_results import compare_fits, score_fit
from firth.finetuning.estimate import estimate_s, extrapolate_s
from firth.finetuning.finetune import resume, run_resolved
from firth.finetuning.identity import IDENTITY, hash_of_base, hash_of_records
from firth.finetuning.joint import fit_joint, keep_joint
from firth.finetuning.labelled import NOT_LEARNT, LabelledData, read_labelled
from firth.finetuning.recipe import LabelledConfig
from firth.finetuning.resolve import Resolved, resolve
from firth.finetuning.results import RESULTS as RUN_RESULTS
from firth.finetuning.ways import BASELINE, KINDS, Way, recipe_of_way, settings_of_way, ways_of
from firth.manifest import MANIFEST
from firth.pretraining.run import RECIPE
from firth.progress import Status, format_duration, part_of, say, silent
from firth.systems import resolve_model
from firth.tasks.kinds import kind_of_task

RESULTS = "compare.json"
# The messages of a fit on a cluster node.
CELL_LOG = "cell.log"
# Numbers of labels on the curve, up to the size of the data; all labels come last.
SIZES = (100, 300, 1000, 3000, 10_000, 30_000)
# The least time of a model's first fit on a slow machine: with less left, none starts.
_LEAST_S = 20.0
# Keys that all ways share, which ``settings`` would change for the fine-tunings alone.
_OF_DATA = ("head.labels", "head.scheme", "head.unit")
_SHARED = ("data", "from_scratch", "kind", "metric", "model", "task", "tokenizer", *_OF_DATA)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A finished comparison: its folder and its results. ``results``: the contents of ``compare.json``."""

    out: Path
    results: dict[str, Any]


def compare(
    task: str,
    data: LabelledConfig,
    out: str | Path,
    *,
    models: Sequence[str] = (),
    minutes: float = 20.0,
    sizes: Sequence[int] = SIZES,
    settings: Mapping[str, Any] | None = None,
    verbose: bool = False,
    on: str = "",
    tell: Callable[[str], None] = say,
) -> Comparison:
    """Compare ways to learn ``task`` in folder ``out``, or resume the comparison there.

    ``settings``: further recipe keys of the fine-tunings, except those that all ways share, such as ``data``.
    ``verbose``: also print the messages of each. ``on``: a Ray cluster whose nodes share the fits, as ``connect`` reads
    it. Wrong data or options raise ConfigError or InputError before anything is written.
    """
    kind = kind_of_task(task)
    if kind not in KINDS:
        raise ConfigError(f"compare supports {', '.join(KINDS)}, not {kind}: use firth finetune and evaluate")
    if not 0 < minutes < float("inf"):
        raise ConfigError(f"--minutes {minutes}: expected more than 0")
    if shared := [key for key in settings or {} if f"{key}.".startswith(tuple(f"{other}." for other in _SHARED))]:
        raise ConfigError(
            f"--set {shared[0]}: all candidates are compared on the same data, task and models, and --set changes the "
            "fine-tunings alone: leave it out, and choose the data and models with the flags (firth compare --help)"
        )
    if settings and not models:
        raise ConfigError(f"--set {next(iter(settings))} is for fine-tunings, and without --models there are none")
    if twice := [model for model, n in Counter(models).items() if n > 1]:
        raise ConfigError(f"{twice[0]} is given twice: give each model once")
    if not data.dev and not data.folder:
        raise ConfigError("--dev is missing: the file of labelled examples that all candidates are scored on")
    for model in models:
        if model in BASELINE.values():
            raise ConfigError(f"{model} is fitted in every comparison: leave it out of the models")
        base_of_model(model)
    labelled = read_labelled(task, data, {})
    data = dataclasses.replace(data, columns=labelled.columns)
    if not labelled.dev:
        raise ConfigError(f"{data.folder} has no dev file of {task}: compare needs one")
    for way in ways_of(kind, models):  # reports a wrong setting before anything is fitted
        if settings and not way.baseline and not way.joint:
            resolve(recipe_of_way(way, task, data), settings_of_way(way, settings), "compare")
    work = _Comparing(task, data, labelled, Path(out), models, minutes * 60, sizes, settings or {}, verbose, tell)
    with lock(Path(out)), connect_to(on, Path(out), tell) as cluster:
        work.claim()
        return work.run(cluster)


def base_of_model(model: str) -> Base:
    """The base that fine-tunings of a model start from; ConfigError if there is no such model."""
    return read_base(resolve_model(model), "", from_scratch=False)


def fit_on_node(
    *,
    task: str,
    data: dict[str, Any],
    out: str,
    models: Sequence[str],
    sizes: Sequence[int],
    settings: dict[str, Any],
    way: str,
    n: int,
) -> dict[str, Any]:
    """Run one fit on a cluster node, with its messages in ``cell.log`` of its folder."""
    config = LabelledConfig(**data)
    labelled = read_labelled(task, config, {})
    work = _Comparing(task, config, labelled, Path(out), models, 0.0, sizes, settings, True, say)
    folder = work.folder(way, n)
    with (
        lock(folder),
        open_log(folder / CELL_LOG) as log,
        contextlib.redirect_stderr(log),
    ):
        return work.fit(next(one for one in work.ways if one.folder == way), n)


class _Comparing:
    """One comparison in its folder."""

    def __init__(
        self,
        task: str,
        data: LabelledConfig,
        labelled: LabelledData,
        out: Path,
        models: Sequence[str],
        budget_s: float,
        sizes: Sequence[int],
        settings: Mapping[str, Any],
        verbose: bool,
        tell: Callable[[str], None],
    ):
        self.task, self.data, self.labelled, self.out = task, data, labelled, out
        self.models, self.ways = list(models), ways_of(labelled.kind, models)
        self.budget_s, self.settings, self.verbose = budget_s, dict(settings), verbose
        # Whether the fits run on other machines, whose speed this one's does not tell.
        self.elsewhere = False
        self.status, self._tell = Status(), tell
        self.metric = labelled.metrics[0]
        self.split, self.dev = next(iter(labelled.dev.items()))
        self.n_all = len(labelled.train) + len(labelled.held)
        self.sizes = [*(n for n in sorted(set(sizes)) if n < self.n_all), self.n_all]
        self.skipped: list[str] = []
        self.spent_s = 0.0
        # Of the fits that are skipped for lack of time, as expected.
        self.skipped_s = 0.0
        # Number of all fits, and of those started here.
        self.n_fits = self.number = 0

    def tell(self, text: str) -> None:
        """Print a lasting message, in place of the status line."""
        self.status.clear()
        self._tell(text)

    def claim(self) -> None:
        """Create the folder, or resume a comparison of the same data and options in it."""
        mine = {
            "task": self.task,
            "training examples": hash_of_records(self.labelled.train, self.labelled.held),
            "dev examples": hash_of_records(self.dev),
            "data": dataclasses.asdict(self.data),
            "models": {model: hash_of_base(base_of_model(model)) for model in self.models},
            "settings": {k: str(v) for k, v in self.settings.items()},
        }
        file = self.out / IDENTITY
        if file.is_file():
            found = read_json(file)
            changed = [key for key in mine if found.get(key) != mine[key]]
            if changed and found.keys() == mine.keys():
                raise ConfigError(
                    f"{self.out} holds a comparison with other {' and '.join(changed)}: choose another --out, or "
                    "delete it"
                )
            if not changed:
                return
        if holds_something(self.out):
            raise ConfigError(f"{self.out} exists already and is not a comparison: choose another --out")
        write_json(file, mine)

    def folder(self, way: str, n: int) -> Path:
        """The folder of one fit."""
        return self.out / "cells" / way / str(n)

    def run(self, cluster: Cluster | None = None) -> Comparison:
        """Run all fits that the time allows, here or on a cluster, and keep the winner."""
        self.elsewhere = cluster is not None
        self._leave_out_small_draws()
        for note in self.labelled.notes:
            self.tell(note)
        self.tell(
            f"{self.task}: {self.n_all:,} labelled examples, {len(self.dev):,} {self.split}; "
            f"{len(self.ways)} candidate{'s' if len(self.ways) > 1 else ''}, up to {format_duration(self.budget_s)}"
        )
        cells: dict[str, dict[int, dict[str, Any]]] = {way.folder: {} for way in self.ways}
        stages = self._stages()
        self.n_fits = sum(map(len, stages))
        if cluster is None:
            stages = [[fit] for stage in stages for fit in stage]
        given_up = set[str]()
        for stage in stages:
            todo, seconds = list[tuple[Way, int]](), 0.0
            for way, n in stage:
                file = self.folder(way.folder, n) / "cell.json"
                if file.is_file():
                    cells[way.folder][n] = read_json(file)
                    seconds = max(seconds, cells[way.folder][n]["seconds"])
                    if way.joint and cells[way.folder][n].get("encoders") != self._names_of_encoders(way, n):
                        del cells[way.folder][n]  # another of its encoders has been fitted since
                if n in cells[way.folder]:
                    continue
                if way.folder not in given_up and self._fits(way, n, cells):
                    todo.append((way, n))
                else:
                    given_up.add(way.folder)
            started_at_s = time.monotonic()
            for way, n, cell in self._here(todo) if cluster is None else self._on(cluster, todo):
                cells[way.folder][n] = cell
                score = f"{self.metric} {cell['scores'][self.metric]:.4f}"
                self.tell(f"{way.name}, {n:,} labels: {score} in {cell['seconds']:.0f} s")
            # Fits that ran in parallel count once.
            self.spent_s += max(seconds, time.monotonic() - started_at_s if todo else 0.0)
        self.status.clear()
        names = {way.folder: way.name for way in self.ways}
        largest = self.folder("baseline", max(cells["baseline"])) / "run"
        results = compare_fits(self.task, self.labelled, names, cells, self.skipped, largest)
        for note in results["notes"][len(self.labelled.notes) :]:
            self.tell(note)
        results["pairs"] = self.labelled.has_pairs
        results["minutes_for_all"] = minutes = self._minutes_for_all()
        if minutes is not None:
            self.tell(f"with --minutes {minutes} the same command does what was skipped, and keeps what is done")
        self._keep(results["winner"], cells)
        write_json(self.out / RESULTS, results)
        try:
            write_compare_report(self.out, results)
        except (FirthError, OSError) as error:
            self.tell(f"no report.html: {error}")
        return Comparison(self.out, results)

    def _leave_out_small_draws(self) -> None:
        """Leave out numbers of labels whose sample has one label only; a sample that lacks some is noted."""
        for n in self.sizes[:-1]:
            try:
                some = read_labelled(self.task, dataclasses.replace(self.data, limit=n), {})
                rare = [note for note in some.notes if note.startswith(NOT_LEARNT) and note not in self.labelled.notes]
                self.labelled.notes.extend(f"with {n:,} labels: {note}" for note in rare)
            except InputError:
                self.sizes.remove(n)
                self.skipped.append(f"all candidates with {n:,} labels: the sample has one label only, or one example")
                self.tell(f"skipped: {self.skipped[-1]}")

    def _stages(self) -> list[list[tuple[Way, int]]]:
        """All fits in order; those of one stage do not depend on each other.

        The baseline is cheap at all numbers of labels. Every model is fitted to few labels before any is to many.
        """
        baseline, *models = self.ways
        stages = [[(baseline, n) for n in self.sizes]]
        for n in self.sizes:
            stages += [[(way, n) for way in models if way.joint == joint] for joint in (False, True)]
        return stages

    def _fits(self, way: Way, n: int, cells: Mapping[str, Mapping[int, dict[str, Any]]]) -> bool:
        """Whether there is time for a fit; if not, says why, which holds for all larger fits of its way too."""
        missing = self._missing(way, n, cells)
        left_s = self.budget_s - self.spent_s
        expected_s = self._expected_s(way, n, cells)
        # The baseline's first fit always runs: without it there is nothing to compare with.
        if not missing and (expected_s <= left_s or (way.baseline and not cells[way.folder])):
            return True
        sizes = [size for size in self.sizes if size >= n]
        why = missing or f"about {format_duration(expected_s)} for the first of them, {format_duration(left_s)} left"
        self.skipped.append(f"{way.name} with {', '.join(f'{size:,}' for size in sizes)} labels: {why}")
        self.skipped_s += sum(self._expected_s(way, size, cells) for size in sizes)
        self.tell(f"skipped: {self.skipped[-1]}")
        return False

    def _expected_s(self, way: Way, n: int, cells: Mapping[str, Mapping[int, dict[str, Any]]]) -> float:
        """Estimate the time of a fit.

        For a joint model the baseline is fitted again, each encoder reads the held-out examples, and one the dev file.
        """
        if way.joint:
            way, encoders = self.ways[0], [other.folder for other in self._encoders_of(way)]
            each_s = [cells[other][n]["predict_ms"] / 1000 for other in encoders if n in cells[other]]
            read_s = sum(each_s) * len(self.labelled.held) * n / self.n_all + max(each_s, default=0.0) * len(self.dev)
            if n in cells[way.folder]:
                return float(cells[way.folder][n]["seconds"]) + read_s
        if done := cells[way.folder]:
            return extrapolate_s(n, done, same_epochs=not way.baseline and "train.epochs" in self.settings)
        if way.baseline:
            return 0.0
        return _LEAST_S if self.elsewhere else max(_LEAST_S, estimate_s(self._resolve(way, n)))

    def _minutes_for_all(self) -> int | None:
        """The budget that would be enough for every fit, finished ones included; None if none lacks time.

        Not of a cluster, whose nodes fit several at once.
        """
        return math.ceil((self.spent_s + self.skipped_s) / 60) if self.skipped_s and not self.elsewhere else None

    def _here(self, fits: Sequence[tuple[Way, int]]) -> Iterator[tuple[Way, int, dict[str, Any]]]:
        """Run fits one after the other; yields each with its cell."""
        for way, n in fits:
            self.number += 1
            what = f"training run {self.number} of {self.n_fits}: {way.name}, {n:,} labels"
            started_at_s = time.monotonic()

            def show(line: str, what: str = what, started_at_s: float = started_at_s) -> None:
                left_s = max(self.budget_s - self.spent_s - (time.monotonic() - started_at_s), 0.0)
                left = f"at most {format_duration(left_s)} left" if left_s else "time is up: the last training run"
                self.status.show(f"{what}  {left}  {line}")

            try:
                with contextlib.nullcontext() if self.verbose else part_of(show):
                    cell = self.fit(way, n)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(self._to_resume()) from None
            yield way, n, cell

    def _on(self, cluster: Cluster, fits: Sequence[tuple[Way, int]]) -> Iterator[tuple[Way, int, dict[str, Any]]]:
        """Run fits as tasks of a cluster; yields each with its cell as it ends."""
        if not fits:
            return
        # Each takes its share of the CPUs.
        cpus = min(max(cluster.cpus // len(fits), 1), max(node.cpus for node in cluster.nodes()))
        common = {
            "task": self.task,
            "data": dataclasses.asdict(self.data),
            "out": str(self.out),
            "models": self.models,
            "sizes": self.sizes,
            "settings": self.settings,
        }
        by_name = {f"{way.name}, {n:,} labels": (way, n) for way, n in fits}
        calls = {
            name: Call(
                function=f"{__name__}:{fit_on_node.__name__}",
                arguments={**common, "way": way.folder, "n": n},
                folder=self.folder(way.folder, n),
                log=CELL_LOG,
                cpus=cpus,
                gpus=int(cluster.gpus > 0 and not way.baseline and not way.joint),
            )
            for name, (way, n) in by_name.items()
        }
        try:
            for name, cell in Calls(cluster, self.tell).values(calls):
                yield *by_name[name], cell
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._to_resume()) from None

    def _to_resume(self) -> str:
        return f"finished training runs are kept: the same command resumes in {self.out}"

    def fit(self, way: Way, n: int) -> dict[str, Any]:
        """Run one fit, score it on the dev examples, and store its cell."""
        folder = self.folder(way.folder, n)
        started_at_s = time.monotonic()
        self._fit(way, n, folder / "run")
        cell = score_fit(folder / "run", self.labelled.kind, self.dev)
        cell |= {"way": way.name, "labels": n, "seconds": time.monotonic() - started_at_s}
        if way.joint:
            cell["encoders"] = self._names_of_encoders(way, n)
        cell["notes"] = [] if way.joint else read_json(folder / "run" / RUN_RESULTS)["notes"]
        if not way.baseline and not way.joint:
            train = read_toml(folder / "run" / RECIPE)["train"]
            cell["epochs"] = train["epochs"] * train["seeds"]
            # A stop may have come between a run's beginning and this cell.
            trained_s = sum(run["elapsed_s"] for run in read_json(folder / "run" / RUN_RESULTS)["runs"])
            cell["seconds"] = max(cell["seconds"], trained_s)
        write_json(folder / "cell.json", cell)
        return cell

    def _missing(self, way: Way, n: int, cells: Mapping[str, Mapping[int, dict[str, Any]]]) -> str:
        """What a joint model lacks, in words; empty if nothing."""
        if not way.joint:
            return ""
        if n not in cells["baseline"]:
            return "the baseline was not trained on so many"
        return "" if self._encoders(way, n) else "neither of its models was trained on so many"

    def _encoders_of(self, way: Way) -> list[Way]:
        """The ways whose models a joint one may have as its encoder."""
        return [other for other in self.ways if other.model == way.model and not other.joint and not other.baseline]

    def _encoders(self, way: Way, n: int) -> list[Path]:
        """The finished runs of a joint model's encoder with ``n`` labels."""
        runs = [self.folder(other.folder, n) / "run" for other in self._encoders_of(way)]
        return [run for run in runs if (run.parent / "cell.json").is_file()]

    def _names_of_encoders(self, way: Way, n: int) -> list[str]:
        return [str(run.relative_to(self.out)) for run in self._encoders(way, n)]

    def _fit(self, way: Way, n: int, run: Path) -> None:
        recipe = self._recipe(way, n)
        tell = self.tell if self.verbose else silent
        if not way.baseline and not way.joint and (run / RECIPE).is_file() and (run / IDENTITY).is_file():
            resume(run, tell=tell)
            return
        if run.exists():
            remove_folder(run)
        run.parent.mkdir(parents=True, exist_ok=True)
        if way.baseline:
            run_baseline(resolve_baseline(recipe, {}, "compare"), run, tell=tell)
        elif way.joint:
            self._fit_joint(way, n, run, recipe)
        else:
            run_resolved(self._resolve(way, n), run, tell=tell)

    def _recipe(self, way: Way, n: int) -> dict[str, Any]:
        limit = 0 if n == self.n_all and not self.data.limit else n
        return recipe_of_way(way, self.task, dataclasses.replace(self.data, limit=limit))

    def _resolve(self, way: Way, n: int) -> Resolved:
        return resolve(self._recipe(way, n), settings_of_way(way, self.settings), "compare")

    def _fit_joint(self, way: Way, n: int, run: Path, recipe: dict[str, Any]) -> None:
        data = LabelledConfig(**recipe["data"])
        baseline = self.folder("baseline", n) / "run"
        fitted = fit_joint(baseline, self._encoders(way, n), read_labelled(self.task, data, {}))
        members = {"baseline": baseline, "encoder": fitted.encoder}
        origin = {name: str(path.relative_to(self.out)) for name, path in members.items()}
        keep_joint(run / "model", fitted, baseline, {"recipe": recipe, "members": origin})

    def _keep(self, winner: str, cells: Mapping[str, Mapping[int, dict[str, Any]]]) -> None:
        source = self.folder(winner, max(cells[winner])) / "run" / "model"

        def copy(new: Path) -> None:
            shutil.copytree(source, new, dirs_exist_ok=True)
            (new / MANIFEST).unlink(missing_ok=True)

        write_folder(self.out / "model", copy)
