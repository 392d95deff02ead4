"""``firth evaluate``: score a model on labelled data."""

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from firth.baseline.folder import find_baseline, read_baseline
from firth.baseline.model import Baseline
from firth.errors import ConfigError
from firth.finetuning.baseline import score_baseline
from firth.finetuning.own_files import read_file, with_columns
from firth.finetuning.recipe import LabelledConfig
from firth.folder import PRETRAINING, WEIGHTS, Loaded
from firth.formats.table import open_model
from firth.inference.answering import task_model
from firth.inference.ensemble import check_members, ensemble_records
from firth.inference.fast import make_fast
from firth.inference.gate import MAX_DROP, Gate, gated_folder, record_gate
from firth.inference.joint import find_joint, read_joint
from firth.inference.loading import check_baseline_options
from firth.inference.precision import ON_CPU, Precision, check_precision
from firth.inference.score import Answer, score_records
from firth.machine import find_machine
from firth.manifest import file_sha256
from firth.tasks.datasets import DATASETS
from firth.tasks.items import RECORDS
from firth.tasks.kinds import kind_of_task, metrics_of
from firth.tasks.learnt import check_pairs, learnt_columns, learnt_pairs
from firth.tasks.published_answers import recover_published
from firth.tasks.readers.files import Problems
from firth.tasks.reading import check_labels, note_constant, note_unanswerable, read_dataset, split_files
from firth.tasks.tag_units import in_units
from firth.text.records import Text
from firth.text.tokenizer import Tokenizer

# Format, columns and header are detected from the file.
_AS_FOUND = LabelledConfig()


def evaluate(
    model: str | Path,
    data: str | Path,
    config: LabelledConfig = _AS_FOUND,
    *,
    task: str = "",
    split: str = "dev",
    precision: Precision = "float32",
    max_drop: float | None = None,
    others: str | Path | Sequence[str | Path] = (),
    published_text: bool = False,
) -> dict[str, Any]:
    """Score a fine-tuned model on a file, or with ``task`` on a split of a published data set in folder ``data``.

    Returns ``scores``, ``breakdown`` (``firth.tasks.breakdown``), ``examples`` and ``notes``. ConfigError if the model
    is not fine-tuned, or fine-tuned for another task.

    ``precision``: the encoder's dtype. With ``max_drop``, and always for int8, float32 is scored too:
    ``compared`` then has its scores, and the drop of the task's main score in points. An int8 drop within ``max_drop``
    is recorded in the model folder, which ``firth.load`` requires for int8. ``others``: models whose predictions are
    averaged with this one's (``firth.Ensemble``). ``published_text``: answers to questions get the texts that
    google-research/bert recovers.
    """
    data = str(data)
    others = [others] if isinstance(others, str | Path) else list(others)
    check_precision(precision)
    if max_drop is not None:
        _check_drop(precision, max_drop)
    if others and (precision == "int8" or max_drop is not None):
        raise ConfigError(
            "--precision int8 and --max-drop evaluate one model: leave out --with, and evaluate each separately"
        )
    if find_baseline(model) is not None:
        check_baseline_options(str(model), precision=precision, compile=False)
        _check_alone(f"{model} is a baseline", others, max_drop, published_text)
        return _evaluate_method(model, read_baseline(model), "NumPy and SciPy on the CPU", data, config, task, split)
    if find_joint(model) is not None:
        _check_alone(f"{model} is a joint model", others, max_drop, published_text)
        joint = read_joint(model, precision=precision)
        return _evaluate_method(model, joint, "TF-IDF and an encoder", data, config, task, split)
    folder = gated_folder(model) if precision == "int8" else None
    weights = file_sha256(folder / WEIGHTS) if folder is not None else ""
    loaded = open_model(model)
    if loaded.task == PRETRAINING and loaded.system.predict == "translation":
        raise ConfigError(f"{model} translates: give --gold as well, the file of translations to compare with")
    if loaded.task == PRETRAINING:
        raise ConfigError(f"{model} is not fine-tuned for a task: fine-tune it with firth finetune --model {model}")
    members = [loaded, *map(open_model, others)]
    check_members(members, [str(name) for name in (model, *others)])
    _check_kind(model, loaded.task, task)
    if published_text and loaded.task != "answer":
        raise ConfigError(f"--recover-text is for question answering, {model} is a model for {loaded.task}")
    problems = Problems(skip_bad=config.skip_bad)
    objective = task_model(loaded)
    labels = getattr(objective.config, "labels", ())
    records = read_gold_of(loaded, task, data, config, problems, split)
    device = torch.device("cpu") if precision in ON_CPU else find_machine("float32").device
    objective.to(device)
    task = task or loaded.task
    answer: Answer = partial(ensemble_records, members)
    if published_text:
        answer = partial(_published, answer, loaded.tokenizer)
    plain: dict[str, float] | None = None
    if precision == "int8" or max_drop is not None:
        # First, and on a copy: a machine that cannot run it fails before the longer pass.
        fast, path = make_fast(copy.deepcopy(objective.encoder), precision, device)
        plain = score_records(task, records, labels, answer, "evaluating float32").scores
    else:
        fast, path = make_fast(objective.encoder, precision, device)
    objective.encoder = fast
    for member in members[1:]:
        member.objective.to(device)
        member.objective.encoder, _ = make_fast(member.objective.encoder, precision, device)
    scored = score_records(task, records, labels, answer, "evaluating")
    notes = [*problems.report(), *scored.notes()]
    result = {"task": task, **scored.to_dict(), "examples": len(records), "notes": notes, "path": path}
    if plain is None:
        return result
    compared = compare_precisions(task, plain, scored.scores, MAX_DROP if max_drop is None else max_drop)
    if folder is not None:
        metric = compared["metric"]
        gate = Gate(
            weights=weights,
            task=task,
            data=_checksums(task, data, split),
            examples=len(records),
            metric=metric,
            float32=plain[metric],
            int8=scored.scores[metric],
            max_drop=compared["max_drop"],
        )
        record_gate(folder, gate, passed=compared["passed"])
    return result | {"compared": compared}


