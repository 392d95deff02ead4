"""Words split anew at random: always into tokens of the vocabulary that spell the word, as in MaxMatch-dropout."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firth.text.subword_dropout import SubwordDropout
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

LETTERS = "abcd"
PIECES = [*SPECIALS, *LETTERS, *(f"##{c}" for c in LETTERS), "ab", "abc", "##cd", "##bcd", "z", "##dab"]
TOKENIZER = Tokenizer.from_vocab(PIECES, lowercase=True)
IDS = {piece: number for number, piece in enumerate(PIECES)}


def split(pieces: list[str], share: float, seed: int = 0) -> tuple[list[str], list[int]]:
    ids, begins = SubwordDropout(TOKENIZER, share)([IDS[piece] for piece in pieces], Random(seed))
    return [PIECES[number] for number in ids], begins


@given(st.lists(st.text(LETTERS, min_size=1, max_size=9), max_size=5), st.floats(0, 0.99), st.integers(0, 99))
def test_the_new_tokens_spell_the_same_words(words: list[str], share: float, seed: int) -> None:
    pieces = ["[CLS]", *(PIECES[n] for n in TOKENIZER.encode(" ".join(words)).ids), "[SEP]"]
    found, begins = split(pieces, share, seed)
    assert TOKENIZER.decode([IDS[piece] for piece in found]) == " ".join(words)
    assert found[0] == "[CLS]" and found[-1] == "[SEP]" and begins[-1] == len(pieces) - 1
    # Each token belongs to the word that begins there.
    assert [PIECES[IDS[p]].startswith("##") for p in found] == [
        a == b for a, b in zip(begins, [-1, *begins], strict=False)
    ]
    if share == 0:
        assert found == pieces


def test_the_shares_are_those_of_the_method() -> None:
    # abcd: abc (3/4) or ab or a; what follows likewise, the last match always.
    share, n = 0.25, 20_000
    dropout, random = SubwordDropout(TOKENIZER, share), Random(1)
    counted = Counter(tuple(PIECES[i] for i in dropout([IDS["abc"], IDS["##d"]], random)[0]) for _ in range(n))
    keep = 1 - share
    expected = {
        ("abc", "##d"): keep,
        ("ab", "##cd"): share * keep * keep,
        ("ab", "##c", "##d"): share * keep * share,
        ("a", "##bcd"): share * share * keep,
        ("a", "##b", "##cd"): share * share * share * keep,
        ("a", "##b", "##c", "##d"): share * share * share * share,
    }
    assert set(counted) == set(expected) and sum(expected.values()) == pytest.approx(1)
    for pieces, probability in expected.items():
        assert counted[pieces] / n == pytest.approx(probability, abs=4 * (probability / n) ** 0.5)
    # A word of one token: the same, without drawing twice for the whole word.
    whole = Counter(tuple(PIECES[i] for i in dropout([IDS["ab"]], random)[0]) for _ in range(n))
    assert whole["ab",] / n == pytest.approx(keep, abs=0.02) and set(whole) == {("ab",), ("a", "##b")}


def test_what_cannot_be_split_stays() -> None:
    for seed in range(20):
        assert split(["[CLS]", "z", "[UNK]", "a", "[MASK]", "[SEP]"], 0.9, seed)[0] == [
            *("[CLS]", "z", "[UNK]", "a", "[MASK]", "[SEP]")
        ]


def test_a_word_whose_beginning_is_in_another_window_is_split_inside() -> None:
    found = {tuple(split(["[CLS]", "##bcd", "##dab", "a"], 0.5, seed)[0]) for seed in range(40)}
    assert all(pieces[0] == "[CLS]" and all(p.startswith("##") for p in pieces[1:-1]) for pieces in found)
    assert len(found) > 3 and {"".join(p.removeprefix("##") for p in pieces[1:]) for pieces in found} == {"bcddaba"}
