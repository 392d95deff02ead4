"""THE table: each system's name, parts and peculiarities; and the sizes that have a name.

To add a system, write its modules and add a row; every contract test then runs over it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from firth.convert import hf_bert
from firth.convert.renames import Rename
from firth.data.batch import Batch, Objective
from firth.errors import ConfigError
from firth.models.bert import Bert
from firth.models.bert_config import BertConfig
from firth.models.lstm import Lstm
from firth.models.lstm_config import LstmConfig
from firth.objectives.causal_lm import CausalLM
from firth.objectives.config import CausalLMConfig, MaskedLMConfig, StreamingLMConfig
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.streaming_lm import StreamingLM
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
from firth.text.layouts import Layout, bert_layout, stream_layout
from firth.text.tokenizer import Tokenizer


def _transformer_flops(config: BertConfig, batch: Batch) -> float:
    """Forward and backward: six operations a weight and token, attention, and the vocabulary where predicted."""
    lengths = batch.tokens.rows.lengths.double()
    tokens, squares = float(lengths.sum()), float((lengths**2).sum())
    block = 4 * config.width**2 + 2 * config.width * config.feed_forward_width
    predictions = sum(n for term, n in batch.counts().items() if term in ("mlm", "lm"))
    vocabulary = config.width**2 + config.width * config.vocab_size
    attention = 2 * config.width * squares
    return 6 * (config.n_layers * (block * tokens + attention) + vocabulary * predictions)


# Numbers of the width that a token takes at the highest point of the backward, besides what is kept for it. Measured
# (benchmarks/training_memory.py), not derived.
_PASSING = 125


def _transformer_bytes(config: BertConfig, item: int) -> tuple[float, float]:
    """Of one token, all layers: queries, keys, values, context, two sums and two norms of the width, and the inner
    layer before and after its activation; a byte an element that dropout may take. And one input a block, with all of
    one block."""
    dropped = 2 * config.width if config.dropout else 0
    block = item * (8 * config.width + 2 * config.feed_forward_width) + dropped
    passing = _PASSING * item * config.width
    return config.n_layers * block + passing, config.n_layers * item * config.width + block + passing


def _lstm_flops(config: LstmConfig, batch: Batch) -> float:
    """Forward and backward: six operations a weight and token, and the vocabulary where predicted."""
    layers = config.n_layers * 8 * config.width**2 * batch.tokens.rows.n_tokens
    vocabulary = config.width * config.vocab_size * batch.counts().get("lm", 0)
    return 6.0 * (layers + vocabulary)


def _lstm_bytes(config: LstmConfig, item: int) -> tuple[float, float]:
    """Of one token, all layers: input, four gates, cell, its tanh and output. Nothing is recomputed."""
    kept = config.n_layers * item * 8.0 * config.width
    return kept, kept


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """One row of the table.

    ``fixed``: configuration fields that make the system what it is. ``instances``: the plans it can be
    trained on, its own first. ``predict``: masked pieces or the next token. ``names``: foreign tensor
    names of its model folder, or None where the folder holds ours; ``task_names``: the same for
    fine-tuned models, by task (left-to-right BERT has none: other tools would pool the first token, which
    knows nothing there). ``activation_bytes(config, bytes a number)``: what the backward keeps of one token, and what
    if blocks are recomputed. ``no_gradient``: parameters that its own pre-training does not reach (by prefix), with
    the reason.
    """

    config: type[Any]
    encoder: Callable[[Any], Encoder]
    objective_config: type[Any]
    objective: Callable[[Any, Any], Objective]
    layout: Callable[[Tokenizer], Layout]
    instances: tuple[Literal["pairs", "documents", "streams"], ...]
    predict: Literal["masked", "next"]
    flops: Callable[[Any, Batch], float]
    activation_bytes: Callable[[Any, int], tuple[float, float]]
    names: tuple[Rename, ...] | None = None
    task_names: Mapping[str, tuple[Rename, ...]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    no_gradient: Mapping[str, str] = field(default_factory=dict)


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
        names=hf_bert.NAMES,
        task_names=hf_bert.TASK_NAMES,
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
        names=hf_bert.CAUSAL_NAMES,
        fixed={"causal": True},
        no_gradient={"encoder.pooler.": "only next-sentence prediction trains the pooler"},
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
SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"bert-{size}": ("bert", sizes) for size, sizes in _BERT_SIZES.items()},
    **{f"bert-ltr-{size}": ("bert-ltr", {**sizes, "causal": True}) for size, sizes in _BERT_SIZES.items()},
    "lstm-small": ("lstm", {"width": 256, "n_layers": 1}),
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
