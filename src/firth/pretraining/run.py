"""``firth pretrain``: start, resume and replay pre-training runs."""

import contextlib
import dataclasses
import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch

from firth.config import override, read_toml, to_toml
from firth.data.loader import Loader, Place
from firth.data.shards import Corpus
from firth.errors import ConfigError, FirthError, InputError
from firth.files import check_new, lock, nearest, remove_folder, write_text
from firth.folder import Loaded, read_model
from firth.machine import Machine, deterministic, find_machine, give_back, reuse_memory
from firth.pretraining.assembly import LONG_RUN_STEPS, assemble, make_dev_loader, weights_of
from firth.pretraining.length import Pace, describe_length, is_sized, length_settings, with_steps
from firth.pretraining.recipe import (
    Pretrain,
    default_recipe,
    read_recipe,
    read_resolved_recipe,
    without_sizes,
)
from firth.pretraining.report import write_run_report
from firth.pretraining.several import Processes, Sharding, check_sharding, count_processes, for_processes, with_sharding
from firth.progress import say, silent
from firth.recipes import Settings, plain_of
from firth.remote import is_address
from firth.systems import has_weights
from firth.training.checkpoint import has_begun
from firth.training.collectives import World, any_rank, barrier, join_world, leave_world, sum_over_ranks
from firth.training.processes import start_group
from firth.training.trainer import Trainer

RECIPE = "recipe.toml"
WORKER = "firth.pretraining.worker"
# Seconds to measure a run's speed for each sequence length, after a warm-up step.
_MEASURE_S = 4.0
_FEWEST_MEASURED = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run. ``finished``: False if the run was asked to stop; it can then be resumed.

    ``asked_to_stop``: also if that was in the last step; then whatever would follow should not begin.
    """

    run: Path
    finished: bool
    step: int
    best: float | None
    asked_to_stop: bool = False

    @property
    def model(self) -> Loaded:
        """The best model so far, read by ``firth.folder.read_model``."""
        return read_model(self.run)


def resolve(data: Mapping[str, Any], settings: Settings, where: str) -> Pretrain:
    """Complete a recipe with everything that follows from the corpus and the model."""
    tables = override(dict(data), settings).get("data")
    if tables is not None and not isinstance(tables, dict):
        raise ConfigError(f"{where}: data must be a table of keys, not {tables!r}")
    folder = tables.get("corpus") if tables else None
    if not folder:
        raise ConfigError(f"{where}: data.corpus is missing: give --corpus, a folder made by firth prepare")
    corpus = Corpus(str(folder))
    recipe = read_recipe(data, settings, where, vocab_size=corpus.tokenizer.size)
    n_tokens = sum(info.tokens for info in corpus.shards("train"))
    if n_tokens < recipe.data.length and not corpus.is_parallel:
        raise InputError(
            f"{corpus.folder} has {n_tokens:,} tokens of training text, and one sequence reads "
            f"{recipe.data.length:,} (data.length): nothing can be learned from so few; prepare more text"
        )
    return recipe


def pretrain(
    recipe: Pretrain | Mapping[str, Any] | str | Path | None = None,
    out: str | Path | None = None,
    tell: Callable[[str], None] = say,
    *,
    model: str | Path | None = None,
    corpus: str | Path | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    epochs: float | None = None,
    settings: Settings = (),
    processes: Processes = "auto",
    sharding: Sharding = "auto",
    on: str = "",
    restarts: int = 3,
) -> Outcome:
    """Pre-train ``model``, a size such as bert-mini or a model folder, on a prepared corpus, in the new folder ``out``.

    ``steps``, ``minutes`` or ``epochs``: length of the run. For minutes the speed is measured first, and the steps that
    fit are stored with the run. Without any of them, here or in the recipe, a run takes 30 minutes and at most 40
    epochs. ``settings``: any other key of the recipe, such as ``{"optim.learning_rate": 1e-3}``. ``recipe``: a TOML
    file, a name ("small", "published") or a recipe object, which all of these override; None: "small" for a BERT below
    base size, else "published". ``processes``: how many share the work on a CPU; auto: one per thread, if the run is
    long enough. ``sharding``: under torchrun, full divides weights, gradients and optimizer state among all processes;
    auto: only if one of them lacks the memory for all. ``on``: a Ray cluster, "ray" or "ray://HOST:10001", on which
    ``processes`` train, one per CPU or GPU; ``restarts``: how often they may restart when one dies.
    """
    if out is None:
        raise ConfigError("out is missing: give a new folder for the run")
    arguments = {"model": model, "data.corpus": corpus, **length_settings(minutes, epochs, steps)}
    if not isinstance(recipe, Pretrain) or settings or any(value is not None for value in arguments.values()):
        own = default_recipe(str(model)) if recipe is None else recipe
        plain, where = plain_of(own, arguments)
        recipe = resolve(without_sizes(plain_of(own, {})[0], plain), settings, where)
    run = Path(out)
    check_new(run, resume=f"firth pretrain --resume {run}" if (run / RECIPE).is_file() else "")
    return _run(recipe, run, tell, processes, sharding, on, restarts)


def resume(
    run: str | Path,
    tell: Callable[[str], None] = say,
    *,
    corpus: str | Path | None = None,
    processes: Processes = "auto",
    sharding: Sharding = "auto",
    on: str = "",
    restarts: int = 3,
) -> Outcome:
    """Resume a run from its newest undamaged checkpoint, bit-equal to an uninterrupted run.

    ``corpus``: the corpus's new path, if it was moved. ``processes``: by default as many as before, if possible.
    ``sharding``, ``on`` and ``restarts``: as in ``pretrain``, whatever they were before.
    """
    run = Path(run)
    return _run(recipe_at(run, corpus), run, tell, processes, sharding, on, restarts)


def pretrain_or_resume(
    run: Path,
    recipe: Callable[[], Pretrain],
    tell: Callable[[str], None] = say,
    processes: Processes = "auto",
    corpus: Path | None = None,
) -> Outcome:
    """Resume a run that is a part of larger work, or start it, calling ``recipe`` only then.

    ``corpus``: the corpus's path, if it moves with the larger work's folder. KeyboardInterrupt if asked to stop.
    """
    if (run / RECIPE).is_file():
        outcome = resume(run, tell, corpus=corpus, processes=processes)
    else:
        remove_folder(run)  # killed before its first checkpoint
        outcome = pretrain(recipe(), run, tell, processes=processes)
    if not outcome.finished or outcome.asked_to_stop:
        raise KeyboardInterrupt
    return outcome


def recipe_at(run: Path, corpus: str | Path | None) -> Pretrain:
    """Read the resolved recipe of a run. ``corpus``: the corpus's new path, if it was moved."""
    recipe = recipe_of(run)
    if corpus is not None:
        return dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, corpus=str(corpus)))
    if not (is_address(recipe.data.corpus) or Path(recipe.data.corpus).exists()):
        raise ConfigError(f"{recipe.data.corpus}: the run's corpus is not there: give its new place with --corpus")
    return recipe


