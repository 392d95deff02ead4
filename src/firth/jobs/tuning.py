"""One fine-tuning run: a base, a recipe, a seed -> a model folder and its scores on held-out examples."""

import copy
import dataclasses
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from firth.config import read_json, to_dict, write_json
from firth.data.hashing import seed_of
from firth.errors import ConfigError
from firth.folder import PRETRAINING, Loaded, read_weights, tensor_names, write_model
from firth.foreign import open_model
from firth.inference.features import store_features
from firth.inference.outputs import row_outputs
from firth.jobs.calibrate import calibrate
from firth.jobs.finetune_recipe import Finetune
from firth.jobs.labelled import score_task
from firth.machine import Machine
from firth.packed import Encoder
from firth.systems import SYSTEMS, TASKS, looks_like_path, size_named
from firth.tasks.model import TaskModel
from firth.tasks.rows import Example, RowMaker
from firth.tasks.source import ExampleSource
from firth.text.published import load_tokenizer
from firth.text.records import Record
from firth.text.tokenizer import Tokenizer
from firth.training.checkpoint import write_folder
from firth.training.config import TrainConfig
from firth.training.schedules import warmup_linear
from firth.training.trainer import Trainer

RESULT = "result.json"


@dataclass(frozen=True, slots=True)
class Base:
    """What fine-tuning starts from: a system, its sizes, a tokenizer, and weights unless they are to be new.

    ``untrained``: parts of the encoder that the model has never learnt; they are not among the weights.
    """

    system_name: str
    config: Any
    tokenizer: Tokenizer
    weights: dict[str, Tensor] | None
    origin: dict[str, Any]
    untrained: tuple[str, ...] = ()

    @property
    def max_length(self) -> int | None:
        return getattr(self.config, "max_positions", None)

    @property
    def trained_length(self) -> int | None:
        """The longest row of its pre-training, where it was pre-trained with positions and says so."""
        lengths, most, origin = list[int](), self.max_length, self.origin
        while not lengths and origin:  # a fine-tuned model tells what it was made from
            made = origin.get("provenance", {})
            recipe = made.get("recipe", {})
            lengths = [n for key in ("data.length", "data.long_length") if isinstance(n := recipe.get(key), int) and n]
            origin = made.get("base", {})
        return min(max(lengths), most) if lengths and most is not None else None

    def encoder(self, seed: int, dropout: float | None) -> Encoder:
        """A new encoder with the base's weights, or with fresh ones that the seed decides."""
        config = self.config
        if dropout is not None:
            names = [n for n in ("dropout", "attention_dropout") if hasattr(config, n)]
            config = dataclasses.replace(config, **dict.fromkeys(names, dropout))
        torch.manual_seed(seed_of(seed, "encoder"))
        encoder = SYSTEMS[self.system_name].encoder(config)
        if self.weights is not None:
            encoder.load_state_dict(encoder.state_dict() | self.weights)
        return encoder

    def maker(self, head: Any) -> RowMaker:
        """What makes the rows of a task whose options are ``head``."""
        return RowMaker(self.tokenizer, SYSTEMS[self.system_name].layout(self.tokenizer), head.windows, self.max_length)


def read_base(model: str, tokenizer: str, fresh: bool) -> Base:
    """The base that a recipe names: a model folder, or a size with a tokenizer."""
    if looks_like_path(model):
        if tokenizer:
            raise ConfigError(f"--tokenizer {tokenizer}: {model} has its own; leave it out")
        return base_of(open_model(model), fresh)
    system_name, sizes = size_named(model)
    if not tokenizer:
        raise ConfigError(f"--model {model} is only a size: give --tokenizer, or a folder with a pre-trained model")
    loaded = load_tokenizer(tokenizer)
    config = SYSTEMS[system_name].config(vocab_size=loaded.size, **sizes)
    return Base(system_name, config, loaded, None, {"model": model})


