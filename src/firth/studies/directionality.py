"""``firth study directionality``: left-to-right against bidirectional models at equal size, text and tokens.

The rows are those of Devlin et al. 2018, Table 5, and OpenAI GPT: each is pre-trained on the same corpus for the same
number of tokens, and fine-tuned on four tasks with several seeds. All choices are made on a tenth of the training
examples; dev files are scored once per run.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from firth.config import read_json
from firth.pretraining import run as job
from firth.pretraining.assembly import make_objective
from firth.recipes import laid_over, read_recipe_file
from firth.studies.cells import StudyCell, check_corpus, check_data
from firth.studies.finetuning import ROWS, recipe_of, tune_cell

# 30 M tokens: one or two minutes each on a GPU; on one CPU core an hour per 7 M tokens for BERT, twice that for models
# that predict more tokens per sequence.
STEPS, BATCH_TOKENS = 3700, 8192
# For four times the recipe's tokens per step.
_LEARNING_RATE = 1.5e-3
MOST_EXAMPLES = 4000
# The same fine-tuning for all, even if a system or a size has its own.
_TUNING: dict[str, dict[str, Any]] = {
    "adapt": {"dropout": 0.1},
    "optim": {"kind": "adamw", "learning_rate": 4e-4, "schedule": "linear", "warmup_share": 0.1, "epsilon": 1e-6},
    "train": {"epochs": 3.0},
}
# A text is the mean of all its tokens in all layers, since not all of these models have a trained summary vector.
_TEXT = {"pool": "mean", "layers": [0, 1, 2, 3, 4], "mix": "concat", "dropout": 0.1}
_OF_TASKS: dict[str, dict[str, Any]] = {
    "SST-2": {"network": _TEXT},
    "MRPC": {"network": _TEXT, "mark_shared_words": True},
    "SNLI": {"network": _TEXT, "mark_shared_words": True},
    "CoNLL-2003": {"windows": {"stride": 80}},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRow:
    """One row of the table. ``pretrained``: the row whose weights it starts from, if not its own.

    ``words``: which token represents a word that is tagged. Left to right, only its last token has seen all of it.
    ``marks``: whether it has segment embeddings, which mark the words that both texts of a pair have.
    """

    model: str
    settings: tuple[str, ...] = ()
    head: dict[str, Any] = field(default_factory=dict)
    pretrained: str = ""
    words: str = "first"
    marks: bool = True


# A randomly initialised BiLSTM between encoder and head; a text is the mean of its outputs.
_BILSTM = {"network": {"kind": "bilstm", "lstm_layers": 1}}
VARIANTS: dict[str, ModelRow] = {
    # Pairs come in short sequences first and in long ones at the end, as published; documents mix both lengths.
    "BERT": ModelRow(model="bert-mini", settings=("data.instances=pairs", "data.mixed_lengths=false")),
    "BERT without NSP": ModelRow(model="bert-mini"),
    "left to right without NSP": ModelRow(model="bert-ltr-mini", words="last"),
    "left to right, BiLSTM": ModelRow(
        model="bert-ltr-mini", words="last", head=_BILSTM, pretrained="left to right without NSP"
    ),
    # GPT's softmax has no bias that could be initialised from the tokens' frequencies.
    "GPT": ModelRow(
        model="gpt-mini",
        settings=("encoder.embedding_dropout=0.0", "init.output_bias=zero"),
        words="last",
        marks=False,
    ),
}
# The tasks, and the score that is shown: for MRPC the one in the paper's table.
TASKS = {"SST-2": "accuracy", "MRPC": "accuracy", "SNLI": "accuracy", "CoNLL-2003": "entity_f1"}
# Scores of the paper's base size where the tasks are the same (Devlin et al. 2018, Table 5).
PUBLISHED = {
    "BERT": {"MRPC": 86.7, "SST-2": 92.7},
    "BERT without NSP": {"MRPC": 86.5, "SST-2": 92.6},
    "left to right without NSP": {"MRPC": 77.5, "SST-2": 92.1},
    "left to right, BiLSTM": {"MRPC": 75.7, "SST-2": 91.6},
}


def study_cells(data: Path, models: Path, out: Path) -> list[StudyCell]:
    """All cells: one for each pre-trained model, and each task. ``models``: has the English corpus."""
    check_data(data)
    corpus = models / "en" / "corpus"
    check_corpus(corpus)
    return [*pretrain_cells(corpus), *tune_cells(data, out)]


def pretrain_cells(corpus: Path) -> list[StudyCell]:
    """One cell per pre-trained model: the same corpus, tokens, initialisation, learning rate and schedule."""
    train = {
        "steps": STEPS,
        "batch_tokens": BATCH_TOKENS,
        "eval_every": STEPS // 5,
        "eval_batches": 50,
        "save_every": STEPS // 20,
        "log_every": STEPS // 50,
    }
    here = {
        "data": {"corpus": str(corpus)},
        "optim": {"schedule": "linear", "learning_rate": _LEARNING_RATE},
        "train": train,
    }
    recipe = laid_over(read_recipe_file("small"), here)
    return [
        StudyCell(
            f"pre-training/{name}",
            pretrain_cell,
            {"recipe": {**recipe, "model": variant.model}, "settings": [*variant.settings]},
        )
        for name, variant in VARIANTS.items()
        if not variant.pretrained
    ]


def tune_cells(data: Path, out: Path) -> list[StudyCell]:
    """One cell per model and task."""
    cells = []
    for row in (row for task in TASKS for row in ROWS if row.name == task):
        for name, variant in VARIANTS.items():
            words = {"network": {"words": variant.words}} if row.name == "CoNLL-2003" else {}
            head = laid_over(laid_over(_OF_TASKS[row.name], words), variant.head)
            if not variant.marks:
                head.pop("mark_shared_words", None)
            recipe = laid_over(recipe_of(replace(row, settings={"head": head}), data, out), _TUNING)
            recipe["model"] = str(out / "cells" / "pre-training" / (variant.pretrained or name) / "run") + "/"
            recipe["data"] |= {"limit": MOST_EXAMPLES}
            need = f"pre-training/{variant.pretrained or name}"
            cells.append(StudyCell(f"tasks/{name}/{row.name}", tune_cell, {"recipe": recipe, "settings": []}, (need,)))
    return cells


def pretrain_cell(folder: Path, *, recipe: dict[str, Any], settings: list[str]) -> dict[str, Any]:
    """Pre-train one model; returns the held-out scores of its best state, and the cost."""
    run = folder / "run"
    outcome = job.pretrain_or_resume(run, lambda: job.resolve(recipe, settings, str(folder)))
    state = read_json(run / "checkpoints" / f"step-{outcome.step}" / "train" / "state.json")
    about = read_json(run / "model" / "firth.json")
    return {
        "dev": about["provenance"]["dev"],
        "seconds": state["elapsed_s"],
        "steps": outcome.step,
        "parameters": sum(p.numel() for p in make_objective(job.recipe_of(run)).parameters()),
    }
