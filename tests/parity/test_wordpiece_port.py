"""Google's exact tokenization against the port that most tools use; the tests pin where and how they differ.

The oracle is ``BertWordPieceTokenizer`` of the tokenizers library with its own normaliser and splitter; ours
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
# Without capital sigma, whose lower case differs at the end of a word, and the bracket that starts special tokens.
LETTERS = [chr(c) for first, last in BLOCKS for c in range(first, last + 1) if chr(c) not in "Σ["]


@functools.cache
def both(lowercase: bool) -> tuple[Tokenizer, BertWordPieceTokenizer]:
    """Ours and theirs with one vocabulary: every letter alone and inside a word, and some longer tokens."""
    words = ["the", "##ing", "un", "##want", "##ed", "한국", "##어", "세계", "##ab"]
    pieces = list(dict.fromkeys([*SPECIALS, *words, *LETTERS, *(f"##{letter}" for letter in LETTERS)]))
    # No token begins or ends with characters that are stripped.
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
        # Google drops Cc and Cf; the port drops private-use characters as well.
        ("x\ue000y", ["x\ue000y"], ["xy"]),
        ("x\U000f0000y", ["x\U000f0000y"], ["xy"]),
        # Ideographs of extension E begin at 2B820; the port starts at 2B920.
        ("x\U0002b820y", ["x", "\U0002b820", "y"], ["x\U0002b820y"]),
        ("x\U0002b920y", ["x", "\U0002b920", "y"], ["x", "\U0002b920", "y"]),
        # Punctuation newer than the port's tables.
        ("x\u2e5dy", ["x", "\u2e5d", "y"], ["x\u2e5dy"]),
    ],
)
def test_where_the_port_differs(lowercase: bool, text: str, ours: list[str], theirs: list[str]) -> None:
    assert words_of(text, lowercase) == (ours, theirs)


def test_the_last_sigma_of_a_word() -> None:
    """Python, and thus Google's code, lower-cases whole words; the port lower-cases single letters."""
    assert words_of("ΟΔΟΣ", True) == (["οδος"], ["οδοσ"])
    assert words_of("ΟΔΟΣ", False) == (["ΟΔΟΣ"], ["ΟΔΟΣ"])


@pytest.mark.parametrize("lowercase", [True, False])
def test_special_pieces_in_a_text(lowercase: bool) -> None:
    """Ours reads them as text; the port reads them as special tokens."""
    ours, theirs = both(lowercase)
    assert theirs.encode("[SEP]", add_special_tokens=False).ids == [ours.end_id]
    assert ours.end_id not in ours.encode("[SEP]").ids


def test_the_longest_word() -> None:
    """The limit is 200 characters in Google's code, 100 in the port."""
    ours, theirs = both(False)
    for length, google, port in ((100, True, True), (101, True, False), (200, True, False), (201, False, False)):
        for tokenizer_ids, known in (
            (ours.encode("a" * length).ids, google),
            (theirs.encode("a" * length, add_special_tokens=False).ids, port),
        ):
            assert (ours.unk_id not in tokenizer_ids) is known
