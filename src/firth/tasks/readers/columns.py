"""Guess which columns of a table hold the text and the label from their values, where they are not named."""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from firth.errors import InputError
from firth.tasks.readers.files import Problems, is_filled, read_csv, read_tsv
from firth.tasks.readers.texts import KNOWN_NAMES, MULTILABEL_SEPARATOR, Columns, composed, known_parts

# Rows that are read to decide, and the fewest that decide anything.
_ROWS, _FEWEST = 1000, 4
# A column whose values have at least this many words on average is text.
_TEXT_WORDS = 3.0
# Of a single column, which cannot be confused with another.
_SHORT_TEXT_WORDS = 2.0
# The name of a column has at most this many.
_NAME_WORDS = 2
# At most this share of the rows may be malformed: reading the file then reports them.
_MOST_MALFORMED = 0.1
# Labels repeat: there are at most this many different ones per row.
_MOST_LABELS = 0.5


@dataclass(frozen=True, slots=True)
class ColumnGuess:
    """Columns in the form of ``--columns``, the text column's number, the reason, and whether line 1 is a header."""

    columns: str
    text: int
    why: str
    has_header: bool | None


@dataclass(frozen=True, slots=True)
class _Column:
    number: int
    values: list[str]

    @property
    def n_distinct(self) -> int:
        return len(set(self.values))

    @property
    def words(self) -> float:
        """Average number of words of a value."""
        return sum(len(value.split()) for value in self.values) / len(self.values)

    @property
    def characters(self) -> float:
        """Average number of characters of a value."""
        return sum(map(len, self.values)) / len(self.values)

    @property
    def is_numbers(self) -> bool:
        return all(map(_is_number, self.values))

    @property
    def n_labels(self) -> int:
        """Number of distinct labels, after splitting those that a row joins."""
        return len({label for value in self.values for label in value.split(MULTILABEL_SEPARATOR)})


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def guess_columns(
    path: Path, form: str, kind: str, *, header: bool | None = None, labelled: bool = True
) -> ColumnGuess | None:
    """Guess the columns of a table of texts without known names from its first rows; None if they do not decide.

    ``kind``: classify, multilabel or regress. ``form``: tsv or csv. ``header``: None to detect it from the lines.
    Labels are short and repeat, texts are the longest; two columns that may be text are not told apart, and neither
    are two that may be labels.
    """
    read = list(itertools.islice(_fields(path, form), _ROWS))
    rows = [row for row in read if len(row) == len(read[0])]
    if len(rows) < max(_FEWEST, (1 - _MOST_MALFORMED) * len(read)):
        return None
    known = known_parts(rows[0], rows[1:])
    if "second" in known or {"text", "label"} & known:  # names that say which is which, or which is missing
        return None
    if len(rows[0]) < 2 and (labelled or header is not None):
        return None
    columns = [_Column(number, [row[number].strip() for row in rows[1:]]) for number in range(len(rows[0]))]
    label = _label_column(columns, kind) if labelled else None
    if labelled and label is None:
        return None
    others = [column for column in columns if column is not label and column.n_distinct > 1]
    texts = [column for column in others if column.words >= _TEXT_WORDS] or others
    if len(texts) != 1:
        return None
    (text,) = texts
    if len(columns) == 1 and not (text.words >= _SHORT_TEXT_WORDS and _may_be_name_of(rows[0][0].strip(), text)):
        return None
    has_header = header
    if has_header is None and len(columns) > 1:
        has_header = bool(known) or (
            _is_header(rows[0], text, label, kind) if label else _is_unlabelled_header(rows[0], text, columns)
        )
    parts = {"text": text.number} | ({} if label is None else {"label": label.number})
    names = {part: rows[0][number].strip() if has_header else number for part, number in parts.items()}
    if any(isinstance(name, str) and (not name or set(name) & set(",=")) for name in names.values()):
        return None
    why = f"column {text.number} has {text.words:.0f} words on average"
    if label is not None:
        first = "the first " if len(read) == _ROWS else ""
        n_rows = len(label.values) + (not has_header)
        after = " after the header" if has_header else ""
        why += f", column {label.number} has {label.n_labels:,} different values in {first}{n_rows:,} rows{after}"
    return ColumnGuess(",".join(f"{part}={name}" for part, name in names.items()), text.number, why, has_header)


def names_other_texts(path: Path, form: str, columns: Columns) -> bool:
    """Whether the first line names a part of an example in another column than ``columns`` give by number.

    A label or an id counts beside a named text.
    """
    title = [name.strip().lower() for name in next(_fields(path, form), [])]
    named = {part: [n for n, name in enumerate(title) if name in names] for part, names in KNOWN_NAMES.items()}
    parts = ("text", "second", "label", "id") if named["text"] else ("second",)
    chosen = {part: getattr(columns, part) for part in parts}
    return any(named[part] and not isinstance(chosen[part], str) and chosen[part] not in named[part] for part in parts)


def names_columns(path: Path, form: str) -> bool:
    """Whether the first line has known names for a text and a label."""
    title = [name.strip().lower() for name in next(_fields(path, form), [])]
    return all(set(KNOWN_NAMES[part]) & set(title) for part in ("text", "label"))


