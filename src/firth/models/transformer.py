"""The encoder of the encoder-decoder Transformer, in the order of the paper; see also transformer_decoder.py.

Source: Vaswani et al. 2017, §3 and Figure 1; tensorflow/tensor2tensor for what the paper leaves open (LayerNorm's
epsilon, the form with norms before each part).
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from firth.layers.attention import SelfAttention
from firth.layers.blocks import PostNormBlock, run_blocks
from firth.layers.dropout import Dropout
from firth.layers.initialise import xavier_
from firth.layers.mixing import pool_rows
from firth.machine import compute_dtype
from firth.models.config import TransformerConfig
from firth.packed import Encoder, Hidden, Rows, Tokens, kept_layers

_LONGEST_WAVE = 10_000.0


def interleaved(n: int, width: int) -> Float[Tensor, "n H"]:
    """Positions 0 … n-1: dimension 2i is ``sin(p / 10000^(2i/H))``, 2i + 1 its cosine (Vaswani et al. 2017, §3.5)."""
    waves = _LONGEST_WAVE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(n, dtype=torch.float64)[:, None] * waves
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1).float()


def halves(n: int, width: int) -> Float[Tensor, "n H"]:
    """As ``interleaved``, but all sines before all cosines, and wavelengths that reach 10000 exactly.

    Source: tensor2tensor common_attention.py, get_timing_signal_1d.
    """
    waves = _LONGEST_WAVE ** (-torch.arange(width // 2, dtype=torch.float64) / (width // 2 - 1))
    angles = torch.arange(n, dtype=torch.float64)[:, None] * waves
    return torch.cat((angles.sin(), angles.cos()), 1).float()


POSITIONS: dict[str, Callable[[int, int], Tensor]] = {"interleaved": interleaved, "halves": halves}


class PlacedPieces(nn.Module):
    """Embeddings scaled by the square root of the hidden size, plus positions, then dropout.

    It has no parameters: the matrix shared by both sides and the output is passed to each call.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.positions, self.scale = POSITIONS[config.positions], math.sqrt(config.width)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, embedding: Float[Tensor, "V H"], ids: Int[Tensor, " T"], places: Int[Tensor, " T"], n_places: int
    ) -> Float[Tensor, "T H"]:
        """``places``: positions of the tokens in their sequences, all below ``n_places``."""
        table = self.positions(n_places, embedding.shape[1]).to(embedding.device, embedding.dtype)
        x = F.embedding(ids, embedding) * self.scale + table.index_select(0, places)
        # From here on the residual sums have the dtype of the matrix products, as in BERT.
        return self.dropout(x.to(compute_dtype(x)))


class FeedForward(nn.Module):
    """``max(0, x W1 + b1) W2 + b2``, with optional dropout in between (Vaswani et al. 2017, §3.3)."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.inner = nn.Linear(config.width, config.feed_forward_width)
        self.dropout = Dropout(config.feed_forward_dropout)
        self.output = nn.Linear(config.feed_forward_width, config.width)

    def forward(self, x: Float[Tensor, "T H"]) -> Float[Tensor, "T H"]:
        return self.output(self.dropout(F.relu(self.inner(x))))


def make_attention(config: TransformerConfig, *, causal: bool) -> SelfAttention:
    return SelfAttention(
        width=config.width,
        n_heads=config.n_heads,
        dropout=config.attention_dropout,
        causal=causal,
        bias=config.attention_bias,
    )


def make_norm(config: TransformerConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.width, eps=config.norm_epsilon)


def _post_norm_block(config: TransformerConfig) -> PostNormBlock:
    return PostNormBlock(
        width=config.width,
        n_heads=config.n_heads,
        feed_forward_width=config.feed_forward_width,
        activation="relu",
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        norm_epsilon=config.norm_epsilon,
        causal=False,
        attention_bias=config.attention_bias,
        feed_forward_dropout=config.feed_forward_dropout,
    )


class PreNormBlock(nn.Module):
    """The encoder's block with a norm before each part: ``x + dropout(part(norm(x)))``.

    Source: tensor2tensor transformer.py, from its second set of base options on.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.attention_norm, self.attention = make_norm(config), make_attention(config, causal=False)
        self.feed_forward_norm, self.feed_forward = make_norm(config), FeedForward(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Float[Tensor, "T H"], rows: Rows) -> Float[Tensor, "T H"]:
        x = x + self.dropout(self.attention(self.attention_norm(x), rows))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


# By ``norm``: the blocks, and the final norm of each side.
_BLOCKS: dict[str, Callable[[TransformerConfig], nn.Module]] = {"post": _post_norm_block, "pre": PreNormBlock}
ENDS: dict[str, Callable[[TransformerConfig], nn.Module]] = {"post": lambda config: nn.Identity(), "pre": make_norm}


class TransformerEncoder(Encoder):
    """The encoder of the source. ``summary`` is the mean of the top states, the end token included:
    training favours none of them, as the decoder reads them all.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        self.pieces = nn.Embedding(config.vocab_size, config.width)
        self.placed = PlacedPieces(config)
        self.blocks = nn.ModuleList(_BLOCKS[config.norm](config) for _ in range(config.n_layers))
        self.end = ENDS[config.norm](config)
        xavier_(self)
        nn.init.normal_(self.pieces.weight, std=config.width**-0.5)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of layers 0 (embeddings) to L."""
        return (self.config.width,) * (self.config.n_layers + 1)

    def forward(self, tokens: Tokens, keep: Sequence[int] = (-1,)) -> Hidden:
        kept = kept_layers(keep, self.config.n_layers)
        rows = tokens.rows
        x = self.placed(self.pieces.weight, tokens.ids, rows.positions, rows.longest)
        x, layers = run_blocks(self.blocks, x, rows, kept)
        x = self.end(x)
        if self.config.n_layers in kept:
            layers[self.config.n_layers] = x
        return Hidden(layers=layers, rows=rows, summary=pool_rows(x, rows, "mean"))

    @property
    def piece_embedding(self) -> Float[Tensor, "V H"]:
        return self.pieces.weight

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """All parameters, bottom to top: embeddings, each block; with norms before the parts, the final norm."""
        groups = [list(part.parameters()) for part in (self.pieces, *self.blocks, self.end)]
        return [group for group in groups if group]

    def regions(self) -> list[nn.Module]:
        return list(self.blocks)
