"""The flags of every verb that teaches a task: which task, which model, which labelled examples."""

import json
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from firth.cli.shared import AtLeastOne

Header = Annotated[bool | None, Parameter(name="--header", negative="--no-header", show_default=False)]
HEADERS = {None: "auto", True: "yes", False: "no"}  # as the recipe says it
# Kinds of task whose inputs are no plain lines of text.
OBJECTS = ("answer", "choose")

# By flag: the key of the recipe it stands for, and its value or None.
Keys = dict[str, tuple[str, Any]]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LabelledFlags:
    """What is learnt, by what, from what. None where a flag is not given.

    Parameters
    ----------
    task
        A kind (classify, multilabel, regress, tag, answer, choose), or a data set such as glue/sst2, squad1, klue/ner.
    model
        The folder of a run, or of a model.
    train
        The file to learn from, for a task that is a kind.
    dev
        The file that is scored at the end.
    columns
        Which column is what, such as text=2,label=0 or text=sentence,label=gold.
    header
        Whether the first line names the columns; found out if not given.
    form
        Such as tsv, csv, jsonl, conll, conllu, squad; by the file's name if not given.
    data
        The folder with the files of the data set, for a task that names one.
    limit
        Learn from so many examples, drawn by hash.
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
        """All of them."""
        return {
            "--task": ("task", self.task), "--model": ("model", self.model),
            "--train": ("data.train", self.train), "--dev": ("data.dev", self.dev),
            "--columns": ("data.columns", self.columns),
            "--header": ("data.header", None if self.header is None else HEADERS[self.header]),
            "--format": ("data.format", self.form), "--data": ("data.folder", self.data),
            "--limit": ("data.limit", self.limit),
        }  # fmt: skip


NOT_GIVEN = LabelledFlags()


def settings_of(keys: Keys) -> list[str]:
    """The flags that are given, as ``--set`` would say them."""
    # Strings, numbers and lists are written alike in JSON and in TOML, which --set reads.
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in keys.values() if value is not None]
