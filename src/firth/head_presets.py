"""The table of head presets: published ways to put a head on an encoder.

A fine-tuning recipe names one (``head_preset``); what the preset leaves open comes from the system's own settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firth.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadPreset:
    """One head preset: a published way to put a head on an encoder.

    ``tasks``: the kinds of task that it is for. ``settings``: its own, as tables of a recipe; they take precedence over
    the system's, and the recipe's keys over them. A ``scheme`` applies only if the tags mark named entities.
    """

    tasks: tuple[str, ...]
    settings: Mapping[str, Mapping[str, Any]]


_ADAM = {
    "kind": "adamw", "learning_rate": 1e-3, "decay": 0.0, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8,
    "clip_norm": 5.0,
}  # fmt: skip
# Peters et al. 2017, §3.2: a constant learning rate; once the score is past its best, a tenth of it and then a tenth of
# that, for five epochs each. The maximum number of epochs is ours.
_TAGGER: dict[str, dict[str, Any]] = {
    "optim": {
        **_ADAM, "schedule": "constant", "warmup_share": 0.0,
        "plateau_factor": 0.1, "plateau_patience": 5, "min_learning_rate": 1e-5,
    },
    "adapt": {"frozen_groups": -1},
    "train": {"epochs": 100.0, "evaluations_per_epoch": 1},
}  # fmt: skip
# Peters et al. 2017, §3.2, named entity recognition: the layers that TagLM and its baseline share.
_TAGLM: dict[str, Any] = {
    "kind": "bilstm", "own_words": 50, "own_characters": "gru", "cell": "gru", "lstm_layers": 2, "lstm_width": 300,
    "dropout": 0.25, "output_dropout": False,
}  # fmt: skip

HEADS: dict[str, HeadPreset] = {
    "taglm": HeadPreset(
        tasks=("tag",),
        settings={
            **_TAGGER,
            "head": {"crf": True, "scheme": "BIOES", "network": {**_TAGLM, "layers": [-1], "join": "first"}},
        },
    ),
    # Peters et al. 2018, App. A, named entity recognition (specification of ELMo, §9).
    "elmo": HeadPreset(
        tasks=("tag",),
        settings={
            **_TAGGER,
            "head": {
                "crf": True, "scheme": "BIOES",
                "network": {
                    "kind": "bilstm", "layers": [0, 1, 2], "mix": "scalar", "mix_l2": 0.1, "join": "input",
                    "own_words": 50, "own_characters": "cnn", "cell": "lstm", "lstm_layers": 2, "lstm_width": 200,
                    "dropout": 0.5,
                },
            },
        },
    ),
    "bilstm-crf": HeadPreset(
        tasks=("tag",),
        settings={**_TAGGER, "head": {"crf": True, "scheme": "BIOES", "network": {**_TAGLM, "join": "none"}}},
    ),
    # McCann et al. 2017, §4. What the paper leaves open, such as dropout and the length of training, is ours.
    "bcn": HeadPreset(
        tasks=("classify",),
        settings={
            "optim": {**_ADAM, "schedule": "linear", "warmup_share": 0.0},
            "adapt": {"frozen_groups": -1}, "train": {"epochs": 10.0},
            "head": {
                "windows": {"long": "cut"}, "network": {"kind": "biattentive", "layers": [-1], "dropout": 0.2},
            },
        },
    ),
    # Reimers and Gurevych 2019, §3. The cosine, in addition to the differences, is ours.
    "towers": HeadPreset(
        tasks=("classify", "regress"),
        settings={"head": {"windows": {"long": "cut"}, "network": {"kind": "towers"}}},
    ),
}  # fmt: skip


def preset_named(name: str, task: str) -> HeadPreset:
    """Look up a head preset. ConfigError for an unknown name, and for a preset of other kinds of task."""
    if name not in HEADS:
        raise ConfigError(f"head_preset={name!r}: known are {', '.join(HEADS)}")
    if task not in HEADS[name].tasks:
        raise ConfigError(
            f"head_preset={name!r} is for {' and '.join(HEADS[name].tasks)}, not for a task of kind {task}"
        )
    return HEADS[name]
