"""The table of systems: name, parts and settings of each, and named sizes.

To add a system, write its modules and add a row; every contract test then covers it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from firth.convert.hf_bert import BERT, BERT_LEFT_TO_RIGHT
from firth.convert.hf_gpt import GPT
from firth.convert.hf_mapping import HuggingFace
from firth.costs import (
    awd_lstm_bytes,
    awd_lstm_flops,
    bilm_bytes,
    bilm_flops,
    gpt_flops,
    lstm_bytes,
    lstm_flops,
    mtlstm_bytes,
    mtlstm_flops,
    transformer_bytes,
    transformer_flops,
    translation_bytes,
    translation_flops,
    vectors_bytes,
    vectors_flops,
)
from firth.data.batch import Batch, Objective
from firth.machine import sizes_only
from firth.models.awd_lstm import AwdLstm
from firth.models.bert import Bert
from firth.models.bilm import Bilm
from firth.models.config import (
    AwdLstmConfig,
    BertConfig,
    BilmConfig,
    GptConfig,
    LstmConfig,
    MtLstmConfig,
    TransformerConfig,
    VectorsConfig,
)
from firth.models.gpt import Gpt
from firth.models.lstm import Lstm
from firth.models.mtlstm import MtLstm
from firth.models.transformer import TransformerEncoder
from firth.models.vectors import Vectors
from firth.names import SHIPPED, locate, unknown
from firth.objectives.awd_lm import AwdLM
from firth.objectives.bilm import BilmLM
from firth.objectives.cbow import Cbow
from firth.objectives.config import (
    AwdLMConfig,
    BilmLMConfig,
    CausalLMConfig,
    CbowConfig,
    MaskedLMConfig,
    MtLstmTranslationConfig,
    StreamingLMConfig,
    TiedLMConfig,
    TranslationConfig,
)
from firth.objectives.contrastive import bert_objective
from firth.objectives.mtlstm_translation import MtLstmTranslation
from firth.objectives.next_token import CausalLM, StreamingLM, TiedLM
from firth.objectives.translation import Translation
from firth.packed import Encoder
from firth.progress import say
from firth.text.layouts import (
    Layout,
    bare_layout,
    begun_layout,
    bert_layout,
    gpt_layout,
    sentence_layout,
    source_layout,
)
from firth.text.open_words import opened
from firth.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """One row of the table.

    ``fixed``: configuration fields that define the system. ``instances``: the kinds of training instances it supports,
    its own first. ``predict``: masked tokens, the next token (and the one before), or a translation.
    ``layout``: of its sequences; ``pretraining_layout``: of those in pre-training, if different. ``huggingface``: its
    mapping to transformers, whose keys and names its model folder then uses. ``activation_bytes(config, bytes per
    number)``: what the backward pass keeps per token, without and with recomputation of blocks. ``characters``:
    whether its tokens are words that it reads by their characters, so that none is unknown. ``pretraining`` and
    ``tuning``: its published settings, as tables of a recipe, where they differ from BERT's; the learning rate of
    ``tuning`` is for the hidden size ``tuned_width``, and smaller models get a higher one (None: the same for any).
    """

    config: type[Any]
    encoder: Callable[[Any], Encoder]
    objective_config: type[Any]
    objective: Callable[[Any, Any], Objective]
    layout: Callable[[Tokenizer], Layout]
    instances: tuple[Literal["pairs", "documents", "streams", "copies", "crops", "translations"], ...]
    predict: Literal["masked", "next", "both", "translation"]
    flops: Callable[[Any, Batch], float]
    activation_bytes: Callable[[Any, int], tuple[float, float]]
    pretraining_layout: Callable[[Tokenizer], Layout] | None = None
    huggingface: HuggingFace | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    pretraining: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tuning: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tuned_width: int | None = 768
    characters: bool = False

    def reads(self, tokenizer: Tokenizer) -> Tokenizer:
        """Return a tokenizer in the form that the system uses; TokenizerError for one that it cannot use."""
        return opened(tokenizer) if self.characters else tokenizer

    def saves_by_recomputing(self, config: Any) -> bool:
        """Whether less memory is needed if blocks are recomputed in the backward pass."""
        kept, less = self.activation_bytes(config, 4)
        return bool(less < kept)

    def reads_letters(self, config: Any, head: Any = None) -> bool:
        """Whether the encoder, or the head above it, reads unknown words by their characters.

        Word vectors with one vector for all of them do not.
        """
        own = getattr(getattr(head, "network", None), "own_characters", "none") != "none"
        return own or (self.characters and getattr(config, "unknown", "") != "one")


# For heads on frozen encoders, and for CoVe.
_ADAM = {"kind": "adamw", "learning_rate": 1e-3, "decay": 0.0, "epsilon": 1e-8, "clip_norm": 5.0}
_GPT_ADAM = {"kind": "gpt_adam", "epsilon": 1e-8}
# Howard & Ruder 2018, §3.2 and §4.1; decay and clipping as in the released scripts (specification §3).
_ULMFIT_ADAM = {
    "kind": "adamw", "beta1": 0.7, "beta2": 0.99, "epsilon": 1e-8, "decay": 1e-7, "clip_norm": 0.3,
    "schedule": "slanted", "warmup_share": 0.1,
}  # fmt: skip
# allenai/bilm-tf training.py, windows of 20 words: the loss is 20 times the mean, the sum of squares starts at 1, and
# the norm is clipped at 10. This gives the same steps as the mean with 1/400 and 1/2.
_ELMO_ADAGRAD = {
    "kind": "adagrad", "schedule": "constant", "warmup_share": 0.0, "learning_rate": 0.2, "decay": 0.0,
    "epsilon": 0.0, "accumulated": 0.0025, "clip_norm": 0.5,
}  # fmt: skip

SYSTEMS: dict[str, System] = {
    "bert": System(
        config=BertConfig,
        encoder=Bert,
        objective_config=MaskedLMConfig,
        objective=bert_objective,
        layout=bert_layout,
        instances=("pairs", "documents", "crops"),
        predict="masked",
        flops=transformer_flops,
        activation_bytes=transformer_bytes,
        huggingface=BERT,
        fixed={"causal": False},
    ),
    "bert-ltr": System(
        config=BertConfig,
        encoder=Bert,
        objective_config=CausalLMConfig,
        objective=CausalLM,
        layout=bert_layout,
        instances=("documents",),
        predict="next",
        flops=transformer_flops,
        activation_bytes=transformer_bytes,
        huggingface=BERT_LEFT_TO_RIGHT,
        fixed={"causal": True},
    ),
    "gpt": System(
        config=GptConfig,
        encoder=Gpt,
        objective_config=TiedLMConfig,
        objective=TiedLM,
        layout=gpt_layout,
        pretraining_layout=bare_layout,
        instances=("documents",),
        predict="next",
        flops=gpt_flops,
        activation_bytes=transformer_bytes,
        huggingface=GPT,
        # Radford et al. 2018, §4.1: 2,000 warm-up updates; 1,000,000 in all according to Devlin et al. 2018, App. A.4.
        pretraining={"optim": {**_GPT_ADAM, "schedule": "cosine", "learning_rate": 2.5e-4, "warmup_share": 0.002}},
        tuning={
            "optim": {**_GPT_ADAM, "schedule": "gpt_linear", "learning_rate": 6.25e-5, "warmup_share": 0.002},
            "head": {"auxiliary_lm": 0.5, "shared_dropout": True},
        },
    ),
    "lstm": System(
        config=LstmConfig,
        encoder=Lstm,
        objective_config=StreamingLMConfig,
        objective=StreamingLM,
        layout=source_layout,
        instances=("streams", "copies"),
        predict="next",
        flops=lstm_flops,
        activation_bytes=lstm_bytes,
        # Ours: on a thousand sentences of SST-2, a learning rate of 3e-4 learns nothing, 1e-3 and 1e-2 less than 3e-3.
        pretraining={"optim": {"learning_rate": 3e-3, "decay": 0.0}},
        tuning={"optim": {"learning_rate": 3e-3, "decay": 0.0}},
        tuned_width=None,
    ),
    "vectors": System(
        config=VectorsConfig,
        encoder=Vectors,
        objective_config=CbowConfig,
        objective=Cbow,
        layout=source_layout,
        pretraining_layout=bare_layout,
        instances=("documents",),
        predict="next",
        flops=vectors_flops,
        activation_bytes=vectors_bytes,
        characters=True,
        # Ours: a table of vectors tolerates, and needs, larger steps than a Transformer.
        pretraining={"optim": {"learning_rate": 3e-3, "decay": 0.0}},
        tuning={"optim": {"learning_rate": 1e-3, "decay": 0.0}},
        tuned_width=None,
    ),
    "awd-lstm": System(
        config=AwdLstmConfig,
        encoder=AwdLstm,
        objective_config=AwdLMConfig,
        objective=AwdLM,
        layout=begun_layout,
        instances=("streams",),
        predict="next",
        flops=awd_lstm_flops,
        activation_bytes=awd_lstm_bytes,
        pretraining={"optim": _ULMFIT_ADAM | {"learning_rate": 4e-3}, "data": {"length": 70}},
        tuning={
            "optim": _ULMFIT_ADAM | {"learning_rate": 0.01},
            "adapt": {"layer_decay": 1 / 2.6, "unfreeze": "gradual"},
            "head": {"network": {"hidden_width": 50, "dropout": 0.4}},
            "train": {"epochs": 8.0},
        },
        tuned_width=None,
    ),
    "elmo": System(
        config=BilmConfig,
        encoder=Bilm,
        objective_config=BilmLMConfig,
        objective=BilmLM,
        layout=sentence_layout,
        instances=("streams",),
        predict="both",
        flops=bilm_flops,
        activation_bytes=bilm_bytes,
        characters=True,
        pretraining={
            "optim": _ELMO_ADAGRAD,
            "data": {"length": 20},
            "train": {"batch_tokens": 5120},
        },
        # Peters et al. 2018, §3.3 and App. A: the language model is frozen.
        tuning={
            "optim": _ADAM,
            "adapt": {"frozen_groups": -1},
            "head": {"network": {"dropout": 0.5}},
        },
        tuned_width=None,
    ),
    "cove": System(
        config=MtLstmConfig,
        encoder=MtLstm,
        objective_config=MtLstmTranslationConfig,
        objective=MtLstmTranslation,
        layout=source_layout,
        pretraining_layout=bare_layout,
        instances=("translations",),
        predict="translation",
        flops=mtlstm_flops,
        activation_bytes=mtlstm_bytes,
        # Ours, except the clipping: McCann et al. 2017 halve the learning rate of SGD by hand.
        pretraining={
            "optim": _ADAM,
        },
        # McCann et al. 2017, §4: the encoder is frozen.
        tuning={
            "optim": _ADAM,
            "adapt": {"frozen_groups": -1},
        },
        tuned_width=None,
    ),
    "transformer": System(
        config=TransformerConfig,
        encoder=TransformerEncoder,
        objective_config=TranslationConfig,
        objective=Translation,
        layout=source_layout,
        instances=("translations",),
        predict="translation",
        flops=translation_flops,
        activation_bytes=translation_bytes,
        # Vaswani et al. 2017, §5.3, base model: 4,000 of 100,000 updates are warm-up.
        pretraining={
            "optim": {
                "kind": "adamw",
                "decay": 0.0,
                "beta2": 0.98,
                "epsilon": 1e-9,
                "clip_norm": 0.0,
                "schedule": "inverse_sqrt",
                "learning_rate": 7e-4,
                "warmup_share": 0.04,
            },
            # §6.1: the last five are averaged.
            "train": {"keep_checkpoints": 5},
        },
    ),
}


def _bert(n_layers: int, width: int) -> dict[str, Any]:
    return {"n_layers": n_layers, "width": width, "n_heads": width // 64, "feed_forward_width": 4 * width}


# Source: Devlin et al. 2018, §3, and the miniatures of google-research/bert.
_BERT_SIZES = {
    "tiny": _bert(2, 128),
    "mini": _bert(4, 256),
    "small": _bert(4, 512),
    "medium": _bert(8, 512),
    "base": _bert(12, 768),
    "large": _bert(24, 1024),
}


def _gpt(n_layers: int, width: int) -> dict[str, Any]:
    """Initialise with one over the square root of the hidden size: with the published 0.02, chosen for the base size,
    small models do not get below the loss of token frequencies for a long time (the mini: not in 2.5 million)."""
    return {"n_layers": n_layers, "width": width, "n_heads": width // 64, "init_range": width**-0.5}


# Source: Radford et al. 2018, §4.1 (base); the others have the hidden sizes and depths of BERT's.
_GPT_SIZES = {
    "tiny": _gpt(2, 128),
    "mini": _gpt(4, 256),
    "small": _gpt(4, 512),
    "medium": _gpt(8, 512),
    "base": {"n_layers": 12, "width": 768, "n_heads": 12},
}
# Source: Vaswani et al. 2017, Table 3 (base and big); the others are ours.
_TRANSFORMER_SIZES = {
    "tiny": _bert(2, 128),
    "mini": _bert(3, 256),
    "small": _bert(4, 512),
    "base": _bert(6, 512),
    "big": {**_bert(6, 1024), "dropout": 0.3},
}
# Source: the published models (specification of ELMo, §6); the smallest is ours.
_ELMO_SIZES: dict[str, dict[str, Any]] = {
    "elmo-mini": {
        "width": 128, "cells": 512, "filters": ((1, 32), (2, 32), (3, 64), (4, 128)), "n_highways": 1,
    },
    "elmo-small": {"width": 128, "cells": 1024, "n_highways": 1},
    "elmo-medium": {"width": 256, "cells": 2048, "n_highways": 1},
    "elmo": {},
}  # fmt: skip
SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"bert-{size}": ("bert", sizes) for size, sizes in _BERT_SIZES.items()},
    **{f"bert-ltr-{size}": ("bert-ltr", {**sizes, "causal": True}) for size, sizes in _BERT_SIZES.items()},
    **{f"gpt-{size}": ("gpt", sizes) for size, sizes in _GPT_SIZES.items()},
    "vectors-small": ("vectors", {"width": 100}),
    "vectors-base": ("vectors", {"width": 300}),
    "lstm-small": ("lstm", {"width": 256, "n_layers": 1}),
    # Source: Howard & Ruder 2018, §4.1; the smaller ones are ours.
    "awd-lstm-tiny": ("awd-lstm", {"width": 128, "hidden_width": 256, "n_layers": 2}),
    "awd-lstm-small": ("awd-lstm", {"width": 256, "hidden_width": 512, "n_layers": 3}),
    "awd-lstm": ("awd-lstm", {}),
    **{name: ("elmo", sizes) for name, sizes in _ELMO_SIZES.items()},
    # Source: McCann et al. 2017, §3; the smaller one is ours.
    "cove-small": ("cove", {"width": 100, "hidden_width": 128}),
    "cove": ("cove", {}),
    **{f"transformer-{size}": ("transformer", sizes) for size, sizes in _TRANSFORMER_SIZES.items()},
}


def size_named(name: str) -> tuple[str, dict[str, Any]]:
    """``"bert-mini"`` -> its system's name and configuration fields."""
    if name not in SIZES:
        raise unknown(name, SIZES)
    return SIZES[name]


