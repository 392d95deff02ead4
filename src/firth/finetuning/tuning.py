"""One fine-tuning run: a base, a recipe, a seed -> a model folder and its scores on held-out examples."""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from firth.config import read_json, to_dict
from firth.data.hashing import seed_of
from firth.errors import ConfigError
from firth.files import remove_folder, write_folder, write_json
from firth.finetuning.calibrate import calibrate
from firth.finetuning.labelled import score_task
from firth.finetuning.recipe import AdaptConfig, Finetune
from firth.finetuning.word_vectors import FirstVectors
from firth.folder import PRETRAINING, Loaded, read_weights, tensor_names, write_model
from firth.formats.foreign import open_model
from firth.inference.features import store_features
from firth.inference.outputs import row_outputs
from firth.machine import Machine
from firth.packed import Encoder
from firth.systems import SYSTEMS, TASKS, looks_like_path, size_named
from firth.tasks.model import TaskModel
from firth.tasks.rows import Example, RowMaker
from firth.tasks.source import ExampleSource
from firth.text.published import load_tokenizer
from firth.text.records import Record
from firth.text.tokenizer import Tokenizer
from firth.training.checkpoint import list_checkpoints
from firth.training.config import TrainConfig
from firth.training.layer_rates import layer_scales
from firth.training.schedules import rate_of
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

    def config_with(self, dropout: float | None) -> Any:
        """Its sizes with this rate of dropout, None: with its own; ConfigError where the system has no dropout."""
        if dropout is None:
            return self.config
        if hasattr(self.config, "with_dropout"):
            return self.config.with_dropout(dropout)
        rates = [n for n in ("dropout", "embedding_dropout", "attention_dropout") if hasattr(self.config, n)]
        if not rates:
            raise ConfigError(
                f"adapt.dropout={dropout}: the encoder of {self.system_name} has no dropout: leave it out, or set "
                "head.features.dropout"
            )
        return dataclasses.replace(self.config, **dict.fromkeys(rates, dropout))

    def encoder(self, seed: int, dropout: float | None, transferred_groups: int = -1) -> Encoder:
        """A new encoder with the base's weights in so many of its lowest groups of layers (-1: in all).

        Weights that the base does not have are fresh, and the seed decides them.
        """
        torch.manual_seed(seed_of(seed, "encoder"))
        encoder = SYSTEMS[self.system_name].encoder(self.config_with(dropout))
        if self.weights is not None:
            names = transferred(encoder, transferred_groups)
            encoder.load_state_dict(encoder.state_dict() | {n: self.weights[n] for n in names & self.weights.keys()})
        return encoder

    def maker(self, head: Any) -> RowMaker:
        """What makes the rows of a task whose options are ``head``."""
        row = SYSTEMS[self.system_name]
        # Word vectors with one for all unknown words look at no letters.
        letters = row.characters and getattr(self.config, "unknown", "") != "one"
        return RowMaker(
            self.tokenizer, row.layout(self.tokenizer), head.windows, self.max_length,
            characters=letters or head.features.own_characters != "none",
        )  # fmt: skip


def read_base(model: str, tokenizer: str, from_scratch: bool) -> Base:
    """The base that a recipe names: a model folder, or a size with a tokenizer."""
    if looks_like_path(model):
        if tokenizer:
            raise ConfigError(f"--tokenizer {tokenizer}: {model} has its own; leave it out")
        return base_of(open_model(model), from_scratch)
    system_name, sizes = size_named(model)
    if not tokenizer:
        raise ConfigError(f"--model {model} is only a size: give --tokenizer, or a folder with a pre-trained model")
    loaded = SYSTEMS[system_name].reads(load_tokenizer(tokenizer))
    config = SYSTEMS[system_name].config(vocab_size=loaded.size, **sizes)
    return Base(system_name, config, loaded, None, {"model": model})


def base_of(loaded: Loaded, from_scratch: bool = False) -> Base:
    """A loaded model as a base, whatever it was made for."""
    encoder = loaded.objective.encoder
    untrained = (p.removeprefix("encoder.") for p in loaded.untrained if p.startswith("encoder."))
    new = () if from_scratch else tuple(untrained)
    learnt = {name: t for name, t in encoder.state_dict().items() if name.partition(".")[0] not in new}
    weights = None if from_scratch else learnt
    task = "" if loaded.task == PRETRAINING else loaded.task
    origin = {"system": loaded.system_name, "task": task, "provenance": loaded.provenance}
    return Base(loaded.system_name, encoder.config, loaded.tokenizer, weights, origin, new)


def make_model(base: Base, recipe: Finetune, seed: int, vectors: FirstVectors | None = None) -> TaskModel:
    """The task's model before the first step: a function of base, recipe, seed, and vectors for the head's words."""
    encoder = base.encoder(seed, recipe.adapt.dropout, recipe.adapt.transferred_groups)
    torch.manual_seed(seed_of(seed, "head"))
    model = recipe.row.model(encoder, recipe.head)
    if vectors is not None:
        assert model.features.own is not None and model.features.own.words is not None
        vectors.put_into(model.features.own.words)
    return model


def lowest_groups(encoder: Encoder, key: str, n_groups: int) -> list[list[nn.Parameter]]:
    """So many groups of layers from the embeddings up, -1: all; ConfigError where there are not as many."""
    groups = encoder.layer_groups()
    if n_groups > len(groups):
        raise ConfigError(f"{key}={n_groups}: this encoder has {len(groups)}; -1 stands for all")
    return groups if n_groups == -1 else groups[:n_groups]


