"""Attention maps against what the layers compute, and against transformers'."""

import importlib.util
import math
import threading
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from firth.errors import ConfigError, InputError, LengthError
from firth.folder import PRETRAINING, read_model, write_model
from firth.inference.attention_maps import Attention, attention_layers, attention_weights, head_weights
from firth.inference.fast import FastEncoder, PackedLinear
from firth.inference.model import Model, load_model
from firth.layers.attention import SelfAttention
from firth.systems import SYSTEMS
from firth.tasks.answer import Answerer
from firth.tasks.classify import Classifier
from firth.tasks.config import AnswerConfig, ClassifyConfig, TowersConfig, WindowConfig
from firth.tasks.model import TaskModel
from firth.text.layouts import Layout
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

PIECES = [*SPECIALS, *"abcdefgh"]
MOST = 40
# Below and above the lengths at which attention switches to another implementation.
TEXTS = ["a", "a b c", "h g f e d c b a " * 4]
WITH_HEADS = sorted(name for name, row in SYSTEMS.items() if "n_heads" in {f.name for f in fields(row.config)})


def written(folder: Path, system: str) -> Path:
    row = SYSTEMS[system]
    sizes: dict[str, Any] = {
        "vocab_size": len(PIECES),
        "width": 16,
        "n_layers": 3,
        "n_heads": 4,
        "feed_forward_width": 12,
        "max_positions": MOST,
    }
    known = {f.name for f in fields(row.config)}
    encoder = row.encoder(row.config(**{name: n for name, n in sizes.items() if name in known}, **row.fixed))
    objective = row.objective(encoder, row.objective_config())
    torch.manual_seed(0)
    for parameter in objective.parameters():
        nn.init.normal_(parameter, std=0.5)
    folder.mkdir()
    write_model(folder, system, PRETRAINING, objective, Tokenizer.from_vocab(PIECES, lowercase=True), {})
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("maps")
    return {system: written(base / system, system) for system in sorted(SYSTEMS) if not SYSTEMS[system].characters}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("system", WITH_HEADS)
def test_weights_times_values_are_what_the_layer_gives(folders: dict[str, Path], system: str, text: str) -> None:
    model = load_model(folders[system], device="cpu")
    layers = attention_layers(model.loaded.objective.encoder)
    seen: list[tuple[Tensor, Tensor]] = []
    for layer in layers:
        layer.register_forward_hook(lambda _, given, out: seen.append((given[0], out)))
    attention = model.attention(text)
    n = len(attention.tokens)
    assert attention.weights.shape == (3, 4, n, n) and attention.weights.dtype == np.float32
    assert len(seen) == 3
    for layer, weights, (x, out) in zip(layers, attention.weights, seen, strict=True):
        with torch.inference_mode():
            values = layer.query_key_value(x)[:, 2 * 16 :].unflatten(1, (4, 4)).transpose(0, 1)
            expected = layer.output((torch.from_numpy(weights) @ values).transpose(0, 1).flatten(1))
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(attention.weights.sum(-1), 1, atol=1e-6)
    above = attention.weights[..., *np.triu_indices(n, 1)]
    if model.loaded.objective.encoder.causal:
        assert (above == 0).all()
    else:
        assert (above > 0).any()


def test_loaded_layers_are_packed_and_answer_all_the_same(folders: dict[str, Path]) -> None:
    """Beside the weights of the model as it was trained."""
    model = load_model(folders["bert"], device="cpu")
    layers = attention_layers(model.loaded.objective.encoder)
    if not isinstance(layers[0].query_key_value, PackedLinear):
        pytest.skip("this PyTorch packs no layers")
    plain = Model(read_model(folders["bert"]), torch.device("cpu"))
    for text in TEXTS:
        np.testing.assert_allclose(model.attention(text).weights, plain.attention(text).weights, atol=1e-5)


def test_an_encoder_in_fewer_bits_is_watched_too(folders: dict[str, Path]) -> None:
    model = load_model(folders["bert"], device="cpu").loaded
    plain = read_model(folders["bert"]).objective.encoder
    ids = list(range(5, 13))
    found = attention_weights(FastEncoder(plain, torch.bfloat16), ids)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-6)
    assert np.abs(found - attention_weights(model.objective.encoder, ids)).max() < 0.2


