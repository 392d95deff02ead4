"""Sizes of a bidirectional language model (ELMo); no torch."""

from dataclasses import dataclass
from typing import Literal

from firth.config import option, required
from firth.errors import ConfigError
from firth.text.characters import ROW


@dataclass(frozen=True, kw_only=True, slots=True)
class BilmConfig:
    """Sizes of the original ELMo (Peters et al. 2018, §3.4; allenai/bilm-tf bin/train_elmo.py)."""

    vocab_size: int = required("words in the vocabulary (taken from the corpus's tokenizer); any word can be read")
    width: int = option(512, "of a word, and of each layer's output in each direction")
    cells: int = option(4096, "of each layer in each direction, before they are projected to the width")
    n_layers: int = option(2, "LSTM layers in each direction")
    cell_clip: float = option(3.0, "cells stay in ± this; 0: anywhere")
    projection_clip: float = option(3.0, "outputs of a layer stay in ± this, before its input is added; 0: anywhere")
    residual: bool = option(True, "True: from the second layer on, a layer's input is added to its output")
    character_width: int = option(16, "of a character's vector")
    filters: tuple[tuple[int, ...], ...] = option(
        ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)),
        "of the characters: how many one sees, how many there are",
    )
    activation: Literal["relu", "tanh"] = option("relu", "of the filters")
    n_highways: int = option(2, "highway layers over the filters")
    dropout: float = option(0.1, "of each LSTM layer's input, and of what the words are predicted from")

    def __post_init__(self) -> None:
        for name in ("vocab_size", "width", "cells", "n_layers", "character_width"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: expected at least 1")
        if min(self.cell_clip, self.projection_clip, self.n_highways) < 0:
            raise ConfigError("cell_clip, projection_clip and n_highways: expected 0 or more")
        for filters in self.filters:
            if len(filters) != 2 or not 1 <= filters[0] <= ROW or filters[1] < 1:
                raise ConfigError(
                    f"filters={list(map(list, self.filters))}: expected pairs of a size, 1 to {ROW}, and a number"
                )
        if not self.filters:
            raise ConfigError("filters=[]: expected at least one pair of a size and a number, such as [[3, 64]]")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout={self.dropout}: expected at least 0 and less than 1")
