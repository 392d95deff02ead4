"""Sizes and choices of the encoder-decoder Transformer; no torch."""

from dataclasses import dataclass
from typing import Literal

from firth.config import option, required
from firth.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerConfig:
    """Defaults are the base model (Vaswani et al. 2017, §3 and Table 3)."""

    vocab_size: int = required("pieces in the vocabulary of both languages (taken from the corpus's tokenizer)")
    width: int = option(512, "H, of all layers; even")
    n_layers: int = option(6, "L, blocks of the encoder, and as many of the decoder")
    n_heads: int = option(8, "attention heads; width is a multiple of it")
    feed_forward_width: int = option(2048, "inner width of a block's feed-forward part")
    dropout: float = option(0.1, "of the sums of embeddings and positions, and of what each part of a block adds")
    attention_dropout: float = option(0.0, "of attention weights")
    feed_forward_dropout: float = option(0.0, "inside of the feed-forward part")
    attention_bias: bool = option(False, "biases in the projections of attention; the paper writes none")
    norm: Literal["post", "pre"] = option(
        "post", "post: norm after each sum, as in the paper; pre: before each part, and one at the end of each side"
    )
    positions: Literal["interleaved", "halves"] = option(
        "interleaved", "sines and cosines in turn, as in the paper; halves: all sines first, as in tensor2tensor"
    )
    norm_epsilon: float = option(1e-6, "LayerNorm")

    def __post_init__(self) -> None:
        for name in ("vocab_size", "width", "n_layers", "n_heads", "feed_forward_width"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: expected at least 1")
        if self.width % 2:
            raise ConfigError(f"width={self.width} is odd: positions are pairs of a sine and a cosine, so it is even")
        if self.width % self.n_heads:
            raise ConfigError(f"width={self.width} is not a multiple of n_heads={self.n_heads}")
        if self.positions == "halves" and self.width < 4:
            raise ConfigError(f"width={self.width}: positions='halves' needs at least 4")
        if self.norm_epsilon <= 0:
            raise ConfigError(f"norm_epsilon={self.norm_epsilon}: expected above 0")
        for name in ("dropout", "attention_dropout", "feed_forward_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: expected at least 0 and less than 1")
