"""``firth study representations``: word vectors to BERT, with equal pre-training time on the same text.

*tasks*: every system is pre-trained on the same English text for the same CPU time, and used on the same four tasks
as published: frozen below a tagger or a biattentive network, or fine-tuned as a whole. *layers*: the
weights that a task gives ELMo's layers (Peters et al. 2018, §5.3). *labels*: ULMFiT from a hundred labels upwards, with
and without its language models (Howard & Ruder 2018, Figure 3).

All choices are made on a tenth of the training examples; dev files are scored once per run.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from firth.config import read_json
from firth.corpus.prepare import prepare
from firth.corpus.vocab import VocabKind, build_vocab
from firth.export.convert import convert
from firth.files import write_json, write_text
from firth.finetuning.labelled import read_labelled
from firth.finetuning.recipe import data_config
from firth.folder import read_model
from firth.pretraining import run as job
from firth.pretraining.recipe import Pretrain
from firth.recipes import laid_over
from firth.studies.cells import StudyCell, check_data
from firth.studies.finetuning import ROWS, SEEDS, TableRow, recipe_of, tune_cell
from firth.vectors.folder import VectorOptions
from firth.vectors.train import VectorTraining, train_vectors

CPU_SECONDS = 600
PIECES, WORDS = 16_000, 20_000
# Limits on training examples: texts, and sentences of the tagging tasks.
MOST_TEXTS, MOST_TAGGED = 8000, 4000
TASKS = {"CoNLL-2003": "entity_f1", "English POS": "tag_accuracy", "SST-2": "accuracy", "SNLI": "accuracy"}
_TAGGING = ("CoNLL-2003", "English POS")
# Sequences as long as in pre-training.
_TAGGED = {"data": {"limit": MOST_TAGGED}, "head": {"windows": {"length": 64, "stride": 48}}}
_ADAM = {"kind": "adamw", "learning_rate": 1e-3, "warmup_share": 0.1}
_FROZEN = {"adapt": {"frozen_groups": -1}, "optim": {**_ADAM, "decay": 0.0, "clip_norm": 5.0}}
# Learning rates and batch sizes were compared on held-out examples of CoNLL-2003 and SST-2 (one seed). A recurrent
# tagger needs many updates: batches of eight 512-word windows and 1e-3 left word2vec at 18 F1, these values reach 75.
_MANY_UPDATES = {"optim": {"learning_rate": 5e-3}, "train": {"epochs": 4.0, "batch_examples": 6}}


def _tagger(**features: Any) -> dict[str, Any]:
    """A BiLSTM on frozen features."""
    head = {"network": {"kind": "bilstm", "lstm_layers": 1, "lstm_width": 128, "dropout": 0.3, **features}}
    return laid_over({**_FROZEN, "head": head}, _MANY_UPDATES)


def _network(**features: Any) -> dict[str, Any]:
    """The biattentive network on frozen features."""
    # Three epochs of 8,000 examples: with the tagger's dropout it was still learning at the end.
    network = {"kind": "biattentive", "width": 128, "dropout": 0.0, **features}
    head = {"windows": {"long": "cut"}, "network": network}
    return laid_over({**_FROZEN, "head": head}, {"train": {"batch_examples": 16, "epochs": 3.0}})


def _whole(rate: float, **features: Any) -> dict[str, Any]:
    """A linear layer, with everything below it fine-tuned too."""
    return {"optim": {**_ADAM, "learning_rate": rate}, "head": {"network": features} if features else {}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Representation:
    """One row of the table.

    ``text``: what it is pre-trained on; ``model`` and ``recipe``: how, or ``vectors``: options of word vectors.
    ``reads``: another row, whose model it uses. ``words`` and ``texts``: tables of fine-tuning by kind of task; None:
    not used for that kind.
    """

    text: str = "words"
    model: str = ""
    recipe: dict[str, dict[str, Any]] = field(default_factory=dict)
    vectors: dict[str, Any] = field(default_factory=dict)
    reads: str = ""
    words: dict[str, Any]
    texts: dict[str, Any] | None


_STREAM = {"optim": {**_ADAM, "learning_rate": 2e-3, "warmup_share": 0.05, "decay": 0.0}}
_TRANSFORMER = {
    "data": {"length": 64},
    "optim": {"kind": "adamw", "schedule": "linear", "learning_rate": 1e-3, "warmup_share": 0.05, "beta2": 0.98},
    "train": {"batch_tokens": 2048},
}  # fmt: skip
_NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
_MIX = {"layers": [0, 1, 2], "mix": "scalar", "mix_l2": 0.001}
_COVE = {"layers": [0, 2], "mix": "concat"}

REPRESENTATIONS: dict[str, Representation] = {
    "word2vec": Representation(
        vectors={"width": 100, "epochs": 10, "workers": 1}, words=_tagger(), texts=_network(),
    ),
    "fastText": Representation(
        vectors={"kind": "fasttext", "width": 100, "epochs": 4, "workers": 1, "n_buckets": 200_000},
        words=_tagger(), texts=_network(),
    ),
    "LSTM language model": Representation(
        model="lstm-small", recipe=_STREAM, words=laid_over(_whole(4e-3), {"train": {"batch_examples": 6}}),
        texts=_whole(4e-3, pool="mean"),
    ),
    "TagLM": Representation(
        reads="ELMo", texts=None,
        words=_tagger(
            layers=[-1], join="first", cell="gru", lstm_layers=2, own_words=50, own_characters="gru", dropout=0.25,
        ),
    ),
    "CoVe": Representation(
        text="translations", model="cove-small",
        recipe={"encoder": {"width": 100}, "data": {"length": 64}, "train": {"batch_tokens": 2048}},
        words=_tagger(**_COVE), texts=_network(**_COVE),
    ),
    "ELMo": Representation(
        model="elmo-mini", words=_tagger(**_MIX, own_words=50, own_characters="cnn"), texts=_network(**_MIX),
        recipe={
            "optim": {**_ADAM, "schedule": "linear", "learning_rate": 1e-3, "warmup_share": 0.05, "accumulated": 0.0,
                      "epsilon": 1e-8},
            # Tasks read each sentence from a zero state; a model whose state is always carried may not have learnt to.
            "data": {"restart_every": 10}, "objective": {"negatives": 0}, "train": {"batch_tokens": 1280},
        },
    ),
    "ULMFiT": Representation(
        model="awd-lstm-small", words=laid_over(_whole(4e-3), {"train": {"batch_examples": 6}}), texts={},
        recipe={
            "encoder": {"embedding_dropout": 0.002, "input_dropout": 0.025, "weight_dropout": 0.02,
                        "hidden_dropout": 0.015},
            "objective": {"dropout": 0.01}, "train": {"batch_tokens": 1120},
        },
    ),
    "GPT": Representation(
        text="pieces", model="gpt-mini", words=_whole(4e-4, words="last"), texts=_whole(4e-4),
        recipe=laid_over(_TRANSFORMER, {"encoder": {**_NO_DROPOUT, "embedding_dropout": 0.0}}),
    ),
    "BERT": Representation(
        text="pieces", model="bert-mini", words=_whole(4e-4), texts=_whole(4e-4),
        recipe=laid_over(_TRANSFORMER, {"encoder": _NO_DROPOUT}),
    ),
}  # fmt: skip

MIXED = ("English POS", "CoNLL-2003", "SST-2")
ULMFIT_STARTS = ("from scratch", "general language model", "and that of the target text")
LABELS = (100, 300, 1000, 0)  # 0: all
# However few labels there are, a run has about this many updates.
_FEWEST_UPDATES = 200
_NEWS = TableRow(name="AG News", task="ag-news", data={"folder": "ag-news"})


def study_cells(data: Path, _models: Path, out: Path) -> list[StudyCell]:
    """All cells: for each text, each model pre-trained on one, and each table."""
    check_data(data)
    return [
        *text_cells(data, out), *pretrain_cells(data, out), *task_cells(data, out),
        *mix_cells(data, out), *label_cells(data, out),
    ]  # fmt: skip


def text_cells(data: Path, out: Path) -> list[StudyCell]:
    """Cells that prepare each corpus: English as WordPiece tokens and as words, and captions with translations."""
    english = {split: _english(data, split) for split in ("train", "dev")}
    captions = {
        f"{split}{end}": [str(data / "multi30k" / f"{name}.{language}.gz")]
        for split, name in (("train", "train"), ("dev", "val"))
        for end, language in (("", "en"), ("_second", "de"))
    }
    return [
        StudyCell("text/pieces", text_cell, {**english, "kind": "wordpiece", "size": PIECES}),
        StudyCell("text/words", text_cell, {**english, "kind": "words", "size": WORDS}),
        StudyCell("text/translations", text_cell, {**captions, "kind": "words", "size": WORDS}),
    ]


def _english(data: Path, split: str) -> list[str]:
    return [str(data / name / f"{split}.txt.xz") for name in ("en-wiki", "en-books")]


def text_cell(
    folder: Path, *, kind: VocabKind, size: int, train: list[str], dev: list[str], train_second: Sequence[str] = (),
    dev_second: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Build a vocabulary and a corpus."""
    if not (folder / "vocab").exists():
        build_vocab([*train, *train_second], folder / "vocab", size=size, kind=kind)
    made = prepare(train, folder / "vocab", folder / "corpus", dev=dev, second=train_second, dev_second=dev_second)
    return {"tokens": made.tokens, "documents": made.documents}


