"""Compare two texts by their vectors.

Source: Reimers and Gurevych 2019 (Sentence-BERT), §3; Conneau et al. 2017 (InferSent), §3.1, for the product.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from firth.layers.biattention import partners
from firth.layers.dropout import Dropout

TowerComparison = Literal["cosine", "features"]


class TowersNetwork(nn.Module):
    """Computes K outputs per example from the vectors u and v of its texts: a linear layer on their comparison.

    ``compare``: "cosine": only cos(u, v); "features": u, v, \\|u - v\\|, u * v and the cosine.
    """

    def __init__(self, width: int, n_outputs: int, *, compare: TowerComparison, dropout: float):
        super().__init__()
        self.compare, self.dropout = compare, Dropout(dropout)
        self.output = nn.Linear(1 if compare == "cosine" else 4 * width + 1, n_outputs)

    @torch.no_grad()
    def start_at(self, lowest: float, highest: float) -> None:
        """Initialise so that a cosine of 0 gives the lowest value and 1 the highest: the scale need not be learned."""
        self.output.weight[:, -1], self.output.bias[:] = highest - lowest, lowest

    def forward(self, x: Float[Tensor, "B width"], second: Bool[Tensor, " B"]) -> Float[Tensor, "B K"]:
        """``second``: True where a sequence is the second text of the previous sequence's example. The outputs there
        are 0; the example's are at its first sequence."""
        partner, first = partners(second)
        x = self.dropout(x.to(torch.promote_types(x.dtype, torch.float32)))
        found = self.compared(x.index_select(0, first), x.index_select(0, partner.index_select(0, first)))
        return found.new_zeros(len(x), found.shape[1]).index_copy(0, first, found)

    def compared(self, u: Float[Tensor, "E width"], v: Float[Tensor, "E width"]) -> Float[Tensor, "E K"]:
        """The outputs of E pairs, from the vectors of their first and second texts."""
        features = F.cosine_similarity(u, v, dim=1)[:, None]
        if self.compare == "features":
            features = torch.cat([u, v, (u - v).abs(), u * v, features], 1)
        found: Tensor = self.output(features)
        return found
