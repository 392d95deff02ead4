"""BERT in google-research/bert's format: round trips with every head, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from firth.config import read_json
from firth.convert.google_bert import (
    BARE,
    ENCODER,
    SIZE_KEYS,
    TASK_NAMES,
    check_sizes,
    config_from_google,
    config_to_google,
    find_task,
    has_next_sentence,
    is_weight,
    to_ours,
    to_theirs,
)
from firth.convert.renames import expand
from firth.convert.tf_bundle import bundle_prefix, read_bundle, write_bundle
from firth.data.batch import Objective
from firth.errors import CheckpointError
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.objectives.config import MaskedLMConfig
from firth.objectives.masked_lm import MaskedLM
from firth.tasks.answer import Answerer
from firth.tasks.classify import Classifier
from firth.tasks.config import AnswerConfig, ClassifyConfig

# No two sizes are equal, except those of matrices that are square in any BERT, such as the query projection.
CONFIG = BertConfig(
    vocab_size=11,
    width=6,
    n_layers=2,
    n_heads=2,
    feed_forward_width=10,
    max_positions=9,
    n_segments=3,
    dropout=0.2,
    attention_dropout=0.3,
    init_range=0.05,
)
L = CONFIG.n_layers


def shaken(objective: Objective) -> Objective:
    """Sample every parameter, so that no zero or one hides a mistake."""
    torch.manual_seed(0)
    for parameter in objective.parameters():
        nn.init.normal_(parameter)
    return objective.eval()


def model(task: str) -> Objective:
    encoder = Bert(CONFIG)
    if task == "classify":
        return shaken(Classifier(encoder, ClassifyConfig(labels=("a", "b", "c", "d"))))
    if task == "answer":
        return shaken(Answerer(encoder, AnswerConfig()))
    return shaken(MaskedLM(encoder, MaskedLMConfig(next_sentence=task != "no next sentence")))


TASKS = {"pretraining": "pretraining", "no next sentence": "pretraining", "classify": "classify", "answer": "answer"}
every_model = pytest.mark.parametrize("made", list(TASKS))


def with_slots(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The state as training saves it: two moments for each variable, and the step."""
    slots = {f"{name}/{slot}": np.zeros_like(array) for name, array in state.items() for slot in ("adam_m", "adam_v")}
    return {**state, **slots, "global_step": np.array(3, np.int64)}


def equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return list(found) == list(expected) and all(torch.equal(found[name], expected[name]) for name in expected)


# Weights


@every_model
def test_there_and_back_is_the_identity(made: str) -> None:
    state, task = model(made).state_dict(), TASKS[made]
    assert equal(to_ours(to_theirs(state, task, L), task, state, L, "here"), state)


@every_model
def test_there_and_back_through_files_with_an_optimizer(made: str, tmp_path: Path) -> None:
    state, task = model(made).state_dict(), TASKS[made]
    write_bundle(tmp_path / "bert_model.ckpt", with_slots(to_theirs(state, task, L)))
    everything = read_bundle(tmp_path / "bert_model.ckpt")
    weights = read_bundle(tmp_path / "bert_model.ckpt", is_weight)
    assert len(everything) == 3 * len(weights) + 1
    for found in (everything, weights):
        assert find_task(found, "here") == task
        assert equal(to_ours(found, task, state, L, "here"), state)


@pytest.mark.parametrize("task", [task for task in TASK_NAMES if task != BARE])
def test_the_tables_cover_every_parameter_once(task: str) -> None:
    rows = expand(TASK_NAMES[task], L)
    assert sorted(str(ours) for _, ours in rows) == sorted(model(task).state_dict())
    theirs = [part for parts, _ in rows for part in parts]
    assert len(theirs) == len(set(theirs))
    assert len(theirs) == 5 + 16 * L + 2 + {"pretraining": 7, "classify": 2, "answer": 2}[task]


