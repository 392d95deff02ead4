"""Read multiple choice: SWAG, DREAM and ARC as published, and JSONL.

Sources: rowanz/swagaf (CSV with header), nlpdata/dream (JSON), allenai ARC (JSONL; and the CSV
question,A,B,C,D,letter in which it is often redistributed).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from firth.errors import InputError
from firth.tasks.readers.files import (
    Problems,
    check_records,
    columns_text,
    is_filled,
    kind_of,
    list_field,
    make_each,
    name_of,
    read_csv,
    read_json_document,
    read_jsonl,
    text_field,
)
from firth.text.records import Choice

_ENDINGS = ("ending0", "ending1", "ending2", "ending3")
_LETTERS = "ABCDE"
_DIGITS = "12345"


def _checked_choice(record: Choice) -> Choice:
    """Check that a record has at least two choices, none empty, and a label among them."""
    where, n = record.where, len(record.choices)
    if n < 2:
        raise InputError(f"{where}: found {n} choice(s), expected at least two; add the others")
    for i, choice in enumerate(record.choices):
        if not isinstance(choice, str) or not choice.strip():
            raise InputError(f"{where}: found {choice!r} as choice {i}, expected text; fill it in or remove the row")
    if not record.text.strip() and not record.question.strip():
        raise InputError(f"{where}: found neither a text nor a question; fill one in or remove the row")
    if record.label is not None and not 0 <= record.label < n:
        raise InputError(f"{where}: found the label {record.label}, expected 0 to {n - 1}; correct it")
    return record


def _label(value: Any, where: str, labelled: bool) -> int | None:
    if not labelled:
        return None
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 10:
        return int(value)
    if value is None or value == "":
        raise InputError(f"{where}: found no label, expected the number of the right choice (from 0); add it")
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{where}: found the label {value!r}, expected the number of the right choice (from 0)")
    return value


def read_swag(path: Path, problems: Problems, *, labelled: bool = True) -> Iterator[Choice]:
    """Read SWAG: ``sent1`` is the text, ``sent2`` starts each ending; the video is the group."""
    lines = filter(is_filled, read_csv(path))
    number, names = next(lines, (1, []))
    needed = ("video-id", "sent1", "sent2", *_ENDINGS, *(("label",) if labelled else ()))
    missing = [name for name in needed if name not in names]
    if missing:
        raise InputError(f"{path}:{number}: found no column {', '.join(missing)} in the header, expected those of SWAG")

    def make(line: tuple[int, list[str]]) -> Choice:
        number, fields = line
        where = f"{path}:{number}"
        if len(fields) != len(names):
            raise InputError(f"{where}: found {columns_text(len(fields))}, expected {len(names)} as in the header")
        row = dict(zip(names, fields, strict=True))
        return _checked_choice(
            Choice(
                text=row["sent1"],
                question=row["sent2"],
                choices=tuple(row[name] for name in _ENDINGS),
                label=_label(row.get("label"), where, labelled),
                where=where,
                group=row["video-id"],
            )
        )

    return check_records(path, make_each(lines, make, problems), problems)


def read_choices_jsonl(path: Path, problems: Problems, *, labelled: bool = True) -> Iterator[Choice]:
    """Read objects of ``context`` (or ``text``), optional ``question``, ``choices`` (or ``endings``), ``label`` from 0.

    Also accepts SWAG's names: ``sent1``, ``sent2``, ``ending0``, ``ending1`` …; ``id`` and ``group`` are optional.
    """

    def make(item: tuple[int, dict[str, Any]]) -> Choice:
        number, row = item
        where = f"{path}:{number}"
        return _checked_choice(
            Choice(
                text=_first_text(row, ("context", "text", "sent1"), where),
                question=_first_text(row, ("question", "sent2"), where),
                choices=_choices(row, where),
                label=_label(row.get("label"), where, labelled),
                where=where,
                id=name_of(row, "id", where),
                group=name_of(row, "group", where),
            )
        )

    return check_records(path, make_each(read_jsonl(path, problems), make, problems), problems)


def _first_text(row: dict[str, Any], keys: tuple[str, ...], where: str) -> str:
    present = [key for key in keys if key in row]
    if len(present) > 1:
        raise InputError(f"{where}: found both {present[0]!r} and {present[1]!r}, expected one of them")
    return text_field(row, present[0], where, may_be_empty=True) if present else ""


def _choices(row: dict[str, Any], where: str) -> tuple[Any, ...]:
    if "ending0" in row:
        n = sum(re.fullmatch(r"ending\d+", key) is not None for key in row)
        if missing := [f"ending{i}" for i in range(n) if f"ending{i}" not in row]:
            raise InputError(f"{where}: {missing[0]} is missing: the endings are numbered from 0 without a gap")
        return tuple(row[f"ending{i}"] for i in range(n))
    return tuple(list_field(row, "endings" if "endings" in row and "choices" not in row else "choices", where))


def read_dream(path: Path, problems: Problems, *, labelled: bool = True) -> Iterator[Choice]:
    """Read DREAM: ``[[turns], [{question, choice, answer}], id]``; the dialogue, a turn per line, is text and group."""
    document = read_json_document(path)
    if not isinstance(document, list):
        raise InputError(f"{path}: found {kind_of(document)}, expected a list of dialogues")

    def rows() -> Iterator[tuple[str, list[str], str, Any]]:
        for d, dialogue in enumerate(document):
            where = f"{path}: [{d}]"
            match dialogue:
                case [[*turns], [*questions], str(name)] if all(isinstance(turn, str) for turn in turns):
                    for q, row in enumerate(questions):
                        yield f"{where}[1][{q}]", turns, f"{name}/{q}", row
                case _:
                    problems.add(InputError(f"{where}: expected [[turns], [questions], id]; correct the dialogue"))

    def make(item: tuple[str, list[str], str, Any]) -> Choice:
        where, turns, name, row = item
        if not isinstance(row, dict):
            raise InputError(f"{where}: found {kind_of(row)}, expected an object with question, choice and answer")
        choices = list_field(row, "choice", where)
        label = None
        if labelled:
            answer = text_field(row, "answer", where)
            n_found = choices.count(answer)
            if n_found != 1:
                raise InputError(f"{where}: found the answer {answer!r} {n_found} times in 'choice', expected once")
            label = choices.index(answer)
        question = text_field(row, "question", where)
        group = name.rpartition("/")[0]
        return _checked_choice(Choice("\n".join(turns), question, tuple(choices), label, where, name, group))

    return check_records(path, make_each(rows(), make, problems), problems)


def read_arc(path: Path, problems: Problems, *, labelled: bool = True) -> Iterator[Choice]:
    """Read ARC in the published JSONL: ``question.stem``, ``question.choices`` of text and label, ``answerKey``."""

    def make(item: tuple[int, dict[str, Any]]) -> Choice:
        number, row = item
        where = f"{path}:{number}"
        match row.get("question"):
            case {"stem": str(stem), "choices": [*choices]} if all(
                isinstance(c, dict) and "text" in c and "label" in c for c in choices
            ):
                names = [str(choice["label"]) for choice in choices]
            case _:
                raise InputError(f"{where}: expected a 'question' with 'stem' and 'choices' of 'text' and 'label'")
        label = None
        if labelled:
            key = text_field(row, "answerKey", where)
            if key not in names:
                raise InputError(f"{where}: found the answer {key!r}, expected one of {', '.join(names)}")
            label = names.index(key)
        texts = tuple(choice["text"] for choice in choices)
        return _checked_choice(Choice("", stem, texts, label, where, name_of(row, "id", where)))

    return check_records(path, make_each(read_jsonl(path, problems), make, problems), problems)


def read_arc_csv(path: Path, problems: Problems, *, labelled: bool = True) -> Iterator[Choice]:
    """Read ARC as question, four choices, and the letter (or number from 1) of the right one; no header.

    A question with three choices has an empty fourth. This format has lost the choices of questions
    numbered 1 to 4, and the fifth choice of others: rows without choices, or with the answer E,
    are skipped and counted.
    """

    def rows() -> Iterator[tuple[int, list[str]]]:
        for number, fields in filter(is_filled, read_csv(path)):
            if len(fields) == 6 and not any(choice.strip() for choice in fields[1:5]):
                problems.leave_out("the file has lost the choices")
            elif len(fields) == 6 and labelled and fields[5] in ("E", "5"):
                problems.leave_out("the file has lost the fifth choice")
            else:
                yield number, fields

    def make(line: tuple[int, list[str]]) -> Choice:
        number, fields = line
        where = f"{path}:{number}"
        if len(fields) != 6:
            raise InputError(f"{where}: found {columns_text(len(fields))}, expected 6: question, four choices, letter")
        label = None
        if labelled:
            name = fields[5].strip()
            label = (_LETTERS + _DIGITS).find(name) % len(_LETTERS) if name and name in _LETTERS + _DIGITS else -1
            if len(name) != 1 or not 0 <= label < 4:
                raise InputError(f"{where}: found the answer {name!r}, expected a letter A to D (or 1 to 4)")
        choices = tuple(fields[1:5] if fields[4].strip() else fields[1:4])
        return _checked_choice(Choice("", fields[0], choices, label, where))

    return check_records(path, make_each(rows(), make, problems), problems)
