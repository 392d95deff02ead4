"""Words that two texts share: by how words begin, whatever their tokens and their case."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firth.text.shared_words import shared_words, stem
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

_LETTERS = [*"abcdefgilmnoprstvwy0123456789.,?-'년대한민국은의", "é"]
PIECES = [*SPECIALS, *_LETTERS, *(f"##{c}" for c in _LETTERS), "river"]
TOKENIZER = Tokenizer.from_vocab(PIECES, lowercase=True)


def shared(first: str, second: str) -> tuple[list[str], list[str]]:
    """The tokens of each text that belong to shared words."""
    texts = [(text, TOKENIZER.encode(text)) for text in (first, second)]
    marks = shared_words(*texts)
    for (_, tokens), marked in zip(texts, marks, strict=True):
        assert marked.shape == (len(tokens.ids),) and marked.dtype == bool
    a, b = (
        [TOKENIZER.pieces[i] for i, marked in zip(tokens.ids, found, strict=True) if marked]
        for (_, tokens), found in zip(texts, marks, strict=True)
    )
    return a, b


def test_all_tokens_of_a_shared_word_are_marked_in_both_texts() -> None:
    assert shared("wide rivers?", "Rivers, a river") == (["river", "##s"], ["river", "##s", "river"])


@pytest.mark.parametrize("second", ["was it a?", "", "?", "..,,", "4"])
def test_punctuation_and_part_of_a_word_are_not_shared(second: str) -> None:
    assert shared("rivers, 42?", second) == ([], [])


def test_composed_and_decomposed_letters_are_one_word() -> None:
    assert [len(marked) for marked in shared("cafe\u0301 년", "caf\u00e9 년")] == [5, 5]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("published", "publi"), ("Publishing", "publi"), ("river", "river"), ("서울은", "서울"), ("강", "강"),
        ("1394년에", "1394년"), ("123456", "123456"), ("１２", "１２"), ("?", ""), ("…", ""), ("東", "東"),
    ],
)  # fmt: skip
def test_stems_by_hand(word: str, expected: str) -> None:
    assert stem(word) == expected


def test_words_that_begin_alike_are_shared() -> None:
    assert shared("왕성한 대한민국은?", "대한민국의 왕") == (
        ["대", "##한", "##민", "##국", "##은"],
        ["대", "##한", "##민", "##국", "##의"],
    )


@given(st.text("ab .?S", max_size=20), st.text("ab .?s", max_size=20))
@settings(max_examples=100, deadline=None)
def test_marks_agree_with_words_divided_by_hand(first: str, second: str) -> None:
    def words(text: str) -> list[str]:
        return "".join(c.lower() if c.isalnum() else " " for c in text).split()

    both = {stem(word) for word in words(first)} & {stem(word) for word in words(second)}
    marked = shared(first, second)
    for text, found in zip((first, second), marked, strict=True):
        kept = "".join(word for word in words(text) if stem(word) in both)
        assert "".join(piece.removeprefix("##") for piece in found) == kept
