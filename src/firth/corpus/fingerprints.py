"""Measure text for cleaning: 64-bit hashes of its words, and counts of its kinds of characters.

Text becomes one array of code points, and every step is a NumPy operation over it. A word is a run of letters,
digits and marks in lower case; each ideograph or kana is a word. Hashes depend only on the words: not on
case, punctuation, white space, Unicode normalisation, process or machine.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from firth.text.wordpiece import text_blocks

SCRIPTS = (
    "latin",
    "greek",
    "cyrillic",
    "hebrew",
    "arabic",
    "devanagari",
    "thai",
    "hangul",
    "kana",
    "han",
    "other",
)
# Kinds of characters; the order is that of the columns of ``FingerprintBlock.kinds``.
SPACE, SYMBOL, DIGIT, LETTER, IDEOGRAPH = range(5)
# How a paragraph ends.
OPEN, CLOSED = range(2)

_SCRIPT_OF_NAME = {"hiragana": "kana", "katakana": "kana", "cjk": "han"}
_SENTENCE_ENDS = ".!?…。！？,;:，；：、—।॥؟۔؛،։።"
_CLOSERS = "\"'”’»)]}」』）"
_BULLETS = "*•‣◦▪■□●○◆◇·-–"
_BARS = "|\t│"
_TABLE = 0x20000  # every code point from here on counts as an ideograph
_PIECE = 1 << 18  # characters processed at once: as many as fit the CPU caches
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that it has an inverse modulo 2**64
_INVERSE = np.uint64(pow(0x9E3779B97F4A7C15, -1, 2**64))
_STEP = np.uint64(0xD1342543DE82EF95)


@dataclass(frozen=True, slots=True)
class FingerprintBlock:
    """Measurements of some documents.

    ``words``: uint64 hashes of all words, in order. ``word_starts`` (P+1) and ``paragraph_starts`` (D+1): the first
    word of each paragraph, and the first paragraph of each document. ``kinds`` (P, 5): characters of each kind.
    ``ends`` (P): OPEN or CLOSED. ``bullets`` (P): whether the paragraph starts with one. ``bars`` (P): separators of
    table cells. ``damaged`` (P): U+FFFD characters. ``scripts`` (D, len(SCRIPTS)): letters of each script.
    """

    words: np.ndarray
    word_starts: np.ndarray
    paragraph_starts: np.ndarray
    kinds: np.ndarray
    ends: np.ndarray
    bullets: np.ndarray
    bars: np.ndarray
    damaged: np.ndarray
    scripts: np.ndarray

    @property
    def document_starts(self) -> np.ndarray:
        """The index of the first word of each document, and the end."""
        return self.word_starts[self.paragraph_starts]


def fingerprint(documents: Sequence[Sequence[str]]) -> FingerprintBlock:
    """Measure documents, each a sequence of paragraphs without newlines."""
    counts = np.array([len(paragraphs) for paragraphs in documents], np.int64)
    paragraph_starts = np.concatenate(([0], np.cumsum(counts)))
    pieces = [_measure_piece(piece) for piece in text_blocks((p for d in documents for p in d), _PIECE)]
    words = np.concatenate([p.words for p in pieces]) if pieces else np.zeros(0, np.uint64)
    sizes = np.concatenate([p.sizes for p in pieces]) if pieces else np.zeros(0, np.int64)
    table = np.concatenate([p.table for p in pieces]) if pieces else np.zeros((0, 9 + len(SCRIPTS)), np.int64)
    sums = np.concatenate((np.zeros((1, len(SCRIPTS)), np.int64), np.cumsum(table[:, 9:], 0)))
    return FingerprintBlock(
        words=words,
        word_starts=np.concatenate(([0], np.cumsum(sizes))),
        paragraph_starts=paragraph_starts,
        kinds=table[:, :5],
        ends=table[:, 5],
        bullets=table[:, 6],
        bars=table[:, 7],
        damaged=table[:, 8],
        scripts=np.diff(sums[paragraph_starts], axis=0),
    )


def ngrams(words: np.ndarray, n: int) -> np.ndarray:
    """Hash each window of ``n`` words; uint64 of length max(0, len(words) - n + 1)."""
    if len(words) < n:
        return np.zeros(0, np.uint64)
    last = len(words) - n + 1
    total = words[:last].copy()
    for k in range(1, n):
        total *= _STEP
        total += words[k : k + last]
    return total


def inside(starts: np.ndarray, n: int) -> np.ndarray:
    """Which windows of ``n`` words are within one part; parts start at ``starts``, whose last value is the end."""
    n_windows = max(0, int(starts[-1]) - n + 1)
    ends = np.repeat(starts[1:], np.diff(starts))[:n_windows]
    return np.arange(n_windows) + n <= ends


def sequence_hashes(words: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Hash the word sequence of each part; 0 for a part without words."""
    sizes = np.diff(starts)
    positions = np.arange(len(words)) - np.repeat(starts[:-1], sizes)
    placed = mix(words + positions.astype(np.uint64) * _STEP)
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(placed)))
    totals = mix(sums[starts[1:]] - sums[starts[:-1]])
    totals[sizes == 0] = 0
    return totals


