"""``firth evaluate``: a model on labelled data, or any system's predictions against what is right."""

import copy
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from firth.config import file_sha256
from firth.errors import ConfigError, InputError
from firth.finetuning.labelled import METRICS, kind_of_task, read_file, score_task
from firth.finetuning.recipe import LabelledConfig
from firth.folder import PRETRAINING, WEIGHTS, Loaded
from firth.formats.foreign import open_model
from firth.inference.answering import chunks, task_model
from firth.inference.ensemble import check_members, ensemble_records
from firth.inference.fast import Precision, make_fast
from firth.inference.gate import MAX_DROP, Gate, gated_folder, record_gate
from firth.machine import find_machine
from firth.progress import Progress
from firth.tasks.datasets import DATASETS
from firth.tasks.predictions import Answered, Chosen, Labelled, MultiLabelled, Span, TaggedText, Valued
from firth.tasks.readers.files import Problems, read_json, read_lines
from firth.tasks.readers.tagging import in_bio, read_conll
from firth.tasks.reading import check_labels, labels_of, read_dataset, split_files
from firth.text.records import Choice, Question, Record, Tagged


def evaluate(
    model: str | Path,
    data: str,
    config: LabelledConfig,
    *,
    task: str = "",
    split: str = "dev",
    precision: Precision = "float32",
    max_drop: float | None = None,
    others: Sequence[str | Path] = (),
) -> dict[str, Any]:
    """Scores of a fine-tuned model on a file, or with ``task`` on a split of a published data set in folder ``data``.

    Returns ``scores``, ``examples`` and ``notes``. ConfigError if the model has not learnt a task or another one.

    ``precision``: what the encoder computes in. With ``max_drop``, and for int8 in any case, float32 is scored too:
    ``compared`` then has its scores, and by how many points the score that the task is known by is below it. int8
    within ``max_drop`` is recorded in the model folder, which is what ``firth.load`` asks for. ``others``: models whose
    answers are averaged with this one's (``firth.Ensemble``).
    """
    if max_drop is not None:
        _check_drop(precision, max_drop)
    if others and (precision == "int8" or max_drop is not None):
        raise ConfigError("--precision int8 and --max-drop judge one model: leave out --with, and judge each by itself")
    folder = gated_folder(model) if precision == "int8" else None
    weights = file_sha256(folder / WEIGHTS) if folder is not None else ""
    loaded = open_model(model)
    if loaded.task == PRETRAINING and loaded.system.predict == "translation":
        raise ConfigError(f"{model} translates: give --gold as well, the file of translations to compare with")
    if loaded.task == PRETRAINING:
        raise ConfigError(f"{model} has not learnt a task yet: fine-tune it with firth finetune --model {model}")
    members = [loaded, *map(open_model, others)]
    check_members(members, [str(name) for name in (model, *others)])
    if task and kind_of_task(task) != loaded.task:
        raise ConfigError(f"{model} is a model for {loaded.task}, but {task} is a task of kind {kind_of_task(task)}")
    problems = Problems(skip_bad=config.skip_bad)
    records = read_gold(task or loaded.task, data, config, problems, split)
    objective = task_model(loaded)
    if labels := getattr(objective.config, "labels", ()):
        records = check_labels(records, labels, problems)
    device = torch.device("cpu") if precision == "int8" else find_machine("float32").device
    objective.to(device)
    task = task or loaded.task
    plain: dict[str, float] | None = None
    if precision == "int8" or max_drop is not None:
        # Of a copy, and first: what this machine cannot do is said before the longer pass.
        fast, path = make_fast(copy.deepcopy(objective.encoder), precision, device)
        plain, _ = _scores(task, members, records, "evaluating float32")
    else:
        fast, path = make_fast(objective.encoder, precision, device)
    objective.encoder = fast
    for member in members[1:]:
        member.objective.to(device)
        member.objective.encoder, _ = make_fast(member.objective.encoder, precision, device)
    scores, noted = _scores(task, members, records, "evaluating")
    notes = [*problems.report(), *(f"{what}: {n:,} examples" for what, n in noted.items())]
    result = {"task": task, "scores": scores, "examples": len(records), "notes": notes, "path": path}
    if plain is None:
        return result
    compared = compare(task, plain, scores, MAX_DROP if max_drop is None else max_drop)
    if folder is not None:
        metric = compared["metric"]
        gate = Gate(
            weights=weights, task=task, data=_checksums(task, data, split), examples=len(records), metric=metric,
            float32=plain[metric], int8=scores[metric], max_drop=compared["max_drop"],
        )  # fmt: skip
        record_gate(folder, gate, passed=compared["passed"])
    return result | {"compared": compared}


