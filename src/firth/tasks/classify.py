"""Text classification: dropout and one linear layer on the row's summary.

Source: google-research/bert run_classifier.py (specification of tasks §2).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from firth.data.batch import Batch, Objective, Step
from firth.layers.initialise import truncated_normal_
from firth.packed import Carry, Encoder, Tokens
from firth.tasks.config import ClassifyConfig


class Classifier(Objective):
    """An encoder with a fresh head; an objective (term ``label``) that can also predict."""

    def __init__(self, encoder: Encoder, config: ClassifyConfig):
        super().__init__()
        self.encoder = encoder
        self.config = config
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(encoder.widths[-1], len(config.labels))
        self.weights = {"label": 1.0}
        truncated_normal_(self.head, 0.02)

    def logits(self, tokens: Tokens) -> Float[Tensor, "B K"]:
        return self.head(self.dropout(self.encoder(tokens, keep=()).summary)).float()

    def forward(self, batch: Batch, carry: Carry | None = None) -> Step:
        logits, label = self.logits(batch.tokens), batch.targets["label"].label
        loss = F.cross_entropy(logits, label, reduction="sum")
        return Step({"label": loss}, {"label": (logits.argmax(1) == label).sum()})

    @torch.no_grad()
    def predict(self, tokens: Tokens) -> Float[Tensor, "B K"]:
        """Probabilities of the labels."""
        return self.logits(tokens).softmax(1)
