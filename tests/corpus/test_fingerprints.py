"""Word hashes and character kinds, against the same in plain Python."""

import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import firth.corpus.fingerprints as fingerprints
from firth.corpus.fingerprints import CLOSED, OPEN, SCRIPTS, fingerprint, inside, ngrams, sequence_hashes

WORDS = st.sampled_from(
    ["the", "The", "강이", "흐른다", "don't", "3.14", "été", "e\u0301te\u0301", "…", "漢字", "かな", "x²", "—", ""]
)
DOCUMENTS = st.lists(st.lists(st.lists(WORDS, max_size=8).map(" ".join), max_size=4), max_size=5)


def plain_words(text: str) -> list[str]:
    """The words of a paragraph, computed the slow way."""
    text = unicodedata.normalize("NFC", text).lower()
    return re.findall(r"[\u3040-\u30ff\u3400-\u9fff]|(?:(?![\u3040-\u30ff\u3400-\u9fff])[^\W_])+", text)


@settings(max_examples=100)
@given(DOCUMENTS)
def test_equal_words_have_equal_hashes_and_unequal_ones_do_not(documents: list[list[str]]) -> None:
    block = fingerprint(documents)
    paragraphs = [paragraph for document in documents for paragraph in document]
    expected = [word for paragraph in paragraphs for word in plain_words(paragraph)]
    assert np.diff(block.word_starts).tolist() == [len(plain_words(paragraph)) for paragraph in paragraphs]
    assert np.diff(block.paragraph_starts).tolist() == [len(document) for document in documents]
    hashes = block.words.tolist()
    assert len(hashes) == len(expected)
    for a, one in zip(expected, hashes, strict=True):
        for b, other in zip(expected, hashes, strict=True):
            assert (a == b) == (one == other)


def test_hashes_are_the_same_everywhere() -> None:
    """They decide what a corpus contains, so they follow an integer formula, whatever precedes a word."""
    block = fingerprint([["...The old Farmer, walked."]])
    assert fingerprint([["the OLD farmer walked"]]).words.tolist() == block.words.tolist()
    for word, found in zip(("the", "old", "farmer", "walked"), block.words.tolist(), strict=True):
        total = sum((ord(letter) + 1) * 0x9E3779B97F4A7C15**i for i, letter in enumerate(word)) % 2**64
        total = (total ^ (total >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        total = (total ^ (total >> 27)) * 0x94D049BB133111EB % 2**64
        assert found == total ^ (total >> 31)


def test_pieces_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [[f"word{i} and 漢字 {'x' * (i % 7)}" for i in range(30)] for _ in range(4)]
    whole = fingerprint(documents)
    monkeypatch.setattr(fingerprints, "_PIECE", 40)
    parts = fingerprint(documents)
    for name in ("words", "word_starts", "paragraph_starts", "kinds", "ends", "scripts"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))


def test_what_a_paragraph_is() -> None:
    first = ["He said: “No.”", "A list item", "| a | b | c", "• one", "2019 \ufffd"]
    block = fingerprint([first, ["강과 river", "漢字かな"]])
    assert block.ends.tolist() == [CLOSED, OPEN, OPEN, OPEN, OPEN, OPEN, OPEN]
    assert block.bars.tolist() == [0, 0, 3, 0, 0, 0, 0]
    assert block.bullets.tolist() == [0, 0, 0, 1, 0, 0, 0]
    assert block.damaged.tolist() == [0, 0, 0, 0, 1, 0, 0]
    # space, symbol, digit, letter, ideograph
    assert block.kinds[0].tolist() == [2, 4, 0, 8, 0]
    assert block.kinds[4].tolist() == [1, 1, 4, 0, 0]
    counts = dict(zip(SCRIPTS, block.scripts[1].tolist(), strict=True))
    assert (counts["hangul"], counts["latin"], counts["han"], counts["kana"]) == (2, 5, 2, 2)
    assert block.scripts[0].sum() == block.kinds[:5, 3:].sum()


def test_windows_of_words_and_where_they_lie() -> None:
    words = fingerprint([["a b c d e"], ["c d e a"]]).words
    threes = ngrams(words, 3)
    assert len(threes) == 7 and threes[2] == threes[5]
    assert inside(np.array([0, 5, 9]), 3).tolist() == [True, True, True, False, False, True, True]
    assert len(ngrams(words[:2], 3)) == 0 and len(inside(np.array([0, 2]), 3)) == 0


def test_the_hash_of_a_sequence_knows_its_order() -> None:
    words = fingerprint([["a b", "b a", "a b", ""]])
    ours, other, same, nothing = sequence_hashes(words.words, words.word_starts).tolist()
    assert ours == same != other and nothing == 0


def test_nothing_at_all() -> None:
    assert len(fingerprint([]).words) == 0
    assert fingerprint([["…"]]).words.tolist() == [] and fingerprint([[]]).scripts.shape == (1, len(SCRIPTS))
