"""Check that a tokenizer's normalizer fits the Korean tokens of its vocabulary.

Lower-casing by Google's rules strips accents, for which it decomposes Hangul: 한 becomes ᄒ + ᅡ + ᆫ. A vocabulary of
whole syllables has no tokens for these, so every Korean word silently becomes the unknown token. Conversely,
a vocabulary of decomposed Hangul reads nothing if its tokenizer does not decompose.
"""

import re
import unicodedata

from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import PREFIX

# Conjoining letters (jamo), and whole syllables.
_HANGUL = re.compile("[\u1100-\u11ff\uac00-\ud7a3]+")
_SYLLABLES = re.compile("[\uac00-\ud7a3]+")
# A vocabulary with fewer Hangul tokens was not trained on Korean text: its model expects unknown words there.
_LEAST_PIECES = 200
_MOST_WORDS = 500
# Largest share of the vocabulary's own words that a fitting tokenizer may read as unknown.
_MOST_UNKNOWN = 0.05


def is_korean(tokenizer: Tokenizer) -> bool:
    """Whether more of the vocabulary's tokens are Hangul than Latin letters."""
    pieces = [piece.removeprefix(PREFIX) for piece in tokenizer.pieces]
    latin = sum(piece.isascii() and piece.isalpha() for piece in pieces)
    return sum(_HANGUL.fullmatch(piece) is not None for piece in pieces) > latin


def unread_hangul(tokenizer: Tokenizer) -> str:
    """Describe what is wrong with how a tokenizer reads Hangul, and how to fix it; empty if nothing is.

    Tests the vocabulary's own words, composed (NFC) as on the web, and decomposed (NFD) as in macOS file names.
    """
    pieces = [piece for piece in tokenizer.pieces if _HANGUL.fullmatch(piece.removeprefix(PREFIX))]
    if len(pieces) < _LEAST_PIECES:
        return ""
    composed = [unicodedata.normalize("NFC", piece) for piece in pieces if not piece.startswith(PREFIX)]
    words = [word for word in composed if _SYLLABLES.fullmatch(word)]
    words = words[:: -(-len(words) // _MOST_WORDS) or 1]
    if not words or (share := _unknown(tokenizer, words)) <= _MOST_UNKNOWN:
        return ""
    apart = _unknown(tokenizer, [unicodedata.normalize("NFD", word) for word in words])
    return (
        f"its tokenizer reads {share:.0%} of the Korean words of its own vocabulary as {tokenizer.kind.unk} "
        f"({apart:.0%} if decomposed): {_advice(tokenizer, pieces)}"
    )


def _unknown(tokenizer: Tokenizer, words: list[str]) -> float:
    """The share of words with an unknown token."""
    return sum(tokenizer.unk_id in ids for ids in tokenizer.ids_many(words)) / len(words)


def _advice(tokenizer: Tokenizer, pieces: list[str]) -> str:
    whole = sum(_SYLLABLES.fullmatch(piece.removeprefix(PREFIX)) is not None for piece in pieces)
    if tokenizer.lowercase and whole > len(pieces) / 2:
        return (
            "it decomposes Hangul before it looks up tokens. Set do_lower_case or strip_accents to false in "
            "tokenizer_config.json, or convert the model with --cased"
        )
    return "use the tokenizer files that the model was trained with"
