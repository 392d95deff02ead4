"""The parts of an AWD-LSTM against PyTorch's own modules, and the effect of each dropout."""

import pytest
import torch
from torch import Tensor, nn

from firth.layers.awd import LockedDropout, WeightDropLSTM, WordDropout
from firth.layers.recurrent import rectangles
from firth.packed import Rows

RAGGED = [4, 1, 7, 3]
SPARSE = [2, 1, 60, 1]  # in two rectangles
EQUAL = [5, 5, 5]


def layer(dropout: float = 0.0) -> WeightDropLSTM:
    torch.manual_seed(0)
    return WeightDropLSTM(5, 6, dropout).double()


def plain(lstm: WeightDropLSTM, weight_hidden: Tensor | None = None) -> nn.LSTM:
    """PyTorch's own module with the same weights, or with another recurrent matrix."""
    theirs = nn.LSTM(5, 6, batch_first=True).double()
    state = {name: tensor for name, tensor in lstm.state_dict().items() if not name.startswith("weight_dropout")}
    theirs.load_state_dict(state if weight_hidden is None else state | {"weight_hh_l0": weight_hidden})
    return theirs


@pytest.mark.parametrize("lengths", [RAGGED, SPARSE, EQUAL, [1]])
@pytest.mark.parametrize("started", [False, True])
def test_equals_one_row_at_a_time_with_gradients(lengths: list[int], started: bool) -> None:
    lstm, rows = layer(), Rows.from_lengths(lengths)
    theirs = plain(lstm)
    x = torch.randn(rows.n_tokens, 5, dtype=torch.float64, requires_grad=True)
    start = tuple(torch.randn(len(lengths), 6, dtype=torch.float64) for _ in range(2)) if started else None
    out, state = lstm(x, rectangles(rows), start)
    expected, ends = [], []
    for number, row in enumerate(x.split(lengths)):
        begin = None if start is None else (start[0][None, number], start[1][None, number])
        one, end = theirs(row, begin)
        expected.append(one)
        ends.append(end)
    torch.testing.assert_close(out, torch.cat(expected), rtol=0, atol=1e-12)
    assert (state is None) == (len(set(lengths)) > 1)
    if state is not None:
        for ours, part in zip(state, zip(*ends, strict=True), strict=True):
            torch.testing.assert_close(ours, torch.cat(part), rtol=0, atol=1e-12)
    weight = torch.randn_like(out)
    (ours,) = torch.autograd.grad((out * weight).sum(), x, retain_graph=True)
    (other,) = torch.autograd.grad((torch.cat(expected) * weight).sum(), x, retain_graph=True)
    torch.testing.assert_close(ours, other, rtol=0, atol=1e-11)
    names = [name for name, _ in theirs.named_parameters()]
    mine = torch.autograd.grad((out * weight).sum(), [lstm.get_parameter(name) for name in names])
    their = torch.autograd.grad((torch.cat(expected) * weight).sum(), list(theirs.parameters()))
    for name, a, b in zip(names, mine, their, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11, msg=name)


@pytest.mark.parametrize("lengths", [SPARSE, EQUAL])
def test_weight_drop_takes_elements_of_the_recurrent_matrix_alone(lengths: list[int]) -> None:
    """The output equals that of PyTorch's module with the dropped recurrent matrix of this seed."""
    lstm, rows = layer(0.5).train(), Rows.from_lengths(lengths)
    before = {name: tensor.clone() for name, tensor in lstm.state_dict().items()}
    x = torch.randn(rows.n_tokens, 5, dtype=torch.float64)
    torch.manual_seed(3)
    out, _ = lstm(x, rectangles(rows))
    torch.manual_seed(3)
    dropped = lstm.weight_dropout(lstm.weight_hh_l0).detach()
    lost = (dropped == 0).double().mean()
    assert 0.3 < lost < 0.7
    torch.testing.assert_close(dropped[dropped != 0], 2 * lstm.weight_hh_l0.detach()[dropped != 0])
    theirs = plain(lstm, dropped)
    torch.testing.assert_close(out, torch.cat([theirs(row)[0] for row in x.split(lengths)]), rtol=0, atol=1e-12)
    assert all(torch.equal(tensor, before[name]) for name, tensor in lstm.state_dict().items())
    # Dropped elements get no gradient, kept ones twice that of the dropped copy; other gradients are unchanged.
    out.square().sum().backward()
    torch.cat([theirs(row)[0] for row in x.split(lengths)]).square().sum().backward()
    scale = torch.where(dropped == 0, 0.0, 2.0).double()
    torch.testing.assert_close(lstm.weight_hh_l0.grad, theirs.weight_hh_l0.grad * scale, rtol=0, atol=1e-11)
    torch.testing.assert_close(lstm.weight_ih_l0.grad, theirs.weight_ih_l0.grad, rtol=0, atol=1e-11)


def test_weight_drop_is_drawn_once_a_pass_and_not_outside_of_training() -> None:
    lstm, rows = layer(0.5), Rows.from_lengths(EQUAL)
    x = torch.randn(1, 5, dtype=torch.float64).expand(rows.n_tokens, 5)
    lstm.train()
    out = lstm(x, rectangles(rows))[0].unflatten(0, (3, 5))
    assert torch.equal(out[0], out[1]), "rows of one pass share a matrix"
    assert not torch.equal(out[0], lstm(x, rectangles(rows))[0].unflatten(0, (3, 5))[0])
    lstm.eval()
    assert torch.equal(lstm(x, rectangles(rows))[0], lstm(x, rectangles(rows))[0])


def test_locked_dropout_is_the_same_at_every_step_of_a_row() -> None:
    torch.manual_seed(0)
    rows, dropout = Rows.from_lengths([300, 1, 200]), LockedDropout(0.4).train()
    out = dropout(torch.ones(rows.n_tokens, 1000), rows)
    by_row = out.split([300, 1, 200])
    for row in by_row:
        assert torch.equal(row, row[:1].expand_as(row))
    masks = torch.stack([row[0] for row in by_row])
    assert not torch.equal(masks[0], masks[1])
    kept = masks[masks != 0]
    assert kept.unique().numel() == 1 and kept[0].item() == pytest.approx(1 / 0.6, rel=1e-4)
    assert (masks == 0).float().mean().item() == pytest.approx(0.4, abs=0.04)
    assert torch.equal(dropout.eval()(out, rows), out)


def test_word_dropout_takes_a_word_from_the_whole_batch() -> None:
    torch.manual_seed(0)
    weight, dropout = torch.randn(2000, 3), WordDropout(0.25).train()
    ids = torch.arange(2000).repeat(2)
    out = dropout(ids, weight)
    first, second = out.chunk(2)
    assert torch.equal(first, second)
    gone = (first == 0).all(1)
    assert gone.float().mean().item() == pytest.approx(0.25, abs=0.04)
    torch.testing.assert_close(first[~gone], weight[~gone] / 0.75, rtol=1e-4, atol=0)
    assert torch.equal(dropout.eval()(ids, weight), weight[ids])
