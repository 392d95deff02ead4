"""AWD-LSTM, the encoder of ULMFiT.

Source: Merity et al. 2017, "Regularizing and Optimizing LSTM Language Models"; Howard & Ruder 2018 (specification §1).
Dropout of the top layer's output is left to the language model's softmax, or the task head.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from firth.layers.awd import LockedDropout, WeightDropLSTM, WordDropout
from firth.layers.mixing import pool_rows
from firth.layers.recurrent import CarriedState, rectangles
from firth.models.config import AwdLstmConfig
from firth.packed import Carry, Encoder, Hidden, Rows, Tokens, kept_layers


class AwdLstm(Encoder):
    """Embedding and LSTM layers; ``summary`` concatenates the top layer's last state, maximum and mean.

    Source of the summary: Howard & Ruder 2018, §3.3 (concat pooling): (B, 3 × width).
    """

    def __init__(self, config: AwdLstmConfig):
        super().__init__()
        self.config = config
        self.embeddings = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(
            WeightDropLSTM(below, width, config.weight_dropout)
            for below, width in zip(config.layer_widths, config.layer_widths[1:], strict=False)
        )
        self.word_dropout = WordDropout(config.embedding_dropout)
        self.input_dropout = LockedDropout(config.input_dropout)
        self.hidden_dropout = LockedDropout(config.hidden_dropout)
        nn.init.uniform_(self.embeddings.weight, -config.init_range, config.init_range)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of layers 0 (embeddings) to L."""
        return self.config.layer_widths

    @property
    def summary_width(self) -> int:
        return 3 * self.config.width

    @property
    def causal(self) -> bool:
        return not self.config.backward

    def forward(self, tokens: Tokens, keep: Sequence[int] = (-1,), carry: Carry | None = None) -> Hidden:
        """``carry``: ``hidden.i`` and ``cell.i`` of layer i, (B, its width), from the previous batch; None: zeros.

        Sequences are in text order for either direction. A carry requires sequences of one length.
        """
        rows = tokens.rows
        if not self.config.backward:
            return self._read(tokens.ids, rows, keep, carry)
        turned = rows.turned()
        hidden = self._read(tokens.ids.index_select(0, turned), rows, keep, carry)
        layers = {number: x.index_select(0, turned) for number, x in hidden.layers.items()}
        return Hidden(layers, rows, hidden.summary, hidden.carry)

    def _read(self, ids: Int[Tensor, " T"], rows: Rows, keep: Sequence[int], carry: Carry | None) -> Hidden:
        kept, n_layers = kept_layers(keep, self.config.n_layers), self.config.n_layers
        layers: dict[int, Tensor] = {}
        left: Carry | None = {}
        across = rectangles(rows)
        x = self.input_dropout(self.word_dropout(ids, self.embeddings.weight), rows)
        for number, lstm in enumerate(self.layers):
            if number in kept:
                layers[number] = x
            start = None if carry is None else (carry[f"hidden.{number}"], carry[f"cell.{number}"])
            x, state = lstm(x, across, start)
            if state is None or left is None:
                left = None
            else:
                left |= {f"hidden.{number}": state[0], f"cell.{number}": state[1]}
            if number < n_layers - 1:
                x = self.hidden_dropout(x, rows)
        if n_layers in kept:
            layers[n_layers] = x
        summary = torch.cat([pool_rows(x, rows, how) for how in ("last", "max", "mean")], 1)
        return Hidden(layers, rows, summary, left)

    def step(self, tokens: Tokens, past: CarriedState | None) -> tuple[Float[Tensor, "T H"], CarriedState]:
        """Top states of tokens that continue sequences, in reading order, and the state after them.

        ``past``: None at the start. Sequences of one length run together, as there is a state only then.
        """
        lengths = tokens.rows.lengths
        top = self.embeddings.weight.new_zeros(tokens.rows.n_tokens, self.widths[-1])
        carries, numbers = list[Carry](), list[Tensor]()
        for length in lengths.unique():
            chosen = (lengths == length).nonzero()[:, 0]
            rows, index = tokens.rows.select(chosen)
            carry = None if past is None else past.select(chosen).carry
            hidden = self._read(tokens.ids.index_select(0, index), rows, (-1,), carry)
            assert hidden.carry is not None, "rows of one length leave a state"
            top = top.index_copy(0, index, hidden.top)
            carries.append(hidden.carry)
            numbers.append(chosen)
        order = torch.cat(numbers).argsort()
        joined = {name: torch.cat([carry[name] for carry in carries]).index_select(0, order) for name in carries[0]}
        return top, CarriedState(joined, axis=0)

    @property
    def piece_embedding(self) -> Float[Tensor, "V H"]:
        return self.embeddings.weight

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """All parameters, bottom to top: embeddings, each layer."""
        return [list(part.parameters()) for part in (self.embeddings, *self.layers)]
