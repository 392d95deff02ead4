"""``firth predict``."""

import dataclasses
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from firth.cli.finetune import say_notes
from firth.cli.labelled import HEADERS, OBJECTS, Header
from firth.cli.shared import (
    CompileFlag,
    InputFile,
    Others,
    RecoverText,
    check_text,
    check_texts,
    counted,
    importing,
    json_line,
    lines_from,
    load_and_say,
    on_interrupt,
    unknown_tokens,
)
from firth.errors import ConfigError, InputError
from firth.files import as_text, check_new_file, new_file
from firth.inference.precision import Precision
from firth.progress import Progress, say

if TYPE_CHECKING:
    from firth.baseline.model import Predictor
    from firth.folder import Loaded
    from firth.tasks.predictions import Prediction
    from firth.tasks.readers.files import Problems
    from firth.text.records import Record
    from firth.text.tokenizer import Tokenizer

Answer = tuple["Record", "Prediction"]
_PLAIN = ("lines", "jsonl")
# A line that begins so is hardly a text.
_LOOKS_LIKE_OBJECT = re.compile(r'\s*\{\s*"[^"]*"\s*:')
# File name endings that promise a table.
_TABLES = (".csv", ".tsv", ".xlsx")
# Kinds of task whose file readers do not support JSON lines, or split texts in their own way.
_OWN_JSONL = ("tag", "answer")
# Answers to look at for texts that the model does not know.
_WATCHED = 500
# Further test files of a data set, with the same layout as its own.
_TEST_OF = {"glue/mnli-mismatched": "glue/mnli"}


def predict(
    model: Annotated[Path, Parameter(name="MODEL")],
    /,
    *texts: Annotated[str, Parameter(name="TEXT")],
    file: InputFile = None,
    form: Annotated[str, Parameter(name="--format")] = "auto",
    columns: str | None = None,
    header: Header = None,
    out: Path | None = None,
    task: str | None = None,
    submission: Path | None = None,
    others: Others = None,
    recover_text: RecoverText = "exact",
    precision: Precision = "float32",
    compile: CompileFlag = False,
) -> None:
    """Run a fine-tuned model: one JSON line per input, in order.

    Text and token classifiers read lines, or with --format jsonl objects with "text" and
    "second". Question answering reads objects with "question" and "context"; multiple
    choice "text", "question" and "choices".

    Example: firth predict runs/b < lines.txt > answers.jsonl

    Parameters
    ----------
    model
        Fine-tuning or model folder, also of another tool, or hub:org/name.
    texts
        Input texts; stdin if none is given.
    file
        Input file instead of stdin; labels in it are ignored.
    form
        lines, jsonl, or with --input tsv, csv, conll, conllu, klue, squad …; by file name if not given.
    columns
        Columns of --input by number or name, such as text=2 or text=sentence1,second=sentence2.
    header
        Whether the first line of --input names the columns; detected automatically if not given.
    out
        Output file, must be new; default stdout.
    task
        Data set that --input is the test file of, such as glue/sst2; for a submission, default: the model's.
    submission
        Write a GLUE submission file to this folder.
    recover_text
        Question answering: published gives answer texts as google-research/bert recovers them from tokens.
    others
        Another model of the same task and labels, averaged with the first one's probabilities; repeatable.
    precision
        dtype of the encoder; auto is bfloat16 where the hardware supports it, else float16 weights. int8 must first
        pass the quality gate of firth evaluate.
    compile
        Compile the encoder with torch.compile: about a minute of warm-up, then faster.
    """
    about_a_file = {"--columns": columns, "--header": header, "--task": task, "--submission": submission}
    _check(texts, file, [flag for flag, value in about_a_file.items() if value is not None])
    if file is not None:
        from firth.tasks.readers.files import check_file

        check_file(file)
    if out is not None and submission is not None:
        raise ConfigError("--submission writes a file of its own: leave out --out")
    if out is not None:
        if out.suffix.lower() in _TABLES:
            raise ConfigError(f"--out {out}: answers are written as JSON lines, expected a name such as answers.jsonl")
        check_new_file(out)
    from firth.tasks.items import AT_ONCE
    from firth.tasks.learnt import check_each
    from firth.tasks.readers.files import Problems

    loaded, ensemble = _load(model, list(others or ()), precision, compile)
    published = task or (_learnt(loaded) if submission else "")
    if submission and not published.startswith("glue/"):
        raise ConfigError(f"--submission is for GLUE, not for {published!r}: say which, such as --task glue/sst2")
    _check_task(loaded, published)
    # Answers come in the order of the input: an id is only passed through.
    problems = Problems(unique_ids=False)
    form = _format(form, file, loaded.task, published, columns is not None or header is not None)
    if form in _PLAIN and not (file and form == "jsonl" and loaded.task not in _OWN_JSONL):
        records: Iterable[Record] = _plain_records(loaded, texts, file, form)
    else:
        records = _file_records(loaded, file, form, columns, header, published, problems)
    if recover_text == "published" and loaded.task != "answer":
        raise ConfigError(f"--recover-text is for question answering, this is a model for {loaded.task}")
    # Typed lines are answered one by one.
    at_once = 1 if not texts and file is None and sys.stdin.isatty() else AT_ONCE
    noted: Counter[str] = Counter()
    answers = ensemble(check_each(_some(records, file), loaded.pairs), at_once=at_once, noted=noted)
    if own := _with_encoder(loaded):
        answers = _watched(answers, own, noted)
    if recover_text == "published":
        assert own is not None, "no baseline answers questions"
        answers = _as_published(answers, own.tokenizer)
    if submission is not None:
        with on_interrupt("no submission was written"):
            _submit(published, _shown(answers), submission)
    elif out is not None:
        with on_interrupt("no answers were written"), new_file(out) as target, as_text(target) as stream:
            n_answers = _write(_shown(answers), stream, AT_ONCE)
        print(f"{out}: {counted(n_answers, 'answer')}")
    else:
        with on_interrupt("the answers so far are complete"):
            _write(answers, sys.stdout, at_once)
    say_notes([*problems.report(), *(f"{what}: {counted(n, 'example')}" for what, n in noted.items())])


