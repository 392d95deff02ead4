"""GPT's configuration and tensor names in transformers' format, and what is refused."""

from typing import Any

import pytest
import torch

from firth.convert.hf_gpt import NAMES, check_sizes, config_from_hf, config_to_hf, find_kind, todays_names
from firth.convert.renames import Turned, expand, to_ours, to_theirs
from firth.errors import CheckpointError, ConfigError
from firth.models.config import GptConfig
from firth.models.gpt import Gpt
from firth.objectives.config import TiedLMConfig
from firth.objectives.next_token import TiedLM
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

CONFIG = GptConfig(
    vocab_size=30,
    width=12,
    n_layers=3,
    n_heads=2,
    max_positions=40,
    dropout=0.2,
    attention_dropout=0.3,
    embedding_dropout=0.4,
    init_range=0.05,
    norm_epsilon=1e-6,
)
THEIRS = {"model_type": "openai-gpt", "vocab_size": 9}


def test_there_and_back() -> None:
    theirs = config_to_hf(CONFIG, "X", Tokenizer.from_vocab(SPECIALS, lowercase=True))
    assert config_from_hf(theirs, "here") == CONFIG
    assert (theirs["model_type"], theirs["architectures"], theirs["afn"]) == ("openai-gpt", ["X"], "gelu")
    assert (theirs["n_embd"], theirs["n_positions"], theirs["n_ctx"], theirs["embd_pdrop"]) == (12, 40, 40, 0.4)


def test_missing_keys_have_the_published_values_and_unknown_ones_do_not_matter() -> None:
    config = config_from_hf({**THEIRS, "summary_type": "cls_index", "n_special": 0, "afn": "gelu_new"}, "here")
    assert config == GptConfig(vocab_size=9)


@pytest.mark.parametrize(
    ("theirs", "error", "message"),
    [
        ({}, CheckpointError, "model_type None: expected 'openai-gpt'"),
        ({"model_type": "gpt2"}, CheckpointError, "model_type 'gpt2': expected 'openai-gpt'"),
        ({"model_type": "openai-gpt"}, CheckpointError, "vocab_size is missing"),
        ({**THEIRS, "afn": "relu"}, CheckpointError, "afn 'relu' is not GPT's: expected 'gelu'"),
        ({**THEIRS, "afn": [1]}, CheckpointError, "afn"),
        ({**THEIRS, "tie_word_embeddings": False}, CheckpointError, "tie_word_embeddings False is not GPT's"),
        ({**THEIRS, "auto_map": {"AutoModel": "x"}}, CheckpointError, "auto_map"),
        ({**THEIRS, "n_embd": 10, "n_head": 3}, ConfigError, "width=10 is not a multiple"),
        ({**THEIRS, "n_layer": "2"}, ConfigError, "n_layers = '2': expected int"),
    ],
)
def test_what_is_not_gpt_is_refused(theirs: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        config_from_hf(theirs, "here")


def objective() -> TiedLM:
    torch.manual_seed(0)
    made = TiedLM(Gpt(CONFIG), TiedLMConfig())
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made


def test_the_table_covers_every_parameter_once_and_turns_the_matrices() -> None:
    made, rows = objective(), expand(NAMES, CONFIG.n_layers)
    assert sorted(name for _, name in rows if name is not None) == sorted(made.state_dict())
    theirs = to_theirs(made.state_dict(), rows)
    assert tuple(theirs["transformer.h.1.attn.c_attn.weight"].shape) == (12, 36)
    assert tuple(theirs["transformer.h.1.mlp.c_fc.weight"].shape) == (12, 48)
    turned = {part for parts, _ in rows for part in parts if isinstance(part, Turned)}
    assert len(turned) == 4 * CONFIG.n_layers and all("embed" not in name for name in turned)
    assert torch.equal(
        theirs["transformer.h.2.mlp.c_proj.weight"].T, made.state_dict()["encoder.blocks.2.feed_forward_output.weight"]
    )
    again = to_ours(theirs, rows, made.state_dict(), "here")
    assert all(torch.equal(again[name], tensor) for name, tensor in made.state_dict().items())


def published(**changes: torch.Tensor) -> dict[str, torch.Tensor]:
    return {**to_theirs(objective().state_dict(), expand(NAMES, CONFIG.n_layers)), **changes}


def test_names_of_every_age_become_todays() -> None:
    one, places = torch.ones(1), torch.arange(3)
    theirs = {
        "tokens_embed.weight": one,
        "h.0.attn.bias": one,
        "transformer.h.11.attn.bias": one,
        "h.0.ln_1.bias": one,
        "position_ids": places,
        "transformer.position_ids": places,
        "lm_head.weight": one,
        "multiple_choice_head.summary.weight": one,
    }
    found, facts = todays_names(theirs, "x")
    assert list(found) == ["transformer.tokens_embed.weight", "transformer.h.0.ln_1.bias", "lm_head.weight"]
    assert facts == [("left out", "multiple_choice_head: the language model is read, the head for choices is not")]
    assert todays_names({"tokens_embed.weight": one}, "x")[1] == []


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        ({"tokens_embed.weight": 1.0, "transformer.tokens_embed.weight": 1.0}, r"twice, also as transformer\.tokens"),
        ({"tokens_embed.weight": 1.0, "lm_head.weight": 2.0}, r"lm_head\.weight is not tokens_embed\.weight"),
    ],
)
def test_tensors_that_contradict_each_other_are_refused(theirs: dict[str, float], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        todays_names({name: torch.full((2, 2), value) for name, value in theirs.items()}, "x")


def test_sizes_are_compared_in_their_words() -> None:
    check_sizes(CONFIG, published(), "x")
    for changes, message in (
        ({"transformer.tokens_embed.weight": torch.ones(31, 12)}, "says vocab_size 30, but transformer.tokens_embed"),
        ({"transformer.positions_embed.weight": torch.ones(41, 12)}, "says n_positions 40"),
        ({"transformer.h.3.ln_1.bias": torch.ones(12)}, "says n_layer 3, the weights have 4"),
    ):
        with pytest.raises(CheckpointError, match=message):
            check_sizes(CONFIG, published(**changes), "x")


def test_a_classifier_of_theirs_is_not_taken_for_a_language_model() -> None:
    assert find_kind({}, published(), "x") == ("gpt", "pretraining", TiedLMConfig())
    with pytest.raises(CheckpointError, match=r"\['OpenAIGPTForSequenceClassification'\]: a classifier of theirs"):
        find_kind({"architectures": ["OpenAIGPTForSequenceClassification"]}, {"score.weight": torch.ones(2, 12)}, "x")


def test_a_matrix_that_is_stored_once_is_the_embedding() -> None:
    """transformers stores that of a model with two heads under the name of the output."""
    tied = torch.randn(5, 3)
    found, _ = todays_names({"lm_head.weight": tied, "multiple_choice_head.summary.weight": torch.ones(1, 3)}, "f")
    assert found["transformer.tokens_embed.weight"] is tied and found["lm_head.weight"] is tied
