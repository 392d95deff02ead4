"""Bidirectional LSTM and GRU over packed sequences against torch's own, one sequence at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from firth.layers.recurrent import BiRNN, Cell, by_time, rectangles
from firth.packed import Rows

LENGTHS = [[1], [4], [1, 1, 1], [2, 5, 1], [5, 2, 2, 7, 1, 7], [2, 30, 1, 2, 40, 3]]  # the last in two rectangles


def test_order_by_hand() -> None:
    """Sequences of tokens 0-1, 2-4 and 5."""
    order, sizes = by_time(Rows.from_lengths([2, 3, 1]))
    assert order.tolist() == [2, 0, 5, 3, 1, 4]
    assert sizes.tolist() == [3, 2, 1]


@settings(max_examples=30)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_order_reads_every_row_forward_once(lengths: list[int]) -> None:
    rows = Rows.from_lengths(lengths)
    order, sizes = by_time(rows)
    assert sorted(order.tolist()) == list(range(rows.n_tokens))
    steps = order.split(sizes.tolist())
    for number, step in enumerate(steps):
        assert rows.positions[step].tolist() == [number] * len(step)
    # Each step has the first sequences of the step before, in the same order.
    of_row = rows.row_of_token()
    for step, following in zip(steps, steps[1:], strict=False):
        assert torch.equal(of_row[step][: len(following)], of_row[following])


def test_rectangles_by_hand() -> None:
    """Lengths 40 and 30 share one rectangle, the short ones another."""
    across = rectangles(Rows.from_lengths([2, 30, 1, 2, 40, 3]))
    assert [rows.tolist() for rows in across.rows] == [[1, 4], [0, 2, 3, 5]]
    assert across.plan.groups[:, :2].tolist() == [[2, 40], [4, 3]]


every_cell = pytest.mark.parametrize("cell", ["lstm", "gru"])


def one_row_at_a_time(layer: BiRNN, x: Tensor, rows: Rows, cell: Cell) -> Tensor:
    """torch's own layers with the same weights, on (length, 1, H), each with its own sampled dropout."""
    for part in layer.layers:
        assert isinstance(part, nn.LSTM | nn.GRU)
        with torch.random.fork_rng():  # initialisation must not advance the generator
            make = nn.LSTM if cell == "lstm" else nn.GRU
            alone = make(part.input_size, part.hidden_size, bidirectional=True).double()
        state, inputs = dict(part.named_parameters()), layer.dropout(x).split(rows.lengths.tolist())
        x = torch.cat([torch.func.functional_call(alone, state, (row[:, None],))[0][:, 0] for row in inputs])
    return x


