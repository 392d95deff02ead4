"""Sizes of an LSTM language model; no torch."""

from dataclasses import dataclass

from firth.config import AMOUNT, COUNT, DEPTH, RATE, WIDTH, check_bounds, option, required


@dataclass(frozen=True, kw_only=True, slots=True)
class LstmConfig:
    """A plain left-to-right LSTM whose state is carried from batch to batch."""

    vocab_size: int = required("pieces in the vocabulary (taken from the corpus's tokenizer)", COUNT)
    width: int = option(256, "of the embedding and of each layer", WIDTH)
    n_layers: int = option(1, "LSTM layers", DEPTH)
    dropout: float = option(0.0, "of embeddings and layer outputs", RATE)
    init_range: float = option(0.1, "embeddings begin uniform in ± this", AMOUNT)

    def __post_init__(self) -> None:
        check_bounds(self)
