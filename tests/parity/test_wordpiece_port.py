"""Google's exact tokenization against the port that most tools use; where they differ, and how, is pinned.

The oracle is ``BertWordPieceTokenizer`` of the tokenizers library with its own normaliser and splitter, of which ours
uses neither in this mode.
"""

import functools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers.implementations import BertWordPieceTokenizer

from firth.text.tokenizer import Tokenizer
from firth.text.words import build_normalizer, build_pre_tokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Blocks that both know: Latin with accents, Greek, Cyrillic, combining marks, Arabic, Devanagari, Thai, Hangul (whole
# and in jamo), kana, ideographs, full-width forms, signs and spaces, emoji with their joiners, control characters.
BLOCKS = (
    (0x20, 0x7E),
    (0xA0, 0x17F),
    (0x300, 0x33F),
    (0x391, 0x3C9),
    (0x410, 0x44F),
    (0x621, 0x64A),
    (0x915, 0x939),
    (0xE01, 0xE30),
    (0x1100, 0x1112),
    (0x1161, 0x1175),
    (0x11A8, 0x11C2),
    (0x3041, 0x3094),
    (0x30A1, 0x30F4),
    (0x4E00, 0x4E40),
    (0xAC00, 0xAC40),
    (0xD788, 0xD7A3),
    (0xFF01, 0xFF20),
    (0x2000, 0x2064),
    (0x3000, 0x3003),
    (0x1F600, 0x1F60F),
    (0xFE0F, 0xFE0F),
    (0x0, 0x1F),
    (0x7F, 0x9F),
    (0xFEFF, 0xFEFF),
    (0xFFFD, 0xFFFD),
)
# Without the capital sigma, which ends a word in another small letter, and the bracket that special pieces begin with.
LETTERS = [chr(c) for first, last in BLOCKS for c in range(first, last + 1) if chr(c) not in "Σ["]


@functools.cache
def both(lowercase: bool) -> tuple[Tokenizer, BertWordPieceTokenizer]:
    """Ours and theirs, of one vocabulary: every letter alone and inside a word, and some longer pieces."""
    words = ["the", "##ing", "un", "##want", "##ed", "한국", "##어", "세계", "##ab"]
    pieces = list(dict.fromkeys([*SPECIALS, *words, *LETTERS, *(f"##{letter}" for letter in LETTERS)]))
    # No piece begins or ends with what is cut away.
    pieces = [p for p in pieces if p in SPECIALS or (p.strip() == p and p.removeprefix("##") and p.isprintable())]
    ours = Tokenizer.from_vocab(pieces, lowercase=lowercase, google=True)
    theirs = BertWordPieceTokenizer({piece: i for i, piece in enumerate(pieces)}, lowercase=lowercase)
    return ours, theirs


def words_of(text: str, lowercase: bool) -> tuple[list[str], list[str]]:
    """The words of a text, by ours and by theirs."""
    port = both(lowercase)[1]
    normalizer, splitter = build_normalizer(lowercase=lowercase, keep_accents=False, google=True), build_pre_tokenizer()
    return (
        [word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))],
        [word for word, _ in port.pre_tokenizer.pre_tokenize_str(port.normalizer.normalize_str(text))],
    )


@pytest.mark.parametrize("lowercase", [True, False])
@settings(max_examples=400)
@example(text="UNwantéd,running 한국어 세계\u200b가각힣 漢字x 👩\u200d🚀 が")
@example(text="a\x00b\ufffdc\x07d\te\u2028f\u3000g")
@given(text=st.text(st.sampled_from(LETTERS), max_size=80))
def test_the_same_ids(lowercase: bool, text: str) -> None:
    ours, theirs = both(lowercase)
    assert ours.encode(text).ids == theirs.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize(
    ("text", "ours", "theirs"),
    [
        # Google drops Cc and Cf; the port drops private use as well.
        ("x\ue000y", ["x\ue000y"], ["xy"]),
        ("x\U000f0000y", ["x\U000f0000y"], ["xy"]),
        # Ideographs of extension E begin at 2B820; the port has 2B920.
        ("x\U0002b820y", ["x", "\U0002b820", "y"], ["x\U0002b820y"]),
        ("x\U0002b920y", ["x", "\U0002b920", "y"], ["x", "\U0002b920", "y"]),
        # Characters newer than the port's tables: punctuation it does not know.
        ("x\u2e5dy", ["x", "\u2e5d", "y"], ["x\u2e5dy"]),
    ],
)
def test_where_the_port_differs(lowercase: bool, text: str, ours: list[str], theirs: list[str]) -> None:
    assert words_of(text, lowercase) == (ours, theirs)


def test_the_last_sigma_of_a_word() -> None:
    """Python, and so Google's code, lower-cases words; the port lower-cases letters."""
    assert words_of("ΟΔΟΣ", True) == (["οδος"], ["οδοσ"])
    assert words_of("ΟΔΟΣ", False) == (["ΟΔΟΣ"], ["ΟΔΟΣ"])


@pytest.mark.parametrize("lowercase", [True, False])
def test_special_pieces_in_a_text(lowercase: bool) -> None:
    """Ours are text; the port takes them for what they say."""
    ours, theirs = both(lowercase)
    assert theirs.encode("[SEP]", add_special_tokens=False).ids == [ours.end_id]
    assert ours.end_id not in ours.encode("[SEP]").ids


def test_the_longest_word() -> None:
    """200 characters in Google's code, 100 in the port."""
    ours, theirs = both(False)
    for length, google, port in ((100, True, True), (101, True, False), (200, True, False), (201, False, False)):
        for tokenizer_ids, known in (
            (ours.encode("a" * length).ids, google),
            (theirs.encode("a" * length, add_special_tokens=False).ids, port),
        ):
            assert (ours.unk_id not in tokenizer_ids) is known
