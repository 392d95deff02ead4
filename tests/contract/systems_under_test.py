"""A tiny model of every system and its batches, on which the contract tests run."""

from pathlib import Path
from typing import Any

from torch import nn

from firth.data.batch import Batch
from firth.data.loader import Loader
from firth.data.shards import Corpus
from firth.pretraining.assembly import make_loader, make_objective
from firth.pretraining.recipe import Pretrain, read_recipe

_BERT = {"width": 32, "n_layers": 2, "n_heads": 2, "feed_forward_width": 64, "max_positions": 64}

# For programs that tests start: no plots in reports, as in the tests themselves.
NO_PLOTS = """
import firth.page
firth.page._inline_svg = lambda figure, title, prefix: "<svg></svg>"
"""

# The file of word vectors beside the corpus of a system initialised from word vectors.
VECTORS = "vectors.txt"

# One entry per row of the table: recipe tables that make the system small. A new system adds its line.
TINY: dict[str, dict[str, Any]] = {
    "bert": {"model": "bert-tiny", "encoder": _BERT, "data": {"length": 32, "long_length": 48}},
    "bert-ltr": {"model": "bert-ltr-tiny", "encoder": _BERT, "data": {"length": 32}},
    "gpt": {
        "model": "gpt-tiny",
        "encoder": {"width": 32, "n_layers": 2, "n_heads": 2, "max_positions": 64},
        "data": {"length": 32},
    },
    "transformer": {
        "model": "transformer-tiny",
        "encoder": {"width": 32, "n_heads": 2, "feed_forward_width": 64},
        "data": {"length": 32},
    },
    "vectors": {"model": "vectors-small", "encoder": {"width": 24}, "data": {"length": 32}},
    "awd-lstm": {
        "model": "awd-lstm-tiny",
        "encoder": {"width": 24, "hidden_width": 32},
        "data": {"length": 16},
    },
    "elmo": {
        "model": "elmo-mini",
        "data": {"length": 16},
        "objective": {"negatives": 20},
        "encoder": {"width": 12, "cells": 24, "character_width": 4, "filters": [[1, 8], [2, 8], [3, 16]]},
    },
    "cove": {"model": "cove-small", "encoder": {"width": 16, "hidden_width": 12}, "data": {"length": 32}},
    "lstm": {"model": "lstm-small", "encoder": {"width": 24, "dropout": 0.1}, "data": {"length": 16}},
}


def tiny_recipe(system: str, corpus: Path, *settings: str) -> Pretrain:
    """The tiny recipe of a system on a corpus: float32, a few steps, everything saved often."""
    base = TINY[system]
    data = {**base, "data": {**base["data"], "corpus": str(corpus)}}
    if (vectors := corpus.parent / VECTORS).is_file():
        data["vectors"] = str(vectors)
    common = [
        "train.steps=12",
        "train.batch_tokens=192",
        "train.micro_batches=2",
        "train.precision=float32",
        "train.eval_every=4",
        "train.eval_batches=3",
        "train.save_every=5",
        "train.log_every=3",
        "optim.warmup_share=0.25",
        "optim.learning_rate=3e-3",
    ]
    return read_recipe(data, [*common, *settings], "tiny", vocab_size=Corpus(corpus).tokenizer.size)


def tiny_parts(system: str, corpus_folder: Path, *settings: str) -> tuple[Pretrain, nn.Module, Loader]:
    recipe = tiny_recipe(system, corpus_folder, *settings)
    corpus = Corpus(corpus_folder)
    return recipe, make_objective(recipe), make_loader(recipe, corpus)


def some_batches(loader: Loader, n: int) -> list[Batch]:
    """The first n micro-batches that training would see."""
    batches: list[Batch] = []
    from firth.data.loader import Place

    steps = loader.steps(Place(), step=0)
    while len(batches) < n:
        batches += next(steps)[0]
    return batches[:n]