@every_cell
@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_output_and_gradients_equal_one_row_at_a_time(lengths: list[int], n_layers: int, cell: Cell) -> None:
    torch.manual_seed(0)
    rows = Rows.from_lengths(lengths)
    layer = BiRNN(3, 4, n_layers, dropout=0.0, cell=cell).double()
    x = torch.randn(rows.n_tokens, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(rows.n_tokens, 8, dtype=torch.float64)
    inputs = [x, *layer.parameters()]
    expected = one_row_at_a_time(layer, x, rows, cell)
    gradients = torch.autograd.grad(expected, inputs, weight)
    for form in (layer, layer.eval()):
        found = form(x, rows)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        for one, other in zip(torch.autograd.grad(found, inputs, weight), gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@every_cell
@pytest.mark.parametrize("lengths", [[4], [5, 2, 2, 7, 1, 7], [2, 30, 1]])
def test_training_drops_what_torch_reads_with_the_same_draws(lengths: list[int], cell: Cell) -> None:
    torch.manual_seed(0)
    rows = Rows.from_lengths(lengths)
    layer = BiRNN(3, 4, 2, dropout=0.5, cell=cell).double()
    x = torch.randn(rows.n_tokens, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(rows.n_tokens, 8, dtype=torch.float64)
    inputs, outs = [x, *layer.parameters()], []
    for form in (layer, lambda x, rows: one_row_at_a_time(layer, x, rows, cell)):
        torch.manual_seed(1)
        outs.append(form(x, rows))
    torch.testing.assert_close(*outs, rtol=0, atol=1e-12)
    ours, theirs = (torch.autograd.grad(out, inputs, weight) for out in outs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@every_cell
def test_each_half_has_seen_its_side_of_the_row_only(cell: Cell) -> None:
    torch.manual_seed(0)
    rows = Rows.from_lengths([3, 4])
    layer = BiRNN(2, 3, 1, dropout=0.0, cell=cell)
    x = torch.randn(7, 2)
    changed = x.clone()
    changed[4] += 1  # the second word of the second sequence
    differs = (layer(x, rows) != layer(changed, rows)).unflatten(1, (2, 3)).any(2)
    assert differs[:, 0].tolist() == [False] * 4 + [True] * 3
    assert differs[:, 1].tolist() == [False] * 3 + [True] * 2 + [False] * 2


@every_cell
def test_initial_parameters(cell: Cell) -> None:
    torch.manual_seed(0)
    layer = BiRNN(6, 5, 2, dropout=0.0, cell=cell)
    for name, parameter in layer.named_parameters():
        gates = parameter.detach().chunk(4 if cell == "lstm" else 3)
        for number, gate in enumerate(gates):
            if "weight_hh" in name:
                torch.testing.assert_close(gate @ gate.T, torch.eye(5), rtol=0, atol=1e-5)
            elif "weight_ih" in name:
                limit = (6 / (gate.shape[0] + gate.shape[1])) ** 0.5
                assert 0.8 * limit < gate.abs().max() <= limit
            else:
                assert gate.tolist() == [1.0 if (cell, number) == ("lstm", 1) and "bias_ih" in name else 0.0] * 5


def test_dropout_falls_on_the_input_of_every_layer_in_training() -> None:
    """With recurrent weights and biases of zero, a layer depends only on its input after dropout."""
    torch.manual_seed(0)
    rows = Rows.from_lengths([200])
    layer = BiRNN(1, 1, 1, dropout=0.5)
    for name, parameter in layer.named_parameters():
        parameter.data.fill_(0.0 if "hh" in name or "bias" in name else 1.0)
    # The forget gate of an LSTM still carries its cell: close it.
    for suffix in ("", "_reverse"):
        getattr(layer.layers[0], f"bias_ih_l0{suffix}").data[1] = -100.0
    out = layer(torch.ones(200, 1), rows)
    zero, doubled = torch.tensor(0.0), torch.tensor(2.0)
    kept = torch.sigmoid(doubled) * torch.tanh(torch.sigmoid(doubled) * torch.tanh(doubled))
    is_zero, is_kept = torch.isclose(out, zero), torch.isclose(out, kept)
    assert bool((is_zero | is_kept).all())
    assert 60 < int(is_zero[:, 0].sum()) < 140
    assert torch.equal(is_zero[:, 0], is_zero[:, 1])  # both directions read the same word
    layer.eval()
    assert torch.equal(layer(torch.ones(200, 1), rows), layer(torch.ones(200, 1), rows))


def test_dropout_between_layers() -> None:
    """With all its input dropped, the second layer outputs zeros, whatever the first one outputs."""
    torch.manual_seed(0)
    rows = Rows.from_lengths([3, 2])
    layer = BiRNN(2, 2, 2, dropout=1.0)
    for name, parameter in layer.named_parameters():
        if name.startswith("layers.0.bias"):
            parameter.data.fill_(1.0)  # the first layer's output is not zero even for zero input
    assert layer(torch.randn(5, 2), rows).abs().max() == 0


def test_dropout_is_repeatable() -> None:
    rows = Rows.from_lengths([3, 5])
    layer, x = BiRNN(4, 3, 2, dropout=0.5), torch.randn(8, 4)
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(layer(x, rows))
    assert torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2])


@every_cell
def test_bfloat16_input_under_autocast(cell: Cell) -> None:
    torch.manual_seed(0)
    rows = Rows.from_lengths([3, 5])
    layer, x = BiRNN(4, 3, 2, dropout=0.0, cell=cell), torch.randn(8, 4)
    exact = layer(x, rows)
    with torch.autocast("cpu", torch.bfloat16):
        low = layer(x.bfloat16(), rows)
    torch.testing.assert_close(low.float(), exact, rtol=0, atol=0.02)


def test_vectors_that_are_not_those_of_the_rows() -> None:
    with pytest.raises(ValueError, match="7 vectors for sequences of 8 words"):
        BiRNN(2, 2, 1, dropout=0.0)(torch.zeros(7, 2), Rows.from_lengths([3, 5]))
