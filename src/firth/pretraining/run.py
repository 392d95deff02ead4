"""``firth pretrain``: start, resume and replay pre-training runs."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from firth.config import override, read_toml, to_toml, with_new_names
from firth.data.batch import Batch, Objective
from firth.data.config import DataConfig, MaskingConfig
from firth.data.loader import Loader, Place
from firth.data.shards import Corpus, Split
from firth.errors import ConfigError, FirthError, InputError
from firth.files import check_new, lock, nearest, remove_folder, write_text
from firth.folder import PRETRAINING, Loaded, read_model, read_weights, tensor_names, write_model
from firth.formats.table import open_model
from firth.machine import Machine, find_machine, free_memory, reuse_memory
from firth.memory import check_memory
from firth.models.config import BertConfig
from firth.models.mtlstm import MtLstm
from firth.objectives.contrastive import POOL, Contrastive
from firth.pretraining.initialization import extrapolate_positions, initialize
from firth.pretraining.length import Pace, describe_length, is_sized, length_settings, with_steps
from firth.pretraining.recipe import (
    Pretrain,
    default_recipe,
    defaults,
    identity,
    read_recipe,
    read_resolved_recipe,
)
from firth.pretraining.report import write_run_report
from firth.pretraining.several import Processes, Sharding, count_processes, for_processes, memory_of, with_sharding
from firth.pretraining.vocabulary_transfer import has_other_words, makes_same_words, weights_for_words
from firth.progress import say
from firth.recipes import Settings, plain_of
from firth.systems import has_weights
from firth.tasks.config import EmbeddingConfig
from firth.text.tokenizer import Tokenizer
from firth.training.checkpoint import has_begun
from firth.training.collectives import World, any_rank, barrier, join_world, leave_world, sum_over_ranks
from firth.training.layer_rates import layer_scales
from firth.training.processes import start_group
from firth.training.schedules import rate_of
from firth.training.trainer import Trainer
from firth.vectors.fixed_words import fill_words

RECIPE = "recipe.toml"
WORKER = "firth.pretraining.worker"
# Where the length of a run is not known yet, the learning rate is that of the begin of a long one.
_LONG_RUN_STEPS = 1_000_000
# Seconds to measure a run's speed for each sequence length, after a warm-up step.
_MEASURE_S = 4.0
_FEWEST_MEASURED = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. ``finished``: False if it was asked to stop; then it can be resumed."""

    run: Path
    finished: bool
    step: int
    best: float | None

    @property
    def model(self) -> Loaded:
        """The best model so far, read by ``firth.folder.read_model``."""
        return read_model(self.run)


