"""Detects tokenizers that read Korean words of their own vocabulary as unknown."""

import unicodedata
from pathlib import Path

import pytest

from firth.text.hangul import is_korean, unread_hangul
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

SYLLABLES = [chr(0xAC00 + 28 * i) for i in range(300)]
WORDS = [a + b for a, b in zip(SYLLABLES, SYLLABLES[1:], strict=False)]


def tokenizer(words: list[str], *, lowercase: bool, google: bool = True) -> Tokenizer:
    return Tokenizer.from_vocab([*SPECIALS, *words], lowercase=lowercase, google=google)


def test_lower_casing_that_decomposes_whole_syllables_is_found() -> None:
    found = unread_hangul(tokenizer(WORDS, lowercase=True))
    assert found.startswith(
        "its tokenizer reads 100% of the Korean words of its own vocabulary as [UNK] (100% if decomposed)"
    )
    assert "strip_accents to false" in found and "--cased" in found


def test_decomposed_pieces_without_decomposition_are_found() -> None:
    apart = [unicodedata.normalize("NFD", word) for word in WORDS]
    found = unread_hangul(tokenizer(apart, lowercase=False))
    assert "reads 100% of the Korean words" in found and "(0% if decomposed)" in found
    assert "use the tokenizer files that the model was trained with" in found


@pytest.mark.parametrize(
    "right",
    [
        tokenizer(WORDS, lowercase=False),
        tokenizer(WORDS, lowercase=True, google=False),  # our tokenizer does not decompose Hangul
        tokenizer([unicodedata.normalize("NFD", word) for word in WORDS], lowercase=True),
        # Too few Hangul tokens for a Korean vocabulary, as in BERT's English one.
        tokenizer(WORDS[:50], lowercase=True),
        tokenizer(["the", "##s"], lowercase=True),
    ],
)
def test_tokenizers_that_are_right(right: Tokenizer) -> None:
    assert unread_hangul(right) == ""


@pytest.mark.parametrize("name", ["base-cased", "base-chinese", "base-multilingual-cased", "base-uncased"])
def test_published_vocabularies_are_right(name: str, shared_data: Path) -> None:
    file = shared_data / "bert-vocab" / f"bert-{name}-vocab.txt"
    assert unread_hangul(Tokenizer.load(file)) == ""


def test_a_korean_vocabulary_has_more_hangul_than_latin() -> None:
    english = ["the", "##s", "river", "한국"]
    assert is_korean(tokenizer([*WORDS, *english], lowercase=False))
    assert not is_korean(tokenizer(english, lowercase=False))
