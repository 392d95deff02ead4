"""``firth study finetuning``: the bundled models against the same encoder from scratch and baselines.

Three tables. *tasks*: each task with a pre-trained encoder, the same encoder from scratch, and a baseline.
*features*: named entities with a frozen encoder, by layers and head, next to fine-tuning (Devlin et al. 2018, Table 7).
*labels*: tasks on single texts with few labels; also with an encoder whose pre-training was continued on the task's own
text, that of all training examples without labels (Gururangan et al. 2020). The choice of the few labels changes a
score more than the seed does: each score is the mean over several samples, the same for all starts.

All choices are made on a tenth of the training examples; dev files are scored once per run.
"""

import csv
import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from firth.baseline.config import GramConfig
from firth.baseline.tfidf import fit_vectorizer
from firth.config import read_json
from firth.corpus.clean import Cleaning
from firth.corpus.prepare import prepare
from firth.data.hashing import seed_of
from firth.errors import InputError
from firth.files import write_text
from firth.finetuning.adaptation import texts_of
from firth.finetuning.baseline import FitBaseline, fit_baseline
from firth.finetuning.finetune import resume, run_resolved
from firth.finetuning.identity import IDENTITY
from firth.finetuning.labelled import LabelledData, read_labelled
from firth.finetuning.recipe import data_config
from firth.finetuning.resolve import resolve
from firth.formats.table import open_model
from firth.inference.score import score_outputs
from firth.manifest import MANIFEST
from firth.metrics.bootstrap import mean_interval
from firth.pretraining import run as job
from firth.pretraining.recipe import Pretrain
from firth.progress import silent
from firth.studies.cells import StudyCell, check_data
from firth.systems import resolve_model
from firth.tasks.predictions import Chosen
from firth.text.corpus import read_text_lines
from firth.text.records import Text

SEEDS = 3
# Samples of few training examples, each with a seed of its own.
DRAWS = 8
# The folder of a run in that of its cell.
_RUN = "run"
PRETRAINED, ADAPTED, SCRATCH, BASELINE = "pre-trained", "own text", "from scratch", "baseline"


@dataclass(frozen=True, kw_only=True, slots=True)
class TableRow:
    """One task of the study. ``data``: the recipe's, with files below the data folder; ``base``: the model.

    ``labels``: numbers of training examples to train with, in addition to all. ``own_text``: how pre-training is
    continued on the task's own text, if it is. ``more_text``: a file of unlabelled text of its domain, one text per
    line, used in addition to that.
    """

    name: str
    task: str
    data: dict[str, Any]
    base: str = "firth-mini-en"
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    baseline: bool = True
    labels: tuple[int, ...] = ()
    more_text: str = ""
    own_text: dict[str, dict[str, Any]] = field(default_factory=dict)


LABELS = (100, 1000)
# Windows of documents in which most words are tagged, with some context, rather than read twice.
_TAGS: dict[str, dict[str, Any]] = {"head": {"windows": {"stride": 80}}}
# Continue pre-training on the text of a task as ``--adapt-text`` does: a few hundred steps.
_OWN_TEXT: dict[str, dict[str, Any]] = {
    "data": {"instances": "documents", "length": 128},
    "masking": {"share": 0.2},
    "encoder": {"dropout": 0.1, "attention_dropout": 0.0},
    "optim": {"kind": "adamw", "learning_rate": 6e-4, "warmup_share": 0.05, "beta2": 0.99, "epsilon": 1e-8},
    "train": {"batch_tokens": 2048, "epochs": 5.0},
}
# The same with millions of tokens, in the lengths of pre-training: minutes on a GPU, hours on two cores.
_MUCH_TEXT: dict[str, dict[str, Any]] = {
    **_OWN_TEXT,
    "data": {
        "instances": "documents",
        "length": 64,
        "long_length": 512,
        "long_share": 0.3,
        "mixed_lengths": True,
    },
    "optim": _OWN_TEXT["optim"] | {"learning_rate": 1.2e-3},
    "train": {"batch_tokens": 16384, "epochs": 3.0},
}

