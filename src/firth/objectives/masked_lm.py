"""BERT's pre-training objective: masked language modelling and next-sentence prediction.

Source: Devlin et al. 2018, §3.1; google-research/bert run_pretraining.py.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from firth.data.batch import Batch, Objective, Step
from firth.layers.initialise import truncated_normal_
from firth.layers.vocabulary import VocabularyHead
from firth.models.bert import Bert
from firth.objectives.config import MaskedLMConfig
from firth.packed import Carry


class MaskedLM(Objective):
    """Terms ``mlm`` (only at masked positions) and, if configured, ``nsp``; both have weight 1."""

    def __init__(self, encoder: Bert, config: MaskedLMConfig):
        super().__init__()
        sizes = encoder.config
        self.encoder = encoder
        self.config = config
        self.mlm = VocabularyHead(
            width=sizes.width,
            vocab_size=sizes.vocab_size,
            activation=sizes.activation,
            norm_epsilon=sizes.norm_epsilon,
        )
        self.nsp = nn.Linear(sizes.width, 2) if config.next_sentence else None
        self.weights = {"mlm": 1.0, "nsp": 1.0} if config.next_sentence else {"mlm": 1.0}
        for head in (self.mlm, self.nsp):
            if head is not None:
                truncated_normal_(head, sizes.init_range)

    def forward(self, batch: Batch, carry: Carry | None = None) -> Step:
        hidden = self.encoder(batch.tokens)
        target = batch.targets["mlm"]
        chosen = hidden.top.index_select(0, target.index)
        loss, correct = self.mlm.loss(chosen, self.encoder.piece_embedding, target.label)
        losses, right = {"mlm": loss}, {"mlm": correct}
        if self.nsp is not None:
            label = batch.targets["nsp"].label
            logits = self.nsp(hidden.summary).float()
            losses["nsp"] = F.cross_entropy(logits, label, reduction="sum")
            right["nsp"] = (logits.argmax(1) == label).sum()
        return Step(losses, right)

    def logits(self, x: Float[Tensor, "M H"]) -> Float[Tensor, "M V"]:
        """Scores over the vocabulary from top-layer states of M masks."""
        return self.mlm.logits(x, self.encoder.piece_embedding)

    def next_sentence_logits(self, summary: Float[Tensor, "B H"]) -> Float[Tensor, "B 2"]:
        """Scores of "B follows A" (0) and "B is random" (1)."""
        assert self.nsp is not None, "made without next-sentence prediction"
        return self.nsp(summary)