def resolve(data: Mapping[str, Any], settings: Settings, where: str) -> Pretrain:
    """Complete a recipe with everything that follows from the corpus and the model."""
    tables = override(dict(data), settings).get("data")
    folder = tables.get("corpus") if isinstance(tables, dict) else None
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
    fit are stored with the run. Without any of them, here or in the recipe, a run has 30 minutes and at most 40 epochs.
    ``settings``: any other key of the recipe, such as ``{"optim.learning_rate": 1e-3}``. ``recipe``: a TOML file, a
    name ("small", "published") or a recipe object, over which all of these are laid; None: "small" for a BERT below
    base size, else "published". ``processes``: how many share the work on a CPU; auto: one for each thread, where the
    run is long enough. ``sharding``: under torchrun, full divides weights, gradients and optimiser state among all
    processes; auto: where one of them lacks the memory for all. ``on``: a Ray cluster, "ray" or "ray://HOST:10001", on
    which ``processes`` train, one for each CPU or GPU; ``restarts``: how often they start again when one dies.
    """
    if out is None:
        raise ConfigError("out is missing: give a new folder for the run")
    arguments = {"model": model, "data.corpus": corpus, **length_settings(minutes, epochs, steps)}
    if not isinstance(recipe, Pretrain) or settings or any(value is not None for value in arguments.values()):
        plain, where = plain_of(default_recipe(str(model)) if recipe is None else recipe, arguments)
        recipe = resolve(plain, settings, where)
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
    recipe = recipe_of(run)
    if corpus is not None:
        recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, corpus=str(corpus)))
    return _run(recipe, run, tell, processes, sharding, on, restarts)


def pretrain_or_resume(
    run: Path, recipe: Callable[[], Pretrain], tell: Callable[[str], None] = say, processes: Processes = "auto"
) -> Outcome:
    """Resume the run that is a part of larger work, or start it: ``recipe`` is called only then.

    KeyboardInterrupt if it was asked to stop.
    """
    if (run / RECIPE).is_file():
        outcome = resume(run, tell, processes=processes)
    else:
        remove_folder(run)  # killed before its first checkpoint
        outcome = pretrain(recipe(), run, tell, processes=processes)
    if not outcome.finished:
        raise KeyboardInterrupt
    return outcome


def recipe_of(run: Path) -> Pretrain:
    """Read the resolved recipe of a run."""
    if not run.exists():
        raise ConfigError(f"{run}: no such folder; {nearest(run) or 'give the folder of a run'}")
    if not (run / RECIPE).is_file():
        raise ConfigError(f"{run} is not a run: it has no {RECIPE}")
    plain = read_toml(run / RECIPE)
    if "task" in plain:
        raise ConfigError(f"{run} is a fine-tuning: resume it with firth finetune --resume {run}")
    return read_resolved_recipe(with_new_names(plain), str(run / RECIPE))


def replay(run: str | Path, place: str, tell: Callable[[str], None] = say) -> dict[str, Any]:
    """Rebuild one micro-batch of a run, with its loss under the run's newest weights.

    Returns the sequences as text, with their targets (position, label), and the mean
    loss of each term, None if it is not finite.
    """
    run = Path(run)
    recipe = recipe_of(run)
    with deterministic():
        trainer, loader = assemble(recipe, run, find_machine(recipe.train.precision), World(), tell)
        trainer.resume(partial(_weights, trainer.objective, recipe))
        batch = loader.batch_at(Place.parse(place))
        trainer.objective.eval()
        with torch.no_grad():
            step = trainer.forward(batch.to(trainer.device), None)
    counts = batch.counts()
    losses = {term: float(value) / max(counts[term], 1) for term, value in step.losses.items()}
    return {
        "place": place,
        "step": trainer.state.step,
        "rows": _rows_in_words(batch, loader.corpus.tokenizer.pieces),
        "losses": {term: loss if math.isfinite(loss) else None for term, loss in losses.items()},
    }


def _rows_in_words(batch: Batch, pieces: list[str]) -> list[dict[str, Any]]:
    """Each sequence's tokens, and its targets by position; for translations, positions of the target side."""
    if batch.second is not None:
        sides = Batch(batch.tokens, {}), Batch(batch.second, batch.targets)
        both = zip(*(_rows_in_words(side, pieces) for side in sides), strict=True)
        return [source | {"second": target.pop("text"), **target} for source, target in both]
    bounds = batch.tokens.rows.offsets.tolist()
    rows: list[dict[str, Any]] = []
    for number, (a, b) in enumerate(pairwise(bounds)):
        row: dict[str, Any] = {"text": " ".join(pieces[i] for i in batch.tokens.ids[a:b].tolist())}
        for term, target in batch.targets.items():
            pairs = list(zip(target.index.tolist(), target.label.tolist(), strict=True))
            if term in ("nsp", "contrast"):  # of the sequence: its label, or the index of the other crop
                row[term] = pairs[number][1]
            else:
                row[term] = [[index - a, pieces[label]] for index, label in pairs if a <= index < b]
        rows.append(row)
    return rows