def recipe_of(run: Path) -> Pretrain:
    """Read the resolved recipe of a run."""
    if not run.exists():
        raise ConfigError(f"{run}: no such folder; {nearest(run) or 'give the folder of a run'}")
    if not (run / RECIPE).is_file():
        raise ConfigError(f"{run} is not a run: it has no {RECIPE}")
    plain = read_toml(run / RECIPE)
    if "task" in plain:
        raise ConfigError(f"{run} is a fine-tuning: resume it with firth finetune --resume {run}")
    return read_resolved_recipe(plain, str(run / RECIPE))


def _run(
    recipe: Pretrain,
    run: Path,
    tell: Callable[[str], None],
    processes: Processes,
    sharding: Sharding,
    on: str,
    restarts: int,
) -> Outcome:
    if sharding not in get_args(Sharding):
        raise ConfigError(f"sharding={sharding!r}: expected {', '.join(map(repr, get_args(Sharding)))}")
    if restarts < 0:
        raise ConfigError(f"restarts={restarts}: expected 0 or more")
    if not on:
        return run_recipe(recipe, run, tell, processes, sharding)
    # Imported here because that module's ranks run what this one defines.
    from firth.pretraining.on_cluster import train_on_cluster

    return train_on_cluster(recipe, run, on, tell, processes=processes, sharding=sharding, restarts=restarts)


