"""The decoder of the encoder-decoder Transformer, in the order of the paper; see also transformer.py.

Source: Vaswani et al. 2017, §3 and Figure 1; tensorflow/tensor2tensor for the form with norms before each part.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from firth.layers.attention import Joined, KeysValues, Past, attend
from firth.layers.dropout import Dropout, draw_seed
from firth.layers.initialise import xavier_
from firth.models.config import TransformerConfig
from firth.models.transformer import ENDS, FeedForward, PlacedPieces, make_attention, make_norm
from firth.packed import Rows, Tokens


class CrossAttention(nn.Module):
    """Attention of the target's tokens over the source's (Vaswani et al. 2017, §3.2.3)."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.n_heads, self.rate = config.n_heads, config.attention_dropout
        self.query = nn.Linear(config.width, config.width, config.attention_bias)
        self.key_value = nn.Linear(config.width, 2 * config.width, config.attention_bias)
        self.output = nn.Linear(config.width, config.width, config.attention_bias)

    def remember(self, source: Float[Tensor, "Ts H"]) -> KeysValues:
        """Keys and values of the source, the same for all queries."""
        k, v = self.key_value(source).unflatten(-1, (2, self.n_heads, -1)).unbind(1)
        return k, v

    def forward(
        self, x: Float[Tensor, "T H"], rows: Rows, source: KeysValues, source_rows: Rows
    ) -> Float[Tensor, "T H"]:
        q = self.query(x).unflatten(-1, (self.n_heads, -1))
        dropout = self.rate if self.training else 0.0
        context = attend(q, *source, rows, source_rows, causal=False, dropout=dropout, seed=draw_seed(dropout))
        return self.output(context.flatten(1))


