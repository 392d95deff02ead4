"""``firth score``: score prediction files of any system against gold answers."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from firth.errors import ConfigError, InputError
from firth.finetuning.evaluate import read_gold
from firth.finetuning.own_files import with_columns
from firth.finetuning.recipe import LabelledConfig
from firth.inference.defaults import TRANSLATE
from firth.inference.score import score_outputs
from firth.inference.translation_scores import score_translation_file
from firth.metrics.tagging import entities
from firth.tasks.datasets import DATASETS
from firth.tasks.kinds import kind_of_task
from firth.tasks.predictions import Answered, Chosen, Labelled, MultiLabelled, Span, TaggedText, Valued
from firth.tasks.readers.files import Problems, json_object, read_json_document, read_lines
from firth.tasks.readers.tagging import in_bio, read_conll, read_klue_ner
from firth.tasks.readers.texts import MULTILABEL_SEPARATOR, composed
from firth.tasks.reading import labels_of
from firth.tasks.tag_schemes import OUTSIDE, respelled, scheme_of
from firth.tasks.tag_units import by_character
from firth.text.records import Choice, Question, Record, Tagged

# Predictions with a no-answer score above it count as "no answer".
# Source: --na-prob-thresh of SQuAD's evaluate-v2.0.py.
NA_PROB_THRESHOLD = 1.0
_AS_PREDICTED = LabelledConfig()


def score_predictions(
    task: str,
    gold: str,
    predictions: str,
    config: LabelledConfig = _AS_PREDICTED,
    *,
    split: str = "dev",
    na_prob_file: str = "",
    na_prob_threshold: float | None = None,
) -> dict[str, Any]:
    """Score a file of predictions against the gold answers of a task (``"translate"``: against translations).

    Predictions are in the order of the gold examples, or have their ids: the JSONL of ``firth predict``, one label (or
    number) per line, GLUE's ``index<TAB>prediction`` with header, CoNLL columns with the predicted tag last; for
    questions SQuAD's JSON object of answers by id. ``na_prob_file``: a JSON object of no-answer scores by id, for
    questions that may have no answer; JSONL has its own. A prediction whose score is above ``na_prob_threshold``
    counts as "no answer"; if None, ``NA_PROB_THRESHOLD`` with a file, and no threshold without.

    Returns ``task``, ``scores``, ``breakdown``, ``examples`` and ``notes``. InputError for files that do not fit
    together.
    """
    if task == TRANSLATE:
        if na_prob_file or na_prob_threshold is not None:
            raise ConfigError(_ONLY_ANSWERS.format(task=task))
        return score_translation_file(predictions, gold)
    kind = kind_of_task(task)
    if kind != "answer" and (na_prob_file or na_prob_threshold is not None):
        raise ConfigError(_ONLY_ANSWERS.format(task=task))
    problems = Problems(skip_bad=config.skip_bad)
    if task not in DATASETS:
        config = with_columns(kind, gold, config, problems)
    records = read_gold(task, gold, config, problems, split)
    path = Path(predictions)
    if na_prob_file and path.suffix != ".json":
        raise ConfigError(f"na_prob_file belongs to a .json of answers by question id; {path} has scores of its own")
    answers: list[Any]
    if kind == "answer" and path.suffix == ".json":
        records, answers = _squad_answers(path, records, Path(na_prob_file) if na_prob_file else None)
    elif kind == "tag" and path.suffix != ".jsonl":
        answers = _conll_tags(path, records, problems, characters=config.format == "klue" or task == "klue/ner")
    else:
        answers = _answers(kind, path, records)
    if kind == "tag":
        records, answers = _aligned(records, _in_bio(answers, records, path), path)
    if na_prob_file or na_prob_threshold is not None:
        threshold = NA_PROB_THRESHOLD if na_prob_threshold is None else na_prob_threshold
        answers = _refused(answers, threshold, path)
    found = (DATASETS[task].labels if task in DATASETS else None) or _labels(records, answers, problems)
    _check_answers(kind, answers, found, path)
    try:
        scored = score_outputs(task, records, answers, found, {})
    except ValueError as error:  # not a valid tag
        raise InputError(f"{path}: {error}") from None
    return {"task": task, **scored.to_dict(), "examples": len(records), "notes": problems.report()}


_ONLY_ANSWERS = "na_prob_file and na_prob_threshold are for question answering, not for {task}: leave them out"


def _refused(answers: Sequence[Any], threshold: float, path: Path) -> list[Answered]:
    """Empty the answers whose no-answer score is above ``threshold``; the others get their best text."""
    if any(answer.no_answer_score is None for answer in answers):
        raise InputError(f"{path} has no no-answer scores: give them with --na-prob-file, or leave out the threshold")

    def text_of(answer: Answered) -> str:
        if (answer.no_answer_score or 0.0) > threshold:
            return ""
        return answer.text or next((span.text for span in answer.n_best if span.text), "")

    return [dataclasses.replace(answer, text=text_of(answer)) for answer in answers]


def _labels(records: Sequence[Record], answers: Sequence[Any], problems: Problems) -> tuple[str, ...]:
    """The labels of the gold examples, and those only predicted, which are always wrong."""
    gold = labels_of(records)
    predicted = {answer.label for answer in answers if isinstance(answer, Labelled)}
    predicted.update(label for answer in answers if isinstance(answer, MultiLabelled) for label in answer.labels)
    # Not noted: a small file lacks some tags of its scheme.
    tags = {tag for answer in answers if isinstance(answer, TaggedText) for tag in answer.tags}
    strange = sorted(predicted - set(gold))
    if strange:
        problems.note(f"predicted labels that no gold example has: {', '.join(strange)}")
    return tuple(sorted({*gold, *strange, *tags}))


def _answers(kind: str, path: Path, records: Sequence[Record]) -> list[Any]:
    lines = list(read_lines(path))
    # In a plain file of label sets a blank line is a text without labels.
    if kind != "multilabel" or any(line.lstrip().startswith("{") for _, line in lines):
        lines = [(number, line) for number, line in lines if line.strip()]
    title = lines[0][1].lower().partition("\t")[0] if lines and "\t" in lines[0][1] else ""
    header = title if title in ("index", "id") else ""
    lines = lines[bool(header) :]
    numbered = header or _are_numbers(lines)
    if len(lines) != len(records):
        raise InputError(f"{path}: {len(lines)} predictions for {len(records)} examples; expected one each, in order")
    lines = _by_number(lines, records, path, header) if numbered else _in_order(lines, records, path)
    answers = [_answer(kind, line, f"{path}:{number}") for number, line in lines]
    for answer, record, (number, _) in zip(answers, records, lines, strict=True):
        if isinstance(record, Tagged) and not answer.offsets and len(answer.tags) != len(record.spans):
            raise InputError(
                f"{path}:{number}: found {len(answer.tags)} tags, expected one for each of the {len(record.spans)} "
                f"words of {record.where}"
            )
        if isinstance(record, Choice) and not 0 <= answer.choice < len(record.choices):
            raise InputError(f"{path}:{number}: found choice {answer.choice}, expected 0 to {len(record.choices) - 1}")
    return _with_infinities(answers) if kind == "answer" else answers


def _with_infinities(answers: Sequence[Answered]) -> list[Answered]:
    """Set missing no-answer scores to infinity if other answers have one: JSON has no infinity."""
    if all(answer.no_answer_score is None for answer in answers):
        return list(answers)
    sure = math.inf
    return [a if a.no_answer_score is not None else dataclasses.replace(a, no_answer_score=sure) for a in answers]


def _in_order(lines: list[tuple[int, str]], records: Sequence[Record], path: Path) -> list[tuple[int, str]]:
    """Sort the lines by the ids of the examples, if both have ids."""
    ids = [_id_of(line) for _, line in lines]
    if not all(ids) or not all(record.id for record in records):
        return lines
    by_id = dict(zip(ids, lines, strict=True))
    missing = [record for record in records if record.id not in by_id]
    if missing or len(by_id) < len(lines):
        what = f"no prediction for {missing[0].id!r} ({missing[0].where})" if missing else "an id twice"
        raise InputError(f"{path}: found {what}, expected each id of the gold examples once")
    return [by_id[record.id] for record in records]


def _are_numbers(lines: list[tuple[int, str]]) -> bool:
    """Whether lines without a header have two columns, of which the first numbers them from 0 in any order."""
    columns = [line.split("\t") for _, line in lines]
    return all(len(one) == 2 for one in columns) and {one[0] for one in columns} == set(map(str, range(len(lines))))


def _by_number(
    lines: list[tuple[int, str]], records: Sequence[Record], path: Path, header: str
) -> list[tuple[int, str]]:
    """Sort the lines by their first column: the number of the example, from 0, as in GLUE, or its id.

    ``header``: the column's name, ``index`` or ``id``, which decides if both are possible; empty without a header.
    """
    by_name = {line.split("\t")[0].strip(): (number, line) for number, line in lines}
    numbers, ids = [str(n) for n in range(len(records))], [record.id for record in records]
    possible = [names for names in (numbers, ids) if by_name.keys() == set(names)]
    if not possible:
        raise InputError(
            f"{path}: expected 0 to {len(records) - 1} in the first column, or the ids of the examples, each once"
        )
    if possible[0] != possible[-1] and not header:
        raise InputError(
            f"{path}: the first column may number the examples, or name their ids, in another order: add a first "
            "line, index<TAB>prediction or id<TAB>prediction"
        )
    return [by_name[name] for name in possible[-1 if header == "id" else 0]]


def _id_of(line: str) -> str:
    """The id in a JSON object; empty if it cannot be read, which is reported later with the line."""
    try:
        found = json_object(line, "") if line.lstrip().startswith("{") else {}
    except InputError:
        return ""
    return str(found["id"]) if found.get("id") not in (None, "") else ""


def _answer(kind: str, line: str, where: str) -> Any:
    """Parse one line as a prediction: an object as ``firth predict`` writes it, or a plain value in the last column."""
    value: Any = line.rstrip("\r").split("\t")[-1]
    if line.lstrip().startswith("{"):
        found, key = json_object(line, where), _KEYS[kind]
        if key not in found:
            raise InputError(f"{where}: found no {key!r}, expected the object that firth predict writes")
        value = found[key]
        if value is None:
            raise InputError(f"{where}: found null as {key!r}, expected a value")
        if kind == "answer" and found.get("no_answer_score") is not None:
            return _with_score(value, found, where)
        if kind == "tag" and "offsets" in found:
            return _with_offsets(value, found["offsets"], where)
    try:
        return _MAKE[kind](value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{where}: found {value!r}, expected {_EXPECTED[kind]}") from None


_KEYS = {
    "classify": "label",
    "multilabel": "labels",
    "regress": "value",
    "tag": "tags",
    "answer": "text",
    "choose": "choice",
}
_EXPECTED = _KEYS | {"choose": "the number of the choice, counted from 0"}
_MAKE: dict[str, Any] = {
    "classify": lambda v: Labelled(_label(v), 1.0, {}),
    "multilabel": lambda v: MultiLabelled(_label_set(v), {}),
    "regress": lambda v: Valued(_finite(v)),
    "tag": lambda v: TaggedText(tuple(map(str, v)), (), ()),
    "answer": lambda v: Answered(str(v), 0, 0, 1.0, None, ()),
    "choose": lambda v: Chosen(_whole(v), "", ()),
}


def _label(value: Any) -> str:
    """A label as the data readers normalise it; TypeError for a list or an object."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise TypeError
    return composed(str(value))