def mix(values: np.ndarray) -> np.ndarray:
    """Spread uint64 values over all bits. Source: the finaliser of SplitMix64 (Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class _Piece:
    """Measurements of some paragraphs: hashes of their words, words per paragraph, and columns of FingerprintBlock."""

    words: np.ndarray
    sizes: np.ndarray
    table: np.ndarray


def _measure_piece(paragraphs: list[str]) -> _Piece:
    text = "\n".join(paragraphs) + "\n"
    if not unicodedata.is_normalized("NFC", text):
        text = unicodedata.normalize("NFC", text)
    tables = _tables()
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    at = np.minimum(codes, _TABLE)
    kinds, scripts = tables.kinds[at], tables.scripts[at]
    # Each paragraph includes the newline that ends it.
    breaks = np.flatnonzero(codes == 10)
    starts = np.concatenate(([0], breaks[:-1] + 1))
    assert len(breaks) == len(paragraphs)
    words, word_starts = _words(tables.lower[at], kinds)
    bounds = np.searchsorted(word_starts, np.append(starts, len(codes)))
    table = np.empty((len(paragraphs), 9 + len(SCRIPTS)), np.int64)
    owner = np.repeat(np.arange(len(paragraphs), dtype=np.int64), breaks + 1 - starts)
    table[:, :5] = np.bincount(owner * 5 + kinds, minlength=len(paragraphs) * 5).reshape(-1, 5)
    table[:, SPACE] -= 1  # the newline that was added
    table[:, 5] = _ends(codes, starts, breaks, tables)
    table[:, 6] = tables.bullets[at[starts]]
    table[:, 7] = np.add.reduceat(tables.bars[at], starts, dtype=np.int64)
    table[:, 8] = np.add.reduceat(codes == 0xFFFD, starts, dtype=np.int64)
    letters = kinds >= LETTER
    index = owner[letters] * len(SCRIPTS) + scripts[letters]
    table[:, 9:] = np.bincount(index, minlength=len(paragraphs) * len(SCRIPTS)).reshape(-1, len(SCRIPTS))
    return _Piece(words, np.diff(bounds), table)


def _words(lower: np.ndarray, kinds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hash the words; also return where each starts."""
    in_word = (kinds == LETTER) | (kinds == DIGIT)
    single = kinds == IDEOGRAPH
    before = np.concatenate(([False], in_word[:-1]))
    after = np.concatenate((in_word[1:], [False]))
    starts = np.flatnonzero(single | (in_word & ~before))
    ends = np.flatnonzero(single | (in_word & ~after)) + 1
    powers, inverses = _powers(len(lower))
    sums = np.empty(len(lower) + 1, np.uint64)
    sums[0] = 0
    np.cumsum(lower * powers, out=sums[1:])
    return mix((sums[ends] - sums[starts]) * inverses[starts]), starts


def _ends(codes: np.ndarray, starts: np.ndarray, breaks: np.ndarray, tables: "_Tables") -> np.ndarray:
    """CLOSED if the last character, or the one before closing quotes and brackets, ends a sentence or a clause."""
    last = breaks - 1
    for _ in range(3):
        closer = tables.closers[np.minimum(codes[np.maximum(last, 0)], _TABLE)] & (last > starts)
        last = last - closer
    return tables.sentence_ends[np.minimum(codes[np.maximum(last, 0)], _TABLE)].astype(np.int64)


@cache
def _powers_table(size: int) -> tuple[np.ndarray, np.ndarray]:
    both = []
    for base in (_BASE, _INVERSE):
        factors = np.full(size, base, np.uint64)
        factors[0] = 1
        both.append(np.cumprod(factors))
    return both[0], both[1]


def _powers(size: int) -> tuple[np.ndarray, np.ndarray]:
    """The first ``size`` powers of the hash's base and of its inverse."""
    powers, inverses = _powers_table(1 << max(19, (size - 1).bit_length()))
    return powers[:size], inverses[:size]


@dataclass(frozen=True, slots=True)
class _Tables:
    """Properties of each code point; the last row covers all higher ones."""

    kinds: np.ndarray
    scripts: np.ndarray
    lower: np.ndarray
    sentence_ends: np.ndarray
    closers: np.ndarray
    bullets: np.ndarray
    bars: np.ndarray


@cache
def _tables() -> _Tables:
    kinds = np.full(_TABLE + 1, SYMBOL, np.uint8)
    scripts = np.full(_TABLE + 1, SCRIPTS.index("other"), np.uint8)
    lower = np.arange(_TABLE + 1, dtype=np.uint64)
    for code in range(_TABLE):
        character = chr(code)
        if character.isspace():
            kinds[code] = SPACE
            continue
        category = unicodedata.category(character)
        if category[0] not in "LMN":
            continue
        name = unicodedata.name(character, "").split(" ")[0].split("-")[0].lower()
        script = _SCRIPT_OF_NAME.get(name, name)
        if script in SCRIPTS:
            scripts[code] = SCRIPTS.index(script)
        alone = script in ("han", "kana") and category[0] == "L"
        kinds[code] = DIGIT if category[0] == "N" else IDEOGRAPH if alone else LETTER
        if len(small := character.lower()) == 1:
            lower[code] = ord(small)
    kinds[_TABLE], scripts[_TABLE] = IDEOGRAPH, SCRIPTS.index("han")
    # Add 1, so that no character has the value 0 and no word hashes as nothing.
    lower += np.uint64(1)
    return _Tables(kinds, scripts, lower, *(_marked(text) for text in (_SENTENCE_ENDS, _CLOSERS, _BULLETS, _BARS)))


def _marked(characters: str) -> np.ndarray:
    marks = np.zeros(_TABLE + 1, bool)
    marks[[ord(character) for character in characters]] = True
    return marks
