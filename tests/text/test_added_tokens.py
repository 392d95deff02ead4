"""Tokens to add to a vocabulary for a text: greedy matching, the selection, and what stays unchanged."""

import unicodedata
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firth.errors import TokenizerError
from firth.text.added_tokens import (
    Fit,
    check_extendable,
    choose_pieces,
    count_pieces,
    count_split_words,
    extended,
    greedy_pieces,
    measure_fit,
    text_runs,
)
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import BPE_SPECIALS, SPECIALS, UNK

LETTERS = [form for letter in "abcd" for form in (letter, "##" + letter)]
WORDS = st.text("abcd", min_size=1, max_size=6)


def vocabularies() -> st.SearchStrategy[list[str]]:
    """Special tokens and arbitrary tokens of a, b, c, d; some words cannot be split into them."""
    pieces = st.tuples(st.sampled_from(["", "##"]), st.text("abcd", min_size=1, max_size=4)).map("".join)
    return st.lists(pieces, max_size=12, unique=True).map(lambda some: [*SPECIALS, *some])


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        ("heart", ["heart"]),
        ("heartache", ["heart", "##ache"]),
        ("##ache", ["##ache"]),
        ("##aches", ["##ache", "##s"]),
        # The longest match first, even where another split would be shorter or the only one.
        ("hearty", ["[UNK]"]),
        ("hears", ["hear", "##s"]),
        # A token that begins a word does not match inside one.
        ("##heart", ["[UNK]"]),
        ("ache", ["[UNK]"]),
    ],
)
def test_greedy_reading_by_hand(piece: str, expected: list[str]) -> None:
    assert greedy_pieces(piece, {"heart", "hear", "##ty", "##ache", "##s", UNK}) == expected


@given(WORDS, vocabularies())
def test_greedy_reading_is_the_tokenizers(word: str, pieces: list[str]) -> None:
    tokenizer = Tokenizer.from_vocab(pieces, lowercase=False)
    expected = [pieces[i] for i in tokenizer.ids_many([word])[0]]
    assert greedy_pieces(word, set(pieces)) == expected


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1, ["ab"]),
        (2, ["ab", "abc"]),
        # With both longer tokens, "ab" no longer occurs anywhere, and nothing is left to join.
        (3, ["abc", "abd"]),
        (99, ["abc", "abd"]),
    ],
)
def test_the_most_frequent_pair_is_joined_first_and_what_is_not_taken_is_left_out(n: int, expected: list[str]) -> None:
    assert choose_pieces({"abc": 5, "abd": 3, "c": 70}, LETTERS, n) == expected


def test_joining_goes_on_from_the_pieces_there_are() -> None:
    vocabulary = [*LETTERS, "abc", "##dd"]
    # Starting from letters, "ad" or "##bc" would come first.
    words = {"abcdd": 4, "dabc": 1, "ad": 3}
    assert choose_pieces(words, vocabulary, 9) == ["abcdd", "ad"]


def test_what_occurs_once_is_not_worth_a_piece() -> None:
    assert choose_pieces({"abc": 1, "a": 99}, LETTERS, 9) == []
    assert choose_pieces({}, LETTERS, 9) == []


def test_a_piece_that_costs_what_it_saves_is_left_out() -> None:
    # "abc" saves one in each "abc", and makes "abc ##d ##a" of "ab ##cda", and so on.
    others = {f"abcd{letter}": 1 for letter in "abcd"}
    vocabulary = [*LETTERS, "ab", *(f"##cd{letter}" for letter in "abcd")]
    assert choose_pieces({"abc": 5, **others}, vocabulary, 9) == ["abc"]
    assert choose_pieces({"abc": 4, **others}, vocabulary, 9) == []


def test_no_known_word_becomes_unknown() -> None:
    # With "abc", "abcd" could only continue with "##d", which is missing: [UNK] instead of "ab ##cd".
    vocabulary = {"ab", "##c", "##cd"}
    assert greedy_pieces("abcd", vocabulary | {"abc"}) == [UNK]
    for words in ({"abc": 9, "abcd": 2}, {"abcd": 2, "abc": 9}):
        assert choose_pieces(words, vocabulary, 1) == ["abcd"]
        assert choose_pieces(words, vocabulary, 2) == ["abc", "abcd"]


def test_characters_that_are_missing_make_words_known() -> None:
    words, vocabulary = {"cab": 50, "café": 3, "fa": 2}, [*LETTERS, "f", "##f", UNK]
    assert choose_pieces(words, vocabulary, 1) == ["##é"]
    assert choose_pieces(words, vocabulary, 99) == ["cab", "café", "fa"]
    assert choose_pieces({"éab": 3, "cab": 50}, [*LETTERS, "cab"], 1) == ["é"]
    # Two missing letters in a word: one alone is useless, both together help.
    assert choose_pieces({"éü": 3, "cab": 50}, [*LETTERS, "cab"], 2) == ["##ü", "é"]


