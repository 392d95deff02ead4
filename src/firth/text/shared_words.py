"""Which tokens of two texts belong to words that the other text has too."""

import re

import numpy as np
from jaxtyping import Bool

from firth.text.tokenizer import Encoded
from firth.text.words import folded_word

# Characters that words must share from their start: "published" and "publishing", 서울은 and 서울의.
_STEM, _HANGUL_STEM = 5, 2
_HANGUL = re.compile("[\uac00-\ud7a3]")


def shared_words(
    first: tuple[str, Encoded], second: tuple[str, Encoded]
) -> tuple[Bool[np.ndarray, " A"], Bool[np.ndarray, " B"]]:
    """For each token of two texts, whether the other text has its word (Chen et al. 2017, §3.2, exact match).

    Each text comes with its tokens. Words are equal if they begin alike, whatever their case; there, lemmas are
    compared. Numbers must be equal as a whole, and punctuation is never shared.
    """
    stems = [_stems(*text) for text in (first, second)]
    both = set(stems[0]) & set(stems[1]) - {""}
    a, b = (np.array([stem in both for stem in found], bool) for found in stems)
    return a, b


def _stems(text: str, tokens: Encoded) -> list[str]:
    """The stem of each token's word; empty for punctuation."""
    spans: dict[int, tuple[int, int]] = {}
    for word, (begin, end) in zip(tokens.words, tokens.offsets, strict=True):
        first, last = spans.get(word, (begin, end))
        spans[word] = min(first, begin), max(last, end)
    found = {word: stem(text[begin:end]) for word, (begin, end) in spans.items()}
    return [found[word] for word in tokens.words]


def stem(word: str) -> str:
    """The part of a word that equal words share; empty for punctuation."""
    folded = folded_word(word)
    if folded.isdigit():
        return folded
    return folded[: _HANGUL_STEM if _HANGUL.match(folded) else _STEM] if any(map(str.isalnum, folded)) else ""