ROWS = (
    TableRow(
        name="SST-2",
        task="glue/sst2",
        data={"folder": "glue/SST-2"},
        labels=LABELS,
        own_text=_MUCH_TEXT,
        more_text="imdb/unsup.txt.xz",
    ),
    TableRow(name="CoLA", task="glue/cola", data={"folder": "glue/CoLA"}, labels=LABELS, own_text=_OWN_TEXT),
    TableRow(name="TREC", task="trec", data={"folder": "@trec"}, labels=LABELS, own_text=_OWN_TEXT),
    TableRow(name="AG News", task="ag-news", data={"folder": "ag-news"}, labels=LABELS, own_text=_OWN_TEXT),
    TableRow(name="SMS spam", task="sms-spam", data={"folder": "sms-spam"}, labels=LABELS, own_text=_OWN_TEXT),
    TableRow(
        name="IMDb",
        task="imdb",
        data={"folder": "imdb", "limit": 8000},
        labels=LABELS,
        own_text=_MUCH_TEXT,
        more_text="imdb/unsup.txt.xz",
    ),
    TableRow(name="MRPC", task="glue/mrpc", data={"folder": "glue/MRPC"}),
    TableRow(name="STS-B", task="glue/stsb", data={"folder": "glue/STS-B"}),
    TableRow(
        name="SNLI",
        task="classify",
        data={
            "train": "snli/train.tsv",
            "dev": "snli/dev.tsv",
            "columns": "text=sentence1,second=sentence2,label=gold_label",
        },
    ),
    TableRow(name="CoNLL-2003", task="conll2003", data={"folder": "conll2003"}, settings=_TAGS),
    TableRow(name="English POS", task="ud-pos", data={"folder": "ud-english-ewt"}, settings=_TAGS),
    TableRow(name="SQuAD 1.1", task="squad1", data={"folder": "squad-v1.1"}, baseline=False),
    TableRow(
        name="ARC",
        task="choose",
        data={"train": "@arc-easy/train.csv", "dev": "@arc-easy/dev.csv", "format": "arc_csv"},
        settings={"train": {"batch_examples": 16}},
    ),
    TableRow(
        name="movie reviews",
        task="movie-reviews",
        data={"folder": "movie-reviews"},
        settings={"train": {"batch_examples": 16}},
        own_text=_MUCH_TEXT,
        more_text="imdb/unsup.txt.xz",
    ),
    TableRow(
        name="NSMC", task="nsmc", data={"folder": "nsmc"}, base="firth-mini-ko", labels=LABELS, own_text=_MUCH_TEXT
    ),
    TableRow(name="KLUE-NER", task="klue/ner", data={"folder": "klue-ner"}, base="firth-mini-ko", settings=_TAGS),
    TableRow(
        name="KorQuAD",
        task="korquad1",
        data={"folder": "korquad-v1.0"},
        base="firth-mini-ko",
        baseline=False,
    ),
)

_ENTITIES = next(row for row in ROWS if row.name == "CoNLL-2003")
# With an LSTM in between; a linear head alone tolerates a higher one.
_HEAD_RATE = 1e-3
_BILSTM = {"kind": "bilstm", "lstm_layers": 2}
# Ways to read a frozen encoder: layers and mix, and the LSTM between encoder and head.
FEATURES: dict[str, dict[str, Any]] = {
    "embeddings, BiLSTM": {**_BILSTM, "layers": [0]},
    "top layer, linear": {"layers": [-1], "rate": 5e-3},
    "top layer, BiLSTM": {**_BILSTM, "layers": [-1]},
    "second to top, BiLSTM": {**_BILSTM, "layers": [-2]},
    "weighted sum of all, BiLSTM": {**_BILSTM, "layers": [0, 1, 2, 3, 4], "mix": "scalar"},
    "last four side by side, BiLSTM": {**_BILSTM, "layers": [1, 2, 3, 4], "mix": "concat"},
    "last four side by side, BiLSTM, CRF": {**_BILSTM, "layers": [1, 2, 3, 4], "mix": "concat", "crf": True},
}


