"""Read questions about contexts in SQuAD's JSON format: v1.1, v2.0, KorQuAD 1.0 and similar files.

Source: rajpurkar/SQuAD-explorer (``data[].paragraphs[].qas[]``, offsets in characters).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firth.errors import InputError
from firth.tasks.readers.files import (
    Problems,
    check_records,
    kind_of,
    list_field,
    make_each,
    read_json_document,
    text_field,
)
from firth.text.records import Answer, Question


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question as in the file, with its context."""

    where: str
    row: Any
    context: str
    group: str


def read_squad(
    path: Path, problems: Problems, *, labelled: bool = True, unanswerable: bool = True
) -> Iterator[Question]:
    """Read the questions of a file; the article is the group.

    A question has no answer if ``is_impossible`` says so, or, in files without it, if its list of answers
    is empty; with ``unanswerable`` False that is an error. Unless ``labelled``, answers are ignored.
    """
    document = read_json_document(path)
    if not isinstance(document, dict):
        raise InputError(f"{path}: found {kind_of(document)}, expected an object with 'data' (SQuAD JSON)")

    def make(asked: _Asked) -> Question:
        return _question(asked, labelled, unanswerable)

    return check_records(path, make_each(_asked(path, document, problems), make, problems), problems)


def _asked(path: Path, document: dict[str, Any], problems: Problems) -> Iterator[_Asked]:
    for a, article in enumerate(list_field(document, "data", str(path))):
        where = f"{path}: data[{a}]"
        try:
            paragraphs = list_field(_object(article, where), "paragraphs", where)
        except InputError as error:
            problems.add(error)
            continue
        group = str(article.get("title") or f"{path.name}[{a}]")
        for p, paragraph in enumerate(paragraphs):
            yield from _asked_of(paragraph, f"{where}.paragraphs[{p}]", group, problems)


def _asked_of(paragraph: Any, where: str, group: str, problems: Problems) -> Iterator[_Asked]:
    try:
        context = text_field(_object(paragraph, where), "context", where)
        rows = list_field(paragraph, "qas", where)
    except InputError as error:
        problems.add(error)
        return
    for q, row in enumerate(rows):
        yield _Asked(f"{where}.qas[{q}]", row, context, group)


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: found {kind_of(value)}, expected an object")
    return value


def _question(asked: _Asked, labelled: bool, unanswerable: bool) -> Question:
    where, row = asked.where, _object(asked.row, asked.where)
    if not isinstance(row.get("id"), str | int) or not str(row["id"]):
        raise InputError(f"{where}: found no 'id', expected a unique name of the question; add it")
    return Question(
        question=text_field(row, "question", where),
        context=asked.context,
        answers=_answers(row, asked.context, where, unanswerable) if labelled else None,
        where=where,
        id=str(row["id"]),
        group=asked.group,
    )


def _answers(row: dict[str, Any], context: str, where: str, unanswerable: bool) -> tuple[Answer, ...]:
    rows = list_field(row, "answers", where)
    impossible = row.get("is_impossible", not rows)
    if not isinstance(impossible, bool):
        raise InputError(f"{where}: found {impossible!r} for 'is_impossible', expected true or false")
    if impossible and rows:
        raise InputError(f"{where}: found answers to a question marked impossible; remove them or the mark")
    if not impossible and not rows:
        raise InputError(f"{where}: found no answer, expected at least one; add it or mark the question is_impossible")
    if impossible and not unanswerable:
        raise InputError(f"{where}: found a question without answer, but in this data set every question has one")
    return tuple(_answer(answer, context, f"{where}.answers[{i}]") for i, answer in enumerate(rows))


def _answer(row: Any, context: str, where: str) -> Answer:
    text = text_field(_object(row, where), "text", where)
    start = row.get("answer_start")
    if not isinstance(start, int) or isinstance(start, bool):
        raise InputError(f"{where}: found {start!r} for 'answer_start', expected the number of a character")
    if start < 0 or start + len(text) > len(context):
        raise InputError(
            f"{where}: found the answer at characters {start} to {start + len(text)}, expected it within the context, "
            f"which has {len(context)}; correct 'answer_start' (characters from 0, not bytes)"
        )
    found = context[start : start + len(text)]
    if found != text:
        raise InputError(
            f"{where}: found {found!r} at character {start}, expected the answer {text!r}; "
            "correct 'answer_start' (characters from 0, not bytes)"
        )
    return Answer(text, start)