def _with_encoder(model: "Predictor") -> "Loaded | None":
    """A model that has an encoder of its own."""
    from firth.inference.model import Model

    return model.loaded if isinstance(model, Model) else None


def _watched(answers: Iterable[Answer], loaded: "Loaded", noted: Counter[str]) -> Iterator[Answer]:
    """The same answers; notes those, among the first, to texts of which the model knows few tokens."""
    from firth.finetuning.unknown import texts_of
    from firth.text.records import Question

    first: dict[str, str] = {}
    for number, (record, answer) in enumerate(answers):
        if number < _WATCHED:
            counts = [unknown_tokens([text], loaded) for text in texts_of(record)]
            n_tokens, n_unknown = map(sum, zip(*counts, strict=True))
            what = ""
            if not n_tokens:
                what = "no token in the text: the answer means nothing"
            elif 2 * n_unknown >= n_tokens:
                unk = loaded.tokenizer.kind.unk
                what = f"half of the tokens or more are {unk} to the model: the answer means little"
            elif isinstance(record, Question) and not all(n for n, _ in counts):
                what = "no token in the question or in its context: the answer means nothing"
            if what:
                noted[f"{first.setdefault(what, record.where)}: {what}"] += 1
        yield record, answer


def _as_published(answers: Iterable[Any], tokenizer: "Tokenizer") -> Iterator[Any]:
    """The same records, with answer texts as google-research/bert recovers them."""
    from firth.tasks.published_answers import recover_published

    for record, answer in answers:
        yield record, recover_published([record], [answer], tokenizer)[0]


def _load(
    path: Path, others: list[Path], precision: Precision, compile: bool
) -> tuple["Predictor", Callable[..., Iterator[Answer]]]:
    """Load the model, and return it with the function that answers records: its own, or an average with others."""
    from firth.baseline.folder import find_baseline

    paths = [path, *others]
    if baselines := [str(some) for some in paths if find_baseline(some) is not None]:
        from firth.baseline.folder import read_baseline
        from firth.inference.loading import check_baseline_options

        if others:
            raise ConfigError(f"{baselines[0]} is a baseline, which answers alone: leave out --with")
        check_baseline_options(baselines[0], precision=precision, compile=compile)
        baseline = read_baseline(path)
        return baseline, baseline.answer_stream
    with importing():
        from firth.inference.joint import find_joint

    if joint := [str(some) for some in paths if find_joint(some) is not None]:
        from firth.inference.loading import load

        if others:
            raise ConfigError(f"{joint[0]} is a joint model, which answers alone: leave out --with")
        model = load(path, precision=precision, compile=compile)
        return model, model.answer_stream
    from firth.inference.answering import task_model
    from firth.inference.ensemble import check_members, ensemble_stream

    models = [load_and_say(some, precision, compile) for some in paths]
    task_model(models[0].loaded)
    if not others:
        return models[0], models[0].answer_stream
    members = [model.loaded for model in models]
    check_members(members, [str(some) for some in paths])
    return models[0], partial(ensemble_stream, members)


def _check(texts: tuple[str, ...], file: Path | None, about_a_file: list[str]) -> None:
    check_texts(texts, file)
    if file is None and about_a_file:
        raise ConfigError(f"{' and '.join(about_a_file)}: only with a file: name it with --input")


def _learnt(model: "Predictor") -> str:
    """The task that a model's provenance names: a kind, or a data set."""
    recipe = model.provenance.get("recipe", {})
    return str(recipe.get("task", "")) if isinstance(recipe, dict) else ""


def _check_task(model: "Predictor", task: str) -> None:
    """Raise ConfigError if a data set is of another kind than the model's task."""
    if not task:
        return
    from firth.tasks.kinds import kind_of_task

    kind = kind_of_task(_TEST_OF.get(task, task))
    if kind != model.task:
        raise ConfigError(f"--task {task} is of kind {kind}, but this is a model for {model.task}")