def _check_drop(precision: Precision, max_drop: float) -> None:
    if precision == "float32":
        raise ConfigError("--max-drop compares another precision with float32: give --precision too")
    if not 0 <= max_drop <= 100:
        raise ConfigError(f"--max-drop {max_drop}: expected points from 0 to 100, such as {MAX_DROP}")


def _scores(
    task: str, members: Sequence[Loaded], records: Sequence[Any], what: str
) -> tuple[dict[str, float], dict[str, int]]:
    """The scores of one model or several, and how many texts were too long for a row, by what was done with them."""
    answers, noted = [], dict[str, int]()
    with Progress(what, len(records), "examples") as progress:
        for some in chunks(records, 1024):
            found, cut = ensemble_records(members, some)
            answers += found
            noted = {what: noted.get(what, 0) + cut.get(what, 0) for what in noted.keys() | cut.keys()}
            progress.advance(len(some))
    return score_task(task, records, answers, getattr(task_model(members[0]).config, "labels", ())), noted


def compare(task: str, plain: dict[str, float], scores: dict[str, float], max_drop: float) -> dict[str, Any]:
    """What fewer bits cost: the ``drop``, in points, of the score that the task is known by."""
    known = DATASETS[task].metrics if task in DATASETS else METRICS[kind_of_task(task)]
    metric = next(name for name in (*known, *plain) if name in plain)
    drop = 100 * (plain[metric] - scores[metric])
    # Not a number, as of a constant's correlation, is no score that has been kept. Differences of decimal fractions
    # are a little off: 0.75 and 0.745 are 0.5 points apart.
    passed = drop <= max_drop + 1e-9
    return {"float32": plain, "metric": metric, "drop": drop, "max_drop": max_drop, "passed": passed}


def _checksums(task: str, data: str, split: str) -> dict[str, str]:
    """SHA-256 of each file that was read, by its name."""
    paths = [Path(data)] if Path(data).is_file() else split_files(task, Path(data), split)
    return {path.name: file_sha256(path) for path in paths}


def read_gold(task: str, data: str, config: LabelledConfig, problems: Problems, split: str = "dev") -> list[Any]:
    """Labelled records: a file of a kind, or a split of a data set (``data`` is its folder, or one of its files)."""
    if task not in DATASETS:
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


def score_predictions(
    task: str, gold: str, predictions: str, config: LabelledConfig, *, split: str = "dev", odds: str = ""
) -> dict[str, Any]:
    """Scores of a file of predictions, whoever made them.

    Predictions are in the order of the gold examples, or have their ids: the JSONL of ``firth predict``, one label (or
    number) a line, GLUE's ``index<TAB>prediction`` with header, CoNLL columns with the predicted tag last; for
    questions SQuAD's JSON object of answers by id, with its null odds in the file ``odds``.
    """
    kind = kind_of_task(task)
    problems = Problems(skip_bad=config.skip_bad)
    records = read_gold(task, gold, config, problems, split)
    path = Path(predictions)
    answers: list[Any]
    if kind == "answer" and path.suffix == ".json":
        answers = _squad_answers(path, records, Path(odds) if odds else None)
    elif kind == "tag" and path.suffix != ".jsonl":
        answers = _conll_tags(path, records, problems)
    else:
        answers = _answers(kind, path, records)
    found = (DATASETS[task].labels if task in DATASETS else None) or _labels(records, answers, problems)
    _check_answers(kind, answers, found, path)
    try:
        scores = score_task(task, records, answers, found)
    except ValueError as error:  # a tag that is none
        raise InputError(f"{path}: {error}") from None
    return {"task": task, "scores": scores, "examples": len(records), "notes": problems.report()}


