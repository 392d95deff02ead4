"""A left-to-right LSTM encoder that carries its state from one batch to the next.

The simplest system with recurrent state: batch t + 1 of a stream continues the sequences of batch t.
Source: Merity et al. 2017, §4 (the stream), without any of its regularisers.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from firth.layers.dropout import Dropout
from firth.layers.recurrent import CarriedState
from firth.models.config import LstmConfig
from firth.packed import Carry, Encoder, Hidden, Tokens, kept_layers, to_padded


class Lstm(Encoder):
    """Embedding and LSTM layers; ``summary`` is the top layer at each sequence's last token."""

    def __init__(self, config: LstmConfig):
        super().__init__()
        self.config = config
        self.embeddings = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(
            nn.LSTM(config.width, config.width, batch_first=True) for _ in range(config.n_layers)
        )
        self.dropout = Dropout(config.dropout)
        nn.init.uniform_(self.embeddings.weight, -config.init_range, config.init_range)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of layers 0 (embeddings) to L."""
        return (self.config.width,) * (self.config.n_layers + 1)

    @property
    def causal(self) -> bool:
        return True

    def forward(self, tokens: Tokens, keep: Sequence[int] = (-1,), carry: Carry | None = None) -> Hidden:
        """``carry``: ``hidden`` and ``cell``, (layers, B, H) each, from the previous batch; None: zeros."""
        kept = kept_layers(keep, self.config.n_layers)
        rows = tokens.rows
        lengths = rows.lengths.cpu()
        x, layers, states = self.dropout(self.embeddings(tokens.ids)), {}, []
        for number, lstm in enumerate(self.layers):
            if number in kept:
                layers[number] = x
            padded, _ = to_padded(x, rows)
            packed = nn.utils.rnn.pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
            start = None if carry is None else (carry["hidden"][number, None], carry["cell"][number, None])
            out, state = lstm(packed, start)
            states.append(state)
            padded, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
            slot = rows.row_of_token() * padded.shape[1] + rows.positions
            x = self.dropout(padded.flatten(0, 1).index_select(0, slot))
        if self.config.n_layers in kept:
            layers[self.config.n_layers] = x
        hidden, cell = (torch.cat(parts) for parts in zip(*states, strict=True))
        summary = x.index_select(0, rows.last)
        return Hidden(layers=layers, rows=rows, summary=summary, carry={"hidden": hidden, "cell": cell})

    def step(self, tokens: Tokens, past: CarriedState | None) -> tuple[Float[Tensor, "T H"], CarriedState]:
        """Top states of tokens that continue sequences, and the state after them; ``past``: None at the start."""
        hidden = self(tokens, carry=None if past is None else past.carry)
        return hidden.top, CarriedState(hidden.carry, axis=1)

    @property
    def piece_embedding(self) -> Float[Tensor, "V H"]:
        return self.embeddings.weight

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """All parameters, bottom to top: embeddings, each layer."""
        return [list(part.parameters()) for part in (self.embeddings, *self.layers)]