def test_shapes_of_the_published_files() -> None:
    theirs = to_theirs(model("pretraining").state_dict(), "pretraining", L)
    shapes = {name: array.shape for name, array in theirs.items()}
    layer = "bert/encoder/layer_1/"
    assert shapes["bert/embeddings/word_embeddings"] == (11, 6)
    assert shapes[layer + "attention/self/query/kernel"] == (6, 6)
    assert shapes[layer + "intermediate/dense/kernel"] == (6, 10)
    assert shapes[layer + "output/dense/kernel"] == (10, 6)
    assert shapes["cls/seq_relationship/output_weights"] == (2, 6)
    assert to_theirs(model("classify").state_dict(), "classify", L)["output_weights"].shape == (4, 6)
    assert to_theirs(model("answer").state_dict(), "answer", L)["cls/squad/output_weights"].shape == (2, 6)


def test_kernels_are_turned_over_and_heads_are_not() -> None:
    """Theirs is x·kernel + bias; our joint matrix has the queries first, then keys, then values."""
    state = model("pretraining").state_dict()
    theirs = to_theirs(state, "pretraining", L)
    joint = state["encoder.blocks.1.attention.query_key_value.weight"].numpy()
    for number, part in enumerate(("query", "key", "value")):
        ours = joint[6 * number : 6 * number + 6]
        assert np.array_equal(theirs[f"bert/encoder/layer_1/attention/self/{part}/kernel"], ours.T)
    wide = state["encoder.blocks.0.feed_forward.weight"].numpy()
    assert np.array_equal(theirs["bert/encoder/layer_0/intermediate/dense/kernel"], wide.T)
    assert np.array_equal(theirs["cls/seq_relationship/output_weights"], state["nsp.weight"].numpy())
    assert np.array_equal(theirs["bert/embeddings/position_embeddings"], state["encoder.embeddings.positions.weight"])


def test_a_bare_encoder_leaves_the_heads_alone() -> None:
    state = model("pretraining").state_dict()
    bare = {n: a for n, a in to_theirs(state, "pretraining", L).items() if n.startswith("bert/")}
    assert find_task(bare, "here") == BARE
    found = to_ours(bare, BARE, state, L, "here")
    assert equal(found, {name: tensor for name, tensor in state.items() if name.startswith("encoder.")})
    assert sorted(found) == sorted(str(ours) for _, ours in expand(ENCODER, L))


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ">f4"])
def test_other_float_types_become_ours(dtype: Any) -> None:
    state = model("classify").state_dict()
    theirs = {name: array.astype(dtype) for name, array in to_theirs(state, "classify", L).items()}
    found = to_ours(theirs, "classify", state, L, "here")
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}
    torch.testing.assert_close(found, dict(state), rtol=1e-3, atol=1e-3)


def test_what_comes_from_a_file_is_our_own_copy(tmp_path: Path) -> None:
    """A memory map must not reach the model: the file may change during training."""
    state = model("classify").state_dict()
    write_bundle(tmp_path / "m", to_theirs(state, "classify", L))
    found = to_ours(read_bundle(tmp_path / "m"), "classify", state, L, "here")
    for tensor in found.values():
        tensor.add_(1)
    assert equal(to_ours(read_bundle(tmp_path / "m"), "classify", state, L, "here"), dict(state))


def broken(**changes: np.ndarray | None) -> dict[str, np.ndarray]:
    theirs = to_theirs(model("pretraining").state_dict(), "pretraining", L)
    for name, array in changes.items():
        if array is None:
            del theirs[name]
        else:
            theirs[name] = array
    return theirs