def _whole(value: Any) -> int:
    """The index of a choice; ValueError if it is not a whole number."""
    if isinstance(value, bool) or float(value) != int(value):
        raise ValueError
    return int(value)


def _label_set(value: Any) -> tuple[str, ...]:
    """The labels of a text, from a list or from a string with | between them."""
    if not isinstance(value, str):
        return tuple(map(_label, value))
    return tuple(map(composed, value.split(MULTILABEL_SEPARATOR))) if value.strip() else ()


def _with_score(text: Any, found: dict[str, Any], where: str) -> Answered:
    """Restore an answer with its no-answer score, and the best answer even if it was not given."""
    try:
        score = _finite(found["no_answer_score"])
        others = [str(span["text"]) for span in found.get("n_best", ())]
    except (TypeError, ValueError, OverflowError, KeyError):
        raise InputError(f"{where}: no_answer_score or n_best are not as firth predict writes them") from None
    best = next((other for other in [str(text), *others] if other), "")
    return Answered(str(text), 0, 0, 1.0, score, (Span(best, 0, 0, 0.0, 1.0),) if best else ())


def _finite(value: Any) -> float:
    number = float(value)
    if number - number != 0:
        raise ValueError(value)
    return number


def _squad_answers(
    path: Path, records: Sequence[Question], na_probs: Path | None
) -> tuple[list[Question], list[Answered]]:
    """The answers and their questions, in the order of ``na_probs`` if given.

    The official script finds the best threshold in that order, which matters for equal scores.
    """
    found = read_json_document(path)
    if not isinstance(found, Mapping):
        raise InputError(f"{path}: found {type(found).__name__}, expected an object of answers by question id")
    scores: Any = read_json_document(na_probs) if na_probs else {}
    if not isinstance(scores, Mapping):
        raise InputError(f"{na_probs}: found {type(scores).__name__}, expected an object of numbers by question id")
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
            number = _finite(score) if na_probs else None
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"{na_probs}: {record.id}: found {score!r}, expected a number") from None
        n_best = (Span(text, 0, 0, 0.0, 1.0),) if text else ()
        answers.append(Answered(text, 0, 0, 1.0, number, n_best))
    if not na_probs:
        return list(records), answers
    places = {name: place for place, name in enumerate(scores)}
    order = sorted(range(len(records)), key=lambda i: places[records[i].id])
    return [records[i] for i in order], [answers[i] for i in order]


