"""Contextual vectors: against the encoder's own states, windows, words, scalar mixes."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest
import torch
from tiny_language_models import tiny_language_model

from firth.data.rows import pack_words
from firth.errors import ConfigError, InputError
from firth.folder import PRETRAINING, Loaded
from firth.inference.model import Model
from firth.inference.token_vectors import Mix, windows
from firth.systems import SYSTEMS
from firth.tasks.classify import Classifier
from firth.tasks.config import ClassifyConfig
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

PIECES = [*SPECIALS, "the", "cat", "##s", "sat", ".", "고양이", "##가", "word"]
WORDS = ["<unk>", "<s>", "<sep>", "</s>", "the", "cat", "sat", "."]
MOST = 10
SIZES: dict[str, dict[str, Any]] = {
    "bert": {"n_heads": 2, "feed_forward_width": 12, "max_positions": MOST},
    "gpt": {"n_heads": 2, "max_positions": MOST},
    "lstm": {},
    "awd-lstm": {"hidden_width": 6},
    "elmo": {"cells": 12, "character_width": 4, "filters": ((1, 8), (2, 8))},
}


def model(system_name: str, objective: Any = None) -> Model:
    system = SYSTEMS[system_name]
    tokenizer = Tokenizer.from_vocab(PIECES, lowercase=True)
    if system.characters:
        tokenizer = system.reads(Tokenizer.from_words(WORDS, lowercase=True))
    torch.manual_seed(0)
    sizes = {"vocab_size": tokenizer.size, "width": 8, "n_layers": 2, **SIZES[system_name], **system.fixed}
    encoder = system.encoder(system.config(**sizes))
    made = system.objective(encoder, system.objective_config()) if objective is None else objective(encoder)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return Model(Loaded(system_name, PRETRAINING, made.eval(), tokenizer), torch.device("cpu"), budget_tokens=20)


@pytest.mark.parametrize("system_name", ["bert", "gpt", "lstm", "elmo"])
def test_each_layer_is_the_encoders(system_name: str) -> None:
    made = model(system_name)
    loaded = made.loaded
    texts = ["The cats sat.", "", "고양이가 sat", "the"]
    for text, found in zip(texts, made.vectors(texts), strict=True):
        ids = loaded.tokenizer.encode(text).ids
        width = loaded.objective.encoder.widths[0]
        assert found.layers.shape == (3, len(ids), width) and found.layers.dtype == np.float32
        assert found.word_layers.shape == (3, len(found.words), width)
        if not ids:
            continue
        tokens = pack_words([loaded.layout.single(ids)], loaded.tokenizer)
        with torch.no_grad():
            hidden = loaded.objective.encoder(tokens, keep=(0, 1, 2))
        begin = len(loaded.layout.first)
        for number in range(3):
            expected = hidden.layers[number][begin : begin + len(ids)].numpy()
            assert found.layers[number] == pytest.approx(expected, abs=1e-5)
        assert found.layer(-1) == pytest.approx(found.layers[2])


def test_words_are_the_mean_of_their_tokens_at_their_places() -> None:
    found = model("bert").vectors("The cats, 고양이가")
    assert [(w.text, w.start, w.end) for w in found.words] == [
        ("The", 0, 3),
        ("cats", 4, 8),
        (",", 8, 9),
        ("고양이가", 10, 14),
    ]
    assert [t.text for t in found.tokens] == ["the", "cat", "##s", "[UNK]", "고양이", "##가"]
    assert found.spans == ((0, 1), (1, 3), (3, 4), (4, 6))
    top = found.layer(-1)
    assert found.of_words(top)[1] == pytest.approx(top[1:3].mean(0), abs=1e-6)
    assert found.of_words(top, "first")[3] == pytest.approx(top[4])
    assert found.of_words(top, "last")[3] == pytest.approx(top[5])
    assert found.word_at("the") == 0
    with pytest.raises(InputError, match="'dog' is not a word of .*: its words are The, cats"):
        found.word_at("dog")


def test_a_word_is_found_whether_its_letters_are_composed_or_not() -> None:
    for text, word in (("The 고양이가", "고양이가"), ("The Café", "café")):
        forms = [(normalize(a, text), normalize(b, word)) for a in ("NFC", "NFD") for b in ("NFC", "NFD")]
        assert [model("bert").vectors(text).word_at(word) for text, word in forms] == [1] * 4


def test_a_text_longer_than_the_model_is_read_in_overlapping_windows() -> None:
    made = model("bert")
    text = " ".join(["the cat sat word"] * 5)
    found = made.vectors(text)
    ids = made.loaded.tokenizer.encode(text).ids
    for begin, first, last in windows(len(ids), MOST - 2):
        row = made.loaded.layout.single(ids[begin : begin + MOST - 2])
        with torch.no_grad():
            top = made.loaded.objective.encoder(pack_words([row], made.loaded.tokenizer)).top.numpy()
        assert found.layer(-1)[first:last] == pytest.approx(top[1 + first - begin : 1 + last - begin], abs=1e-5)


@pytest.mark.parametrize("n", range(40))
@pytest.mark.parametrize("room", [1, 2, 5, 8])
@pytest.mark.parametrize("causal", [False, True])
def test_windows_take_each_token_once_with_the_most_context(n: int, room: int, causal: bool) -> None:
    found = windows(n, room, causal=causal)
    taken = [i for _, first, last in found for i in range(first, last)]
    assert taken == list(range(n))

    def context(begin: int, i: int) -> int:
        return i - begin if causal else min(i - begin, begin + room - 1 - i)

    for begin, first, last in found:
        assert begin >= 0 and begin + room <= max(n, room)
        for i in range(first, last):
            others = [context(b, i) for b, _, _ in found if b <= i < b + room]
            assert context(begin, i) == max(others) if n > room else begin == 0


@pytest.mark.parametrize(
    ("mix", "expected"),
    [
        (Mix(kind="sum", last=2), lambda a, b, c: b + c),
        (Mix(kind="mean"), lambda a, b, c: (a + b + c) / 3),
        (Mix(kind="concat", last=2), lambda a, b, c: np.concatenate([b, c], 1)),
        (Mix(kind="scalar", weights=(0.5, 0.0, 2.0), gamma=3.0), lambda a, b, c: 1.5 * a + 6 * c),
    ],
)
def test_mixes(mix: Mix, expected: Any) -> None:
    made = model("bert")
    resolved = made.mix(mix)
    whole = made.vectors("the cats sat")
    wanted = expected(*whole.layers)
    assert whole.mixed(resolved) == pytest.approx(wanted, abs=1e-5)
    (only,) = made.vectors_stream(["the cats sat"], resolved)
    assert only.numbers == resolved.numbers and only.mixed(resolved) == pytest.approx(wanted, abs=1e-5)
    # Text vectors: pooled over all tokens, special ones included, as with a single layer.
    pooled = made.embed("the cats sat", pool="mean", mix=mix)
    layers = [made.embed("the cats sat", layer, "mean")[None] for layer in range(3)]
    assert pooled == pytest.approx(expected(*layers)[0], abs=1e-5)
    assert made.embed([], mix=mix).shape == (0, wanted.shape[1])


def test_a_learned_scalar_mix_is_the_models_own() -> None:
    options = ClassifyConfig(labels=("a", "b"))
    network = replace(options.network, mix="scalar", layers=(0, 1, 2), pool="mean")
    made = model("bert", lambda encoder: Classifier(encoder, replace(options, network=network)))
    features = next(module for module in made.loaded.objective.modules() if hasattr(module, "scalars"))
    shares = (features.scalars.softmax(0) * features.gamma).tolist()
    found = made.vectors("the cats sat")
    expected = sum(share * layer for share, layer in zip(shares, found.layers, strict=True))
    assert found.mixed(made.mix(Mix(kind="scalar"))) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ConfigError, match="a learned scalar mix has its own layers"):
        made.mix(Mix(kind="scalar", last=1))
    with pytest.raises(ConfigError, match="has not learned a scalar mix: give its weights"):
        model("bert").mix(Mix(kind="scalar"))


def test_mixes_that_make_no_sense_are_refused() -> None:
    made, uneven = model("bert"), model("awd-lstm")
    for mix, message in (
        (Mix(kind="sum", last=4), "this model has 3 layers"),
        (Mix(kind="scalar", weights=(1.0,)), "3 layers has 1 weights"),
    ):
        with pytest.raises(ConfigError, match=message):
            made.mix(mix)
    with pytest.raises(ConfigError, match="use concat"):
        uneven.mix(Mix(kind="mean"))
    found = uneven.vectors("the cat")
    assert found.mixed(uneven.mix(Mix(kind="concat"))).shape == (2, 8 + 6 + 8)
    with pytest.raises(ConfigError, match="hidden sizes"):
        _ = found.layers
    with pytest.raises(ConfigError, match="weights and gamma apply to a scalar mix"):
        Mix(kind="sum", weights=(1.0,))
    with pytest.raises(ConfigError, match="layer 3: this model has layers 0"):
        list(made.vectors_stream(["the"], 3))


def test_the_same_word_differs_by_its_sentence_but_not_below(tmp_path: Path) -> None:
    first, second = model("elmo").vectors(["the cat sat .", "sat the cat the"])
    a, b = first.word_layers[:, 1], second.word_layers[:, 2]
    assert a[0] == pytest.approx(b[0], abs=1e-6)
    assert not np.allclose(a[2], b[2], atol=1e-3)


def test_memory_holds_a_block_of_texts_not_all() -> None:
    made, read = model("lstm"), 0

    def texts() -> Any:
        nonlocal read
        for _ in range(20):
            read += 1
            yield "the cat"

    for number, _ in enumerate(made.vectors_stream(texts(), -1, at_once=4), start=1):
        assert read <= number + 4
    assert read == 20


def test_layers_that_are_not_stored_are_named() -> None:
    (found,) = tiny_language_model("bert").vectors_stream(["a1 b2"], 1)
    assert np.array_equal(found.layer(1), found.layer(-1))
    for number in (2, -2, 99):
        with pytest.raises(ConfigError, match=f"layer {number}: these vectors are of the layers 1$"):
            found.layer(number)
