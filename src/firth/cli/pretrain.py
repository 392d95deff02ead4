"""``firth pretrain``."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, validators

from firth.cli import INTERRUPTED
from firth.cli.shared import (
    AtLeastOne,
    Flag,
    OnFlag,
    ProcessesFlag,
    Whole,
    counted,
    print_fill_mask_next,
    print_generate_next,
    print_json,
    shell,
)
from firth.config import to_toml
from firth.errors import ConfigError
from firth.files import check_new
from firth.progress import say
from firth.recipes import NAMED, read_recipe_file
from firth.workers import WORKERS_EACH, check_processors

if TYPE_CHECKING:
    from firth.pretraining.run import Outcome
    from firth.pretraining.several import Processes, Sharding


# Settings that ``--objective contrastive`` stands for: short crops, and many of them to tell apart.
_CONTRASTIVE = (
    'data.instances="crops"',
    "objective.contrastive=true",
    "objective.next_sentence=false",
    "data.length=64",
    "data.long_length=0",
    "data.mixed_lengths=false",
    "train.batch_tokens=8192",
)


def pretrain(
    recipe: Annotated[Path | None, Parameter(name="--recipe")] = None,
    *,
    model: str | None = None,
    vectors: str | None = None,
    corpus: str | None = None,
    out: Path | None = None,
    steps: AtLeastOne = None,
    minutes: float | None = None,
    epochs: float | None = None,
    seed: Whole | None = None,
    objective: Literal["contrastive"] | None = None,
    settings: Annotated[list[str] | None, Parameter(name="--set")] = None,
    show_recipe: Flag = False,
    resume: Path | None = None,
    replay: str | None = None,
    processes: ProcessesFlag = "auto",
    sharding: Literal["auto", "none", "full"] = "auto",
    threads: AtLeastOne = None,
    on: OnFlag = None,
    restarts: Annotated[Whole | None, Parameter(validator=validators.Number(gte=0))] = None,
) -> int:
    """Pre-train a model on a corpus.

    Ctrl-C saves a checkpoint; --resume continues bit-identically.

    Without --minutes, --epochs or --steps a run has 30 minutes, and at most 40 epochs; firth plan suggests the rest.

    Example: firth pretrain --recipe small --model bert-mini --corpus corpus/ --out runs/a --minutes 30

    Parameters
    ----------
    recipe
        Recipe file (.toml), or a name: small, with which a BERT below base size learns fastest, the default there;
        published, the papers' optimizers and losses. Flags override it.
    model
        Size such as bert-tiny, bert-mini, bert-base, lstm-small; or a model folder to continue pre-training from, also
        of another tool.
    vectors
        CoVe: word vectors, a folder made by firth vectors or a GloVe, word2vec or fastText file.
    corpus
        Corpus folder made by firth prepare; with --resume, its new location if it was moved.
    out
        Output folder for the run; must be new.
    steps
        Optimizer steps.
    minutes
        Minutes of training: the speed is measured first, and the steps that fit are stored with the run.
    epochs
        Passes over the training text.
    seed
        Random seed of initial weights, data order and dropout.
    objective
        contrastive: for sentence vectors, tell crops of the same text from crops of others; best from a pre-trained
        model (BERT).
    settings
        Any other recipe key, such as --set optim.learning_rate=5e-4; repeatable.
    show_recipe
        Print the resolved recipe with a comment for each key, and exit.
    resume
        Resume the run in this folder.
    replay
        With --resume: print sequences, labels and losses of one micro-batch (phase:epoch:group:batch) as JSON.
    processes
        Processes that share the work on a CPU. auto: one per thread, if the run is long enough.
    sharding
        Under torchrun: full divides weights, gradients and optimizer state among all processes; none keeps all of them
        in each; auto: full if a process has too little memory for all.
    threads
        CPU threads of all processes together; under torchrun, of each process.
    on
        Train on a Ray cluster: ray (RAY_ADDRESS, or this machine) or ray://HOST:10001; --processes of its CPUs or GPUs,
        by default all.
    restarts
        With --on: how often all processes restart from the last checkpoint after one died (default 3).
    """
    flags = {
        "--recipe": recipe,
        "--model": model,
        "--vectors": vectors,
        "--out": out,
        "--steps": steps,
        "--minutes": minutes,
        "--epochs": epochs,
        "--seed": seed,
        "--objective": objective,
        "--set": settings,
        "--show-recipe": show_recipe or None,
    }
    given = [name for name, value in flags.items() if value is not None]
    if resume is not None and given:
        raise ConfigError(f"--resume uses the recipe of the run: leave out {', '.join(given)}")
    if replay is not None and resume is None:
        raise ConfigError("--replay needs the run: give --resume RUN")
    if replay is not None and (processes != "auto" or sharding != "auto" or on is not None):
        raise ConfigError("--replay reads one micro-batch in one process: leave out --processes, --sharding and --on")
    if restarts is not None and on is None:
        raise ConfigError("--restarts is for a Ray cluster: give --on ray")
    if threads is not None and on is not None:
        raise ConfigError("--threads is for this machine: on a cluster each process has one CPU")
    cluster = {} if on is None else {"on": on, "restarts": 3 if restarts is None else restarts}
    if processes != "auto" and on is None:
        check_processors("--processes", processes, WORKERS_EACH)
    if threads is not None:
        check_processors("--threads", threads)
        import torch

        torch.set_num_threads(threads)
    if resume is not None:
        if replay is not None:
            return _replay(resume, replay, corpus)
        return _resume(resume, corpus, processes, sharding, cluster)
    if not show_recipe and out is None:
        raise ConfigError("--out is missing: give a new folder for the run, such as --out runs/a")
    if out is not None and not show_recipe:  # early: reading corpus and model first would take seconds
        check_new(out, resume=f"firth pretrain --resume {out}" if (out / "recipe.toml").is_file() else "")
    from firth.pretraining.length import length_settings

    keys: dict[str, str | float | None] = {
        "model": model,
        "vectors": vectors,
        "data.corpus": corpus,
        "train.seed": seed,
    }
    keys |= length_settings(minutes, epochs, steps)
    overrides = [_setting(key, value) for key, value in keys.items() if value is not None]
    overrides += list(_CONTRASTIVE if objective else ()) + (settings or [])
    return _start(recipe, model, overrides, None if show_recipe else out, processes, sharding, cluster)


def _setting(key: str, value: str | float) -> str:
    """Format a flag as ``--set`` takes it; strings are quoted as in JSON, which here is the same as in TOML."""
    return f"{key}={json.dumps(value, ensure_ascii=False)}"


def _start(
    path: Path | None,
    model: str | None,
    overrides: list[str],
    out: Path | None,
    processes: "Processes",
    sharding: "Sharding",
    cluster: dict[str, Any],
) -> int:
    """Start a new run in ``out``; without ``out``, only print its recipe on stdout."""
    from firth.pretraining import run as job
    from firth.pretraining.recipe import default_recipe

    if path is None:
        path = Path(default_recipe(model))
        if str(path) != "published":
            say(f"recipe {path}, which suits {model}; --recipe published has the paper's optimizer and losses")
    data = read_recipe_file(path)
    where = " and ".join([f"recipe {path}" if str(path) in NAMED else str(path), *(["flags"] if overrides else [])])
    recipe = job.resolve(data, overrides, where)
    if out is None:
        print(to_toml(recipe, comments=True), end="")
        return 0
    try:
        return _report(job.pretrain(recipe, out, processes=processes, sharding=sharding, **cluster))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_how_to_go_on(out)) from None


def _resume(
    run: Path, corpus: str | None, processes: "Processes", sharding: "Sharding", cluster: dict[str, Any]
) -> int:
    from firth.pretraining import run as job

    try:
        return _report(job.resume(run, corpus=corpus, processes=processes, sharding=sharding, **cluster), corpus)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_how_to_go_on(run, corpus)) from None


def _replay(run: Path, place: str, corpus: str | None) -> int:
    from firth.pretraining.replay import replay

    print_json(replay(run, place, corpus=corpus))
    return 0


def _how_to_go_on(run: Path, corpus: str | None = None) -> str:
    if not (run / "recipe.toml").is_file():
        return "nothing was written"
    return f"to resume from the last checkpoint: {_resume_command(run, corpus)}"


def _resume_command(run: Path, corpus: str | None) -> str:
    """The command that resumes a run. ``corpus``: its new location, which the run's recipe does not have."""
    return shell("firth", "pretrain", "--resume", run, *([] if corpus is None else ["--corpus", corpus]))


