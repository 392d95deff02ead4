"""The user's own labelled files: which columns hold what, and how each format is read."""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

from firth.errors import ConfigError, InputError
from firth.finetuning.recipe import LabelledConfig
from firth.tasks.readers.choices import read_arc, read_arc_csv, read_choices_jsonl, read_dream, read_swag
from firth.tasks.readers.columns import (
    ColumnGuess,
    first_is_header,
    fits,
    guess_columns,
    names_columns,
    names_other_texts,
    reads_labels,
)
from firth.tasks.readers.files import Problems, bare_suffix, check_file
from firth.tasks.readers.questions import read_squad
from firth.tasks.readers.tagging import (
    in_bio,
    is_klue_ner,
    read_conll,
    read_conllu,
    read_klue_ner,
    read_tagged_jsonl,
)
from firth.tasks.readers.texts import Columns, TextFormat, TextKind, has_keys, parse_columns, read_texts
from firth.text.records import Record, Text

# File formats by kind of task, each with its suffixes. Texts have their own readers.
_FORMATS: dict[str, dict[str, tuple[Callable[..., Iterable[Any]], tuple[str, ...]]]] = {
    "tag": {
        "conll": (read_conll, (".conll", ".tsv", ".txt", ".bio", ".iob", ".train", ".testa", ".testb")),
        "conllu": (read_conllu, (".conllu",)),
        "jsonl": (read_tagged_jsonl, (".jsonl",)),
        "klue": (read_klue_ner, ()),
    },
    "answer": {"squad": (read_squad, (".json",))},
    "choose": {
        "swag": (read_swag, (".csv",)),
        "jsonl": (read_choices_jsonl, (".jsonl",)),
        "dream": (read_dream, (".json",)),
        "arc": (read_arc, ()),
        "arc_csv": (read_arc_csv, ()),
    },
}
# What to write instead of files whose names end so, which --format would not make readable.
_OTHERWISE = {
    ("answer", ".jsonl"): "questions are read from one JSON document in the layout of SQuAD, not from JSON lines",
    ("tag", ".csv"): "words and tags are read from columns separated by tabs or spaces, not commas, or from JSON lines",
}
# A single sentence of more words than this comes from a file without blank lines.
_LONGEST_SENTENCE = 1000
_LOOKS_LIKE_HEADER = "the first line looks like a header and is no example (--no-header: it is one)"
_TEXT_FORMS = ("tsv", "csv", "jsonl")
_JSON = ("json", "jsonl")
# So many texts in quotation marks at the beginning of a file are noted.
_QUOTED_TEXTS = 5
_TABLES = {".tsv": "tsv", ".txt": "tsv", ".csv": "csv"}
_TEXT_KINDS = get_args(TextKind)
# The value that the readers take for each --header.
_HEADER = {"auto": None, "yes": True, "no": False}


def with_columns(
    kind: str,
    file: str,
    config: LabelledConfig,
    problems: Problems,
    *,
    learnt: str = "",
    labels: Collection[str] = (),
    labelled: bool = True,
) -> LabelledConfig:
    """Add the columns of a table of texts to options that name none, if its header has no known names.

    ``learnt``: the columns of a model's training data, used if the file has them; ``labels``: those the model knows.
    Otherwise the columns are detected by content, and a note names the flag that changes them.
    """
    path = Path(file)
    form = _table_form(path, config)
    given = config.format if config.format != "auto" else bare_suffix(path).removeprefix(".")
    if given in _JSON and learnt and not config.columns and kind in _TEXT_KINDS and path.is_file():
        return _with_learnt_keys(path, config, learnt, problems, labelled=labelled)
    if kind not in _TEXT_KINDS or form not in ("tsv", "csv") or not path.is_file():
        return config
    header = _HEADER[config.header]
    guess = guess_columns(path, form, kind, header=header, labelled=labelled)
    if config.columns:
        numbers = all(isinstance(column, int) for column in parse_columns(config.columns).given().values())
        if numbers and header is None and guess is not None and guess.has_header:
            problems.note(f"{file}: {_LOOKS_LIKE_HEADER}")
            return dataclasses.replace(config, header="yes")
        return config
    if learnt and header is not False and names_other_texts(path, form, parse_columns(learnt)):
        return config
    if learnt and fits(path, form, parse_columns(learnt).given(), labelled=labelled):
        number = parse_columns(learnt).text
        if guess is not None and isinstance(number, int) and guess.text != number:
            raise InputError(
                f"{file}: the model learnt from texts in column {number}, but here {guess.why}: give --columns "
                f"{guess.columns}, or --columns {learnt} if that is meant"
            )
        if reads_labels(path, form, kind, parse_columns(learnt), labels):
            raise InputError(
                f"{file}: the model learnt from texts in column {number}, but here that column has its labels: give "
                f"--columns text=COLUMN, or --columns {learnt} if that is meant"
            )
        problems.note(f"{file}: columns {learnt}, as in the model's training data (--columns)")
        config = dataclasses.replace(config, columns=learnt)
        if header is None and isinstance(number, int):
            found = first_is_header(path, form, kind, parse_columns(learnt), labels)
            if found is None:
                _check_header(file, guess)
            if found or (found is None and guess is not None and guess.has_header):
                problems.note(f"{file}: {_LOOKS_LIKE_HEADER}")
                return dataclasses.replace(config, header="yes")
        return config
    if guess is None:
        return config
    _check_header(file, guess)
    problems.note(f"{file}: columns found by content: --columns {guess.columns} ({guess.why})")
    return dataclasses.replace(config, columns=guess.columns)