def study_cells(data: Path, _models: Path, out: Path) -> list[StudyCell]:
    """All cells: for each task with all labels and with few, and for each way to read the frozen encoder."""
    check_data(data)
    divide = {"ARC": partial(_split_arc, data, out), "TREC": partial(_split_trec, data, out)}
    cells = []
    for row in ROWS:
        if row.own_text:
            options = {
                "recipe": recipe_of(row, data, out),
                "own_text": row.own_text,
                "more_text": str(data / row.more_text) if row.more_text else "",
            }
            cells.append(StudyCell(f"{ADAPTED}/{row.name}", adapt_cell, options, prepare=divide.get(row.name)))
    for start in (PRETRAINED, BASELINE, SCRATCH, ADAPTED):
        for row in ROWS:
            if (start == BASELINE and not row.baseline) or (start == ADAPTED and not row.own_text):
                continue
            recipe = recipe_of(row, data, out)
            needs: tuple[str, ...] = ()
            if start == ADAPTED:
                needs = (f"{ADAPTED}/{row.name}",)
                recipe["model"] = str(out / "cells" / needs[0] / _RUN)
            prepare = divide.get(row.name)
            cells.append(_cell(f"tasks/{row.name}/{start}", recipe, start, needs, prepare))
            for n in row.labels:
                few = {**recipe, "data": recipe["data"] | {"limit": n}}
                cells.append(_cell(f"labels/{row.name}/{n}/{start}", few, start, needs, prepare, drawn=True))
    for name, features in FEATURES.items():
        recipe = recipe_of(_ENTITIES, data, out)
        recipe["head"] = {
            **recipe["head"],
            "crf": features.get("crf", False),
            "network": {key: value for key, value in features.items() if key not in ("crf", "rate")},
        }
        rate = features.get("rate", _HEAD_RATE)
        recipe |= {"adapt": {"frozen_groups": -1}, "optim": {"kind": "adamw", "learning_rate": rate}}
        cells.append(StudyCell(f"features/{name}", tune_cell, {"recipe": recipe, "settings": []}))
    return cells


def _cell(
    name: str,
    recipe: dict[str, Any],
    start: str,
    needs: tuple[str, ...],
    prepare: Callable[[], None] | None,
    *,
    drawn: bool = False,
) -> StudyCell:
    options: dict[str, Any]
    if start == BASELINE:
        options = {"recipe": {key: recipe[key] for key in ("task", "data")}}
        return StudyCell(name, drawn_baseline_cell if drawn else baseline_cell, options, prepare=prepare)
    options = {"recipe": recipe, "settings": [f"from_scratch={str(start == SCRATCH).lower()}"]}
    return StudyCell(name, drawn_tune_cell if drawn else tune_cell, options, needs, prepare)


def recipe_of(row: TableRow, data: Path, out: Path) -> dict[str, Any]:
    """Build the recipe of a task with a pre-trained encoder, as plain data."""
    where = {"folder", "train", "dev"}
    files = {
        key: str(out / value[1:] if value.startswith("@") else data / value) if key in where else value
        for key, value in row.data.items()
    }
    tables = {name: dict(table) for name, table in row.settings.items()}
    return {
        "model": row.base,
        "task": row.task,
        "data": files,
        **tables,
        "head": tables.get("head", {}),
        "train": {"seeds": SEEDS, **tables.get("train", {})},
    }


def adapt_cell(
    folder: Path, *, recipe: dict[str, Any], own_text: dict[str, dict[str, Any]], more_text: str
) -> dict[str, Any]:
    """Continue pre-training on the text of a task's training examples.

    ``own_text``: options, as tables of a pre-training recipe. ``more_text``: a file of more text, one text per line.
    """
    run, corpus = folder / _RUN, folder / "corpus"

    def begin() -> Pretrain:
        if not (corpus / MANIFEST).is_file():
            prepare_own_text(folder, corpus, recipe, more_text)
        data = {**own_text["data"], "corpus": str(corpus)}
        return job.resolve({"model": recipe["model"], **own_text, "data": data}, (), str(folder))

    outcome = job.pretrain_or_resume(run, begin)
    tokens = sum(shard["tokens"] for shard in read_json(corpus / MANIFEST)["train"])
    dev = read_json(run / "model" / "firth.json")["provenance"]["dev"]
    return {"tokens": tokens, "steps": outcome.step, "dev": dev}


