"""Find and read the files of published data sets, check their labels, and write GLUE submissions."""

import difflib
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from firth.errors import ConfigError, InputError
from firth.files import write_text
from firth.tasks.datasets import DATASETS, Dataset, Names
from firth.tasks.readers.files import Problems, make_each
from firth.tasks.tag_schemes import OUTSIDE, split_tag
from firth.text.records import Question, Record, Tagged, Text

R = TypeVar("R", bound=Record)

_PACKED = ("", ".gz", ".xz")
# Characters of a label that a message shows.
_LONGEST = 60


def dataset(name: str) -> Dataset:
    """Look up a data set by name; ConfigError suggests the nearest one."""
    if name in DATASETS:
        return DATASETS[name]
    near = difflib.get_close_matches(name, DATASETS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(DATASETS)}"
    raise ConfigError(f"unknown data set {name!r}: {hint}")


def read_dataset(name: str, folder: Path, split: str, problems: Problems) -> list[Record]:
    """Read all records of a split. A label that the data set does not have is an error at its row."""
    row, paths = dataset(name), split_files(name, folder, split)
    source = row.splits[split]
    problems.note(f"{name}, {split}: {', '.join(map(str, paths))}")
    if row.note:
        problems.note(f"{name}: {row.note}")
    records = [record for path in paths for record in source.read(path, problems)]
    return records if row.labels is None else check_labels(records, row.labels, problems)


def split_files(name: str, folder: Path, split: str) -> list[Path]:
    """Find the files of a split; ConfigError if the data set has no such split, InputError if files are missing."""
    row = dataset(name)
    if split not in row.splits:
        note = f" ({row.note})" if row.note else ""
        raise ConfigError(f"{name} has no split {split!r}; expected one of {', '.join(row.splits)}{note}")
    return _find(row.splits[split].names, folder, f"{name}, {split}")


def splits_in(name: str, folder: Path) -> list[str]:
    """List the splits of a data set whose files are in a folder."""
    return [split for split, source in dataset(name).splits.items() if _first_files(source.names, folder)]


def _first_files(names: Names, folder: Path) -> list[Path]:
    """The files of the first alternative that exists, or none."""
    for alternative in names:
        together = (alternative,) if isinstance(alternative, str) else alternative
        found = [path for path in (_one_file(folder, name) for name in together) if path is not None]
        if len(found) == len(together):
            return found
    return []