def _run(
    recipe: Pretrain,
    run: Path,
    tell: Callable[[str], None],
    processes: Processes,
    sharding: Sharding,
    on: str,
    restarts: int,
) -> Outcome:
    if not on:
        return run_recipe(recipe, run, tell, processes, sharding)
    # Imported here, because its ranks run what this module defines.
    from firth.pretraining.on_cluster import train_on_cluster

    return train_on_cluster(recipe, run, on, tell, processes=processes, sharding=sharding, restarts=restarts)


def run_recipe(
    recipe: Pretrain, run: Path, tell: Callable[[str], None], processes: Processes, sharding: Sharding
) -> Outcome:
    """Start or resume a run here: as one of the processes of torchrun or Ray, or with processes of its own."""
    world = join_world()
    reuse_memory()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(lock(run) if world.leads else contextlib.nullcontext())
            n_threads = 0
            if world.size == 1:
                with_sharding(recipe, world, sharding, tell)
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
    resolved = with_steps(recipe, pace)
    if world.size > 1:
        # All processes use the leading one's number of steps.
        leading = sum_over_ranks({"steps": float(resolved.train.steps if world.leads else 0)}, world)
        resolved = dataclasses.replace(resolved, train=dataclasses.replace(resolved.train, steps=int(leading["steps"])))
    if world.leads:
        tell(describe_length(resolved, pace, recipe))
    return resolved


def measure_pace(recipe: Pretrain, run: Path, world: World, *, n_threads: int = 0, seconds: float) -> Pace:
    """Measure the speed of a recipe by a few steps from random weights, which are discarded.

    ``seconds``: time for each sequence length, after a warm-up step. Nothing is written.
    """
    # The learning rate of the first step is that of a long run.
    long = dataclasses.replace(
        recipe, train=dataclasses.replace(recipe.train, steps=_LONG_RUN_STEPS, minutes=0.0, epochs=0.0)
    )
    with deterministic(), _threads(n_threads):
        machine = find_machine(recipe.train.precision)
        trainer, loader = assemble(long, run, machine, world, _silent, measured=True)
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
        trainer, _ = assemble(recipe, run, machine, world, tell if world.leads else _silent)
        if world.leads:
            _describe(recipe, trainer, machine, tell)
        barrier(world)
        if new:
            if world.leads:
                write_text(run / RECIPE, to_toml(recipe, comments=True))
            trainer.begin(score=has_weights(recipe.model))
        else:
            trainer.resume(partial(_weights, trainer.objective, recipe))
            if world.leads:
                tell(f"resuming {run} at step {trainer.state.step} of {recipe.train.steps}")
        finished = trainer.fit()
        if world.leads and finished:
            _report(run, recipe, tell)
    return Outcome(run, finished, trainer.state.step, trainer.state.best)


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


def _silent(text: str) -> None:
    """Drop messages: only the leading process prints."""


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """A context with deterministic CPU algorithms, without filling uninitialised memory."""
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


def make_loader(recipe: Pretrain, corpus: Corpus) -> Loader:
    """Build the stream of micro-batches of a recipe."""
    return _loader(recipe, corpus, recipe.data, recipe.masking, "train")


def make_dev_loader(recipe: Pretrain, corpus: Corpus) -> Loader:
    """Build the held-out batches of a recipe, with the sequence length of the last phase.

    Masking is as published, whatever the training uses, so that losses of different recipes are comparable.
    """
    data = dataclasses.replace(
        recipe.data,
        length=recipe.data.lengths[-1],
        long_length=0,
        mixed_lengths=False,
        varied_windows=False,
        restart_every=0,
    )
    return _loader(recipe, corpus, data, MaskingConfig(), "dev")


def _loader(recipe: Pretrain, corpus: Corpus, data: DataConfig, masking: MaskingConfig, split: Split) -> Loader:
    layout = (recipe.row.pretraining_layout or recipe.row.layout)(corpus.tokenizer)
    predict = "previous" if getattr(recipe.encoder, "backward", False) else recipe.row.predict
    return Loader(
        corpus,
        data,
        masking,
        layout,
        predict=predict,
        budget_tokens=recipe.train.batch_tokens,
        slots=recipe.train.slots,
        seed=recipe.train.seed,
        total_steps=recipe.train.steps,
        split=split,
    )


