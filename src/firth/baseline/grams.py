"""Texts as TF-IDF vectors of n-grams of words and characters, with NumPy and SciPy alone.

An n-gram is a substring of the normalised text, so one rolling hash serves for all of them: with the characters'
hashes c and an odd base B, S[j] - S[i] = sum of c[k] B^k over i ≤ k < j, times B^-i, is the same number wherever the
substring occurs (all modulo 2^64). The vocabulary is kept as strings; 64-bit hashes only find them.
Source: Karp and Rabin 1987 (the hash); scikit-learn TfidfVectorizer (weights: sublinear_tf, smooth_idf, norm="l2").
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from firth.baseline.config import GramConfig
from firth.data.hashing import draw, seed_of

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

GramBlock = Literal["words", "characters"]
BLOCKS: tuple[GramBlock, ...] = ("words", "characters")

_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 1 << 64)
_SPACE = ord(" ")
# Characters of text that are hashed at once: some 100 MB of n-grams.
_AT_ONCE = 1 << 19
# N-grams that are collected before equal ones are merged.
_BEFORE_MERGE = 1 << 22
_SEEDS = {block: seed_of("n-grams", block) for block in BLOCKS}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The n-grams of one kind that are counted, the commonest first, and their inverse document frequencies."""

    block: GramBlock
    grams: tuple[str, ...]
    idf: Float[np.ndarray, " F"]
    # Hashes of the n-grams in rising order, and the number of each one's n-gram.
    sorted_keys: Int[np.ndarray, " F"]
    numbers: Int[np.ndarray, " F"]

    @staticmethod
    def of(block: GramBlock, grams: Sequence[str], idf: Float[np.ndarray, " F"]) -> "Vocabulary":
        keys = _keys_of(block, grams)
        order = np.argsort(keys, kind="stable")
        return Vocabulary(block, tuple(grams), idf, keys[order], order)

    def __len__(self) -> int:
        return len(self.grams)


def normalise(text: str) -> str:
    """Normalise a text for counting: lower case, composed characters (NFC), single spaces."""
    return " ".join(unicodedata.normalize("NFC", text).lower().split())


