"""Convert words to rows of character ids, as ELMo reads them.

A character is a byte of the word's UTF-8, or one of five marks. Source: allenai/bilm-tf data.py,
UnicodeCharsVocabulary. Differs: for prediction the published code shifts all ids by one, so that 0 can mean "no
word". Here every row is a word, and the ids are those of training.
"""

from collections.abc import Sequence

import numpy as np

# Characters per row, and the bytes of a word that fit between its marks.
ROW = 50
_MOST_BYTES = ROW - 2

BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = range(256, 261)
N_CHARACTERS = 261


def character_rows(words: Sequence[str]) -> np.ndarray:
    """Encode words as uint16 (W, 50): start of word, bytes, end of word, padding.

    A long word is cut after 48 bytes, possibly inside a character.
    """
    rows = np.full((len(words), ROW), PADDING, np.uint16)
    rows[:, 0] = BEGIN_WORD
    for row, word in zip(rows, words, strict=True):
        # As elsewhere, an unpaired surrogate becomes U+FFFD.
        encoded = word.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()[:_MOST_BYTES]
        row[1 : 1 + len(encoded)] = np.frombuffer(encoded, np.uint8)
        row[1 + len(encoded)] = END_WORD
    return rows


def mark_row(mark: int) -> np.ndarray:
    """uint16 (50,): the row of a start-of-sentence or end-of-sentence mark."""
    row = np.full(ROW, PADDING, np.uint16)
    row[:3] = BEGIN_WORD, mark, END_WORD
    return row
