"""Translation loss of an encoder-decoder Transformer.

Source: Vaswani et al. 2017, §3 and §5.4.
"""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from firth.data.batch import Batch, Objective, Step
from firth.layers.vocabulary import vocabulary_loss
from firth.models.transformer import TransformerEncoder
from firth.models.transformer_decoder import Decoder, DecoderState
from firth.objectives.config import TranslationConfig
from firth.packed import Carry, Tokens


class Translation(Objective):
    """Term ``translation``: every token of the target side predicts the next, the last one the end.

    Source, target and output share the encoder's matrix, without a bias. Label smoothing applies in training;
    otherwise the loss is plain cross-entropy, so that held-out losses are log-likelihoods.
    """

    def __init__(self, encoder: TransformerEncoder, config: TranslationConfig):
        super().__init__()
        self.encoder = encoder
        self.config = config
        self.decoder = Decoder(encoder.config)
        self.weights = {"translation": 1.0}

    def forward(self, batch: Batch, carry: Carry | None = None) -> Step:
        assert batch.second is not None, "batches of translations have a target side"
        target = batch.targets["translation"]
        chosen = self.written(batch.tokens, batch.second).index_select(0, target.index)
        smoothing = self.config.label_smoothing if self.training else 0.0
        loss, correct = vocabulary_loss(chosen, self.encoder.piece_embedding, None, target.label, smoothing)
        return Step({"translation": loss}, {"translation": correct})

    def written(self, source: Tokens, target: Tokens) -> Float[Tensor, "T H"]:
        """The decoder states that predict the token after each target token; sequence b translates sequence b."""
        read = self.encoder(source)
        return self.decoder(target, self.encoder.piece_embedding, read.top, read.rows)

    def begin(self, tokens: Tokens) -> DecoderState:
        """Encode the source sequences; returns the initial decoding state."""
        source = self.encoder(tokens)
        return self.decoder.begin(source.top, source.rows)

    def advance(self, ids: Int[Tensor, " R"], state: DecoderState) -> tuple[Float[Tensor, "R V"], DecoderState]:
        """Read one more token per sequence: log-probabilities of the next one, float32, and the new state."""
        embedding = self.encoder.piece_embedding
        written, state = self.decoder.step(ids, embedding, state)
        return F.linear(written, embedding).float().log_softmax(1), state
