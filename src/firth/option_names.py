"""Names of options in other tools and in earlier versions of this one.

Other tools' names are for error messages; those of earlier versions also for files that they wrote.
"""

from collections.abc import Mapping
from typing import Any

# Another tool's name -> the name here. Used only in error messages.
_FOREIGN = {
    "adam_beta1": "optim.beta1",
    "adam_beta2": "optim.beta2",
    "adam_epsilon": "optim.epsilon",
    "bf16": "train.precision",
    "fp16": "train.precision",
    "learning_rate": "optim.learning_rate",
    "lr": "optim.learning_rate",
    "max_grad_norm": "optim.clip_norm",
    "output_dir": "--out",
    "warmup_proportion": "optim.warmup_share",
    "warmup_ratio": "optim.warmup_share",
    "warmup_steps": "optim.warmup_share",
    "weight_decay": "optim.decay",
}
# For a pre-training recipe, and for a fine-tuning recipe of any task.
FOREIGN_KEYS = {
    **_FOREIGN,
    "attention_probs_dropout_prob": "encoder.attention_dropout",
    "attn_pdrop": "encoder.attention_dropout",
    "embd_pdrop": "encoder.embedding_dropout",
    "eval_steps": "train.eval_every",
    "gradient_accumulation_steps": "train.micro_batches",
    "hidden_act": "encoder.activation",
    "hidden_dropout_prob": "encoder.dropout",
    "hidden_size": "encoder.width",
    "initializer_range": "encoder.init_range",
    "intermediate_size": "encoder.feed_forward_width",
    "layer_norm_eps": "encoder.norm_epsilon",
    "max_position_embeddings": "encoder.max_positions",
    "max_predictions_per_seq": "masking.max_predictions",
    "max_seq_length": "data.length",
    "max_steps": "train.steps",
    "mlm_probability": "masking.share",
    "n_embd": "encoder.width",
    "n_head": "encoder.n_heads",
    "n_layer": "encoder.n_layers",
    "n_positions": "encoder.max_positions",
    "num_attention_heads": "encoder.n_heads",
    "num_hidden_layers": "encoder.n_layers",
    "num_train_steps": "train.steps",
    "per_device_train_batch_size": "train.batch_tokens",
    "resid_pdrop": "encoder.dropout",
    "save_steps": "train.save_every",
    "save_total_limit": "train.keep_checkpoints",
    "short_seq_prob": "data.short_share",
    "train_batch_size": "train.batch_tokens",
    "type_vocab_size": "encoder.n_segments",
    "whole_word_mask": "masking.whole_words",
}
FOREIGN_FINETUNING_KEYS = {
    **_FOREIGN,
    "attention_probs_dropout_prob": "adapt.dropout",
    "attn_pdrop": "adapt.dropout",
    "attention_width": "head.network.width",
    "classifier_dropout": "head.network.dropout",
    "doc_stride": "head.windows.stride",
    "early_stopping_patience": "train.patience",
    "embd_pdrop": "adapt.dropout",
    "eval_steps": "train.evaluations_per_epoch",
    "features": "head.network",
    "gradient_checkpointing": "train.recompute",
    "hidden_dropout_prob": "adapt.dropout",
    "hidden_width": "head.network.hidden_width",
    "max_seq_length": "head.windows.length",
    "max_steps": "train.epochs",
    "num_train_epochs": "train.epochs",
    "num_train_steps": "train.epochs",
    "per_device_train_batch_size": "train.batch_examples",
    "resid_pdrop": "adapt.dropout",
    "steps": "train.epochs",
    "train_batch_size": "train.batch_examples",
}

# Keys and flags of earlier versions -> their names now: for error messages, and for files that earlier versions wrote.
RENAMED_KEYS = {
    "design": "head_preset",
    "adapt.rate_decay": "adapt.layer_decay",
    "fresh": "from_scratch",
    "optim.lowest_rate": "optim.min_learning_rate",
    "optim.peak_rate": "optim.learning_rate",
    "train.looks_per_epoch": "train.evaluations_per_epoch",
    "train.rate_decay": "train.layer_decay",
}
RENAMED_FLAGS = {
    "--design": "--head-preset",
    "--alpha": "--length-penalty",
    "--fold": "--ignore-case",
    "--fresh": "--from-scratch",
    "--holdout": "--hold-out",
    "--least": "--min-count",
    "--length": "--max-new-tokens",
    "--most": "--max-words",
    "--pieces": "--tokens",
    "--text": "--input",
}


def with_new_names(stored: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Rename the keys that earlier versions stored (``RENAMED_KEYS``) to today's.

    Accepts both tables (``{"optim": {"peak_rate": …}}``) and dotted keys (``{"optim.peak_rate": …}``). Only for files
    that an earlier version wrote: in what a user types, an old name is an error.
    """
    found = {}
    for key, value in stored.items():
        name = RENAMED_KEYS.get(prefix + key, prefix + key)
        inner = with_new_names(value, f"{prefix}{key}.") if isinstance(value, Mapping) else value
        found[name.removeprefix(prefix)] = inner
    return found


def with_old_names(options: Any) -> Any:
    """Rename options to what earlier versions called them, also in ``"key=value"`` strings: see ``stamps_of``.

    Recorded studies are identified by a hash of their options, which were hashed under the old names.
    """
    names = {new.rpartition(".")[2]: old.rpartition(".")[2] for old, new in RENAMED_KEYS.items()}
    names |= {"length_penalty": "alpha", "min_count": "least"}
    if isinstance(options, Mapping):
        if isinstance(options.get("network"), Mapping):
            options = _with_features(options)
        return {names.get(key, key): with_old_names(value) for key, value in options.items()}
    if isinstance(options, (list, tuple)):
        return [with_old_names(value) for value in options]
    if isinstance(options, str):
        key, equals, value = options.partition("=")
        table, dot, last = key.rpartition(".")
        return f"{table}{dot}{names[last]}={value}" if equals and last in names else options
    return options


def _with_features(head: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a head in the form of earlier versions: a table ``features``, and the network by its name."""
    features = dict(head["network"])
    found = {key: value for key, value in head.items() if key != "network"}
    if features.pop("kind", "") == "biattentive":
        found |= {"network": "biattentive", "attention_width": features.pop("width", 300)}
    return {**found, "features": features}