def _published(answer: Answer, tokenizer: Tokenizer, records: Sequence[Any]) -> tuple[list[Any], dict[str, int]]:
    """Answers to questions with the texts that google-research/bert recovers, and notes."""
    found, noted = answer(records)
    return list(recover_published(records, found, tokenizer)), dict(noted)


def _evaluate_method(
    model: str | Path, baseline: Baseline, path: str, data: str, config: LabelledConfig, task: str, split: str
) -> dict[str, Any]:
    _check_kind(model, baseline.task, task)
    problems = Problems(skip_bad=config.skip_bad)
    config = _columns_of(task, baseline.task, data, config, problems, baseline.provenance, baseline.labels)
    records = read_gold(task or baseline.task, data, config, problems, split)
    if baseline.task == "tag":
        records = in_units(records, baseline.method.unit, problems)
    records = _checked(records, baseline.pairs, baseline.labels, problems)
    task = task or baseline.task
    scored = score_baseline(task, baseline, records, "evaluating")
    notes = [*problems.report(), *scored.notes()]
    return {"task": task, **scored.to_dict(), "examples": len(records), "notes": notes, "path": path}


def read_gold_of(
    loaded: Loaded, task: str, data: str, config: LabelledConfig, problems: Problems, split: str = "dev"
) -> list[Any]:
    """Read labelled records as a fine-tuned model reads them: with its columns and labels.

    ``task``: a data set, or empty for a file of the model's own kind. InputError for a label that the model does not
    know, and for pairs of texts where it has learnt from single ones, or the reverse.
    """
    options = task_model(loaded).config
    labels = getattr(options, "labels", ())
    config = _columns_of(task, loaded.task, data, config, problems, loaded.provenance, labels)
    records = read_gold(task or loaded.task, data, config, problems, split)
    if loaded.task == "tag":
        records = in_units(records, options.unit, problems)
    if loaded.task == "answer" and not options.can_refuse:
        note_unanswerable("the file", records, problems)
    pairs = learnt_pairs(loaded.provenance) if RECORDS[loaded.task] is Text else None
    return _checked(records, pairs, labels, problems)