def pretrain_cells(data: Path, out: Path) -> list[StudyCell]:
    """One cell per pre-trained model, and the cells it needs."""
    cells = []
    for name, row in REPRESENTATIONS.items():
        if row.reads:
            continue
        if row.vectors:
            options: dict[str, Any] = {"texts": _english(data, "train"), "training": row.vectors}
            cells.append(StudyCell(f"pre-training/{name}", vector_cell, options))
            continue
        text = out / "cells" / "text" / row.text
        recipe = laid_over(row.recipe, {"model": row.model, "data": {"corpus": str(text / "corpus")}})
        options = {"recipe": recipe, "cpu_seconds": CPU_SECONDS, "vectors": ""}
        needs: tuple[str, ...] = (f"text/{row.text}",)
        if name == "CoVe":
            options["vectors"] = str(model_of("word2vec", out))
            needs = (*needs, "pre-training/word2vec")
        cells.append(StudyCell(f"pre-training/{name}", pretrain_cell, options, needs))
    return cells


def model_of(name: str, out: Path) -> Path:
    """The folder of a row's pre-trained model."""
    row = REPRESENTATIONS[name]
    return out / "cells" / "pre-training" / (row.reads or name) / "model"


def task_cells(data: Path, out: Path) -> list[StudyCell]:
    """One cell per model and task."""
    cells = []
    for task in TASKS:
        for name, row in REPRESENTATIONS.items():
            tables = row.words if task in _TAGGING else row.texts
            if tables is None:
                continue
            if task == "CoNLL-2003" and "adapt" in tables:
                tables = laid_over(tables, {"head": {"crf": True}})
            recipe = _recipe(task, name, tables, data, out)
            cells.append(StudyCell(f"tasks/{name}/{task}", task_cell, {"recipe": recipe}, _needs(name)))
    return cells


