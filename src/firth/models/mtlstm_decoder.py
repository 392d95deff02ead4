"""The attention decoder of CoVe's translation model; its encoder is in mtlstm.py.

Source: McCann et al. 2017, §3; the form of the authors' fork of OpenNMT-py (specification §2).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from firth.layers.dropout import Dropout
from firth.layers.initialise import uniform_
from firth.layers.recurrent import by_time
from firth.models.config import MtLstmConfig
from firth.models.mtlstm import States
from firth.packed import Rows, Tokens, to_padded


@dataclass(frozen=True, slots=True)
class AttendedSource:
    """The encoded source of R sequences, padded to a rectangle of S positions: attention keys and values.

    ``real``: False at padding.
    """

    keys: Float[Tensor, "R S H"]
    values: Float[Tensor, "R S H"]
    real: Bool[Tensor, "R S"]

    def map(self, change: Callable[[Tensor], Tensor]) -> "AttendedSource":
        """Apply ``change`` to each of its tensors."""
        return AttendedSource(change(self.keys), change(self.values), change(self.real))


@dataclass(frozen=True, slots=True)
class MtLstmState:
    """The decoding state of R sequences.

    ``hidden`` and ``cell`` (R, H): of each layer. ``fed``: the paper's h~ of the last step (input feeding).
    ``row``: index of the source sequence that each one translates.
    """

    source: AttendedSource
    row: Int[Tensor, " R"]
    hidden: tuple[Float[Tensor, "R H"], ...]
    cell: tuple[Float[Tensor, "R H"], ...]
    fed: Float[Tensor, "R H"]

    def select(self, chosen: Int[Tensor, " R"]) -> "MtLstmState":
        """Select sequences in the given order; one may be taken several times."""
        row = self.row.index_select(0, chosen)
        # If hypotheses only move within their own source, the source is not copied.
        same = torch.equal(row, self.row)
        source = self.source if same else self.source.map(lambda x: x.index_select(0, chosen))
        return self._changed(source, lambda x: x.index_select(0, chosen))

    def first(self, n: int) -> "MtLstmState":
        """The first ``n`` sequences."""
        return self if n == len(self.row) else self._changed(self.source.map(lambda x: x[:n]), lambda x: x[:n])

    def _changed(self, source: AttendedSource, change: Callable[[Tensor], Tensor]) -> "MtLstmState":
        hidden, cell = (tuple(change(x) for x in part) for part in (self.hidden, self.cell))
        return MtLstmState(source, change(self.row), hidden, cell, change(self.fed))


class MtLstmDecoder(nn.Module):
    """LSTM layers with input feeding that attend to the source.

    For each token z of the target, from left to right, with H the top states of its source:

        h_t = LSTM([z_t ; h~_{t-1}], h_{t-1})        h~_0 = 0; h_0 is the final state of the encoder's directions
        α_t = softmax(H W1 h_t)
        h~_t = tanh(W2 [Hᵀ α_t ; h_t])

    ``output`` maps h~ to logits. In training dropout applies to embeddings, between layers, and to h~, which is fed
    back after dropout. The paper's biases b1 and b2 are left out, as in the fork.
    """

    def __init__(self, config: MtLstmConfig, dropout: float):
        super().__init__()
        width = 2 * config.hidden_width
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.cells = nn.ModuleList(
            nn.LSTMCell(config.width + width if number == 0 else width, width) for number in range(config.n_layers)
        )
        self.query = nn.Linear(width, width, bias=False)
        self.combine = nn.Linear(2 * width, width, bias=False)
        self.output = nn.Linear(width, config.vocab_size)
        self.dropout = Dropout(dropout)
        uniform_(self, config.init_range)

    def begin(self, source: Float[Tensor, "Ts H"], rows: Rows, states: States) -> MtLstmState:
        """The initial state, one target sequence per source sequence."""
        values, real = to_padded(source, rows)
        # H (W1 h) = (H W1) h: computed once, not at each step.
        source_side = AttendedSource(values @ self.query.weight, values, real)
        hidden, cell = (tuple(part) for part in zip(*states, strict=True))
        row = torch.arange(rows.n_rows, device=source.device)
        return MtLstmState(source_side, row, hidden, cell, torch.zeros_like(hidden[-1]))

    def forward(self, tokens: Tokens, state: MtLstmState) -> Float[Tensor, "T H"]:
        """The h~ of each target token; sequence b translates sequence b of ``state``, from ``begin``."""
        order, sizes = by_time(tokens.rows)
        state = state.select(tokens.rows.row_of_token().index_select(0, order[: tokens.rows.n_rows]))
        written = []
        for x in self._embedded(tokens.ids.index_select(0, order)).split(sizes.tolist()):
            state = self._next(x, state.first(len(x)))
            written.append(state.fed)
        return torch.cat(written).index_select(0, order.argsort())

    def step(self, ids: Int[Tensor, " R"], state: MtLstmState) -> tuple[Float[Tensor, "R H"], MtLstmState]:
        """``forward`` of one more token per sequence: its h~, and the new state."""
        state = self._next(self._embedded(ids), state)
        return state.fed, state

    def _embedded(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self.dropout(self.embedding(ids))
        return embedded

    def _next(self, x: Tensor, state: MtLstmState) -> MtLstmState:
        hidden, cell = [], []
        x = torch.cat([x, state.fed], 1)
        for number, lstm in enumerate(self.cells):
            x, memory = lstm(self.dropout(x) if number else x, (state.hidden[number], state.cell[number]))
            hidden.append(x)
            cell.append(memory)
        source = state.source
        scores = torch.bmm(source.keys, x[:, :, None]).squeeze(2).masked_fill(~source.real, float("-inf"))
        context = torch.bmm(scores.softmax(1)[:, None].to(source.values.dtype), source.values).squeeze(1)
        fed = self.dropout(self.combine(torch.cat([context, x], 1)).tanh())
        return MtLstmState(source, state.row, tuple(hidden), tuple(cell), fed)
