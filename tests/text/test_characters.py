"""Rows of character ids, as in allenai/bilm-tf."""

import numpy as np
import pytest

from firth.text.characters import (
    BEGIN_SENTENCE,
    BEGIN_WORD,
    END_SENTENCE,
    END_WORD,
    N_CHARACTERS,
    PADDING,
    ROW,
    character_rows,
    mark_row,
)


def published(word: str) -> list[int]:
    """bilm-tf data.py, _convert_word_to_char_ids, written out."""
    code = [260] * 50
    encoded = word.encode("utf-8", "ignore")[:48]
    code[0] = 258
    for k, number in enumerate(encoded, start=1):
        code[k] = number
    code[len(encoded) + 1] = 259
    return code


def test_a_word_is_its_bytes_between_marks() -> None:
    (row,) = character_rows(["cat"])
    assert row.dtype == np.uint16 and row.shape == (ROW,)
    assert row[:6].tolist() == [BEGIN_WORD, *b"cat", END_WORD, PADDING]
    assert (row[5:] == PADDING).all()


@pytest.mark.parametrize(
    "word", ["a", "U.S.", "한국어", "naïve", "x" * 47, "x" * 48, "x" * 49, "가" * 17, "", "𝕏" * 20]
)
def test_rows_are_the_published_ones(word: str) -> None:
    assert character_rows([word])[0].tolist() == published(word)


def test_a_long_word_is_cut_after_48_bytes_even_inside_a_character() -> None:
    (row,) = character_rows(["ab" + "한" * 20])
    assert row[-1] == END_WORD and row[1:49].tolist() == list(("ab" + "한" * 20).encode()[:48])
    with pytest.raises(UnicodeDecodeError):
        bytes(row[1:49].astype(np.uint8)).decode()
    assert (character_rows(["x" * 48, "x" * 60])[0] == character_rows(["x" * 48, "x" * 60])[1]).all()


def test_the_marks_of_sentences_are_words_of_one_character() -> None:
    assert mark_row(BEGIN_SENTENCE)[:4].tolist() == [258, 256, 259, 260]
    assert mark_row(END_SENTENCE)[:4].tolist() == [258, 257, 259, 260]
    assert max(mark_row(BEGIN_SENTENCE)) < N_CHARACTERS == 261


def test_half_of_a_surrogate_pair_is_the_replacement_character() -> None:
    assert (character_rows(["a\ud800b"]) == character_rows(["a\ufffdb"])).all()


def test_published_prediction_shifts_by_one() -> None:
    """At prediction their ids are ours plus one, and the character table has a row of zeros in front."""
    table = np.arange(N_CHARACTERS * 2.0).reshape(N_CHARACTERS, 2)
    theirs = np.concatenate([np.zeros((1, 2)), table])
    row = character_rows(["shift"])[0]
    assert (theirs[row.astype(int) + 1] == table[row]).all()
