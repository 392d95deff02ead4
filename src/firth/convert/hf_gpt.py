"""OpenAI GPT as transformers names it: configuration keys and tensor names.

Source: specification of checkpoint formats §3. Their affine maps are convolutions of width 1, whose matrices are
(in, out); queries, keys and values are one matrix on both sides. None of their heads for fine-tuned models equals
ours: such folders use our own names.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from firth.config import from_dict
from firth.convert import renames
from firth.convert.hf_mapping import Findings, HuggingFace
from firth.convert.renames import Rename, Turned, weight_and_bias
from firth.data.batch import Objective
from firth.errors import CheckpointError
from firth.models.config import GptConfig
from firth.objectives.config import TiedLMConfig
from firth.text.tokenizer import Tokenizer

MODEL_TYPE = "openai-gpt"

CONFIG_KEYS = {
    "vocab_size": "vocab_size",
    "n_embd": "width",
    "n_layer": "n_layers",
    "n_head": "n_heads",
    "n_positions": "max_positions",
    "resid_pdrop": "dropout",
    "attn_pdrop": "attention_dropout",
    "embd_pdrop": "embedding_dropout",
    "initializer_range": "init_range",
    "layer_norm_epsilon": "norm_epsilon",
}

_LAYER = "transformer.h.{i}."
_BLOCK = "encoder.blocks.{i}."


def _affine(theirs: str, ours: str) -> tuple[Rename, Rename]:
    return (Turned(f"{theirs}.weight"), f"{ours}.weight"), (f"{theirs}.bias", f"{ours}.bias")


NAMES: tuple[Rename, ...] = (
    ("transformer.tokens_embed.weight", "encoder.embeddings.pieces.weight"),
    ("transformer.positions_embed.weight", "encoder.embeddings.positions.weight"),
    *_affine(_LAYER + "attn.c_attn", _BLOCK + "attention.query_key_value"),
    *_affine(_LAYER + "attn.c_proj", _BLOCK + "attention.output"),
    *weight_and_bias(_LAYER + "ln_1", _BLOCK + "attention_norm"),
    *_affine(_LAYER + "mlp.c_fc", _BLOCK + "feed_forward"),
    *_affine(_LAYER + "mlp.c_proj", _BLOCK + "feed_forward_output"),
    *weight_and_bias(_LAYER + "ln_2", _BLOCK + "feed_forward_norm"),
    # A copy of the tied embedding.
    ("lm_head.weight", None),
)


def config_to_hf(config: GptConfig, architecture: str, tokenizer: Tokenizer) -> dict[str, Any]:
    """Build ``config.json`` of a model folder."""
    theirs: dict[str, Any] = {key: getattr(config, ours) for key, ours in CONFIG_KEYS.items()}
    return {
        "model_type": MODEL_TYPE,
        "architectures": [architecture],
        **theirs,
        # Their "gelu" is the tanh form.
        "afn": "gelu",
        "n_ctx": config.max_positions,
        "dtype": "float32",
    }


def config_from_hf(theirs: Mapping[str, Any], where: str) -> GptConfig:
    """Convert ``config.json`` to our configuration; keys that do not affect the computation are ignored."""
    if theirs.get("model_type") != MODEL_TYPE:
        raise CheckpointError(f"{where}: model_type {theirs.get('model_type')!r}: expected {MODEL_TYPE!r}")
    for key, usual in _USUAL.items():
        if theirs.get(key, usual[0]) not in usual:
            raise CheckpointError(f"{where}: {key} {theirs[key]!r} is not GPT's: expected {usual[0]!r}")
    values = {ours: theirs[key] for key, ours in CONFIG_KEYS.items() if key in theirs}
    if "vocab_size" not in values:
        raise CheckpointError(f"{where}: vocab_size is missing")
    return from_dict(GptConfig, values, where)


# Keys that change the computation, and their values in GPT; custom code ("auto_map") may do anything.
_USUAL: dict[str, tuple[Any, ...]] = {
    "afn": ("gelu", "gelu_new"),
    "tie_word_embeddings": (True, None),
    "auto_map": ({}, None),
}


def architecture(task: str, objective: Objective, untrained: Sequence[str]) -> str:
    """Return the transformers class that reads all trained parts of the folder."""
    return "OpenAIGPTLMHeadModel"


def task_to_hf(task: str, options: Any) -> dict[str, Any]:
    """Keys of ``config.json`` for a fine-tuned model, in addition to its sizes: none, as they have no such head."""
    return {}


_BARE = re.compile(r"(tokens_embed|positions_embed|h)\.")
_NUMBERED = re.compile(r"transformer\.h\.([0-9]+)\.")
# Constants that follow from the sizes, which some versions saved: the causal mask, and the positions 0, 1, 2 …
_BUFFER = re.compile(r"transformer\.(h\.[0-9]+\.attn\.bias|position_ids)")
_CHOICE = "multiple_choice_head."


def todays_names(state: Mapping[str, Tensor], where: str) -> tuple[dict[str, Tensor], Findings]:
    """Convert published weights to the names of the table; buffers that follow from the sizes are left out.

    CheckpointError for an output matrix that is not the embedding, as it always is here.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        today = f"transformer.{name}" if _BARE.match(name) or name == "position_ids" else name
        if _BUFFER.fullmatch(today):
            continue
        if today in found:
            raise CheckpointError(f"{where} has {today} twice, also as {name}")
        found[today] = tensor
    tied, embedding = found.get("lm_head.weight"), found.get("transformer.tokens_embed.weight")
    if tied is not None and embedding is None:  # stored once, under this name
        embedding = found["transformer.tokens_embed.weight"] = tied
    if tied is not None and embedding is not None and not torch.equal(tied, embedding):
        raise CheckpointError(f"{where}: lm_head.weight is not tokens_embed.weight: no GPT has another output matrix")
    facts: Findings = []
    if any(name.startswith(_CHOICE) for name in found):
        facts = [("left out", "multiple_choice_head: the language model is read, the head for choices is not")]
    return {name: tensor for name, tensor in found.items() if not name.startswith(_CHOICE)}, facts


_SIZES = (
    ("vocab_size", "transformer.tokens_embed.weight", 0),
    ("n_embd", "transformer.tokens_embed.weight", 1),
    ("n_positions", "transformer.positions_embed.weight", 0),
)


def check_sizes(config: GptConfig, state: Mapping[str, Tensor], where: str) -> None:
    """Raise CheckpointError, with the keys of ``config.json``, if its sizes differ from those of the weights."""
    renames.check_sizes(config, state, where, keys=CONFIG_KEYS, sizes=_SIZES, numbered=_NUMBERED, layers="n_layer")


def find_kind(theirs: Mapping[str, Any], state: Mapping[str, Tensor], where: str) -> tuple[str, str, Any]:
    """Return the system, task and options of a published model: a language model, the only kind that is read."""
    if "score.weight" in state:
        raise CheckpointError(
            f"{where}: architectures {theirs.get('architectures')}: a classifier of theirs (score.weight) is not read; "
            "take the pre-trained model and fine-tune it here"
        )
    return "gpt", "pretraining", TiedLMConfig()


def absent_parts(names: Collection[str], ours: Collection[str]) -> tuple[str, ...]:
    """Nothing may be missing: the output matrix is the embedding."""
    return ()


GPT = HuggingFace(
    model_type=MODEL_TYPE,
    names=NAMES,
    config_to=config_to_hf,
    task_to=task_to_hf,
    config_from=config_from_hf,
    architecture=architecture,
    todays_names=todays_names,
    check_sizes=check_sizes,
    find_kind=find_kind,
    absent_parts=absent_parts,
)
