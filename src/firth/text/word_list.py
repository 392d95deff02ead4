"""A vocabulary of whole words: the most frequent ones."""

from collections.abc import Mapping

from firth.errors import TokenizerError
from firth.text.tokenizer import WORD_LIMIT
from firth.text.tokenizer_kinds import WORDS


def choose_words(counts: Mapping[str, int], size: int) -> list[str]:
    """Choose a vocabulary of exactly ``size`` tokens: special ones, then words from the most frequent to the rarest.

    Ties go to the smaller string. Raises TokenizerError if the text has fewer distinct words.
    """
    words = sorted((-n, word) for word, n in counts.items() if 0 < len(word) <= WORD_LIMIT and n > 0)
    if not words:
        raise TokenizerError(f"no words of at most {WORD_LIMIT} characters; give text with words in it")
    pieces = [*WORDS.specials, *(word for _, word in words)]
    if len(pieces) < size:
        largest = len(pieces)
        raise TokenizerError(
            f"the text supports at most {largest} tokens, not {size}; pass --size {largest} or give more text"
        )
    return pieces[:size]
