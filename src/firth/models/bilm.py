"""ELMo's encoder, in the order of the paper's §3.1 and §3.4; its pre-training losses are in ``objectives/bilm.py``.

Source: Peters et al. 2018, and allenai/bilm-tf model.py, training.py.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from firth.layers.charcnn import CharacterCNN, each_once
from firth.layers.dropout import Dropout
from firth.layers.projected_lstm import ProjectedLSTM
from firth.layers.recurrent import CarriedState, by_time
from firth.models.config import BilmConfig
from firth.packed import Carry, Encoder, Hidden, Rows, Tokens, kept_layers


class Direction(nn.Module):
    """The LSTM layers of one direction; tokens come in reading order."""

    def __init__(self, config: BilmConfig):
        super().__init__()
        self.layers = nn.ModuleList(
            ProjectedLSTM(
                width_in=config.width,
                cells=config.cells,
                width=config.width,
                cell_clip=config.cell_clip,
                projection_clip=config.projection_clip,
            )
            for _ in range(config.n_layers)
        )
        self.dropout = Dropout(config.dropout)
        self.residual = config.residual

    def forward(
        self, x: Float[Tensor, "T H"], rows: Rows, hidden: Float[Tensor, "L R H"], cell: Float[Tensor, "L R C"]
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """Outputs (T, H) of the layers, and the state after the last tokens.

        The first of the R states belong to ``rows``; further ones are unchanged. The residual connection adds the
        layer's input after dropout (in bilm-tf one wraps the other).
        """
        order, sizes = by_time(rows)
        longest_first = rows.lengths.argsort(descending=True, stable=True)
        x = x.index_select(0, order)
        outputs, hiddens, cells = [], [], []
        for number, layer in enumerate(self.layers):
            x = self.dropout(x)
            start = (hidden[number].index_select(0, longest_first), cell[number].index_select(0, longest_first))
            out, (last_hidden, last_cell) = layer(x, sizes, start)
            x = out + x if self.residual and number else out
            outputs.append(x)
            hiddens.append(hidden[number].index_copy(0, longest_first, last_hidden.to(hidden.dtype)))
            cells.append(cell[number].index_copy(0, longest_first, last_cell.to(cell.dtype)))
        back = order.argsort()
        return [y.index_select(0, back) for y in outputs], torch.stack(hiddens), torch.stack(cells)


class Bilm(Encoder):
    """Word vectors from characters, and an LSTM over them in each direction; only the word vectors are shared.

    Layer 0 is a word's vector twice, layer ℓ is [forward ; backward], so that all have width 2 × ``width`` and
    can be mixed. ``summary``: the final state of each direction, [forward at the last token ; backward at
    the first].
    """

    def __init__(self, config: BilmConfig):
        super().__init__()
        self.config = config
        self.words = CharacterCNN(
            width=config.width,
            character_width=config.character_width,
            filters=config.filters,
            n_highways=config.n_highways,
            activation=config.activation,
        )
        self.ahead, self.back = Direction(config), Direction(config)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of layers 0 (words) to L."""
        return (2 * self.config.width,) * (self.config.n_layers + 1)

    def forward(self, tokens: Tokens, keep: Sequence[int] = (-1,), carry: Carry | None = None) -> Hidden:
        """``carry`` from the previous batch (see ``begin``); None: zeros, so that sequences are independent.

        The published code always carries state from sequence b of one batch to sequence b of the next, in
        both directions, which makes a sentence's vectors depend on what was read before.
        """
        kept = kept_layers(keep, self.config.n_layers)
        rows, turned = tokens.rows, tokens.rows.turned()
        x = self.read_words(tokens)
        state = self.begin(rows.n_rows, carry)
        ahead, state["ahead_hidden"], state["ahead_cell"] = self.ahead(
            x, rows, state["ahead_hidden"], state["ahead_cell"]
        )
        behind, state["back_hidden"], state["back_cell"] = self.back(
            x.index_select(0, turned), rows, state["back_hidden"], state["back_cell"]
        )
        layers = {0: torch.cat([x, x], 1)} if 0 in kept else {}
        for number in sorted(kept - {0}):
            layers[number] = torch.cat([ahead[number - 1], behind[number - 1].index_select(0, turned)], 1)
        # Reversed, a sequence's first token is its last.
        summary = torch.cat([ahead[-1].index_select(0, rows.last), behind[-1].index_select(0, rows.last)], 1)
        return Hidden(layers=layers, rows=rows, summary=summary, carry=state)

    def step(self, tokens: Tokens, past: CarriedState | None) -> tuple[Float[Tensor, "T width"], CarriedState]:
        """Top states of the forward direction for words that continue sequences, and its state after them.

        ``past``: None at the start.
        """
        state = self.begin(tokens.rows.n_rows, None) if past is None else past.carry
        layers, hidden, cell = self.ahead(
            self.read_words(tokens), tokens.rows, state["ahead_hidden"], state["ahead_cell"]
        )
        return layers[-1], CarriedState({"ahead_hidden": hidden, "ahead_cell": cell}, axis=1)

    def read_words(self, tokens: Tokens) -> Float[Tensor, "T width"]:
        """Encode the words of a batch, each distinct word once."""
        if tokens.chars is None:
            raise ValueError("this encoder reads characters: tokens.chars is missing")
        return each_once(self.words, tokens.chars)

    def begin(self, n_rows: int, carry: Carry | None) -> Carry:
        """State for at least ``n_rows`` sequences: ``ahead_hidden`` and ``back_hidden`` (L, R, width), ``…_cell``
        (L, R, cells). Taken from ``carry``; missing sequences start at zero."""
        widths = {"hidden": self.config.width, "cell": self.config.cells}
        state: Carry = {}
        for direction in ("ahead", "back"):
            for part, width in widths.items():
                name = f"{direction}_{part}"
                found = None if carry is None else carry[name]
                n_new = n_rows - (0 if found is None else found.shape[1])
                new = self.words.embedding.weight.new_zeros(self.config.n_layers, max(n_new, 0), width)
                state[name] = new if found is None else torch.cat([found, new], 1) if n_new > 0 else found
        return state

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """All parameters, bottom to top: words, each layer in both directions."""
        pairs = zip(self.ahead.layers, self.back.layers, strict=True)
        return [list(self.words.parameters()), *([*a.parameters(), *b.parameters()] for a, b in pairs)]
