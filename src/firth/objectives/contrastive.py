"""Contrastive learning on crops: the vectors of two parts of one text are closer to each other than to other texts'.

Source: Chen et al. 2020, §2.1 (NT-Xent); Gao et al. 2021 (SimCSE), for sentences. Differs: the two views are crops of
one text, not two dropout masks.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from firth.data.batch import Batch, Step
from firth.layers.mixing import pool_rows
from firth.models.bert import Bert
from firth.objectives.config import MaskedLMConfig
from firth.objectives.masked_lm import MaskedLM
from firth.packed import Carry

# How a text is pooled to the vector that is compared; ``firth embed`` does the same.
POOL: Literal["mean"] = "mean"


class Contrastive(MaskedLM):
    """Term ``contrast``: for each crop, which other one in the micro-batch is from the same text.

    The masked-LM head is not trained here; it is kept so that the folder remains a plain BERT.
    """

    def __init__(self, encoder: Bert, config: MaskedLMConfig):
        super().__init__(encoder, config)
        self.weights = {"contrast": 1.0}

    def forward(self, batch: Batch, carry: Carry | None = None) -> Step:
        hidden = self.encoder(batch.tokens)
        target = batch.targets["contrast"]
        loss, correct = contrast(pool_rows(hidden.top, hidden.rows, POOL), target.label, self.config.temperature)
        return Step({"contrast": loss}, {"contrast": correct})


def contrast(vectors: Float[Tensor, "B H"], partner: Tensor, temperature: float) -> tuple[Float[Tensor, ""], Tensor]:
    """The summed cross-entropy of each vector's partner among all others, by cosine / temperature; and how many vectors
    are nearest to their partner.
    """
    unit = F.normalize(vectors.float(), dim=1)
    scores = unit @ unit.T / temperature
    # A vector is not compared with itself.
    scores = scores.masked_fill(torch.eye(len(scores), dtype=torch.bool, device=scores.device), -torch.inf)
    return F.cross_entropy(scores, partner, reduction="sum"), (scores.argmax(1) == partner).sum()


def bert_objective(encoder: Bert, config: MaskedLMConfig) -> MaskedLM:
    """Build BERT's objective from its options: masked language modelling, or contrastive learning on crops."""
    return Contrastive(encoder, config) if config.contrastive else MaskedLM(encoder, config)
