"""ELMo's pre-training objective: a forward and a backward language model.

Source: Peters et al. 2018, §3.1; allenai/bilm-tf training.py, LanguageModel.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from firth.data.batch import Batch, Objective, Step, Target
from firth.layers.dropout import Dropout
from firth.layers.sampled_softmax import draw_negatives, sampled_loss
from firth.layers.vocabulary import vocabulary_loss
from firth.models.bilm import Bilm
from firth.objectives.config import BilmLMConfig
from firth.packed import Carry

# Sampling nearly all words takes longer than the full softmax.
_LARGEST_SAMPLE = 0.9


class BilmLM(Objective):
    """Terms ``forward`` and ``backward``, each half of the loss; a direction's perplexity is exp of its term.

    Both share one softmax, which is not tied to the input, as that has only characters. ``tokens`` of a batch belong
    to the forward stream, ``second`` to the backward one (``data/both_ways.py``).
    """

    encoder: Bilm

    def __init__(self, encoder: Bilm, config: BilmLMConfig):
        super().__init__()
        self.encoder = encoder
        self.config = config
        self.dropout = Dropout(encoder.config.dropout)
        self.softmax = nn.Linear(encoder.config.width, encoder.config.vocab_size)
        nn.init.normal_(self.softmax.weight, std=1 / math.sqrt(encoder.config.width))
        nn.init.zeros_(self.softmax.bias)
        self.weights = {"forward": 0.5, "backward": 0.5}

    def forward(self, batch: Batch, carry: Carry | None = None) -> Step:
        assert batch.second is not None
        state = self.encoder.begin(batch.tokens.rows.n_rows, carry)
        losses, correct = {}, {}
        for term, direction, name, tokens in (
            ("forward", self.encoder.ahead, "ahead", batch.tokens),
            ("backward", self.encoder.back, "back", batch.second),
        ):
            hidden, cell = f"{name}_hidden", f"{name}_cell"
            words = self.encoder.read_words(tokens)
            layers, state[hidden], state[cell] = direction(words, tokens.rows, state[hidden], state[cell])
            losses[term], correct[term] = self._loss(layers[-1], batch.targets[term])
        return Step(losses, correct, state)

    def logits(self, x: Float[Tensor, "M H"]) -> Float[Tensor, "M V"]:
        """Scores over the vocabulary for the word that a direction reads next, from its own top-layer states."""
        return self.softmax(x)

    def _loss(self, top: Tensor, target: Target) -> tuple[Tensor, Tensor]:
        """The loss over all words; in training over a sample, unless that is nearly the whole vocabulary."""
        chosen = self.dropout(top).index_select(0, target.index)
        weight, bias, n = self.softmax.weight, self.softmax.bias, self.config.negatives
        if not self.training or not 0 < n <= _LARGEST_SAMPLE * len(weight):
            return vocabulary_loss(chosen, weight, bias, target.label)
        negatives, n_draws = draw_negatives(n, len(weight), int(torch.randint(2**62, ())))
        return sampled_loss(chosen, weight, bias, target.label, negatives.to(weight.device), n_draws)
