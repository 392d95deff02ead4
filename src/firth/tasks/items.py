"""Convert what users pass to ``predict`` into records of a task; no torch."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from firth.errors import InputError
from firth.tasks.tag_units import character_spans, word_spans
from firth.text.records import Choice, Question, Record, Tagged, Text

_T = TypeVar("_T")

# Records predicted together: enough to find many of similar length.
AT_ONCE = 1024
RECORDS: dict[str, type[Any]] = {
    "classify": Text,
    "multilabel": Text,
    "regress": Text,
    "tag": Tagged,
    "answer": Question,
    "choose": Choice,
}


def check_items(task: str, records: Iterable[Any]) -> None:
    """Raise InputError for a record that is not of the task's type."""
    for record in records:
        if not isinstance(record, RECORDS[task]):
            raise InputError(f"a model for {task} reads {RECORDS[task].__name__}, not {record!r}")


def in_chunks(
    answer: Callable[[list[Record]], tuple[list[Any], Mapping[str, int]]],
    records: Iterable[Record],
    at_once: int,
    noted: Counter[str] | None,
) -> Iterator[tuple[Record, Any]]:
    """Yield each record with its prediction, in order; ``noted`` adds up what ``answer`` counts."""
    for some in chunks(records, at_once):
        answers, counts = answer(some)
        if noted is not None:
            noted.update(counts)
        yield from zip(some, answers, strict=True)


def chunks(records: Iterable[Record], at_once: int) -> Iterator[list[Record]]:
    """Yield records in lists of about ``at_once``, each as soon as it is complete; documents are not divided.

    Only after a sentence of a document does the next record tell whether the document goes on.
    """
    some: list[Record] = []
    for record in records:
        if len(some) >= at_once and _document(some[-1]) != _document(record):
            yield some
            some = []
        some.append(record)
        if len(some) >= at_once and not _document(record):
            yield some
            some = []
    if some:
        yield some


def _document(record: Record) -> str:
    return record.group if isinstance(record, Tagged) else ""


def record_of(task: str, item: Any, unit: str = "word") -> Record:
    """Convert what a user passes in to a record of the task.

    Texts: a string, a pair of strings, or ``{"text", "second"}``. Tagging: a string (cut into words, or
    characters for a model of characters), a list of words (in ``predict`` inside the list of items), or either as
    ``{"text"}`` or ``{"tokens"}``. Questions: ``{"question", "context"}`` or a pair of strings. Choices: ``{"text",
    "question", "choices"}``, where ``context`` is another name for ``text``. A record is returned unchanged.
    """
    kind = RECORDS[task]
    if isinstance(item, (Text, Tagged, Question, Choice)) and isinstance(item, kind):
        return item
    fields = dict(item) if isinstance(item, Mapping) else None
    try:
        if kind is Text:
            if isinstance(item, str):
                return Text(item)
            first, second = (fields["text"], fields.get("second")) if fields is not None else item
            return Text(_string(first), second=None if second is None else _string(second))
        if kind is Tagged:
            found = item if fields is None else fields["tokens"] if "tokens" in fields else fields["text"]
            return words_of(found, unit) if isinstance(found, str) else _joined(found, unit)
        if kind is Question:
            if isinstance(item, str):
                raise TypeError
            question, context = (fields["question"], fields["context"]) if fields is not None else item
            return Question(_string(question), _string(context))
        assert fields is not None
        if isinstance(fields["choices"], str) or {"text", "context"} <= fields.keys():
            raise TypeError
        choices = tuple(map(_string, fields["choices"]))
        text = fields["text"] if "text" in fields else fields.get("context", "")
        return Choice(_string(text), _string(fields.get("question", "")), choices)
    except (KeyError, TypeError, ValueError, AssertionError):
        raise InputError(f"{item!r}: expected {_EXPECTED[kind]}") from None


_EXPECTED: dict[type, str] = {
    Text: 'a text, a pair of texts, or {"text": …, "second": …}',
    Tagged: "a text or a list of words, none of them empty",
    Question: '{"question": …, "context": …} or a pair of texts',
    Choice: '{"text": …, "question": …, "choices": […]}',
}


def listed(items: Any) -> tuple[list[Any], bool]:
    """The items as a list, and whether several were given: a text, a pair (a tuple) and an object (a dict) are one."""
    several = isinstance(items, Iterable) and not isinstance(items, (str, tuple, Mapping))
    return (list(items), True) if several else ([items], False)


def check_several(items: Iterable[_T]) -> Iterable[_T]:
    """The items unchanged; InputError for a text, which would be read as its characters."""
    if isinstance(items, str):
        raise InputError(f"{items[:60]!r} is one text: expected a list of them")
    return items


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def words_of(text: str, unit: str) -> Tagged:
    """Split a raw text into words (runs of letters and digits, single marks), or into characters without spaces."""
    spans = word_spans(text) if unit == "word" else character_spans(text)
    return Tagged(text, tuple(spans))


def _joined(units: Sequence[Any], unit: str) -> Tagged:
    """Join words by spaces, or characters, spaces among them, as they are.

    For a model of characters, words are joined by spaces too, and divided into their characters.
    """
    tokens = list(map(_string, units))
    apart = unit == "word" or (
        any(len(character_spans(one)) > 1 for one in tokens) and not any(one.isspace() for one in tokens)
    )
    spans, at = list[tuple[int, int]](), 0
    for one in tokens:
        if one.strip():
            inside = [(0, len(one))] if unit == "word" else character_spans(one)
            spans += [(at + start, at + end) for start, end in inside]
        elif unit == "word" or not one:
            raise ValueError
        at += len(one) + apart
    return Tagged((" " if apart else "").join(tokens), tuple(spans))
