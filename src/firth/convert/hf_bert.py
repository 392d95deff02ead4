"""BERT as transformers names it: configuration keys and tensor names.

Source: specification of checkpoint formats §2. Our queries, keys and values are one matrix; theirs
are three, laid below one another. Linear weights are (out, in) on both sides.
"""

from typing import Any

from firth.convert.renames import Rename
from firth.errors import CheckpointError
from firth.models.bert_config import BertConfig

MODEL_TYPE = "bert"

CONFIG_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "feed_forward_width",
    "max_position_embeddings": "max_positions",
    "type_vocab_size": "n_segments",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "initializer_range": "init_range",
    "layer_norm_eps": "norm_epsilon",
    "is_decoder": "causal",
}

# Their name of each activation; new models say "gelu" for the exact form.
ACTIVATION_NAMES = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
    "tanh": "tanh",
    "linear": "linear",
    "": "linear",
}

_SELF = "bert.encoder.layer.{i}.attention.self."
_LAYER = "bert.encoder.layer.{i}."
_BLOCK = "encoder.blocks.{i}."


def _both(theirs: str, ours: str) -> tuple[Rename, Rename]:
    return (f"{theirs}.weight", f"{ours}.weight"), (f"{theirs}.bias", f"{ours}.bias")


ENCODER: tuple[Rename, ...] = (
    ("bert.embeddings.word_embeddings.weight", "encoder.embeddings.pieces.weight"),
    ("bert.embeddings.position_embeddings.weight", "encoder.embeddings.positions.weight"),
    ("bert.embeddings.token_type_embeddings.weight", "encoder.embeddings.segments.weight"),
    *_both("bert.embeddings.LayerNorm", "encoder.embeddings.norm"),
    (
        (_SELF + "query.weight", _SELF + "key.weight", _SELF + "value.weight"),
        _BLOCK + "attention.query_key_value.weight",
    ),
    (
        (_SELF + "query.bias", _SELF + "key.bias", _SELF + "value.bias"),
        _BLOCK + "attention.query_key_value.bias",
    ),
    *_both(_LAYER + "attention.output.dense", _BLOCK + "attention.output"),
    *_both(_LAYER + "attention.output.LayerNorm", _BLOCK + "attention_norm"),
    *_both(_LAYER + "intermediate.dense", _BLOCK + "feed_forward"),
    *_both(_LAYER + "output.dense", _BLOCK + "feed_forward_output"),
    *_both(_LAYER + "output.LayerNorm", _BLOCK + "feed_forward_norm"),
    *_both("bert.pooler.dense", "encoder.pooler"),
)


def _vocabulary_head(ours: str) -> tuple[Rename, ...]:
    return (
        *_both("cls.predictions.transform.dense", f"{ours}.transform"),
        *_both("cls.predictions.transform.LayerNorm", f"{ours}.norm"),
        ("cls.predictions.bias", f"{ours}.bias"),
        # Repeats of the tied embedding and of the bias.
        ("cls.predictions.decoder.weight", None),
        ("cls.predictions.decoder.bias", None),
    )


NAMES: tuple[Rename, ...] = (*ENCODER, *_vocabulary_head("mlm"), *_both("cls.seq_relationship", "nsp"))
CAUSAL_NAMES: tuple[Rename, ...] = (*ENCODER, *_vocabulary_head("lm"))
# Fine-tuned models whose head is one linear layer on the top: by task, the names and the class that reads them.
_CLASSIFIER = (*ENCODER, *_both("classifier", "head"))
TASK_NAMES: dict[str, tuple[Rename, ...]] = {
    "classify": _CLASSIFIER,
    "multilabel": _CLASSIFIER,
    "regress": _CLASSIFIER,
    "tag": _CLASSIFIER,
    "choose": _CLASSIFIER,
    "answer": (*ENCODER, *_both("qa_outputs", "head")),
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


def task_to_hf(task: str, options: Any) -> dict[str, Any]:
    """What ``config.json`` says of a fine-tuned model besides its sizes."""
    about: dict[str, Any] = {}
    if task in _PROBLEM_TYPES:
        about["problem_type"] = _PROBLEM_TYPES[task]
    if task == "regress":
        about["num_labels"] = 1
    if labels := getattr(options, "labels", ()):
        about["id2label"] = {str(i): label for i, label in enumerate(labels)}
        about["label2id"] = {label: i for i, label in enumerate(labels)}
    # Their head for answers has none.
    if task in ARCHITECTURES and task != "answer":
        about["classifier_dropout"] = options.features.dropout
    return about


def config_to_hf(config: BertConfig, architecture: str, pad_id: int) -> dict[str, Any]:
    """``config.json`` of a model folder. Theirs never trains the embedding of ``pad_id``."""
    theirs: dict[str, Any] = {key: getattr(config, ours) for key, ours in CONFIG_KEYS.items()}
    (theirs["hidden_act"], *_) = (
        name for name, ours in ACTIVATION_NAMES.items() if ours == config.activation
    )
    return {
        "model_type": MODEL_TYPE,
        "architectures": [architecture],
        **theirs,
        "pad_token_id": pad_id,
        "dtype": "float32",
    }


def config_from_hf(theirs: dict[str, Any], where: str) -> BertConfig:
    """Our configuration from ``config.json``; keys that say nothing about the computation are ignored."""
    name = str(theirs.get("hidden_act", "gelu")).lower()
    if name not in ACTIVATION_NAMES:
        raise CheckpointError(f"{where}: hidden_act {name!r}: expected one of {', '.join(ACTIVATION_NAMES)}")
    if theirs.get("position_embedding_type", "absolute") != "absolute":
        raise CheckpointError(
            f"{where}: position_embedding_type {theirs['position_embedding_type']!r} is not BERT's"
        )
    values = {ours: theirs[key] for key, ours in CONFIG_KEYS.items() if key in theirs}
    if "vocab_size" not in values:
        raise CheckpointError(f"{where}: vocab_size is missing")
    return BertConfig(**values, activation=ACTIVATION_NAMES[name])  # type: ignore[arg-type]  # names of its Literal
