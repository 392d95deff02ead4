"""Encode words from their characters by a bidirectional GRU.

Source: Peters et al. 2017 (TagLM), §2.1 and §3.2.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from firth.layers.dropout import Dropout
from firth.layers.recurrent import initialise_gates
from firth.text.characters import N_CHARACTERS, PADDING


class CharacterGRU(nn.Module):
    """Encodes rows of character ids ``(W, C)`` as one vector per word ``(W, 2 * width)``.

    The final states of both directions: [forward at the word's end ; backward at its start]. Padding is not read;
    the marks of a word's start and end are. ``dropout``: on character vectors.
    """

    def __init__(self, *, width: int, character_width: int, dropout: float):
        super().__init__()
        self.width = 2 * width
        self.embedding, self.dropout = nn.Embedding(N_CHARACTERS, character_width), Dropout(dropout)
        self.gru = nn.GRU(character_width, width, bidirectional=True, batch_first=True)
        nn.init.uniform_(self.embedding.weight, -1, 1)
        for name, parameter in self.gru.named_parameters():
            initialise_gates(name, parameter.data, "gru")

    def forward(self, characters: Int[Tensor, "W C"]) -> Float[Tensor, "W width"]:
        lengths = (characters != PADDING).sum(1)
        x = self.dropout(self.embedding(characters[:, : int(lengths.amax())]))
        last: Tensor = self.gru(pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False))[1]
        return torch.cat([last[0], last[1]], 1)
