"""The tokenizer against an independent reference, the published cases, and `transformers`."""

import pickle
import unicodedata
from pathlib import Path
from typing import Any

import google_reference as reference
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from firth.errors import InputError, TokenizerError
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

PUBLISHED = ["want", "##want", "##ed", "wa", "un", "runn", "##ing", ","]


def spelling(*, google: bool, lowercase: bool, keep_accents: bool = False) -> Tokenizer:
    """A tokenizer that reveals the words it splits: each letter of ``LETTERS`` is a token in both forms."""
    pieces = [*SPECIALS, *dict.fromkeys(form for c in LETTERS for form in (c, "##" + c))]
    return Tokenizer.from_vocab(pieces, lowercase=lowercase, keep_accents=keep_accents, google=google)


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    """The words of a text, joined from its tokens."""
    found: list[str] = []
    for i in tokenizer.encode(text).ids:
        piece = tokenizer.pieces[i]
        if piece.startswith("##") and len(piece) > 2:
            found[-1] += piece[2:]
        else:
            found.append(piece)
    return found


RAW = (
    "abzABZ019 .,!?$^`|~#[]_-'\"·؟።、。"
    "éÉñçÅøßİıiIǅΣσςΑάΐНнйЙё"
    "한국어가각힣한ᅥ〮ㄱ"
    "がカﾞ゙ー中文字㐀豈\U00020000\U0002b740\U0002f800"
    "\u0301\u0327\u0307\u20dd\u0345\u0300\u0483\u0488"
    "😀👩\u200d💻🇰🇷\ufe0f\U0001f4a9"
    "\x00\x05\x0b\x0c\x1c\x1f\x7f\x85\ufffd\u200b\ufeff\u00ad\u061c\U000e0001"
    "\ue000\U000f0000\u0378\U000e0fff\ufdd0\uffff"
    "\u00a0\u1680\u2003\u202f\u3000\u2028\u2029\t\n\r"
    "\u037e\u1fef\u212b\u2126\u2329\ufb01½²ªअिक्ไทย้ກำعربِیع'’:"
)
FORMS = [unicodedata.normalize(form, raw) for form in ("NFC", "NFD") for raw in (RAW, RAW.lower())]
LETTERS = sorted(
    {
        c
        for text in (RAW, RAW.lower(), *FORMS)
        for c in text
        if not c.isspace() and unicodedata.category(c) not in ("Cc", "Cf") and c != "\ufffd"
    }
)
TEXTS = st.lists(
    st.one_of(
        st.text(st.sampled_from(RAW), max_size=12),
        st.text(st.sampled_from("aΑΣσς'.\u0301:\u00ad b"), max_size=8),
        st.sampled_from(["ΟΔΟΣ", "ΑΣ'Α", "a" * 250, "한" * 120, "é" * 199, "한국어", "[MASK]", " "]),
    ),
    max_size=5,
).map("".join)

# Both a mark and a cased letter: before a capital sigma the library counts it as a letter, Python as a mark, and so
# they differ in whether that sigma is the last of its word.
SUBSCRIPT_IOTA = "\u0345"
UNCASED = spelling(google=True, lowercase=True)
CASED = spelling(google=True, lowercase=False)


@settings(max_examples=400)
@given(TEXTS)
@example("ΟΔΟΣ ΟΔΟΣ. ΑΣ'Α Σ ΑΣ\u0301 Α.Σ.")
@example("İstanbul ıI")
def test_google_behaviour_equals_the_reference(text: str) -> None:
    text = text.replace(SUBSCRIPT_IOTA, "")
    for tokenizer, lowercase in ((UNCASED, True), (CASED, False)):
        vocabulary = set(tokenizer.pieces) - set(SPECIALS)
        expected = reference.tokenize(text, vocabulary, lowercase)
        assert [tokenizer.pieces[i] for i in tokenizer.encode(text).ids] == expected


