"""The parts of an AWD-LSTM: an LSTM with dropped recurrent weights, and dropout that is the same at every step.

Source: Merity et al. 2017, §2 and §4 (specification §1).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from firth.layers.dropout import Dropout
from firth.layers.recurrent import by_time
from firth.packed import Rows

State = tuple[Tensor, Tensor]

# Slots of a rectangle a token up to which PyTorch's kernel for rectangles is the faster one.
# Source: benchmarks/recurrent.py.
_MOST_SLOTS = 1.5


class LockedDropout(nn.Module):
    """Dropout with one mask for all tokens of a row: an element is 0 at every step of it, or at none."""

    def __init__(self, p: float):
        super().__init__()
        self.mask = Dropout(p)

    def forward(self, x: Float[Tensor, "T H"], rows: Rows) -> Float[Tensor, "T H"]:
        if not self.training or not self.mask.p:
            return x
        return x * self.mask(x.new_ones(rows.n_rows, x.shape[1])).index_select(0, rows.row_of_token())


class WordDropout(nn.Module):
    """Embedding of words of which some vanish wherever they stand in the batch; the others are scaled up."""

    def __init__(self, p: float):
        super().__init__()
        self.mask = Dropout(p)

    def forward(self, ids: Int[Tensor, " T"], weight: Float[Tensor, "V H"]) -> Float[Tensor, "T H"]:
        x = F.embedding(ids, weight)
        if not self.training or not self.mask.p:
            return x
        return x * self.mask(weight.new_ones(len(weight), 1)).index_select(0, ids)


class WeightDropLSTM(nn.LSTM):
    """One LSTM layer whose hidden-to-hidden matrix loses elements, drawn once a pass: the same at every step.

    The whole matrix is the parameter, ``weight_hh_l0``; what is dropped is a copy of it. Equal rows, and those that
    nearly fill a rectangle, run in PyTorch's kernel for rectangles, the others step by step over as many as go on.
    """

    def __init__(self, width_in: int, width: int, weight_dropout: float):
        super().__init__(width_in, width)
        self.weight_dropout = Dropout(weight_dropout)

    def forward(  # type: ignore[override]  # packed rows, not a rectangle
        self, x: Float[Tensor, "T width_in"], rows: Rows, start: State | None = None
    ) -> tuple[Float[Tensor, "T width"], State | None]:
        """``start``, and the state after the rows' last tokens: (B, width) each; None unless all rows are equally long.

        Rows of a stream are; the state of others has nowhere to go on.
        """
        weight_in, weight_hidden, bias_in, bias_hidden = self._flat_weights
        weights = [weight_in, self.weight_dropout(weight_hidden), bias_in, bias_hidden]
        zeros = x.new_zeros(1, rows.n_rows, self.hidden_size)
        begin = (zeros, zeros) if start is None else (start[0][None], start[1][None])
        if rows.n_rows * rows.longest > _MOST_SLOTS * rows.n_tokens:
            return _by_time(x, weights, rows, begin), None
        out, state = _in_rectangle(x, weights, rows, begin)
        return out, state if rows.n_rows * rows.longest == rows.n_tokens else None


def _in_rectangle(x: Tensor, weights: list[Tensor], rows: Rows, begin: State) -> tuple[Tensor, State]:
    """Rows side by side from their first tokens on: what pads a row comes after it."""
    slot = rows.positions * rows.n_rows + rows.row_of_token()
    steps = x.new_zeros(rows.longest * rows.n_rows, x.shape[1]).index_copy(0, slot, x)
    steps = steps.unflatten(0, (rows.longest, rows.n_rows))
    out, hidden, cell = torch.lstm(steps, begin, weights, True, 1, 0.0, torch.is_grad_enabled(), False, False)
    return out.flatten(0, 1).index_select(0, slot), (hidden[0], cell[0])


def _by_time(x: Tensor, weights: list[Tensor], rows: Rows, begin: State) -> Tensor:
    """Without a rectangle; the kernel wants the longest row first."""
    order, sizes = by_time(rows)
    first = order[: rows.n_rows].argsort()
    longest_first = first.argsort()
    states = [state.index_select(1, longest_first) for state in begin]
    out = torch.lstm(x.index_select(0, order), sizes, states, weights, True, 1, 0.0, torch.is_grad_enabled(), False)[0]
    return out.index_select(0, order.argsort())
