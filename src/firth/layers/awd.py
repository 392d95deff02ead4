"""The parts of an AWD-LSTM: an LSTM with dropped recurrent weights, and dropout that is the same at every step.

Source: Merity et al. 2017, §2 and §4 (specification §1).
"""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from firth.layers.dropout import Dropout
from firth.layers.recurrent import Rectangles, State, run_over
from firth.packed import Rows


class LockedDropout(nn.Module):
    """Dropout with one mask for all tokens of a sequence (variational dropout)."""

    def __init__(self, p: float):
        super().__init__()
        self.mask = Dropout(p)

    def forward(self, x: Float[Tensor, "T H"], rows: Rows) -> Float[Tensor, "T H"]:
        if not self.training or not self.mask.p:
            return x
        return x * self.mask(x.new_ones(rows.n_rows, x.shape[1])).index_select(0, rows.row_of_token())


class WordDropout(nn.Module):
    """Embedding dropout: drops whole words everywhere in a batch; the others are scaled up."""

    def __init__(self, p: float):
        super().__init__()
        self.mask = Dropout(p)

    def forward(self, ids: Int[Tensor, " T"], weight: Float[Tensor, "V H"]) -> Float[Tensor, "T H"]:
        x = F.embedding(ids, weight)
        if not self.training or not self.mask.p:
            return x
        return x * self.mask(weight.new_ones(len(weight), 1)).index_select(0, ids)


class WeightDropLSTM(nn.LSTM):
    """An LSTM layer with dropout on its hidden-to-hidden matrix, sampled once per pass: the same at every step.

    The parameter ``weight_hh_l0`` is the full matrix; dropout applies to a copy.
    """

    def __init__(self, width_in: int, width: int, weight_dropout: float):
        super().__init__(width_in, width)
        self.weight_dropout = Dropout(weight_dropout)

    def forward(  # type: ignore[override]  # packed rows, not a rectangle
        self, x: Float[Tensor, "T width_in"], across: Rectangles, start: State | None = None
    ) -> tuple[Float[Tensor, "T width"], State | None]:
        """``start``, and the state after each last token: (B, width) each; None unless all sequences have one length.

        Those of a stream do; for others no state is carried.
        """
        weight_in, weight_hidden, bias_in, bias_hidden = self._flat_weights
        weights = [weight_in, self.weight_dropout(weight_hidden), bias_in, bias_hidden]
        return run_over(x, weights, "lstm", across, start)
