"""Sizes of CoVe's MT-LSTM; no torch."""

from dataclasses import dataclass

from firth.config import option, required
from firth.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class MtLstmConfig:
    """Sizes of the published encoder (McCann et al. 2017, §3)."""

    vocab_size: int = required("words in the vocabulary (taken from the corpus's tokenizer)")
    width: int = option(300, "of a word's vector")
    hidden_width: int = option(300, "of each layer in each direction")
    n_layers: int = option(2, "LSTM layers in each direction, and of the decoder")
    dropout: float = option(0.2, "between layers, in training")
    fixed_words: bool = option(True, "True: word vectors stay as they are; false: they are learnt too")
    init_range: float = option(0.1, "all parameters begin uniform in ± this")

    def __post_init__(self) -> None:
        for name in ("vocab_size", "width", "hidden_width", "n_layers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: expected at least 1")
        if self.init_range < 0:
            raise ConfigError(f"init_range={self.init_range}: expected 0 or more")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout={self.dropout}: expected at least 0 and less than 1")
