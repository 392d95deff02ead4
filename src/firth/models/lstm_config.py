"""Sizes of an LSTM language model; no torch."""

from dataclasses import dataclass

from firth.config import option, required
from firth.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class LstmConfig:
    """A plain left-to-right LSTM whose state is carried from batch to batch."""

    vocab_size: int = required("pieces in the vocabulary (taken from the corpus's tokenizer)")
    width: int = option(256, "of the embedding and of each layer")
    n_layers: int = option(1, "LSTM layers")
    dropout: float = option(0.0, "of embeddings and layer outputs")
    init_range: float = option(0.1, "embeddings begin uniform in ± this")

    def __post_init__(self) -> None:
        for name in ("vocab_size", "width", "n_layers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: expected at least 1")
        if self.init_range < 0:
            raise ConfigError(f"init_range={self.init_range}: expected 0 or more")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout={self.dropout}: expected at least 0 and less than 1")
