"""BERT's encoder, in the order of the paper.

Source: Devlin et al. 2018, §3 and Figure 2; google-research/bert modeling.py.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from firth.layers.attention import Joined, Past
from firth.layers.blocks import PostNormBlock, run_blocks, step_blocks
from firth.layers.dropout import Dropout
from firth.layers.initialise import truncated_normal_
from firth.machine import compute_dtype
from firth.models.config import BertConfig
from firth.packed import Encoder, Hidden, Tokens, check_length, kept_layers


class BertEmbeddings(nn.Module):
    """Sum of token, segment and position embeddings, LayerNorm, then dropout."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.pieces = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.max_positions, config.width)
        self.segments = nn.Embedding(config.n_segments, config.width)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.dropout = Dropout(config.dropout)

    def forward(self, tokens: Tokens, positions: Int[Tensor, " T"] | None = None) -> Float[Tensor, "T H"]:
        """``positions``: of tokens that continue sequences; None: their positions in ``tokens``."""
        x = self.pieces(tokens.ids) + self.positions(tokens.rows.positions if positions is None else positions)
        # With one segment embedding both texts of a pair have it.
        if tokens.segments is None or self.segments.num_embeddings == 1:
            x = x + self.segments.weight[0]
        else:
            x = x + self.segments(tokens.segments)
        # From here on the residual sums have the dtype of the matrix products (each LayerNorm computes in
        # float32 inside): half the memory traffic, and no casts in between.
        return self.dropout(self.norm(x).to(compute_dtype(x)))


class Bert(Encoder):
    """BERT: bidirectional, or left to right if the configuration says ``causal``.

    ``summary`` is tanh(Wx + b) of the first token; for a causal model of the last one, since under causal
    attention the first token sees no other.
    """

    def __init__(self, config: BertConfig):
        super().__init__()
        self.config = config
        self.embeddings = BertEmbeddings(config)
        self.blocks = nn.ModuleList(
            PostNormBlock(
                width=config.width,
                n_heads=config.n_heads,
                feed_forward_width=config.feed_forward_width,
                activation=config.activation,
                dropout=config.dropout,
                attention_dropout=config.attention_dropout,
                norm_epsilon=config.norm_epsilon,
                causal=config.causal,
            )
            for _ in range(config.n_layers)
        )
        self.pooler = nn.Linear(config.width, config.width)
        truncated_normal_(self, config.init_range)

    def extend_segments(self, n: int) -> None:
        """Extend the segment embeddings to ``n``; does nothing if there are as many already.

        A new segment s starts as segment s modulo their number, plus a random vector as large as those of tokens: from
        a small one it takes fine-tuning an epoch or more to notice the segment.
        """
        table, known = self.embeddings.segments.weight.detach(), self.config.n_segments
        if known >= n:
            return
        self.config = replace(self.config, n_segments=n)
        copies = table.index_select(0, torch.arange(known, n, device=table.device) % known)
        new = copies + torch.randn_like(copies) * self.embeddings.pieces.weight.detach().std()
        self.embeddings.segments = nn.Embedding.from_pretrained(torch.cat([table, new]), freeze=False)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of layers 0 (embeddings) to L."""
        return (self.config.width,) * (self.config.n_layers + 1)

    @property
    def causal(self) -> bool:
        return self.config.causal

    def forward(self, tokens: Tokens, keep: Sequence[int] = (-1,)) -> Hidden:
        kept = kept_layers(keep, self.config.n_layers)
        check_length(tokens.rows, self.config.max_positions)
        x, layers = run_blocks(self.blocks, self.embeddings(tokens), tokens.rows, kept)
        if self.config.n_layers in kept:
            layers[self.config.n_layers] = x
        chosen = tokens.rows.last if self.config.causal else tokens.rows.first
        summary = F.tanh(self.pooler(x.index_select(0, chosen)))
        return Hidden(layers=layers, rows=tokens.rows, summary=summary)

    def step(self, tokens: Tokens, past: Past | None) -> tuple[Float[Tensor, "T H"], Past]:
        """Top states of tokens that continue sequences, for a left-to-right model in evaluation mode.

        ``past``: the cache from the previous call, None at the start.
        """
        assert self.config.causal, "only a left-to-right model continues sequences"
        joined = Joined.of(None if past is None else past.rows, tokens.rows)
        check_length(joined.every, self.config.max_positions)
        return step_blocks(self.blocks, self.embeddings(tokens, joined.positions), joined, past)

    @property
    def piece_embedding(self) -> Float[Tensor, "V H"]:
        return self.embeddings.pieces.weight

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """All parameters, bottom to top: embeddings, each block, pooler."""
        return [list(part.parameters()) for part in (self.embeddings, *self.blocks, self.pooler)]

    def regions(self) -> list[nn.Module]:
        return list(self.blocks)
