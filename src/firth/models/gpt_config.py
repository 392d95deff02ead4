"""Sizes and choices of an OpenAI GPT encoder; no torch."""

from dataclasses import dataclass

from firth.config import AMOUNT, COUNT, DEPTH, POSITIVE, RATE, WIDTH, check_bounds, option, required
from firth.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class GptConfig:
    """Defaults are the published model's (Radford et al. 2018, §4.1). The inner width is always 4 × ``width``."""

    vocab_size: int = required("pieces in the vocabulary (taken from the corpus's tokenizer)", COUNT)
    width: int = option(768, "H, of all layers", WIDTH)
    n_layers: int = option(12, "L, Transformer blocks", DEPTH)
    n_heads: int = option(12, "A, attention heads; width is a multiple of it", COUNT)
    max_positions: int = option(512, "longest row the position embeddings know", COUNT)
    dropout: float = option(0.1, "of block outputs", RATE)
    attention_dropout: float = option(0.1, "of attention weights", RATE)
    embedding_dropout: float = option(0.1, "of the sum of piece and position embedding", RATE)
    init_range: float = option(0.02, "deviation of the normal at the start", AMOUNT)
    norm_epsilon: float = option(1e-5, "LayerNorm", POSITIVE)

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.width % self.n_heads:
            raise ConfigError(f"width={self.width} is not a multiple of n_heads={self.n_heads}")

    @property
    def feed_forward_width(self) -> int:
        """Inner width of a block's feed-forward part."""
        return 4 * self.width