def make_objective(recipe: Pretrain) -> Objective:
    """Build the objective with random initialisation from the recipe's seed."""
    torch.manual_seed(recipe.train.seed)
    return recipe.row.objective(recipe.row.encoder(recipe.encoder), recipe.objective)


def _load_base(objective: Objective, folder: str, corpus: Corpus, tell: Callable[[str], None]) -> None:
    """Load the weights of the model to continue; next-sentence prediction may be dropped or added.

    Untrained parts are initialised from the run's seed.
    """
    loaded = open_model(folder)
    expected, found = objective.state_dict(), loaded.objective.state_dict()
    if has_other_words(loaded, corpus.tokenizer):
        found, n_new = weights_for_words(loaded, corpus.tokenizer)
        tell(
            f"{folder} has {corpus.tokenizer.size - n_new:,} of the {corpus.tokenizer.size:,} words of the corpus's "
            "vocabulary; the others are initialised with the mean of its words (zeros if those are frozen)"
        )
        if not makes_same_words(loaded.tokenizer, corpus.tokenizer):
            tell(
                f"{folder} was trained on text normalised or split differently from the corpus, so "
                "shared words may fit less well. To match it, prepare the corpus with its tokenizer "
                "(firth prepare --tokenizer MODEL_FOLDER)"
            )
    else:
        corpus.check_tokenizer(loaded.tokenizer, f"that of {folder}")
    other = [name for name in expected.keys() ^ found.keys() if not name.startswith(("nsp.", "decoder."))]
    if other:
        raise ConfigError(f"{folder} has another objective, which differs in {', '.join(sorted(other)[:3])}")
    absent = tuple(part for part in ("nsp.", "decoder.") if not any(name.startswith(part) for name in found))
    new = (*(f"{part}." for part in loaded.untrained), *absent)
    begun = sorted({name.rpartition(".")[0] for name in expected if name.startswith(new)})
    if begun:
        tell(f"{folder} has no trained {', '.join(begun)}: initialised randomly")
    objective.load_state_dict(
        {name: tensor if name.startswith(new) else found[name] for name, tensor in expected.items()}
    )


def _begin_words(encoder: MtLstm, recipe: Pretrain, tokenizer: Tokenizer, tell: Callable[[str], None]) -> None:
    """Load the initial word vectors of an encoder that needs them, from the recipe or its model."""
    if recipe.vectors:
        tell(fill_words(encoder, tokenizer, recipe.vectors))
    elif encoder.config.fixed_words and not has_weights(recipe.model):
        raise ConfigError(
            f"{recipe.model} keeps its word vectors frozen, and random ones carry no meaning: give some with --vectors "
            "PATH, or train them with --set encoder.fixed_words=false"
        )