def fit_vocabulary(texts: Sequence[str], block: GramBlock, config: GramConfig) -> Vocabulary:
    """The n-grams of one kind that occur in enough of the texts, at most ``config.most``."""
    # Rare n-grams of words are informative; those of characters that occur once are mostly noise.
    least = config.min_count if block == "characters" else 1
    found: list[_Counted] = []
    n_found = 0
    for first, some in _chunks(texts):
        found.append(_count(_grams(some, block, config), first))
        n_found += len(found[-1].key)
        if n_found > _BEFORE_MERGE:
            found, n_found = [_merged(found)], 0
    counted = _merged(found)
    kept = np.flatnonzero(counted.n_texts >= min(least, max(len(texts) // 2, 1)))
    # Commonest first; ties are ordered by hash, which is the same on every machine.
    kept = kept[np.lexsort((counted.key[kept], -counted.n_texts[kept]))][: config.most]
    grams = _substrings(texts, counted.row[kept], counted.start[kept], counted.end[kept])
    idf = np.log((1 + len(texts)) / (1 + counted.n_texts[kept])) + 1
    return Vocabulary.of(block, grams, idf.astype(np.float32))


def _substrings(texts: Sequence[str], row: np.ndarray, start: np.ndarray, end: np.ndarray) -> list[str]:
    """The characters ``[start:end]`` of each row's framed text; a text is normalised once, and one held at a time."""
    found = [""] * len(row)
    last, framed = -1, ""
    for place in np.argsort(row, kind="stable").tolist():
        if row[place] != last:
            last = int(row[place])
            framed = f" {normalise(texts[last])} "
        found[place] = framed[start[place] : end[place]]
    return found


def tfidf(texts: Sequence[str], vocabulary: Vocabulary, config: GramConfig) -> "csr_matrix":
    """(texts, n-grams) in float64: (1 + ln count) · idf, each text's vector of length 1 (0 if it has no n-gram)."""
    from scipy.sparse import csr_matrix, vstack

    parts = []
    for _, some in _chunks(texts):
        grams = _grams(some, vocabulary.block, config)
        place = np.searchsorted(vocabulary.sorted_keys, grams.key)
        place[place == len(vocabulary)] = 0
        known = vocabulary.sorted_keys[place] == grams.key if len(vocabulary) else np.zeros(len(place), bool)
        rows, columns = grams.row[known], vocabulary.numbers[place[known]]
        counts = csr_matrix((np.ones(len(rows)), (rows, columns)), (len(some), len(vocabulary)))
        counts.sum_duplicates()
        counts.data = (1 + np.log(counts.data)) * vocabulary.idf[counts.indices]
        of_text = np.repeat(np.arange(len(some)), np.diff(counts.indptr))
        counts.data /= np.sqrt(np.bincount(of_text, counts.data**2, len(some)))[of_text]
        parts.append(counts)
    return vstack(parts, "csr") if parts else csr_matrix((0, len(vocabulary)))


class _Grams(NamedTuple):
    """N-grams of some texts: hash, number of the text, and the characters ``[start:end]`` of the framed text."""

    key: np.ndarray
    row: np.ndarray
    start: np.ndarray
    end: np.ndarray


class _Counted(NamedTuple):
    """Distinct n-grams by hash, in how many texts each occurs, and where it first occurs."""

    key: np.ndarray
    n_texts: np.ndarray
    row: np.ndarray
    start: np.ndarray
    end: np.ndarray


def _chunks(texts: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield normalised texts, about ``_AT_ONCE`` characters at a time, with the number of the first text."""
    some: list[str] = []
    first = n_characters = 0
    for number, text in enumerate(texts):
        some.append(normalise(text))
        n_characters += len(some[-1])
        if n_characters >= _AT_ONCE:
            yield first, some
            some, first, n_characters = [], number + 1, 0
    if some:
        yield first, some


def _grams(texts: Sequence[str], block: GramBlock, config: GramConfig) -> _Grams:
    """Every n-gram of normalised texts."""
    framed = [f" {text} " for text in texts]
    codes = _codes("".join(framed))
    lengths = np.array([len(text) for text in framed])
    row = np.repeat(np.arange(len(texts)), lengths)
    spans = _word_spans(codes, row, config) if block == "words" else _character_spans(codes, row, config)
    start, end = (np.concatenate(ends) if ends else np.zeros(0, np.int64) for ends in zip(*spans, strict=True))
    owner, first = row[start], np.cumsum(lengths) - lengths
    return _Grams(_hashes(codes, start, end, block), owner, start - first[owner], end - first[owner])


def _codes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _word_spans(codes: np.ndarray, row: np.ndarray, config: GramConfig) -> list[tuple[np.ndarray, np.ndarray]]:
    """Spans of 1 to ``config.words`` consecutive words: runs of letters, digits and underscores, or single marks."""
    different, which = np.unique(codes, return_inverse=True)
    letters = np.array([chr(code).isalnum() or chr(code) == "_" for code in different], bool)[which]
    marks = ~letters & (codes != _SPACE)
    before, after = np.roll(letters, 1), np.roll(letters, -1)
    start = np.flatnonzero(marks | (letters & ~before))
    end = np.flatnonzero(marks | (letters & ~after)) + 1
    spans = []
    for n in range(1, config.words + 1):
        a, b = start[: max(len(start) - n + 1, 0)], end[n - 1 :]
        together = row[a] == row[b - 1]
        spans.append((a[together], b[together]))
    return spans or [(start[:0], end[:0])]


def _character_spans(codes: np.ndarray, row: np.ndarray, config: GramConfig) -> list[tuple[np.ndarray, np.ndarray]]:
    """Spans of substrings of words with the space on either side; of the whole text with ``config.across``."""
    n_spaces = np.concatenate([[0], np.cumsum(codes == _SPACE)])
    spans = []
    for n in range(config.shortest, config.longest + 1):
        start = np.arange(max(len(codes) - n + 1, 0))
        # Within one text, and not only the frame of an empty text.
        good = (row[start] == row[start + n - 1]) & (n_spaces[start + n] - n_spaces[start] < n)
        if n > 2 and not config.across:
            good &= n_spaces[start + n - 1] == n_spaces[start + 1]
        start = start[good]
        spans.append((start, start + n))
    return spans or [(np.zeros(0, np.int64), np.zeros(0, np.int64))]


def _hashes(codes: np.ndarray, start: np.ndarray, end: np.ndarray, block: GramBlock) -> np.ndarray:
    """A 64-bit hash of each substring."""
    n = len(codes)
    powers = np.cumprod(np.concatenate([np.ones(1, np.uint64), np.full(n, _BASE, np.uint64)]))
    inverses = np.cumprod(np.concatenate([np.ones(1, np.uint64), np.full(n, _INVERSE, np.uint64)]))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(draw(0, codes) * powers[:n])])
    return draw(_SEEDS[block], (sums[end] - sums[start]) * inverses[start])


def _keys_of(block: GramBlock, grams: Sequence[str]) -> np.ndarray:
    """The hash of each string."""
    ends = np.cumsum([len(gram) for gram in grams], dtype=np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), ends])[: len(grams)]
    return _hashes(_codes("".join(grams)), starts, ends, block)


def _count(grams: _Grams, first: int) -> _Counted:
    key, where, which = np.unique(grams.key, return_index=True, return_inverse=True)
    n_rows = int(grams.row.max(initial=0)) + 1
    in_text = np.unique(which.astype(np.int64) * n_rows + grams.row) // n_rows
    n_texts = np.bincount(in_text, minlength=len(key))
    return _Counted(key, n_texts, grams.row[where] + first, grams.start[where], grams.end[where])


def _merged(parts: Sequence[_Counted]) -> _Counted:
    """Merge the counts of several chunks of texts; keeps the first place of each n-gram."""
    if not parts:
        return _Counted(np.zeros(0, np.uint64), *(np.zeros(0, np.int64) for _ in range(4)))
    together = _Counted(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    key, where, which = np.unique(together.key, return_index=True, return_inverse=True)
    n_texts = np.bincount(which, together.n_texts, len(key)).astype(np.int64)
    return _Counted(key, n_texts, together.row[where], together.start[where], together.end[where])
