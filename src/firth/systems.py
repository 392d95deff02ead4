"""THE table: each system's name, parts and peculiarities; and the sizes that have a name.

To add a system, write its modules and add a row; every contract test then runs over it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from firth.convert.hf_bert import BERT, BERT_LEFT_TO_RIGHT
from firth.convert.hf_gpt import GPT
from firth.convert.huggingface import HuggingFace
from firth.data.batch import Batch, Objective
from firth.errors import ConfigError
from firth.models.awd_lstm import AwdLstm
from firth.models.awd_lstm_config import AwdLstmConfig
from firth.models.bert import Bert
from firth.models.bert_config import BertConfig
from firth.models.bilm import Bilm
from firth.models.bilm_config import BilmConfig
from firth.models.gpt import Gpt
from firth.models.gpt_config import GptConfig
from firth.models.lstm import Lstm
from firth.models.lstm_config import LstmConfig
from firth.models.transformer import TransformerEncoder
from firth.models.transformer_config import TransformerConfig
from firth.models.vectors import Vectors
from firth.models.vectors_config import VectorsConfig
from firth.objectives.awd_lm import AwdLM
from firth.objectives.bilm import BilmLM
from firth.objectives.causal_lm import CausalLM
from firth.objectives.cbow import Cbow
from firth.objectives.config import (
    AwdLMConfig,
    BilmLMConfig,
    CausalLMConfig,
    CbowConfig,
    MaskedLMConfig,
    StreamingLMConfig,
    TiedLMConfig,
    TranslationConfig,
)
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.streaming_lm import StreamingLM
from firth.objectives.tied_lm import TiedLM
from firth.objectives.translation import Translation
from firth.packed import Encoder
from firth.tasks.answer import Answerer, answer_answers, answer_examples
from firth.tasks.choose import Chooser, choose_answers, choose_examples
from firth.tasks.classify import (
    Classifier,
    MultiLabelClassifier,
    Regressor,
    classify_answers,
    classify_examples,
    multilabel_answers,
    multilabel_examples,
    regress_answers,
    regress_examples,
)
from firth.tasks.config import (
    AnswerConfig,
    ChooseConfig,
    ClassifyConfig,
    MultiLabelConfig,
    RegressConfig,
    TagConfig,
)
from firth.tasks.model import TaskModel
from firth.tasks.rows import Example, Outputs, RowMaker
from firth.tasks.scoring import (
    score_answers,
    score_choices,
    score_label_sets,
    score_labels,
    score_tags,
    score_values,
)
from firth.tasks.tag import Tagger, tag_answers, tag_examples
from firth.text.characters import ROW
from firth.text.layouts import (
    Layout,
    bare_layout,
    begun_layout,
    bert_layout,
    gpt_layout,
    sentence_layout,
    source_layout,
    stream_layout,
)
from firth.text.open_words import opened
from firth.text.tokenizer import Tokenizer


def _transformer_flops(config: BertConfig, batch: Batch) -> float:
    """Forward and backward: six operations a weight and token, attention, and the vocabulary where predicted."""
    return _gpt_flops(config, batch) + 6 * config.width**2 * _predictions(batch)


def _gpt_flops(config: BertConfig | GptConfig, batch: Batch) -> float:
    """As ``_transformer_flops``, without a layer between the blocks and the vocabulary."""
    lengths = batch.tokens.rows.lengths.double()
    tokens, squares = float(lengths.sum()), float((lengths**2).sum())
    block = 4 * config.width**2 + 2 * config.width * config.feed_forward_width
    vocabulary = config.width * config.vocab_size * _predictions(batch)
    return 6 * (config.n_layers * (block * tokens + 2 * config.width * squares) + vocabulary)


def _predictions(batch: Batch) -> int:
    return sum(n for term, n in batch.counts().items() if term in ("mlm", "lm"))


# Numbers of the width that a token takes at the highest point of the backward, besides what is kept for it. Measured
# (benchmarks/training_memory.py), not derived.
_PASSING = 125


def _transformer_bytes(config: BertConfig | GptConfig, item: int) -> tuple[float, float]:
    """Of one token, all layers: queries, keys, values, context, two sums and two norms of the width, and the inner
    layer before and after its activation; a byte an element that dropout may take. And one input a block, with all of
    one block."""
    dropped = 2 * config.width if config.dropout else 0
    block = item * (8 * config.width + 2 * config.feed_forward_width) + dropped
    passing = _PASSING * item * config.width
    return config.n_layers * block + passing, config.n_layers * item * config.width + block + passing


def _translation_flops(config: TransformerConfig, batch: Batch) -> float:
    """As ``_transformer_flops``, of both sides: the decoder's blocks attend to the source too."""
    width, block = config.width, 4 * config.width**2 + 2 * config.width * config.feed_forward_width
    source = batch.tokens.rows.lengths.double()
    encoder = block * float(source.sum()) + 2 * width * float((source**2).sum())
    if batch.second is None:
        return 6 * config.n_layers * encoder
    target = batch.second.rows.lengths.double()
    own = block * float(target.sum()) + 2 * width * float((target**2).sum())
    cross = 2 * width**2 * float((source + target).sum()) + 2 * width * float((source * target).sum())
    vocabulary = width * config.vocab_size * batch.counts()["translation"]
    return 6 * (config.n_layers * (encoder + own + cross) + vocabulary)


