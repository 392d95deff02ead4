"""BERT as google-research/bert writes it: configuration keys and variable names.

Source: specification of checkpoint formats §1.3, of BERT §1. Our queries, keys and values are one matrix; theirs are
three. Every ``…/kernel`` is (in, out) in the file and is transposed here; the ``output_weights`` of heads
are (out, in) on both sides.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from firth.convert import renames
from firth.convert.renames import Rename, expand
from firth.errors import CheckpointError, ConfigError
from firth.models.config import BertConfig

# Every published configuration has these. The code's own default for type_vocab_size is 16, not the published 2.
SIZE_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "feed_forward_width",
    "max_position_embeddings": "max_positions",
    "type_vocab_size": "n_segments",
}
RATE_KEYS = {
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "initializer_range": "init_range",
}
ACTIVATION_NAMES = {"gelu": "gelu", "relu": "relu", "tanh": "tanh", "linear": "linear", "": "linear"}
# Not in the file: the default of the LayerNorm in their code.
NORM_EPSILON = 1e-12

_SELF = "bert/encoder/layer_{i}/attention/self/"
_LAYER = "bert/encoder/layer_{i}/"
_BLOCK = "encoder.blocks.{i}."


def _both(theirs: str, ours: str) -> tuple[Rename, Rename]:
    return (f"{theirs}/kernel", f"{ours}.weight"), (f"{theirs}/bias", f"{ours}.bias")


def _norm(theirs: str, ours: str) -> tuple[Rename, Rename]:
    return (f"{theirs}/LayerNorm/gamma", f"{ours}.weight"), (f"{theirs}/LayerNorm/beta", f"{ours}.bias")


def _head(theirs: str, ours: str) -> tuple[Rename, Rename]:
    return (f"{theirs}output_weights", f"{ours}.weight"), (f"{theirs}output_bias", f"{ours}.bias")


ENCODER: tuple[Rename, ...] = (
    ("bert/embeddings/word_embeddings", "encoder.embeddings.pieces.weight"),
    ("bert/embeddings/position_embeddings", "encoder.embeddings.positions.weight"),
    ("bert/embeddings/token_type_embeddings", "encoder.embeddings.segments.weight"),
    *_norm("bert/embeddings", "encoder.embeddings.norm"),
    (
        (_SELF + "query/kernel", _SELF + "key/kernel", _SELF + "value/kernel"),
        _BLOCK + "attention.query_key_value.weight",
    ),
    (
        (_SELF + "query/bias", _SELF + "key/bias", _SELF + "value/bias"),
        _BLOCK + "attention.query_key_value.bias",
    ),
    *_both(_LAYER + "attention/output/dense", _BLOCK + "attention.output"),
    *_norm(_LAYER + "attention/output", _BLOCK + "attention_norm"),
    *_both(_LAYER + "intermediate/dense", _BLOCK + "feed_forward"),
    *_both(_LAYER + "output/dense", _BLOCK + "feed_forward_output"),
    *_norm(_LAYER + "output", _BLOCK + "feed_forward_norm"),
    *_both("bert/pooler/dense", "encoder.pooler"),
)
# Keyed by the result of ``find_task``. "encoder": the checkpoint has no head, so heads are randomly initialised.
BARE = "encoder"
TASK_NAMES: dict[str, tuple[Rename, ...]] = {
    BARE: ENCODER,
    "pretraining": (
        *ENCODER,
        *_both("cls/predictions/transform/dense", "mlm.transform"),
        *_norm("cls/predictions/transform", "mlm.norm"),
        ("cls/predictions/output_bias", "mlm.bias"),
        *_head("cls/seq_relationship/", "nsp"),
    ),
    "classify": (*ENCODER, *_head("", "head")),
    "answer": (*ENCODER, *_head("cls/squad/", "head")),
}


def is_weight(name: str) -> bool:
    """Whether a variable is part of the model: the optimizer's moments and the step counter are not."""
    return name != "global_step" and not name.endswith(("/adam_m", "/adam_v"))


def find_task(names: Iterable[str], where: str) -> str:
    """Return the key of TASK_NAMES that matches the heads among ``names``."""
    found = set(names)
    if "bert/embeddings/word_embeddings" not in found:
        raise CheckpointError(
            f"{where} is no checkpoint of google-research/bert: it lacks bert/embeddings/word_embeddings"
        )
    if any(name.startswith(("cls/predictions/", "cls/seq_relationship/")) for name in found):
        return "pretraining"
    if "cls/squad/output_weights" in found:
        return "answer"
    return "classify" if "output_weights" in found else BARE


def has_next_sentence(names: Iterable[str]) -> bool:
    """Whether a pre-training checkpoint has the head for next-sentence prediction."""
    return "cls/seq_relationship/output_weights" in set(names)


