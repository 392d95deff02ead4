"""Whether B follows A: against the head by hand; a model without the head says how to get one."""

import pytest
import torch
from tiny_language_models import tiny_language_model

from firth.data.rows import pack_lists
from firth.errors import ConfigError, InputError, LengthError
from firth.folder import PRETRAINING, Loaded
from firth.inference.model import Model


def test_the_probability_is_the_heads() -> None:
    made = tiny_language_model("bert")
    pairs = [("a1 b2", "c3"), ("d4", "e5 f0 a1"), ("c3", "a1 b2")]
    found = made.follows([a for a, _ in pairs], [b for _, b in pairs])
    for (a, b), value in zip(pairs, found, strict=True):
        row, segments = made.loaded.layout.pair(*(made.loaded.tokenizer.encode(text).ids for text in (a, b)))
        with torch.no_grad():
            summary = made.loaded.objective.encoder(pack_lists([row], [segments])).summary
            expected = made.loaded.objective.nsp(summary).softmax(1)[0, 0]
        assert value == pytest.approx(float(expected), abs=1e-5)
        assert made.follows(a, b) == pytest.approx(value, abs=1e-5)
    assert found[0] != pytest.approx(found[2], abs=1e-4)


def test_what_cannot_be_asked() -> None:
    made = tiny_language_model("bert")
    with pytest.raises(InputError, match="has no tokens: give two texts"):
        made.follows("a1", " ")
    with pytest.raises(InputError, match="'abc' is one text: expected a list of them"):
        made.follows("abc", ["a1", "b2", "c3"])
    with pytest.raises(InputError, match="2 first texts and 1 second ones: expected equal numbers"):
        made.follows(["a1", "b2"], ["c3"])
    with pytest.raises(InputError, match="'ab': expected a pair of texts"):
        list(made.follows_stream(text for text in ["ab"]))
    with pytest.raises(LengthError, match="has 18 tokens, the model reads at most 16"):
        made.follows("a1 " * 5, "b2 " * 10)
    with pytest.raises(ConfigError, match="no trained next-sentence head: train one with firth pretrain"):
        tiny_language_model("gpt").follows("a1", "b2")
    bare = Loaded("bert", PRETRAINING, made.loaded.objective, made.loaded.tokenizer, untrained=("nsp",))
    with pytest.raises(ConfigError, match="no trained next-sentence head"):
        Model(bare, torch.device("cpu")).follows("a1", "b2")
