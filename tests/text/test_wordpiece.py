"""The trainer against a slow one that recounts everything, and what its result must not depend on."""

import os
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firth.errors import TokenizerError
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS
from firth.text.wordpiece import (
    Score,
    WordCounts,
    WordSplitter,
    text_blocks,
    train_wordpiece,
)

TEXT = ["The cat sat on the mat.", "A cat, the mat: 12 cats!", "한국어 문장 中文 cafés"]


def merges_by_recounting(counts: dict[str, int], n: int, score: Score, min_count: int) -> list[str]:
    """The ``n`` new tokens of the first merges, with everything recounted for each merge."""
    words = [([word[0]] + ["##" + c for c in word[1:]], weight) for word, weight in counts.items()]
    known = {symbol for symbols, _ in words for symbol in symbols}
    found: list[str] = []
    while len(found) < n:
        pairs: Counter[tuple[str, str]] = Counter()
        single: Counter[str] = Counter()
        for symbols, weight in words:
            for symbol in symbols:
                single[symbol] += weight
            for pair in zip(symbols, symbols[1:], strict=False):
                pairs[pair] += weight

        def rank(pair: tuple[str, str], pairs=pairs, single=single) -> tuple[float, str, str]:  # type: ignore[no-untyped-def]
            value = pairs[pair] / (single[pair[0]] * single[pair[1]] if score == "likelihood" else 1)
            return -value, pair[0] + pair[1][2:], pair[0]

        choice = [pair for pair in pairs if pairs[pair] >= min_count]
        if not choice:
            break
        left, right = min(choice, key=rank)
        piece = left + right[2:]
        for symbols, _ in words:
            i = 0
            while i < len(symbols) - 1:
                if (symbols[i], symbols[i + 1]) == (left, right):
                    symbols[i : i + 2] = [piece]
                i += 1
        if piece not in known:
            known.add(piece)
            found.append(piece)
    return found


WORDS = st.dictionaries(st.text("abc", min_size=1, max_size=8), st.integers(1, 9), min_size=1, max_size=12)


