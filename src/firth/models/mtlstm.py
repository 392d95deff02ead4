"""MT-LSTM, CoVe's encoder from a translation model; its decoder is in mtlstm_decoder.py.

Source: McCann et al. 2017, "Learned in Translation: Contextualized Word Vectors", §3 (specification §1).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from firth.layers.dropout import Dropout
from firth.layers.initialise import uniform_
from firth.layers.recurrent import by_time
from firth.models.config import MtLstmConfig
from firth.packed import Encoder, Hidden, Tokens, kept_layers

# For each layer the final hidden state and cell (B, 2 × hidden width) of each sequence.
States = list[tuple[Tensor, Tensor]]


class MtLstm(Encoder):
    """Word vectors and bidirectional LSTM layers over them; sequences are independent.

    Layer 0 is the word's vector, layer ℓ is [forward ; backward]: CoVe's "first layer" is 1, its "last" 2, and layers
    0 and 2 concatenated are the paper's [GloVe(w) ; CoVe(w)]. ``summary``: the final state of each direction,
    [forward at the last token ; backward at the first].
    """

    words: Tensor

    def __init__(self, config: MtLstmConfig):
        super().__init__()
        self.config = config
        below = [config.width, *[2 * config.hidden_width] * (config.n_layers - 1)]
        # PyTorch's biases and order of gates, as in the released weights.
        self.layers = nn.ModuleList(nn.LSTM(width, config.hidden_width, bidirectional=True) for width in below)
        self.dropout = Dropout(config.dropout)
        words = torch.empty(config.vocab_size, config.width).uniform_(-config.init_range, config.init_range)
        # Fixed vectors are a buffer: nothing can unfreeze them.
        if config.fixed_words:
            self.register_buffer("words", words)
        else:
            self.words = nn.Parameter(words)
        uniform_(self.layers, config.init_range)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of layers 0 (words) to L."""
        return (self.config.width, *[2 * self.config.hidden_width] * self.config.n_layers)

    def forward(self, tokens: Tokens, keep: Sequence[int] = (-1,)) -> Hidden:
        return self.read(tokens, keep)[0]

    def read(self, tokens: Tokens, keep: Sequence[int] = (-1,)) -> tuple[Hidden, States]:
        """The hidden states, and the initial states of a decoder."""
        kept, rows = kept_layers(keep, self.config.n_layers), tokens.rows
        x = self.words.index_select(0, tokens.ids)
        layers = {0: x} if 0 in kept else {}
        order, sizes = by_time(rows)
        back = order.argsort()
        # The kernel takes the longest sequence first.
        row = rows.row_of_token().index_select(0, order[: rows.n_rows]).argsort()
        x, states = x.index_select(0, order), States()
        for number, lstm in enumerate(self.layers, 1):
            out, ends = lstm(PackedSequence(x if number == 1 else self.dropout(x), sizes))
            hidden, cell = (torch.cat([*end], 1).index_select(0, row) for end in ends)
            states.append((hidden, cell))
            if number in kept:
                layers[number] = out.data.index_select(0, back)
            x = out.data
        return Hidden(layers, rows, summary=states[-1][0]), states

    @property
    def piece_embedding(self) -> Float[Tensor, "V H"]:
        return self.words

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """All parameters, bottom to top: words if trained, each layer in both directions."""
        words = [self.words] if isinstance(self.words, nn.Parameter) else []
        return [*[[word] for word in words], *([*layer.parameters()] for layer in self.layers)]
