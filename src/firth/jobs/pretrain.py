"""``firth pretrain``: recipe -> objects -> run."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from firth.config import override, read_toml, to_toml, write_text
from firth.data.batch import Batch, Objective
from firth.data.config import DataConfig
from firth.data.loader import Loader, Place
from firth.data.shards import Corpus, Split
from firth.errors import ConfigError
from firth.folder import PRETRAINING, read_model, read_weights, write_model
from firth.jobs.recipe import Pretrain, read_recipe
from firth.jobs.run_report import write_run_report
from firth.machine import Machine, find_machine
from firth.systems import looks_like_path
from firth.training.distributed import barrier, join_world, leave_world
from firth.training.schedules import warmup_linear
from firth.training.trainer import Trainer

RECIPE = "recipe.toml"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. ``finished``: False if it was asked to stop; then it can be resumed."""

    run: Path
    finished: bool
    step: int
    best: float | None


def say(text: str) -> None:
    """A message for the person at the terminal."""
    print(text, file=sys.stderr, flush=True)


def resolve(data: dict[str, Any], overrides: list[str], where: str) -> Pretrain:
    """A recipe with all that follows from the corpus and the model filled in."""
    tables = override(data, overrides).get("data")
    folder = tables.get("corpus") if isinstance(tables, dict) else None
    if not folder:
        raise ConfigError(f"{where}: data.corpus is missing: give --corpus, a folder made by firth prepare")
    corpus = Corpus(str(folder))
    recipe = read_recipe(data, overrides, where, vocab_size=corpus.tokenizer.size)
    if recipe.encoder.vocab_size != corpus.tokenizer.size:
        raise ConfigError(
            f"{where}: encoder.vocab_size={recipe.encoder.vocab_size:,}, but the tokenizer of {corpus.folder} has "
            f"{corpus.tokenizer.size:,} pieces"
        )
    return recipe


def pretrain(recipe: Pretrain, out: str | Path, tell: Callable[[str], None] = say) -> Outcome:
    """Start a run in folder ``out``, which must not exist yet."""
    run = Path(out)
    if run.exists() and (not run.is_dir() or any(run.iterdir())):
        hint = (
            f"to go on with it: firth pretrain --resume {run}" if (run / RECIPE).is_file() else "it is no run"
        )
        raise ConfigError(f"{run} exists already ({hint}); choose another folder for a new run")
    return _run(recipe, run, tell, new=True)


def resume(run: str | Path, tell: Callable[[str], None] = say) -> Outcome:
    """Go on with a run from its newest undamaged checkpoint, bit for bit as if it had not stopped."""
    run = Path(run)
    return _run(recipe_of(run), run, tell, new=False)


def recipe_of(run: Path) -> Pretrain:
    """The resolved recipe that a run was started with."""
    if not (run / RECIPE).is_file():
        raise ConfigError(f"{run} is not a run: it has no {RECIPE}")
    return read_recipe(read_toml(run / RECIPE), [], str(run / RECIPE))


def replay(run: str | Path, place: str, tell: Callable[[str], None] = say) -> dict[str, Any]:
    """One micro-batch of a run made again, with the loss that the run's newest weights give it.

    Returns the rows as text, what was asked for in each, and the mean loss of each term.
    """
    run = Path(run)
    recipe = recipe_of(run)
    with deterministic():
        trainer, loader = _assemble(recipe, run, find_machine(recipe.train.precision), tell)
        trainer.resume(partial(_weights, trainer.objective, recipe))
        batch = loader.batch_at(Place.parse(place))
        trainer.objective.eval()
        with torch.no_grad():
            step = trainer.objective(batch.to(trainer.device), None)
    pieces = loader.corpus.tokenizer.pieces
    bounds = batch.tokens.rows.offsets.tolist()
    rows = [
        " ".join(pieces[i] for i in batch.tokens.ids[a:b].tolist())
        for a, b in zip(bounds[:-1], bounds[1:], strict=True)
    ]
    counts = batch.counts()
    losses = {term: float(value) / max(counts[term], 1) for term, value in step.losses.items()}
    asked = {term: target.label.tolist() for term, target in batch.targets.items()}
    return {"place": place, "step": trainer.state.step, "rows": rows, "losses": losses, "labels": asked}


def _run(recipe: Pretrain, run: Path, tell: Callable[[str], None], *, new: bool) -> Outcome:
    world = join_world()
    try:
        with deterministic():
            machine = find_machine(recipe.train.precision)
            trainer, _ = _assemble(recipe, run, machine, tell if world.leads else _silent)
            trainer.world = world
            if world.leads:
                _describe(recipe, trainer, machine, tell)
            if new and world.leads:
                _make_run_folder(run, recipe)
            barrier(world)
            if not new and trainer.resume(partial(_weights, trainer.objective, recipe)) and world.leads:
                tell(f"resuming {run} at step {trainer.state.step} of {recipe.train.steps}")
            finished = trainer.fit()
        if world.leads and finished:
            _report(run, recipe, tell)
        return Outcome(run, finished, trainer.state.step, trainer.state.best)
    finally:
        leave_world()