def _find(names: Names, folder: Path, what: str) -> list[Path]:
    """The files of the first alternative that exists; InputError if none does."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; expected the folder that holds the files of {what}")
    if found := _first_files(names, folder):
        return found
    looked_for = ", ".join(name if isinstance(name, str) else " with ".join(name) for name in names)
    raise InputError(f"{folder}: found no file of {what}; expected {looked_for} (plain, .gz or .xz)")


def _one_file(folder: Path, name: str) -> Path | None:
    for packed in _PACKED:
        found = sorted(folder.glob(name + packed)) if "*" in name else [folder / (name + packed)]
        found = [path for path in found if path.is_file()]
        if len(found) > 1:
            several = ", ".join(path.name for path in found)
            raise InputError(f"{folder}: found {several}, expected one {name}; move the others")
        if found:
            return found[0]
    return None


def labels_of(records: Iterable[Record]) -> tuple[str, ...]:
    """The labels or tags that occur, sorted; empty for scores, answers and choices."""
    return tuple(sorted({label for record in records for label in _labels(record)}))


def check_labels(records: Iterable[R], labels: Iterable[str], problems: Problems) -> list[R]:
    """Check that all labels (or tags) are among ``labels``; any other is an error at its row."""
    known = tuple(labels)

    def make(record: R) -> R:
        for label in _labels(record):
            if label not in known:
                shown = ", ".join(known[:20]) + (" …" if len(known) > 20 else "")
                found = label if len(label) <= _LONGEST else f"{label[:_LONGEST]}…"
                what, advice = "label", ""
                if isinstance(record, Tagged):
                    what, advice = "tag", "; a tagger's files have a word and its tag on each line"
                elif record.where.endswith(":1"):
                    advice = ", or give --header if line 1 is one"
                raise InputError(
                    f"{record.where}: found the {what} {found!r}, expected one of the {len(known)} known ({shown}); "
                    f"correct it, or add it to the training data{advice}"
                )
        return record

    return list(make_each(records, make, problems))


def note_constant(name: str, records: Sequence[Any], labels: Sequence[str], problems: Problems) -> None:
    """Note if no model can score on some examples: all have one value, or none has an entity.

    ``labels``: the model's; tags of entities among them have a prefix.
    """
    gold = {record.label for record in records if isinstance(record, Text) and isinstance(record.label, float)}
    if len(gold) == 1:
        problems.note(f"{name}: all {len(records):,} examples have the value {gold.pop():g}: correlations are 0")
    tags = {tag for record in records if isinstance(record, Tagged) for tag in record.tags or ()}
    if tags == {OUTSIDE} and any(split_tag(label)[0] for label in labels if label != OUTSIDE):
        problems.note(f"{name}: all words have the tag {OUTSIDE}: scores of entities are 0")


def note_unanswerable(name: str, records: Sequence[Any], problems: Problems) -> None:
    """Note if some questions have no answer, for a model that cannot refuse."""
    n_open = sum(isinstance(record, Question) and not record.answers for record in records)
    if n_open:
        problems.note(
            f"{name}: {n_open:,} of {len(records):,} questions have no answer, but the model always gives one "
            "(head.can_refuse=false)"
        )


def _labels(record: Record) -> tuple[str, ...]:
    match record:
        case Text(label=str(label)):
            return (label,)
        case Text(label=tuple(labels)):
            return labels
        case Tagged(tags=tuple(tags)):
            return tags
    return ()


# -- GLUE submissions --------------------------------------------------------------------------------------


class _Submission(NamedTuple):
    """A GLUE submission file: its name, the data set that defines its labels, and its number of rows."""

    file: str
    name: str
    n_rows: int


_SUBMISSIONS: dict[str, _Submission] = {
    "glue/cola": _Submission("CoLA.tsv", "glue/cola", 1063),
    "glue/sst2": _Submission("SST-2.tsv", "glue/sst2", 1821),
    "glue/mrpc": _Submission("MRPC.tsv", "glue/mrpc", 1725),
    "glue/qqp": _Submission("QQP.tsv", "glue/qqp", 390_965),
    "glue/stsb": _Submission("STS-B.tsv", "glue/stsb", 1379),
    "glue/mnli": _Submission("MNLI-m.tsv", "glue/mnli", 9796),
    "glue/mnli-mismatched": _Submission("MNLI-mm.tsv", "glue/mnli", 9847),
    "glue/qnli": _Submission("QNLI.tsv", "glue/qnli", 5463),
    "glue/rte": _Submission("RTE.tsv", "glue/rte", 3000),
    "glue/wnli": _Submission("WNLI.tsv", "glue/wnli", 146),
    "glue/ax": _Submission("AX.tsv", "glue/ax", 1104),
}
_STSB_RANGE = (0.0, 5.0)


def write_glue_submission(name: str, predictions: Sequence[str | float], folder: Path) -> Path:
    """Write ``index<TAB>prediction`` for each test row, under the file name that the GLUE site expects.

    STS-B's scores are clipped to 0 to 5. The file is written atomically. ConfigError if the number of
    predictions differs from the test set's, and for a label that the task does not have.
    """
    if name not in _SUBMISSIONS:
        raise ConfigError(f"unknown GLUE task {name!r}; expected one of {', '.join(_SUBMISSIONS)}")
    submission = _SUBMISSIONS[name]
    if len(predictions) != submission.n_rows:
        n = len(predictions)
        raise ConfigError(f"{name}: found {n} predictions, expected one for each of the {submission.n_rows} test rows")
    labels = DATASETS[submission.name].labels
    rows = [f"{i}\t{_prediction(name, i, value, labels)}\n" for i, value in enumerate(predictions)]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / submission.file
    write_text(path, "index\tprediction\n" + "".join(rows))
    return path


def _prediction(name: str, row: int, value: str | float, labels: tuple[str, ...] | None) -> str:
    if labels is None:
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigError(f"{name}: found {value!r} for row {row}, expected a finite number")
        return f"{min(max(value, _STSB_RANGE[0]), _STSB_RANGE[1]):.4f}"
    if value not in labels:
        raise ConfigError(f"{name}: found {value!r} for row {row}, expected one of {', '.join(labels)}")
    return str(value)