KERNEL = "bert/encoder/layer_1/intermediate/dense/kernel"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({KERNEL: None}, f"f.ckpt lacks {KERNEL} .1 missing"),
        ({"surprise": np.ones(1)}, "f.ckpt has unknown surprise"),
        ({"output_weights": np.ones((2, 6))}, "f.ckpt has unknown output_weights"),
        ({"bert/encoder/layer_2/output/dense/bias": np.ones(6)}, "unknown bert/encoder/layer_2/output/dense/bias"),
        ({KERNEL: np.ones((10, 6))}, rf"f.ckpt: {KERNEL} has shape \(10, 6\), expected \(6, 10\)"),
        ({KERNEL: np.ones(60)}, rf"f.ckpt: {KERNEL} has shape \(60,\), expected \(6, 10\)"),
        ({"bert/pooler/dense/bias": np.ones(())}, r"bias has shape \(\), expected \(6,\)"),
        ({"cls/predictions/output_bias": np.ones(11, np.int32)}, "output_bias holds int32, expected floating"),
    ],
)
def test_weights_that_do_not_fit_are_named(changes: dict[str, Any], said: str) -> None:
    expected = model("pretraining").state_dict()
    with pytest.raises(CheckpointError, match=said):
        to_ours(broken(**changes), "pretraining", expected, L, "f.ckpt")


def test_a_tensor_of_ours_that_they_have_no_name_for_is_our_own_mistake() -> None:
    with pytest.raises(KeyError, match="crf"):
        to_theirs({"crf.scores": torch.ones(1)}, "classify", L)


# Which heads


def test_next_sentence_prediction_is_found_by_its_head() -> None:
    for made in ("pretraining", "no next sentence"):
        assert has_next_sentence(to_theirs(model(made).state_dict(), "pretraining", L)) == (made == "pretraining")


@pytest.mark.parametrize("names", [[], ["model/wte"], ["bert.embeddings.word_embeddings.weight"]])
def test_what_is_no_bert_of_theirs(names: list[str]) -> None:
    with pytest.raises(CheckpointError, match="f.ckpt is no checkpoint of google-research/bert: it lacks bert/emb"):
        find_task(names, "f.ckpt")


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("global_step", False),
        ("output_bias/adam_v", False),
        (KERNEL + "/adam_m", False),
        (KERNEL, True),
        ("output_bias", True),
        ("bert/adam_m/kernel", True),
        ("surprise", True),
    ],
)
def test_what_counts_as_a_weight(name: str, weight: bool) -> None:
    assert is_weight(name) is weight


# Configuration


def published(**changes: Any) -> dict[str, Any]:
    """The keys of the released multilingual configuration."""
    return {
        "attention_probs_dropout_prob": 0.1,
        "directionality": "bidi",
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 768,
        "initializer_range": 0.02,
        "intermediate_size": 3072,
        "max_position_embeddings": 512,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "pooler_fc_size": 768,
        "pooler_type": "first_token_transform",
        "type_vocab_size": 2,
        "vocab_size": 105879,
        **changes,
    }


def test_the_published_base_model_is_our_default() -> None:
    assert config_from_google(published(), "here") == BertConfig(vocab_size=105879)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "tanh", "linear"])
def test_configurations_there_and_back(activation: Any) -> None:
    config = replace(CONFIG, activation=activation)
    meaning = "gelu_tanh" if activation == "gelu_tanh" else "gelu"
    assert config_from_google(config_to_google(config), "here", meaning) == config


def test_our_sizes_in_their_words() -> None:
    theirs = config_to_google(replace(CONFIG, activation="gelu_tanh"))
    assert theirs.pop("hidden_act") == "gelu"
    assert theirs == {
        "vocab_size": 11,
        "hidden_size": 6,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 10,
        "max_position_embeddings": 9,
        "type_vocab_size": 3,
        "hidden_dropout_prob": 0.2,
        "attention_probs_dropout_prob": 0.3,
        "initializer_range": 0.05,
    }


@pytest.mark.parametrize(
    ("name", "ours"), [("GELU", "gelu"), ("ReLU", "relu"), ("", "linear"), (None, "linear"), ("linear", "linear")]
)
def test_spellings_of_activations(name: str | None, ours: str) -> None:
    assert config_from_google(published(hidden_act=name), "here").activation == ours


def test_rates_and_activation_have_their_codes_defaults() -> None:
    sizes = {key: value for key, value in published().items() if key in SIZE_KEYS}
    assert config_from_google(sizes, "here") == BertConfig(vocab_size=105879)