class DecoderBlock(nn.Module):
    """The parts of both decoder blocks: causal self-attention, cross-attention, feed-forward."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.attention, self.attention_norm = make_attention(config, causal=True), make_norm(config)
        self.cross_attention, self.cross_attention_norm = CrossAttention(config), make_norm(config)
        self.feed_forward, self.feed_forward_norm = FeedForward(config), make_norm(config)
        self.dropout = Dropout(config.dropout)


class PostNormDecoderBlock(DecoderBlock):
    """Each part followed by dropout, residual sum and LayerNorm (Vaswani et al. 2017, §3.1)."""

    def forward(
        self, x: Float[Tensor, "T H"], rows: Rows, source: KeysValues, source_rows: Rows
    ) -> Float[Tensor, "T H"]:
        return self._after_attention(x, self.attention(x, rows), rows, source, source_rows)

    def step(
        self,
        x: Float[Tensor, "R H"],
        joined: Joined,
        past: KeysValues | None,
        queries: Rows,
        source: KeysValues,
        source_rows: Rows,
    ) -> tuple[Float[Tensor, "R H"], KeysValues]:
        """``forward`` of one more token per sequence; ``queries``: number of sequences per source sequence."""
        context, kept = self.attention.step(x, joined, past)
        return self._after_attention(x, context, queries, source, source_rows), kept

    def _after_attention(self, x: Tensor, context: Tensor, rows: Rows, source: KeysValues, source_rows: Rows) -> Tensor:
        x = self.attention_norm(x + self.dropout(context))
        x = self.cross_attention_norm(x + self.dropout(self.cross_attention(x, rows, source, source_rows)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class PreNormDecoderBlock(DecoderBlock):
    """A norm before each part, as in ``PreNormBlock``."""

    def forward(
        self, x: Float[Tensor, "T H"], rows: Rows, source: KeysValues, source_rows: Rows
    ) -> Float[Tensor, "T H"]:
        return self._after_attention(x, self.attention(self.attention_norm(x), rows), rows, source, source_rows)

    def step(
        self,
        x: Float[Tensor, "R H"],
        joined: Joined,
        past: KeysValues | None,
        queries: Rows,
        source: KeysValues,
        source_rows: Rows,
    ) -> tuple[Float[Tensor, "R H"], KeysValues]:
        """As in ``PostNormDecoderBlock``."""
        context, kept = self.attention.step(self.attention_norm(x), joined, past)
        return self._after_attention(x, context, queries, source, source_rows), kept

    def _after_attention(self, x: Tensor, context: Tensor, rows: Rows, source: KeysValues, source_rows: Rows) -> Tensor:
        x = x + self.dropout(context)
        x = x + self.dropout(self.cross_attention(self.cross_attention_norm(x), rows, source, source_rows))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


AnyDecoderBlock = PostNormDecoderBlock | PreNormDecoderBlock
_BLOCKS: dict[str, Callable[[TransformerConfig], AnyDecoderBlock]] = {
    "post": PostNormDecoderBlock,
    "pre": PreNormDecoderBlock,
}


@dataclass(frozen=True, slots=True)
class DecoderState:
    """The decoding state of R sequences, the translations of B source sequences.

    ``past``: cache of the tokens generated so far, None before the first. ``source``: keys and values of the source, by
    block, computed once. ``queries``: how many of the R sequences translate each source sequence; they are adjacent,
    and the source is not copied for each of them.
    """

    source: Past
    queries: Rows
    past: Past | None = None

    def select(self, chosen: Int[Tensor, " R"]) -> "DecoderState":
        """Select sequences in the given order; one may be taken several times."""
        of_source = self.queries.row_of_token().index_select(0, chosen)
        asked, counts = torch.unique_consecutive(of_source, return_counts=True)
        as_before = asked.tolist() == list(range(self.source.rows.n_rows))
        return DecoderState(
            source=self.source if as_before else self.source.select(asked),
            queries=Rows.from_lengths(counts.tolist()).to(chosen.device),
            past=None if self.past is None else self.past.select(chosen),
        )


class Decoder(nn.Module):
    """The decoder: attends to the source's hidden states and the tokens generated so far.

    The embedding matrix is passed to each call, so that it is stored once.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.placed = PlacedPieces(config)
        self.blocks = nn.ModuleList(_BLOCKS[config.norm](config) for _ in range(config.n_layers))
        self.end = ENDS[config.norm](config)
        xavier_(self)

    def forward(
        self, tokens: Tokens, embedding: Float[Tensor, "V H"], source: Float[Tensor, "Ts H"], source_rows: Rows
    ) -> Float[Tensor, "T H"]:
        """The top states of ``tokens``; sequence b translates sequence b of the source."""
        rows = tokens.rows
        x = self.placed(embedding, tokens.ids, rows.positions, rows.longest)
        for block in self._blocks():
            x = block(x, rows, block.cross_attention.remember(source), source_rows)
        return self.end(x)

    def begin(self, source: Float[Tensor, "Ts H"], source_rows: Rows) -> DecoderState:
        """The initial state, one target sequence per source sequence."""
        layers = tuple(block.cross_attention.remember(source) for block in self._blocks())
        return DecoderState(Past(source_rows, layers), _rows_of_one(source_rows.n_rows, source.device))

    def step(
        self, ids: Int[Tensor, " R"], embedding: Float[Tensor, "V H"], state: DecoderState
    ) -> tuple[Float[Tensor, "R H"], DecoderState]:
        """``forward`` of one more token per sequence: its top state, and the new state. No dropout: call ``eval``."""
        past, source = state.past, state.source
        joined = Joined.of(None if past is None else past.rows, _rows_of_one(len(ids), ids.device))
        x = self.placed(embedding, ids, joined.every.lengths - 1, joined.every.longest)
        layers = []
        for number, block in enumerate(self._blocks()):
            before = None if past is None else past.layers[number]
            x, kept = block.step(x, joined, before, state.queries, source.layers[number], source.rows)
            layers.append(kept)
        return self.end(x), DecoderState(source, state.queries, Past(joined.every, tuple(layers)))

    def _blocks(self) -> "Iterator[AnyDecoderBlock]":
        yield from self.blocks


def _rows_of_one(n: int, device: torch.device) -> Rows:
    return Rows.from_lengths([1] * n).to(device)
