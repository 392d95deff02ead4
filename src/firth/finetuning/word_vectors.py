"""The words that a head knows by itself: whether it can, and the word vectors that they begin with."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from firth.errors import ConfigError
from firth.progress import Progress
from firth.systems import SYSTEMS
from firth.text.tokenizer import Tokenizer
from firth.vectors.folder import open_source


@dataclass(frozen=True, slots=True)
class FirstVectors:
    """Word vectors ``rows`` for the words ``numbers`` of a vocabulary; ``told``: how many of them, in words."""

    numbers: Int[Tensor, " n"]
    rows: Float[Tensor, "n width"]
    told: str

    @torch.no_grad()
    def put_into(self, table: nn.Embedding) -> None:
        """The other words stay as they are."""
        table.weight.index_copy_(0, self.numbers.to(table.weight.device), self.rows.to(table.weight.device))


def check_own(features: Any, system_name: str, tokenizer: Tokenizer) -> None:
    """ConfigError for words or characters of the head's own that the model's tokens do not come with."""
    if features.own_characters != "none" and not SYSTEMS[system_name].characters:
        known = ", ".join(name for name, row in SYSTEMS.items() if row.characters)
        raise ConfigError(
            f"head.features.own_characters={features.own_characters!r}: tokens of {system_name} come without "
            f"characters; set it to none, or take a model that reads whole words ({known})"
        )
    if features.own_words and tokenizer.size <= len(tokenizer.special_ids):
        raise ConfigError(
            f"head.features.own_words={features.own_words}: the model has no vocabulary, so that all words would be "
            "one; give it one with firth convert MODEL --vocab FILE --to DIR, or set it to 0"
        )


def find_vectors(path: str, tokenizer: Tokenizer, width: int) -> FirstVectors:
    """The vectors that a file, or a model of words, has for the words of a vocabulary.

    A word that it does not have takes those of the word in lower case. ConfigError for another width, and where no
    word has a vector.
    """
    file, _ = open_source(path)
    if file.width != width:
        raise ConfigError(
            f"adapt.vectors={path!r} has vectors of width {file.width}, but head.features.own_words={width}: "
            f"set it to {file.width}"
        )
    special = set(tokenizer.special_ids)
    numbers = {piece: i for i, piece in enumerate(tokenizer.pieces) if i not in special}
    wanted = numbers.keys() | {piece.lower() for piece in numbers}
    rows: dict[str, Tensor] = {}
    with Progress("word vectors", None, "words") as progress:
        for words, block in file.blocks():
            for word, row in zip(words, block, strict=True):
                if word in wanted and word not in rows:
                    rows[word] = torch.tensor(row)
            progress.advance(len(words))
    sources = {piece: piece if piece in rows else piece.lower() for piece in numbers}
    filled = {numbers[piece]: rows[word] for piece, word in sources.items() if word in rows}
    if not filled:
        raise ConfigError(
            f"adapt.vectors={path!r} has no vector for any of the {len(numbers):,} words of the model's vocabulary"
        )
    lowered = sum(piece != word and word in rows for piece, word in sources.items())
    told = f"{path}: vectors for {len(filled):,} of the vocabulary's {len(numbers):,} words"
    told += f" ({lowered:,} by their lower case)" if lowered else ""
    return FirstVectors(torch.tensor(list(filled)), torch.stack(list(filled.values())), told)
