"""Continue pre-training on the task's own text before fine-tuning (``adapt.text``, ``--adapt-text``).

OUT/adapted/
├── text.txt, corpus/, tokenizer/    what is read; removed once the stage is finished
├── run/                             a pre-training run: recipe.toml, log.jsonl, model/
└── done.json                        marks the stage as finished, with what it read

Source: Gururangan et al. 2020, "Don't Stop Pretraining" (domain- and task-adaptive pre-training).
"""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from firth.corpus.prepare import prepare
from firth.errors import ConfigError
from firth.files import remove_folder, write_json, write_text
from firth.finetuning.base import Base
from firth.finetuning.labelled import LabelledData
from firth.finetuning.recipe import TASK_TEXT, Finetune
from firth.folder import read_model
from firth.manifest import MANIFEST, file_sha256
from firth.pretraining.length import with_steps
from firth.pretraining.recipe import Pretrain, read_recipe
from firth.pretraining.run import RECIPE, Outcome, measure_pace, pretrain_or_resume, recipe_of
from firth.pretraining.several import Processes, most_processes
from firth.systems import SYSTEMS
from firth.tasks.datasets import DATASETS
from firth.tasks.reading import split_files, splits_in
from firth.text.archives import open_packed
from firth.text.finding import find_files
from firth.text.records import Choice, Question, Record, Text
from firth.training.collectives import World

FOLDER, DONE = "adapted", "done.json"
# If the recipe gives no length: this many epochs, but no longer than this many minutes.
EPOCHS, MINUTES = 5.0, 10.0
_LENGTH = 128
_STEP_TOKENS = 2048
# Seconds to measure the speed.
_MEASURE_S = 2.0


def check_adaptation(recipe: Finetune, base: Base) -> None:
    """Check that the model can be adapted to the files, before anything is written; else ConfigError."""
    if not recipe.adapt.text:
        return
    if base.weights is None:
        raise ConfigError("adapt.text continues pre-training: leave out --from-scratch, or give a pre-trained --model")
    if base.origin.get("task"):
        raise ConfigError(
            f"adapt.text: {recipe.model} is fine-tuned: only a pre-trained model can be adapted to a text"
        )
    if SYSTEMS[base.system_name].predict == "translation":
        raise ConfigError(f"adapt.text: {base.system_name} learns from parallel text, which this is not: leave it out")
    held_back = {_content(file): split for file, split in _scored_files(recipe)}
    trained = {_content(file) for file in _training_files(recipe)}
    for file in text_files(recipe):
        if split := held_back.get(_content(file)):
            raise ConfigError(f"adapt.text: {file} is the {split} file, which only scores the model: give other text")
        if _content(file) in trained:
            raise ConfigError(
                f"adapt.text: {file} is the training file, with its labels and held-out examples: give "
                f"{TASK_TEXT!r} instead (--adapt-text {TASK_TEXT}), which reads the texts trained on"
            )


def _content(file: Path) -> str:
    """The checksum of a file's content, compressed or not."""
    with open_packed(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]  # it reads as a file does


def _scored_files(recipe: Finetune) -> list[tuple[Path, str]]:
    """The files that the model is not trained on, each with the name of its split."""
    data = recipe.data
    if recipe.task not in DATASETS:
        return [(Path(data.dev), "dev")] if data.dev else []
    folder = Path(data.folder)
    trained = split_files(recipe.task, folder, "train")
    return [
        (file, split)
        for split in splits_in(recipe.task, folder)
        for file in split_files(recipe.task, folder, split)
        if file not in trained
    ]


def _training_files(recipe: Finetune) -> list[Path]:
    if recipe.task in DATASETS:
        return split_files(recipe.task, Path(recipe.data.folder), "train")
    return [Path(recipe.data.train)] if recipe.data.train else []


def text_files(recipe: Finetune) -> list[Path]:
    """The files of ``adapt.text``, without the task's own text; InputError or ConfigError if one is missing."""
    named = [path for path in recipe.adapt.text if path != TASK_TEXT]
    return find_files(named) if named else []


def text_hashes(recipe: Finetune) -> list[str]:
    """What identifies the text: the checksum of each file."""
    return [file_sha256(file) for file in text_files(recipe)]


def texts_of(records: Sequence[Record]) -> list[str]:
    """The distinct texts of some records, in order, without labels."""
    found: list[str | None] = []
    for record in records:
        if isinstance(record, Question):
            found += [record.context, record.question]
        elif isinstance(record, Choice):
            found += [record.text, record.question, *record.choices]
        else:
            found += [record.text, record.second if isinstance(record, Text) else None]
    return [text for text in dict.fromkeys(found) if text and text.strip()]


