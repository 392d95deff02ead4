"""Byte-pair encoding: learnt merges against subword-nmt and a full recount; and the tokenizer's output."""

import gzip
import io
import pickle
import random
import unicodedata
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firth.errors import TokenizerError
from firth.text.bpe import merges_of, train_bpe
from firth.text.layouts import bare_layout, bert_layout, gpt_layout, source_layout
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import BPE, BPE_SPECIALS
from firth.text.wordpiece import WordSplitter

TEXTS = (
    "Ein Mann, der T-Shirt.",
    "Ein  Mann\twill (k)ein T-Shirt: \"nein\", 'naïve' Café? — 3.5 % …",
    "한국어 위키백과는 한국어로 쓰인다. 가나다 漢字 日本語がぎぐ",
    "👩‍💻 I ❤️ 🇰🇷!!! ﬁne ½ 中文字 and more, der der der",
)


def learn_bpe(counts: Mapping[str, int], n_merges: int, end: str = "", min_count: int = 2) -> list[tuple[str, str]]:
    """The first ``n_merges`` merges; ``end`` follows the last character of each word (``</w>`` in subword-nmt)."""
    words = (([*word[:-1], word[-1] + end], n) for word, n in counts.items() if word)
    return list(islice(merges_of(words, min_count), n_merges))


def make(texts: tuple[str, ...] = TEXTS, *, lowercase: bool = False) -> Tokenizer:
    """A tokenizer with all characters of the texts, and some merges."""
    words = WordSplitter(lowercase=lowercase, marked=True).count(texts)
    merges = learn_bpe(words, 40)
    pieces = dict.fromkeys([*BPE_SPECIALS, *"".join(words), *(a + b for a, b in merges)])
    return Tokenizer.from_merges(list(pieces), merges, lowercase=lowercase)


TOKENIZER = make()


def pieces_of(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.pieces[i] for i in tokenizer.encode(text).ids]


def words_of(tokenizer: Tokenizer, text: str) -> list[str]:
    """The words of a text, joined from its tokens."""
    encoded, found = tokenizer.encode(text), dict[int, str]()
    for i, word in zip(encoded.ids, encoded.words, strict=True):
        found[word] = found.get(word, "") + tokenizer.pieces[i]
    return list(found.values())


# What is learnt.


def by_counting_anew(counts: Mapping[str, int], n_merges: int, end: str) -> list[tuple[str, str]]:
    """Sennrich et al. 2016, Algorithm 1, with subword-nmt's tie-breaking and threshold."""
    words = [([*word[:-1], word[-1] + end], n) for word, n in counts.items()]
    merges = []
    while len(merges) < n_merges:
        pairs: Counter[tuple[str, str]] = Counter()
        for symbols, n in words:
            for pair in zip(symbols, symbols[1:], strict=False):
                pairs[pair] += n
        if not pairs or max(pairs.values()) < 2:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        for symbols, _ in words:
            i = 0
            while i < len(symbols) - 1:
                if (symbols[i], symbols[i + 1]) == best:
                    symbols[i : i + 2] = ["".join(best)]
                i += 1
    return merges


def by_subword_nmt(counts: Mapping[str, int], n_merges: int) -> list[tuple[str, str]]:
    theirs = pytest.importorskip("subword_nmt.learn_bpe")
    lines, out = io.StringIO("".join(f"{word} {n}\n" for word, n in counts.items())), io.StringIO()
    theirs.learn_bpe(lines, out, n_merges, is_dict=True)
    header, *merges = out.getvalue().splitlines()
    assert header == "#version: 0.2"
    return [(a, b) for a, b in (line.split(" ") for line in merges)]


TOY_WORDS = st.dictionaries(st.text("abc", min_size=1, max_size=9), st.integers(1, 6), min_size=1, max_size=12)


@settings(max_examples=300)
@given(TOY_WORDS, st.sampled_from(["", "</w>"]))
def test_learns_what_counting_anew_learns(counts: dict[str, int], end: str) -> None:
    assert learn_bpe(counts, 40, end=end) == by_counting_anew(counts, 40, end)