def fits(path: Path, form: str, columns: Mapping[str, int | str], *, labelled: bool = True) -> bool:
    """Whether a table has the columns: enough of them, or a header that names them."""
    first = next(_fields(path, form), [])
    wanted = [column for part, column in columns.items() if labelled or part != "label"]
    names = [composed(name) for name in first]
    return all(column < len(names) if isinstance(column, int) else names.count(column) == 1 for column in wanted)


def reads_labels(path: Path, form: str, kind: str, columns: Columns, labels: Collection[str]) -> bool:
    """Whether all texts of a table with several columns, the first line aside, are labels of the model."""
    rows = list(itertools.islice(_fields(path, form), _ROWS))
    text = columns.text
    if not isinstance(text, int) or not (kind == "regress" or labels):
        return False
    texts = [row[text].strip() for row in rows[1:] or rows if text < len(row) > 1]
    return any(texts) and all(_is_label(one, kind, labels) for one in texts)


def _is_label(value: str, kind: str, labels: Collection[str]) -> bool:
    """Whether the model knows a label, or each of several; an empty one is none of a text's several."""
    if kind == "regress":
        return _is_number(value)
    return set(value.split(MULTILABEL_SEPARATOR) if kind == "multilabel" else [value]) <= {*labels, ""}


def first_is_header(path: Path, form: str, kind: str, columns: Columns, labels: Collection[str]) -> bool | None:
    """Whether line 1 of a table names the columns, judged by its labels; None if they do not decide.

    It does if the model does not know its label, knows those of the lines below, and its text may be a name.
    ``columns``: by number; ``labels``: those of the model, none for ``kind`` regress, whose values are numbers.
    """
    rows = list(itertools.islice(_fields(path, form), _ROWS))
    text, label = columns.text, columns.label
    if not isinstance(text, int) or not isinstance(label, int) or (kind != "regress" and not labels):
        return None
    known = [_is_label(row[label].strip(), kind, labels) for row in rows if label < len(row)]
    if not known or known[0]:
        return False
    return True if len(known) > 1 and all(known[1:]) and _may_be_name(rows[0][text]) else None


def _may_be_name(value: str) -> bool:
    return len(value.split()) <= _NAME_WORDS


def _fields(path: Path, form: str) -> Iterator[list[str]]:
    lines = filter(is_filled, read_csv(path) if form == "csv" else read_tsv(path, Problems(skip_bad=True)))
    return (fields for _, fields in lines)


def _label_column(columns: Sequence[_Column], kind: str) -> _Column | None:
    """The one column that may hold the labels; None if there is none, or more than one."""
    if kind == "regress":
        found = [column for column in columns if column.is_numbers and column.n_distinct > 1]
        # Numbers that count the rows are ids.
        found = [column for column in found if column.values != [str(n) for n in _counting(column.values)]]
        return found[0] if len(found) == 1 else None
    longest = max(columns, key=lambda column: column.characters)
    found = [
        column
        for column in columns
        if column is not longest
        and column.words < _TEXT_WORDS
        and 1 < column.n_labels <= max(2, _MOST_LABELS * len(column.values))
    ]
    return found[0] if len(found) == 1 else None


def _counting(values: Sequence[str]) -> Iterator[int]:
    first = int(values[0]) if values[0].lstrip("-").isdecimal() else 0
    return iter(range(first, first + len(values)))


def _is_unlabelled_header(first: Sequence[str], text: _Column, columns: Sequence[_Column]) -> bool | None:
    """``_is_header`` for a table without labels, by a column of numbers; None if nothing tells a name from a text."""
    if text.words < _TEXT_WORDS or not _may_be_name_of(first[text.number].strip(), text):
        return False
    numbers = next((column for column in columns if column.is_numbers), None)
    return None if numbers is None else not _is_number(first[numbers.number])


def _may_be_name_of(first: str, text: _Column) -> bool:
    return _may_be_name(first) and first not in text.values


def _is_header(first: Sequence[str], text: _Column, label: _Column, kind: str) -> bool:
    """Whether the first line names the columns: it has neither a label of the other lines nor a text."""
    name = first[text.number].strip()
    if not _may_be_name(name) or name in text.values:
        return False
    title = first[label.number].strip()
    if kind == "regress":
        return not _is_number(title)
    return not set(title.split(MULTILABEL_SEPARATOR)) & {
        one for value in label.values for one in value.split(MULTILABEL_SEPARATOR)
    }


def check_not_swapped(texts: Sequence[str], labels: Sequence[str], columns: str, where: str) -> None:
    """Raise InputError if texts and labels of a classification are swapped, or labels are ids."""
    n = len(texts)
    if n < _FEWEST:
        return
    n_labels, n_texts = len(set(labels)), len(set(texts))
    label_length, text_length = sum(map(len, labels)) / n, sum(map(len, texts)) / n
    if label_length > text_length and n_labels > n_texts:
        given = f" ({columns})" if columns else ""
        raise InputError(
            f"{where}: {n_labels:,} different labels of {label_length:.0f} characters in {n:,} examples, and "
            f"{n_texts:,} different texts of {text_length:.0f}: text and label are swapped{given}; give --columns the "
            "other way round"
        )
    if n_labels == n and n > 2 * _FEWEST:
        raise InputError(
            f"{where}: each of {n:,} examples has a label of its own, so that none can be learnt: is that the column "
            "of labels? Give --columns text=COLUMN,label=COLUMN"
        )