def _with_offsets(tags: Any, offsets: Any, where: str) -> TaggedText:
    """Tags with the characters that each belongs to, as ``firth predict`` writes them."""
    try:
        spans = tuple((int(start), int(end)) for start, end in offsets)
        found = TaggedText(tuple(map(str, tags)), (), (), offsets=spans)
    except (TypeError, ValueError):
        raise InputError(f"{where}: 'tags' and 'offsets' are not as firth predict writes them") from None
    if len(found.tags) != len(spans):
        raise InputError(f"{where}: found {len(found.tags)} tags and {len(spans)} offsets, expected as many")
    return found


def _aligned(
    records: Sequence[Tagged], answers: Sequence[TaggedText], path: Path
) -> tuple[list[Tagged], list[TaggedText]]:
    """Gold examples and predictions with a tag for the same characters: for each, if their words differ."""
    pairs = list(zip(records, answers, strict=True))
    if all(answer.offsets in ((), record.spans) for record, answer in pairs):
        return list(records), list(answers)
    gold, found = [by_character(record) for record in records], list[TaggedText]()
    for record, answer, characters in zip(records, answers, gold, strict=True):
        said = by_character(dataclasses.replace(record, spans=answer.offsets or record.spans, tags=answer.tags))
        if said.spans != characters.spans:
            raise InputError(f"{path}: the offsets for {record.where} are not those of its words: predict this text")
        found.append(dataclasses.replace(answer, tags=said.tags or (), offsets=said.spans))
    return gold, found