def run_recipe(
    recipe: Pretrain, run: Path, tell: Callable[[str], None], processes: Processes, sharding: Sharding
) -> Outcome:
    """Start or resume a run in this process: as one that torchrun or Ray started, or with processes of its own."""
    world = join_world()
    reuse_memory()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(lock(run) if world.leads else contextlib.nullcontext())
            n_threads = 0
            if world.size == 1:
                check_sharding(sharding)
                n = count_processes(recipe, run, processes)
                recipe, n_threads = for_processes(recipe, n), max(torch.get_num_threads() // n, 1)
                if not is_sized(recipe):
                    message = {"recipe": to_toml(recipe), "run": str(run), "threads": n_threads, "measure": True}
                    with start_group(n, WORKER, message) as group:
                        recipe = sized(recipe, run, World.of(group), tell, n_threads=n_threads)
                message = {"recipe": to_toml(recipe), "run": str(run), "threads": n_threads}
                world = World.of(stack.enter_context(start_group(n, WORKER, message)))
            elif processes != "auto":
                raise ConfigError(f"--processes {processes}: torchrun has started the processes; leave it out")
            else:
                recipe = for_processes(recipe, world.size)
                world = with_sharding(recipe, world, sharding, tell)
                if not is_sized(recipe):
                    recipe = sized(recipe, run, world, tell)
            return train(recipe, run, world, tell, n_threads=n_threads)
    finally:
        leave_world()


def sized(recipe: Pretrain, run: Path, world: World, tell: Callable[[str], None], *, n_threads: int = 0) -> Pretrain:
    """Set the number of steps that fit the recipe's minutes or epochs; runs in each process."""
    pace = measure_pace(recipe, run, world, n_threads=n_threads, seconds=_MEASURE_S)
    # Or what measuring used would count as used by another program.
    gc.collect()
    give_back()
    resolved = with_steps(recipe, pace)
    # Each process has measured its own speed: all use the leading one's, or they would evaluate at different steps.
    ours = {name: float(getattr(resolved.train, name)) * world.leads for name in ("steps", "eval_every", "save_every")}
    length: dict[str, Any] = {name: int(value) for name, value in sum_over_ranks(ours, world).items()}
    resolved = dataclasses.replace(resolved, train=dataclasses.replace(resolved.train, **length))
    if world.leads:
        tell(describe_length(resolved, pace, recipe))
    return resolved


def measure_pace(recipe: Pretrain, run: Path, world: World, *, n_threads: int = 0, seconds: float) -> Pace:
    """Measure the speed of a recipe by a few steps from random weights, which are discarded.

    ``seconds``: time for each sequence length, after a warm-up step. Nothing is written.
    """
    # The learning rate of the first step is that of a long run.
    long = dataclasses.replace(
        recipe, train=dataclasses.replace(recipe.train, steps=LONG_RUN_STEPS, minutes=0.0, epochs=0.0)
    )
    with deterministic(), _threads(n_threads):
        machine = find_machine(recipe.train.precision)
        trainer, loader = assemble(long, run, machine, world, silent, measured=True)
        shares = [1.0] if len(recipe.data.lengths) == 1 else [1 - recipe.data.long_share, recipe.data.long_share]
        found = [_pace(trainer, loader, phase, seconds) for phase in range(len(shares))]
        return Pace(
            step_s=sum(share * step_s for share, (step_s, _) in zip(shares, found, strict=True)),
            step_tokens=sum(share * tokens for share, (_, tokens) in zip(shares, found, strict=True)),
            epoch_steps=loader.epoch_batches() / recipe.train.slots,
            dev_batches=math.ceil(make_dev_loader(recipe, loader.corpus).epoch_batches()),
        )


def _pace(trainer: Trainer, loader: Loader, phase: int, seconds: float) -> tuple[float, float]:
    """Seconds and tokens per step in a phase of the data, over all processes."""
    world = trainer.world
    spent_s, tokens, n = 0.0, 0, 0
    steps = loader.steps(Place(phase=phase), step=0, rank=world.rank, world=world.size)
    with contextlib.closing(steps):
        trainer.train_step(next(steps)[0])
        while n < _FEWEST_MEASURED or not any_rank(spent_s > seconds, world):
            started_at_s = time.monotonic()
            batches, _ = next(steps)
            trainer.train_step(batches)
            spent_s += time.monotonic() - started_at_s
            tokens += sum(batch.n_tokens for batch in batches)
            n += 1
    return spent_s / n, sum_over_ranks({"tokens": float(tokens)}, world)["tokens"] / n


def train(recipe: Pretrain, run: Path, world: World, tell: Callable[[str], None], *, n_threads: int = 0) -> Outcome:
    """Run the training in each process. ``n_threads``: compute threads; 0: unchanged."""
    with deterministic(), _threads(n_threads):
        machine = find_machine(recipe.train.precision)
        # Before the first complete checkpoint, starting over from the recipe loses nothing.
        new = not has_begun(run)
        trainer, _ = assemble(recipe, run, machine, world, tell if world.leads else silent)
        if world.leads:
            _describe(recipe, trainer, machine, tell)
        barrier(world)
        if new:
            if world.leads:
                write_text(run / RECIPE, to_toml(recipe, comments=True))
            trainer.begin(score=has_weights(recipe.model))
        else:
            trainer.resume(partial(weights_of, trainer.objective, recipe))
            if world.leads:
                tell(f"resuming {run} at step {trainer.state.step} of {recipe.train.steps}")
        finished = trainer.fit()
        if world.leads and finished:
            _report(run, recipe, tell)
    return Outcome(run, finished, trainer.state.step, trainer.state.best, trainer.asked_to_stop)


@contextlib.contextmanager
def _threads(n: int) -> Iterator[None]:
    """A context with ``n`` compute threads; 0: unchanged."""
    before = torch.get_num_threads()
    torch.set_num_threads(n or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _report(run: Path, recipe: Pretrain, tell: Callable[[str], None]) -> None:
    try:
        tell(f"curves and numbers: {write_run_report(run, recipe, Corpus(recipe.data.corpus))}")
    except (FirthError, OSError) as error:
        tell(f"no report.html: {error}")


def _describe(recipe: Pretrain, trainer: Trainer, machine: Machine, tell: Callable[[str], None]) -> None:
    n_parameters = sum(p.numel() for p in trainer.objective.parameters())
    n = trainer.world.size
    shared = f"{n} processes of {machine.path}" if n > 1 else machine.path
    tell(
        f"{recipe.model}: {n_parameters / 1e6:.1f} M parameters; {recipe.train.steps} steps of "
        f"{recipe.train.slots} × {recipe.train.batch_tokens} tokens; {shared}"
    )
    if trainer.dev is None:
        tell("the corpus has no held-out text: there is no evaluation, and the last model is kept")
