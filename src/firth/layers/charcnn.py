"""Encode words from their characters: convolutions, max pooling, highway layers, a projection.

Source: Kim et al. 2016, and allenai/bilm-tf model.py for all numbers.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from firth.layers.activations import ACTIVATIONS
from firth.layers.dropout import Dropout
from firth.text.characters import N_CHARACTERS, PADDING

# Words convolved at once, which bounds memory.
_AT_ONCE = 256
# Highway gates start mostly closed, so that the input passes through.
_GATE_BIAS = -2.0


class Highway(nn.Module):
    """``g · relu(W x + b) + (1 - g) · x`` with ``g = σ(V x + c)``.

    Source: Srivastava et al. 2015, and allenai/bilm-tf model.py, high_way, which calls the gate of the transform
    "carry".
    """

    def __init__(self, width: int):
        super().__init__()
        self.gate = nn.Linear(width, width)
        self.transform = nn.Linear(width, width)
        for linear in (self.gate, self.transform):
            nn.init.normal_(linear.weight, std=1 / math.sqrt(width))
            nn.init.zeros_(linear.bias)
        nn.init.constant_(self.gate.bias, _GATE_BIAS)

    def forward(self, x: Float[Tensor, "W F"]) -> Float[Tensor, "W F"]:
        return torch.lerp(x, F.relu(self.transform(x)).to(x.dtype), self.gate(x).sigmoid().to(x.dtype))


class CharacterCNN(nn.Module):
    """Encodes rows of character ids ``(W, C)`` as one vector per word ``(W, width)``.

    ``filters``: (width in characters, number). Padding takes part in convolution and
    maximum, as in the published models: it has its own vector. There is a projection only if the number of
    filters differs from ``width``. ``dropout``: on character vectors.
    """

    def __init__(
        self,
        *,
        width: int,
        character_width: int,
        filters: Sequence[tuple[int, ...]],
        n_highways: int,
        activation: str,
        dropout: float = 0.0,
    ):
        super().__init__()
        n_filters = sum(n for _, n in filters)
        self.activate, self.widest = ACTIVATIONS[activation], max(size for size, _ in filters)
        self.embedding, self.dropout = nn.Embedding(N_CHARACTERS, character_width), Dropout(dropout)
        self.convolutions = nn.ModuleList(nn.Conv1d(character_width, n, size) for size, n in filters)
        self.highways = nn.Sequential(*(Highway(n_filters) for _ in range(n_highways)))
        self.projection = nn.Linear(n_filters, width) if n_filters != width else nn.Identity()
        self._initialise(activation)

    def _initialise(self, activation: str) -> None:
        nn.init.uniform_(self.embedding.weight, -1, 1)
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv1d)
            if activation == "relu":
                nn.init.uniform_(convolution.weight, -0.05, 0.05)
            else:
                nn.init.normal_(convolution.weight, std=1 / math.sqrt(convolution.weight[0].numel()))
            assert convolution.bias is not None
            nn.init.zeros_(convolution.bias)
        if isinstance(self.projection, nn.Linear):
            nn.init.normal_(self.projection.weight, std=1 / math.sqrt(self.projection.in_features))
            nn.init.zeros_(self.projection.bias)

    def forward(self, characters: Int[Tensor, "W C"]) -> Float[Tensor, "W width"]:
        # Group words of similar length, so that short ones need few columns.
        by_length = (characters != PADDING).sum(1).argsort(stable=True)
        parts = characters.index_select(0, by_length).split(_AT_ONCE)
        found = torch.cat([self._filtered(without_idle_filling(part, self.widest)) for part in parts])
        return self.projection(self.highways(found)).index_select(0, by_length.argsort())

    def _filtered(self, characters: Int[Tensor, "W S"]) -> Float[Tensor, "W F"]:
        x = self.dropout(self.embedding(characters)).transpose(1, 2)
        # All activations here are monotonic, so they can follow the maximum, where there is less to compute.
        return torch.cat([self.activate(convolution(x).amax(2)) for convolution in self.convolutions], 1)


def without_idle_filling(characters: Int[Tensor, "W C"], widest: int) -> Int[Tensor, "W S"]:
    """Drop padding columns that cannot change a maximum over windows of at most ``widest`` columns.

    All windows that see only padding give the same number: one of each size is enough.
    """
    longest = int((characters != PADDING).sum(1).amax())
    return characters[:, : longest + widest]


def each_once(
    read: Callable[[Int[Tensor, "U C"]], Float[Tensor, "U width"]], characters: Int[Tensor, "W C"]
) -> Float[Tensor, "W width"]:
    """Apply ``read`` to words, once for each distinct word."""
    different, number = characters.unique(dim=0, return_inverse=True)
    return read(different).index_select(0, number)