def _translation_bytes(config: TransformerConfig, item: int) -> tuple[float, float]:
    """Of one token, half of them in the encoder's blocks, half in the decoder's, which keep a second attention as well
    and are never recomputed."""
    dropped = 3 * config.width if config.dropout else 0
    block = item * (8 * config.width + 2 * config.feed_forward_width) + dropped
    cross = item * 6 * config.width
    passing = _PASSING * item * config.width / 2
    decoder = config.n_layers * (block + cross) / 2
    return config.n_layers * block / 2 + decoder + passing, config.n_layers * item * config.width + decoder + passing


def _bilm_flops(config: BilmConfig, batch: Batch) -> float:
    """Forward and backward: six operations a weight and token; the filters once for each different word, over all its
    windows. Of a larger vocabulary a published sample is what is predicted from."""
    sides = [batch.tokens] if batch.second is None else [batch.tokens, batch.second]
    n_filters = sum(n for _, n in config.filters)
    windows = sum(size * n * (ROW - size + 1) for size, n in config.filters) * config.character_width
    word = windows + 2 * config.n_highways * n_filters**2 + n_filters * config.width
    layer = 8 * config.width * config.cells + config.width * config.cells
    # A stream has a side for each direction; a row is read by both.
    tokens = sum(side.rows.n_tokens for side in sides) * (1 if batch.second else 2)
    words = sum(side.ids.unique().numel() for side in sides)
    predictions = batch.counts().get("forward", 0) + batch.counts().get("backward", 0)
    vocabulary = config.width * min(config.vocab_size, BilmLMConfig().negatives)
    return 6.0 * (words * word + tokens * config.n_layers * layer + predictions * vocabulary)


def _bilm_bytes(config: BilmConfig, item: int) -> tuple[float, float]:
    """Of one token of one direction, all layers: four gates twice, cell and its tanh, what is projected and clipped.
    And of its word, if every second one is another: the filters at about a dozen places, and the highways. Nothing is
    recomputed."""
    n_filters = sum(n for _, n in config.filters)
    word = (12 + 5 * config.n_highways) * n_filters / 2
    kept = item * (config.n_layers * (13.0 * config.cells + 6 * config.width) + word)
    return kept, kept


def _lstm_flops(config: LstmConfig, batch: Batch) -> float:
    """Forward and backward: six operations a weight and token, and the vocabulary where predicted."""
    layers = config.n_layers * 8 * config.width**2 * batch.tokens.rows.n_tokens
    vocabulary = config.width * config.vocab_size * batch.counts().get("lm", 0)
    return 6.0 * (layers + vocabulary)


def _awd_lstm_flops(config: AwdLstmConfig, batch: Batch) -> float:
    """As ``_lstm_flops``."""
    widths = config.layer_widths
    weights = sum(4 * width * (below + width) for below, width in zip(widths, widths[1:], strict=False))
    vocabulary = config.width * config.vocab_size * batch.counts().get("lm", 0)
    return 6.0 * (weights * batch.tokens.rows.n_tokens + vocabulary)


def _awd_lstm_bytes(config: AwdLstmConfig, item: int) -> tuple[float, float]:
    """As ``_lstm_bytes``, and the mask and the result of dropout below each layer."""
    widths = config.layer_widths
    kept = item * float(sum(7 * width + 3 * below for below, width in zip(widths, widths[1:], strict=False)))
    return kept, kept


def _lstm_bytes(config: LstmConfig, item: int) -> tuple[float, float]:
    """Of one token, all layers: input, four gates, cell, its tanh and output. Nothing is recomputed."""
    kept = config.n_layers * item * 8.0 * config.width
    return kept, kept


def _vectors_flops(config: VectorsConfig, batch: Batch) -> float:
    """The vocabulary where predicted: looking up and adding is next to nothing."""
    return 6.0 * config.width * config.vocab_size * _predictions(batch)


