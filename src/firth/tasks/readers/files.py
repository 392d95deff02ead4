"""Open labelled data: lines, tables and JSON from plain, .gz and .xz files; and handle malformed rows.

Labelled data is small and every row counts, so reading is strict where the corpus reader is lenient: a
byte that is not UTF-8 is an error and no line is cut. Lines end with \\n or \\r\\n.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from firth.errors import InputError
from firth.files import nearest
from firth.json_rules import JsonRuleError, refuse_constant, unique_keys
from firth.text.archives import BROKEN_ARCHIVE, open_packed
from firth.text.encodings import conversion, is_utf16, wide_encoding
from firth.text.records import Record

Item = TypeVar("Item")
Made = TypeVar("Made")
R = TypeVar("R", bound=Record)

KEPT_MESSAGES = 20
# Most bytes of a line, and characters of a CSV field: four times the longest books. Most of a whole JSON document.
_LONGEST, _LONGEST_DOCUMENT = 2**24, 2**30
# Lines of a CSV that show which mark separates its columns.
_FIRST_ROWS = 50
_QUOTED = re.compile('"[^"]*(?:"|$)')
# The first bytes of gzip, xz and zip files.
_PACKED_MARKS = (b"\x1f\x8b", b"\xfd7zXZ", b"PK\x03\x04")
_OTHER_PACKED = (".bz2", ".zst", ".zip", ".7z", ".tar", ".parquet", ".xlsx")


class Problems:
    """Collects what a reader finds: malformed rows, rows that the data set's own rules skip, and decisions to report.

    A malformed row stops reading, unless ``skip_bad``: then it is skipped and counted, and the first messages are
    kept. ``unique_ids``: a repeated id is an error; if False, ids are not stored, so memory does not grow with the
    file.
    """

    def __init__(self, *, skip_bad: bool = False, unique_ids: bool = True):
        self.skip_bad, self.unique_ids = skip_bad, unique_ids
        self.n_bad = 0
        self.messages: list[str] = []
        self.left_out: Counter[str] = Counter()
        self.notes: list[str] = []

    def add(self, error: InputError) -> None:
        """Record a malformed row: raise its error, or count it."""
        if not self.skip_bad:
            raise error
        self.n_bad += 1
        if len(self.messages) < KEPT_MESSAGES:
            self.messages.append(str(error))

    def leave_out(self, reason: str) -> None:
        """Count a row that the data set's own rules skip."""
        self.left_out[reason] += 1

    def note(self, text: str) -> None:
        """Record a decision that the user should see."""
        if text not in self.notes:
            self.notes.append(text)

    def report(self) -> list[str]:
        """Everything found, one line each."""
        lines = [*self.notes]
        lines += [f"skipped by the rules of the data set: {n} ({reason})" for reason, n in self.left_out.items()]
        if self.n_bad:
            lines.append(f"malformed rows skipped: {self.n_bad}; the first {len(self.messages)}:")
            lines += [f"  {message}" for message in self.messages]
        return lines


def bare_suffix(path: Path) -> str:
    """The suffix that names the format: ``.tsv`` of ``a.tsv.gz``."""
    bare = path.with_suffix("") if path.suffix.lower() in (".gz", ".xz") else path
    return bare.suffix.lower()