def _needs(name: str) -> tuple[str, ...]:
    return (f"pre-training/{REPRESENTATIONS[name].reads or name}",)


def _recipe(task: str, name: str, tables: dict[str, Any], data: Path, out: Path) -> dict[str, Any]:
    """Build the recipe of a task on a row's model: the task's own, overridden by ``tables``."""
    row = next(row for row in ROWS if row.name == task)
    recipe = recipe_of(replace(row, settings={}), data, out) | {"model": f"{model_of(name, out)}/", "optim": {}}
    return laid_over(laid_over(recipe, _TAGGED if task in _TAGGING else {"data": {"limit": MOST_TEXTS}}), tables)


def mix_cells(data: Path, out: Path) -> list[StudyCell]:
    """One cell per task and seed: a linear layer on ELMo's scalar mix."""
    tables = {**_FROZEN, "head": {"network": {**_MIX, "mix_l2": 0.0, "dropout": 0.1}}}
    cells = []
    for task in MIXED:
        for seed in range(1, SEEDS + 1):
            # The mix weights start equal, and need larger steps than a head's matrix to move away from that.
            own: dict[str, Any] = {"optim": {"learning_rate": 1e-2}, "train": {"seed": seed, "seeds": 1}}
            if task in _TAGGING:
                own["train"] |= _MANY_UPDATES["train"]
            else:
                own["head"] = {"network": {"pool": "mean"}}
            recipe = _recipe(task, "ELMo", laid_over(tables, own), data, out)
            cells.append(StudyCell(f"layers/{task}/seed {seed}", mix_cell, {"recipe": recipe}, _needs("ELMo")))
    return cells


