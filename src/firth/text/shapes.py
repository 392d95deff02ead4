"""Word shapes: classes of unknown words (number, capitals, …).

Based on the capital and suffix features of Collobert et al. 2011; the list is this project's own (specification
of word vectors §5 names number and capitals; the others are a design decision).
"""

import zlib

# In order: the first that applies.
SHAPES = (
    "number",  # digits, no letter: 1996-08-22
    "digits",  # digits and letters: B-52
    "marks",  # neither
    "capitals",  # no lower-case letter: NATO
    "capital",  # the first letter: Geneva
    "mixed",  # a capital further in: eBay
    "hyphen",  # left-handed
    "-ing",
    "-ed",
    "-ly",
    "-s",
    "other",
)


def shape_of(word: str) -> int:
    """The index in SHAPES of a word's shape."""
    return SHAPES.index(_shape(word))


def _shape(word: str) -> str:
    letters = [character for character in word if character.isalpha()]
    if any(character.isdigit() for character in word):
        return "digits" if letters else "number"
    if not letters:
        return "marks"
    capital = [character.isupper() or character.istitle() for character in letters]
    if all(capital) and len(letters) > 1:
        return "capitals"
    if any(capital):
        return "capital" if capital[0] else "mixed"
    if "-" in word:
        return "hyphen"
    return next((shape for shape in ("-ing", "-ed", "-ly", "-s") if word.endswith(shape[1:])), "other")


def bucket_of(word: str, n_buckets: int) -> int:
    """Hash a word to a number from 0 to ``n_buckets`` - 1."""
    return zlib.crc32(word.encode("utf-8", "surrogatepass")) % n_buckets
