"""Firth: contextual language representations on the machine you have.

The steps of the pipeline, and where each is implemented:

    text      raw text -> documents, sentences, tokens          firth.text
    data      shards -> instances -> packed, masked batches      firth.data
    models    batches -> hidden states                           firth.models
    objectives  hidden states -> summed losses                   firth.objectives
    training  losses -> weights, exactly resumable               firth.training
    folder    weights <-> a self-describing folder               firth.folder
    inference a folder -> predictions                            firth.inference

    import firth
    model = firth.load("runs/a")
    model.fill_mask("The capital of France is [MASK].", top_k=5)
    model.embed(["a", "b"], layer=-2, pool="mean")               # float32 (2, H)

Importing this package is cheap: names are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firth.baseline.model import Baseline
    from firth.corpus.prepare import prepare
    from firth.corpus.vocab import build_vocab
    from firth.errors import FirthError, UsageError
    from firth.finetuning.evaluate import evaluate
    from firth.finetuning.finetune import finetune
    from firth.finetuning.prediction_files import score_predictions
    from firth.inference.ensemble import Ensemble
    from firth.inference.loading import load
    from firth.inference.model import Model
    from firth.pretraining.recipe import read_recipe
    from firth.pretraining.run import pretrain, resume
    from firth.text.tokenizer import Tokenizer

_HOMES = {
    "Baseline": "firth.baseline.model",
    "build_vocab": "firth.corpus.vocab",
    "Ensemble": "firth.inference.ensemble",
    "evaluate": "firth.finetuning.evaluate",
    "finetune": "firth.finetuning.finetune",
    "FirthError": "firth.errors",
    "load": "firth.inference.loading",
    "Model": "firth.inference.model",
    "prepare": "firth.corpus.prepare",
    "pretrain": "firth.pretraining.run",
    "read_recipe": "firth.pretraining.recipe",
    "resume": "firth.pretraining.run",
    "score_predictions": "firth.finetuning.prediction_files",
    "Tokenizer": "firth.text.tokenizer",
    "UsageError": "firth.errors",
}

__all__ = [
    "Baseline",
    "build_vocab",
    "Ensemble",
    "evaluate",
    "finetune",
    "FirthError",
    "load",
    "Model",
    "prepare",
    "pretrain",
    "read_recipe",
    "resume",
    "score_predictions",
    "Tokenizer",
    "UsageError",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'firth' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__, key=str.casefold)