def label_cells(data: Path, out: Path) -> list[StudyCell]:
    """A cell for ULMFiT's language model of the target text, and one per number of labels and start."""
    recipe = recipe_of(_NEWS, data, out) | {"optim": {}, "model": f"{model_of('ULMFiT', out)}/"}
    target = "labels/target text"
    cells = [StudyCell(target, target_cell, {"recipe": recipe}, _needs("ULMFiT"))]
    for n in LABELS:
        # All examples take as long as the other numbers together: one seed.
        train = {"epochs": max(8.0, _FEWEST_UPDATES * 32 / n)} if n else {"epochs": 8.0, "seeds": 1}
        for start in ULMFIT_STARTS:
            own = laid_over(recipe, {"data": {"limit": n}, "train": train})
            if start == ULMFIT_STARTS[0]:
                own |= {"adapt": {"unfreeze": "at_once", "layer_decay": 1.0}}  # nothing to keep
            needs = _needs("ULMFiT")
            if start == ULMFIT_STARTS[2]:
                own["model"], needs = f"{out / 'cells' / target / 'run'}/", (target,)
            own |= {"from_scratch": start == ULMFIT_STARTS[0]}
            cells.append(StudyCell(f"labels/{n or 'all'}/{start}", task_cell, {"recipe": own}, needs))
    return cells


@contextmanager
def usage(folder: Path) -> Iterator[dict[str, float]]:
    """Measure the work inside the context, stopped runs included: ``cpu_s`` and, if the system reports it, ``peak_mb``.

    ``peak_mb``: this process's peak memory, including Python and its libraries.
    """
    file, began_at_s = folder / "usage.json", time.process_time()
    found: dict[str, float] = read_json(file) if file.is_file() else {"cpu_s": 0.0}
    forget, peak = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    if forget.exists():
        forget.write_text("5", "ascii")
    try:
        yield found
    finally:
        found["cpu_s"] = round(found["cpu_s"] + time.process_time() - began_at_s, 1)
        if forget.exists():
            kilobytes = next(line.split()[1] for line in peak.read_text().splitlines() if line.startswith("VmHWM:"))
            found["peak_mb"] = max(round(int(kilobytes) / 1024), found.get("peak_mb", 0))
        write_json(file, found)


def vector_cell(folder: Path, *, texts: list[str], training: dict[str, Any]) -> dict[str, Any]:
    """Train word vectors."""
    model = folder / "model"
    with usage(folder) as used:
        if not model.exists():
            train_vectors(texts, model, VectorTraining(**training), VectorOptions())
    loaded = read_model(model)
    return {**used, "parameters": _count(loaded.objective), "dev": {}, "steps": training["epochs"]}