def _vectors_bytes(config: VectorsConfig, item: int) -> tuple[float, float]:
    """Of one token: its vector, that of its context, and their gradients."""
    kept = 4.0 * item * config.width
    return kept, kept


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """One row of the table.

    ``fixed``: configuration fields that make the system what it is. ``instances``: the plans it can be
    trained on, its own first. ``predict``: masked pieces, the next token (and the one before), or a translation.
    ``layout``: of its rows; ``pretraining_layout``: of those in pre-training, where they differ. ``huggingface``: what
    it is to transformers, in whose words its model folder then speaks. ``activation_bytes(config, bytes a number)``:
    what the backward keeps of one token, and what if blocks are recomputed. ``no_gradient``: parameters that its own
    pre-training does not reach (by prefix), with the reason. ``characters``: whether its tokens are words that it reads
    by their characters, so that none is unknown. ``pretraining`` and ``tuning``: its own published settings, as tables
    of a recipe, where they are not BERT's; the rate of ``tuning`` is of the width ``tuned_width``, narrower models get
    more (None: any width gets the same).
    """

    config: type[Any]
    encoder: Callable[[Any], Encoder]
    objective_config: type[Any]
    objective: Callable[[Any, Any], Objective]
    layout: Callable[[Tokenizer], Layout]
    instances: tuple[Literal["pairs", "documents", "streams", "translations"], ...]
    predict: Literal["masked", "next", "both", "translation"]
    flops: Callable[[Any, Batch], float]
    activation_bytes: Callable[[Any, int], tuple[float, float]]
    pretraining_layout: Callable[[Tokenizer], Layout] | None = None
    huggingface: HuggingFace | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    no_gradient: Mapping[str, str] = field(default_factory=dict)
    pretraining: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tuning: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tuned_width: int | None = 768
    characters: bool = False

    def reads(self, tokenizer: Tokenizer) -> Tokenizer:
        """A tokenizer as the system uses it; TokenizerError for one that it cannot use."""
        return opened(tokenizer) if self.characters else tokenizer


_GPT_ADAM = {"kind": "gpt_adam", "epsilon": 1e-8}
# Howard & Ruder 2018, §3.2 and §4.1; decay and clipping as in the released scripts (specification §3).
_ULMFIT_ADAM = {
    "kind": "adamw", "beta1": 0.7, "beta2": 0.99, "epsilon": 1e-8, "decay": 1e-7, "clip_norm": 0.3,
    "schedule": "slanted", "warmup_share": 0.1,
}  # fmt: skip
# allenai/bilm-tf training.py, windows of 20 words: the loss is 20 times the mean, the sum of squares begins with 1, the
# norm is clipped at 10. The same steps as with the mean, 1/400 and 1/2.
_ELMO_ADAGRAD = {
    "kind": "adagrad", "schedule": "constant", "warmup_share": 0.0, "peak_rate": 0.2, "decay": 0.0,
    "epsilon": 0.0, "accumulated": 0.0025, "clip_norm": 0.5,
}  # fmt: skip

