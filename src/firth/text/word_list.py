"""A vocabulary of whole words: the most frequent ones."""

from collections.abc import Mapping

from firth.text.merging import known_words, too_large
from firth.text.tokenizer_kinds import WORDS


def choose_words(counts: Mapping[str, int], size: int) -> list[str]:
    """Choose a vocabulary of exactly ``size`` tokens: special ones, then words from the most frequent to the rarest.

    Ties go to the smaller string. Raises TokenizerError if the text has fewer distinct words.
    """
    words = sorted((-n, word) for word, n in known_words(counts).items())
    pieces = [*WORDS.specials, *(word for _, word in words)]
    if len(pieces) < size:
        raise too_large(size, len(pieces))
    return pieces[:size]
