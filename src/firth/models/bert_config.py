"""Sizes and choices of a BERT encoder; no torch."""

from dataclasses import dataclass
from typing import Literal

from firth.config import option, required
from firth.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class BertConfig:
    """Defaults are BERT-base (Devlin et al. 2018, §3) with the released ``n_segments`` of 2."""

    vocab_size: int = required("pieces in the vocabulary (taken from the corpus's tokenizer)")
    width: int = option(768, "H, of all layers")
    n_layers: int = option(12, "L, Transformer blocks")
    n_heads: int = option(12, "A, attention heads; width is a multiple of it")
    feed_forward_width: int = option(3072, "inner width of a block's feed-forward part")
    max_positions: int = option(512, "longest row the position embeddings know")
    n_segments: int = option(2, "segment embeddings (sentence A, sentence B)")
    activation: Literal["gelu", "gelu_tanh", "relu", "tanh", "linear"] = option(
        "gelu", "gelu is the exact (erf) form, gelu_tanh the approximation"
    )
    dropout: float = option(0.1, "of embeddings and block outputs")
    attention_dropout: float = option(0.1, "of attention weights")
    init_range: float = option(0.02, "deviation of the truncated normal at the start")
    norm_epsilon: float = option(1e-12, "LayerNorm")
    causal: bool = option(False, "True: left to right, each token sees only those before it")

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "width",
            "n_layers",
            "n_heads",
            "feed_forward_width",
            "max_positions",
            "n_segments",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: expected at least 1")
        if self.width % self.n_heads:
            raise ConfigError(f"width={self.width} is not a multiple of n_heads={self.n_heads}")
        if self.norm_epsilon <= 0 or self.init_range < 0:
            raise ConfigError(f"norm_epsilon={self.norm_epsilon}, init_range={self.init_range}: expected above 0")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: expected at least 0 and less than 1")
