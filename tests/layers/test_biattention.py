"""The biattentive network against the paper's formulas, one example at a time, without batch or mask."""

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from firth.layers.batch_norm import BatchNorm
from firth.layers.biattention import PIECES, BiattentiveNetwork, Maxout, attended, partners, softmax_rows
from firth.layers.recurrent import BiRNN
from firth.packed import Rows

WIDTH_IN, WIDTH, K = 6, 4, 3
# Lengths of the texts of each example.
EXAMPLES = ((3, 5), (4,), (1, 1), (1,), (7, 2))


def network(dropout: float = 0.0) -> BiattentiveNetwork:
    torch.manual_seed(0)
    made = BiattentiveNetwork(WIDTH_IN, K, width=WIDTH, dropout=dropout).double()
    for name, p in made.named_parameters():
        nn.init.normal_(p, std=0.4 if p.dim() > 1 else 0.2)
        if name.endswith("norm.weight"):
            nn.init.uniform_(p, 0.5, 1.5)
    for part in made.modules():
        if isinstance(part, BatchNorm):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
    return made


def texts(lengths: Sequence[int]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(10**i * n for i, n in enumerate(lengths)))
    return [torch.randn(n, WIDTH_IN, dtype=torch.float64, generator=generator) for n in lengths]


def packed(examples: Sequence[Sequence[Tensor]]) -> tuple[Tensor, Rows, Tensor]:
    rows = [text for example in examples for text in example]
    second = torch.tensor([bool(place) for example in examples for place in range(len(example))])
    return torch.cat(rows), Rows.from_lengths([len(row) for row in rows]), second


def bilstm(made: BiRNN, x: Tensor) -> Tensor:
    """PyTorch's BiLSTM over one text."""
    (layer,) = made.layers
    found: Tensor = layer(x[:, None])[0][:, 0]
    return found


def pooled(made: BiattentiveNetwork, example: Sequence[Tensor]) -> Tensor:
    """[x_pool ; y_pool] by the formulas of McCann et al. 2017, §4; the softmaxes run down the columns."""
    first, last = example[0], example[-1]
    x, y = (bilstm(made.read, made.project(text).relu()) for text in (first, last))
    scores = x @ y.T
    a_x, a_y = scores.softmax(0), scores.T.softmax(0)
    c_x, c_y = a_x.T @ x, a_y.T @ y
    found = []
    for text, context in ((x, c_y), (y, c_x)):
        joint = bilstm(made.integrate, torch.cat([text, text - context, text * context], 1))
        share = (joint @ made.attend.weight[0]).softmax(0)
        found += [joint.amax(0), joint.mean(0), joint.amin(0), joint.T @ share]
    return torch.cat(found)


def expected(made: BiattentiveNetwork, examples: Sequence[Sequence[Tensor]]) -> Tensor:
    """Outputs for the examples, by PyTorch's batch norm and plain maxima."""
    x = torch.stack([pooled(made, example) for example in examples])
    for layer in made.output:
        assert isinstance(layer, Maxout)
        norm = layer.norm
        x = F.batch_norm(x, norm.running_mean.clone(), norm.running_var.clone(), norm.weight, norm.bias, made.training)
        weights = layer.linear.weight.unflatten(0, (PIECES, -1)), layer.linear.bias.unflatten(0, (PIECES, -1))
        x = torch.stack([F.linear(x, w, b) for w, b in zip(*weights, strict=True)]).amax(0)
    return x


@pytest.mark.parametrize("train", [False, True])
def test_outputs_and_gradients_are_those_of_the_formulas(train: bool) -> None:
    made, examples = network().train(train), [texts(lengths) for lengths in EXAMPLES]
    theirs = expected(made, examples)
    other = torch.autograd.grad(theirs.sin().sum(), list(made.parameters()))
    x, rows, second = packed(examples)
    found = made(x, rows, second)
    assert found.shape == (rows.n_rows, K)
    assert not found[second].any(), "those of the example stand at its first row"
    torch.testing.assert_close(found[~second], theirs, rtol=0, atol=1e-10)
    ours = torch.autograd.grad(found[~second].sin().sum(), list(made.parameters()))
    for (name, _), a, b in zip(made.named_parameters(), ours, other, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10, msg=name)
        assert a.any(), name


def test_company_and_order_change_nothing() -> None:
    made, examples = network().eval(), [texts(lengths) for lengths in EXAMPLES]
    alone = torch.cat([made(*packed([example]))[:1] for example in examples])
    x, rows, second = packed(examples[::-1])
    torch.testing.assert_close(made(x, rows, second)[~second].flip(0), alone, rtol=0, atol=1e-12)


def test_a_text_alone_is_a_pair_of_itself() -> None:
    made, (text,) = network().eval(), texts((5,))
    alone, twice = made(*packed([[text]])), made(*packed([[text, text]]))
    torch.testing.assert_close(alone[0], twice[0], rtol=0, atol=1e-12)


def test_the_texts_of_a_pair_are_told_apart() -> None:
    made, (x, y) = network().eval(), texts((4, 3))
    assert not torch.allclose(made(*packed([[x, y]]))[0], made(*packed([[y, x]]))[0])


def test_what_pads_a_row_is_not_seen() -> None:
    """Padding behind the shorter sequence gets no weight."""
    rows = Rows.from_lengths([2, 6])
    x = torch.randn(8, 3)
    shares = softmax_rows(x[:, 0] - 1e3, rows)
    torch.testing.assert_close(torch.stack([shares[:2].sum(), shares[2:].sum()]), torch.ones(2))
    mean = attended(x, rows, torch.tensor([1, 0]))
    torch.testing.assert_close(mean[:2], (x[:2] @ x[2:].T).softmax(1) @ x[2:])
    torch.testing.assert_close(mean[2:], (x[2:] @ x[:2].T).softmax(1) @ x[:2])


def test_partners_by_hand() -> None:
    partner, first = partners(torch.tensor([False, True, False, False, False, True]))
    assert partner.tolist() == [1, 0, 2, 3, 5, 4] and first.tolist() == [0, 2, 3, 4]


@pytest.mark.parametrize("second", [[True, False], [False, True, True]])
def test_a_second_text_without_a_first_is_our_own_mistake(second: list[bool]) -> None:
    with pytest.raises(ValueError, match="sequences must be in one batch"):
        partners(torch.tensor(second))


def test_dropout_falls_on_what_each_layer_reads() -> None:
    made = network(0.5)
    assert {part.p for name, part in made.named_modules() if name.endswith("dropout")} == {0.5}
    assert sum(name.endswith("dropout") for name, _ in made.named_modules()) == 6
