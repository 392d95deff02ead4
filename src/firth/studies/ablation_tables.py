"""What the ablation study compares: its models, and the rows of each table next to the paper's scores."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from firth.recipes import laid_over, read_recipe_file

SCORES = {
    "CoNLL-2003": "entity_f1", "English POS": "tag_accuracy", "AG News": "accuracy", "SST-2": "accuracy",
    "MRPC": "f1", "SNLI": "accuracy",
}  # fmt: skip
_TAGGING = ("CoNLL-2003", "English POS")
# Limits on training examples: texts, and sentences of the tagging tasks.
LIMITS = {"AG News": 1000, **dict.fromkeys(_TAGGING, 2000)}
MOST_EXAMPLES = 4000

_ADAM = {"kind": "adamw", "learning_rate": 1e-3, "schedule": "linear", "warmup_share": 0.05, "epsilon": 1e-8}
_ELMO: dict[str, dict[str, Any]] = {
    "data": {"restart_every": 10},
    "objective": {"negatives": 0},
    "optim": {**_ADAM, "accumulated": 0.0},
    "train": {"steps": 1500, "batch_tokens": 1280},
}
_AWD: dict[str, dict[str, Any]] = {
    "encoder": {"embedding_dropout": 0.002, "input_dropout": 0.025, "weight_dropout": 0.02, "hidden_dropout": 0.015},
    "objective": {"dropout": 0.01},
    "train": {"steps": 1500, "batch_tokens": 1120},
}
# From random initialisation this many tokens end on the plateau, where all Transformers are alike: docs/learning.md.
_SMALL = read_recipe_file("small")
_BERT = laid_over(_SMALL, {"train": {"steps": 1250}})
# GPT's softmax has no bias that could be initialised from the tokens' frequencies.
_GPT = laid_over(
    _SMALL,
    {"encoder": {"embedding_dropout": 0.0}, "init": {"output_bias": "zero"}, "train": {"steps": 1500}},
)
_LSTM: dict[str, dict[str, Any]] = {
    "data": {"length": 64},
    "optim": {"kind": "adamw", "learning_rate": 2e-3, "warmup_share": 0.05, "decay": 0.0},
    "train": {"steps": 1500, "batch_tokens": 1280},
}
# ULMFiT's second stage.
_TARGET = {"steps": 600, "batch_tokens": 1120}
_DECAY = 1 / 2.6


@dataclass(frozen=True, kw_only=True, slots=True)
class AblationModel:
    """A model pre-trained for the study on a text of ``TEXTS``, from a model size or from another model here."""

    text: str
    model: str = ""
    base: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict)


# Each text, and the text whose vocabulary it uses if not its own.
TEXTS: dict[str, str] = {
    "words": "", "pieces": "", "entities": "words", "news": "words", "sentiment": "pieces", "shuffled": "pieces",
}  # fmt: skip
MODELS: dict[str, AblationModel] = {
    "ELMo": AblationModel(text="words", model="elmo-mini", recipe=_ELMO),
    "small ELMo": AblationModel(
        text="words", model="elmo-mini", recipe={**_ELMO, "encoder": {"width": 32, "cells": 128}}
    ),
    "ELMo of the task's text": AblationModel(text="entities", model="elmo-mini", recipe=_ELMO),
    "ULMFiT": AblationModel(text="words", model="awd-lstm-small", recipe=_AWD),
    "ULMFiT tuned": AblationModel(
        text="news", base="ULMFiT", recipe={"train": {**_TARGET, "layer_decay": _DECAY}}
    ),
    "ULMFiT tuned, constant rates": AblationModel(
        text="news", base="ULMFiT",
        recipe={"train": {**_TARGET, "layer_decay": _DECAY}, "optim": {"schedule": "constant", "warmup_share": 0.0}},
    ),
    "ULMFiT tuned, one constant rate": AblationModel(
        text="news", base="ULMFiT", recipe={"train": _TARGET, "optim": {"schedule": "constant", "warmup_share": 0.0}}
    ),
    "ULMFiT of the task's text": AblationModel(
        text="news", model="awd-lstm-small", recipe=laid_over(_AWD, {"train": _TARGET})
    ),
    "GPT": AblationModel(text="pieces", model="gpt-mini", recipe=_GPT),
    # As many tokens as GPT.
    "LSTM": AblationModel(text="pieces", model="lstm-small", recipe=laid_over(_LSTM, {"train": {"steps": 2400}})),
    "LSTM of the task's text": AblationModel(text="sentiment", model="lstm-small", recipe=_LSTM),
    "autoencoder of the task's text": AblationModel(
        text="sentiment", model="lstm-small", recipe=laid_over(_LSTM, {"data": {"instances": "copies"}})
    ),
    "BERT of documents": AblationModel(text="pieces", model="bert-mini", recipe=_BERT),
    "BERT of shuffled sentences": AblationModel(text="shuffled", model="bert-mini", recipe=_BERT),
}  # fmt: skip
FORWARD, BACKWARD, VECTORS = "ELMo, left to right", "ELMo, right to left", "word2vec"
# The half of a bidirectional model that keeps its weights.
HALVES: dict[str, Literal["ahead", "back"]] = {FORWARD: "ahead", BACKWARD: "back"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Variation:
    """A row of an ablation: the model that it starts from, its own part of the recipe, and the paper's score."""

    model: str
    tables: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ablation:
    """One table. ``source``: where the paper's numbers come from; ``tables``: the recipe that all its rows share."""

    source: str
    tasks: tuple[str, ...]
    tables: Mapping[str, Any]
    rows: Mapping[str, Variation]


