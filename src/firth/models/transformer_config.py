"""Sizes and choices of the encoder-decoder Transformer; no torch."""

from dataclasses import dataclass
from typing import Literal

from firth.config import COUNT, DEPTH, POSITIVE, RATE, WIDTH, check_bounds, option, required
from firth.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerConfig:
    """Defaults are the base model (Vaswani et al. 2017, §3 and Table 3)."""

    vocab_size: int = required("pieces in the vocabulary of both languages (taken from the corpus's tokenizer)", COUNT)
    width: int = option(512, "H, of all layers; even", WIDTH)
    n_layers: int = option(6, "L, blocks of the encoder, and as many of the decoder", DEPTH)
    n_heads: int = option(8, "attention heads; width is a multiple of it", COUNT)
    feed_forward_width: int = option(2048, "inner width of a block's feed-forward part", WIDTH)
    dropout: float = option(0.1, "of the sums of embeddings and positions, and of what each part of a block adds", RATE)
    attention_dropout: float = option(0.0, "of attention weights", RATE)
    feed_forward_dropout: float = option(0.0, "inside of the feed-forward part", RATE)
    attention_bias: bool = option(False, "biases in the projections of attention; the paper writes none")
    norm: Literal["post", "pre"] = option(
        "post", "post: norm after each sum, as in the paper; pre: before each part, and one at the end of each side"
    )
    positions: Literal["interleaved", "halves"] = option(
        "interleaved", "sines and cosines in turn, as in the paper; halves: all sines first, as in tensor2tensor"
    )
    norm_epsilon: float = option(1e-6, "LayerNorm", POSITIVE)

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.width % 2:
            raise ConfigError(f"width={self.width} is odd: positions are pairs of a sine and a cosine, so it is even")
        if self.width % self.n_heads:
            raise ConfigError(f"width={self.width} is not a multiple of n_heads={self.n_heads}")
        if self.positions == "halves" and self.width < 4:
            raise ConfigError(f"width={self.width}: positions='halves' needs at least 4")
