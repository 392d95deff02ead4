"""The LSTM with projection and clipping, against a loop over sequences and words."""

import pytest
import torch
from torch import Tensor

from firth.layers.projected_lstm import ProjectedLSTM
from firth.layers.recurrent import by_time
from firth.packed import Rows

LENGTHS = [3, 1, 5, 3]
WIDTH_IN, CELLS, WIDTH = 4, 6, 3


def made(cell_clip: float = 0.3, projection_clip: float = 0.2) -> ProjectedLSTM:
    torch.manual_seed(0)
    lstm = ProjectedLSTM(
        width_in=WIDTH_IN, cells=CELLS, width=WIDTH, cell_clip=cell_clip, projection_clip=projection_clip
    ).double()
    for parameter in lstm.parameters():
        torch.nn.init.normal_(parameter)
    return lstm


def inputs(lengths: list[int] = LENGTHS) -> tuple[Tensor, Rows, Tensor, Tensor]:
    torch.manual_seed(1)
    rows = Rows.from_lengths(lengths)
    hidden, cell = torch.randn(len(lengths), WIDTH).double(), torch.randn(len(lengths), CELLS).double()
    return torch.randn(sum(lengths), WIDTH_IN).double(), rows, hidden, cell


def by_hand(lstm: ProjectedLSTM, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One sequence, word by word, with gates in the order i, f, g, o."""
    found = []
    for word in x:
        z = lstm.weight_ih @ word + lstm.weight_hh @ hidden + lstm.bias
        i, f, g, o = z[:CELLS], z[CELLS : 2 * CELLS], z[2 * CELLS : 3 * CELLS], z[3 * CELLS :]
        cell = torch.sigmoid(f + 1) * cell + torch.sigmoid(i) * torch.tanh(g)
        if lstm.cell_clip:
            cell = cell.clamp(-lstm.cell_clip, lstm.cell_clip)
        hidden = lstm.weight_hr @ (torch.sigmoid(o) * torch.tanh(cell))
        if lstm.projection_clip:
            hidden = hidden.clamp(-lstm.projection_clip, lstm.projection_clip)
        found.append(hidden)
    return torch.stack(found), hidden, cell


def packed(lstm: ProjectedLSTM, x: Tensor, rows: Rows, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All sequences together, in the given order."""
    order, sizes = by_time(rows)
    longest_first = rows.lengths.argsort(descending=True, stable=True)
    out, (last_hidden, last_cell) = lstm(x[order], sizes, (hidden[longest_first], cell[longest_first]))
    back = longest_first.argsort()
    return out[order.argsort()], last_hidden[back], last_cell[back]


@pytest.mark.parametrize("clips", [(0.3, 0.2), (3.0, 3.0), (0.3, 0.0), (0.0, 0.2), (0.0, 0.0)])
@pytest.mark.parametrize("lengths", [LENGTHS, [4, 4], [1]])
def test_it_is_the_loop_with_its_gradients(clips: tuple[float, float], lengths: list[int]) -> None:
    lstm, (x, rows, hidden, cell) = made(*clips), inputs(lengths)
    for tensor in (x, hidden, cell):
        tensor.requires_grad_()
    parts = [
        by_hand(lstm, x[a:b], hidden[n], cell[n])
        for n, (a, b) in enumerate(zip(rows.offsets[:-1], rows.offsets[1:], strict=True))
    ]
    expected = torch.cat([p[0] for p in parts]), torch.stack([p[1] for p in parts]), torch.stack([p[2] for p in parts])
    found = packed(lstm, x, rows, hidden, cell)
    known = [x, hidden, cell, *lstm.parameters()]
    weights = [torch.randn_like(tensor) for tensor in expected]
    gradients = [
        torch.autograd.grad(sum((a * w).sum() for a, w in zip(tensors, weights, strict=True)), known)
        for tensors in (found, expected)
    ]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_without_clips_it_is_pytorchs() -> None:
    lstm, (x, rows, _, _) = made(0.0, 0.0), inputs([4, 4])
    theirs = torch.nn.LSTM(WIDTH_IN, CELLS, proj_size=WIDTH, batch_first=True).double()
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(lstm.weight_ih)
        theirs.weight_hh_l0.copy_(lstm.weight_hh)
        theirs.weight_hr_l0.copy_(lstm.weight_hr)
        theirs.bias_ih_l0.copy_(lstm.bias)
        theirs.bias_hh_l0.zero_()
        theirs.bias_hh_l0[CELLS : 2 * CELLS] = 1
    expected, (hidden, cell) = theirs(x.unflatten(0, (2, 4)))
    start = torch.zeros(2, WIDTH).double(), torch.zeros(2, CELLS).double()
    out, last_hidden, last_cell = packed(lstm, x, rows, *start)
    torch.testing.assert_close(out, expected.flatten(0, 1), rtol=0, atol=1e-12)
    torch.testing.assert_close(last_hidden, hidden[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(last_cell, cell[0], rtol=0, atol=1e-12)


def test_the_clips_by_hand() -> None:
    """With open gates the cell grows by one per word up to its clip; the projection has its own clip."""
    lstm = ProjectedLSTM(width_in=1, cells=1, width=1, cell_clip=2.0, projection_clip=1.5).double()
    with torch.no_grad():
        for weight in (lstm.weight_ih, lstm.weight_hh):
            weight.zero_()
        lstm.bias.fill_(100)
        lstm.weight_hr.fill_(10)
    out, (hidden, cell) = lstm(torch.zeros(4, 1).double(), torch.ones(4, dtype=torch.int64), lstm_start())
    assert cell.item() == 2.0 and hidden.item() == 1.5
    assert out[:, 0].tolist() == [1.5] * 4
    with torch.no_grad():
        lstm.weight_hr.fill_(1)
    out, _ = lstm(torch.zeros(4, 1).double(), torch.ones(4, dtype=torch.int64), lstm_start())
    assert out[:, 0].tolist() == pytest.approx(torch.tensor([1.0, 2.0, 2.0, 2.0]).double().tanh().tolist())


def lstm_start() -> tuple[Tensor, Tensor]:
    return torch.zeros(1, 1).double(), torch.zeros(1, 1).double()


def test_the_forget_gate_has_one_more_than_is_stored() -> None:
    lstm = ProjectedLSTM(width_in=1, cells=1, width=1, cell_clip=3.0, projection_clip=3.0)
    with torch.no_grad():
        for parameter in lstm.parameters():
            parameter.zero_()
        lstm.bias[0] = -100  # the input gate is closed
    _, (_, cell) = lstm(torch.zeros(1, 1), torch.ones(1, dtype=torch.int64), (torch.zeros(1, 1), torch.ones(1, 1)))
    assert cell.item() == pytest.approx(torch.tensor(1.0).sigmoid().item())


def test_how_it_begins() -> None:
    torch.manual_seed(0)
    lstm = ProjectedLSTM(width_in=8, cells=64, width=8, cell_clip=3.0, projection_clip=3.0)
    bound = (6 / (16 + 256)) ** 0.5
    assert 0.98 * bound < max(lstm.weight_ih.abs().max(), lstm.weight_hh.abs().max()) <= bound
    assert (lstm.bias == 0).all() and lstm.weight_hr.abs().max() <= (6 / 72) ** 0.5


@pytest.mark.parametrize("clip", [0.0, 3.0])
def test_in_bfloat16_it_is_near(clip: float) -> None:
    lstm, (x, rows, hidden, cell) = made(clip, clip).float(), inputs()
    given = [tensor.float() for tensor in (x, hidden, cell)]
    expected = packed(lstm, given[0], rows, *given[1:])
    with torch.autocast("cpu", torch.bfloat16):
        found = packed(lstm, given[0], rows, *given[1:])
    for a, b in zip(found, expected, strict=True):
        assert (a.float() - b).norm() < 0.05 * b.norm()