def read_lines(
    path: Path, problems: Problems | None = None, *, encoding: str = "utf-8", longest: int = _LONGEST
) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line without its end) for every line, blank ones too.

    A line that cannot be decoded goes to ``problems`` if given (formats with one row per line), else it
    raises. A missing, empty or broken file is an InputError, and so is a line of more than ``longest`` bytes.
    """
    number = 0
    for number, raw in enumerate(_raw_lines(path, longest), 1):
        if number == 1 and raw.startswith(_PACKED_MARKS):
            raise InputError(f"{path}: a compressed file; decompress it, or name it by its format: .gz or .xz")
        if number == 1 and encoding == "utf-8" and is_utf16(raw):
            raise InputError(
                f"{path}:1: found bytes of 0 between letters, expected UTF-8 text; {conversion(path, raw)}"
            )
        try:
            line = raw.decode(encoding)
        except UnicodeDecodeError as error:
            bad = InputError(
                f"{path}:{number}: found the byte 0x{raw[error.start]:02x} at column {error.start + 1}, "
                f"expected {encoding.upper()} text; {conversion(path, raw)}"
            )
            if problems is None:
                raise bad from None
            problems.add(bad)
            continue
        if number == 1:
            line = line.removeprefix("\ufeff")
        yield number, line.removesuffix("\n").removesuffix("\r")
    if not number:
        raise InputError(f"{path}: the file is empty, expected at least one example")


def no_such_file(path: Path) -> InputError:
    """The error for a missing file, with the nearest name in its folder."""
    return InputError(f"{path}: no such file; {nearest(path) or 'check the path'}")


def check_file(path: Path) -> None:
    """Raise InputError if a file of examples is missing, or is a folder."""
    if not path.exists():
        raise no_such_file(path)
    if not path.is_dir():
        return
    if any((path / name).is_file() for name in ("firth.json", "model/firth.json")):
        raise InputError(f"{path} is the folder of a model: give the file of examples")
    readable = (".tsv", ".csv", ".jsonl", ".json", ".conll", ".conllu", ".txt")
    names = sorted(entry.name for entry in path.iterdir() if bare_suffix(entry) in readable and entry.is_file())
    hint = f"such as {path / names[0]}" if names else "which it has none of"
    raise InputError(f"{path} is a folder: give the file of examples, {hint}")


def _raw_lines(path: Path, longest: int) -> Iterator[bytes]:
    suffix = path.suffix.lower()
    if suffix in _OTHER_PACKED:
        raise InputError(f"{path}: {suffix} cannot be read; decompress it, or compress it as .gz or .xz")
    try:
        with open_packed(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(longest + 1), b""), 1):
                if number == 1 and (wide := wide_encoding(line)):
                    raise InputError(f"{path}:1: found {wide} text, expected UTF-8; {conversion(path, line)}")
                if len(line) > longest:
                    raise InputError(f"{path}:{number}: found a line of more than {longest:,} bytes; split it")
                yield line
    except BROKEN_ARCHIVE as error:
        raise InputError(f"{path}: broken or truncated {suffix} archive ({error}); download or pack it again") from None
    except FileNotFoundError:
        raise no_such_file(path) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def read_tsv(path: Path, problems: Problems) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, fields) of all lines; quotation marks are plain text."""
    for number, line in read_lines(path, problems):
        yield number, line.split("\t")