def _labels(records: Sequence[Record], answers: Sequence[Any], problems: Problems) -> tuple[str, ...]:
    """The labels of the gold examples, and those that are predicted alone: these are wrong wherever they stand."""
    gold = labels_of(records)
    predicted = {answer.label for answer in answers if isinstance(answer, Labelled)}
    predicted.update(label for answer in answers if isinstance(answer, MultiLabelled) for label in answer.labels)
    strange = sorted(predicted - set(gold))
    if strange:
        problems.note(f"predicted, but not a label of any gold example: {', '.join(strange)}")
    return tuple(sorted({*gold, *strange}))


def _answers(kind: str, path: Path, records: Sequence[Record]) -> list[Any]:
    lines = [(number, line) for number, line in read_lines(path) if line.strip()]
    if len(lines) == len(records) + 1 and lines[0][1].split("\t")[0] in ("index", "id"):
        lines = lines[1:]
    if len(lines) != len(records):
        raise InputError(f"{path}: {len(lines)} predictions for {len(records)} examples; expected one each, in order")
    lines = _in_order(lines, records, path)
    answers = [_answer(kind, line, f"{path}:{number}") for number, line in lines]
    for answer, record, (number, _) in zip(answers, records, lines, strict=True):
        if isinstance(record, Tagged) and len(answer.tags) != len(record.spans):
            raise InputError(
                f"{path}:{number}: found {len(answer.tags)} tags, expected one for each of the {len(record.spans)} "
                f"words of {record.where}"
            )
        if isinstance(record, Choice) and not 0 <= answer.choice < len(record.choices):
            raise InputError(f"{path}:{number}: found choice {answer.choice}, expected 0 to {len(record.choices) - 1}")
    return _with_infinities(answers) if kind == "answer" else answers


def _with_infinities(answers: Sequence[Answered]) -> list[Answered]:
    """JSON has no infinity: where others have a no-answer score, none means that nothing could be answered."""
    if all(answer.no_answer_score is None for answer in answers):
        return list(answers)
    sure = math.inf
    return [a if a.no_answer_score is not None else dataclasses.replace(a, no_answer_score=sure) for a in answers]


def _in_order(lines: list[tuple[int, str]], records: Sequence[Record], path: Path) -> list[tuple[int, str]]:
    """The lines in the order of the examples, where both say which is which."""
    ids = [_id_of(line) for _, line in lines]
    if not all(ids) or not all(record.id for record in records):
        return lines
    by_id = dict(zip(ids, lines, strict=True))
    missing = [record for record in records if record.id not in by_id]
    if missing or len(by_id) < len(lines):
        what = f"no prediction for {missing[0].id!r} ({missing[0].where})" if missing else "an id twice"
        raise InputError(f"{path}: found {what}, expected each id of the gold examples once")
    return [by_id[record.id] for record in records]


def _id_of(line: str) -> str:
    """The id in a JSON object; none if it cannot be read, which is said where the line is."""
    try:
        found = json.loads(line) if line.lstrip().startswith("{") else {}
    except ValueError:
        return ""
    return str(found["id"]) if isinstance(found, dict) and found.get("id") not in (None, "") else ""


def _answer(kind: str, line: str, where: str) -> Any:
    """One line as a prediction: an object as ``firth predict`` writes it, or the bare value in the last column."""
    value: Any = line.rstrip("\r").split("\t")[-1]
    if line.lstrip().startswith("{"):
        try:
            found = json.loads(line)
        except ValueError as error:
            raise InputError(f"{where}: not JSON ({error})") from None
        key = _KEYS[kind]
        if key not in found:
            raise InputError(f"{where}: found no {key!r}, expected the object that firth predict writes")
        value = found[key]
        if value is None:
            raise InputError(f"{where}: found null as {key!r}, expected a value")
        if kind == "answer" and found.get("no_answer_score") is not None:
            return _with_score(value, found, where)
    try:
        return _MAKE[kind](value)
    except (TypeError, ValueError):
        raise InputError(f"{where}: found {value!r}, expected {_KEYS[kind]}") from None


