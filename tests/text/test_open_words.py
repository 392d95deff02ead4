"""Words outside the vocabulary that keep their spelling."""

import pickle

import numpy as np
import pytest

from firth.convert.elmo import spaced_words
from firth.errors import TokenizerError
from firth.text import open_words
from firth.text.characters import BEGIN_SENTENCE, END_SENTENCE, character_rows, mark_row
from firth.text.open_words import OpenWords, in_blocks, opened, vocabulary_characters
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS, WORDS

WORDS_IN = ("the", "cat", ".")


def closed(lowercase: bool = False) -> Tokenizer:
    return Tokenizer.from_words([*WORDS.specials, *WORDS_IN], lowercase=lowercase)


def test_each_word_outside_the_vocabulary_has_an_id_of_its_own() -> None:
    tokenizer = opened(closed())
    size = tokenizer.size
    assert tokenizer.ids_many(["the cat sat.", "dogs sat"]) == [[4, 5, size, 6], [size + 1, size]]
    assert tokenizer.ids_of_words(["sat", "cat", "mat"]) == [[size], [5], [size + 2]]
    encoded = tokenizer.encode("the  mat.")
    assert encoded.ids == [4, size + 2, 6] and encoded.offsets == [(0, 3), (5, 8), (8, 9)]
    assert tokenizer.decode([1, 4, size + 1, 3]) == "the dogs"
    assert tokenizer.piece(size) == "sat" and tokenizer.piece(5) == "cat"


def test_known_words_are_as_in_the_closed_vocabulary() -> None:
    tokenizer, text = closed(), "the cat. the"
    assert opened(tokenizer).ids_many([text]) == tokenizer.ids_many([text])
    assert opened(tokenizer).fingerprint == tokenizer.fingerprint
    assert opened(opened(tokenizer)).size == tokenizer.size
    assert tokenizer.characters([4]) is None and tokenizer.piece(4) == "the"


def test_words_are_those_of_the_normalised_text() -> None:
    tokenizer = opened(closed(lowercase=True))
    (first, second), (third,) = tokenizer.ids_many(["The DOG", "dog"])
    assert (first, second) == (4, third) and tokenizer.piece(third) == "dog"


def test_characters_are_those_of_the_word() -> None:
    tokenizer = opened(closed())
    ids = [tokenizer.start_id, *tokenizer.ids_many(["the zebra"])[0], tokenizer.end_id]
    rows = tokenizer.characters(ids)
    assert rows.dtype == np.uint16
    expected = [mark_row(BEGIN_SENTENCE), *character_rows(["the", "zebra"]), mark_row(END_SENTENCE)]
    assert (rows == np.stack(expected)).all()
    assert tokenizer.characters([]).shape == (0, 50)
    assert (vocabulary_characters(closed())[[1, 3, 5]] == tokenizer.characters([1, 3, 5])).all()


def test_a_word_spelled_like_a_special_piece_is_a_word() -> None:
    tokenizer = opened(spaced_words(["cat"]))
    ids = tokenizer.ids_many(["<s> cat <unk> </s>"])[0]
    assert ids[1] == 4 and min(ids[0], ids[2], ids[3]) >= tokenizer.size
    assert (tokenizer.characters(ids[:1]) == character_rows(["<s>"])).all()


def test_text_that_is_divided_already_stays_as_it_is() -> None:
    tokenizer = opened(spaced_words([]))
    text = "The U.S. team 's  bio-identical ﬁrst"
    (ids,) = tokenizer.ids_many([text])
    assert [tokenizer.piece(i) for i in ids] == text.split()


def test_the_word_not_asked_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_words, "MOST_WORDS", 2)
    tokenizer = opened(spaced_words([]))
    ((a,), (b,), (again,), (c,)) = tokenizer.ids_many(["a", "b", "a", "c"])
    assert again == a and tokenizer.piece(a) == "a" and tokenizer.piece(c) == "c"
    with pytest.raises(TokenizerError, match=f"id {b} is no remembered word"):
        tokenizer.characters([a, b])
    # It may reappear with a new id.
    assert tokenizer.ids_many(["b"]) == [[c + 1]]


def test_words_are_forgotten_too_if_they_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_words, "MOST_CHARACTERS", 5)
    tokenizer = opened(spaced_words([]))
    ((a,), (bcd,), (again,), (ef,)) = tokenizer.ids_many(["a", "bcd", "a", "ef"])
    assert again == a and [tokenizer.piece(number) for number in (a, ef)] == ["a", "ef"]
    with pytest.raises(TokenizerError, match=f"id {bcd} is no remembered word"):
        tokenizer.piece(bcd)
    ((longest,),) = tokenizer.ids_many(["ghijklm"])
    assert tokenizer.piece(longest) == "ghijklm", "a word beyond the limit replaces all others"
    with pytest.raises(TokenizerError, match=f"id {a} is no remembered word"):
        tokenizer.piece(a)


def test_elsewhere_it_begins_without_the_words_met_here() -> None:
    tokenizer = opened(closed())
    tokenizer.ids_many(["one two three"])
    other = pickle.loads(pickle.dumps(tokenizer))
    assert isinstance(other, OpenWords) and other.ids_many(["three the"]) == [[other.size, 4]]


def test_blocks_have_as_many_characters_as_words_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_words, "MOST_WORDS", 4)
    texts = ["ab", "c", "d", "efghijk", "", "lm", "nop"]
    assert list(in_blocks(texts, len)) == [["ab", "c", "d"], ["efghijk"], ["", "lm"], ["nop"]]
    assert list(in_blocks([], len)) == []


def test_pieces_of_words_cannot_be_open() -> None:
    with pytest.raises(
        TokenizerError, match="requires whole words, these are tokens of the kind WordPiece; .*--kind words"
    ):
        opened(Tokenizer.from_vocab([*SPECIALS, "a"], lowercase=True))
