"""The bidirectional language model: directions, residuals, carried state."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from firth.errors import ConfigError
from firth.models.bilm import Bilm
from firth.models.config import BilmConfig
from firth.packed import Rows, Tokens
from firth.text.characters import BEGIN_SENTENCE, END_SENTENCE, character_rows, mark_row

TEXT = ["the", "old", "cat", "sat", "on", "a", "mat", "with", "purposefulness", "and", "so", "did", "the", "dog"]
SIZES: dict[str, Any] = {
    "vocab_size": 9,
    "width": 6,
    "cells": 8,
    "n_layers": 3,
    "character_width": 3,
    "filters": ((1, 4), (3, 5)),
    "n_highways": 1,
}


def made(**changed: Any) -> Bilm:
    torch.manual_seed(0)
    encoder = Bilm(BilmConfig(**{**SIZES, **changed}))
    for name, parameter in encoder.named_parameters():
        if "layers" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    return encoder.double().eval()


def tokens_of(*rows: list[str]) -> Tokens:
    words = [word for row in rows for word in row]
    chars = torch.from_numpy(character_rows(words).astype("int32"))
    return Tokens(
        Rows.from_lengths([len(row) for row in rows]), torch.zeros(len(words), dtype=torch.int64), chars=chars
    )


def test_it_is_two_stacks_with_residuals_from_the_second_layer_on() -> None:
    encoder, row = made(cell_clip=0.0, projection_clip=0.0), TEXT[:5]
    hidden = encoder(tokens_of(row), keep=(0, 1, 2, 3))
    x = encoder.words(tokens_of(row).chars)
    torch.testing.assert_close(hidden.layers[0], torch.cat([x, x], 1))
    sizes, start = torch.ones(5, dtype=torch.int64), (torch.zeros(1, 6).double(), torch.zeros(1, 8).double())
    halves: list[list[Tensor]] = []
    for direction, y in ((encoder.ahead, x), (encoder.back, x.flip(0))):
        found = []
        for number, layer in enumerate(direction.layers):
            out = layer(y, sizes, start)[0]
            y = out + y if number else out
            found.append(y)
        halves.append(found if direction is encoder.ahead else [layer.flip(0) for layer in found])
    for number in range(3):
        expected = torch.cat([halves[0][number], halves[1][number]], 1)
        torch.testing.assert_close(hidden.layers[number + 1], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(hidden.summary, torch.cat([halves[0][2][-1:], halves[1][2][:1]], 1))


def test_without_residuals_a_layer_is_its_output() -> None:
    with_them, without = made(), made(residual=False)
    without.load_state_dict(with_them.state_dict())
    a, b = (encoder(tokens_of(TEXT), keep=(0, 1, 2)) for encoder in (with_them, without))
    assert torch.equal(a.layers[0], b.layers[0]) and torch.equal(a.layers[1], b.layers[1])
    torch.testing.assert_close(a.layers[2] - b.layers[2], b.layers[1], rtol=0, atol=1e-12)


def test_each_half_knows_one_side_alone() -> None:
    encoder, other = made(), [*TEXT[:4], "DIFFERENT", *TEXT[5:]]
    for layer in (1, 3):
        (ahead, back), (ahead2, back2) = (
            encoder(tokens_of(row), keep=(layer,)).top.chunk(2, 1) for row in (TEXT, other)
        )
        assert torch.equal(ahead[:4], ahead2[:4]) and torch.equal(back[5:], back2[5:])
        assert not torch.allclose(ahead[4:], ahead2[4:]) and not torch.allclose(back[:5], back2[:5])


def test_rows_of_different_length_are_each_as_alone() -> None:
    encoder, rows = made(), [TEXT[:3], TEXT, TEXT[5:6], TEXT[2:9]]
    together = encoder(tokens_of(*rows), keep=(0, 1, 3))
    bounds = together.rows.offsets.tolist()
    for number, row in enumerate(rows):
        alone = encoder(tokens_of(row), keep=(0, 1, 3))
        for layer in (0, 1, 3):
            found = together.layers[layer][bounds[number] : bounds[number + 1]]
            torch.testing.assert_close(found, alone.layers[layer], rtol=0, atol=1e-12)
        torch.testing.assert_close(together.summary[number], alone.summary[0], rtol=0, atol=1e-12)
        for name, state in alone.carry.items():
            torch.testing.assert_close(together.carry[name][:, number], state[:, 0], rtol=0, atol=1e-12)


def test_the_state_carried_on_makes_one_row_of_two() -> None:
    encoder = made()
    whole = encoder(tokens_of(TEXT)).top.chunk(2, 1)
    first = encoder(tokens_of(TEXT[:6]))
    second = encoder(tokens_of(TEXT[6:]), carry=first.carry)
    torch.testing.assert_close(torch.cat([first.top, second.top]).chunk(2, 1)[0], whole[0], rtol=0, atol=1e-12)
    # Backward, the later part must be read first for the state to carry over.
    last = encoder(tokens_of(TEXT[6:]))
    before = encoder(tokens_of(TEXT[:6]), carry=last.carry)
    torch.testing.assert_close(torch.cat([before.top, last.top]).chunk(2, 1)[1], whole[1], rtol=0, atol=1e-12)


def test_state_beyond_the_rows_stays() -> None:
    encoder = made()
    carry = encoder(tokens_of(TEXT[:3], TEXT[3:5], TEXT[5:])).carry
    after = encoder(tokens_of(TEXT[:2]), carry=carry).carry
    for name, state in after.items():
        assert state.shape == carry[name].shape
        assert torch.equal(state[:, 1:], carry[name][:, 1:]) and not torch.equal(state[:, 0], carry[name][:, 0])


def test_words_are_read_once_and_by_their_characters_alone() -> None:
    encoder, read = made(), []
    encoder.words.register_forward_hook(lambda _, given, out: read.append(len(given[0])))
    tokens = tokens_of(["the", "cat", "the", "the"], ["cat"])
    layer = encoder(tokens, keep=(0,)).top
    assert read == [2] and torch.equal(layer[0], layer[3]) and not torch.equal(layer[0], layer[1])
    other = dataclasses.replace(tokens, ids=tokens.ids + 5)
    assert torch.equal(encoder(other, keep=(0,)).top, layer)
    with pytest.raises(ValueError, match="tokens.chars is missing"):
        encoder(dataclasses.replace(tokens, chars=None))


def test_an_empty_sentence_is_its_marks() -> None:
    marks = torch.stack([torch.from_numpy(mark_row(m).astype("int32")) for m in (BEGIN_SENTENCE, END_SENTENCE)])
    hidden = made()(Tokens(Rows.from_lengths([2]), torch.tensor([1, 3]), chars=marks), keep=(0, 1, 2, 3))
    assert all(layer[1:-1].shape == (0, 12) for layer in hidden.layers.values())
    assert hidden.summary.shape == (1, 12) and bool(hidden.summary.isfinite().all())


def test_the_original_has_as_many_parameters_as_published() -> None:
    with torch.device("meta"):
        encoder = Bilm(BilmConfig(vocab_size=793_471))
    assert sum(p.numel() for p in encoder.parameters()) == 93_600_848
    assert encoder.widths == (1024, 1024, 1024)
    assert [len(group) > 0 for group in encoder.layer_groups()] == [True] * 3


def test_dropout_falls_on_the_input_of_each_layer_and_on_its_residual() -> None:
    """With weights of zero a layer outputs zero, so its residual shows what dropout kept of the input."""
    encoder = made(dropout=0.25).train()
    with torch.no_grad():
        for direction in (encoder.ahead, encoder.back):
            for layer in direction.layers[1:]:
                for parameter in layer.parameters():
                    parameter.zero_()
    rows, kept, n = [TEXT] * 30, 0, 0
    torch.manual_seed(3)
    layers = encoder(tokens_of(*rows), keep=(0, 1, 2)).layers
    ratio = layers[2] / layers[1]
    kept, n = int((ratio != 0).sum()), ratio.numel()
    assert kept / n == pytest.approx(0.75, abs=0.02)
    torch.testing.assert_close(ratio[ratio != 0], torch.full((kept,), 4 / 3).double(), rtol=1e-4, atol=0)
    # Layer 0 is not dropped: dropout applies only to the LSTMs' inputs.
    assert torch.equal(layers[0], encoder.eval()(tokens_of(*rows), keep=(0,)).top)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"width": 0}, "width=0: expected at least 1"),
        ({"cell_clip": -1.0}, "expected 0 or more"),
        ({"filters": ()}, "at least one pair"),
        ({"filters": ((51, 3),)}, "a size, 1 to 50"),
        ({"filters": ((1, 2, 3),)}, "pairs of a size"),
        ({"dropout": 1.0}, "less than 1"),
    ],
)
def test_impossible_sizes_are_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BilmConfig(**{**SIZES, **changed})