def read_csv(path: Path, problems: Problems | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yield (first line number, fields) of all rows of a file; see ``csv_rows``."""
    return csv_rows(path, (line for _, line in read_lines(path)), problems)


def is_filled(line: tuple[int, list[str]]) -> bool:
    """Whether a row of a table is not blank."""
    return any(field.strip() for field in line[1])


def csv_rows(path: Path, lines: Iterator[str], problems: Problems | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yield (first line number, fields) by RFC 4180: a quoted field may hold commas, quotes and newlines.

    ``lines``: those of the file, without their ends. Spreadsheets of many countries write semicolons or tabs instead of
    commas: those separate the fields if they divide the first rows into equally many and commas do not, and
    ``problems`` gets a note.
    """
    csv.field_size_limit(_LONGEST)
    first = list(islice(lines, _FIRST_ROWS))
    if first and "\r" in _QUOTED.sub("", first[0]).rstrip("\r"):
        raise InputError(f"{path}:1: lines end in a carriage return alone: write them with line feeds (\\n)")
    if first and re.fullmatch("sep=.", first[0].strip().removeprefix("\ufeff"), re.IGNORECASE):
        raise InputError(f"{path}:1: only Excel reads this line ({first[0].strip()}): delete it")
    separator = _separator(first)
    if problems is not None and separator != ",":
        problems.note(f"{path}: {'tabs' if separator != ';' else 'semicolons'} separate the columns, not commas")
    # The csv reader needs the line ends inside quoted fields.
    reader = csv.reader((line + "\n" for line in chain(first, lines)), strict=True, delimiter=separator)
    number = 1
    try:
        while True:
            number = reader.line_num + 1
            row = next(reader, None)
            if row is None:
                return
            yield number, row or [""]
    except csv.Error as error:
        raise InputError(f"{path}:{number}: not valid CSV ({error}); check the quotation marks of this row") from None


def _separator(first: Sequence[str]) -> str:
    """The mark between the columns of a CSV: a comma, unless only another one gives its first rows the same number."""
    bare = _QUOTED.sub("", first[0]) if first else ""
    others = [mark for mark in ";\t" if mark in bare]
    if "," not in bare:
        return others[0] if others else ","

    def is_even(mark: str) -> bool:
        try:
            rows = list(csv.reader((line + "\n" for line in first if line.strip()), delimiter=mark))
        except csv.Error:
            return False
        # Of a longer file, the last one may go on in a later line.
        whole = rows[:-1] if len(first) == _FIRST_ROWS else rows
        return len({len(row) for row in whole}) == 1

    return "," if is_even(",") else next(filter(is_even, others), ",")


def read_jsonl(path: Path, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of a file with one JSON object per line."""

    def parse(item: tuple[int, str]) -> tuple[int, dict[str, Any]]:
        number, line = item
        return number, json_object(line, f"{path}:{number}")

    lines = ((number, line) for number, line in read_lines(path, problems) if line.strip())
    return make_each(lines, parse, problems)


def json_object(line: str, where: str) -> dict[str, Any]:
    """Parse the JSON object of a line."""
    try:
        value = _json_of(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON ({_why(error)}); expected one object per line") from None
    if not isinstance(value, dict):
        raise InputError(f"{where}: found {kind_of(value)}, expected a JSON object")
    return value


def read_json_document(path: Path) -> Any:
    """Read a whole JSON document."""
    text = "\n".join(line for _, line in read_lines(path, longest=_LONGEST_DOCUMENT))
    try:
        return _json_of(text)
    except (ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise InputError(f"{path}{line}: not valid JSON ({_why(error)})") from None


def _json_of(text: str) -> Any:
    value = json.loads(text, object_pairs_hook=unique_keys, parse_constant=refuse_constant)
    if "\\u" in text:  # an escape may be a lone surrogate, which no file of answers could hold
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _why(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    if isinstance(error, JsonRuleError):
        return f"it has {error}"
    return "half of a surrogate pair" if isinstance(error, UnicodeEncodeError) else "cannot be parsed"


def make_each(items: Iterable[Item], make: Callable[[Item], Made], problems: Problems) -> Iterator[Made]:
    """Apply ``make`` to every item; the InputErrors it raises go to ``problems``."""
    for item in items:
        try:
            made = make(item)
        except InputError as error:
            problems.add(error)
            continue
        yield made


def check_records(path: Path, records: Iterable[R], problems: Problems, *, advice: str = "") -> Iterator[R]:
    """Check that ids are unique (if ``problems`` asks for it); InputError if there is no record.

    ``advice``: what else can be done about a repeated id.
    """
    seen: dict[str, str] = {}
    n_records = 0
    for record in records:
        if record.id and record.id in seen:
            problems.add(
                InputError(
                    f"{record.where}: found the id {record.id!r} again (first at {seen[record.id]}); "
                    f"expected every id once: rename or remove one{advice}"
                )
            )
            continue
        if record.id and problems.unique_ids:
            seen[record.id] = record.where
        n_records += 1
        yield record
    if not n_records:
        raise InputError(f"{path}: no usable example in this file; check its format")


def columns_text(n: int) -> str:
    """``1 column``, ``3 columns``."""
    return "1 column" if n == 1 else f"{n} columns"


def kind_of(value: Any) -> str:
    """The JSON name of a value's type."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def text_field(row: dict[str, Any], key: str, where: str, *, may_be_empty: bool = False) -> str:
    """The text under a key of a JSON object."""
    if key not in row:
        keys = ", ".join(map(repr, list(row)[:8])) or "none"
        raise InputError(f"{where}: found no {key!r} (keys: {keys}); add it")
    value = row[key]
    if not isinstance(value, str):
        raise InputError(f"{where}: found {kind_of(value)} for {key!r}, expected text")
    if not may_be_empty and not value.strip():
        raise InputError(f"{where}: found an empty {key!r}, expected text; fill it in or remove the row")
    return value


def name_of(row: Mapping[str, Any], key: str, where: str) -> str:
    """The id or group in a row, as text; empty if there is none."""
    value = row.get(key)
    if isinstance(value, bool | dict | list):
        raise InputError(f"{where}: found {kind_of(value)} for {key!r}, expected text or a number")
    return "" if value is None else str(value)


def list_field(row: dict[str, Any], key: str, where: str) -> list[Any]:
    """The list under a key of a JSON object."""
    if key not in row:
        keys = ", ".join(map(repr, list(row)[:8])) or "none"
        raise InputError(f"{where}: found no {key!r} (keys: {keys}); add it")
    if not isinstance(row[key], list):
        raise InputError(f"{where}: found {kind_of(row[key])} for {key!r}, expected a list")
    return row[key]