def adapt(
    recipe: Finetune,
    base: Base,
    labelled: LabelledData,
    out: Path,
    tell: Callable[[str], None],
    processes: Processes = "auto",
) -> None:
    """Run the stage in ``out``, or resume it there. KeyboardInterrupt if asked to stop.

    The task's own text is that of the examples trained on: neither the held-out ones nor a dev file's.
    """
    folder = out / FOLDER
    if not (folder / DONE).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        outcome = _train(recipe, base, labelled, folder, tell, processes)
        before = _loss_before(folder / "run")
        if before is not None and outcome.best is not None and outcome.best > before:
            tell(
                f"adapt.text: the held-out loss rose from {before:.3f} to {outcome.best:.3f}: the text has taught the "
                "model less than it forgot; leave out adapt.text, or give more text"
            )
        facts = {"steps": outcome.step, "before": before, "best": outcome.best, "text": list(recipe.adapt.text)}
        write_json(folder / DONE, facts)
    # Also after a kill that came before they were removed.
    for name in ("corpus", "tokenizer"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "text.txt").unlink(missing_ok=True)
    remove_folder(folder / "run" / "checkpoints")


def _loss_before(run: Path) -> float | None:
    """The held-out loss before the first step; None if there was no held-out text."""
    with open(run / "log.jsonl", encoding="utf-8") as log:
        first = json.loads(next(log, "{}"))
    return first.get("loss") if first.get("event") == "dev" and first.get("step") == 0 else None


def _train(
    recipe: Finetune,
    base: Base,
    labelled: LabelledData,
    folder: Path,
    tell: Callable[[str], None],
    processes: Processes,
) -> Outcome:
    """Pre-train on the text, or resume that. At most so many of ``processes`` take part as can share a step."""
    run = folder / "run"
    if (run / RECIPE).is_file():
        stage = recipe_of(run)
    else:
        remove_folder(run)  # killed before its first checkpoint
        if not (folder / "corpus" / MANIFEST).is_file():
            _prepare(recipe, base, labelled, folder, tell)
        stage = _sized(recipe, base, folder / "corpus", run, tell)
    if processes != "auto":
        processes = min(processes, most_processes(stage))
    return pretrain_or_resume(run, lambda: stage, tell, processes, folder / "corpus")


def _prepare(recipe: Finetune, base: Base, labelled: LabelledData, folder: Path, tell: Callable[[str], None]) -> None:
    """Prepare a corpus of the text, with the model's own tokenizer."""
    paths = [str(path) for path in text_files(recipe)]
    if TASK_TEXT in recipe.adapt.text:
        own = texts_of(labelled.train)
        write_text(folder / "text.txt", "\n\n".join(text.strip() for text in own) + "\n")
        paths.append(str(folder / "text.txt"))
    remove_folder(folder / "tokenizer")
    (folder / "tokenizer").mkdir()
    base.tokenizer.save(folder / "tokenizer")
    report = prepare(paths, folder / "tokenizer", folder / "corpus")
    tell(f"adapt.text: continuing pre-training on {report.tokens:,} tokens of {report.documents:,} texts")


def _sized(recipe: Finetune, base: Base, corpus: Path, run: Path, tell: Callable[[str], None]) -> Pretrain:
    """The recipe of the stage: the system's own objective and settings, with steps for the given length."""
    row, adapt = SYSTEMS[base.system_name], recipe.adapt
    length = min(base.trained_length or _LENGTH, base.max_length or _LENGTH)
    plain: dict[str, Any] = {
        "model": recipe.model,
        # Texts of a task are short, and no text follows another: there is no next sentence to predict.
        "data": {"corpus": str(corpus), "instances": _instances(base)},
        "train": {
            "batch_tokens": max(_STEP_TOKENS, length),
            "precision": recipe.train.precision,
            "seed": recipe.train.seed,
        },
    }
    if "length" not in row.pretraining.get("data", {}):
        plain["data"]["length"] = length
    made = read_recipe(plain, (), "adapt.text", vocab_size=base.tokenizer.size)
    if row.tuned_width is not None:
        rate = made.optim.learning_rate * row.tuned_width / base.config.width
        made = dataclasses.replace(made, optim=dataclasses.replace(made.optim, learning_rate=rate))
    pace = measure_pace(made, run, World(), seconds=_MEASURE_S)
    epochs, minutes = adapt.text_epochs, adapt.text_minutes
    if not epochs and not minutes:
        epochs, minutes = EPOCHS, MINUTES
    trains = [dataclasses.replace(made.train, epochs=epochs)] if epochs else []
    trains += [dataclasses.replace(made.train, minutes=minutes)] if minutes else []
    options = [with_steps(dataclasses.replace(made, train=train), pace) for train in trains]
    chosen = min(options, key=lambda option: option.train.steps)
    tell(
        f"adapt.text: {chosen.train.steps:,} steps, {chosen.train.steps / pace.epoch_steps:.2g} epochs of it "
        "(adapt.text_epochs, adapt.text_minutes)"
    )
    return chosen


def _instances(base: Base) -> str:
    own = SYSTEMS[base.system_name].instances
    return "documents" if "documents" in own else own[0]


def adapted_base(base: Base, out: Path) -> Base:
    """The base with the weights that the stage has left in ``out``."""
    loaded = read_model(out / FOLDER / "run")
    weights = {name: t for name, t in loaded.objective.encoder.state_dict().items() if name in (base.weights or {})}
    origin = {"system": base.system_name, "task": "", "provenance": loaded.provenance | {"base": base.origin}}
    return dataclasses.replace(base, weights=weights, origin=origin)
