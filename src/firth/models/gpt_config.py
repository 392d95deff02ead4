"""Sizes and choices of an OpenAI GPT encoder; no torch."""

from dataclasses import dataclass

from firth.config import option, required
from firth.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class GptConfig:
    """Defaults are the published model's (Radford et al. 2018, §4.1). The inner width is always 4 × ``width``."""

    vocab_size: int = required("pieces in the vocabulary (taken from the corpus's tokenizer)")
    width: int = option(768, "H, of all layers")
    n_layers: int = option(12, "L, Transformer blocks")
    n_heads: int = option(12, "A, attention heads; width is a multiple of it")
    max_positions: int = option(512, "longest row the position embeddings know")
    dropout: float = option(0.1, "of block outputs")
    attention_dropout: float = option(0.1, "of attention weights")
    embedding_dropout: float = option(0.1, "of the sum of piece and position embedding")
    init_range: float = option(0.02, "deviation of the normal at the start")
    norm_epsilon: float = option(1e-5, "LayerNorm")

    def __post_init__(self) -> None:
        for name in ("vocab_size", "width", "n_layers", "n_heads", "max_positions"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: expected at least 1")
        if self.width % self.n_heads:
            raise ConfigError(f"width={self.width} is not a multiple of n_heads={self.n_heads}")
        if self.norm_epsilon <= 0 or self.init_range < 0:
            raise ConfigError(f"norm_epsilon={self.norm_epsilon}, init_range={self.init_range}: expected above 0")
        for name in ("dropout", "attention_dropout", "embedding_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: expected at least 0 and less than 1")

    @property
    def feed_forward_width(self) -> int:
        """Inner width of a block's feed-forward part."""
        return 4 * self.width