def base_of(loaded: Loaded, fresh: bool = False) -> Base:
    """A loaded model as a base, whatever it was made for."""
    encoder = loaded.objective.encoder
    new = () if fresh else tuple(p.removeprefix("encoder.") for p in loaded.untrained if p.startswith("encoder."))
    learnt = {name: t for name, t in encoder.state_dict().items() if name.partition(".")[0] not in new}
    weights = None if fresh else learnt
    task = "" if loaded.task == PRETRAINING else loaded.task
    origin = {"system": loaded.system_name, "task": task, "provenance": loaded.provenance}
    return Base(loaded.system_name, encoder.config, loaded.tokenizer, weights, origin, new)


def make_model(base: Base, recipe: Finetune, seed: int) -> TaskModel:
    """The task's model before the first step: a function of base, recipe and seed."""
    encoder = base.encoder(seed, recipe.adapt.dropout)
    torch.manual_seed(seed_of(seed, "head"))
    return recipe.row.model(encoder, recipe.head)


def freeze(model: TaskModel, n_groups: int) -> bool:
    """Keep the lowest groups of layers as they are; whether that is the whole encoder."""
    groups = model.encoder.layer_groups()
    if n_groups > len(groups):
        raise ConfigError(f"adapt.frozen_groups={n_groups}: this encoder has {len(groups)}; -1 freezes all")
    chosen = groups if n_groups == -1 else groups[:n_groups]
    for group in chosen:
        for p in group:
            p.requires_grad_(False)
    return len(chosen) == len(groups)


def rate_scales(model: TaskModel, decay: float) -> dict[str, float]:
    """Scale of the learning rate of each of the encoder's parameters: layer-wise decay from the head down.

    Source: Howard and Ruder 2018, §3.2 (discriminative fine-tuning), applied to any encoder's groups.
    """
    groups = model.encoder.layer_groups()
    by_id = {id(p): decay ** (len(groups) - number) for number, group in enumerate(groups) for p in group}
    return {name: by_id[id(p)] for name, p in model.named_parameters() if id(p) in by_id}


