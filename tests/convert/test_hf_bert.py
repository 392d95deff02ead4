"""BERT's configuration in the words of transformers, and what is refused of theirs."""

from dataclasses import replace
from typing import Any

import pytest

from firth.convert.hf_bert import ACTIVATION_NAMES, CAUSAL_NAMES, NAMES, config_from_hf, config_to_hf
from firth.convert.renames import expand
from firth.errors import CheckpointError, ConfigError
from firth.models.bert import Bert
from firth.models.bert_config import BertConfig
from firth.objectives.causal_lm import CausalLM
from firth.objectives.config import CausalLMConfig, MaskedLMConfig
from firth.objectives.masked_lm import MaskedLM

CONFIG = BertConfig(
    vocab_size=30, width=12, n_layers=3, n_heads=2, feed_forward_width=20, max_positions=40, n_segments=3,
    dropout=0.2, attention_dropout=0.3, init_range=0.05, norm_epsilon=1e-6,
)  # fmt: skip


@pytest.mark.parametrize("activation", sorted(set(ACTIVATION_NAMES.values())))
@pytest.mark.parametrize("causal", [True, False])
def test_there_and_back(activation: Any, causal: bool) -> None:
    config = replace(CONFIG, activation=activation, causal=causal)
    assert config_from_hf(config_to_hf(config, "X", 0), "here") == config


def test_their_names() -> None:
    theirs = config_to_hf(replace(CONFIG, activation="gelu_tanh"), "BertForPreTraining", 7)
    assert theirs["hidden_act"] == "gelu_pytorch_tanh"
    assert theirs["architectures"] == ["BertForPreTraining"]
    assert (theirs["hidden_size"], theirs["type_vocab_size"], theirs["is_decoder"]) == (12, 3, False)
    assert theirs["pad_token_id"] == 7


def test_missing_keys_have_the_published_values_and_unknown_ones_do_not_matter() -> None:
    config = config_from_hf({"vocab_size": 10, "directionality": "bidi", "pooler_type": "first"}, "here")
    assert config == BertConfig(vocab_size=10)


@pytest.mark.parametrize(("name", "ours"), [("gelu_new", "gelu_tanh"), ("GELU", "gelu"), ("relu", "relu")])
def test_activations_of_other_spellings(name: str, ours: str) -> None:
    assert config_from_hf({"vocab_size": 10, "hidden_act": name}, "here").activation == ours


@pytest.mark.parametrize(
    ("theirs", "error", "message"),
    [
        ({}, CheckpointError, "vocab_size is missing"),
        (
            {"vocab_size": 9, "hidden_act": "swish"},
            CheckpointError,
            "hidden_act 'swish': expected one of gelu",
        ),
        (
            {"vocab_size": 9, "position_embedding_type": "relative_key"},
            CheckpointError,
            "'relative_key' is not BERT's",
        ),
        ({"vocab_size": 9, "hidden_size": 10, "num_attention_heads": 3}, ConfigError, "width=10"),
    ],
)
def test_what_is_not_bert_is_refused(theirs: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        config_from_hf(theirs, "here")


def test_the_tables_cover_every_parameter_once() -> None:
    objectives = (
        (MaskedLM(Bert(CONFIG), MaskedLMConfig()), NAMES),
        (CausalLM(Bert(replace(CONFIG, causal=True)), CausalLMConfig()), CAUSAL_NAMES),
    )
    for objective, table in objectives:
        rows = expand(table, CONFIG.n_layers)
        ours = [name for _, name in rows if name is not None and not name.startswith("head")]
        assert sorted(ours) == sorted(objective.state_dict())
        theirs = [part for parts, _ in rows for part in parts]
        assert len(theirs) == len(set(theirs))
