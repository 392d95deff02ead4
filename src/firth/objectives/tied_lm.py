"""GPT's pre-training objective: each token predicts the next by the input embedding alone.

Source: Radford et al. 2018, §3.1, equations 1 and 2.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from firth.data.batch import Batch, Objective, Step
from firth.layers.vocabulary import vocabulary_loss
from firth.models.gpt import Gpt
from firth.objectives.config import TiedLMConfig
from firth.packed import Carry


class TiedLM(Objective):
    """Term ``lm``: every token but a row's last predicts the one after it, by ``h · weᵀ``: no head, no bias.

    Differs: in the released code positions are rows of the same table and take part in the softmax. Here, as in
    transformers, it runs over pieces and special pieces.
    """

    def __init__(self, encoder: Gpt, config: TiedLMConfig):
        super().__init__()
        self.encoder = encoder
        self.config = config
        self.weights = {"lm": 1.0}

    def forward(self, batch: Batch, carry: Carry | None = None) -> Step:
        target = batch.targets["lm"]
        chosen = self.encoder(batch.tokens).top.index_select(0, target.index)
        loss, correct = vocabulary_loss(chosen, self.encoder.piece_embedding, None, target.label)
        return Step({"lm": loss}, {"lm": correct})

    def logits(self, x: Float[Tensor, "M H"]) -> Float[Tensor, "M V"]:
        """Scores over the vocabulary for the piece after each of M tokens, of their top-layer states."""
        return F.linear(x, self.encoder.piece_embedding)
