"""Translation loss of CoVe's recurrent encoder-decoder.

Source: McCann et al. 2017, §3 (specification §2).
"""

from jaxtyping import Float, Int
from torch import Tensor

from firth.data.batch import Batch, Objective, Step
from firth.layers.vocabulary import vocabulary_loss
from firth.models.mtlstm import MtLstm
from firth.models.mtlstm_decoder import MtLstmDecoder, MtLstmState
from firth.objectives.config import MtLstmTranslationConfig
from firth.packed import Carry, Tokens


class MtLstmTranslation(Objective):
    """Term ``translation``: every token of the target side predicts the next, the last one the end.

    The target has its own embedding and output matrix. ``decoder`` is None if the encoder was published
    without one.
    """

    encoder: MtLstm

    def __init__(self, encoder: MtLstm, config: MtLstmTranslationConfig):
        super().__init__()
        self.encoder = encoder
        self.config = config
        self.decoder = MtLstmDecoder(encoder.config, config.dropout) if config.decoder else None
        self.weights = {"translation": 1.0}

    def forward(self, batch: Batch, carry: Carry | None = None) -> Step:
        assert batch.second is not None and self.decoder is not None, "translations have a target side, and are written"
        target = batch.targets["translation"]
        chosen = self.written(batch.tokens, batch.second).index_select(0, target.index)
        output = self.decoder.output
        loss, correct = vocabulary_loss(chosen, output.weight, output.bias, target.label)
        return Step({"translation": loss}, {"translation": correct})

    def written(self, source: Tokens, target: Tokens) -> Float[Tensor, "T H"]:
        """The decoder states that predict the token after each target token; sequence b translates sequence b."""
        assert self.decoder is not None
        return self.decoder(target, self.begin(source))

    def begin(self, tokens: Tokens) -> MtLstmState:
        """Encode the source sequences; returns the initial decoding state."""
        assert self.decoder is not None
        hidden, states = self.encoder.read(tokens)
        return self.decoder.begin(hidden.top, hidden.rows, states)

    def advance(self, ids: Int[Tensor, " R"], state: MtLstmState) -> tuple[Float[Tensor, "R V"], MtLstmState]:
        """Read one more token per sequence: log-probabilities of the next one, float32, and the new state."""
        assert self.decoder is not None
        written, state = self.decoder.step(ids, state)
        return self.decoder.output(written).float().log_softmax(1), state