def _format(form: str, file: Path | None, kind: str, published: str, has_columns: bool) -> str:
    from firth.tasks.readers.files import bare_suffix, read_lines

    if has_columns and form in _PLAIN:
        raise ConfigError(f"--format {form} has no columns: leave out --columns and --header, or name another format")
    if form != "auto":
        if file is None and form not in _PLAIN:
            raise ConfigError(f"--format {form}: expected lines or jsonl; other formats are of files: give --input")
        if form == "lines" and kind in OBJECTS:
            raise ConfigError(f"--format lines: a model for {kind} reads JSON objects; leave it out, or give jsonl")
        return form
    if file is None:
        return "jsonl" if kind in OBJECTS else "lines"
    if has_columns or _has_test_file(published):
        return "auto"
    suffix = bare_suffix(file)
    if suffix == ".jsonl":
        return "jsonl"
    if suffix != ".txt" or kind in OBJECTS:
        return "auto"
    _, first = next(read_lines(file), (0, ""))
    if "\t" in first:
        raise InputError(f"{file}: line 1 has tabs: give --format tsv if they separate columns, or --format lines")
    return "lines"


def _has_test_file(task: str) -> bool:
    """Whether a data set has a test file of its own, with its own format."""
    from firth.tasks.datasets import DATASETS

    name = _TEST_OF.get(task, task)
    return name in DATASETS and "test" in DATASETS[name].splits


def _plain_records(model: "Predictor", texts: tuple[str, ...], file: Path | None, form: str) -> Iterator["Record"]:
    """Convert lines of text or JSON objects to records; an empty line is an empty text, but is not an object."""
    from firth.tasks.readers.files import json_object, name_of, read_lines

    name = "TEXT" if texts else str(file or "stdin")
    for number, line in read_lines(file) if file is not None else enumerate(texts or lines_from(None), start=1):
        where = f"{name}:{number}"
        check_text(line, where)
        if form == "jsonl" and not line.strip():
            continue
        if form == "lines" and number == 1 and _LOOKS_LIKE_OBJECT.match(line):
            say(f"{where}: looks like JSON, but is read as a text: --format jsonl reads objects")
        if form == "lines" and number == 1 and not texts and file is None and "\t" in line:
            say(f"{where}: has tabs, but is read as one text: for a table give its file, with --input")
        item = json_object(line, where) if form == "jsonl" else line
        try:
            record = model.record(item)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        yield dataclasses.replace(record, where=where, id=name_of(item, "id", where) if isinstance(item, dict) else "")


def _file_records(
    model: "Predictor",
    file: Path | None,
    form: str,
    columns: str | None,
    header: bool | None,
    published: str,
    problems: "Problems",
) -> Iterable["Record"]:
    """Read a file with the readers of labelled data; ``published``: the data set if it is a published test file."""
    from firth.finetuning.own_files import iter_file, with_columns
    from firth.finetuning.recipe import LabelledConfig
    from firth.tasks.datasets import DATASETS
    from firth.tasks.learnt import learnt_columns
    from firth.tasks.tag_units import by_character

    assert file is not None
    if _has_test_file(published) and form == "auto" and not columns:
        return DATASETS[_TEST_OF.get(published, published)].splits["test"].read(file, problems)
    config = LabelledConfig(columns=columns or "", header=HEADERS[header], format=form)
    learnt = learnt_columns(model.provenance)
    config = with_columns(model.task, str(file), config, problems, learnt=learnt, labels=model.labels, labelled=False)
    records = iter_file(model.task, file, config, problems, labelled=False)
    return map(by_character, records) if model.task == "tag" and model.unit == "character" else records


def _some(records: Iterable["Record"], file: Path | None) -> Iterator["Record"]:
    """The records; InputError if there are none."""
    source = iter(records)
    first = next(source, None)
    if first is None:
        raise InputError(f"{file or 'stdin'}: no input: give at least one line")
    return chain([first], source)


def _shown(answers: Iterable[Answer]) -> Iterator[Answer]:
    """The same answers, with progress on stderr."""
    with Progress("predicting", None, "examples") as progress:
        for answer in answers:
            yield answer
            progress.advance(1)


def _write(answers: Iterable[Answer], stream: IO[str], at_once: int) -> int:
    """Write answers as JSONL; returns how many."""
    n_answers = 0
    for record, answer in answers:
        fields = {"id": record.id} if record.id else {}
        print(json_line(fields | dataclasses.asdict(answer)), file=stream)
        n_answers += 1
        if n_answers % at_once == 0:
            stream.flush()
    stream.flush()
    return n_answers


def _submit(task: str, answers: Iterable[Answer], folder: Path) -> None:
    """Write the file of a GLUE submission; only the labels are kept in memory."""
    from firth.tasks.predictions import Labelled, Valued
    from firth.tasks.reading import write_glue_submission

    found: list[str | float] = []
    for _, answer in answers:
        if not isinstance(answer, (Labelled, Valued)):
            raise ConfigError(f"--submission is for GLUE, which has no task such as {task}")
        found.append(answer.label if isinstance(answer, Labelled) else answer.value)
    path = write_glue_submission(task, found, folder)
    print(f"{path}: {counted(len(found), 'answer')}")