def prepare_own_text(folder: Path, corpus: Path, recipe: dict[str, Any], more_text: str) -> None:
    """Prepare the corpus of ``adapt_cell``; whatever shares a run of words with the task's dev file is removed."""
    every = {**recipe, "data": {key: value for key, value in recipe["data"].items() if key != "limit"}}
    labelled = read_labelled(every["task"], data_config(every, str(folder)), {})
    texts = texts_of([*labelled.train, *labelled.held])
    if more_text:
        lowered = all(text == text.lower() for text in texts)  # then the additional text is lower-cased too
        texts += [line.lower() if lowered else line for line in read_text_lines(Path(more_text))]
    own, dev, tokenizer = folder / "text.txt", folder / "dev.txt", folder / "tokenizer"
    write_text(own, "".join(f"{text.strip()}\n\n" for text in texts))
    write_text(dev, "".join(f"{text}\n" for records in labelled.dev.values() for text in texts_of(records)))
    tokenizer.mkdir(exist_ok=True)
    open_model(resolve_model(recipe["model"])).tokenizer.save(tokenizer)
    prepare([own], tokenizer, corpus, cleaning=Cleaning(against=(dev,), remove_overlap=True))


def tune_cell(folder: Path, *, recipe: dict[str, Any], settings: list[str]) -> dict[str, Any]:
    """Fine-tune with all seeds; returns the scores, and the cost."""
    run = folder / _RUN
    if (run / job.RECIPE).is_file() and (run / IDENTITY).is_file():
        tuned = resume(run)
    else:
        tuned = run_resolved(resolve(recipe, settings, str(folder)), run)
    results = tuned.results
    seconds = [run["elapsed_s"] for run in results["runs"]]
    return {
        "metric": results["metric"],
        "examples": results["examples"],
        "dev": results["dev"],
        "held_out": results["held_out"],
        "collapsed": sum(run["collapsed"] for run in results["runs"]),
        "seconds_a_run": sum(seconds) / len(seconds),
        "calibration": {k: v for k, v in results["calibration"].items() if not k.startswith("reliability")},
    }


def baseline_cell(folder: Path, *, recipe: dict[str, Any]) -> dict[str, Any]:
    """Compute the baseline's scores in one run, since nothing in it is random."""
    data = read_labelled(recipe["task"], data_config(recipe, str(folder)), {})
    labels = tuple(data.options.get("labels", ()))
    dev = {}
    for name, records in data.dev.items():
        scores = score_outputs(recipe["task"], records, baseline_answers(data, records), labels, {}).scores
        dev[name] = {metric: {"mean": value, "sd": 0.0, "values": [value]} for metric, value in scores.items()}
    examples = {"train": len(data.train), "held_out": len(data.held)}
    return {"metric": data.metrics[0], "examples": examples, "dev": dev, "what": _BASELINES[data.kind]}


def drawn_tune_cell(folder: Path, *, recipe: dict[str, Any], settings: list[str]) -> dict[str, Any]:
    """Fine-tune on several samples of equally many training examples; returns their scores, and the cost of a run."""
    found = [tune_cell(folder / f"draw-{n}", recipe=_draw(recipe, n), settings=settings) for n in range(DRAWS)]
    seconds = sum(one["seconds_a_run"] for one in found) / DRAWS
    return _over_draws(found) | {"collapsed": sum(one["collapsed"] for one in found), "seconds_a_run": seconds}


def drawn_baseline_cell(folder: Path, *, recipe: dict[str, Any]) -> dict[str, Any]:
    """Compute the baseline's scores over the same samples."""
    found = [baseline_cell(folder, recipe=_draw(recipe, n)) for n in range(DRAWS)]
    return _over_draws(found) | {"what": found[0]["what"]}


def _draw(recipe: dict[str, Any], n: int) -> dict[str, Any]:
    # Use the recipe's default number of seeds; with few labels their models are averaged.
    train = {key: value for key, value in recipe.get("train", {}).items() if key != "seeds"} | {"seed": n}
    return {**recipe, "data": recipe["data"] | {"limit_seed": n}, "train": train}


