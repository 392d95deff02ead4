"""Left-to-right language modelling: each token predicts the next, with BERT's head, only a bias, or neither."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from firth.data.batch import Batch, Objective, Step
from firth.layers.initialise import truncated_normal_
from firth.layers.vocabulary import VocabularyHead, vocabulary_loss
from firth.models.bert import Bert
from firth.models.gpt import Gpt
from firth.models.lstm import Lstm
from firth.objectives.config import CausalLMConfig, StreamingLMConfig, TiedLMConfig
from firth.packed import Carry


class CausalLM(Objective):
    """BERT's blocks and head, left to right: the paper's "LTR & No NSP". Term ``lm``.

    Every token but a sequence's last predicts the next. Source: Devlin et al. 2018, §5.1 (specification §9).
    """

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


class TiedLM(Objective):
    """GPT's objective: every token but a sequence's last predicts the next by ``h · weᵀ``. Term ``lm``.

    There is no head and no bias. Source: Radford et al. 2018, §3.1, equations 1 and 2. Differs: in the released code
    positions are rows of the same table and take part in the softmax. Here, as in transformers, it covers only
    the vocabulary.
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
        """Scores over the vocabulary for the token after each of M tokens, from their top-layer states."""
        return F.linear(x, self.encoder.piece_embedding)


class StreamingLM(Objective):
    """Every token of a stream predicts the next; recurrent state is carried from batch to batch. Term ``lm``.

    The output matrix is the embedding, with a bias.
    """

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

    def logits(self, x: Float[Tensor, "M H"]) -> Float[Tensor, "M V"]:
        """Scores over the vocabulary for the token after each of M tokens, from their top-layer states."""
        return F.linear(x, self.encoder.piece_embedding, self.bias)
