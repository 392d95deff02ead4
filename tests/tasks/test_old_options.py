"""Heads that earlier versions stored in ``firth.json`` are read as today's networks, with the same outputs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from firth.config import from_dict, to_dict
from firth.errors import CheckpointError, ConfigError
from firth.folder import read_model, write_model
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.option_names import with_old_names
from firth.tasks.config import BiattentiveConfig, BiLstmConfig, LinearConfig
from firth.tasks.old_options import with_network
from firth.tasks.table import TASKS
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

# The table of features as every earlier version wrote it by default.
FEATURES: dict[str, Any] = {
    "layers": [-1], "mix": "one", "words": "first", "pool": "summary", "layer_norm": False, "mix_l2": 0.0,
    "lstm_layers": 0, "lstm_width": 256, "cell": "lstm", "own_words": 0, "own_characters": "none", "join": "input",
    "second_mix": False, "dropout": 0.1, "output_dropout": True,
}  # fmt: skip
CLASSIFY: dict[str, Any] = {
    "labels": ["a", "b"], "label_smoothing": 0.0, "class_weights": [], "temperature": 1.25, "both_orders": False,
    "network": "linear", "hidden_width": 50, "attention_width": 300, "auxiliary_lm": 0.0,
    "windows": {"length": 16, "stride": 0, "long": "cut", "merge": "mean"},
}  # fmt: skip
TAG: dict[str, Any] = {
    "labels": ["O", "B-X", "I-X"], "scheme": "BIO", "unit": "word", "crf": True, "label_smoothing": 0.0,
    "auxiliary_lm": 0.0, "windows": {"length": 16, "stride": 0, "long": "windows", "merge": "mean"},
}  # fmt: skip
TAGLM = {"lstm_layers": 2, "lstm_width": 4, "cell": "gru", "own_words": 3, "join": "first", "output_dropout": False}

STORED: list[tuple[str, dict[str, Any], Any]] = [
    ("classify", CLASSIFY | {"features": FEATURES | {"dropout": 0.3}}, LinearConfig(dropout=0.3)),
    (
        "classify",
        CLASSIFY | {"features": FEATURES | {"pool": "mean", "layers": [0, 1], "mix": "weighted", "mix_l2": 0.1}},
        LinearConfig(pool="mean", layers=(0, 1), mix="scalar", mix_l2=0.1),
    ),
    ("classify", CLASSIFY | {"network": "pooled", "hidden_width": 7, "features": FEATURES},
     LinearConfig(hidden_width=7)),
    ("classify", CLASSIFY | {"network": "biattentive", "attention_width": 5, "features": FEATURES},
     BiattentiveConfig(width=5)),
    ("classify", CLASSIFY | {"features": FEATURES | {"pool": "max", "lstm_layers": 1, "lstm_width": 4}},
     BiLstmConfig(pool="max", lstm_layers=1, lstm_width=4)),
    ("tag", TAG | {"features": FEATURES | TAGLM}, BiLstmConfig(**TAGLM)),
    ("tag", TAG | {"features": FEATURES | {"own_words": 3}}, BiLstmConfig(own_words=3, lstm_layers=0)),
    ("tag", TAG | {"features": FEATURES | {"words": "mean"}}, LinearConfig(words="mean")),
]  # fmt: skip
every_stored = pytest.mark.parametrize(("task", "options", "network"), STORED)


@every_stored
def test_stored_heads_are_the_networks_of_today(task: str, options: dict[str, Any], network: Any) -> None:
    found = from_dict(TASKS[task].config, with_network(options), "firth.json")
    assert found.network == network
    assert with_network(to_dict(found)) == to_dict(found), "what is of today stays as it is"


@every_stored
def test_an_old_folder_answers_as_it_did(task: str, options: dict[str, Any], network: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_vocab([*SPECIALS, "a", "b"], lowercase=False)
    sizes = {"width": 8, "n_layers": 1, "n_heads": 2, "feed_forward_width": 8, "max_positions": 16}
    config = from_dict(TASKS[task].config, with_network(options), "today")
    model = TASKS[task].model(Bert(BertConfig(vocab_size=tokenizer.size, **sizes)), config)
    write_model(tmp_path, "bert", task, model, tokenizer, {})
    about = json.loads((tmp_path / "firth.json").read_text())
    (tmp_path / "firth.json").write_text(json.dumps(about | {"options": options}))
    loaded = read_model(tmp_path)
    assert loaded.objective.config == config
    state = model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in loaded.objective.state_dict().items())


def test_what_no_version_reads_any_more_is_said(tmp_path: Path) -> None:
    options = CLASSIFY | {"network": "pooled", "features": FEATURES | {"pool": "max", "lstm_layers": 1}}
    with pytest.raises(ConfigError, match="a head of network 'pooled' above a BiLSTM or words of its own"):
        with_network(options)
    about = {"format": "firth-model", "version": 1, "system": "bert", "task": "classify", "options": options}
    (tmp_path / "firth.json").write_text(json.dumps(about))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="cannot be read as a model: a head of network 'pooled'"):
        read_model(tmp_path)


def test_recorded_studies_are_known_by_the_options_they_had() -> None:
    new = {"head": {"crf": True, "network": {"kind": "bilstm", "lstm_layers": 2}}, "optim": {"learning_rate": 1.0}}
    old = {"head": {"crf": True, "features": {"lstm_layers": 2}}, "optim": {"peak_rate": 1.0}}
    assert with_old_names(new) == old
    new = {"network": {"kind": "biattentive", "width": 128, "dropout": 0.0}}
    assert with_old_names(new) == {"network": "biattentive", "attention_width": 128, "features": {"dropout": 0.0}}


def test_a_scalar_mix_was_called_weighted() -> None:
    network = {"kind": "linear", "layers": [0, 1], "mix": "weighted"}
    assert with_network(CLASSIFY | {"network": network})["network"] == network | {"mix": "scalar"}