@pytest.mark.parametrize("seed", range(20))
def test_learns_what_subword_nmt_learns_from_toy_words(seed: int) -> None:
    rng = random.Random(seed)
    counts = {"".join(rng.choices("abcdé한", k=rng.randint(1, 8))): rng.randint(1, 9) for _ in range(60)}
    assert learn_bpe(counts, 100, end="</w>") == by_subword_nmt(counts, 100)


def test_learns_what_subword_nmt_learns_from_two_languages(shared_data: Path) -> None:
    counts: Counter[str] = Counter()
    for language in ("de", "en"):
        with gzip.open(shared_data / "multi30k" / f"train.{language}.gz", "rt", encoding="utf-8") as lines:
            counts.update(word for line in lines for word in line.split())
    counts = Counter(dict(counts.most_common(5000)))
    merges = learn_bpe(counts, 1000, end="</w>")
    assert len(merges) == 1000 and merges == by_subword_nmt(counts, 1000)


def test_ties_go_to_the_larger_pair_and_what_is_seen_once_is_left() -> None:
    assert learn_bpe({"ab": 2, "ba": 2, "xy": 1}, 10) == [("b", "a"), ("a", "b")]
    assert learn_bpe({"ab": 2, "abc": 2}, 10, end="</w>") == [("b", "c</w>"), ("a", "bc</w>"), ("a", "b</w>")]
    assert learn_bpe({"ab": 1}, 10, min_count=1) == [("a", "b")]
    assert learn_bpe({}, 10) == [] == learn_bpe({"": 3, "a": 5}, 10)


def test_a_run_of_one_letter_is_joined_from_the_left() -> None:
    assert learn_bpe({"aaaaa": 5}, 10) == [("a", "a"), ("aa", "aa"), ("aaaa", "a")]


def test_vocabulary_of_exactly_the_size_with_merges_in_order() -> None:
    words = {"▁low": 5, "▁lower": 2, "▁newest": 6, "▁widest": 3, ",": 4}
    told: list[int] = []
    pieces, merges = train_bpe(words, 30, on_progress=told.append)
    n_characters = len({c for word in words for c in word})
    assert len(pieces) == len(set(pieces)) == 30
    assert pieces[:5] == [*BPE_SPECIALS, "e"], "special pieces, then characters by count"
    joined = pieces[4 + n_characters :]
    assert joined == list(dict.fromkeys(a + b for a, b in merges))
    assert merges == by_counting_anew(words, len(merges), "")
    assert train_bpe(dict(reversed(words.items())), 30) == (pieces, merges)


def test_more_pieces_than_the_text_supports_are_refused_with_the_size_that_works() -> None:
    words = {"▁low": 5, "▁lower": 2, "▁newest": 6, "▁widest": 3, ",": 4}
    with pytest.raises(TokenizerError, match="the text supports at most (.*) tokens, not 500; pass --size") as raised:
        train_bpe(words, 500)
    largest = int(str(raised.value).split("at most ")[1].split()[0])
    assert len(train_bpe(words, largest)[0]) == largest
    with pytest.raises(TokenizerError, match="cannot hold the alphabet"):
        train_bpe(words, 8)
    with pytest.raises(TokenizerError, match="no words"):
        train_bpe({"": 1, "a" * 300: 4}, 10)


def test_a_rare_character_parts_its_word_and_is_unknown() -> None:
    words = {"▁abab": 5000, "▁ab漢ab": 2}
    pieces, merges = train_bpe(words, 10)
    assert "漢" not in pieces
    tokenizer = Tokenizer.from_merges(pieces, merges, lowercase=False)
    assert pieces_of(tokenizer, "ab漢ab") == ["▁ab", "<unk>", "ab"]
    assert tokenizer.encode("ab漢ab").offsets == [(0, 2), (2, 3), (3, 5)]


# What the tokenizer makes of text.


def test_words_keep_the_white_space_before_them() -> None:
    assert words_of(TOKENIZER, TEXTS[0]) == ["▁Ein", "▁Mann", ",", "▁der", "▁T", "-", "Shirt", "."]
    assert words_of(TOKENIZER, " \n Ein\u00a0\u3000(Mann) \t") == ["▁Ein", "▁(", "Mann", ")"]
    for nothing in ("", "  \n", "\u200b \x00"):
        assert TOKENIZER.encode(nothing).ids == []