# Vocabulary size assumed when the parameters of a size are counted.
_TYPICAL_VOCABULARY = 30_000


def count_parameters(size: str) -> int:
    """Count the encoder's parameters for a size, with a typical vocabulary. Nothing is allocated."""
    system, sizes = size_named(size)
    row = SYSTEMS[system]
    with sizes_only():
        return sum(p.numel() for p in row.encoder(row.config(vocab_size=_TYPICAL_VOCABULARY, **sizes)).parameters())


def resolve_model(name: str) -> str:
    """Return a model's name as recipes store it: a path with ``/`` or ``.``, ``hub:org/name``, a shipped one or a size.

    A folder takes precedence over a shipped model, and both over a size of the same name. ConfigError for an unknown
    name.
    """
    if name not in SHIPPED and has_weights(name):
        return name
    if Path(name).exists():
        if name in SIZES:
            say(f"{name} is a folder here: it is used instead of the size of that name")
        return f"./{locate(name)}"
    if name in SHIPPED:
        locate(name)  # a recipe stores the name: the folder differs between installations
        return name
    size_named(name)
    return name


def has_weights(name: str) -> bool:
    """Whether a resolved name means weights: a path, ``hub:…`` or a shipped model. Anything else is a size."""
    return "/" in name or "." in name or name in SHIPPED
