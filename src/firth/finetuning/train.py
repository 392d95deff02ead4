"""Train one fine-tuning run: from a base, a recipe and a seed to a model folder and held-out scores."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from firth.config import read_json, to_dict
from firth.data.batch import Batch
from firth.files import remove_folder, write_folder, write_json
from firth.finetuning.base import Base, FirstVectors, freeze, gradually, make_model, rate_scales
from firth.finetuning.calibrate import calibrate
from firth.finetuning.features import store_features
from firth.finetuning.recipe import Finetune, count_updates
from firth.folder import Loaded, read_weights, tensor_names, write_model
from firth.inference.outputs import row_outputs
from firth.inference.score import EncodedSplit, Scored, read_split, score_outputs
from firth.machine import Machine, free_memory
from firth.systems import SYSTEMS
from firth.tasks.example_source import ExampleSource
from firth.tasks.kinds import kind_of_task
from firth.tasks.learnt import PAIRS, reads_pairs
from firth.tasks.model import TaskModel
from firth.tasks.rows import Example, Outputs
from firth.tasks.table import TASKS
from firth.text.records import Record
from firth.training.checkpoint import list_checkpoints
from firth.training.collectives import World
from firth.training.config import TrainConfig
from firth.training.schedules import rate_of
from firth.training.trainer import Trainer

RESULT = "result.json"
ALONE = World()
# Epochs of few examples are few steps: scoring, or saving the model, more often than this would take longer than the
# steps.
_EVAL_STEPS, _SAVE_STEPS = 10, 50
# Key of the held-out scores in a model's provenance; ``"dev"`` holds those of the dev files, by name.
HELD_OUT = "held_out"


@dataclass(frozen=True, slots=True)
class Run:
    """All inputs of one run, except its folder."""

    base: Base
    recipe: Finetune
    seed: int
    train: Sequence[Example]
    held: EncodedSplit
    machine: Machine
    features: Path
    vectors: FirstVectors | None = None

    @property
    def steps(self) -> int:
        """Number of updates."""
        train = self.recipe.train
        return count_updates(len(self.train), train.batch_examples, train.epochs)

    @property
    def per_epoch(self) -> int:
        """Whole batches per epoch."""
        return max(len(self.train) // self.recipe.train.batch_examples, 1)

    def train_config(self) -> TrainConfig:
        train, per_epoch = self.recipe.train, self.per_epoch
        n_evaluations = train.evaluations_per_epoch
        eval_every = max(per_epoch // n_evaluations, 1) if n_evaluations else 0
        # Patience and schedules that count evaluations get exactly as many as configured.
        if eval_every and not train.patience and not self.recipe.optim.follows_scores:
            eval_every = max(eval_every, _EVAL_STEPS)
        return TrainConfig(
            steps=self.steps,
            batch_tokens=train.batch_tokens,
            seed=self.seed,
            precision=train.precision,
            eval_every=eval_every,
            patience=train.patience,
            save_every=max(per_epoch, _SAVE_STEPS),
            keep_checkpoints=1,
            log_every=max(per_epoch // 10, 1),
            compile=train.compile,
            recompute=train.recompute,
        )


def tune(run: Run, folder: Path, tell: Callable[[str], None], world: World = ALONE) -> dict[str, Any]:
    """Train in ``folder``, or resume there; returns what ``result.json`` holds. KeyboardInterrupt if asked to stop.

    Each process of ``world`` calls this; the leading one writes.

    ``folder/model`` is the best model by the recipe's metric on held-out examples.
    """
    if (folder / RESULT).is_file():
        # A kill may have come between writing the result and removing what it no longer needs.
        remove_folder(folder / "checkpoints")
        return read_json(folder / RESULT)
    recipe = run.recipe
    full = make_model(run.base, recipe, run.seed, run.vectors)
    full.to(run.machine.device)
    light, train, held = full, run.train, run.held
    if freeze(full, recipe.adapt):
        light, train, held = with_stored_features(full, run)

    folder.mkdir(parents=True, exist_ok=True)
    config, resting = run.train_config(), None
    if recipe.adapt.unfreeze == "gradual":
        resting = gradually(full, run.per_epoch)
        if never := len(resting(config.steps - 1)):
            tell(f"adapt.unfreeze='gradual': {never} encoder tensors stay frozen in so few epochs")
    trainer = Trainer(
        objective=light,
        source=ExampleSource(
            train,
            recipe.train.batch_examples,
            recipe.train.batch_tokens,
            run.seed,
            next_tokens="lm" in light.weights,
            parts=recipe.train.micro_batches or 1,
        ),
        dev=None,
        judge=partial(_judge, run, light, held) if held.records else None,
        judged_by=recipe.metric,
        config=config,
        optim=recipe.optim,
        rate=rate_of(recipe.optim, config.steps),
        flops=partial(_flops, run.base, full.passes if light is full else 0),
        run=folder,
        save_model=partial(_save_model, run, full),
        saved=full,
        free=partial(free_memory, torch.device("cpu")),
        scales=rate_scales(full, recipe.adapt.layer_decay),
        resting=resting,
        dtype=run.machine.dtype,
        device=run.machine.device,
        world=world,
        tell=tell,
        advice="Is there an odd example in that batch?",
    )
    # A run without a checkpoint starts over; one whose checkpoints are all damaged fails.
    if list_checkpoints(folder / "checkpoints"):
        trainer.resume(partial(_weights, full, light, run))
    if not trainer.fit():
        raise KeyboardInterrupt
    best = trainer.state
    result = {
        "seed": run.seed,
        "best": best.best,
        "best_step": best.best_step,
        "steps": best.step,
        "elapsed_s": round(best.elapsed_s, 2),
    }
    if world.leads:
        write_json(folder / RESULT, result)
        # A finished run needs only its model: nothing resumes from here.
        remove_folder(folder / "checkpoints")
    if trainer.asked_to_stop:
        raise KeyboardInterrupt
    return result


def _judge(run: Run, model: TaskModel, held: EncodedSplit) -> dict[str, float]:
    """Score a model on the held-out examples."""
    recipe, options = run.recipe, run.recipe.head
    outputs = row_outputs(model, held.examples, budget_tokens=recipe.train.batch_tokens, dtype=run.machine.dtype)
    if recipe.kind in ("multilabel", "answer"):  # with the threshold that calibration would fit
        options, _ = calibrate(recipe.kind, options, held, outputs)
    return decide_and_score(recipe.task, held, outputs, options)[1].scores


def decide_and_score(
    task: str, split: EncodedSplit, outputs: Sequence[Outputs], options: Any
) -> tuple[list[Any], Scored]:
    """Predictions from ``outputs``, without what scores do not read, and their scores; ``options``: the head's."""
    answers = TASKS[kind_of_task(task)].decide(split.records, split.examples, outputs, options)
    return answers, score_outputs(task, split.records, answers, getattr(options, "labels", ()), split.noted)