def _check_header(file: str, guess: ColumnGuess | None) -> None:
    """Raise InputError if line 1 of a table may name the columns or be a text."""
    if guess is not None and guess.has_header is None:
        raise InputError(
            f"{file}: line 1 may name the columns or be a text: give --header or --no-header, or --columns with the "
            f"column's name, or with its number if the line is a text (text={guess.text})"
        )


def _with_learnt_keys(
    path: Path, config: LabelledConfig, learnt: str, problems: Problems, *, labelled: bool
) -> LabelledConfig:
    """Add the keys of a model's training data, if the first object of a JSON file has them."""
    keys = {part: str(key) for part, key in parse_columns(learnt).given().items()}
    if all(part == key for part, key in keys.items()) or not has_keys(path, keys, labelled=labelled):
        return config
    problems.note(f"{path}: columns {learnt}, as in the model's training data (--columns)")
    return dataclasses.replace(config, columns=learnt)


def read_own(
    kind: str, given: LabelledConfig, problems: Problems
) -> tuple[list[Record], dict[str, list[Record]], LabelledConfig]:
    """Read the user's training and evaluation files; also the options with the columns found in the training file."""
    config = given
    if config.folder:
        raise ConfigError(f"--data is for published data sets; for --task {kind} give files with --train and --dev")
    if not config.train:
        raise ConfigError("--train is missing: give the file of labelled training examples")
    config = with_columns(kind, config.train, config, problems)
    train = read_file(kind, config.train, config, problems)
    if not config.dev:
        return train, {}, config
    trained = config
    config = dataclasses.replace(config, header=given.header)
    path, form = Path(config.dev), _table_form(Path(config.dev), config)
    if config.columns and form in ("tsv", "csv") and path.is_file():
        columns = parse_columns(config.columns).given()
        by_name = any(isinstance(column, str) for column in columns.values())
        # The other file may lack the header, or have another one, whose names take precedence over numbers.
        other = dataclasses.replace(config, columns="")
        if by_name and not fits(path, form, columns):
            found = with_columns(kind, config.dev, other, problems)
            config = found if found.columns or names_columns(path, form) else config
        elif not by_name and names_columns(path, form):
            config = other
        elif not given.columns:
            _check_order(kind, config)
    dev = read_file(kind, config.dev, with_columns(kind, config.dev, config, problems), problems)
    return train, {"dev": dev}, trained


def _watch_quotes(path: Path, texts: Iterable[Text], problems: Problems) -> Iterator[Text]:
    """Yield the texts of a TSV file; note if the first are all in quotation marks, as spreadsheets write them."""
    n_quoted = 0
    for number, text in enumerate(texts, start=1):
        n_quoted += len(text.text) > 1 and text.text.startswith('"') and text.text.endswith('"')
        if number == n_quoted == _QUOTED_TEXTS:
            problems.note(
                f"{path}: the texts are in quotation marks, which are a part of them in TSV: give --format csv, which "
                "reads quoted fields, between tabs too"
            )
        yield text