def _report(run: Path, recipe: Pretrain, tell: Callable[[str], None]) -> None:
    try:
        tell(f"curves and numbers: {write_run_report(run, recipe)}")
    except ConfigError as error:
        tell(f"no report.html: {error}")


def _silent(text: str) -> None:
    """Only the leading process speaks."""


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Deterministic algorithms on a processor, without filling memory nobody reads; put back afterwards."""
    options: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), options.fill_uninitialized_memory
    if not torch.cuda.is_available():
        torch.use_deterministic_algorithms(True)
        options.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        options.fill_uninitialized_memory = before[1]


def _make_run_folder(run: Path, recipe: Pretrain) -> None:
    try:
        run.mkdir(parents=True, exist_ok=True)
        write_text(run / RECIPE, to_toml(recipe, comments=True))
    except OSError as error:
        raise ConfigError(f"{run} cannot be written: {error.strerror}") from None


def _describe(recipe: Pretrain, trainer: Trainer, machine: Machine, tell: Callable[[str], None]) -> None:
    n_parameters = sum(p.numel() for p in trainer.objective.parameters())
    tell(
        f"{recipe.model}: {n_parameters / 1e6:.1f} M parameters; {recipe.train.steps} steps of "
        f"{recipe.train.micro_batches} × {recipe.train.batch_tokens} tokens; {machine.path}"
    )
    if trainer.dev is None:
        tell("the corpus has no held-out text: nothing is evaluated, and the last model is kept")


def make_loader(recipe: Pretrain, corpus: Corpus) -> Loader:
    """The stream of micro-batches of a recipe."""
    return _loader(recipe, corpus, recipe.data, recipe.train.micro_batches, "train")


def make_dev_loader(recipe: Pretrain, corpus: Corpus, slots: int) -> Loader:
    """The held-out text of a recipe, in rows of the length that the model is for: that of the last phase."""
    data = dataclasses.replace(recipe.data, length=recipe.data.lengths[-1], long_length=0)
    return _loader(recipe, corpus, data, slots, "dev")


def _loader(recipe: Pretrain, corpus: Corpus, data: DataConfig, slots: int, split: Split) -> Loader:
    return Loader(
        corpus, data, recipe.masking, recipe.row.layout(corpus.tokenizer), predict=recipe.row.predict,
        budget_tokens=recipe.train.batch_tokens, slots=slots, seed=recipe.train.seed,
        total_steps=recipe.train.steps, split=split,
    )  # fmt: skip


def make_objective(recipe: Pretrain, corpus: Corpus) -> Objective:
    """The objective with fresh weights (a function of the seed), or with those of the model folder that is named."""
    torch.manual_seed(recipe.train.seed)
    objective = recipe.row.objective(recipe.row.encoder(recipe.encoder), recipe.objective)
    if looks_like_path(recipe.model):
        loaded = read_model(recipe.model)
        corpus.check_tokenizer(loaded.tokenizer, f"that of {recipe.model}")
        missing, _ = objective.load_state_dict(loaded.objective.state_dict(), strict=False)
        if missing:
            raise ConfigError(f"{recipe.model} lacks {', '.join(missing[:3])}: its objective is another one")
    return objective


def _assemble(
    recipe: Pretrain, run: Path, machine: Machine, tell: Callable[[str], None]
) -> tuple[Trainer, Loader]:
    corpus = Corpus(recipe.data.corpus)
    world = join_world()
    if recipe.train.micro_batches % world.size:
        raise ConfigError(
            f"train.micro_batches={recipe.train.micro_batches} cannot be shared by {world.size} processes"
        )
    loader = make_loader(recipe, corpus)
    objective = make_objective(recipe, corpus)
    dev = None
    if any(info.tokens for info in corpus.shards("dev")):
        held_out = make_dev_loader(recipe, corpus, world.size)

        def dev() -> Iterator[Batch]:
            return held_out.one_epoch(recipe.train.eval_batches, world.rank, world.size)

    def save_model(folder: Path, facts: dict[str, Any]) -> None:
        provenance = {"recipe": to_toml(recipe), "corpus": corpus.manifest.tokenizer, **facts}
        write_model(folder, recipe.system, PRETRAINING, objective, corpus.tokenizer, provenance)

    rate = partial(
        warmup_linear, peak_rate=recipe.optim.peak_rate, warmup_steps=recipe.optim.warmup_steps(recipe.train.steps),
        total_steps=recipe.train.steps,
    )  # fmt: skip
    trainer = Trainer(
        objective=objective, source=loader, dev=dev, config=recipe.train, optim=recipe.optim, rate=rate,
        flops=partial(recipe.row.flops, recipe.encoder), run=run, save_model=save_model,
        data_hash=corpus.fingerprint, dtype=machine.dtype,
        device=machine.device, world=world, tell=tell,
    )  # fmt: skip
    return trainer, loader


def _weights(objective: Objective, recipe: Pretrain, folder: Path) -> dict[str, torch.Tensor]:
    return read_weights(folder, objective, recipe.row.names, recipe.encoder)
