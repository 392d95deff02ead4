"""Flags of the commands that train on labelled data: task, model, data files."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from firth.cli.shared import AtLeastOne
from firth.errors import ConfigError

Header = Annotated[bool | None, Parameter(name="--header", negative="--no-header", show_default=False)]
# The recipe's value for the flag.
HEADERS: dict[bool | None, Literal["auto", "yes", "no"]] = {None: "auto", True: "yes", False: "no"}
# Kinds of task whose inputs are not plain lines of text.
OBJECTS = ("answer", "choose")

# By flag: its recipe key, and its value or None.
Keys = dict[str, tuple[str, Any]]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LabelledFlags:
    """Task, model and labelled data. None where a flag is not given.

    Parameters
    ----------
    task
        Kind of task: classify, multilabel, regress, tag (token classification), answer (question answering), choose
        (multiple choice); or a data set such as glue/sst2, squad1, klue/ner.
    model
        Pre-trained model: a shipped one (firth-mini-en, firth-mini-ko), a run or model folder, also of another tool, or
        hub:org/name; firth models lists the names. Baselines, for finetune only: tfidf, or commonest-tag for tags.
    train
        Training file, if --task is a kind.
    dev
        Evaluation file, scored once at the end.
    columns
        Columns by number or name, such as text=2,label=0 or text=sentence,label=gold.
    header
        Whether the first line names the columns; detected automatically if not given.
    form
        File format: tsv, csv, jsonl, conll, conllu, klue, squad, swag, dream, arc; by file name if not given.
    data
        Folder of the data set, if --task names one.
    limit
        Use only this many training examples, sampled by hash.
    """

    task: str | None = None
    model: str | None = None
    train: str | None = None
    dev: str | None = None
    columns: str | None = None
    header: Header = None
    form: Annotated[str | None, Parameter(name="--format")] = None
    data: str | None = None
    limit: AtLeastOne = None

    def keys(self) -> Keys:
        """All flags, with their recipe keys and values."""
        return {
            "--task": ("task", self.task),
            "--model": ("model", self.model),
            "--train": ("data.train", self.train),
            "--dev": ("data.dev", self.dev),
            "--columns": ("data.columns", self.columns),
            "--header": ("data.header", None if self.header is None else HEADERS[self.header]),
            "--format": ("data.format", self.form),
            "--data": ("data.folder", self.data),
            "--limit": ("data.limit", self.limit),
        }

    def check(self) -> None:
        """Raise ConfigError for an unknown task, InputError for files that do not exist or are folders."""
        check_named(self.task)
        from firth.tasks.readers.files import check_file

        for file in (self.train, self.dev):
            if file is not None:
                check_file(Path(file))


NOT_GIVEN = LabelledFlags()


def check_named(task: str | None, *files: str | None) -> None:
    """Check the names of a task and files, before PyTorch is imported, which takes seconds."""
    if task is not None:
        from firth.tasks.kinds import kind_of_task

        kind_of_task(task)
    for file in files:
        if file is not None and not Path(file).exists():
            from firth.tasks.readers.files import no_such_file

            raise no_such_file(Path(file))


def check_split(split: str | None, place: str | Path) -> str:
    """The split to read; ConfigError if one is given and ``place`` is a file."""
    if split is not None and Path(place).is_file():
        raise ConfigError(f"--split is for the folder of a data set, and {place} is a file: leave it out")
    return "dev" if split is None else split


def settings_of(keys: Keys) -> list[str]:
    """The flags that are given, in the form of ``--set``."""
    # Strings, numbers and lists are written alike in JSON and in TOML, which --set reads.
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in keys.values() if value is not None]
