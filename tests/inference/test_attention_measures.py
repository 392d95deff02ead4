"""Averages, cross-attention, excluded heads, and the sharpness of a softmax: each against its definition."""

import math

import numpy as np
import pytest
import torch
from tiny_language_models import PIECES, tiny_language_model

from firth.data.rows import pack_lists
from firth.errors import ConfigError, InputError
from firth.folder import PRETRAINING, Loaded
from firth.inference.attention_maps import Attention, attention_layers
from firth.inference.model import Model
from firth.systems import SYSTEMS
from firth.text.layouts import target_layout
from firth.text.tokenizer import Tokenizer


def translator(norm: str) -> Model:
    torch.manual_seed(0)
    system = SYSTEMS["transformer"]
    sizes = {"vocab_size": len(PIECES), "width": 16, "n_layers": 2, "n_heads": 2, "feed_forward_width": 24}
    objective = system.objective(system.encoder(system.config(**sizes, norm=norm)), system.objective_config())
    for parameter in objective.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    tokenizer = Tokenizer.from_vocab(PIECES, lowercase=True)
    return Model(Loaded("transformer", PRETRAINING, objective.eval(), tokenizer), torch.device("cpu"))


@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.inference_mode()
def test_cross_attention_is_what_the_decoder_takes(norm: str) -> None:
    made = translator(norm)
    found = made.cross_attention("a1 b2 c3", "d4 e5")
    assert found.columns == ["a1", "b2", "c3", "[SEP]"] and found.tokens == ["d4", "e5", "[SEP]"]
    assert found.weights.shape == (2, 2, 3, 4)
    np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-5)
    # The values weighted by these attention weights equal the output of each block's attention.
    objective, given = made.loaded.objective, []
    for block in objective.decoder.blocks:
        block.cross_attention.register_forward_hook(lambda layer, args, out: given.append((layer, args, out)))
    read = pack_lists([made.loaded.layout.single(made.loaded.tokenizer.encode("a1 b2 c3").ids)])
    start = target_layout(made.loaded.tokenizer).single(made.loaded.tokenizer.encode("d4 e5").ids)
    objective.written(read, pack_lists([start]))
    for weights, (layer, (_, _, (_, values), _), out) in zip(found.weights, given, strict=True):
        mixed = torch.einsum("nts,snd->tnd", torch.from_numpy(weights), values).flatten(1)
        torch.testing.assert_close(layer.output(mixed), out, rtol=1e-4, atol=1e-4)


def test_the_models_own_translation_and_other_models() -> None:
    made = translator("post")
    found = made.cross_attention("a1 b2")
    expected = made.loaded.tokenizer.encode(made.translate("a1 b2")).ids
    assert found.tokens == [made.loaded.tokenizer.piece(i) for i in expected] + ["[SEP]"]
    with pytest.raises(InputError, match="has no tokens"):
        made.cross_attention(" ", "a1")
    with pytest.raises(ConfigError, match="has no cross-attention: firth pretrain --model transformer-mini"):
        tiny_language_model("bert").cross_attention("a1")


@pytest.mark.unchecked
def test_averages() -> None:
    weights = np.random.default_rng(0).random((2, 3, 4, 4)).astype(np.float32)
    found = Attention(list("abcd"), weights)
    assert found.mean("heads").weights[:, 0] == pytest.approx(weights.mean(1))
    assert found.mean("layers").weights[0] == pytest.approx(weights.mean(0))
    assert found.mean("all").weights[0, 0] == pytest.approx(weights.mean((0, 1)), abs=1e-6)
    with pytest.raises(ConfigError, match="expected one of heads, layers, all"):
        found.mean("rows")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["bert", "gpt"])
def test_a_head_left_out_is_a_head_whose_output_weights_are_zero(name: str) -> None:
    made, texts = tiny_language_model(name), ["a1 b2 c3 d4", "e5 f0 a1"]
    found = made.head_importance(texts)
    assert found.shape == (2, 2)

    def mean() -> float:
        values = [t.log_probability for s in made.score_texts(texts) for t in s.tokens]
        return sum(values) / len(values)

    whole = mean()
    for number, layer in enumerate(attention_layers(made.loaded.objective.encoder)):
        for head in range(2):
            kept = layer.output.weight.detach().clone()
            with torch.no_grad():
                layer.output.weight[:, head * 8 : head * 8 + 8] = 0
            assert found[number, head] == pytest.approx(whole - mean(), abs=1e-4)
            with torch.no_grad():
                layer.output.weight.copy_(kept)
    assert mean() == pytest.approx(whole), "nothing stays behind"
    with pytest.raises(ConfigError, match="only Transformers have"):
        tiny_language_model("lstm").head_importance(texts)


@pytest.mark.parametrize(("system", "begin"), [("bert", 0), ("gpt", 1)])
def test_without_the_root_the_softmax_is_sharper(system: str, begin: int) -> None:
    made = tiny_language_model(system)
    for one, weights in zip(made.saturation("a1 b2 c3"), made.attention("a1 b2 c3").weights, strict=True):
        chosen = weights[:, begin:]  # in causal attention the first query has no choice
        assert one.largest == pytest.approx(chosen.max(-1).mean(), abs=1e-6)
        assert one.slope == pytest.approx((chosen * (1 - chosen)).sum(-1).mean(), abs=1e-6)
        # By hand: multiplying the logarithms by √D undoes the division.
        sharper = np.exp(math.sqrt(8) * np.log(np.maximum(chosen, 1e-300, dtype=np.float64)))
        sharper /= sharper.sum(-1, keepdims=True)
        assert one.largest_unscaled == pytest.approx(sharper.max(-1).mean(), abs=1e-4)
        assert one.largest_unscaled > one.largest and one.slope_unscaled < one.slope


def test_one_token_has_no_choice() -> None:
    with pytest.raises(InputError, match="one token, which can attend to itself alone"):
        tiny_language_model("gpt").saturation("a1")
