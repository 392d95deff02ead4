"""Google's BERT tokenizer in plain Python, written from the specification: slow, the reference for ours."""

import unicodedata
from collections.abc import Container

IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def clean(text: str) -> str:
    kept = []
    for c in text:
        category = unicodedata.category(c)
        if c in " \t\n\r" or category == "Zs":
            kept.append(" ")
        elif c != "\ufffd" and category not in ("Cc", "Cf"):
            kept.append(c)
    return "".join(kept)


def is_ideograph(c: str) -> bool:
    return any(first <= ord(c) <= last for first, last in IDEOGRAPHS)


def is_punctuation(c: str) -> bool:
    ascii_ranges = ((33, 47), (58, 64), (91, 96), (123, 126))
    return any(a <= ord(c) <= b for a, b in ascii_ranges) or unicodedata.category(c).startswith("P")


def strip_marks(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")


def basic(text: str, lowercase: bool) -> list[str]:
    spaced = "".join(f" {c} " if is_ideograph(c) else c for c in clean(text))
    words: list[str] = []
    for word in spaced.split():
        if lowercase:
            word = strip_marks(word.lower())
        words += "".join(f" {c} " if is_punctuation(c) else c for c in word).split()
    return words


def wordpiece(word: str, vocabulary: Container[str]) -> list[str]:
    if len(word) > 200:
        return ["[UNK]"]
    pieces: list[str] = []
    start = 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in vocabulary:
                pieces.append(piece)
                start = end
                break
        else:
            return ["[UNK]"]
    return pieces


def tokenize(text: str, vocabulary: Container[str], lowercase: bool) -> list[str]:
    return [piece for word in basic(text, lowercase) for piece in wordpiece(word, vocabulary)]