def _over_draws(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Combine the facts of all samples: metric, numbers of examples, and mean and standard deviation of dev scores."""
    first, dev = found[0], dict[str, dict[str, Any]]()
    for file, scores in first["dev"].items():
        dev[file] = {}
        for metric in scores:
            values = [one["dev"][file][metric]["mean"] for one in found]
            mean, sd, _ = mean_interval(values)
            dev[file][metric] = {"mean": mean, "sd": sd, "values": values}
    return {"metric": first["metric"], "examples": first["examples"], "draws": len(found), "dev": dev}


_BASELINES = {
    "classify": "TF-IDF of words and characters + logistic regression",
    "regress": "TF-IDF of both texts and their cosine, ridge regression",
    "choose": "cosine of TF-IDF vectors, untrained",
    "tag": "each word's most frequent tag",
}


def baseline_answers(data: LabelledData, records: Sequence[Any]) -> list[Any]:
    """Predict with the baseline of the kind of task."""
    if data.kind == "choose":
        fit = [
            text
            for record in [*data.train, *data.held]
            for text in (f"{record.text} {record.question}", *record.choices)
        ]
        reader = fit_vectorizer([Text(text) for text in fit], GramConfig())
        pairs = [(f"{r.text} {r.question}", choice) for r in records for choice in r.choices]
        scores = iter(reader.cosines(*map(list, zip(*pairs, strict=True))).tolist())
        best = [max((next(scores), -i) for i in range(len(r.choices))) for r in records]
        return [Chosen(-i, "", ()) for _, i in best]
    if data.kind not in _BASELINES:
        raise InputError(f"there is no baseline for a task of kind {data.kind}")
    model: Literal["tfidf", "commonest-tag"] = "commonest-tag" if data.kind == "tag" else "tfidf"
    recipe = FitBaseline(model=model, task=data.kind, kind=data.kind, metric=data.metrics[0])
    return list(fit_baseline(recipe, data, silent).method.answers(records))


def _split_arc(data: Path, out: Path) -> None:
    """Split ARC's questions (the file holds only the official training set) by a hash: a fifth is scored."""
    lines = _read_lines(data / "arc-easy" / "dev.csv", out / "arc-easy" / "dev.csv")
    if lines:
        rows = list(filter(None, csv.reader(lines)))
        _divide("arc", [(row[0], _csv_line(row)) for row in rows], 5, out / "arc-easy", ("train.csv", "dev.csv"))


def _split_trec(data: Path, out: Path) -> None:
    """Split TREC's training questions by a hash: a tenth is scored."""
    lines = _read_lines(data / "trec" / "train.txt", out / "trec" / "dev.txt")
    if lines:
        _divide("trec", [(line, line) for line in lines], 10, out / "trec", ("train.txt", "dev.txt"))


def _read_lines(path: Path, done: Path) -> list[str]:
    """Read the lines of a file, compressed or not; none if ``done`` exists."""
    if done.is_file():
        return []
    source = next((f for f in (path, path.with_name(path.name + ".gz")) if f.is_file()), None)
    if source is None:
        raise InputError(f"{path}: no such file")
    text = gzip.decompress(source.read_bytes()).decode() if source.suffix == ".gz" else source.read_text("utf-8")
    return text.splitlines(keepends=True)


def _divide(seed: str, examples: list[tuple[str, str]], n: int, out: Path, names: tuple[str, str]) -> None:
    """Write lines to a training file and, every ``n``-th by the hash of its key, to a dev file."""
    parts: tuple[list[str], list[str]] = ([], [])
    for key, line in examples:
        parts[seed_of(seed, key) % n == 0].append(line)
    out.mkdir(parents=True, exist_ok=True)
    for name, lines in zip(names, parts, strict=True):
        write_text(out / name, "".join(lines))


def _csv_line(row: Sequence[str]) -> str:
    return ",".join('"' + cell.replace('"', '""') + '"' for cell in row) + "\n"