def test_where_the_library_differs_from_google() -> None:
    """A known, accepted difference: one sequence of a mark and a capital sigma becomes the other small sigma."""
    vocabulary = set(UNCASED.pieces) - set(SPECIALS)
    assert reference.tokenize(SUBSCRIPT_IOTA + "Σ", vocabulary, True) == ["σ"]
    assert [UNCASED.pieces[i] for i in UNCASED.encode(SUBSCRIPT_IOTA + "Σ").ids] == ["ς"]


@settings(max_examples=100)
@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_google_behaviour_on_any_characters(text: str) -> None:
    # The library may know characters that this Python's Unicode tables lack.
    text = "".join(c for c in text if unicodedata.category(c) != "Cn" and c not in ("\U00011938", SUBSCRIPT_IOTA))
    for tokenizer, lowercase in ((UNCASED, True), (CASED, False)):
        vocabulary = set(tokenizer.pieces) - set(SPECIALS)
        expected = reference.tokenize(text, vocabulary, lowercase)
        assert [tokenizer.pieces[i] for i in tokenizer.encode(text).ids] == expected


def test_known_difference_one_letter_of_dives_akuru_stays_composed() -> None:
    """The library's Unicode tables predate U+11938, the only letter whose decomposition they lack."""
    pieces = [*SPECIALS, "\U00011938", "\U00011935", "##\U00011930"]
    tokenizer = Tokenizer.from_vocab(pieces, lowercase=True, google=True)
    assert words(tokenizer, "\U00011938") == ["\U00011938"]
    assert reference.basic("\U00011938", True) == ["\U00011935\U00011930"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ah博推zz", ["ah", "博", "推", "zz"]),
        (" \tHeLLo!how  \n Are yoU?  ", ["hello", "!", "how", "are", "you", "?"]),
        ("Héllo", ["hello"]),
        ("a\u200bb\ufeffc\u00add", ["abcd"]),
        ("x\ue000y\u0378z", ["x\ue000y\u0378z"]),
        ("tab\x1cfs\x85nel", ["tabfsnel"]),
        ("a\u2028b\u3000c\u202fd", ["a", "b", "c", "d"]),
        ("が", ["か"]),
        ("İstanbul", ["istanbul"]),
        ("$1,000.50", ["$", "1", ",", "000", ".", "50"]),
        ("a\u00a0b\x05c\U0001f4a9", ["a", "bc\U0001f4a9"]),
        ("한", ["\u1112\u1161\u11ab"]),
        ("[MASK] [cls]", ["[", "mask", "]", "[", "cls", "]"]),
        ("", []),
        ("\x00\ufffd\u200b", []),
    ],
)
def test_published_and_verified_cases(text: str, expected: list[str]) -> None:
    assert reference.basic(text, True) == expected
    letters = dict.fromkeys(form for word in expected for c in word for form in (c, "##" + c))
    tokenizer = Tokenizer.from_vocab([*SPECIALS, *letters], lowercase=True, google=True)
    assert words(tokenizer, text) == expected


def test_published_wordpiece_cases() -> None:
    tokenizer = Tokenizer.from_vocab([*SPECIALS, *PUBLISHED], lowercase=True, google=True)

    def pieces(text: str) -> list[str]:
        return [tokenizer.pieces[i] for i in tokenizer.encode(text).ids]

    assert pieces("UNwantéd,running") == ["un", "##want", "##ed", ",", "runn", "##ing"]
    assert pieces("unwantedX running") == ["[UNK]", "runn", "##ing"]


def test_word_limit_counts_characters_after_normalising() -> None:
    pieces = [*SPECIALS, "a", "##a", "\u1112", "##\u1161", "##\u1112"]
    tokenizer = Tokenizer.from_vocab(pieces, lowercase=True, google=True)
    assert len(tokenizer.encode("a" * 200).ids) == 200
    assert tokenizer.encode("a" * 201).ids == [tokenizer.unk_id]
    assert len(tokenizer.encode("하" * 100).ids) == 200
    assert tokenizer.encode("하" * 101).ids == [tokenizer.unk_id]


