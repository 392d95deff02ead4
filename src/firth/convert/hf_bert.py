"""BERT as transformers names it: configuration keys and tensor names.

Source: specification of checkpoint formats §2. Our queries, keys and values are one matrix: their
three, stacked. Linear weights are (out, in) on both sides.

Folders published by others vary more: names without ``bert.``, ``gamma`` and ``beta``, buffers among the
weights, missing heads and poolers. ``todays_names``, ``find_kind`` and ``absent_parts`` map them to the tables.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from firth.config import from_dict
from firth.convert import renames
from firth.convert.google_bert import RATE_KEYS, SIZE_KEYS
from firth.convert.hf_mapping import Findings, HuggingFace
from firth.convert.renames import Rename, weight_and_bias
from firth.data.batch import Objective
from firth.errors import CheckpointError, ConfigError
from firth.models.config import BertConfig
from firth.objectives.config import CausalLMConfig, MaskedLMConfig
from firth.tasks.config import (
    AnswerConfig,
    ChooseConfig,
    ClassifyConfig,
    MultiLabelConfig,
    RegressConfig,
    TagConfig,
)
from firth.tasks.tag_schemes import respelled, split_tag
from firth.text.tokenizer import Tokenizer

MODEL_TYPE = "bert"

CONFIG_KEYS = {
    **SIZE_KEYS,
    **RATE_KEYS,
    "layer_norm_eps": "norm_epsilon",
    "is_decoder": "causal",
}

# Their names for the activations; new models use "gelu" for the exact form.
ACTIVATION_NAMES = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_python": "gelu",
    "gelu_python_tanh": "gelu_tanh",
    "relu": "relu",
    "tanh": "tanh",
    "linear": "linear",
    "": "linear",
}

_SELF = "bert.encoder.layer.{i}.attention.self."
_LAYER = "bert.encoder.layer.{i}."
_BLOCK = "encoder.blocks.{i}."


ENCODER: tuple[Rename, ...] = (
    ("bert.embeddings.word_embeddings.weight", "encoder.embeddings.pieces.weight"),
    ("bert.embeddings.position_embeddings.weight", "encoder.embeddings.positions.weight"),
    ("bert.embeddings.token_type_embeddings.weight", "encoder.embeddings.segments.weight"),
    *weight_and_bias("bert.embeddings.LayerNorm", "encoder.embeddings.norm"),
    (
        (_SELF + "query.weight", _SELF + "key.weight", _SELF + "value.weight"),
        _BLOCK + "attention.query_key_value.weight",
    ),
    (
        (_SELF + "query.bias", _SELF + "key.bias", _SELF + "value.bias"),
        _BLOCK + "attention.query_key_value.bias",
    ),
    *weight_and_bias(_LAYER + "attention.output.dense", _BLOCK + "attention.output"),
    *weight_and_bias(_LAYER + "attention.output.LayerNorm", _BLOCK + "attention_norm"),
    *weight_and_bias(_LAYER + "intermediate.dense", _BLOCK + "feed_forward"),
    *weight_and_bias(_LAYER + "output.dense", _BLOCK + "feed_forward_output"),
    *weight_and_bias(_LAYER + "output.LayerNorm", _BLOCK + "feed_forward_norm"),
    *weight_and_bias("bert.pooler.dense", "encoder.pooler"),
)


def _vocabulary_head(ours: str) -> tuple[Rename, ...]:
    return (
        *weight_and_bias("cls.predictions.transform.dense", f"{ours}.transform"),
        *weight_and_bias("cls.predictions.transform.LayerNorm", f"{ours}.norm"),
        ("cls.predictions.bias", f"{ours}.bias"),
        # Copies of the tied embedding and of the bias.
        ("cls.predictions.decoder.weight", None),
        ("cls.predictions.decoder.bias", None),
    )


NAMES: tuple[Rename, ...] = (*ENCODER, *_vocabulary_head("mlm"), *weight_and_bias("cls.seq_relationship", "nsp"))
CAUSAL_NAMES: tuple[Rename, ...] = (*ENCODER, *_vocabulary_head("lm"))
# Fine-tuned models whose head is one linear layer on top: the names, and the class that reads them, by task.
_CLASSIFIER = (*ENCODER, *weight_and_bias("classifier", "head"))
TASK_NAMES: dict[str, tuple[Rename, ...]] = {
    "classify": _CLASSIFIER,
    "multilabel": _CLASSIFIER,
    "regress": _CLASSIFIER,
    "tag": _CLASSIFIER,
    "choose": _CLASSIFIER,
    "answer": (*ENCODER, *weight_and_bias("qa_outputs", "head")),
}
ARCHITECTURES = {
    "classify": "BertForSequenceClassification",
    "multilabel": "BertForSequenceClassification",
    "regress": "BertForSequenceClassification",
    "tag": "BertForTokenClassification",
    "choose": "BertForMultipleChoice",
    "answer": "BertForQuestionAnswering",
}
_PROBLEM_TYPES = {
    "classify": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regress": "regression",
}


def architecture(task: str, objective: Objective, untrained: Sequence[str]) -> str:
    """Return the transformers class that reads all trained parts of the folder."""
    if "mlm" in untrained or "lm" in untrained:
        return "BertModel"
    if task in ARCHITECTURES:
        return ARCHITECTURES[task]
    if objective.encoder.config.causal:
        return "BertLMHeadModel"
    return "BertForPreTraining" if getattr(objective, "nsp", None) is not None else "BertForMaskedLM"


def task_to_hf(task: str, options: Any) -> dict[str, Any]:
    """Keys of ``config.json`` for a fine-tuned model, in addition to its sizes."""
    about: dict[str, Any] = {}
    if task in _PROBLEM_TYPES:
        about["problem_type"] = _PROBLEM_TYPES[task]
    if task == "regress":
        about["num_labels"] = 1
    if labels := getattr(options, "labels", ()):
        about["id2label"] = {str(i): label for i, label in enumerate(labels)}
        about["label2id"] = {label: i for i, label in enumerate(labels)}
    # Their question-answering head has no dropout.
    if task in ARCHITECTURES and task != "answer":
        about["classifier_dropout"] = options.network.dropout
    return about


def config_to_hf(config: BertConfig, architecture: str, pad_id: int) -> dict[str, Any]:
    """Build ``config.json`` of a model folder. Their code never trains the embedding of ``pad_id``."""
    theirs: dict[str, Any] = {key: getattr(config, ours) for key, ours in CONFIG_KEYS.items()}
    (theirs["hidden_act"], *_) = (name for name, ours in ACTIVATION_NAMES.items() if ours == config.activation)
    return {
        "model_type": MODEL_TYPE,
        "architectures": [architecture],
        **theirs,
        "pad_token_id": pad_id,
        "dtype": "float32",
    }


def config_from_hf(theirs: Mapping[str, Any], where: str) -> BertConfig:
    """Convert ``config.json`` to our configuration; keys that do not affect the computation are ignored."""
    if theirs.get("model_type", MODEL_TYPE) != MODEL_TYPE:
        raise CheckpointError(f"{where}: model_type {theirs['model_type']!r}: this Firth reads {MODEL_TYPE!r} alone")
    for key, usual in _USUAL.items():
        if theirs.get(key) not in (None, usual, False, {}):
            raise CheckpointError(f"{where}: {key} {theirs[key]!r} is not BERT's")
    name = str(theirs.get("hidden_act", "gelu")).lower()
    if name not in ACTIVATION_NAMES:
        raise CheckpointError(f"{where}: hidden_act {name!r}: expected one of {', '.join(ACTIVATION_NAMES)}")
    values = {ours: theirs[key] for key, ours in CONFIG_KEYS.items() if key in theirs}
    if "vocab_size" not in values:
        raise CheckpointError(f"{where}: vocab_size is missing")
    return from_dict(BertConfig, {**values, "activation": ACTIVATION_NAMES[name]}, where)


# Keys that change the computation, and their values in BERT; custom code ("auto_map") may do anything.
_USUAL: dict[str, Any] = {
    "position_embedding_type": "absolute",
    "add_cross_attention": False,
    "pruned_heads": {},
    "auto_map": {},
}
_SIZES = (
    ("vocab_size", "bert.embeddings.word_embeddings.weight", 0),
    ("hidden_size", "bert.embeddings.word_embeddings.weight", 1),
    ("max_position_embeddings", "bert.embeddings.position_embeddings.weight", 0),
    ("type_vocab_size", "bert.embeddings.token_type_embeddings.weight", 0),
    ("intermediate_size", "bert.encoder.layer.0.intermediate.dense.weight", 0),
)


def check_sizes(config: BertConfig, state: Mapping[str, Tensor], where: str) -> None:
    """Raise CheckpointError, with the keys of ``config.json``, if its sizes differ from those of the weights."""
    renames.check_sizes(
        config, state, where, keys=CONFIG_KEYS, sizes=_SIZES, numbered=_NUMBERED, layers="num_hidden_layers"
    )


_NUMBERED = re.compile(r"bert\.encoder\.layer\.([0-9]+)\.")
_BARE = re.compile(r"(embeddings|encoder|pooler)\.")
_OLD_NORM = {"gamma": "weight", "beta": "bias"}
# Constants that follow from the sizes, which some versions saved.
_BUFFERS = ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids")
_DECODER = "cls.predictions.decoder."
_BIAS = "cls.predictions.bias"


def todays_names(state: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """Convert published weights to the names of the tables; buffers that follow from the sizes are left out."""
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        today = f"bert.{name}" if _BARE.match(name) else name
        stem, _, last = today.rpartition(".")
        if stem.endswith("LayerNorm") and last in _OLD_NORM:
            today = f"{stem}.{_OLD_NORM[last]}"
        if today in _BUFFERS:
            continue
        if today in found:
            raise CheckpointError(f"{where} has {today} twice, also as {name}")
        found[today] = tensor
    if _BIAS not in found and _DECODER + "bias" in found:
        found[_BIAS] = found[_DECODER + "bias"]
    return found


def drop_own_decoder(state: dict[str, Tensor]) -> bool:
    """Remove the masked-LM head from ``state`` if its output matrix is not the embedding; return whether it was.

    Our output matrix is always the embedding: with it, that head would give different results.
    """
    pairs = ((_DECODER + "weight", "bert.embeddings.word_embeddings.weight"), (_DECODER + "bias", _BIAS))
    own = any(a in state and b in state and not torch.equal(state[a], state[b]) for a, b in pairs)
    if own:
        for name in [name for name in state if name.startswith("cls.predictions.")]:
            del state[name]
    return own


# Our parts that a published model may lack, which are then randomly initialised, and their tensors' prefixes.
OPTIONAL_PARTS = {"encoder.pooler": "bert.pooler.", "mlm": "cls.predictions.", "lm": "cls.predictions."}


def absent_parts(names: Collection[str], ours: Collection[str]) -> tuple[str, ...]:
    """Return the parts among ``ours`` (our tensors' names) that a published model lacks entirely."""
    return tuple(
        part
        for part, theirs in OPTIONAL_PARTS.items()
        if any(name.startswith(f"{part}.") for name in ours) and not any(name.startswith(theirs) for name in names)
    )


# The classes of fine-tuned models; ``problem_type`` tells the task of the first.
_TASK_OF = {
    "BertForSequenceClassification": "classify",
    "BertForTokenClassification": "tag",
    "BertForMultipleChoice": "choose",
    "BertForQuestionAnswering": "answer",
}
_CONFIGS: dict[str, type[Any]] = {
    "classify": ClassifyConfig,
    "multilabel": MultiLabelConfig,
    "regress": RegressConfig,
    "tag": TagConfig,
    "choose": ChooseConfig,
}


def find_kind(theirs: Mapping[str, Any], state: Mapping[str, Tensor], where: str) -> tuple[str, str, Any]:
    """Determine the system, task and options of a published model from its weights and the class in ``config.json``.

    A pre-training head identifies itself; a classifier may be any of several tasks, so the class decides.
    """
    named = theirs.get("architectures")
    classes = [name for name in (named if isinstance(named, list) else [named]) if isinstance(name, str)]
    task = next((_TASK_OF[name] for name in classes if name in _TASK_OF), "pretraining")
    heads = [head for head in ("classifier", "qa_outputs") if f"{head}.weight" in state]
    if task == "pretraining" and heads == ["qa_outputs"]:
        task = "answer"
    if task == "pretraining" and heads:
        raise CheckpointError(
            f"{where}: architectures {classes}: the weights have {heads[0]}.weight, so expected one of "
            f"{', '.join(_TASK_OF)}"
        )
    causal = theirs.get("is_decoder") is True
    if task == "pretraining":
        if causal:
            return "bert-ltr", task, CausalLMConfig()
        return "bert", task, MaskedLMConfig(next_sentence=any(name.startswith("cls.seq_") for name in state))
    if causal:
        raise CheckpointError(f"{where}: a {classes[0]} that reads left to right would pool a token that knows nothing")
    return "bert", *_task_options(task, theirs, state, where)


def _task_options(task: str, theirs: Mapping[str, Any], state: Mapping[str, Tensor], where: str) -> tuple[str, Any]:
    """Return the task (for a classifier, also which kind) and its options."""
    if task == "answer":
        return task, AnswerConfig()
    head = state.get("classifier.weight")
    if head is None or head.ndim != 2:
        raise CheckpointError(f"{where} says {task}, but the weights have no classifier.weight of two axes")
    n_outputs = head.shape[0]
    if task == "classify":
        task = _kind_of_classifier(theirs.get("problem_type"), n_outputs, where)
    rate = theirs.get("classifier_dropout")
    rate = theirs.get("hidden_dropout_prob", 0.1) if rate is None else rate
    options: dict[str, Any] = {"network": {"dropout": rate}}
    if task in ("classify", "multilabel", "tag"):
        options["labels"] = _labels(theirs.get("id2label"), n_outputs, where)
    if task == "tag":
        spelled = respelled(options["labels"])
        options["labels"] = [spelled.get(label, label) for label in options["labels"]]
        options["scheme"] = _scheme(options["labels"])
    try:
        return task, from_dict(_CONFIGS[task], options, where)
    except ConfigError as error:
        raise CheckpointError(f"{error} (read as a model for {task})") from None


def _kind_of_classifier(problem_type: Any, n_outputs: int, where: str) -> str:
    """Return the task that a text classifier was trained for. One output without ``problem_type`` is a regression."""
    if problem_type is None:
        return "classify" if n_outputs > 1 else "regress"
    for task, name in _PROBLEM_TYPES.items():
        if name == problem_type:
            return task
    known = ", ".join(_PROBLEM_TYPES.values())
    raise CheckpointError(f"{where}: problem_type {problem_type!r}: expected one of {known}")


def _labels(named: Any, n_outputs: int, where: str) -> list[str]:
    """Return the labels in the order of the outputs; without names, those that transformers would show."""
    if named is None:
        return [f"LABEL_{i}" for i in range(n_outputs)]
    numbers = [str(i) for i in range(n_outputs)]
    if not isinstance(named, dict) or sorted(named) != sorted(numbers):
        raise CheckpointError(f"{where}: id2label: expected the names of {n_outputs} labels, 0 to {n_outputs - 1}")
    return [str(named[i]) for i in numbers]


def _scheme(labels: Collection[str]) -> str:
    """Return the scheme of a tagger's labels, as far as their names show it."""
    prefixes = {split_tag(label)[0] for label in labels}
    if "" in prefixes or "B" not in prefixes:
        return "plain"
    return "BIOES" if prefixes & {"E", "S"} else "BIO"


def _config_to(config: BertConfig, architecture: str, tokenizer: Tokenizer) -> dict[str, Any]:
    return config_to_hf(config, architecture, tokenizer.pad_id)


def _todays_names(state: Mapping[str, Tensor], where: str) -> tuple[dict[str, Tensor], Findings]:
    today = todays_names(state, where)
    if drop_own_decoder(today):
        return today, [("left out", "cls.predictions: its output matrix is not the embedding, as it is here")]
    return today, []


BERT = HuggingFace(
    model_type=MODEL_TYPE,
    names=NAMES,
    task_names=TASK_NAMES,
    config_to=_config_to,
    task_to=task_to_hf,
    config_from=config_from_hf,
    architecture=architecture,
    todays_names=_todays_names,
    check_sizes=check_sizes,
    find_kind=find_kind,
    absent_parts=absent_parts,
)
# Other tools would pool the first token of a fine-tuned model, which has seen no other token.
BERT_LEFT_TO_RIGHT = replace(BERT, names=CAUSAL_NAMES, task_names={})