ANY = st.one_of(
    st.text(st.sampled_from([*"".join(TEXTS), *" \n\t▁_\u0301\u200b\u00a0é"]), max_size=30),
    st.text(st.characters(codec="utf-8"), max_size=15),
)


def plain(text: str) -> str:
    """The text cleaning of a cased vocabulary, in Python."""
    kept = "".join(c for c in text if c in "\t\n\r" or (unicodedata.category(c) not in ("Cc", "Cf") and c != "\ufffd"))
    return " ".join(unicodedata.normalize("NFC", kept).replace("▁", "_").split())


@settings(max_examples=300)
@given(st.text(st.sampled_from([*"".join(TEXTS), *" \n\t▁_\u200b\u00a0\x85"]), max_size=40))
def test_decoding_gives_the_text_back(text: str) -> None:
    tokenizer = SPELLING
    assert tokenizer.decode(tokenizer.encode(text).ids) == plain(text)
    assert tokenizer.unk_id not in tokenizer.encode(text).ids


SPELLING = make((*TEXTS, "_" * 9, *(unicodedata.normalize("NFC", text) for text in TEXTS)))


@settings(max_examples=300)
@given(ANY)
def test_counting_sees_the_words_of_the_tokenizer(text: str) -> None:
    # The library may know characters that this Python's Unicode tables lack.
    text = "".join(c for c in text if unicodedata.category(c) != "Cn")
    counted = WordSplitter(lowercase=False, marked=True).count([text])
    backend = TOKENIZER._backend
    normal = backend.normalizer.normalize_str(text)
    assert counted == Counter(word for word, _ in backend.pre_tokenizer.pre_tokenize_str(normal))
    assert sum(map(len, TOKENIZER.ids_of_words(list(counted.elements())))) == len(TOKENIZER.encode(text).ids)


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("  Ein   Mann,der", ["Ein", "Mann", ",", "der"]),
        ("한국어 漢字", ["한국어", "漢", "字"]),
        (unicodedata.normalize("NFD", "한국어 Café"), [unicodedata.normalize("NFD", w) for w in ("한국어", "Café")]),
        ("👩\u200d💻 I", ["👩\u200d💻", "I"]),
        ("\u200bEin\u200b \u200bMann", ["Ein", "Mann"]),
        ("der ▁ Mann ▁Mann", ["der", "▁", "Mann", "▁", "Mann"]),
        ("Ein \U0001f9d1 漢", ["Ein", "\U0001f9d1", "漢"]),
    ],
)
def test_offsets_lead_back_to_the_raw_text(text: str, spans: list[str]) -> None:
    encoded = TOKENIZER.encode(text)
    words: dict[int, tuple[int, int]] = {}
    for (start, end), word in zip(encoded.offsets, encoded.words, strict=True):
        words[word] = (words.get(word, (start, end))[0], end)
        if start < end:
            assert not text[start].isspace() and not text[end - 1].isspace()
    found = [text[start:end] for start, end in words.values()]
    assert [span.strip("\u200b") for span in found] == [span.strip("\u200b") for span in spans]


@settings(max_examples=200)
@given(ANY)
def test_offsets_are_in_order(text: str) -> None:
    encoded = TOKENIZER.encode(text)
    assert len(encoded.ids) == len(encoded.offsets) == len(encoded.words)
    for (start, end), (following, _) in zip(encoded.offsets, encoded.offsets[1:], strict=False):
        assert 0 <= start <= end <= len(text) and start <= following
    assert encoded.words == sorted(encoded.words)


def test_a_mark_alone_stands_for_no_character() -> None:
    encoded = TOKENIZER.encode("漢  漢")
    assert [TOKENIZER.pieces[i] for i in encoded.ids] == ["▁", "漢", "▁", "漢"]
    assert encoded.offsets == [(0, 0), (0, 1), (3, 3), (3, 4)]


def test_a_lower_cased_vocabulary() -> None:
    tokenizer = make(lowercase=True)
    assert tokenizer.lowercase and not TOKENIZER.lowercase
    assert tokenizer.decode(tokenizer.encode("EIN Café").ids) == "ein cafe"


