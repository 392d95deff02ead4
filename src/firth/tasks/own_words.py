"""What a head knows of words by itself, beside the encoder: a vector of each, and its characters.

Source: Peters et al. 2017 (TagLM), §2.1: x = [characters ; word].
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from firth.layers.charcnn import CharacterCNN, each_once
from firth.layers.chargru import CharacterGRU
from firth.packed import Tokens
from firth.tasks.config import FeatureConfig

# Peters et al. 2017, §3.2: the convolutions of chunking, the GRU of names.
_CNN_CHARACTER, _CNN_FILTERS, _CNN_WINDOW = 30, 30, 3
_GRU_CHARACTER, _GRU_WIDTH = 25, 80


class OwnWords(nn.Module):
    """Tokens ``(T,)`` -> ``[characters ; word]`` (T, width), both learnt with the head.

    ``n_words``: of the tokenizer's vocabulary. The table begins uniform, unless word vectors are put into it.
    """

    def __init__(self, n_words: int, config: FeatureConfig):
        super().__init__()
        self.width = 0
        self.characters: CharacterCNN | CharacterGRU | None = None
        if config.own_characters == "cnn":
            self.characters = CharacterCNN(
                width=_CNN_FILTERS, character_width=_CNN_CHARACTER, filters=((_CNN_WINDOW, _CNN_FILTERS),),
                n_highways=0, activation="tanh", dropout=config.dropout,
            )  # fmt: skip
            self.width += _CNN_FILTERS
        elif config.own_characters == "gru":
            self.characters = CharacterGRU(width=_GRU_WIDTH, character_width=_GRU_CHARACTER, dropout=config.dropout)
            self.width += self.characters.width
        self.words = None
        if config.own_words:
            self.words = nn.Embedding(n_words, config.own_words)
            # Of a variance that published word vectors have, so that a word without one is no stranger among them.
            nn.init.uniform_(self.words.weight, -0.5, 0.5)
            self.width += config.own_words

    def forward(self, tokens: Tokens) -> Float[Tensor, "T width"]:
        parts = []
        if self.characters is not None:
            if tokens.chars is None:
                raise ValueError("this head reads characters: tokens.chars is missing")
            # Dropout is fresh for each word: then equal words are not alike.
            alike = not (self.training and self.characters.dropout.p)
            parts.append(each_once(self.characters, tokens.chars) if alike else self.characters(tokens.chars))
        if self.words is not None:
            parts.append(self.words(tokens.ids))
        return torch.cat(parts, 1)
