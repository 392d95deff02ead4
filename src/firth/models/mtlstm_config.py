"""Sizes of CoVe's MT-LSTM; no torch."""

from dataclasses import dataclass

from firth.config import AMOUNT, COUNT, DEPTH, RATE, WIDTH, check_bounds, option, required


@dataclass(frozen=True, kw_only=True, slots=True)
class MtLstmConfig:
    """Sizes of the published encoder (McCann et al. 2017, §3)."""

    vocab_size: int = required("words in the vocabulary (taken from the corpus's tokenizer)", COUNT)
    width: int = option(300, "of a word's vector", WIDTH)
    hidden_width: int = option(300, "of each layer in each direction", WIDTH)
    n_layers: int = option(2, "LSTM layers in each direction, and of the decoder", DEPTH)
    dropout: float = option(0.2, "between layers, in training", RATE)
    fixed_words: bool = option(True, "True: word vectors stay as they are; false: they are learnt too")
    init_range: float = option(0.1, "all parameters begin uniform in ± this", AMOUNT)

    def __post_init__(self) -> None:
        check_bounds(self)