@pytest.mark.parametrize(
    ("lowercase", "keep_accents", "text", "spelt"),
    [
        (False, False, "Café Cafe\u0301 한국 \u1112\u1161\u11ab", "Café Café 한국 한"),
        (True, False, "Café Cafe\u0301 한국 \u1112\u1161\u11ab İI が", "cafe cafe 한국 한 ii か"),
        (True, True, "Café CAFE\u0301 한국 \u1112\u1161\u11ab ガ", "café café 한국 한 ガ"),
        (True, False, "ΑΣ中文 \u200bz", "ας 中 文 z"),
    ],
)
def test_new_vocabularies_compose(lowercase: bool, keep_accents: bool, text: str, spelt: str) -> None:
    expected = spelt.split()
    letters = dict.fromkeys(form for word in expected for c in word for form in (c, "##" + c))
    tokenizer = Tokenizer.from_vocab([*SPECIALS, *letters], lowercase=lowercase, keep_accents=keep_accents)
    assert words(tokenizer, text) == expected


@settings(max_examples=150)
@given(TEXTS, st.sampled_from([(False, False), (True, False), (True, True)]))
def test_offsets_lead_back_to_the_text(text: str, kind: tuple[bool, bool]) -> None:
    tokenizer = NEW[kind]
    encoded = tokenizer.encode(text)
    assert len(encoded.ids) == len(encoded.offsets) == len(encoded.words)
    for (start, end), (following, _) in zip(encoded.offsets, encoded.offsets[1:], strict=False):
        assert 0 <= start <= end <= len(text)
        assert start <= following
    assert encoded.words == sorted(encoded.words)
    for i, (start, end) in zip(encoded.ids, encoded.offsets, strict=True):
        piece = tokenizer.pieces[i].removeprefix("##")
        if i != tokenizer.unk_id and piece.isascii() and text[start:end].isascii() and piece:
            kept = "".join(c for c in text[start:end] if c.isprintable())
            assert (kept.lower() if tokenizer.lowercase else kept) == piece


NEW = {
    (low, keep): spelling(google=False, lowercase=low, keep_accents=keep)
    for low, keep in ((False, False), (True, False), (True, True))
}


def test_offsets_of_decomposed_hangul_cover_its_jamo() -> None:
    text = "x " + unicodedata.normalize("NFD", "한국") + " y"
    tokenizer = Tokenizer.from_vocab([*SPECIALS, "x", "y", "한", "##국"], lowercase=False)
    encoded = tokenizer.encode(text)
    assert [tokenizer.pieces[i] for i in encoded.ids] == ["x", "한", "##국", "y"]
    assert encoded.offsets == [(0, 1), (2, 5), (5, 8), (9, 10)]
    assert encoded.words == [0, 1, 1, 2]


def test_offsets_cover_the_marks_that_a_lower_cased_vocabulary_removes() -> None:
    text = "में x"
    tokenizer = Tokenizer.from_vocab([*SPECIALS, "म", "x"], lowercase=True)
    assert tokenizer.encode(text).offsets == [(0, 3), (4, 5)]


