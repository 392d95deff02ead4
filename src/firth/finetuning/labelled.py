"""Read labelled data for fine-tuning and evaluation: a published data set by name, or the user's files."""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from firth.errors import ConfigError, InputError
from firth.finetuning.recipe import LabelledConfig
from firth.metrics.tagging import KLUE_NER_TAGS
from firth.tasks.datasets import DATASETS
from firth.tasks.kinds import kind_of_task, metrics_of
from firth.tasks.readers.choices import read_arc, read_arc_csv, read_choices_jsonl, read_dream, read_swag
from firth.tasks.readers.columns import (
    ColumnGuess,
    check_not_swapped,
    first_is_header,
    fits,
    guess_columns,
    names_columns,
    names_other_texts,
)
from firth.tasks.readers.files import Problems, bare_suffix, check_file, read_jsonl
from firth.tasks.readers.questions import read_squad
from firth.tasks.readers.tagging import (
    in_bio,
    is_klue_ner,
    read_conll,
    read_conllu,
    read_klue_ner,
    read_tagged_jsonl,
    read_words,
)
from firth.tasks.readers.texts import Columns, TextFormat, TextKind, parse_columns, read_texts
from firth.tasks.reading import check_labels, labels_of, read_dataset, splits_in
from firth.tasks.scoring import METRICS
from firth.tasks.split import content_key, hold_out, limit
from firth.tasks.tag_schemes import OUTSIDE, scheme_of, split_tag
from firth.text.records import Record, Tagged, Text