_SIZES = (
    ("vocab_size", "bert/embeddings/word_embeddings", 0),
    ("hidden_size", "bert/embeddings/word_embeddings", 1),
    ("max_position_embeddings", "bert/embeddings/position_embeddings", 0),
    ("type_vocab_size", "bert/embeddings/token_type_embeddings", 0),
    ("intermediate_size", "bert/encoder/layer_0/intermediate/dense/kernel", 1),
)
_NUMBERED = re.compile(r"bert/encoder/layer_([0-9]+)/")


def check_sizes(config: BertConfig, state: Mapping[str, np.ndarray], where: str) -> None:
    """Raise CheckpointError, with the keys of ``bert_config.json``, if its sizes differ from those of the weights."""
    renames.check_sizes(
        config, state, where, keys=SIZE_KEYS, sizes=_SIZES, numbered=_NUMBERED, layers="num_hidden_layers"
    )


def config_from_google(
    theirs: Mapping[str, Any], where: str, gelu: Literal["gelu", "gelu_tanh"] = "gelu"
) -> BertConfig:
    """Convert ``bert_config.json`` to our configuration; keys that do not affect the computation are ignored.

    ``gelu``: what their "gelu" means. Their first release computed the exact form and their last the tanh
    approximation, and no file says which one it was trained with. Nearly everyone has since used these weights with the
    exact form, so it makes results comparable with published ones and with other people's fine-tuned copies.
    """
    if missing := [key for key in SIZE_KEYS if key not in theirs]:
        raise CheckpointError(f"{where} lacks {', '.join(missing)}: it is not the bert_config.json of a BERT")
    values: dict[str, Any] = {}
    for key, ours in (SIZE_KEYS | RATE_KEYS).items():
        if key in theirs:
            value = values[ours] = theirs[key]
            if key in SIZE_KEYS and not (type(value) is int and value > 0):
                raise CheckpointError(f"{where}: {key} = {value!r}: expected a whole number of at least 1")
            if key in RATE_KEYS and not (type(value) in (int, float) and 0 <= value < 1):
                raise CheckpointError(f"{where}: {key} = {value!r}: expected a number from 0 to 1")
    name = theirs.get("hidden_act", "gelu")
    activation = ACTIVATION_NAMES.get("" if name is None else str(name).lower())
    if activation is None:
        names = ", ".join(filter(None, ACTIVATION_NAMES))
        raise CheckpointError(f"{where}: hidden_act {name!r}: expected one of {names}")
    values["activation"] = gelu if activation == "gelu" else activation
    try:
        return BertConfig(**values, norm_epsilon=NORM_EPSILON)
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from None


def config_to_google(config: BertConfig) -> dict[str, Any]:
    """Build ``bert_config.json`` for a model that their code can compute; both forms of gelu are "gelu" there."""
    if config.causal or config.norm_epsilon != NORM_EPSILON:
        what = "reads left to right" if config.causal else f"has norm_epsilon={config.norm_epsilon}"
        raise CheckpointError(f"the model {what}, which google-research/bert cannot compute: keep it in a model folder")
    sizes = {key: getattr(config, ours) for key, ours in (SIZE_KEYS | RATE_KEYS).items()}
    return {"hidden_act": config.activation.removesuffix("_tanh"), **sizes}


def to_ours(
    state: Mapping[str, np.ndarray], task: str, expected: Mapping[str, Tensor], n_layers: int, where: str
) -> dict[str, Tensor]:
    """Convert their variables to float32 tensors under our names, shaped as ``expected``; strict in both directions.

    ``task``: a key of TASK_NAMES. For a bare encoder only the encoder's tensors are expected and returned. Variables
    that are not weights (``is_weight``) are left out. CheckpointError names what does not fit.
    """
    rows = expand(TASK_NAMES[task], n_layers)
    if task == BARE:
        expected = {name: like for name, like in expected.items() if name.startswith("encoder.")}
    for name, like in renames.to_theirs(expected, rows).items():
        shape = tuple(like.shape)[::-1] if _is_turned(name) else tuple(like.shape)
        if name in state and state[name].shape != shape:
            raise CheckpointError(f"{where}: {name} has shape {state[name].shape}, expected {shape}")
    weights = {name: _tensor(name, array, where) for name, array in state.items() if is_weight(name)}
    return renames.to_ours(weights, rows, expected, where)


def to_theirs(state: Mapping[str, Tensor], task: str, n_layers: int) -> dict[str, np.ndarray]:
    """Convert our state to float32 arrays under their names; ``task`` is a key of TASK_NAMES."""
    theirs = renames.to_theirs(state, expand(TASK_NAMES[task], n_layers))
    arrays = {name: tensor.detach().float().cpu().numpy() for name, tensor in theirs.items()}
    return {name: array.T if _is_turned(name) else array for name, array in arrays.items()}


def _is_turned(name: str) -> bool:
    return name.endswith("/kernel")


def _tensor(name: str, array: np.ndarray, where: str) -> Tensor:
    if array.dtype.kind != "f":
        raise CheckpointError(f"{where}: {name} holds {array.dtype}, expected floating-point numbers")
    return torch.from_numpy(np.array(array.T if _is_turned(name) else array, np.float32, order="C"))
