"""Sizes and choices of a BERT encoder; no torch."""

from dataclasses import dataclass
from typing import Literal

from firth.config import AMOUNT, COUNT, DEPTH, POSITIVE, RATE, WIDTH, check_bounds, option, required
from firth.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class BertConfig:
    """Defaults are BERT-base (Devlin et al. 2018, §3) with the released ``n_segments`` of 2."""

    vocab_size: int = required("pieces in the vocabulary (taken from the corpus's tokenizer)", COUNT)
    width: int = option(768, "H, of all layers", WIDTH)
    n_layers: int = option(12, "L, Transformer blocks", DEPTH)
    n_heads: int = option(12, "A, attention heads; width is a multiple of it", COUNT)
    feed_forward_width: int = option(3072, "inner width of a block's feed-forward part", WIDTH)
    max_positions: int = option(512, "longest row the position embeddings know", COUNT)
    n_segments: int = option(2, "segment embeddings (sentence A, sentence B)", COUNT)
    activation: Literal["gelu", "gelu_tanh", "relu", "tanh", "linear"] = option(
        "gelu", "gelu is the exact (erf) form, gelu_tanh the approximation"
    )
    dropout: float = option(0.1, "of embeddings and block outputs", RATE)
    attention_dropout: float = option(0.1, "of attention weights", RATE)
    init_range: float = option(0.02, "deviation of the truncated normal at the start", AMOUNT)
    norm_epsilon: float = option(1e-12, "LayerNorm", POSITIVE)
    causal: bool = option(False, "True: left to right, each token sees only those before it")

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.width % self.n_heads:
            raise ConfigError(f"width={self.width} is not a multiple of n_heads={self.n_heads}")
