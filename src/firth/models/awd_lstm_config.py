"""Sizes of AWD-LSTM; no torch."""

from dataclasses import dataclass, fields, replace
from typing import Any

from firth.config import AMOUNT, COUNT, DEPTH, RATE, WIDTH, check_bounds, option, required

_RATES = ("embedding_dropout", "input_dropout", "weight_dropout", "hidden_dropout")


@dataclass(frozen=True, kw_only=True, slots=True)
class AwdLstmConfig:
    """Sizes and dropout of ULMFiT's language model (Howard & Ruder 2018, §4.1; Merity et al. 2017)."""

    vocab_size: int = required("words in the vocabulary (taken from the corpus's tokenizer)", COUNT)
    width: int = option(400, "of the embedding and of the top layer", WIDTH)
    hidden_width: int = option(1150, "of the layers between", WIDTH)
    n_layers: int = option(3, "LSTM layers", DEPTH)
    embedding_dropout: float = option(0.05, "of words: each vanishes from a whole batch", RATE)
    input_dropout: float = option(0.4, "of the embedded words, the same at every step", RATE)
    weight_dropout: float = option(0.5, "of the hidden-to-hidden matrices", RATE)
    hidden_dropout: float = option(0.3, "between layers, the same at every step", RATE)
    backward: bool = option(False, "True: rows are read from the last token to the first")
    init_range: float = option(0.1, "embeddings begin uniform in ± this", AMOUNT)

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def layer_widths(self) -> tuple[int, ...]:
        """Widths of layers 0 (embeddings) to L."""
        return (self.width, *[self.hidden_width] * (self.n_layers - 1), self.width)

    def with_dropout(self, rate: float) -> "AwdLstmConfig":
        """All four rates in their published proportions, ``rate`` the one of the input (published: 0.4)."""
        published: dict[str, Any] = {f.name: f.default for f in fields(self) if f.name in _RATES}
        scale = rate / published["input_dropout"]
        return replace(self, **{name: value * scale for name, value in published.items()})