@pytest.mark.parametrize("key", SIZE_KEYS)
def test_a_missing_size_is_named(key: str) -> None:
    theirs = published()
    del theirs[key]
    with pytest.raises(CheckpointError, match=f"f.json lacks {key}: "):
        config_from_google(theirs, "f.json")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": "768"}, "f.json: hidden_size = '768': expected a whole number"),
        ({"vocab_size": True}, "f.json: vocab_size = True: expected a whole number"),
        ({"vocab_size": 9.0}, "f.json: vocab_size = 9.0: expected a whole number"),
        ({"vocab_size": None}, "f.json: vocab_size = None: expected a whole number"),
        ({"type_vocab_size": 0}, "f.json: type_vocab_size = 0: expected a whole number of at least 1"),
        ({"hidden_dropout_prob": "0.1"}, "f.json: hidden_dropout_prob = '0.1': expected a number from 0 to 1"),
        ({"hidden_dropout_prob": 1}, "f.json: hidden_dropout_prob = 1: expected a number from 0 to 1"),
        ({"initializer_range": float("nan")}, "f.json: initializer_range = nan: expected a number"),
        ({"initializer_range": 10**400}, "f.json: initializer_range = 1000"),
        ({"hidden_act": "swish"}, "f.json: hidden_act 'swish': expected one of gelu, relu, tanh, linear"),
        ({"hidden_act": ["gelu"]}, "f.json: hidden_act .*: expected one of"),
        ({"num_attention_heads": 7}, "f.json: width=768 is not a multiple of n_heads=7"),
    ],
)
def test_configurations_that_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        config_from_google(published(**changes), "f.json")


@pytest.mark.parametrize(
    ("changes", "said"), [({"causal": True}, "reads left to right"), ({"norm_epsilon": 1e-5}, "has norm_epsilon=1e-05")]
)
def test_models_that_their_code_cannot_compute(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=f"the model {said}"):
        config_to_google(replace(CONFIG, **changes))


def test_sizes_and_weights_of_one_make() -> None:
    check_sizes(CONFIG, to_theirs(model("classify").state_dict(), "classify", L), "here")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab_size": 12}, r"f.json says vocab_size 12, but bert/embeddings/word_embeddings has shape \(11, 6\)"),
        ({"width": 8}, "says hidden_size 8"),
        ({"max_positions": 512}, "says max_position_embeddings 512"),
        ({"n_segments": 2}, "says type_vocab_size 2"),
        ({"feed_forward_width": 6}, "says intermediate_size 6"),
        ({"n_layers": 3}, "says num_hidden_layers 3, the weights have 2"),
        ({"n_layers": 1}, "says num_hidden_layers 1, the weights have 2"),
    ],
)
def test_a_configuration_beside_other_weights(changes: dict[str, Any], said: str) -> None:
    theirs = to_theirs(model("classify").state_dict(), "classify", L)
    with pytest.raises(CheckpointError, match=said):
        check_sizes(replace(CONFIG, **changes), theirs, "f.json")


def test_a_checkpoint_that_their_code_wrote(shared_data: Path) -> None:
    """The optimizer's moments and the step are left out; the rest survives the round trip bit for bit."""
    folder = shared_data / "tf-bert-fixture"
    prefix = bundle_prefix(folder)
    assert prefix == folder / "bert_model.ckpt"
    weights = read_bundle(prefix, is_weight)
    config = config_from_google(read_json(folder / "bert_config.json"), "bert_config.json")
    check_sizes(config, weights, "bert_config.json")
    assert (find_task(weights, "here"), has_next_sentence(weights)) == ("pretraining", True)
    objective = MaskedLM(Bert(config), MaskedLMConfig())
    state = to_ours(weights, "pretraining", objective.state_dict(), config.n_layers, str(prefix))
    objective.load_state_dict(state)
    again = to_theirs(objective.state_dict(), "pretraining", config.n_layers)
    assert sorted(again) == sorted(weights)
    assert all(np.array_equal(again[name], array) for name, array in weights.items())
