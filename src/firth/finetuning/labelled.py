"""Read labelled data for fine-tuning and evaluation: a published data set by name, or the user's files."""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firth.errors import ConfigError, InputError
from firth.finetuning.head_options import head_options
from firth.finetuning.own_files import read_own
from firth.finetuning.recipe import LabelledConfig
from firth.tasks.datasets import DATASETS
from firth.tasks.kinds import kind_of_task, metrics_of
from firth.tasks.learnt import reads_pairs
from firth.tasks.readers.columns import check_not_swapped
from firth.tasks.readers.files import Problems
from firth.tasks.readers.texts import MULTILABEL_SEPARATOR
from firth.tasks.reading import check_labels, note_constant, note_unanswerable, read_dataset, splits_in
from firth.tasks.scoring import METRICS, of_klue
from firth.tasks.split import content_key, hold_out, is_divided, limit
from firth.tasks.tag_units import in_units, unit_of_entities
from firth.text.records import Record, Text

# With fewer training examples a run is refused; from this share of one label on a note warns of it.
_FEWEST, _SKEWED = 2, 0.75
# So many labels that are all numbers are probably values.
_MANY_NUMBERS = 10
# How the note on labels that no training example has begins.
NOT_LEARNT = "labels without a training example, which cannot be learned"
# Share of an evaluation file's examples that are in the training data too, from which on a note says so.
MUCH_SHARED = 0.2


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
        """Whether each example is a pair of texts; the second one may be empty."""
        return reads_pairs(self.train) is True


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
        train, dev, config = read_own(kind, config, problems)
        _check_alike(train, dev.get("dev", []), config)
        if kind == "tag":
            tagged: dict[str, list[Any]] = {"": train, **dev}
            unit = head.get("unit") or unit_of_entities(tagged[""])
            tagged = {name: in_units(records, unit, problems) for name, records in tagged.items()}
            train, dev = tagged.pop(""), tagged
        if kind == "classify":
            examples: list[Any] = train
            texts = [f"{record.text} {record.second or ''}" for record in examples]
            check_not_swapped(texts, [record.label for record in examples], config.columns, config.train)
    for name, records in dev.items():
        _note_shared(name, records, train, problems)
    named = head.get("labels", [])
    if not isinstance(named, (list, tuple)) or not all(isinstance(label, str) for label in named):
        raise ConfigError(f'head.labels={named!r}: expected a list of texts, such as head.labels=["no", "yes"]')
    # From all training examples, before the limit.
    options = head_options(task, kind, train, head, scheme)
    n_read = len(train)
    for name, records in dev.items():
        if kind == "answer" and not head.get("can_refuse", options["can_refuse"]):
            note_unanswerable(name, records, problems)
    if config.limit:
        train = limit(train, config.limit, config.limit_seed)
        whole = ", in whole documents" if len(train) > config.limit else ""
        problems.note(f"data.limit: {len(train):,} of {n_read:,} training examples{whole}")
    labels = head.get("labels") or options.get("labels") or ()
    if labels:
        train = check_labels(train, labels, problems)
        dev = {name: check_labels(records, labels, problems) for name, records in dev.items()}
    for name, records in dev.items():
        note_constant(name, records, labels, problems)
    held = dev.get("dev", [])
    if config.choose_on == "held-out":
        n_chosen = len(train)
        train, held = hold_out(train, config.held_out)
        if len(held) > max(2 * config.held_out * n_chosen, 2) and any(record.group for record in held):
            problems.note(
                f"{len(held):,} of {n_chosen:,} training examples are held out: those of a group stay together, and "
                f"there are {len({record.group for record in (*train, *held)}):,} groups"
            )
        if is_divided(train, held):
            problems.note(
                "all training examples are of one article or passage: so are the held-out ones, and their score may be "
                "too good"
            )
    elif not held:
        raise ConfigError("data.choose_on='dev' requires a dev file: give --dev")
    _check_learnable(kind, train, labels, config, problems)
    metrics = metrics_of(task)
    if kind == "tag" and options["scheme"] == "plain":
        metrics = ("tag_accuracy",)
    return LabelledData(kind, metrics, train, held, dev, options, problems.report(), config.columns)


def _check_alike(train: Sequence[Any], dev: Sequence[Any], config: LabelledConfig) -> None:
    """Raise InputError if one file has pairs of texts and the other single ones: half of each pair would be lost."""
    ours, theirs = ([isinstance(r, Text) and r.second is not None for r in records] for records in (train, dev))
    if theirs and ((any(theirs) and not any(ours)) or (all(ours) and not any(theirs))):
        pairs, single = (config.dev, config.train) if any(theirs) else (config.train, config.dev)
        raise InputError(
            f"{pairs} has pairs of texts, {single} single texts: give both files the same columns, and name them with "
            "--columns, such as text=0,label=1 or text=0,second=1,label=2"
        )


def shared_examples(records: Sequence[Any], train: Sequence[Any]) -> int:
    """How many records are training examples too."""
    seen = set(map(content_key, train))
    return sum(content_key(record) in seen for record in records)


def _note_shared(name: str, records: Sequence[Any], train: Sequence[Any], problems: Problems) -> None:
    """Note if many examples of an evaluation file are training examples too."""
    shared = shared_examples(records, train)
    if shared >= MUCH_SHARED * len(records):
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
    if not train:
        raise InputError(f"{what} left: {more}")
    if kind == "regress" and len({record.label for record in train}) < 2:
        raise InputError(f"{what}: all have the value {train[0].label}; expected two values or more: {more}")
    if kind != "classify":
        if len(train) < _FEWEST:
            raise InputError(f"{what}: expected at least {_FEWEST}: {more}")
        if kind == "multilabel" and not any(record.label for record in train):
            raise InputError(f"{what}: none has a label; name the column of labels with --columns")
        if kind == "multilabel" and all(len(record.label) < 2 for record in train) and any(map(_joined, labels)):
            joined = next(filter(_joined, labels))
            problems.note(
                f"no example has more than one label, and some look like several ({joined!r}): labels of one example "
                f"are separated by {MULTILABEL_SEPARATOR}"
            )
        if kind == "multilabel" and (never := set(labels).difference(*(record.label for record in train))):
            problems.note(f"{NOT_LEARNT}: {_listed(sorted(never))}")
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
    if len(labels) >= _MANY_NUMBERS and sum(map(len, by_number.values())) == len(labels):
        problems.note(f"all {len(labels):,} labels are numbers: --task regress learns their values, this their names")
    if absent:
        problems.note(f"{NOT_LEARNT}: {_listed(absent)}")
    if single:
        problems.note(f"labels with a single training example: {_listed(single)}")
    if n >= _SKEWED * len(train):
        problems.note(
            f"{n / len(train):.0%} of the training examples have the label {commonest!r}, which accuracy rewards: look "
            "at macro_f1 too; fine-tuning can weight the labels equally, with --set train.balance=true"
        )


def _joined(label: str) -> bool:
    """Whether a label looks like several."""
    return len([part for part in re.split("[,;]", label) if part.strip()]) > 1


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
    elif data.kind == "tag" and (data.options["unit"] == "word" or not of_klue(labels)):
        known = [name for name in known if "macro" not in name and "char" not in name]
    elif data.kind == "answer" and data.options["can_refuse"]:
        known = [name for name in known if "char" not in name]
    # Metrics of the data set only; those of its kind are checked above.
    known += [name for name in data.metrics if name not in METRICS[data.kind]]
    if metric not in known:
        raise ConfigError(f"metric={metric!r}: expected one of {', '.join(known)}")


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