def test_pairs_have_segments(folders: dict[str, Path]) -> None:
    model = load_model(folders["bert"], device="cpu")
    pair, single = model.attention("a b", "c"), model.attention("a b")
    assert pair.tokens == ["[CLS]", "a", "b", "[SEP]", "c", "[SEP]"]
    assert single.tokens == ["[CLS]", "a", "b", "[SEP]"]
    for second in ("", "  "):
        with pytest.raises(InputError, match="the second text, .* has no tokens"):
            model.attention("a b", second)
    encoder, ids = model.loaded.objective.encoder, [PIECES.index(piece) for piece in pair.tokens]
    np.testing.assert_array_equal(attention_weights(encoder, ids, [0, 0, 0, 0, 1, 1]), pair.weights)
    assert not np.allclose(attention_weights(encoder, ids), pair.weights)


@pytest.mark.parametrize("task", ["answer", "classify"])
def test_a_pair_is_marked_where_it_shares_words(folders: dict[str, Path], task: str) -> None:
    base = read_model(folders["bert"])
    encoder = base.objective.encoder
    tuned: TaskModel = (
        Answerer(encoder, AnswerConfig(mark_shared_words=True))
        if task == "answer"
        else Classifier(encoder, ClassifyConfig(labels=("n", "y"), mark_shared_words=True))
    )
    model = Model(replace(base, objective=tuned, task=task), torch.device("cpu"))
    found = model.attention("a b", "c b")
    ids = [PIECES.index(piece) for piece in found.tokens]
    np.testing.assert_array_equal(attention_weights(tuned.encoder, ids, [0, 0, 2, 0, 1, 3, 1]), found.weights)
    assert not np.allclose(attention_weights(tuned.encoder, ids, [0, 0, 0, 0, 1, 1, 1]), found.weights)


def test_two_towers_read_no_pair_as_one_sequence(folders: dict[str, Path]) -> None:
    base = read_model(folders["bert"])
    config = ClassifyConfig(labels=("n", "y"), network=TowersConfig(), windows=WindowConfig(length=16, long="cut"))
    model = Model(
        replace(base, objective=Classifier(base.objective.encoder, config), task="classify"), torch.device("cpu")
    )
    assert model.attention("a b").tokens == ["[CLS]", "a", "b", "[SEP]"]
    with pytest.raises(ConfigError, match="encodes the two texts of a pair separately: give one text"):
        model.attention("a b", "c")


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
@pytest.mark.parametrize("second", [None, "h g"])
def test_weights_are_those_of_transformers(folders: dict[str, Path], second: str | None) -> None:
    from transformers import BertModel

    theirs = BertModel.from_pretrained(folders["bert"], attn_implementation="eager").eval()
    model = load_model(folders["bert"], device="cpu")
    for text in TEXTS:
        ours = model.attention(text, second)
        ids = torch.tensor([[PIECES.index(piece) for piece in ours.tokens]])
        kinds = torch.zeros_like(ids)
        if second:
            kinds[0, ours.tokens.index("[SEP]") + 1 :] = 1
        with torch.no_grad():
            out = theirs(input_ids=ids, token_type_ids=kinds, output_attentions=True)
        np.testing.assert_allclose(ours.weights, torch.cat(out.attentions).numpy(), rtol=0, atol=1e-5)


def test_one_head_by_hand() -> None:
    layer = SelfAttention(width=2, n_heads=1, dropout=0.0, causal=True)
    with torch.no_grad():
        layer.query_key_value.weight.copy_(torch.eye(2).repeat(3, 1))
        layer.query_key_value.bias.zero_()
        x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        (found,) = head_weights(layer, x)
    share = 1 / (1 + math.exp(-4 / 2**0.5))
    torch.testing.assert_close(found, torch.tensor([[1.0, 0.0], [1 - share, share]]))