def pretrain_cell(folder: Path, *, recipe: dict[str, Any], cpu_seconds: float, vectors: str) -> dict[str, Any]:
    """Pre-train one model for the given CPU time; returns the held-out scores of its best state, and the cost."""
    run = folder / "run"

    def sized() -> Pretrain:
        tables = laid_over(recipe, {"vectors": vectors} if vectors else {})
        steps = steps_within(tables, folder, cpu_seconds)
        fifth = max(steps // 5, 1)
        train = {"steps": steps, "eval_every": fifth, "save_every": fifth, "eval_batches": 20}
        tables = laid_over(tables, {"train": {**train, "log_every": max(steps // 50, 1)}})
        return job.resolve(tables, [], str(folder))

    with usage(folder) as used:
        outcome = job.pretrain_or_resume(run, sized, processes=1)
    loaded, model = read_model(run / "model"), folder / "model"
    if vectors and not model.exists():
        convert(run, model, vectors=Path(vectors))  # all words that have a vector, not only those in the captions
    elif not model.exists():
        model.symlink_to("run/model")
    dev = loaded.provenance["dev"]
    return {**used, "parameters": _count(loaded.objective), "dev": dev, "steps": outcome.step}


def steps_within(recipe: dict[str, Any], folder: Path, cpu_seconds: float) -> int:
    """Estimate how many updates fit into the CPU time, from that of a few updates from scratch, which are discarded."""
    few, more = 2, 12
    times: list[float] = []
    with tempfile.TemporaryDirectory(dir=folder) as trials:
        for n in (few, few, more):  # the first one warms up
            short = {"steps": n, "eval_every": 0, "eval_batches": 1, "save_every": 0, "log_every": 1}
            trial = job.resolve(laid_over(recipe, {"train": short}), [], str(folder))
            began_at_s = time.process_time()
            job.pretrain(trial, Path(trials) / f"trial-{len(times)}")
            times.append(time.process_time() - began_at_s)
    # If the updates cost less than the variation between two starts, count the whole time as theirs.
    several_s, n = (times[2] - times[1], more - few) if times[2] > times[1] else (times[2], more)
    return max(int(cpu_seconds * n / several_s), 1)


def task_cell(folder: Path, *, recipe: dict[str, Any]) -> dict[str, Any]:
    """Fine-tune with all seeds; returns the scores, and the cost."""
    with usage(folder) as used:
        facts = tune_cell(folder, recipe=recipe, settings=[])
    return {**facts, **used, "parameters": _count(read_model(folder / "run" / "model").objective)}


def mix_cell(folder: Path, *, recipe: dict[str, Any]) -> dict[str, Any]:
    """As ``task_cell``, with the weight of each layer in the scalar mix."""
    facts = task_cell(folder, recipe=recipe)
    features: Any = read_model(folder / "run" / "model").objective.get_submodule("features")
    return {**facts, "shares": [round(share, 4) for share in features.mix.weights().tolist()]}


def target_cell(folder: Path, *, recipe: dict[str, Any]) -> dict[str, Any]:
    """ULMFiT's second stage: continue pre-training the general language model on the task's texts, without labels."""
    read = read_labelled(recipe["task"], data_config(recipe, "study"), {})
    text, run, base = folder / "texts.txt", folder / "run", Path(recipe["model"])

    def on_its_texts() -> Pretrain:
        write_text(text, "".join(f"{' '.join(record.text.split())}\n\n" for record in (*read.train, *read.held)))
        prepare([text], base, folder / "corpus", hold_out=0.1)
        train = {"steps": 600, "batch_tokens": 1120, "layer_decay": 1 / 2.6, "eval_every": 150}
        tables = {"model": f"{base}/", "data": {"corpus": str(folder / "corpus")}, "train": train}
        return job.resolve(tables, [], str(folder))

    with usage(folder) as used:
        outcome = job.pretrain_or_resume(run, on_its_texts, processes=1)
    return {**used, "dev": read_model(run / "model").provenance["dev"], "steps": outcome.step}


def _count(model: Any) -> int:
    return sum(p.numel() for p in model.parameters())
