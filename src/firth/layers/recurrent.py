"""Bidirectional recurrent layers over packed rows, in a rectangle where they fill one, else without."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from firth.layers.dropout import Dropout
from firth.packed import Rows

# Slots of a rectangle a token up to which PyTorch's kernel for rectangles is the faster one, forward and backward.
# Source: benchmarks/recurrent.py.
_MOST_SLOTS = 1.5

Cell = Literal["lstm", "gru"]


def by_time(rows: Rows) -> tuple[Int[Tensor, " T"], Int[Tensor, " S"]]:
    """The order of tokens in which a recurrence reads them, and how many rows it has at each step.

    The first tokens of all rows, longest row first, then the second tokens, and so on: step t is the
    first ``sizes[t]`` of those rows. ``order`` is on the device of ``rows``, ``sizes`` on the host.
    """
    lengths, longest_first = rows.lengths.cpu().long().sort(descending=True, stable=True)
    steps = torch.arange(int(lengths[0]))
    sizes = (lengths > steps[:, None]).sum(1)
    step_of_token = steps.repeat_interleave(sizes)
    row_of_token = torch.arange(rows.n_tokens) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    begins = rows.first.cpu().long().index_select(0, longest_first)
    return (begins.index_select(0, row_of_token) + step_of_token).to(rows.offsets.device), sizes


class BiRNN(nn.Module):
    """Recurrent layers that read each row in both directions; the output is [forward ; backward] of the top layer.

    Source: Peters et al. 2017, §2.1 (two layers below a tagger); Devlin et al. 2018, §5.3 (on frozen
    layers). ``width`` is of one direction. Dropout falls on the input of each layer, fresh for each word;
    none on recurrent connections or the output. At the start: recurrent matrices orthogonal and input
    matrices Glorot-uniform, gate by gate; biases 0, of the forget gate of an LSTM 1.
    """

    def __init__(self, width_in: int, width: int, n_layers: int, dropout: float, cell: Cell = "lstm"):
        super().__init__()
        self.dropout = Dropout(dropout)
        make = nn.LSTM if cell == "lstm" else nn.GRU
        self.layers = nn.ModuleList(
            make(width_in if number == 0 else 2 * width, width, bidirectional=True) for number in range(n_layers)
        )
        for name, parameter in self.named_parameters():
            initialise_gates(name, parameter.data, cell)

    def forward(self, x: Float[Tensor, "W H"], rows: Rows) -> Float[Tensor, "W width"]:
        if len(x) != rows.n_tokens:
            raise ValueError(f"{len(x)} vectors for rows of {rows.n_tokens} words")
        if rows.n_rows * rows.longest <= _MOST_SLOTS * rows.n_tokens:
            return self._in_rectangle(x, rows)
        return self._by_time(x, rows)

    def _in_rectangle(self, x: Tensor, rows: Rows) -> Tensor:
        """Both directions from left to right, one of them over rows turned round: what pads a row comes after it."""
        row = rows.row_of_token()
        slot = rows.positions * rows.n_rows + row
        turned = (rows.first + rows.last).index_select(0, row) - torch.arange(rows.n_tokens, device=x.device)
        for layer in self.layers:
            assert isinstance(layer, nn.LSTM | nn.GRU)
            x = self.dropout(x)
            ahead, back = layer.all_weights
            cell: Cell = "lstm" if isinstance(layer, nn.LSTM) else "gru"
            behind = _one_way(x.index_select(0, turned), back, slot, rows, cell).index_select(0, turned)
            x = torch.cat([_one_way(x, ahead, slot, rows, cell), behind], 1)
        return x

    def _by_time(self, x: Tensor, rows: Rows) -> Tensor:
        """Without a rectangle: step by step over as many rows as still go on."""
        order, sizes = by_time(rows)
        x = x.index_select(0, order)
        for layer in self.layers:
            x = layer(PackedSequence(self.dropout(x), sizes))[0].data
        return x.index_select(0, order.argsort())


def _one_way(x: Tensor, weights: Sequence[Tensor], slot: Tensor, rows: Rows, cell: Cell) -> Tensor:
    """One direction of one layer; ``slot``: of each token in a rectangle of steps × rows."""
    rectangle = x.new_zeros(rows.longest * rows.n_rows, x.shape[1]).index_copy(0, slot, x)
    start = x.new_zeros(1, rows.n_rows, weights[1].shape[1])
    steps = rectangle.unflatten(0, (rows.longest, rows.n_rows))
    learns, flat = torch.is_grad_enabled(), tuple(weights)
    if cell == "lstm":
        out = torch.lstm(steps, (start, start), flat, True, 1, 0.0, learns, False, False)[0]
    else:
        out = torch.gru(steps, start, flat, True, 1, 0.0, learns, False, False)[0]
    return out.flatten(0, 1).index_select(0, slot)


def initialise_gates(name: str, values: Tensor, cell: Cell) -> None:
    """First values of a parameter of PyTorch's recurrent layers, by its name there."""
    gates = values.chunk(4 if cell == "lstm" else 3)  # input, forget, cell, output; reset, update, new
    if "weight" in name:
        for gate in gates:
            (nn.init.orthogonal_ if "_hh_" in name else nn.init.xavier_uniform_)(gate)
        return
    values.zero_()
    if cell == "lstm" and "_ih_" in name:  # torch adds two biases
        gates[1].fill_(1)
