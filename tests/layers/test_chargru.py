"""The bidirectional character GRU against the equations of torch's cell, word by word."""

import pytest
import torch
from torch import Tensor, nn

from firth.layers.chargru import CharacterGRU
from firth.text.characters import BEGIN_WORD, END_WORD, PADDING, character_rows

WORDS = ["a", "the", "purposefulness", "x" * 60, "한국어", "cat", "the", ""]


def rows_of(words: list[str]) -> Tensor:
    return torch.from_numpy(character_rows(words).astype("int32"))


def made(dropout: float = 0.0) -> CharacterGRU:
    torch.manual_seed(0)
    return CharacterGRU(width=5, character_width=4, dropout=dropout).double()


def read_on(gru: nn.GRU, x: Tensor, suffix: str) -> Tensor:
    """The final state of one direction over x (n, H), by the equations of Cho et al. 2014 in torch's form."""
    weights = [getattr(gru, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    h = x.new_zeros(gru.hidden_size)
    for step in x:
        r_x, z_x, n_x = (weights[0] @ step + weights[2]).chunk(3)
        r_h, z_h, n_h = (weights[1] @ h + weights[3]).chunk(3)
        r, z = (r_x + r_h).sigmoid(), (z_x + z_h).sigmoid()
        h = (1 - z) * (n_x + r * n_h).tanh() + z * h
    return h


def by_hand(layer: CharacterGRU, row: Tensor) -> Tensor:
    x = layer.embedding.weight[row[row != PADDING].long()]
    return torch.cat([read_on(layer.gru, x, ""), read_on(layer.gru, x.flip(0), "_reverse")])


@pytest.mark.parametrize("training", [True, False])
def test_it_is_the_last_states_of_both_directions_with_their_gradients(training: bool) -> None:
    layer, rows = made().train(training), rows_of(WORDS)
    expected = torch.stack([by_hand(layer, row) for row in rows])
    found = layer(rows)
    assert found.shape == (len(WORDS), layer.width)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    weights = torch.randn_like(found)
    ours = torch.autograd.grad((found * weights).sum(), list(layer.parameters()))
    theirs = torch.autograd.grad((expected * weights).sum(), list(layer.parameters()))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


def test_filling_is_not_read_and_marks_are() -> None:
    layer, (row,) = made(), rows_of(["cat"])
    assert row[:6].tolist() == [BEGIN_WORD, *b"cat", END_WORD, PADDING]
    torch.testing.assert_close(layer(row[None, :5]), layer(row[None]), rtol=0, atol=0)
    assert not torch.equal(layer(row[None, :4]), layer(row[None]))


def test_dropout_is_of_the_characters_and_fresh_for_each_word() -> None:
    layer, rows = made(dropout=0.5).train(), rows_of(["cat", "cat"])
    torch.manual_seed(1)
    one, other = layer(rows)
    assert not torch.equal(one, other)
    torch.testing.assert_close(*layer.eval()(rows), rtol=0, atol=1e-12)
