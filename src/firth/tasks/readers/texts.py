"""Read texts and pairs with a label, several labels or a number: TSV, CSV, JSONL, or one JSON list.

TSV is split at tabs only, as in the published data sets: a quotation mark is text. CSV is
quoted by RFC 4180. A TSV, CSV or .txt file may have a header; every row has as many fields as the first.
"""

import itertools
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from firth.errors import ConfigError, InputError
from firth.tasks.readers.files import (
    Problems,
    bare_suffix,
    check_records,
    columns_text,
    is_filled,
    kind_of,
    make_each,
    name_of,
    read_csv,
    read_json_document,
    read_jsonl,
    read_tsv,
)
from firth.text.records import Label, Text

TextKind = Literal["classify", "multilabel", "regress"]
Form = Literal["tsv", "csv", "jsonl", "json"]
TextRule = Literal["empty text", "short row", "no gold label"]
Column = int | str

# Column names detected by default, in order of preference.
KNOWN_NAMES: dict[str, tuple[str, ...]] = {
    "text": ("text", "sentence", "text_a", "sentence1", "premise", "document"),
    "second": ("second", "text_b", "sentence2", "hypothesis"),
    "label": ("label", "labels", "gold_label", "score"),
    "id": ("id", "guid"),
    "group": ("group",),
}
MULTILABEL_SEPARATOR = "|"
# Rows that show whether the first line names the columns.
_ROWS_AHEAD = 200
NO_GOLD_LABEL = "-"
# Sums of squares of larger scores overflow float32.
_LARGEST_SCORE = 1e15
_SPREADSHEETS = (".xlsx", ".xls", ".ods", ".numbers")
_FORMS: dict[str, Form] = {
    ".tsv": "tsv",
    ".txt": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".json": "json",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """The column of each part of an example: its number from 0, its name in the header, or a JSON key.

    A dotted key that the object lacks reads a nested object: ``labels.label``. If no column is given, all are detected
    by ``KNOWN_NAMES``; otherwise parts that are None are not read.
    """

    text: Column | None = None
    second: Column | None = None
    label: Column | None = None
    id: Column | None = None
    group: Column | None = None

    def given(self) -> dict[str, Column]:
        """The parts whose column is given."""
        parts = {part: getattr(self, part) for part in KNOWN_NAMES}
        return {part: column for part, column in parts.items() if column is not None}


def parse_columns(text: str) -> Columns:
    """Parse ``"text=2,label=0"`` or ``"text=sentence,second=sentence2,label=gold,id=idx"``."""
    example = "for example text=sentence,label=gold or, by numbers from 0, text=2,label=0"
    columns: dict[str, Column] = {}
    for pair in text.split(","):
        part, equals, column = (piece.strip() for piece in pair.partition("="))
        if not equals or not column:
            raise ConfigError(f"columns {text!r}: found {pair!r}, expected part=column, {example}")
        if part not in KNOWN_NAMES:
            raise ConfigError(f"columns {text!r}: unknown part {part!r}; expected one of {', '.join(KNOWN_NAMES)}")
        if part in columns:
            raise ConfigError(f"columns {text!r}: {part!r} is given twice")
        name = int(column) if re.fullmatch("[0-9]{1,9}", column) else composed(column)
        if name in columns.values():
            twice = next(part for part, other in columns.items() if other == name)
            raise ConfigError(f"columns {text!r}: {twice} and {part} are both column {column}: give each its own")
        columns[part] = name
    if "text" not in columns:
        raise ConfigError(f"columns {text!r}: the column of the text is missing, {example}")
    return Columns(**columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextFormat:
    """The layout of a file of texts. The defaults are detected from the file and reported.

    ``left_out``: what the rules of a published data set skip. ``renamed``: published spelling ->
    label. ``only``: (column, value) of the rows to read, in files of several languages.
    """

    columns: Columns = Columns()
    kind: TextKind = "classify"
    form: Form | None = None
    header: bool | None = None
    left_out: tuple[TextRule, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    only: tuple[Column, str] | None = None


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of any format: ``part`` and ``only`` are values, None where the row has none."""

    where: str
    parts: dict[str, Any]
    only: Any = None


def read_texts(
    path: Path, problems: Problems, layout: TextFormat | None = None, *, labelled: bool = True
) -> Iterator[Text]:
    """Read the examples of a file. Unless ``labelled``, labels are ignored."""
    layout = layout or TextFormat()
    form = layout.form or _form_of(path)
    if form in ("jsonl", "json"):
        rows = _json_rows(path, form, problems, layout, labelled)
    else:
        rows = _table_rows(path, form, problems, layout, labelled)
    records = make_each(_kept(rows, layout, problems), lambda row: _record(row, layout, labelled), problems)
    advice = ", or name the columns without them: --columns text=NAME,label=NAME, and second=NAME of pairs"
    if layout.columns.given():
        advice = ""
    return check_records(path, _alike(records, problems) if labelled else records, problems, advice=advice)


def _alike(records: Iterator[Text], problems: Problems) -> Iterator[Text]:
    """Yield the records; a pair where the first record is a single text, or the reverse, is an error."""
    first = None
    for record in records:
        first = first or record
        if (record.second is None) == (first.second is None):
            yield record
        else:
            kinds = ("a single text", "a pair") if record.second is None else ("a pair", "a single text")
            problems.add(
                InputError(
                    f"{record.where}: found {kinds[0]}, expected {kinds[1]} as in {first.where}; correct the row"
                )
            )


def _form_of(path: Path) -> Form:
    suffix = bare_suffix(path)
    if suffix in _SPREADSHEETS:
        raise InputError(f"{path}: a spreadsheet; save it as CSV in UTF-8 (in Excel: CSV UTF-8), and give that file")
    if suffix not in _FORMS:
        raise InputError(f"{path}: unknown format {suffix!r}; expected one of {' '.join(_FORMS)} (.gz, .xz)")
    return _FORMS[suffix]


def _kept(rows: Iterator[_Row], layout: TextFormat, problems: Problems) -> Iterator[_Row]:
    """The rows that the rules of the data set do not skip."""
    for row in rows:
        if layout.only is not None and row.only != layout.only[1]:
            continue
        if "no gold label" in layout.left_out and row.parts.get("label") == NO_GOLD_LABEL:
            problems.leave_out("no gold label")
        elif "empty text" in layout.left_out and _has_empty_text(row.parts):
            problems.leave_out("empty text")
        else:
            yield row


def _has_empty_text(parts: dict[str, Any]) -> bool:
    return any(isinstance(parts.get(part), str) and not parts[part].strip() for part in ("text", "second"))


def _record(row: _Row, layout: TextFormat, labelled: bool) -> Text:
    parts, where = row.parts, row.where
    second = None if parts.get("second") is None else _text(parts["second"], "second text", where, labelled)
    return Text(
        text=_text(parts["text"], "text", where, labelled),
        label=_label(parts.get("label"), layout, where) if labelled else None,
        where=where,
        second=second,
        id=name_of(parts, "id", where),
        group=name_of(parts, "group", where),
    )


def _text(value: Any, what: str, where: str, labelled: bool) -> str:
    """Check a text: an empty one is an error if ``labelled`` (it teaches nothing), else predicted like any other."""
    if not isinstance(value, str):
        raise InputError(f"{where}: found {kind_of(value)} as {what}, expected text")
    if labelled and not value.strip():
        raise InputError(f"{where}: found an empty {what}; fill it in or remove the row")
    return value


def _label(value: Any, layout: TextFormat, where: str) -> Label:
    if layout.kind == "regress":
        return _number(value, where)
    if layout.kind == "multilabel":
        several = value.split(MULTILABEL_SEPARATOR) if isinstance(value, str) and value else value
        if several is None or several == "":
            several = []
        if not isinstance(several, list):
            raise InputError(f"{where}: found {kind_of(value)} as labels, expected a list of labels")
        found = tuple(_one_label(v, layout, where) for v in several)
        if len(set(found)) < len(found):
            raise InputError(f"{where}: found the labels {list(found)}, expected each once; remove the repeated one")
        return found
    return _one_label(value, layout, where)


def _one_label(value: Any, layout: TextFormat, where: str) -> str:
    if isinstance(value, bool):
        value = "true" if value else "false"
    elif isinstance(value, int):
        value = str(value)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise InputError(f"{where}: found no label; add it, or remove the row")
    if not isinstance(value, str):
        raise InputError(f"{where}: found {kind_of(value)} as label, expected a name or a whole number")
    return composed(dict(layout.renamed).get(value, value))


def composed(label: str) -> str:
    """Normalise a label like texts: composed (NFC), without surrounding white space; labels that look alike are one."""
    return unicodedata.normalize("NFC", label.strip())


def _number(value: Any, where: str) -> float:
    if value is None or value == "":
        raise InputError(f"{where}: found no score; add it, or remove the row")
    try:
        plain = isinstance(value, int | float) or (isinstance(value, str) and "_" not in value)  # 1_000 is Python's
        number = float(value) if plain and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{where}: found {value!r} as score, expected a finite number")
    if abs(number) > _LARGEST_SCORE:
        raise InputError(f"{where}: found {value!r} as score, expected at most {_LARGEST_SCORE:g} in magnitude")
    return number


# -- tables ------------------------------------------------------------------------------------------------


def _table_rows(path: Path, form: Form, problems: Problems, layout: TextFormat, labelled: bool) -> Iterator[_Row]:
    lines = read_csv(path, problems) if form == "csv" else read_tsv(path, problems)
    before, first = list[tuple[int, list[str]]](), None
    for line in lines:
        if is_filled(line):
            first = line
            break
        before.append(line)
    if first is None:
        raise InputError(f"{path}: found only blank lines, expected at least one example")
    number, fields = first
    names = [composed(field) for field in fields]

    def is_row(line: tuple[int, list[str]]) -> bool:
        # What is to be answered has an answer for each row, also where all fields are empty.
        return is_filled(line) or (not labelled and len(line[1]) == len(names))

    lines = filter(is_row, lines)
    ahead = list(itertools.islice(lines, _ROWS_AHEAD))
    lines = itertools.chain(ahead, lines)
    has_header = _has_header(names, [row for _, row in ahead], layout)
    where = f"{path}:{number}"
    places = _places(names, has_header, layout, labelled, where, form)
    problems.note(f"{path}: {_described(places, names, has_header)}")
    only = None if layout.only is None else _place(layout.only[0], names, has_header, where)

    def make(line: tuple[int, list[str]]) -> _Row:
        number, fields = line
        if has_header and len(names) > 1 and fields == first[1]:
            raise InputError(f"{path}:{number}: found the header of line {first[0]} again; remove the row")
        if len(fields) != len(names):
            hint = "a tab within a text?" if form == "tsv" else "a separator outside of quotation marks?"
            raise InputError(
                f"{path}:{number}: found {columns_text(len(fields))}, expected {len(names)} as in line {first[0]}; "
                f"correct the row ({hint})"
            )
        parts = {part: fields[place] for part, place in places.items()}
        return _Row(f"{path}:{number}", parts, None if only is None else fields[only])

    def rows() -> Iterator[tuple[int, list[str]]]:
        if not has_header:
            yield from filter(is_row, before)
            yield first
        for line in lines:
            if "short row" in layout.left_out and len(line[1]) < len(names):
                problems.leave_out("short row")
            else:
                yield line

    yield from make_each(rows(), make, problems)


def _has_header(names: list[str], rows: list[list[str]], layout: TextFormat) -> bool:
    if layout.header is not None:
        return layout.header
    if any(isinstance(column, str) for column in layout.columns.given().values()):
        return True
    return bool(known_parts(names, rows))


def known_parts(first: Sequence[str], rows: Sequence[Sequence[str]]) -> set[str]:
    """The parts that the first line of a table names; a name that occurs again below it is a value, such as a label.

    Repetitions of the whole line do not count, as in files that were concatenated with their headers.
    """
    if len(first) > 1:
        rows = [row for row in rows if list(row) != list(first)]
    return {
        part
        for part, names in KNOWN_NAMES.items()
        for number, name in enumerate(first)
        if name.strip().lower() in names
        and not any(number < len(row) and row[number].strip() == name.strip() for row in rows)
    }


def _places(
    names: list[str], has_header: bool, layout: TextFormat, labelled: bool, where: str, form: Form
) -> dict[str, int]:
    """Part -> column number."""
    if "\r" in "".join(names).rstrip("\r"):
        raise InputError(f"{where}: lines end in a carriage return alone: write them with line feeds (\\n)")
    columns = layout.columns.given()
    if not columns:
        columns = _known_columns(names, has_header, labelled, where, form)
    if not labelled:
        columns.pop("label", None)
    elif "label" not in columns:
        raise InputError(
            f"{where}: no column of labels among {_shortened(names)}; name it, for example columns text=0,label=1"
        )
    return {part: _place(column, names, has_header, where) for part, column in columns.items()}


def _known_columns(names: list[str], has_header: bool, labelled: bool, where: str, form: Form) -> dict[str, Column]:
    if not has_header:
        if len(names) == 1 and not labelled:
            return {"text": 0}
        if len(names) == 1:
            separator, hint = ("comma", "") if form == "csv" else ("tab", "")
            if form == "tsv" and "," in names[0].split()[0]:
                hint = "; columns separated by commas are --format csv"
            raise InputError(
                f"{where}: found 1 column ({_shortened(names)}), expected a text and a label, separated by a "
                f"{separator}{hint}"
            )
        raise InputError(
            f"{where}: found {len(names)} columns without known names ({_shortened(names)}); say which is which, "
            "for example columns text=0,label=1 (numbers from 0, or names of the header)"
        )
    lower = [name.lower() for name in names]
    columns: dict[str, Column] = {}
    for part, known in KNOWN_NAMES.items():
        present = [name for name in known if name in lower]
        if labelled or part != "label":
            _check_one(part, present, where)
            if present and lower.count(present[0]) > 1:
                raise InputError(
                    f"{where}: found {lower.count(present[0])} columns {present[0]!r} in the header, expected one "
                    f"{part}; rename the others, or say which by numbers from 0, as in columns {part}="
                    f"{lower.index(present[0])}"
                )
        if present:
            columns[part] = lower.index(present[0])
    if "text" not in columns:
        taken = {name for known in KNOWN_NAMES.values() for name in known}
        example = next((name for name in names if name.lower() not in taken), names[0])[:40]
        raise InputError(
            f"{where}: no column of texts among {_shortened(names)}; name it, for example columns text={example}"
        )
    return columns


def _check_one(part: str, present: list[str], where: str) -> None:
    if len(present) > 1:
        found = " and ".join(map(repr, present))
        raise InputError(f"{where}: found {found}, expected one {part}; say which, as in columns {part}={present[0]}")


def _place(column: Column, names: list[str], has_header: bool, where: str) -> int:
    if isinstance(column, int):
        if column >= len(names):
            raise InputError(
                f"{where}: found {len(names)} columns ({_shortened(names)}), expected one with the number {column}; "
                "columns are counted from 0"
            )
        return column
    if not has_header:
        raise InputError(f"{where}: the column {column!r} is a name, but the file has no header")
    if names.count(column) != 1:
        found = f"{where}: found {names.count(column) or 'no'} column {column!r} in the header"
        raise InputError(
            f"{found} ({_shortened(names)}), expected one; correct the name or the header, or, if that line is an "
            "example, give numbers, such as text=1,label=0"
        )
    return names.index(column)


def _shortened(names: list[str]) -> str:
    return " | ".join(name if len(name) <= 30 else name[:29] + "…" for name in names)


def _described(places: dict[str, int], names: list[str], has_header: bool) -> str:
    if has_header:
        return "first line is a header; " + ", ".join(f"{part} from {names[i]!r}" for part, i in places.items())
    return "no header; " + ", ".join(f"{part} from column {i}" for part, i in places.items())


# -- JSON --------------------------------------------------------------------------------------------------


def has_keys(path: Path, keys: Mapping[str, str], *, labelled: bool) -> bool:
    """Whether the first object of a file has the keys of texts, by part, and of labels, unless it names another label.

    Unless ``labelled``, labels do not matter.
    """
    if _form_of(path) == "json":
        document = read_json_document(path)
        first = document[0] if isinstance(document, list) and document else None
    else:
        _, first = next(read_jsonl(path, Problems(skip_bad=True)), (0, None))
    if not isinstance(first, dict):
        return False
    parts = {part: _dotted(first, key) for part, key in keys.items() if part in ("text", "second")}
    others = [name for name in KNOWN_NAMES["label"] if _dotted(first, name) is not None]
    has_label = "label" not in keys or _dotted(first, keys["label"]) is not None or not others
    return None not in parts.values() and (has_label or not labelled)


def _json_rows(path: Path, form: Form, problems: Problems, layout: TextFormat, labelled: bool) -> Iterator[_Row]:
    if form == "jsonl":
        objects = ((f"{path}:{number}", row) for number, row in read_jsonl(path, problems))
    else:
        document = read_json_document(path)
        if not isinstance(document, list):
            raise InputError(f"{path}: found {kind_of(document)}, expected a list of objects")
        objects = ((f"{path}: [{i}]", row) for i, row in enumerate(document))

    def make(item: tuple[str, Any]) -> _Row:
        where, row = item
        if not isinstance(row, dict):
            raise InputError(f"{where}: found {kind_of(row)}, expected an object")
        parts = _json_parts(row, layout, labelled, where)
        return _Row(where, parts, None if layout.only is None else _dotted(row, str(layout.only[0])))

    return make_each(objects, make, problems)


def _json_parts(row: dict[str, Any], layout: TextFormat, labelled: bool, where: str) -> dict[str, Any]:
    given = layout.columns.given()
    keys = {part: (str(column),) for part, column in given.items()} or KNOWN_NAMES
    parts: dict[str, Any] = {}
    for part, names in keys.items():
        present = [name for name in names if _dotted(row, name) is not None]
        if labelled or part != "label":
            _check_one(part, present, where)
        if present:
            parts[part] = _dotted(row, present[0])
        elif part == "text" or (part in given and part != "label") or (part == "label" and labelled):
            if null := next((name for name in names if name in row), ""):
                raise InputError(f"{where}: found null for {null!r}; add the {part}, or remove the row")
            what = " or ".join(map(repr, names))
            found = ", ".join(map(repr, row)) or "none"
            example = "text=KEY" if not labelled else "text=KEY,label=KEY"
            raise InputError(
                f"{where}: found no {what} (keys: {found}); add the {part}, or say which keys are meant, with columns "
                f"{example}"
            )
    return parts


def _dotted(row: dict[str, Any], key: str) -> Any:
    """The value under ``a``, under ``a.b`` as one key, or under ``b`` in ``a``; None where there is none.

    Keys are composed (NFC), or decomposed as macOS writes them.
    """
    for written in (key, unicodedata.normalize("NFD", key)):
        if written in row:
            return row[written]
    value: Any = row
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value