def transferred(encoder: Encoder, n_groups: int) -> set[str]:
    """The tensors whose weights come from the base: those of the lowest groups, and what is no parameter.

    Source: Radford et al. 2018, §5 (layers transferred).
    """
    groups = lowest_groups(encoder, "adapt.transferred_groups", n_groups)
    kept = {id(p) for group in groups for p in group}
    tensors = encoder.state_dict(keep_vars=True).items()
    return {name for name, tensor in tensors if id(tensor) in kept or not isinstance(tensor, nn.Parameter)}


def freeze(model: TaskModel, adapt: AdaptConfig) -> bool:
    """Keep the lowest groups of layers as they are; whether that is the whole encoder.

    ConfigError for options of an encoder that learns where none of it does.
    """
    n_groups = adapt.frozen_groups
    chosen = lowest_groups(model.encoder, "adapt.frozen_groups", n_groups)
    for group in chosen:
        for p in group:
            p.requires_grad_(False)
    whole = len(chosen) == len(model.encoder.layer_groups())
    if whole and "lm" in model.weights:
        raise ConfigError(
            f"adapt.frozen_groups={n_groups} freezes the encoder, and head.auxiliary_lm is for one that learns: "
            "set head.auxiliary_lm=0, or freeze less"
        )
    if whole and (adapt.dropout or adapt.layer_decay != 1 or adapt.unfreeze != "at_once"):
        hint = "" if n_groups == -1 else ", or set it to -1 if they are the system's own"
        raise ConfigError(
            f"adapt.frozen_groups={n_groups} freezes the encoder: leave out adapt.dropout, layer_decay and unfreeze"
            + hint
        )
    return whole


def rate_scales(model: TaskModel, decay: float) -> dict[str, float]:
    """Scale of the learning rate of each of the encoder's parameters: layer-wise decay from the head down.

    Source: Howard and Ruder 2018, §3.2 (discriminative fine-tuning), applied to any encoder's groups.
    """
    return layer_scales(model, decay, below=1)


def gradually(model: TaskModel, steps_per_epoch: int) -> Callable[[int], frozenset[str]]:
    """The encoder's parameters that rest in a step: all in the first epoch, in each later one a group fewer from below.

    Source: Howard and Ruder 2018, §3.3 (gradual unfreezing), applied to any encoder's groups. The head never rests.
    """
    groups = model.encoder.layer_groups()
    number = {id(p): n for n, group in enumerate(groups) for p in group}
    resting = [
        frozenset(name for name, p in model.named_parameters() if number.get(id(p), len(groups)) < n_resting)
        for n_resting in range(len(groups), -1, -1)
    ]
    return lambda step: resting[min(step // steps_per_epoch, len(groups))]


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
    vectors: FirstVectors | None = None

    @property
    def steps(self) -> int:
        """Updates: as many whole batches as the epochs hold."""
        # Fewer examples than a batch holds are one batch.
        per_epoch = max(len(self.train) / self.recipe.train.batch_examples, 1.0)
        return max(int(per_epoch * self.recipe.train.epochs), 1)

    @property
    def per_epoch(self) -> int:
        """Whole batches of an epoch."""
        return max(len(self.train) // self.recipe.train.batch_examples, 1)

    def train_config(self) -> TrainConfig:
        train, per_epoch = self.recipe.train, self.per_epoch
        looks = train.evaluations_per_epoch
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
        # A kill may have fallen between the result and the removal of what it no longer needs.
        remove_folder(folder / "checkpoints")
        return read_json(folder / RESULT)
    recipe, head = run.recipe, run.recipe.head
    full = make_model(run.base, recipe, run.seed, run.vectors)
    full.to(run.machine.device)
    light, train, held = full, run.train, run.held
    if freeze(full, recipe.adapt):
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
    config, resting = run.train_config(), None
    if recipe.adapt.unfreeze == "gradual":
        resting = gradually(full, run.per_epoch)
        if never := len(resting(config.steps - 1)):
            tell(f"adapt.unfreeze='gradual': {never} tensors of the encoder never learn in so few epochs")
    trainer = Trainer(
        objective=light,
        source=ExampleSource(
            train, recipe.train.batch_examples, recipe.train.batch_tokens, run.seed, next_tokens="lm" in light.weights
        ),
        dev=None, judge=judge if run.held else None, judged_by=recipe.metric, config=config, optim=recipe.optim,
        rate=rate_of(recipe.optim, config.steps),
        flops=partial(SYSTEMS[run.base.system_name].flops, run.base.config) if light is full else _no_flops,
        run=folder, save_model=save_model, scales=rate_scales(full, recipe.adapt.layer_decay),
        resting=resting,
        dtype=run.machine.dtype, device=run.machine.device, tell=tell,
        advice="Is there an odd example in that batch?",
    )  # fmt: skip
    # A run without a first checkpoint begins anew; one whose checkpoints are all damaged does not.
    if list_checkpoints(folder / "checkpoints"):
        trainer.resume(partial(_weights, full, light, run))
    if not trainer.fit():
        raise KeyboardInterrupt
    best = trainer.state
    result = {"seed": run.seed, "best": best.best, "best_step": best.best_step, "steps": best.step,
              "elapsed_s": round(best.elapsed_s, 2)}  # fmt: skip
    write_json(folder / RESULT, result)
    # Nothing will go on from here: what a finished run needs is its model.
    remove_folder(folder / "checkpoints")
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
