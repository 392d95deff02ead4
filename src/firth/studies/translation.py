"""``firth study translation``: the original Transformer on a small parallel corpus, by decoding method.

One model learns English to German from Multi30k (Elliott et al. 2016): 29,000 captions, a joint BPE vocabulary. Then
the validation captions are translated by the best model, the last one and the mean of the last checkpoints, each
greedily and by beam search, and by the mean with other beam widths and length penalties (Vaswani et al. 2017, §6.1).
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

from firth.corpus.prepare import prepare
from firth.corpus.vocab import build_vocab
from firth.errors import ConfigError
from firth.inference.translating import Search
from firth.inference.translation_scores import evaluate_translation
from firth.metrics.translation import translation_metrics
from firth.pretraining import run as job
from firth.pretraining.average import average
from firth.studies.cells import StudyCell
from firth.training.log import read_log

PIECES = 8000
LAST = 5
TRAINING = "training"
BEST, NEWEST, MEAN = "best", "last", f"mean of the last {LAST}"
GREEDY, BEAM = "greedy", "beam 4"
SEARCHES: dict[str, dict[str, Any]] = {
    GREEDY: {"beam": 1},
    BEAM: {"beam": 4, "length_penalty": 0.6},
    "beam 4, no length penalty": {"beam": 4, "length_penalty": 0.0},
    "beam 4, length penalty 1": {"beam": 4, "length_penalty": 1.0},
    "beam 8": {"beam": 8, "length_penalty": 0.6},
}
# The same as recipes/transformer-multi30k.toml, except for the corpus.
RECIPE: dict[str, Any] = {
    "model": "transformer-tiny",
    "data": {"length": 64},
    "encoder": {"n_layers": 4, "n_heads": 4, "feed_forward_width": 256, "dropout": 0.3, "norm": "pre"},
    "optim": {
        "kind": "adamw",
        "schedule": "inverse_sqrt",
        "learning_rate": 5e-3,
        "warmup_share": 0.0625,
        "decay": 0.0,
        "beta2": 0.98,
        "epsilon": 1e-9,
        "clip_norm": 0.0,
    },
    "train": {
        "steps": 8000,
        "batch_tokens": 4096,
        "eval_every": 200,
        "eval_batches": 0,
        "save_every": 200,
        "keep_checkpoints": LAST,
        "log_every": 50,
    },
}


def study_cells(data: Path, _models: Path, out: Path) -> list[StudyCell]:
    """All cells: the training, and each model with each search. ``data``: has the folder ``multi30k``."""
    files = {name: _file(data / "multi30k", name) for name in ("train.en", "train.de", "val.en", "val.de")}
    return [training_cell(files, out), *score_cells(files, out)]


def _file(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise ConfigError(f"{folder / name}: no such file, nor with .gz (--data: the folder that holds multi30k)")


def make_corpus(files: dict[str, Path], out: Path) -> None:
    """Build a joint vocabulary of both languages, and a corpus of the captions; existing ones are kept."""
    translation_metrics()  # report a missing package now, not after the training
    vocab, corpus = out / "vocab", out / "corpus"
    if not (vocab / "tokenizer.json").is_file():
        build_vocab([files["train.en"], files["train.de"]], vocab, size=PIECES, kind="bpe")
    if not (corpus / "manifest.json").is_file():
        prepare(
            [files["train.en"]],
            vocab,
            corpus,
            second=[files["train.de"]],
            dev=[files["val.en"]],
            dev_second=[files["val.de"]],
        )


def training_cell(files: dict[str, Path], out: Path) -> StudyCell:
    """The cell of the training, which all other cells need."""
    recipe = {**RECIPE, "data": {**RECIPE["data"], "corpus": str(out / "corpus")}}
    return StudyCell(TRAINING, train_cell, {"recipe": recipe}, prepare=partial(make_corpus, files, out), alone=True)


def score_cells(files: dict[str, Path], out: Path) -> list[StudyCell]:
    """One cell per model and search; searches other than the first two only for the mean."""
    pairs = [(model, search) for model in (BEST, NEWEST, MEAN) for search in (GREEDY, BEAM)]
    pairs += [(MEAN, search) for search in SEARCHES if search not in (GREEDY, BEAM)]
    return [
        StudyCell(
            f"scores/{model}/{search}",
            score_cell,
            {
                "run": str(out / "cells" / TRAINING / "run"),
                "model": model,
                "search": SEARCHES[search],
                "data": str(files["val.en"]),
                "gold": str(files["val.de"]),
            },
            (TRAINING,),
        )
        for model, search in pairs
    ]


def train_cell(folder: Path, *, recipe: dict[str, Any]) -> dict[str, Any]:
    """Train the model and average its last checkpoints; returns the learning curve, and the cost."""
    run = folder / "run"
    outcome = job.pretrain_or_resume(run, lambda: job.resolve(recipe, [], str(folder)))
    if not (folder / "mean").exists():
        average([run], folder / "mean", last=LAST)
    events = read_log(run / "log.jsonl")
    state = json.loads((run / "checkpoints" / f"step-{outcome.step}" / "train" / "state.json").read_text("utf-8"))
    return {
        "steps": outcome.step,
        "seconds": state["elapsed_s"],
        "best_step": state["best_step"],
        "dev": [[e["step"], e["translation_loss"], e["translation_accuracy"]] for e in events if e["event"] == "dev"],
        "train": [[e["step"], e["translation_loss"]] for e in events if e["event"] == "train"],
    }


def score_cell(folder: Path, *, run: str, model: str, search: dict[str, Any], data: str, gold: str) -> dict[str, Any]:
    """Compute BLEU and chrF of one model and search on the validation captions."""
    return evaluate_translation(model_folder(Path(run), model), data, gold, Search(**search))


def model_folder(run: Path, model: str) -> Path:
    """The folder of the best, the last or the mean model of a run."""
    if model == BEST:
        return run
    if model == MEAN:
        return run.parent / "mean"
    return max((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