def _in_bio(answers: Sequence[Any], records: Sequence[Tagged], path: Path) -> list[Any]:
    """Convert predicted BIOES tags to BIO, like those of the gold examples.

    Systems may predict any order of tags, so each entity is converted as conlleval reads it.
    """
    gold = scheme_of(record.tags for record in records if record.tags is not None)
    if gold == "plain":
        return list(answers)
    if spelled := respelled(tag for answer in answers for tag in answer.tags):
        answers = [dataclasses.replace(a, tags=tuple(spelled.get(tag, tag) for tag in a.tags)) for a in answers]
    if not any(tag[:1] in ("E", "S") for answer in answers for tag in answer.tags):
        return list(answers)
    found = []
    for answer in answers:
        tags = [OUTSIDE] * len(answer.tags)
        try:
            spans = entities(answer.tags)
        except ValueError as error:
            raise InputError(f"{path}: {error}") from None
        for label, first, end in spans:
            tags[first:end] = [f"B-{label}", *[f"I-{label}"] * (end - first - 1)]
        found.append(dataclasses.replace(answer, tags=tuple(tags)))
    return found


def _conll_tags(path: Path, records: Sequence[Tagged], problems: Problems, *, characters: bool) -> list[TaggedText]:
    """``characters``: the gold file is one of KLUE-NER, whose layout the predictions may have too."""
    klue = characters and any(line.startswith(("## ", " \t")) for _, line in read_lines(path))
    read = list((read_klue_ner if klue else read_conll)(path, problems))
    try:
        sentences = in_bio(read, Problems())
    except InputError as error:
        # Systems may predict any order of tags: an I- without a predecessor is scored as conlleval does.
        problems.note(f"predicted tags are scored as conlleval reads them: {error}")
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
