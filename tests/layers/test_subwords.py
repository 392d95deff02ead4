"""fastText's n-grams: the specification's example, hashes by hand, a plain loop."""

import random

import torch

from firth.layers.subwords import ngram_buckets, word_bytes

MANY = 1 << 32  # so many buckets that a bucket is the hash itself


def fnv(ngram: bytes) -> int:
    state = 2_166_136_261
    for byte in ngram:
        signed = byte - 256 if byte > 127 else byte
        state = ((state ^ (signed & 0xFFFF_FFFF)) * 16_777_619) & 0xFFFF_FFFF
    return state


def ngrams(word: str, shortest: int, longest: int) -> list[str]:
    """facebookresearch/fastText computeSubwords, character by character."""
    marked, found = f"<{word}>", []
    for begin in range(len(marked)):
        for n in range(shortest, longest + 1):
            end = begin + n
            if end <= len(marked) and not (n == 1 and (begin == 0 or end == len(marked))):
                found.append(marked[begin:end])
    return found


def buckets_of(words: list[str], shortest: int, longest: int, n_buckets: int) -> list[list[int]]:
    buckets, counts = ngram_buckets(word_bytes([word.encode() for word in words]), shortest, longest, n_buckets)
    return [sorted(part.tolist()) for part in buckets.split(counts.tolist())]


def test_the_ngrams_of_where() -> None:
    expected = [
        "<wh",
        "whe",
        "her",
        "ere",
        "re>",
        "<whe",
        "wher",
        "here",
        "ere>",
        "<wher",
        "where",
        "here>",
        "<where",
        "where>",
    ]
    assert sorted(ngrams("where", 3, 6)) == sorted(expected)
    assert buckets_of(["where"], 3, 6, MANY) == [sorted(fnv(ngram.encode()) for ngram in expected)]


def test_hashes_by_hand() -> None:
    # One byte: (offset xor byte) times prime; bytes above 127 are signed, which sets the upper 24 bits.
    assert fnv(b"a") == ((2_166_136_261 ^ 0x61) * 16_777_619) % 2**32 == 0xE40C292C
    assert fnv(b"\xea") == ((2_166_136_261 ^ 0xFFFFFFEA) * 16_777_619) % 2**32
    assert buckets_of(["국"], 1, 1, MANY) == [[fnv("국".encode())]]


def test_characters_are_counted_not_bytes() -> None:
    rng = random.Random(1)
    alphabet = "abcé한국어𝔘"
    words = ["".join(rng.choice(alphabet) for _ in range(rng.randint(1, 12))) for _ in range(60)]
    for shortest, longest in ((3, 6), (1, 2), (1, 1), (2, 9), (20, 30)):
        expected = [sorted(fnv(n.encode()) % 1000 for n in ngrams(word, shortest, longest)) for word in words]
        assert buckets_of(words, shortest, longest, 1000) == expected


def test_no_word_and_no_bytes() -> None:
    for words in ([], [b""], [b"", b"a"]):
        buckets, counts = ngram_buckets(word_bytes(words), 1, 3, 10)
        assert counts.tolist() == [0 if word == b"" else len(ngrams("a", 1, 3)) for word in words]
        assert buckets.dtype == torch.int64
        assert len(buckets) == int(counts.sum())