@settings(max_examples=200)
@given(WORDS, st.sampled_from(["frequency", "likelihood"]), st.integers(1, 3))
def test_equals_recounting(counts: dict[str, int], score: Score, min_count: int) -> None:
    n_alphabet = len({("##" if i else "") + c for word in counts for i, c in enumerate(word)})
    expected = merges_by_recounting(counts, 10**6, score, min_count)
    for n in (0, len(expected) // 2, len(expected)):
        size = len(SPECIALS) + n_alphabet + n
        pieces = train_wordpiece(counts, size, score=score, min_count=min_count)
        assert pieces[: len(SPECIALS)] == list(SPECIALS)
        assert pieces[len(SPECIALS) + n_alphabet :] == expected[:n]
    with pytest.raises(TokenizerError, match=f"at most {size} tokens"):
        train_wordpiece(counts, size + 1, score=score, min_count=min_count)


def test_order_of_words_does_not_matter() -> None:
    counts = WordSplitter(lowercase=True).count(TEXT)
    backwards = dict(reversed(counts.items()))
    assert train_wordpiece(counts, 45, min_count=1) == train_wordpiece(backwards, 45, min_count=1)


def test_special_tokens_then_alphabet_then_merges() -> None:
    pieces = train_wordpiece({"ab": 3, "b": 1, "ba": 2, "aba": 2}, 12)
    # a: 9 occurrences in both forms, b: 8 in both; then ##ba? no: ab (5) before ba (2) and aba (2).
    assert pieces == [*SPECIALS, "a", "##a", "b", "##b", "ab", "aba", "ba"]


def test_rare_characters_give_way_when_the_alphabet_is_large() -> None:
    counts = {"ab" * 4: 10_000} | {chr(0x4E00 + i): 1 for i in range(50)}
    pieces = train_wordpiece(counts, 12)
    assert pieces[5:8] == ["a", "##a", "##b"]
    assert not any("\u4e00" <= piece <= "\u4eff" for piece in pieces)
    with pytest.raises(TokenizerError, match=r"cannot hold the alphabet of this text: 55 are needed"):
        train_wordpiece({chr(0x4E00 + i): 1 for i in range(50)}, 20)
    with pytest.raises(TokenizerError, match="alphabet_limit=10"):
        train_wordpiece({chr(0x4E00 + i): 1 for i in range(50)}, 200, alphabet_limit=10)
    with pytest.raises(TokenizerError, match="no words"):
        train_wordpiece({}, 200)


def test_the_size_an_error_names_is_possible() -> None:
    counts = {"abcabc": 40, "bcd": 30, "dabc": 20} | {chr(0x4E00 + i): 1 for i in range(1)}
    with pytest.raises(TokenizerError, match=r"pass --size (\d+)") as raised:
        train_wordpiece(counts, 1000)
    largest = int(str(raised.value).split("at most ")[1].split()[0])
    assert len(train_wordpiece(counts, largest)) == largest


MIXED = "aB é\u0301Σσ'.한\u1112\u1161中\t\n\x0b\x1c\x85\u200b\u3000\u2028가"


@settings(max_examples=150)
@given(
    st.lists(st.text(st.sampled_from(MIXED), max_size=12)),
    st.sampled_from([(False, False), (True, False), (True, True)]),
)
def test_counting_sees_the_words_of_the_tokenizer(texts: list[str], kind: tuple[bool, bool]) -> None:
    lowercase, keep_accents = kind
    counts = WordSplitter(lowercase=lowercase, keep_accents=keep_accents).count(texts)
    words = dict.fromkeys(counts)
    tokenizer = Tokenizer.from_vocab([*SPECIALS, *words], lowercase=lowercase, keep_accents=keep_accents)
    ids = Counter(i for row in tokenizer.ids_many(texts) for i in row)
    assert {tokenizer.pieces[i]: n for i, n in ids.items()} == dict(counts)


def test_words_of_korean_and_chinese() -> None:
    nfd = unicodedata.normalize("NFD", "한국어")
    counts = WordSplitter(lowercase=True).count([f"한국어 {nfd} 中文字, CAFÉ."])
    assert counts == {"한국어": 2, "中": 1, "文": 1, "字": 1, ",": 1, "cafe": 1, ".": 1}


def test_pruning_keeps_the_frequent_and_is_reported() -> None:
    counts = WordCounts(max_types=3)
    counts.add({"a": 5, "b": 1, "c": 2})
    assert counts.pruned_types == 0
    counts.add({"d": 1, "e": 4})
    assert dict(counts.counts) == {"a": 5, "c": 2, "e": 4}
    assert (counts.pruned_types, counts.pruned_occurrences) == (2, 2)


def test_blocks() -> None:
    assert list(text_blocks(["ab", "c", "defg", "h"], 3)) == [["ab", "c"], ["defg"], ["h"]]
    assert list(text_blocks([])) == []


def test_progress() -> None:
    counts = {chr(0xAC00 + i) + chr(0xAC01 + i): 9 for i in range(99)}
    seen: list[int] = []
    train_wordpiece(counts, 300, on_progress=seen.append)
    assert seen == [250, 300]


SCRIPT = """
import sys
from pathlib import Path
from firth.text.tokenizer import Tokenizer
from firth.text.wordpiece import WordSplitter, train_wordpiece
counts = WordSplitter(lowercase=True).count(Path(sys.argv[1]).read_text(encoding="utf-8").split("\\n"))
for score in ("frequency", "likelihood"):
    pieces = train_wordpiece(counts, 400, score=score)
    Tokenizer.from_vocab(pieces, lowercase=True).save(Path(sys.argv[2]) / score)
"""


def test_hash_seed_does_not_matter(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    for seed in ("1", "2"):
        subprocess.run(
            [sys.executable, "-c", SCRIPT, str(text), str(tmp_path / seed)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
        )
    for score in ("frequency", "likelihood"):
        for name in ("vocab.txt", "tokenizer.json"):
            one, two = ((tmp_path / seed / score / name).read_bytes() for seed in ("1", "2"))
            assert one == two and len(one) > 1000
