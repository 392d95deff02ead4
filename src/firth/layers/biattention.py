"""The biattentive classification network: two texts, each attending to the other.

Source: McCann et al. 2017, "Learned in Translation: Contextualized Word Vectors", §4.
"""

from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from firth.layers.batch_norm import BatchNorm
from firth.layers.dropout import Dropout
from firth.layers.mixing import pool_rows, pool_runs
from firth.layers.recurrent import BiRNN
from firth.packed import Rows, to_padded

# Linear functions per maxout unit, and the factor by which each layer is narrower than the one below. The paper
# specifies neither.
PIECES, REDUCTION = 4, 4
_POOLS = 4


class Maxout(nn.Module):
    """Batch normalisation, dropout, then the maximum of several linear functions for each output.

    Source: Goodfellow et al. 2013, §3.
    """

    def __init__(self, width_in: int, width: int, dropout: float):
        super().__init__()
        self.norm, self.dropout = BatchNorm(width_in), Dropout(dropout)
        self.linear = nn.Linear(width_in, PIECES * width)

    def forward(self, x: Float[Tensor, "N width_in"]) -> Float[Tensor, "N width"]:
        pieces: Tensor = self.linear(self.dropout(self.norm(x)))
        return pieces.unflatten(1, (PIECES, -1)).amax(1)


class BiattentiveNetwork(nn.Module):
    """Computes K outputs per example from its texts, sequences of vectors; a single text serves as both.

    Source: McCann et al. 2017, §4. ``width``: of the projection, and of both LSTMs per direction. Dropout applies to
    the input of each layer with weights. Differs: the self-attention has no bias d, which adds the same to all scores
    of a sequence and so does not change the softmax.
    """

    def __init__(self, width_in: int, n_outputs: int, *, width: int, dropout: float):
        super().__init__()
        self.dropout = Dropout(dropout)
        self.project = nn.Linear(width_in, width)
        self.read = BiRNN(width, width, 1, dropout)
        self.integrate = BiRNN(3 * 2 * width, width, 1, dropout)
        self.attend = nn.Linear(2 * width, 1, bias=False)
        both = 2 * _POOLS * 2 * width
        middle, narrow = both // REDUCTION, both // REDUCTION**2
        maxout = partial(Maxout, dropout=dropout)
        self.output = nn.Sequential(maxout(both, middle), maxout(middle, narrow), maxout(narrow, n_outputs))

    def forward(self, x: Float[Tensor, "T width_in"], rows: Rows, second: Bool[Tensor, " B"]) -> Float[Tensor, "B K"]:
        """``second``: True where a sequence is the second text of the previous sequence's example. The outputs there
        are 0; the example's are at its first sequence."""
        partner, first = partners(second)
        x = self.read(self.project(self.dropout(x)).relu(), rows)
        other = attended(x, rows, partner)
        x = self.integrate(torch.cat([x, x - other, x * other], 1), rows)
        pools = [pool_rows(x, rows, "max"), pool_rows(x, rows, "mean"), -pool_rows(-x, rows, "max")]
        shares = softmax_rows(self.attend(x)[:, 0], rows)
        pooled = torch.cat([*pools, pool_runs(shares[:, None] * x, rows.lengths, "sum")], 1)
        theirs = pooled.index_select(0, partner)
        found = self.output(torch.cat([pooled, theirs], 1).index_select(0, first))
        return found.new_zeros(rows.n_rows, found.shape[1]).index_copy(0, first, found)


def partners(second: Bool[Tensor, " B"]) -> tuple[Int[Tensor, " B"], Int[Tensor, " E"]]:
    """For each sequence the index of its example's other one (its own if single); and those of first sequences."""
    if bool(second[0]) or bool((second[1:] & second[:-1]).any()):
        raise ValueError("found a second text without its first: an example's sequences must be in one batch")
    number = torch.arange(len(second), device=second.device)
    has_second = torch.cat([second[1:], second.new_zeros(1)])
    return number + has_second.long() - second.long(), (~second).nonzero()[:, 0]


def attended(x: Float[Tensor, "T H"], rows: Rows, partner: Int[Tensor, " B"]) -> Float[Tensor, "T H"]:
    """Dot-product attention of each token over the tokens of its sequence's partner."""
    padded, real = to_padded(x, rows)
    others, shown = padded.index_select(0, partner), real.index_select(0, partner)
    scores = (padded @ others.transpose(1, 2)).masked_fill(~shown[:, None, :], -torch.inf)
    return _from_slots(scores.softmax(2) @ others, rows)


def softmax_rows(scores: Float[Tensor, " T"], rows: Rows) -> Float[Tensor, " T"]:
    """Softmax of token scores within each sequence."""
    padded, _ = to_padded(scores, rows, -torch.inf)
    return _from_slots(padded.softmax(1), rows)


def _from_slots(x: Float[Tensor, "B S *any"], rows: Rows) -> Float[Tensor, "T *any"]:
    """Gather the slots of a rectangle that hold tokens."""
    return x.flatten(0, 1).index_select(0, rows.row_of_token() * x.shape[1] + rows.positions)