def assemble(
    recipe: Pretrain,
    run: Path,
    machine: Machine,
    world: World,
    tell: Callable[[str], None],
    *,
    measured: bool = False,
) -> tuple[Trainer, Loader]:
    """Build a run's trainer and loader. ``measured``: only to measure speed, so weights do not matter."""
    corpus = Corpus(recipe.data.corpus, cache_gb=recipe.data.cache_gb)
    if recipe.encoder.vocab_size != corpus.tokenizer.size:
        raise ConfigError(
            f"encoder.vocab_size={recipe.encoder.vocab_size:,}, but the tokenizer of {corpus.folder} has "
            f"{corpus.tokenizer.size:,} tokens: to continue from a model, prepare the text with its tokenizer, "
            f"firth prepare TEXT --tokenizer MODEL --out CORPUS"
        )
    kind = corpus.tokenizer.kind
    if kind.mask is None and (recipe.row.predict == "masked" or recipe.row.config is BertConfig):
        raise ConfigError(
            f"{recipe.model} needs a WordPiece vocabulary, with tokens for masks and padding, but that of "
            f"{corpus.folder} is of the kind {kind.name}: prepare a corpus with another (firth vocab --kind wordpiece)"
        )
    recipe.row.reads(corpus.tokenizer)
    # Not part of the run's identity: with more processes there may be room enough.
    config = dataclasses.replace(recipe.train, recompute=recipe.train.recompute or world.recompute)
    n_slots = recipe.train.slots
    if world.size > n_slots or (world.group is None and n_slots % world.size):
        raise ConfigError(
            f"train.micro_batches={n_slots} cannot be shared by {world.size} processes: leave it out for a new run"
        )
    if world.leads or world.group is None:  # one process per machine loads the weights
        shares = world.size if world.sharded else 1
        n = 1 if world.group is None else world.size
        need = memory_of(dataclasses.replace(recipe, train=config), machine, n, shares=shares)
        tell(check_memory(need, machine, config.batch_tokens, recompute=config.recompute))
    loader = make_loader(recipe, corpus)
    _tell_left_out(loader, "training", tell)
    objective = make_objective(recipe)
    if not measured and not has_begun(run):
        if has_weights(recipe.model):
            _load_base(objective, recipe.model, corpus, tell)
            if recipe.init.trained_positions:
                extrapolate_positions(objective.encoder, recipe.init.trained_positions)
        elif world.leads or world.group is None:
            # Processes of one machine share the leading one's weights.
            initialize(objective, corpus, recipe.init, tell)
        if isinstance(objective.encoder, MtLstm):
            _begin_words(objective.encoder, recipe, corpus.tokenizer, tell)
    dev = None
    if any(info.tokens for info in corpus.shards("dev")):
        held_out = make_dev_loader(recipe, corpus)
        _tell_left_out(held_out, "held-out", tell)

        def dev() -> Iterator[Batch]:
            return held_out.one_epoch(recipe.train.eval_batches, world.rank, world.size)

    def save_model(folder: Path, facts: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
        origin = {"recipe": identity(recipe), "tokenizer": corpus.manifest.tokenizer, "corpus": corpus.fingerprint}
        # What is compared in training is what vectors of texts are for.
        unit = isinstance(objective, Contrastive)
        embedding = EmbeddingConfig(pool=POOL if unit else EmbeddingConfig().pool, normalize=unit)
        write_model(
            folder,
            recipe.system,
            PRETRAINING,
            objective,
            corpus.tokenizer,
            origin | facts,
            embedding=embedding,
            weights=weights,
        )

    trainer = Trainer(
        objective=objective,
        source=loader,
        dev=dev,
        config=config,
        optim=recipe.optim,
        rate=rate_of(recipe.optim, recipe.train.steps or _LONG_RUN_STEPS),
        scales={} if recipe.train.layer_decay == 1 else layer_scales(objective, recipe.train.layer_decay, below=0),
        flops=partial(recipe.row.flops, recipe.encoder),
        run=run,
        save_model=save_model,
        free=partial(free_memory, torch.device("cpu")),
        identity={"corpus": corpus.fingerprint, **identity(recipe)},
        defaults=defaults(recipe),
        dtype=machine.dtype,
        device=machine.device,
        world=world,
        tell=tell,
        advice=(
            f"Inspect that batch with: firth pretrain --resume {run} --replay {{place}}. To begin again with other "
            f"values, delete {run} or choose another --out."
        ),
    )
    return trainer, loader


def _tell_left_out(loader: Loader, what: str, tell: Callable[[str], None]) -> None:
    if n_long := loader.left_out():
        tell(f"{n_long:,} {what} pairs are longer than data.length={max(loader.data.lengths)} and skipped")


def _weights(objective: Objective, recipe: Pretrain, folder: Path) -> dict[str, torch.Tensor]:
    return read_weights(folder, objective, tensor_names(recipe.system, PRETRAINING, None), recipe.encoder)
