"""Sizes of a bidirectional language model (ELMo); no torch."""

from dataclasses import dataclass
from typing import Literal

from firth.config import AMOUNT, COUNT, DEPTH, RATE, WIDTH, Bounds, check_bounds, option, required
from firth.errors import ConfigError
from firth.text.characters import ROW

HIGHWAYS = Bounds("0 to 100", lambda x: 0 <= x <= 100)


@dataclass(frozen=True, kw_only=True, slots=True)
class BilmConfig:
    """Sizes of the original ELMo (Peters et al. 2018, §3.4; allenai/bilm-tf bin/train_elmo.py)."""

    vocab_size: int = required(
        "words in the vocabulary (taken from the corpus's tokenizer); any word can be read", COUNT
    )
    width: int = option(512, "of a word, and of each layer's output in each direction", WIDTH)
    cells: int = option(4096, "of each layer in each direction, before they are projected to the width", WIDTH)
    n_layers: int = option(2, "LSTM layers in each direction", DEPTH)
    cell_clip: float = option(3.0, "cells stay in ± this; 0: anywhere", AMOUNT)
    projection_clip: float = option(
        3.0, "outputs of a layer stay in ± this, before its input is added; 0: anywhere", AMOUNT
    )
    residual: bool = option(True, "True: from the second layer on, a layer's input is added to its output")
    character_width: int = option(16, "of a character's vector", WIDTH)
    filters: tuple[tuple[int, ...], ...] = option(
        ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)),
        "of the characters: how many one sees, how many there are",
    )
    activation: Literal["relu", "tanh"] = option("relu", "of the filters")
    n_highways: int = option(2, "highway layers over the filters", HIGHWAYS)
    dropout: float = option(0.1, "of each LSTM layer's input, and of what the words are predicted from", RATE)

    def __post_init__(self) -> None:
        check_bounds(self)
        for filters in self.filters:
            if len(filters) != 2 or not 1 <= filters[0] <= ROW or not WIDTH.holds(filters[1]):
                raise ConfigError(
                    f"filters={list(map(list, self.filters))}: expected pairs of a size, 1 to {ROW}, and a number"
                )
        if not self.filters:
            raise ConfigError("filters=[]: expected at least one pair of a size and a number, such as [[3, 64]]")