def _table_form(path: Path, config: LabelledConfig) -> str | None:
    return _TABLES.get(bare_suffix(path)) if config.format == "auto" else config.format


def _check_order(kind: str, config: LabelledConfig) -> None:
    """Raise InputError if the evaluation file has its texts in another column than the training file."""
    path, number = Path(config.dev), parse_columns(config.columns).text
    form = _table_form(path, config)
    if not isinstance(number, int) or form not in ("tsv", "csv") or not path.is_file():
        return
    guess = guess_columns(path, form, kind)
    if guess is not None and guess.text != number:
        raise InputError(
            f"{config.dev}: {config.train} has its texts in column {number}, but here {guess.why}: write the columns "
            "of both files in the same order"
        )


def read_file(kind: str, file: str, config: LabelledConfig, problems: Problems) -> list[Any]:
    """Read the examples of one of the user's files; InputError if there are none."""
    records = list(iter_file(kind, Path(file), config, problems))
    if kind == "tag":
        if len(records) == 1 and len(records[0].spans) > _LONGEST_SENTENCE:
            raise InputError(
                f"{file}: one sentence of {len(records[0].spans):,} words; expected a blank line after each sentence"
            )
        if len(records) == 1:
            problems.note(f"{file}: one sentence; a blank line ends a sentence")
        records = in_bio(records, problems)
    if not records:
        raise InputError(f"{file}: no examples; expected at least one")
    return records


def iter_file(
    kind: str, path: Path, config: LabelledConfig, problems: Problems, *, labelled: bool = True
) -> Iterable[Any]:
    """Yield the examples of a file."""
    if path.is_dir():
        check_file(path)
    if kind in _TEXT_KINDS:
        texts = _texts(kind, path, config, problems, labelled)
        return _watch_quotes(path, texts, problems) if _table_form(path, config) == "tsv" else texts
    if config.header != "auto":
        raise ConfigError(f"{path}: --header and --no-header are of tables of texts, not of {kind}: leave them out")
    columns: dict[str, int] = {}
    formats = _FORMATS[kind]
    name = config.format
    if name == "auto":
        suffix = bare_suffix(path)
        fitting = [known for known, (_, suffixes) in formats.items() if suffix in suffixes]
        if fitting == ["conll"] and path.is_file() and is_klue_ner(path):
            fitting = ["klue"]
        if otherwise := _OTHERWISE.get((kind, suffix)):
            raise ConfigError(f"{path}: {otherwise}")
        if not fitting:
            raise ConfigError(f"{path}: cannot detect the format from its name: give --format {' or '.join(formats)}")
        name = fitting[0]
    if name not in formats:
        raise ConfigError(f"--format {name}: expected one of {', '.join(formats)} for --task {kind}")
    if config.columns:
        if name != "conll":
            raise ConfigError(f"--columns does not apply to the format {name}")
        columns = _word_columns(config.columns)
    return formats[name][0](path, problems, labelled=labelled, **columns)


def _word_columns(text: str) -> dict[str, int]:
    """Parse ``"word=0,tag=3"`` to column numbers."""
    found = {}
    for pair in text.split(","):
        part, _, number = (piece.strip() for piece in pair.partition("="))
        if part not in ("word", "tag") or not re.fullmatch("-?[0-9]{1,9}", number):
            raise ConfigError(f"--columns {text!r}: expected numbers of columns such as word=0,tag=3")
        found[part] = int(number)
    return found


def _texts(kind: Any, path: Path, config: LabelledConfig, problems: Problems, labelled: bool) -> Iterable[Text]:
    form: Any = None if config.format == "auto" else config.format
    if form is not None and form not in _TEXT_FORMS:
        raise ConfigError(f"--format {form}: expected one of {', '.join(_TEXT_FORMS)} for --task {kind}")
    columns = parse_columns(config.columns) if config.columns else Columns()
    header = _HEADER[config.header]
    table = _table_form(path, config)
    if not (labelled or config.columns) and header is None and table in ("tsv", "csv") and path.is_file():
        _check_header(str(path), guess_columns(path, table, kind, labelled=False))
    layout = TextFormat(columns=columns, kind=kind, form=form, header=header)
    return read_texts(path, problems, layout, labelled=labelled)
