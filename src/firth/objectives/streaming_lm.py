"""Language modelling over a stream, with recurrent state carried from batch to batch."""

import torch
from torch import nn

from firth.data.batch import Batch, Objective, Step
from firth.layers.vocabulary import vocabulary_loss
from firth.models.lstm import Lstm
from firth.objectives.config import StreamingLMConfig
from firth.packed import Carry


class StreamingLM(Objective):
    """Term ``lm``: every token predicts the next; the output matrix is the embedding, with a bias."""

    def __init__(self, encoder: Lstm, config: StreamingLMConfig):
        super().__init__()
        self.encoder = encoder
        self.config = config
        self.bias = nn.Parameter(torch.zeros(encoder.config.vocab_size))
        self.weights = {"lm": 1.0}

    def forward(self, batch: Batch, carry: Carry | None = None) -> Step:
        hidden = self.encoder(batch.tokens, carry=carry)
        target = batch.targets["lm"]
        chosen = hidden.top.index_select(0, target.index)
        loss, correct = vocabulary_loss(chosen, self.encoder.piece_embedding, self.bias, target.label)
        return Step({"lm": loss}, {"lm": correct}, hidden.carry)