def _checked(records: list[Any], pairs: bool | None, labels: Sequence[str], problems: Problems) -> list[Any]:
    check_pairs(records, pairs)
    records = check_labels(records, labels, problems) if labels else records
    note_constant("the file", records, labels, problems)
    return records


def _columns_of(
    task: str,
    kind: str,
    data: str,
    config: LabelledConfig,
    problems: Problems,
    provenance: Mapping[str, Any],
    labels: Sequence[str],
) -> LabelledConfig:
    """The columns of the model's training data, for a file of a kind."""
    if task in DATASETS:
        return config
    return with_columns(kind, data, config, problems, learnt=learnt_columns(provenance), labels=labels)


def _check_kind(model: str | Path, kind: str, task: str) -> None:
    if task and kind_of_task(task) != kind:
        raise ConfigError(f"{model} is a model for {kind}, but {task} is a task of kind {kind_of_task(task)}")


def _check_drop(precision: Precision, max_drop: float) -> None:
    if precision == "float32":
        raise ConfigError("--max-drop compares another precision with float32: give --precision too")
    if not 0 <= max_drop <= 100:
        raise ConfigError(f"--max-drop {max_drop}: expected points from 0 to 100, such as {MAX_DROP}")


def _check_alone(what: str, others: Sequence[str | Path], max_drop: float | None, published_text: bool) -> None:
    """Raise ConfigError for options that only a model with a single encoder supports."""
    flags = {"--with": bool(others), "--max-drop": max_drop is not None, "--recover-text": published_text}
    given = [flag for flag, is_given in flags.items() if is_given]
    if given:
        raise ConfigError(f"{what}, which is evaluated alone: leave out {' and '.join(given)}")


def compare_precisions(task: str, plain: dict[str, float], scores: dict[str, float], max_drop: float) -> dict[str, Any]:
    """Compare a lower precision with float32: the ``drop``, in points, of the task's main score."""
    metric = next(name for name in (*metrics_of(task), *plain) if name in plain)
    drop = 100 * (plain[metric] - scores[metric])
    # NaN, such as the correlation of a constant, never passes. Rounding allows for binary fractions: 0.75 and 0.745
    # are 0.5 points apart.
    passed = drop <= max_drop + 1e-9
    return {"float32": plain, "metric": metric, "drop": drop, "max_drop": max_drop, "passed": passed}


def _checksums(task: str, data: str, split: str) -> dict[str, str]:
    """SHA-256 of each file read, by name."""
    paths = [Path(data)] if Path(data).is_file() else split_files(task, Path(data), split)
    return {path.name: file_sha256(path) for path in paths}


def read_gold(task: str, data: str, config: LabelledConfig, problems: Problems, split: str = "dev") -> list[Any]:
    """Read labelled records from a file, or a split of a data set (``data`` is its folder, or one of its files)."""
    if task not in DATASETS:
        if split != "dev":
            raise ConfigError(f"--split {split} is for a --task that names a data set: leave it out")
        return read_file(kind_of_task(task), data, config, problems)
    if split not in DATASETS[task].splits:
        raise ConfigError(f"--split {split}: {task} has {', '.join(DATASETS[task].splits)}")
    if (config.columns, config.format, config.header) != ("", "auto", "auto"):
        raise ConfigError(f"--task {task} reads files as they were published: leave out --columns, --header, --format")
    if Path(data).is_file():
        records = list(DATASETS[task].splits[split].read(Path(data), problems))
        labels = DATASETS[task].labels
        return records if labels is None else check_labels(records, labels, problems)
    return list(read_dataset(task, Path(data), split, problems))