_FROZEN = {
    "adapt": {"frozen_groups": -1},
    "optim": {"kind": "adamw", "learning_rate": 5e-3, "warmup_share": 0.1, "decay": 0.0, "clip_norm": 5.0},
    # A recurrent tagger needs many updates, on short sequences.
    "train": {"epochs": 4.0, "batch_examples": 6},
    "head": {"windows": {"length": 64, "stride": 48}},
}
_TAGGER: dict[str, Any] = {
    "kind": "bilstm", "lstm_layers": 2, "lstm_width": 128, "cell": "gru", "own_words": 50, "own_characters": "gru",
    "dropout": 0.25,
}  # fmt: skip
_WITH_LM = {"head": {"network": {**_TAGGER, "layers": [-1], "join": "first"}}}
_WITHOUT_LM = {"head": {"network": {**_TAGGER, "join": "none"}}}
_GENTLE = {"optim": {"kind": "adamw", "learning_rate": 4e-4, "warmup_share": 0.1}}
# Pre-training helps most with few labels.
_FEW_LABELS = laid_over(_GENTLE, {"data": {"limit": 1000}})
# Options of ULMFiT's classifier that a row combines: gradual unfreezing, learning rates by layer, and a schedule.
_GRADUAL, _AT_ONCE = {"unfreeze": "gradual"}, {"unfreeze": "at_once"}
_BY_LAYER, _ONE_RATE = {"layer_decay": _DECAY}, {"layer_decay": 1.0}
_SLANTED, _CONSTANT, _COSINE = (
    {"schedule": schedule, "warmup_share": share}
    for schedule, share in (("slanted", 0.1), ("constant", 0.0), ("cosine", 0.1))
)


def _classifier(unfreeze: Mapping[str, Any], rates: Mapping[str, Any], schedule: Mapping[str, Any]) -> dict[str, Any]:
    return {"adapt": {**unfreeze, **rates}, "optim": dict(schedule)}


def _own_words(width: int, vectors: str) -> dict[str, Any]:
    network = {"kind": "bilstm", "lstm_layers": 1, "lstm_width": 128, "dropout": 0.3, "join": "none"}
    return {"head": {"network": {**network, "own_words": width}}, "adapt": {"vectors": vectors} if vectors else {}}