def test_special_pieces_by_the_part_they_play() -> None:
    assert TOKENIZER.pieces[:4] == ["<unk>", "<s>", "<sep>", "</s>"] and TOKENIZER.special_ids == (0, 1, 2, 3)
    roles = (TOKENIZER.unk_id, TOKENIZER.start_id, TOKENIZER.between_id, TOKENIZER.end_id)
    assert roles == (0, 1, 2, 3)
    with pytest.raises(TokenizerError, match="a BPE vocabulary has no mask token; use a WordPiece"):
        _ = TOKENIZER.mask_id
    with pytest.raises(TokenizerError, match="a BPE vocabulary has no padding token"):
        _ = TOKENIZER.pad_id
    assert not {1, 2, 3} & set(TOKENIZER.encode("<s> Ein </s><sep>").ids), "in a text they are text"
    row, _ = gpt_layout(TOKENIZER).pair(TOKENIZER.encode("Ein Mann").ids, TOKENIZER.encode("der").ids)
    assert TOKENIZER.decode(row) == "Ein Mann der"


def test_rows_of_every_layout() -> None:
    a, b = [10, 11], [12]
    assert gpt_layout(TOKENIZER).single(a) == [1, 10, 11, 3]
    assert gpt_layout(TOKENIZER).pair(a, b)[0] == [1, 10, 11, 2, 12, 3] == bert_layout(TOKENIZER).pair(a, b)[0]
    assert source_layout(TOKENIZER).single(a) == [10, 11, 3]
    assert source_layout(TOKENIZER).pair(a, b)[0] == [10, 11, 2, 12, 3]
    assert bare_layout(TOKENIZER).single(a) == a and bare_layout(TOKENIZER).pair(a, b)[0] == [10, 11, 12]
    assert (bare_layout(TOKENIZER).n_special_pair, gpt_layout(TOKENIZER).n_special_pair) == (0, 3)
    assert bert_layout(TOKENIZER).has_segments
    assert not any(make_layout(TOKENIZER).has_segments for make_layout in (gpt_layout, source_layout, bare_layout))


def test_pieces_that_continue_a_word() -> None:
    continues = dict(zip(TOKENIZER.pieces, TOKENIZER.continues.tolist(), strict=True))
    for piece in (*BPE_SPECIALS, "▁", "▁der", ",", "漢", "-"):
        assert not continues[piece], piece
    for piece in ("a", "한", "n"):
        assert continues[piece], piece


def test_save_load_and_pickle(tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path / "t", max_length=64)
    assert sorted(p.name for p in (tmp_path / "t").iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    for again in (Tokenizer.load(tmp_path / "t"), pickle.loads(pickle.dumps(TOKENIZER))):
        assert again.kind is BPE and again.pieces == TOKENIZER.pieces
        assert again.fingerprint == TOKENIZER.fingerprint
        assert again.encode_many(TEXTS) == TOKENIZER.encode_many(TEXTS)
        assert again.ids_many(TEXTS) == [row.ids for row in TOKENIZER.encode_many(TEXTS)]
    assert make(lowercase=True).fingerprint != TOKENIZER.fingerprint
    with pytest.raises(TokenizerError, match="this vocabulary is cased"):
        Tokenizer.load(tmp_path / "t", lowercase=True)


def test_transformers_gives_the_same_ids(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    TOKENIZER.save(tmp_path, max_length=64)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in (*TEXTS, unicodedata.normalize("NFD", TEXTS[2]), " ▁  Ein\n", ""):
        row = gpt_layout(TOKENIZER).single(TOKENIZER.encode(text).ids)
        assert theirs(text)["input_ids"] == row
        assert theirs.decode(row, skip_special_tokens=True) == TOKENIZER.decode(row)
    a, b = (TOKENIZER.encode(text).ids for text in TEXTS[:2])
    pair = theirs(*TEXTS[:2])
    assert pair["input_ids"] == gpt_layout(TOKENIZER).pair(a, b)[0] and "token_type_ids" not in pair
    names = (theirs.unk_token_id, theirs.bos_token_id, theirs.sep_token_id, theirs.eos_token_id)
    assert names == (0, 1, 2, 3) and theirs.model_max_length == 64


def test_vocabularies_that_lack_special_pieces_are_refused() -> None:
    with pytest.raises(TokenizerError, match="lacks <sep>; add them or choose one made by firth vocab --kind bpe"):
        Tokenizer.from_merges(["<unk>", "<s>", "</s>", "a"], [], lowercase=False)
