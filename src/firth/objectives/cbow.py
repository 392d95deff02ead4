"""Continuous bag of words: predict a word from the mean of its context.

Source: Mikolov et al. 2013a, §3.1; word2vec.c. Differs: the softmax is over the whole vocabulary, which negative
sampling and the Huffman tree approximate; input and output share one vector per word, with a bias (as in
Mnih and Hinton 2008), so that a model folder holds only word vectors; frequent words are not subsampled.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from firth.data.batch import Batch, Objective, Step
from firth.layers.vocabulary import vocabulary_loss
from firth.models.vectors import Vectors
from firth.objectives.config import CbowConfig
from firth.packed import Carry, Rows


class Cbow(Objective):
    """Term ``lm``: the mean of up to ``window`` words on either side predicts the one in the middle."""

    def __init__(self, encoder: Vectors, config: CbowConfig):
        super().__init__()
        self.encoder = encoder
        self.config = config
        self.bias = nn.Parameter(torch.zeros(encoder.config.vocab_size))
        self.weights = {"lm": 1.0}

    def forward(self, batch: Batch, carry: Carry | None = None) -> Step:
        hidden, target = self.encoder(batch.tokens), batch.targets["lm"]
        # The target is the token after the indexed one, as in every language model here.
        context = self.context(hidden.top, batch.tokens.rows, target.index + 1)
        loss, correct = vocabulary_loss(context, self.encoder.piece_embedding, self.bias, target.label)
        return Step({"lm": loss}, {"lm": correct})

    def context(self, x: Float[Tensor, "T H"], rows: Rows, centre: Int[Tensor, " M"]) -> Float[Tensor, "M H"]:
        """The mean of the tokens around each ``centre``, within its sequence and without itself.

        In training each centre samples its window uniformly from 1 to ``window``, so near words count more.
        """
        window = self.config.window
        reach = torch.arange(1, window + 1, device=x.device)
        away = torch.cat([-reach.flip(0), reach])
        mine = torch.full_like(centre, window)
        if self.training:
            mine = torch.randint(1, window + 1, centre.shape, device=x.device)
        place = centre[:, None] + away
        row = rows.row_of_token().index_select(0, centre)
        first, last = rows.first.index_select(0, row)[:, None], rows.last.index_select(0, row)[:, None]
        inside = (place >= first) & (place <= last) & (away.abs() <= mine[:, None])
        sums = F.embedding_bag(place.clamp(0, x.shape[0] - 1), x, mode="sum", per_sample_weights=inside.to(x.dtype))
        return sums / inside.sum(1, keepdim=True)