def test_save_and_load(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_vocab([*SPECIALS, *PUBLISHED], lowercase=True)
    tokenizer.save(tmp_path / "t", max_length=128)
    again = Tokenizer.load(tmp_path / "t")
    assert sorted(p.name for p in (tmp_path / "t").iterdir()) == [
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    assert again.fingerprint == tokenizer.fingerprint == pickle.loads(pickle.dumps(tokenizer)).fingerprint
    assert again.pieces == tokenizer.pieces == (tmp_path / "t" / "vocab.txt").read_text().split()
    assert again.lowercase and again.size == 13
    assert again.special_ids == (0, 1, 2, 3, 4)
    for one in (again, pickle.loads(pickle.dumps(tokenizer))):
        assert one.encode("[MASK] want") == tokenizer.encode("[MASK] want")
        assert one.mask_id not in one.encode("[MASK] want").ids
    again.save(tmp_path / "u", max_length=128)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        assert (tmp_path / "t" / name).read_bytes() == (tmp_path / "u" / name).read_bytes()


def test_fingerprint_tells_tokenizers_apart() -> None:
    pieces = [*SPECIALS, *PUBLISHED]
    kinds = [
        Tokenizer.from_vocab(pieces, lowercase=True),
        Tokenizer.from_vocab(pieces, lowercase=False),
        Tokenizer.from_vocab(pieces, lowercase=True, keep_accents=True),
        Tokenizer.from_vocab(pieces, lowercase=True, google=True),
        Tokenizer.from_vocab(pieces[::-1], lowercase=True),
    ]
    assert len({kind.fingerprint for kind in kinds}) == 5
    assert kinds[0].fingerprint == Tokenizer.from_vocab(pieces, lowercase=True).fingerprint


def test_many_equals_one() -> None:
    tokenizer = Tokenizer.from_vocab([*SPECIALS, *PUBLISHED], lowercase=True)
    texts = ["unwanted running", "", "wa,wa \ud800", "nothing"]
    assert tokenizer.encode_many(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.ids_many(texts) == [tokenizer.encode(text).ids for text in texts]
    assert tokenizer.ids_many(texts) == [tokenizer.ids_many([text])[0] for text in texts]
    assert tokenizer.ids_many([]) == [] == tokenizer.encode_many([])
    ids = [2, *tokenizer.encode("unwanted , running").ids, 3]
    assert tokenizer.decode(ids) == tokenizer.decode(iter(ids)) == "unwanted, running"
    encoded: Any = tokenizer.encode("unwanted")
    with pytest.raises(InputError, match="decode takes the ids of one text"):
        tokenizer.decode(encoded)
    for wrong in (-1, tokenizer.size):
        with pytest.raises(InputError, match=f"^{wrong}: no token has this id; expected 0 to {tokenizer.size - 1}$"):
            tokenizer.decode([2, wrong])
    assert tokenizer.continues.tolist() == [piece.startswith("##") for piece in tokenizer.pieces]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "empty"),
        ([*SPECIALS[:4], "a"], r"lacks \[MASK\]"),
        (["a", "b"], r"lacks \[PAD\] \[UNK\] \[CLS\] \[SEP\] \[MASK\]"),
        ([*SPECIALS, "a", "a"], "more than once, such as 'a'"),
        ([*SPECIALS, "", "b", ""], "more than once, such as ''"),
    ],
)
def test_bad_vocabularies(tmp_path: Path, lines: list[str], message: str) -> None:
    file = tmp_path / "vocab.txt"
    file.write_text("".join(line + "\n" for line in lines))
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_vocab(lines, lowercase=True)
    with pytest.raises(TokenizerError, match=message) as raised:
        Tokenizer.load(file)
    assert str(file) in str(raised.value) and "\n" not in str(raised.value)


def test_a_token_of_nothing_but_white_space_is_harmless() -> None:
    """Published Chinese vocabularies have a line separator."""
    assert Tokenizer.from_vocab([*SPECIALS, "\u2028", "a"], lowercase=True).size == len(SPECIALS) + 2


def test_pieces_that_a_vocabulary_file_could_not_hold() -> None:
    for piece in (" a", "a\n", "a\nb"):
        with pytest.raises(TokenizerError, match="token 5 has white space"):
            Tokenizer.from_vocab([*SPECIALS, piece], lowercase=True)