# File formats by kind of task, each with its suffixes. Texts have their own readers.
_FORMATS: dict[str, dict[str, tuple[Callable[..., Iterable[Any]], tuple[str, ...]]]] = {
    "tag": {
        "conll": (read_conll, (".conll", ".tsv", ".bio", ".iob", ".train", ".testa", ".testb")),
        "conllu": (read_conllu, (".conllu",)),
        "jsonl": (read_tagged_jsonl, (".jsonl",)),
        "klue": (read_klue_ner, ()),
        "lines": (read_words, (".txt",)),
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
# With fewer training examples a run is refused; from this share of one label on it warns.
_FEWEST, _SKEWED = 2, 0.75
# Share of an evaluation file's examples that stand in the training data as well, from which it is said.
_SHARED = 0.2
# A single sentence of more words is a file without blank lines.
_LONGEST_SENTENCE = 1000
# More kinds of plain tags than these, and than words, are words.
_MOST_TAGS = 100
_LOOKS_LIKE_HEADER = "the first line looks like a header and is no example (--no-header: it is one)"
_TEXT_FORMS = ("tsv", "csv", "jsonl")
_TABLES = {".tsv": "tsv", ".txt": "tsv", ".csv": "csv"}
_TEXT_KINDS = get_args(TextKind)
# What the readers take for each --header.
_HEADER = {"auto": None, "yes": True, "no": False}


@dataclass(frozen=True, slots=True)
class LabelledData:
    """Examples for training, selection and reporting, and the head options that follow from them.

    ``dev``: by name of the split: "dev", and others such as "dev_mismatched". ``options``: head options that the
    data determines. ``notes``: what the user should know about the data.
    """

    kind: str
    metrics: tuple[str, ...]
    train: list[Any]
    held: list[Any]
    dev: dict[str, list[Any]]
    options: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    columns: str = ""

    @property
    def has_documents(self) -> bool:
        """Whether sentences to tag belong to documents, so that a sequence holds several."""
        return self.kind == "tag" and any(record.group for record in self.train)

    @property
    def has_pairs(self) -> bool:
        """Whether each example is a pair of texts. An empty second text counts as none."""
        return all(getattr(record, "second", None) for record in self.train)


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
    """Options with the columns of a table of texts, where they name none and its header has no names that are known.

    ``learnt``: the columns of the data that a model has learnt from, which are taken where the file has them;
    ``labels``: those the model knows. Else what stands in the columns decides, which is said with the flag that changes
    it.
    """
    path = Path(file)
    form = _table_form(path, config)
    is_jsonl = (config.format if config.format != "auto" else bare_suffix(path)) in ("jsonl", ".jsonl")
    if is_jsonl and learnt and not config.columns and kind in _TEXT_KINDS and path.is_file():
        return _with_learnt_keys(path, config, learnt, problems)
    if kind not in _TEXT_KINDS or form not in ("tsv", "csv") or not path.is_file():
        return config
    header = _HEADER[config.header]
    guess = guess_columns(path, form, kind, header=header, labelled=labelled)
    if config.columns:
        numbers = all(isinstance(column, int) for column in parse_columns(config.columns).given().values())
        if labelled and numbers and header is None and guess is not None and guess.has_header:
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
    """InputError where line 1 of a table may name the columns, and may be a text."""
    if guess is not None and guess.has_header is None:
        raise InputError(f"{file}: line 1 may name the columns or be a text: give --header or --no-header")


def _with_learnt_keys(path: Path, config: LabelledConfig, learnt: str, problems: Problems) -> LabelledConfig:
    """The keys that a model has learnt from, where the first object has that of the text."""
    key = parse_columns(learnt).text
    _, first = next(read_jsonl(path, Problems(skip_bad=True)), (0, {}))
    if key == "text" or key not in first:
        return config
    problems.note(f"{path}: columns {learnt}, as in the model's training data (--columns)")
    return dataclasses.replace(config, columns=learnt)


def read_labelled(task: str, config: LabelledConfig, head: dict[str, Any], scheme: str = "BIO") -> LabelledData:
    """Read and split all data that a fine-tuning needs.

    ``head``: the recipe's head options, which override the data. ``scheme``: the default tag scheme for
    entities.
    """
    kind = kind_of_task(task)
    problems = Problems(skip_bad=config.skip_bad)
    if task in DATASETS:
        train, dev = _published(task, config, problems)
    else:
        given = config
        if config.train:
            config = with_columns(kind, config.train, config, problems)
        train, dev = _own(kind, config, given, problems)
        _check_alike(train, dev.get("dev", []), config)
        if kind == "classify":
            examples: list[Any] = train
            texts = [f"{record.text} {record.second or ''}" for record in examples]
            check_not_swapped(texts, [record.label for record in examples], config.columns, config.train)
    for name, records in dev.items():
        _note_shared(name, records, train, problems)
    if not isinstance(head.get("labels", []), (list, tuple)):
        raise ConfigError(f'head.labels={head["labels"]!r}: expected a list, such as head.labels=["no", "yes"]')
    # From all training examples, before the limit.
    options = head_options(task, kind, train, head, scheme)
    n_read = len(train)
    if config.limit:
        train = limit(train, config.limit, config.limit_seed)
        whole = ", in whole documents" if len(train) > config.limit else ""
        problems.note(f"data.limit: {len(train):,} of {n_read:,} training examples{whole}")
    labels = head.get("labels") or options.get("labels") or ()
    if labels:
        train = check_labels(train, labels, problems)
        dev = {name: check_labels(records, labels, problems) for name, records in dev.items()}
    held = dev.get("dev", [])
    if config.choose_on == "held-out":
        n_chosen = len(train)
        train, held = hold_out(train, config.held_out)
        if len(held) > max(2 * config.held_out * n_chosen, 2) and any(record.group for record in held):
            problems.note(
                f"{len(held):,} of {n_chosen:,} training examples are held out: those of a group stay together, and "
                f"there are {len({record.group for record in (*train, *held)}):,} groups"
            )
    elif not held:
        raise ConfigError("data.choose_on='dev' requires a dev file: give --dev")
    _check_learnable(kind, train, labels, config, problems)
    metrics = metrics_of(task)
    if kind == "tag" and options["scheme"] == "plain":
        metrics = ("tag_accuracy",)
    return LabelledData(kind, metrics, train, held, dev, options, problems.report(), config.columns)


def _check_alike(train: Sequence[Any], dev: Sequence[Any], config: LabelledConfig) -> None:
    """InputError where one file has pairs of texts and the other single ones: half of each pair would be lost."""
    ours, theirs = ([isinstance(r, Text) and r.second is not None for r in records] for records in (train, dev))
    if theirs and ((any(theirs) and not any(ours)) or (all(ours) and not any(theirs))):
        pairs, single = (config.dev, config.train) if any(theirs) else (config.train, config.dev)
        raise InputError(
            f"{pairs} has pairs of texts, {single} single texts: give both files the same columns, and name them with "
            "--columns, such as text=0,label=1 or text=0,second=1,label=2"
        )


def _note_shared(name: str, records: Sequence[Any], train: Sequence[Any], problems: Problems) -> None:
    """Note if many examples of an evaluation file are training examples too."""
    seen = set(map(content_key, train))
    shared = sum(content_key(record) in seen for record in records)
    if shared >= _SHARED * len(records):
        problems.note(
            f"{name}: {shared:,} of {len(records):,} examples are training examples too: its score does not say how "
            "well the model does on new ones"
        )


def _check_learnable(
    kind: str, train: Sequence[Any], labels: Sequence[str], config: LabelledConfig, problems: Problems
) -> None:
    """Raise InputError if the training examples left are too few to learn from; note if they are nearly so."""
    held_out = ", without the held-out ones" if config.choose_on == "held-out" else ""
    limited = f" (data.limit={config.limit})" if config.limit else ""
    what = f"{len(train):,} training example{'' if len(train) == 1 else 's'}{held_out}{limited}"
    more = "raise --limit" if config.limit else "give more examples"
    if kind == "regress" and len({record.label for record in train}) < 2:
        raise InputError(f"{what}: all have the value {train[0].label}; expected two values or more: {more}")
    if kind != "classify":
        if len(train) < _FEWEST:
            raise InputError(f"{what}: expected at least {_FEWEST}: {more}")
        if kind == "multilabel" and (never := set(labels).difference(*(record.label for record in train))):
            problems.note(f"labels without a training example, which cannot be learned: {_listed(sorted(never))}")
        return
    counts = Counter(record.label for record in train)
    (commonest, n), *others = counts.most_common()
    if not others:
        raise InputError(f"{what}: all have the label {commonest!r}; expected two labels or more: {more}")
    absent = [label for label in labels if label not in counts]
    single = [label for label, count in others if count == 1]
    by_case: dict[str, list[str]] = {}
    for label in labels:
        by_case.setdefault(label.casefold(), []).append(label)
    if alike := [label for same in by_case.values() if len(same) > 1 for label in same]:
        problems.note(f"labels that differ only in case are learned as different ones: {_listed(alike)}")
    by_number: dict[float, list[str]] = {}
    for label in labels:
        with suppress(ValueError):
            by_number.setdefault(float(label), []).append(label)
    if alike := [label for same in by_number.values() if len(same) > 1 for label in same]:
        problems.note(f"labels of the same number are learned as different ones: {_listed(alike)}")
    if absent:
        problems.note(f"labels without a training example, which cannot be learned: {_listed(absent)}")
    if single:
        problems.note(f"labels with a single training example: {_listed(single)}")
    if n >= _SKEWED * len(train):
        problems.note(
            f"{n:,} of {len(train):,} training examples have the label {commonest!r}, so always predicting it reaches "
            f"accuracy {n / len(train):.0%}: look at macro_f1 too, or balance the labels with --set train.balance=true"
        )


def _listed(labels: Sequence[str]) -> str:
    shown = ", ".join(map(repr, labels[:10]))
    return f"{shown} … ({len(labels):,} labels)" if len(labels) > 10 else shown


def check_metric(data: LabelledData, metric: Any, labels: Sequence[str]) -> None:
    """Check that the task has a metric and that higher is better; else ConfigError.

    ``labels``: those of the head.
    """
    known = [name for name in METRICS[data.kind] if name != "f1" or len(labels) == 2]
    if data.kind == "tag" and data.options["scheme"] == "plain":
        known = ["tag_accuracy"]
    elif data.kind == "tag" and (data.options["unit"] == "word" or not _of_klue(labels)):
        known = [name for name in known if "macro" not in name and "char" not in name]
    elif data.kind == "answer" and data.options["can_refuse"]:
        known = [name for name in known if "char" not in name]
    # Metrics of the data set only; those of its kind are checked above.
    known += [name for name in data.metrics if name not in METRICS[data.kind]]
    if metric not in known:
        raise ConfigError(f"metric={metric!r}: expected one of {', '.join(known)}")


def _of_klue(tags: Sequence[str]) -> bool:
    """Whether all entities are KLUE's, in any scheme; some scores are defined only for them."""
    return {tag[2:] for tag in tags} <= {tag[2:] for tag in KLUE_NER_TAGS}


def _published(task: str, config: LabelledConfig, problems: Problems) -> tuple[list[Record], dict[str, list[Record]]]:
    if not config.folder:
        raise ConfigError(f"--task {task} is a data set: give the folder that holds its files with --data")
    if config.train or config.dev or config.columns or config.format != "auto" or config.header != "auto":
        raise ConfigError(
            f"--task {task} reads the files of the data set: leave out --train, --dev, --columns, --header and "
            f"--format, or use --task {DATASETS[task].kind} for files of your own"
        )
    folder = Path(config.folder)
    train = read_dataset(task, folder, "train", problems)
    names = [name for name in splits_in(task, folder) if name.startswith("dev")]
    if not names:
        problems.note(f"{folder} has no dev file of {task}: scores are from the held-out training examples")
    return train, {name: read_dataset(task, folder, name, problems) for name in names}


def _own(
    kind: str, config: LabelledConfig, given: LabelledConfig, problems: Problems
) -> tuple[list[Record], dict[str, list[Record]]]:
    """Read the user's files. ``config``: with the columns found in the training file; ``given``: as it was."""
    if config.folder:
        raise ConfigError(f"--data is for published data sets; for --task {kind} give files with --train and --dev")
    if not config.train:
        raise ConfigError("--train is missing: give the file of labelled training examples")
    train = read_file(kind, config.train, config, problems)
    if not config.dev:
        return train, {}
    config = dataclasses.replace(config, header=given.header)
    path, form = Path(config.dev), _table_form(Path(config.dev), config)
    if config.columns and form in ("tsv", "csv") and path.is_file():
        columns = parse_columns(config.columns).given()
        by_name = any(isinstance(column, str) for column in columns.values())
        # The other file may lack the header, or have another one, whose names say more than numbers.
        other = dataclasses.replace(config, columns="")
        if by_name and not fits(path, form, columns):
            found = with_columns(kind, config.dev, other, problems)
            config = found if found.columns or names_columns(path, form) else config
        elif not by_name and names_columns(path, form):
            config = other
        elif not given.columns:
            _check_order(kind, config)
    return train, {"dev": read_file(kind, config.dev, with_columns(kind, config.dev, config, problems), problems)}


def _table_form(path: Path, config: LabelledConfig) -> str | None:
    return _TABLES.get(bare_suffix(path)) if config.format == "auto" else config.format


def _check_order(kind: str, config: LabelledConfig) -> None:
    """InputError where the evaluation file has its texts in another column than the training file."""
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
        return _texts(kind, path, config, problems, labelled)
    if config.header != "auto":
        raise ConfigError(f"{path}: --header and --no-header are of tables of texts, not of {kind}: leave them out")
    columns: dict[str, int] = {}
    formats = _FORMATS[kind]
    name = config.format
    if name == "auto":
        suffix = bare_suffix(path)
        fitting = [known for known, (_, suffixes) in formats.items() if suffix in suffixes]
        if labelled and fitting == ["lines"]:  # plain lines have no tags, so a labelled .txt file has columns
            fitting = ["conll"]
        if fitting == ["conll"] and path.is_file() and is_klue_ner(path):
            fitting = ["klue"]
        if not fitting:
            raise ConfigError(
                f"{path}: cannot detect the format from its name: give --format, one of {', '.join(formats)}"
            )
        name = fitting[0]
    if name not in formats:
        raise ConfigError(f"--format {name}: expected one of {', '.join(formats)} for --task {kind}")
    if config.columns:
        if name != "conll":
            raise ConfigError(f"--columns does not apply to the format {name}")
        columns = _word_columns(config.columns)
    if labelled and name == "lines":
        raise ConfigError("--format lines: lines of text have no tags to learn from; give --format conll, for example")
    read = formats[name][0]
    return read(path, problems) if read is read_words else read(path, problems, labelled=labelled, **columns)


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
    layout = TextFormat(columns=columns, kind=kind, form=form, header=header)
    return read_texts(path, problems, layout, labelled=labelled)


def head_options(
    task: str, kind: str, train: Sequence[Any], head: dict[str, Any], scheme: str = "BIO"
) -> dict[str, Any]:
    """The head options that the training examples determine, including those held out."""
    published = DATASETS.get(task)
    if kind in ("classify", "multilabel"):
        found = published.labels if published is not None and published.labels else labels_of(train)
        if len(found) < 2 and kind == "classify" and "labels" not in head:
            n, label = len(train), found[0]
            raise InputError(f"{train[0].where}: all {n:,} examples have the label {label!r}; expected two or more")
        return {"labels": list(found)}
    if kind == "regress":
        values = [record.label for record in train]
        return {"lowest": float(min(values)), "highest": float(max(values))}
    if kind == "tag":
        return _tag_options(published.unit if published else _unit(train), train, head, scheme)
    if kind == "answer":
        return {"can_refuse": any(not question.answers for question in train)}
    return {}


def _unit(records: Sequence[Tagged]) -> str:
    """Whether tags belong to words or to characters."""
    return "character" if all(b - a == 1 for record in records for a, b in record.spans) else "word"


def _tag_options(unit: str, train: Sequence[Tagged], head: dict[str, Any], usual: str) -> dict[str, Any]:
    sentences = [record.tags or () for record in train]
    plain = scheme_of(sentences) == "plain"
    scheme = head.get("scheme", "plain" if plain else usual)
    if (scheme == "plain") != plain:
        raise ConfigError(f"head.scheme={scheme!r}, but the tags are {'plain' if plain else 'of entities'}")
    tags = {tag for sentence in sentences for tag in sentence}
    if plain:
        words = {record.text[a:b] for record in train for a, b in record.spans}
        if len(tags) > max(_MOST_TAGS, len(words)):
            raise InputError(
                f"{train[0].where}: {len(tags):,} different tags and {len(words):,} different words: words and tags "
                "are swapped; give --columns word=COLUMN,tag=COLUMN the other way round. (A table of texts with labels "
                "is for --task classify.)"
            )
        return {"unit": unit, "scheme": scheme, "labels": sorted(tags)}
    entities = sorted({split_tag(tag)[1] for tag in tags if tag != OUTSIDE})
    if not entities:
        raise InputError(f"{train[0].where}: every word has the tag O; expected some entities to learn from")
    prefixes = "BI" if scheme == "BIO" else "BIES"
    return {"unit": unit, "scheme": scheme, "labels": [OUTSIDE, *(f"{p}-{e}" for e in entities for p in prefixes)]}