@dataclass(frozen=True, slots=True)
class Run:
    """A fine-tuning run to be made: everything but where."""

    base: Base
    recipe: Finetune
    seed: int
    train: Sequence[Example]
    held: Sequence[Example]
    held_records: Sequence[Record]
    machine: Machine
    features: Path

    @property
    def steps(self) -> int:
        """Updates: as many whole batches as the epochs hold."""
        # Fewer examples than a batch holds are one batch.
        per_epoch = max(len(self.train) / self.recipe.train.batch_examples, 1.0)
        return max(int(per_epoch * self.recipe.train.epochs), 1)

    def train_config(self) -> TrainConfig:
        train = self.recipe.train
        per_epoch = max(len(self.train) // train.batch_examples, 1)
        looks = train.looks_per_epoch
        return TrainConfig(
            steps=self.steps, batch_tokens=train.batch_tokens, seed=self.seed, precision=train.precision,
            eval_every=max(per_epoch // looks, 1) if looks else 0, patience=train.patience, save_every=per_epoch,
            keep_checkpoints=1, log_every=max(per_epoch // 10, 1), compile=train.compile, recompute=train.recompute,
        )  # fmt: skip


def tune(run: Run, folder: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    """Train in ``folder``, or go on there; returns what ``result.json`` says. KeyboardInterrupt if asked to stop.

    ``folder/model`` is the best model by the recipe's metric on held-out examples.
    """
    if (folder / RESULT).is_file():
        return read_json(folder / RESULT)
    recipe, head = run.recipe, run.recipe.head
    full = make_model(run.base, recipe, run.seed)
    full.to(run.machine.device)
    light, train, held = full, run.train, run.held
    if freeze(full, recipe.adapt.frozen_groups):
        light, train, held = with_stored_features(full, run)

    def judge() -> dict[str, float]:
        outputs = row_outputs(light, held, budget_tokens=recipe.train.batch_tokens, dtype=run.machine.dtype)
        options = head
        if recipe.kind in ("multilabel", "answer"):  # with the threshold that the model would get
            options, _ = calibrate(recipe.kind, head, run.held_records, held, outputs)
        answers = recipe.row.answers(run.held_records, held, outputs, options)
        return score_task(recipe.task, run.held_records, answers, getattr(head, "labels", ()))

    def save_model(place: Path, facts: dict[str, Any]) -> None:
        origin = {"recipe": to_dict(recipe), "seed": run.seed, "base": run.base.origin}
        write_model(place, run.base.system_name, recipe.kind, full, run.base.tokenizer, origin | facts)

    folder.mkdir(parents=True, exist_ok=True)
    config = run.train_config()
    trainer = Trainer(
        objective=light,
        source=ExampleSource(train, recipe.train.batch_examples, recipe.train.batch_tokens, run.seed),
        dev=None, judge=judge if run.held else None, judged_by=recipe.metric, config=config, optim=recipe.optim,
        rate=partial(
            warmup_linear, peak_rate=recipe.optim.peak_rate, total_steps=config.steps,
            warmup_steps=recipe.optim.warmup_steps(config.steps),
        ),
        flops=partial(SYSTEMS[run.base.system_name].flops, run.base.config) if light is full else _no_flops,
        run=folder, save_model=save_model, scales=rate_scales(full, recipe.adapt.rate_decay),
        dtype=run.machine.dtype, device=run.machine.device, tell=tell,
        advice="Is there an odd example in that batch?",
    )  # fmt: skip
    if (folder / "checkpoints").exists():
        trainer.resume(partial(_weights, full, light, run))
    if not trainer.fit():
        raise KeyboardInterrupt
    best = trainer.state
    result = {"seed": run.seed, "best": best.best, "best_step": best.best_step, "steps": best.step,
              "elapsed_s": round(best.elapsed_s, 2)}  # fmt: skip
    write_json(folder / RESULT, result)
    # Nothing will go on from here: what a finished run needs is its model.
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return result


def _no_flops(batch: Any) -> float:
    """With stored features the encoder does not run."""
    return 0.0


def with_stored_features(full: TaskModel, run: Run) -> tuple[TaskModel, list[Example], list[Example]]:
    """The model with stored vectors in the place of its encoder, and the examples that refer to them.

    The parts that learn are shared with the full model.
    """
    every = [*run.train, *run.held]
    budget = run.recipe.train.batch_tokens
    stored, referring = store_features(full, every, run.features, dtype=run.machine.dtype, budget_tokens=budget)
    light = copy.copy(full)
    light._modules = {**full._modules, "encoder": stored}
    return light, referring[: len(run.train)], referring[len(run.train) :]


def _weights(full: TaskModel, light: TaskModel, run: Run, folder: Path) -> dict[str, Tensor]:
    """The state of the model that trains, from a checkpoint of the full one."""
    names = tensor_names(run.base.system_name, run.recipe.kind, run.recipe.head)
    state = read_weights(folder, full, names, run.base.config)
    wanted = light.state_dict()
    return {name: tensor for name, tensor in state.items() if name in wanted}


def rewrite_options(folder: Path, loaded: Loaded, options: Any) -> None:
    """The model folder once more, with options that were fitted after training (a temperature, a threshold)."""
    model = loaded.objective
    model.config = options

    def fill(place: Path) -> None:
        write_model(place, loaded.system_name, loaded.task, model, loaded.tokenizer, loaded.provenance)

    write_folder(folder, fill)


def examples_of(base: Base, recipe: Finetune, records: Sequence[Record]) -> tuple[list[Example], dict[str, int]]:
    """The examples of records, and how many texts were too long for a row, by what was done with them."""
    maker = base.maker(recipe.head)
    examples = TASKS[recipe.kind].examples(records, maker, recipe.head)
    return examples, dict(maker.noted)
