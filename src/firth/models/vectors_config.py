"""Sizes of a table of word vectors; no torch."""

from dataclasses import dataclass
from typing import Literal

from firth.config import COUNT, WIDTH, check_bounds, option, required
from firth.errors import ConfigError

Unknown = Literal["one", "shapes", "hashed", "ngrams"]


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorsConfig:
    """One vector a word, whatever stands around it, and what a word without one gets."""

    vocab_size: int = required("words in the vocabulary (taken from the corpus's tokenizer)", COUNT)
    width: int = option(100, "numbers of a vector", WIDTH)
    unknown: Unknown = option(
        "one",
        "a word outside the vocabulary has: one vector for all, one for its shape (number, capitals, …), "
        "one for its hash, or the mean of its n-grams' (fastText)",
    )
    n_buckets: int = option(0, "vectors for hashes of words (1,000 are many) or n-grams (fastText: 2,000,000)")
    shortest_ngram: int = option(3, "characters, the marks of the word's begin and end included (fastText: 3)", COUNT)
    longest_ngram: int = option(6, "the same (fastText: 6)")

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.longest_ngram < self.shortest_ngram:
            raise ConfigError(f"longest_ngram={self.longest_ngram}: expected at least {self.shortest_ngram}")
        hashes = self.unknown in ("hashed", "ngrams")
        if self.n_buckets < hashes or (self.n_buckets and not hashes):
            wanted = "at least 1" if hashes else "0"
            raise ConfigError(f"n_buckets={self.n_buckets}: expected {wanted} with unknown={self.unknown!r}")

    @property
    def n_layers(self) -> int:
        """Above the embedding: none."""
        return 0
