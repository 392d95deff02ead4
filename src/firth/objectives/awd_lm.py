"""AWD-LSTM language modelling: next-token loss over a stream, with two activation penalties.

Source: Merity et al. 2017, §4.3 and §4.5; salesforce/awd-lstm-lm main.py (specification §1).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from firth.data.batch import Batch, Objective, Step
from firth.layers.awd import LockedDropout
from firth.layers.vocabulary import vocabulary_loss
from firth.models.awd_lstm import AwdLstm
from firth.objectives.config import AwdLMConfig
from firth.packed import Carry


class AwdLM(Objective):
    """Term ``lm``: every token predicts the next (the previous in a backward model) by the tied embedding, with a bias.

    In training there are also ``activation``, the mean square of the top states after dropout, and ``change``, that of
    the difference between consecutive steps, before dropout. Each is summed over tokens and averaged over the hidden
    size; ``counts`` gives the divisors. Outside training the loss is only the language model's.
    """

    penalties = frozenset({"activation", "change"})

    def __init__(self, encoder: AwdLstm, config: AwdLMConfig):
        super().__init__()
        self.encoder = encoder
        self.config = config
        self.dropout = LockedDropout(config.dropout)
        self.bias = nn.Parameter(torch.zeros(encoder.config.vocab_size))
        self.weights = {"lm": 1.0, "activation": config.activation, "change": config.change}

    def counts(self, batch: Batch) -> dict[str, int]:
        rows = batch.tokens.rows
        return {**batch.counts(), "activation": rows.n_tokens, "change": rows.n_tokens - rows.n_rows}

    def forward(self, batch: Batch, carry: Carry | None = None) -> Step:
        hidden, rows = self.encoder(batch.tokens, carry=carry), batch.tokens.rows
        top, target = hidden.top, batch.targets["lm"]
        seen = self.dropout(top, rows)
        chosen = seen.index_select(0, target.index)
        loss, correct = vocabulary_loss(chosen, self.encoder.piece_embedding, self.bias, target.label)
        losses = {"lm": loss}
        if self.training:
            later = rows.positions.nonzero()[:, 0]
            losses["activation"] = _mean_squares(seen)
            losses["change"] = _mean_squares(top.index_select(0, later) - top.index_select(0, later - 1))
        return Step(losses, {"lm": correct}, hidden.carry)

    def logits(self, x: Float[Tensor, "M H"]) -> Float[Tensor, "M V"]:
        """Scores over the vocabulary for the token read next, from top-layer states; without dropout."""
        return F.linear(x, self.encoder.piece_embedding, self.bias)


def _mean_squares(x: Float[Tensor, "N H"]) -> Float[Tensor, ""]:
    """Mean over the hidden size, summed over tokens."""
    return x.float().square().mean(1).sum()