@given(st.dictionaries(WORDS, st.integers(1, 9), max_size=12), vocabularies(), st.integers(1, 8))
def test_every_piece_that_is_chosen_saves(words: dict[str, int], pieces: list[str], n: int) -> None:
    known = set(pieces)
    heard: list[int] = []
    chosen = choose_pieces(words, pieces, n, heard.append)
    assert len(chosen) == len(set(chosen)) <= n and not known & set(chosen)
    assert chosen == choose_pieces(dict(reversed(words.items())), list(reversed(pieces)), n)
    assert max(heard, default=0) <= n
    before = {word: greedy_pieces(word, known) for word in words}
    after = {word: greedy_pieces(word, known | set(chosen)) for word in words}
    assert set(chosen) <= {piece for parts in after.values() for piece in parts}
    assert [word for word in words if after[word] == [UNK] and before[word] != [UNK]] == []
    cured = Counter({piece: 1 for word in words if before[word] == [UNK] for piece in after[word]})
    saved = sum(n * (len(before[w]) - len(after[w])) for w, n in words.items() if before[w] != [UNK])
    assert saved >= sum(piece not in cured for piece in chosen)


LOOKS = {
    "cased": {"lowercase": False},
    "uncased": {"lowercase": True},
    "accents": {"lowercase": True, "keep_accents": True},
    "Google's": {"lowercase": True, "google": True},
    "Google's cased": {"lowercase": False, "google": True},
}
CHARACTERS = st.text("aBéÉÅΣσς\u0301, .!\t\n\x1c\x85\u00a0\u3000\u200d中한글\u1112\u1161\u11ab🙂#[]")


@pytest.mark.parametrize("look", LOOKS)
@given(text=CHARACTERS)
def test_words_are_those_of_the_tokenizer(look: str, text: str) -> None:
    letters = "abBéEeÅåΣσς中한글\u1112\u1161\u11ab\u1100\u1173\u11af,.!#[]"
    pieces = [*SPECIALS, *dict.fromkeys(form for c in letters for form in (c, "##" + c))]
    tokenizer = Tokenizer.from_vocab(pieces, **LOOKS[look])
    words = count_split_words(text_runs([text]), tokenizer)
    (encoded,) = tokenizer.encode_many([text])
    assert sum(words.values()) == len(set(encoded.words))
    assert count_pieces(tokenizer, words) == Counter(pieces[i] for i in encoded.ids)
    fit = measure_fit(tokenizer, words)
    assert (fit.words, fit.tokens) == (len(set(encoded.words)), len(encoded.ids))
    alone = [i for i, word in zip(encoded.ids, encoded.words, strict=True) if encoded.words.count(word) == 1]
    assert fit.unknown == alone.count(tokenizer.unk_id) and fit.whole == len(alone) - fit.unknown


def test_fit_by_hand() -> None:
    tokenizer = Tokenizer.from_vocab([*SPECIALS, *LETTERS, "cab"], lowercase=True)
    fit = measure_fit(tokenizer, {"cab": 3, "ab": 2, "zebra": 1})
    assert fit == Fit(words=6, tokens=3 + 4 + 1, whole=3, unknown=1)
    assert fit.tokens_per_word == pytest.approx(8 / 6)
    assert measure_fit(tokenizer, {}).tokens_per_word == 0


def test_hangul_is_chosen_composed_and_in_googles_vocabulary_taken_apart() -> None:
    runs = text_runs(["심근경색", unicodedata.normalize("NFD", "심근경색")])  # as typed, and as macOS names files
    ours = Tokenizer.from_vocab([*SPECIALS, "심", "##근", "##경", "##색"], lowercase=True)
    assert choose_pieces(count_split_words(runs, ours), ours.pieces, 9) == ["심근경색"]
    google = Tokenizer.from_vocab([*SPECIALS, "a"], lowercase=True, google=True)
    (piece,) = choose_pieces(count_split_words(runs, google), google.pieces, 99)
    assert len(piece) == 12
    assert extended(google, [piece]).ids_many(["심근경색"]) == [[6]]


@pytest.mark.parametrize("look", LOOKS)
def test_an_extended_tokenizer_reads_old_text_as_before(look: str, tmp_path: Path) -> None:
    old = Tokenizer.from_vocab([*SPECIALS, *LETTERS, "cab", "##é"], **LOOKS[look])
    new = extended(old, ["abba", "##dd"])
    assert new.pieces == [*old.pieces, "abba", "##dd"] and new.size == old.size + 2
    assert (new.lowercase, new.special_ids) == (old.lowercase, old.special_ids)
    texts = ["cab Cab, bad [MASK] dab", "", "z"]
    assert new.ids_many(texts) == old.ids_many(texts)
    assert new.encode("abba badd").ids == [old.size, *old.ids_many(["ba"])[0], old.size + 1]
    assert new.fingerprint != old.fingerprint
    new.save(tmp_path)
    assert Tokenizer.load(tmp_path).fingerprint == new.fingerprint


def test_only_wordpiece_gets_more_pieces() -> None:
    tokenizer = Tokenizer.from_merges([*BPE_SPECIALS, "a", "b"], [], lowercase=False)
    for refused in (lambda: check_extendable(tokenizer), lambda: extended(tokenizer, ["ab"])):
        with pytest.raises(TokenizerError, match="only WordPiece vocabularies can be extended, not"):
            refused()