SYSTEMS: dict[str, System] = {
    "bert": System(
        config=BertConfig,
        encoder=Bert,
        objective_config=MaskedLMConfig,
        objective=MaskedLM,
        layout=bert_layout,
        instances=("pairs", "documents"),
        predict="masked",
        flops=_transformer_flops,
        activation_bytes=_transformer_bytes,
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
        flops=_transformer_flops,
        activation_bytes=_transformer_bytes,
        huggingface=BERT_LEFT_TO_RIGHT,
        fixed={"causal": True},
        no_gradient={"encoder.pooler.": "only next-sentence prediction trains the pooler"},
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
        flops=_gpt_flops,
        activation_bytes=_transformer_bytes,
        huggingface=GPT,
        # Radford et al. 2018, §4.1: 2,000 updates of warm-up; 1,000,000 in all by Devlin et al. 2018, App. A.4.
        pretraining={"optim": {**_GPT_ADAM, "schedule": "cosine", "peak_rate": 2.5e-4, "warmup_share": 0.002}},
        tuning={
            "optim": {**_GPT_ADAM, "schedule": "gpt_linear", "peak_rate": 6.25e-5, "warmup_share": 0.002},
            "head": {"auxiliary_lm": 0.5, "shared_dropout": True},
        },
    ),
    "lstm": System(
        config=LstmConfig,
        encoder=Lstm,
        objective_config=StreamingLMConfig,
        objective=StreamingLM,
        layout=stream_layout,
        instances=("streams",),
        predict="next",
        flops=_lstm_flops,
        activation_bytes=_lstm_bytes,
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
        flops=_vectors_flops,
        activation_bytes=_vectors_bytes,
        characters=True,
        # Ours: a table of vectors takes, and needs, larger steps than a Transformer.
        pretraining={"optim": {"peak_rate": 3e-3, "decay": 0.0}},
        tuning={"optim": {"peak_rate": 1e-3, "decay": 0.0}},
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
        flops=_awd_lstm_flops,
        activation_bytes=_awd_lstm_bytes,
        pretraining={"optim": _ULMFIT_ADAM | {"peak_rate": 4e-3}, "data": {"length": 70}},
        tuning={
            "optim": _ULMFIT_ADAM | {"peak_rate": 0.01},
            "adapt": {"rate_decay": 1 / 2.6, "unfreeze": "gradual"},
            "head": {"features": {"dropout": 0.4}},
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
        flops=_bilm_flops,
        activation_bytes=_bilm_bytes,
        characters=True,
        pretraining={
            "optim": _ELMO_ADAGRAD,
            "data": {"length": 20},
            "train": {"batch_tokens": 5120},
        },
        # Peters et al. 2018, §3.3 and App. A: the language model stays as it is.
        tuning={
            "optim": {"kind": "adamw", "peak_rate": 1e-3, "decay": 0.0, "epsilon": 1e-8, "clip_norm": 5.0},
            "adapt": {"frozen_groups": -1},
            "head": {"features": {"dropout": 0.5}},
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
        flops=_translation_flops,
        activation_bytes=_translation_bytes,
        # Vaswani et al. 2017, §5.3, of the base model: 4,000 of 100,000 updates of warm-up.
        pretraining={"optim": {
            "kind": "adamw", "decay": 0.0, "beta2": 0.98, "epsilon": 1e-9, "clip_norm": 0.0,
            "schedule": "inverse_sqrt", "peak_rate": 7e-4, "warmup_share": 0.04,
        }},
    ),
}

@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One row of the table of tasks: what a model folder may hold besides a system's own objective.

    ``examples(records, maker, config)`` makes rows and targets of records; ``answers(records, examples, outputs,
    config)`` makes predictions of the outputs of their rows; ``score(records, answers, labels)`` compares them.
    """

    config: type[Any]
    model: Callable[[Encoder, Any], TaskModel]
    examples: Callable[[Any, RowMaker, Any], list[Example]]
    answers: Callable[[Any, Sequence[Example], Sequence[Outputs], Any], list[Any]]
    score: Callable[[Any, Any, Sequence[str]], dict[str, float]]


TASKS: dict[str, Task] = {
    "classify": Task(
        config=ClassifyConfig, model=Classifier,
        examples=classify_examples, answers=classify_answers, score=score_labels,
    ),
    "multilabel": Task(
        config=MultiLabelConfig, model=MultiLabelClassifier,
        examples=multilabel_examples, answers=multilabel_answers, score=score_label_sets,
    ),
    "regress": Task(
        config=RegressConfig, model=Regressor,
        examples=regress_examples, answers=regress_answers, score=score_values,
    ),
    "tag": Task(
        config=TagConfig, model=Tagger,
        examples=tag_examples, answers=tag_answers, score=score_tags,
    ),
    "answer": Task(
        config=AnswerConfig, model=Answerer,
        examples=answer_examples, answers=answer_answers, score=score_answers,
    ),
    "choose": Task(
        config=ChooseConfig, model=Chooser,
        examples=choose_examples, answers=choose_answers, score=score_choices,
    ),
}  # fmt: skip


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
# Source: Radford et al. 2018, §4.1 (base); the others are as wide and deep as BERT's.
_GPT_SIZES = {
    size: {key: value for key, value in _BERT_SIZES[size].items() if key != "feed_forward_width"}
    for size in ("tiny", "mini", "small", "medium", "base")
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
    **{f"transformer-{size}": ("transformer", sizes) for size, sizes in _TRANSFORMER_SIZES.items()},
}


def size_named(name: str) -> tuple[str, dict[str, Any]]:
    """``"bert-mini"`` -> its system's name and configuration fields."""
    if name not in SIZES:
        raise ConfigError(
            f"{name!r} is no model size: known are {', '.join(SIZES)}. A folder is given with a / or . in its path, "
            f"for example ./{name}"
        )
    return SIZES[name]


def looks_like_path(name: str) -> bool:
    """A path contains ``/`` or ``.``; anything else is a name of SIZES."""
    return "/" in name or "." in name
