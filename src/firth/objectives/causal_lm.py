"""Left-to-right language modelling with BERT's own blocks and head: the paper's "LTR & No NSP".

Source: Devlin et al. 2018, §5.1 (specification §9).
"""

from jaxtyping import Float
from torch import Tensor

from firth.data.batch import Batch, Objective, Step
from firth.layers.initialise import truncated_normal_
from firth.layers.vocabulary import VocabularyHead
from firth.models.bert import Bert
from firth.objectives.config import CausalLMConfig
from firth.packed import Carry


class CausalLM(Objective):
    """Term ``lm``: every token but a row's last predicts the one after it."""

    def __init__(self, encoder: Bert, config: CausalLMConfig):
        super().__init__()
        sizes = encoder.config
        self.encoder = encoder
        self.config = config
        self.lm = VocabularyHead(
            width=sizes.width,
            vocab_size=sizes.vocab_size,
            activation=sizes.activation,
            norm_epsilon=sizes.norm_epsilon,
        )
        self.weights = {"lm": 1.0}
        truncated_normal_(self.lm, sizes.init_range)

    def forward(self, batch: Batch, carry: Carry | None = None) -> Step:
        target = batch.targets["lm"]
        chosen = self.encoder(batch.tokens).top.index_select(0, target.index)
        loss, correct = self.lm.loss(chosen, self.encoder.piece_embedding, target.label)
        return Step({"lm": loss}, {"lm": correct})

    def logits(self, x: Float[Tensor, "M H"]) -> Float[Tensor, "M V"]:
        """Scores over the vocabulary for the token after each of M tokens, from their top-layer states."""
        return self.lm.logits(x, self.encoder.piece_embedding)
