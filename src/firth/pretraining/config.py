"""Initialisation options; does not import torch."""

from dataclasses import dataclass
from typing import Literal

from firth.config import AMOUNT, DEVIATION, POSITIVE, check_bounds, option


@dataclass(frozen=True, kw_only=True, slots=True)
class InitConfig:
    """Initialisation from statistics of the training text. The defaults are the published random initialisation.

    Only ``trained_positions`` is for a model to continue; the others are for one that starts from scratch.
    """

    embeddings: Literal["random", "cooccurrence"] = option(
        "random", "cooccurrence: token embeddings start as vectors counted in the training text (PPMI, SVD)"
    )
    embedding_deviation: float = option(
        0.04, "standard deviation of the numbers of one such vector, and of sinusoidal positions", POSITIVE
    )
    output_bias: Literal["zero", "frequencies"] = option(
        "zero", "frequencies: the output bias starts as the log-frequencies of the tokens"
    )
    positions: Literal["random", "sinusoids"] = option(
        "random", "sinusoids: positions start as sinusoids, in dimensions that token embeddings leave to them"
    )
    neighbour_heads: tuple[int, ...] = option(
        (),
        "offsets: heads of the first layer that start by attending to the token at that offset, e.g. [-1, 1]; as many "
        "of them as the layer has heads",
    )
    neighbour_gain: float = option(1.0, "scale of their queries and keys: higher is sharper", DEVIATION)
    trained_positions: int = option(
        0,
        "number of leading positions that the base model was trained on; the later ones start extrapolated from them; "
        "0: it was trained on all",
        AMOUNT,
    )

    def __post_init__(self) -> None:
        check_bounds(self, "init")