def test_paths_that_are_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer.json").write_text('{"model": 1}')
    (tmp_path / "image.txt").write_bytes(b"\x89PNG\xff\xff")
    (tmp_path / "bpe.json").write_text(
        '{"version":"1.0","model":{"type":"BPE","vocab":{"a":0},"merges":[]},"added_tokens":[]}'
    )
    (tmp_path / "unigram.json").write_text(
        '{"version":"1.0","model":{"type":"Unigram","unk_id":0,"vocab":[["a",0.0]]},"added_tokens":[]}'
    )
    for name, message in [
        ("missing", "no such tokenizer"),
        ("empty", "neither tokenizer.json nor vocab.txt"),
        ("broken", "not a tokenizer.json"),
        ("image.txt", "not UTF-8"),
        ("bpe.json", "lacks <unk> <s> <sep> </s>; add them or choose one made by firth vocab --kind bpe"),
        ("unigram.json", "expected a WordPiece, BPE or WordLevel model, got Unigram"),
    ]:
        with pytest.raises(TokenizerError, match=message) as raised:
            Tokenizer.load(tmp_path / name)
        assert name in str(raised.value) and "\n" not in str(raised.value)


def test_casing_of_bare_vocabularies(tmp_path: Path) -> None:
    for name, pieces, lowercase in [
        ("low", ["a", "<S>", "ℝ"], True),
        ("cased", ["a", "##B"], False),
    ]:
        (tmp_path / name).write_text("\n".join([*SPECIALS, *pieces]) + "\n", encoding="utf-8")
        assert Tokenizer.load(tmp_path / name).lowercase is lowercase
        assert Tokenizer.load(tmp_path / name, lowercase=lowercase).lowercase is lowercase
        with pytest.raises(TokenizerError, match="pass lowercase="):
            Tokenizer.load(tmp_path / name, lowercase=not lowercase)
    (tmp_path / "none").write_text("\n".join([*SPECIALS, "한", "中"]) + "\n", encoding="utf-8")
    assert not Tokenizer.load(tmp_path / "none", lowercase=False).lowercase


def test_released_vocabularies(shared_data: Path) -> None:
    texts = [
        "The İstanbul café's $1,000.50 naïve ΟΔΟΣ — 한국어 " + unicodedata.normalize("NFD", "한국어"),
        "中文字 がぎぐ ไทย हिन्दी 👩\u200d💻 " + "x" * 150 + " [MASK] don't",
    ]
    for name, lowercase, size in [
        ("bert-base-uncased", True, 30522),
        ("bert-base-cased", False, 28996),
        ("bert-base-chinese", True, 21128),
        ("bert-base-multilingual-cased", False, 119547),
    ]:
        tokenizer = Tokenizer.load(shared_data / "bert-vocab" / f"{name}-vocab.txt")
        assert (tokenizer.lowercase, tokenizer.size) == (lowercase, size)
        assert tokenizer.special_ids == (0, 100, 101, 102, 103)
        vocabulary = set(tokenizer.pieces)
        for text in texts:
            expected = reference.tokenize(text, vocabulary, lowercase)
            assert [tokenizer.pieces[i] for i in tokenizer.encode(text).ids] == expected


@pytest.mark.parametrize("google", [False, True])
@pytest.mark.parametrize("lowercase", [False, True])
def test_transformers_gives_the_same_ids(tmp_path: Path, google: bool, lowercase: bool) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = spelling(google=google, lowercase=lowercase)
    tokenizer.save(tmp_path, max_length=512)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.model_max_length == 512
    for text in ("한국어", "a" * 150, "中文字 カ 豈", "Éa\u200bİ ΑΣ", "b\ue000"):
        for form in ("NFC", "NFD"):
            raw = unicodedata.normalize(form, text)
            ids = tokenizer.encode(raw).ids
            assert theirs(raw)["input_ids"] == [tokenizer.start_id, *ids, tokenizer.end_id]
    pair = theirs("a", "b")
    assert pair["token_type_ids"] == [0, 0, 0, 1, 1]
    assert theirs.mask_token_id == tokenizer.mask_id and theirs.pad_token_id == tokenizer.pad_id