_KEYS = {
    "classify": "label", "multilabel": "labels", "regress": "value", "tag": "tags", "answer": "text", "choose": "choice"
}  # fmt: skip
_MAKE: dict[str, Any] = {
    "classify": lambda v: Labelled(str(v), 1.0, {}),
    "multilabel": lambda v: MultiLabelled(tuple(v.split("|") if isinstance(v, str) else map(str, v)), {}),
    "regress": lambda v: Valued(_finite(v)),
    "tag": lambda v: TaggedText(tuple(map(str, v)), (), ()),
    "answer": lambda v: Answered(str(v), 0, 0, 1.0, None, ()),
    "choose": lambda v: Chosen(int(v), "", ()),
}


def _with_score(text: Any, found: dict[str, Any], where: str) -> Answered:
    """An answer with its no-answer score, and the best answer that was or would have been given."""
    try:
        score = _finite(found["no_answer_score"])
        others = [str(span["text"]) for span in found.get("n_best", ())]
    except (TypeError, ValueError, KeyError):
        raise InputError(f"{where}: no_answer_score or n_best are not as firth predict writes them") from None
    best = next((other for other in [str(text), *others] if other), "")
    return Answered(str(text), 0, 0, 1.0, score, (Span(best, 0, 0, 0.0, 1.0),) if best else ())


def _finite(value: Any) -> float:
    number = float(value)
    if number - number != 0:
        raise ValueError(value)
    return number


def _squad_answers(path: Path, records: Sequence[Question], odds: Path | None) -> list[Answered]:
    found = read_json(path)
    if not isinstance(found, Mapping):
        raise InputError(f"{path}: found {type(found).__name__}, expected an object of answers by question id")
    scores: Any = read_json(odds) if odds else {}
    if not isinstance(scores, Mapping):
        raise InputError(f"{odds}: found {type(scores).__name__}, expected an object of numbers by question id")
    missing = [record for record in records if record.id not in found]
    if missing:
        raise InputError(
            f"{path}: no answer for {len(missing)} questions, such as {missing[0].id!r} ({missing[0].where}); "
            "expected one for each, empty for no answer"
        )
    answers = []
    for record in records:
        text, score = found[record.id], scores.get(record.id)
        if not isinstance(text, str):
            raise InputError(f"{path}: {record.id}: found {text!r}, expected the text of an answer")
        try:
            number = None if score is None else _finite(score)
        except (TypeError, ValueError):
            raise InputError(f"{odds}: {record.id}: found {score!r}, expected a number") from None
        n_best = (Span(text, 0, 0, 0.0, 1.0),) if text else ()
        answers.append(Answered(text, 0, 0, 1.0, number, n_best))
    return answers


def _conll_tags(path: Path, records: Sequence[Tagged], problems: Problems) -> list[TaggedText]:
    read = list(read_conll(path, problems))
    try:
        sentences = in_bio(read, Problems())
    except InputError as error:
        # Systems say what they like: an I- that follows nothing is scored as conlleval does.
        problems.note(f"predicted tags are scored as they are: {error}")
        sentences = read
    if len(sentences) != len(records):
        raise InputError(f"{path}: {len(sentences)} sentences for {len(records)}; expected the same ones, in order")
    for found, record in zip(sentences, records, strict=True):
        if len(found.spans) != len(record.spans):
            raise InputError(f"{found.where}: {len(found.spans)} words, {record.where} has {len(record.spans)}")
    return [TaggedText(found.tags or (), (), ()) for found in sentences]


def _check_answers(kind: str, answers: Sequence[Any], labels: Sequence[str], path: Path) -> None:
    if kind != "classify":
        return
    for number, answer in enumerate(answers, start=1):
        if answer.label not in labels:
            raise InputError(f"{path}: prediction {number}: {answer.label!r}: expected one of {', '.join(labels)}")