def _report(outcome: "Outcome", corpus: str | None = None) -> int:
    """Report how a run ended and what comes next; returns the exit code. ``corpus``: its new location, if given."""
    from firth.pretraining.run import recipe_of

    if os.environ.get("RANK", "0") != "0":  # under torchrun only the leading process reports
        return 0 if outcome.finished else INTERRUPTED
    recipe = recipe_of(outcome.run)
    if not outcome.finished:
        again = _resume_command(outcome.run, corpus)
        say(
            f"firth: interrupted: stopped after step {outcome.step} of {recipe.train.steps}; checkpoint saved; "
            f"to resume: {again}"
        )
        return INTERRUPTED
    score = "" if outcome.best is None else f", best held-out loss {outcome.best:.3f}"
    print(f"{outcome.run}: {counted(outcome.step, 'step')} done; the model is in {outcome.run / 'model'}{score}")
    if recipe.row.predict == "masked":
        print_fill_mask_next(outcome.run)
    elif recipe.system == "gpt":
        print_generate_next(outcome.run)
    elif recipe.row.predict == "translation":
        print(f"next: {shell('firth', 'translate', outcome.run)} < lines.txt")
    else:
        print(f"next: {shell('firth', 'embed', outcome.run, '--out', 'vectors.npy')} < lines.txt")
    return 0
