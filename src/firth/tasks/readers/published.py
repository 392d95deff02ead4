"""Read individual published data sets whose files have a format of their own, or one of several."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from firth.errors import InputError
from firth.tasks.readers.choices import read_arc, read_arc_csv
from firth.tasks.readers.files import Problems, bare_suffix, check_records, is_filled, make_each, read_csv, read_lines
from firth.tasks.readers.tagging import in_bio
from firth.tasks.readers.texts import Columns, TextFormat, read_texts
from firth.text.records import Choice, Tagged, Text

# In the order of the numbers in the published file.
AG_NEWS = ("World", "Sports", "Business", "Sci/Tech")


def read_entities(read: Callable[[Path, Problems], Iterable[Tagged]], path: Path, problems: Problems) -> list[Tagged]:
    """Read tags as BIO, whatever scheme the file has. ``read``: the reader of the file."""
    return in_bio(read(path, problems), problems)


def read_trec(path: Path, problems: Problems, *, fine: bool) -> Iterator[Text]:
    """Read TREC: lines ``COARSE:fine question``. The published files (.label) are Latin-1."""
    encoding = "latin-1" if bare_suffix(path) == ".label" else "utf-8"

    def make(item: tuple[int, str]) -> Text:
        number, line = item
        name, space, question = line.partition(" ")
        if not space or ":" not in name or not question.strip():
            raise InputError(f"{path}:{number}: found {line[:60]!r}, expected COARSE:fine, a space and a question")
        return Text(question, name if fine else name.partition(":")[0], f"{path}:{number}")

    lines = ((n, line) for n, line in read_lines(path, problems, encoding=encoding) if line.strip())
    return check_records(path, make_each(lines, make, problems), problems)


def read_ag_news(path: Path, problems: Problems) -> Iterator[Text]:
    """Read AG News: CSV of class number, title and description as published; or TSV of text and class name."""
    if bare_suffix(path) != ".csv":
        return read_texts(path, problems, TextFormat(columns=Columns(text=0, label=1), header=False))

    def make(line: tuple[int, list[str]]) -> Text:
        number, fields = line
        numbers = [str(i) for i in range(1, len(AG_NEWS) + 1)]
        if len(fields) != 3 or fields[0] not in numbers:
            raise InputError(f"{path}:{number}: found {fields[:1]} and {len(fields)} columns, expected class 1-4 and 3")
        return Text(f"{fields[1]} {fields[2]}".strip(), AG_NEWS[int(fields[0]) - 1], f"{path}:{number}")

    return check_records(path, make_each(filter(is_filled, read_csv(path)), make, problems), problems)


def read_published_arc(path: Path, problems: Problems) -> Iterator[Choice]:
    """Read ARC as published (JSON lines), or its copies in CSV."""
    return (read_arc_csv if bare_suffix(path) == ".csv" else read_arc)(path, problems)