def _save_model(run: Run, model: TaskModel, place: Path, facts: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """Write the model's folder with these weights; ``facts`` are the trainer's."""
    recipe, base = run.recipe, run.base
    # The trainer's "dev" score is the held-out score here, not that of the dev file.
    origin = {"recipe": to_dict(recipe), "seed": run.seed, "base": base.origin}
    origin |= {"step": facts["step"], HELD_OUT: facts["dev"]}
    if (pairs := reads_pairs(run.held.records)) is not None:
        origin[PAIRS] = pairs
    untrained = still_untrained(base, model)
    write_model(
        place, base.system_name, recipe.kind, model, base.tokenizer, origin, untrained=untrained, weights=weights
    )


def still_untrained(base: Base, model: TaskModel) -> tuple[str, ...]:
    """The parts of the encoder that the base never trained, and that this fine-tuning does not train either."""

    def learns(part: str) -> bool:
        read = part != "pooler" or model.features.summary
        return read and any(p.requires_grad for p in getattr(model.encoder, part).parameters())

    return tuple(f"encoder.{part}" for part in base.untrained if not learns(part))


def _flops(base: Base, passes: int, batch: Batch) -> float:
    """Operations of the encoder in so many passes over a batch; with stored features it does not run."""
    return passes * SYSTEMS[base.system_name].flops(base.config, batch) if passes else 0.0


def with_stored_features(full: TaskModel, run: Run) -> tuple[TaskModel, list[Example], EncodedSplit]:
    """Replace the encoder by stored vectors; returns the model and the examples that refer to them.

    Trainable parts are shared with the full model.
    """
    every = [*run.train, *run.held.examples]
    budget = run.recipe.train.batch_tokens
    stored, referring = store_features(full, every, run.features, dtype=run.machine.dtype, budget_tokens=budget)
    light = copy.copy(full)
    light._modules = {**full._modules, "encoder": stored}
    return light, referring[: len(run.train)], dataclasses.replace(run.held, examples=referring[len(run.train) :])


def _weights(full: TaskModel, light: TaskModel, run: Run, folder: Path) -> dict[str, Tensor]:
    """The state of the trained model, from a checkpoint of the full one."""
    names = tensor_names(run.base.system_name, run.recipe.kind, run.recipe.head)
    state = read_weights(folder, full, names, run.base.config)
    wanted = light.state_dict()
    return {name: tensor for name, tensor in state.items() if name in wanted}


def rewrite_model(folder: Path, loaded: Loaded, *, options: Any = None, facts: Mapping[str, Any] | None = None) -> None:
    """Rewrite a fine-tuned model in ``folder`` with what is known only after training.

    ``options``: fitted ones (a temperature, a threshold); ``facts``: further provenance, such as scores.
    """
    model = loaded.objective
    if options is not None:
        model.config = options

    provenance = loaded.provenance | dict(facts or {})

    def fill(place: Path) -> None:
        write_model(
            place,
            loaded.system_name,
            loaded.task,
            model,
            loaded.tokenizer,
            provenance,
            untrained=loaded.untrained,
            embedding=loaded.embedding,
        )

    write_folder(folder, fill)


def split_of(base: Base, recipe: Finetune, records: Sequence[Record]) -> EncodedSplit:
    """Build the sequences of the records, as the recipe's head reads them."""
    return read_split(recipe.kind, records, base.maker(recipe.head), recipe.head)
