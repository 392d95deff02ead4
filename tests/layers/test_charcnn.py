"""The character CNN against a loop over words, filters and windows."""

import math

import pytest
import torch
from torch import Tensor

from firth.layers.charcnn import CharacterCNN, Highway, each_once, without_idle_filling
from firth.text.characters import PADDING, character_rows

WORDS = ["a", "the", "purposefulness", "x" * 60, "한국어", "cat", ""]
FILTERS = ((1, 3), (2, 4), (5, 6))


def rows_of(words: list[str]) -> Tensor:
    return torch.from_numpy(character_rows(words).astype("int32"))


def made(activation: str = "relu", width: int = 5, n_highways: int = 2) -> CharacterCNN:
    torch.manual_seed(0)
    cnn = CharacterCNN(
        width=width, character_width=4, filters=FILTERS, n_highways=n_highways, activation=activation
    ).double()
    for parameter in cnn.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return cnn


def by_hand(cnn: CharacterCNN, row: Tensor, activation: str) -> Tensor:
    """One word, over all 50 characters."""
    x, found = cnn.embedding.weight[row.long()], []
    for convolution in cnn.convolutions:
        n, _, size = convolution.weight.shape
        for k in range(n):
            windows = [
                (x[at : at + size].T * convolution.weight[k]).sum() + convolution.bias[k] for at in range(51 - size)
            ]
            highest = torch.stack(windows).max()
            found.append(highest.clamp(min=0) if activation == "relu" else highest.tanh())
    y = torch.stack(found)
    for highway in cnn.highways:
        gate = 1 / (1 + (-(highway.gate.weight @ y + highway.gate.bias)).exp())
        y = gate * (highway.transform.weight @ y + highway.transform.bias).clamp(min=0) + (1 - gate) * y
    if isinstance(cnn.projection, torch.nn.Linear):
        y = cnn.projection.weight @ y + cnn.projection.bias
    return y


@pytest.mark.parametrize(("activation", "width"), [("relu", 5), ("tanh", 5), ("relu", 13)])
def test_it_is_the_loop_over_windows_with_its_gradients(activation: str, width: int) -> None:
    cnn = made(activation, width)
    rows = rows_of(WORDS)
    expected = torch.stack([by_hand(cnn, row, activation) for row in rows])
    found = cnn(rows)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    weights = torch.randn_like(found)
    ours = torch.autograd.grad((found * weights).sum(), list(cnn.parameters()))
    theirs = torch.autograd.grad((expected * weights).sum(), list(cnn.parameters()))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def test_there_is_a_projection_only_where_it_is_needed() -> None:
    assert isinstance(made(width=13).projection, torch.nn.Identity)
    assert made(width=5).projection.weight.shape == (5, 13)
    assert len(made(n_highways=0).highways) == 0


def test_filling_that_cannot_matter_is_left_out_and_no_other() -> None:
    rows = rows_of(["cat", "a"])
    assert without_idle_filling(rows, 5).shape == (2, 10)
    assert without_idle_filling(rows_of(["x" * 60, "a"]), 5).shape == (2, 50)
    # Padding has a vector: with fewer padding columns than the widest filter, the maximum would differ.
    cnn = made()
    with torch.no_grad():
        cnn.embedding.weight[PADDING] = 5.0
    torch.testing.assert_close(cnn(rows)[0], by_hand(cnn, rows[0], "relu"), rtol=0, atol=1e-10)
    short = torch.cat([convolution(cnn.embedding(rows[:, :6]).mT).amax(2) for convolution in cnn.convolutions], 1)
    full = torch.cat([convolution(cnn.embedding(rows).mT).amax(2) for convolution in cnn.convolutions], 1)
    assert not torch.allclose(short, full)


def test_a_word_alone_is_the_word_among_many() -> None:
    cnn = made()
    words = [f"word{'s' * (n % 40)}{n}" for n in range(600)]
    together = cnn(rows_of(words))
    for n in (0, 1, 39, 300, 599):
        torch.testing.assert_close(cnn(rows_of([words[n]]))[0], together[n], rtol=0, atol=1e-10)


def test_how_it_begins() -> None:
    torch.manual_seed(0)
    cnn = CharacterCNN(width=64, character_width=16, filters=((3, 256),), n_highways=1, activation="relu")
    assert -1 <= cnn.embedding.weight.min() < -0.9 and 0.9 < cnn.embedding.weight.max() <= 1
    assert 0.045 < cnn.convolutions[0].weight.abs().max() <= 0.05
    highway = cnn.highways[0]
    assert isinstance(highway, Highway)
    assert (highway.gate.bias == -2).all() and (highway.transform.bias == 0).all()
    for weight, std in (
        (highway.gate.weight, 1 / 16),
        (highway.transform.weight, 1 / 16),
        (cnn.projection.weight, 1 / 16),
    ):
        assert float(weight.detach().std()) == pytest.approx(std, rel=0.05)
    cnn = CharacterCNN(width=64, character_width=16, filters=((3, 256),), n_highways=1, activation="tanh")
    assert float(cnn.convolutions[0].weight.detach().std()) == pytest.approx(1 / math.sqrt(48), rel=0.05)


def test_each_different_word_is_read_once() -> None:
    cnn, rows, n_read = made(), rows_of(["a", "the", "a", "cat", "the"]), []

    def read(words: Tensor) -> Tensor:
        n_read.append(len(words))
        return cnn(words)

    torch.testing.assert_close(each_once(read, rows), cnn(rows), rtol=0, atol=1e-12)
    assert n_read == [3]


def test_dropout_is_of_the_characters_vectors() -> None:
    """With every character vector dropped, each convolution outputs only its bias."""
    cnn = CharacterCNN(
        width=7, character_width=4, filters=((3, 7),), n_highways=0, activation="tanh", dropout=1.0
    ).double()
    torch.nn.init.normal_(cnn.convolutions[0].bias)
    rows = rows_of(["cat", "dog"])
    expected = cnn.convolutions[0].bias.tanh().expand(2, -1)
    # Even at p = 1, an element is kept with probability 1 / 65,536.
    torch.manual_seed(0)
    torch.testing.assert_close(cnn.train()(rows), expected, rtol=0, atol=1e-3)
    assert not torch.allclose(cnn.eval()(rows), expected)
