"""BERT's configuration in transformers' format, and which configurations are refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from firth.convert.hf_bert import (
    ACTIVATION_NAMES,
    CAUSAL_NAMES,
    NAMES,
    absent_parts,
    config_from_hf,
    config_to_hf,
    drop_own_decoder,
    todays_names,
)
from firth.convert.renames import expand
from firth.errors import CheckpointError, ConfigError
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.objectives.config import CausalLMConfig, MaskedLMConfig
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.next_token import CausalLM

CONFIG = BertConfig(
    vocab_size=30,
    width=12,
    n_layers=3,
    n_heads=2,
    feed_forward_width=20,
    max_positions=40,
    n_segments=3,
    dropout=0.2,
    attention_dropout=0.3,
    init_range=0.05,
    norm_epsilon=1e-6,
)


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


def test_names_of_every_age_become_todays() -> None:
    one = torch.ones(1)
    theirs = {
        "embeddings.LayerNorm.gamma": one,
        "bert.encoder.layer.0.output.LayerNorm.beta": one,
        "pooler.dense.bias": one,
        "embeddings.position_ids": one,
        "bert.embeddings.token_type_ids": one,
        "classifier.weight": one,
        "cls.predictions.transform.LayerNorm.gamma": one,
        "cls.predictions.decoder.bias": one,
    }
    assert list(todays_names(theirs, "x")) == [
        "bert.embeddings.LayerNorm.weight",
        "bert.encoder.layer.0.output.LayerNorm.bias",
        "bert.pooler.dense.bias",
        "classifier.weight",
        "cls.predictions.transform.LayerNorm.weight",
        "cls.predictions.decoder.bias",
        "cls.predictions.bias",
    ]


def test_two_names_for_one_tensor_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"x has bert\.a\.LayerNorm\.bias twice, also as bert\.a\.Lay"):
        todays_names({"bert.a.LayerNorm.bias": torch.ones(1), "bert.a.LayerNorm.beta": torch.ones(1)}, "x")


@pytest.mark.parametrize(("weight", "bias", "own"), [(0.0, 0.0, False), (1.0, 0.0, True), (0.0, 1.0, True)])
def test_an_output_matrix_of_its_own_takes_its_head_away(weight: float, bias: float, own: bool) -> None:
    state = {
        "bert.embeddings.word_embeddings.weight": torch.zeros(2, 2),
        "cls.predictions.bias": torch.zeros(2),
        "cls.predictions.decoder.weight": torch.full((2, 2), weight),
        "cls.predictions.decoder.bias": torch.full((2,), bias),
        "cls.predictions.transform.dense.bias": torch.zeros(2),
        "cls.seq_relationship.bias": torch.zeros(2),
    }
    assert drop_own_decoder(state) is own
    assert any(name.startswith("cls.predictions.") for name in state) is not own
    assert {"bert.embeddings.word_embeddings.weight", "cls.seq_relationship.bias"} <= set(state)


def test_only_parts_that_may_be_missing_are_absent() -> None:
    ours = ["encoder.pooler.weight", "encoder.blocks.0.attention.output.bias", "mlm.bias", "nsp.weight", "head.weight"]
    assert absent_parts([], ours) == ("encoder.pooler", "mlm")
    assert absent_parts(["bert.pooler.dense.bias"], ours) == ("mlm",)
    assert absent_parts(["cls.predictions.bias"], ours) == ("encoder.pooler",)
    assert absent_parts([], ["lm.bias"]) == ("lm",)
