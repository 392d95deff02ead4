"""``firth finetune``: train over seeds and settings on labelled examples, keep the best model, score it once.

All choices (step, settings, seed, temperature, threshold) are made on held-out training examples; the dev
file is scored once for each model of the chosen settings: that of each seed, or their average.

out/
├── recipe.toml      resolved
├── adapted/         with adapt.text: continued pre-training on it, which comes first
├── runs/…           one folder per run: log.jsonl, result.json, scores.json; its model until the best is chosen;
│                    run.log if a cluster node ran it
├── model/           of the best run, with fitted temperature or threshold
├── results.json     every score
└── report.html
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firth.baseline.model import Baseline
from firth.cluster.connection import connect_to
from firth.config import read_json, read_toml, to_dict, to_toml
from firth.errors import CheckpointError, ConfigError
from firth.files import check_new, lock, nearest, write_json, write_text
from firth.finetuning.identity import IDENTITY
from firth.finetuning.recipe import Finetune
from firth.finetuning.resolve import Resolved, resolve
from firth.finetuning.results import RESULTS
from firth.finetuning.runs import Runs, resolve_stored
from firth.inference.loading import load
from firth.inference.model import Model
from firth.machine import deterministic
from firth.pretraining.run import RECIPE
from firth.pretraining.several import Processes
from firth.progress import say
from firth.recipes import Settings, plain_of


@dataclass(frozen=True, slots=True)
class Finetuned:
    """A finished fine-tuning: its folder, and in ``results`` the contents of ``results.json``."""

    out: Path
    results: dict[str, Any]

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """Every score, by dev split; held-out examples under ``"held_out"``.

        Means over the seeds; for averaged seeds, the scores of the averaged model.
        """
        splits = {**self.results["dev"], "held_out": self.results["held_out"]}
        return {split: {name: score["mean"] for name, score in found.items()} for split, found in splits.items()}

    @property
    def model(self) -> Model | Baseline:
        """Load the kept model: the best run's, or the averaged one."""
        return load(self.out)


def finetune(
    recipe: Finetune | Mapping[str, Any] | str | Path | None = None,
    out: str | Path | None = None,
    tell: Callable[[str], None] = say,
    *,
    task: str | None = None,
    model: str | Path | None = None,
    train: str | Path | None = None,
    dev: str | Path | None = None,
    data: str | Path | None = None,
    seeds: int | None = None,
    settings: Settings = (),
    processes: Processes = "auto",
    on: str = "",
) -> Finetuned:
    """Fine-tune ``model`` for ``task`` on labelled examples, in the new folder ``out``.

    ``train`` and ``dev``: your own files; ``data``: the folder of a published data set that ``task`` names.
    ``settings``: any other key of the recipe, such as ``{"optim.learning_rate": 1e-4}``. ``recipe``: a TOML file or a
    recipe object that all other arguments override. ConfigError and InputError come before anything is written;
    KeyboardInterrupt if asked to stop: ``firth.finetuning.finetune.resume`` resumes. ``model`` may be a baseline:
    ``"tfidf"`` or ``"commonest-tag"`` (``firth.finetuning.baseline``). ``processes``: how many share the work on a CPU;
    auto: one for each thread, where a run is long enough. ``on``: a Ray cluster whose nodes share the runs, "ray" or
    "ray://HOST:10001".
    """
    if out is None:
        raise ConfigError("out is missing: give a new folder for the fine-tuning")
    arguments = {
        "task": task,
        "model": model,
        "data.train": train,
        "data.dev": dev,
        "data.folder": data,
        "train.seeds": seeds,
    }
    plain, where = plain_of(recipe, arguments)
    # Imported here, because it returns a class that this module defines.
    from firth.finetuning.baseline import names_baseline, resolve_baseline, run_baseline

    if names_baseline(plain, settings):
        return run_baseline(resolve_baseline(plain, settings, where), out, tell)
    return run_resolved(resolve(plain, settings, where), out, tell, processes=processes, on=on)


def run_resolved(
    resolved: Resolved,
    out: str | Path,
    tell: Callable[[str], None] = say,
    *,
    processes: Processes = "auto",
    on: str = "",
) -> Finetuned:
    """Run a fine-tuning from a resolved recipe."""
    out = Path(out)
    # A folder without a recipe was left by a start that was killed; it holds nothing of value.
    check_new(out, resume=f"firth finetune --resume {out}" if (out / RECIPE).is_file() else "", but=IDENTITY)
    with lock(out), connect_to(on, out, tell) as cluster, deterministic():
        work = Runs(resolved, out, tell, cluster)
        work.check(processes)
        # The recipe is written last: its presence means that the fine-tuning can resume.
        try:
            plain = to_dict(work.recipe)
            write_json(out / IDENTITY, work.identity(plain))
            write_text(out / RECIPE, to_toml(work.recipe, comments=True))
        except BaseException:
            if not (out / RECIPE).is_file():
                (out / IDENTITY).unlink(missing_ok=True)
            raise
        return Finetuned(out, work.run())


def resume(
    out: str | Path, tell: Callable[[str], None] = say, *, processes: Processes = "auto", on: str = ""
) -> Finetuned:
    """Resume a fine-tuning: finished runs are kept, the stopped one resumes from its checkpoint."""
    out = Path(out)
    if not out.exists():
        raise ConfigError(f"{out}: no such folder; {nearest(out) or 'give the folder of a fine-tuning'}")
    if not (out / RECIPE).is_file() or not (out / IDENTITY).is_file():
        if (out / RESULTS).is_file():
            raise ConfigError(f"{out} is a finished baseline: there is nothing to resume")
        if (out / RECIPE).is_file() and "task" not in read_toml(out / RECIPE):
            raise ConfigError(f"{out} is a pre-training run: resume it with firth pretrain --resume {out}")
        raise ConfigError(f"{out} is not a fine-tuning: it has no {RECIPE} with an {IDENTITY}")
    plain = read_toml(out / RECIPE)
    for name in ("folder", "train", "dev"):
        if (path := plain["data"].get(name)) and not Path(path).exists():
            raise ConfigError(f"{path}: no such file; paths are relative to where {out} began: resume it there")
    resolved = resolve_stored(out)
    with lock(out), connect_to(on, out, tell) as cluster, deterministic():
        work = Runs(resolved, out, tell, cluster)
        now = work.identity(plain)
        found = read_json(out / IDENTITY)
        changed = [key for key in now if found.get(key) != now[key]]
        if changed:
            raise CheckpointError(f"{out}: {' and '.join(changed)} changed since the run began: start a new one")
        work.check(processes)
        return Finetuned(out, work.run())