_PUBLISHED_ULMFIT = _classifier(_GRADUAL, _BY_LAYER, _SLANTED)
_GPT_LAYERS = 4
# Placeholder in tables for the folder of the word vectors.
VECTOR_FOLDER = "@vectors"
WIDTH = 100

ABLATIONS: dict[str, Ablation] = {
    "TagLM": Ablation(
        source="CoNLL-2003 test F1 (Peters et al. 2017, Tables 1 and 5); the larger model is CNN-BIG-LSTM",
        tasks=("CoNLL-2003",),
        tables=laid_over(_FROZEN, {"head": {"crf": True}}),
        rows={
            "no language model": Variation(model="ELMo", tables=_WITHOUT_LM, published={"CoNLL-2003": 90.87}),
            "language model of the task's text": Variation(
                model="ELMo of the task's text", tables=_WITH_LM, published={"CoNLL-2003": 90.79}
            ),
            "small, two directions": Variation(
                model="small ELMo", tables=_WITH_LM, published={"CoNLL-2003": 91.62}
            ),
            "larger, one direction": Variation(model=FORWARD, tables=_WITH_LM, published={"CoNLL-2003": 91.66}),
            "larger, two directions": Variation(model="ELMo", tables=_WITH_LM, published={"CoNLL-2003": 91.93}),
        },
    ),
    "directions": Ablation(
        source="CoNLL-2003 test F1 in TagLM with LSTM-2048-512 (Peters et al. 2017, Table 5)",
        tasks=_TAGGING,
        tables=laid_over(_FROZEN, {"head": {"network": {"layers": [-1]}}}),
        rows={
            "left to right": Variation(model=FORWARD, published={"CoNLL-2003": 91.40}),
            "right to left": Variation(model=BACKWARD),
            "joined": Variation(model="ELMo", published={"CoNLL-2003": 91.62}),
        },
    ),
    "ULMFiT": Ablation(
        source="100 - validation error on AG News (Howard & Ruder 2018, Tables 4, 6 and 7)",
        tasks=("AG News",),
        tables={"train": {"epochs": 8.0}},
        rows={
            "as published": Variation(
                model="ULMFiT tuned", tables=_PUBLISHED_ULMFIT, published={"AG News": 94.62}
            ),
            "no pre-training on general text": Variation(
                model="ULMFiT of the task's text", tables=_PUBLISHED_ULMFIT, published={"AG News": 94.48}
            ),
            "no fine-tuning of the language model": Variation(
                model="ULMFiT", tables=_PUBLISHED_ULMFIT, published={"AG News": 93.91}
            ),
            "language model: constant rates by layer": Variation(
                model="ULMFiT tuned, constant rates", tables=_PUBLISHED_ULMFIT, published={"AG News": 94.53}
            ),
            "language model: one constant rate": Variation(
                model="ULMFiT tuned, one constant rate", tables=_PUBLISHED_ULMFIT, published={"AG News": 94.39}
            ),
            "classifier: from scratch": Variation(
                model="ULMFiT", published={"AG News": 93.19},
                tables={"from_scratch": True, **_classifier(_AT_ONCE, _ONE_RATE, _CONSTANT)},
            ),
            "classifier: all at once": Variation(
                model="ULMFiT tuned", tables=_classifier(_AT_ONCE, _ONE_RATE, _CONSTANT), published={"AG News": 94.19}
            ),
            "classifier: all at once, rates by layer": Variation(
                model="ULMFiT tuned", tables=_classifier(_AT_ONCE, _BY_LAYER, _CONSTANT), published={"AG News": 94.38}
            ),
            "classifier: the head alone": Variation(
                model="ULMFiT tuned", tables={"adapt": {"frozen_groups": -1, **_AT_ONCE}, "optim": _CONSTANT},
                published={"AG News": 91.62},
            ),
            "classifier: gradual": Variation(
                model="ULMFiT tuned", tables=_classifier(_GRADUAL, _ONE_RATE, _CONSTANT), published={"AG News": 94.19}
            ),
            "classifier: gradual, rates by layer": Variation(
                model="ULMFiT tuned", tables=_classifier(_GRADUAL, _BY_LAYER, _CONSTANT), published={"AG News": 93.96}
            ),
            "classifier: gradual, slanted": Variation(
                model="ULMFiT tuned", tables=_classifier(_GRADUAL, _ONE_RATE, _SLANTED), published={"AG News": 94.65}
            ),
            "classifier: gradual, cosine": Variation(
                model="ULMFiT tuned", tables=_classifier(_GRADUAL, _ONE_RATE, _COSINE), published={"AG News": 94.71}
            ),
        },
    ),
    "GPT": Ablation(
        source="GLUE test scores (Radford et al. 2018, Table 5)",
        tasks=("SST-2", "MRPC"),
        tables=_FEW_LABELS,
        rows={
            "as published": Variation(
                model="GPT", tables={"head": {"auxiliary_lm": 0.5}}, published={"SST-2": 91.3, "MRPC": 82.3}
            ),
            "no auxiliary loss": Variation(
                model="GPT", tables={"head": {"auxiliary_lm": 0.0}}, published={"SST-2": 92.0, "MRPC": 84.9}
            ),
            "no pre-training": Variation(
                model="GPT", published={"SST-2": 84.0, "MRPC": 79.4},
                tables={"head": {"auxiliary_lm": 0.5}, "adapt": {"transferred_groups": 0}},
            ),
            "an LSTM instead": Variation(
                model="LSTM", published={"SST-2": 90.5, "MRPC": 83.2},
                tables={"head": {"auxiliary_lm": 0.5}, "optim": {"learning_rate": 4e-3}},
            ),
        },
    ),
    "GPT's layers": Ablation(
        source="no numbers: a curve for MultiNLI and RACE (Radford et al. 2018, Figure 2); GPT as published has all",
        tasks=("SST-2",),
        tables=_FEW_LABELS,
        rows={
            f"{n} of {_GPT_LAYERS} transferred": Variation(
                model="GPT", tables={"head": {"auxiliary_lm": 0.5}, "adapt": {"transferred_groups": 1 + n}}
            )
            for n in range(_GPT_LAYERS)
        },
    ),
    "LSTM": Ablation(
        source="100 - test error on IMDb, not SST-2 (Dai & Le 2015, Table 2)",
        tasks=("SST-2",),
        tables={"optim": {"kind": "adamw", "learning_rate": 3e-3, "warmup_share": 0.1}},
        rows={
            "random start": Variation(
                model="LSTM of the task's text", tables={"from_scratch": True}, published={"SST-2": 86.50}
            ),
            "language model": Variation(model="LSTM of the task's text", published={"SST-2": 92.36}),
            "sequence autoencoder": Variation(model="autoencoder of the task's text", published={"SST-2": 92.76}),
        },
    ),
    "word vectors": Ablation(
        source="CoNLL-2003 test F1 and WSJ part-of-speech accuracy (Collobert et al. 2011)",
        tasks=_TAGGING,
        tables=_FROZEN,
        rows={
            "random": Variation(
                model=VECTORS, tables=_own_words(WIDTH, ""), published={"CoNLL-2003": 81.47, "English POS": 96.37}
            ),
            "pre-trained": Variation(
                model=VECTORS, tables=_own_words(WIDTH, VECTOR_FOLDER),
                published={"CoNLL-2003": 88.87, "English POS": 97.20},
            ),
            "pre-trained and frozen": Variation(
                model=VECTORS,
                tables={"head": {"network": {"kind": "bilstm", "lstm_layers": 1, "lstm_width": 128, "dropout": 0.3}}},
            ),
        },
    ),
    "documents": Ablation(
        source="no numbers: a document-level corpus is called critical (Devlin et al. 2018, §3.1)",
        tasks=("SST-2", "MRPC", "SNLI"),
        tables=_GENTLE,
        rows={
            "documents": Variation(model="BERT of documents"),
            "shuffled sentences": Variation(model="BERT of shuffled sentences"),
        },
    ),
}  # fmt: skip