def test_watching_leaves_nothing_behind(folders: dict[str, Path]) -> None:
    model = load_model(folders["bert"], device="cpu")
    encoder = model.loaded.objective.encoder.train()
    first = attention_weights(encoder, [5, 6, 7])
    assert encoder.training and not any(layer._forward_hooks for layer in attention_layers(encoder))
    # Without dropout, although the encoder was in training mode.
    np.testing.assert_array_equal(attention_weights(encoder.eval(), [5, 6, 7]), first)


def test_what_cannot_be_shown(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="has no attention weights"):
        load_model(folders["lstm"], device="cpu").attention("a b")
    model = load_model(folders["bert"], device="cpu")
    with pytest.raises(LengthError, match=f"has {MOST + 1} tokens, the model reads at most {MOST}: shorten it"):
        model.attention("a " * (MOST - 1))
    assert len(model.attention("a " * (MOST - 2)).tokens) == MOST
    assert isinstance(model.attention(""), Attention)
    # As a compiled encoder does: its layers run, but no hook sees them.
    monkeypatch.setattr(SelfAttention, "__call__", SelfAttention.forward)
    with pytest.raises(ConfigError, match="load it without compile"):
        model.attention("a b")


def test_a_model_reads_as_it_was_pretrained_until_it_has_learnt_more(folders: dict[str, Path]) -> None:
    """GPT saw no special token in pre-training."""
    model = load_model(folders["gpt"], device="cpu")
    assert model.attention("a b").tokens == ["a", "b"]
    assert model.attention("a b", "c").tokens == ["a", "b", "c"]
    assert len(model.attention("a " * MOST).tokens) == MOST
    with pytest.raises(InputError, match="has no tokens: give a text with a word in it"):
        model.attention(" ")
    tuned = replace(model, loaded=replace(model.loaded, task="classify"))
    assert tuned.attention("a b", "c").tokens == ["[CLS]", "a", "b", "[SEP]", "c", "[SEP]"]


def test_a_row_without_pieces_is_refused(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(folders["bert"], device="cpu")
    bare = replace(SYSTEMS["bert"], layout=lambda tokenizer: Layout((), (), (), has_segments=False))
    monkeypatch.setitem(SYSTEMS, "bert", bare)
    with pytest.raises(InputError, match="has no tokens"):
        model.attention("")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("ids", "fails"), [([1, 2, 3], False), ([1, len(PIECES), 3], True)])
def test_an_encoder_keeps_its_mode_and_no_hooks(
    folders: dict[str, Path], training: bool, ids: list[int], fails: bool
) -> None:
    encoder = read_model(folders["bert"]).objective.encoder.train(training)
    with pytest.raises(IndexError) if fails else nullcontext():
        attention_weights(encoder, ids)
    assert encoder.training is training
    assert not any(layer._forward_hooks for layer in attention_layers(encoder))


def test_threads_that_share_a_model_do_not_disturb_one_another(folders: dict[str, Path]) -> None:
    model = load_model(folders["bert"])
    maps, vector = model.attention("a b c").weights, model.embed("h g f")
    importance = model.head_importance("a b c")
    others: list[np.ndarray] = []

    def meanwhile(module: nn.Module, given: tuple[Any, ...]) -> None:
        if threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=lambda: others.append(model.embed("h g f")))
            other.start()
            other.join()

    hook = attention_layers(model.loaded.objective.encoder)[1].register_forward_pre_hook(meanwhile)
    assert np.array_equal(model.attention("a b c").weights, maps)
    assert np.array_equal(model.head_importance("a b c"), importance)
    hook.remove()
    assert len(others) > 3 and all(np.array_equal(other, vector) for other in others)


def test_a_text_is_not_read_as_its_characters(folders: dict[str, Path]) -> None:
    model = load_model(folders["bert"])
    assert np.array_equal(model.head_importance("a b c"), model.head_importance(text for text in ["a b c"]))
    for stream in (model.embed_stream, model.score_stream, model.vectors_stream):
        with pytest.raises(InputError, match="'abc' is one text: expected a list of them"):
            list(stream("abc"))
