"""Learn a WordPiece vocabulary: count words, then join the best pair of pieces again and again.

Source: Schuster & Nakajima 2012 (likelihood score); the frequency score is that of byte-pair encoding.
Everything is decided by counts and strings, so one text gives one vocabulary on every machine.
"""

import heapq
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tokenizers import normalizers, pre_tokenizers

from firth.errors import TokenizerError
from firth.text.tokenizer import PREFIX, SPECIALS, WORD_LIMIT, build_normalizer, build_pre_tokenizer

Score = Literal["frequency", "likelihood"]

MAX_TYPES = 5_000_000
_ENOUGH = 0.999  # of all characters: beyond half of the vocabulary, rarer ones are given up
_NEEDED = 0.99  # of all characters: with fewer, too many words would be [UNK]

# str.split() takes these control characters for white space; the tokenizer drops them.
_NOT_SPACE = re.compile("[\x0b\x0c\x1c-\x1f\x85]")


class WordSplitter:
    """Texts -> counts of words, as the tokenizer to be built will see them."""

    def __init__(self, *, lowercase: bool, keep_accents: bool = False):
        self.lowercase, self.keep_accents = lowercase, keep_accents
        self._normalizer: normalizers.Normalizer = build_normalizer(
            lowercase=lowercase, keep_accents=keep_accents, google=False
        )
        self._pre_tokenizer: pre_tokenizers.PreTokenizer = build_pre_tokenizer()

    def count(self, texts: Iterable[str]) -> Counter[str]:
        """Counts over all texts.

        Neither normalising nor splitting looks across white space, so each distinct run of other characters
        goes through the library once.
        """
        runs: Counter[str] = Counter()
        for text in texts:
            runs.update((_NOT_SPACE.sub("", text) if _NOT_SPACE.search(text) else text).split())
        words: Counter[str] = Counter()
        if not runs:
            return words
        # A newline stays and is never part of a run, so one call normalises all of them.
        normal = self._normalizer.normalize_str("\n".join(runs)).split("\n")
        for run, count in zip(normal, runs.values(), strict=True):
            if run.isascii() and run.isalnum():
                words[run] += count
            elif run:
                for word, _ in self._pre_tokenizer.pre_tokenize_str(run):
                    words[word] += count
        return words


@dataclass(slots=True)
class WordCounts:
    """Counts of words within a bound on how many are held; what was dropped for it is counted."""

    max_types: int = MAX_TYPES
    counts: Counter[str] = field(default_factory=Counter)
    pruned_types: int = 0
    pruned_occurrences: int = 0

    def add(self, counts: Mapping[str, int]) -> None:
        """Add counts, then drop the rarest words (all of count 1, then 2, ...) while there are too many."""
        self.counts.update(counts)
        threshold = 0
        while len(self.counts) > self.max_types:
            threshold += 1
            rare = [word for word, count in self.counts.items() if count <= threshold]
            for word in rare:
                self.pruned_occurrences += self.counts.pop(word)
            self.pruned_types += len(rare)


def text_blocks(texts: Iterable[str], block_characters: int = 4_000_000) -> Iterator[list[str]]:
    """Texts in lists of about so many characters: the unit of work of one worker."""
    block: list[str] = []
    size = 0
    for text in texts:
        block.append(text)
        size += len(text)
        if size >= block_characters:
            yield block
            block, size = [], 0
    if block:
        yield block


def count_words(texts: Iterable[str], splitter: WordSplitter, max_types: int = MAX_TYPES) -> WordCounts:
    """Counts of the words of all texts, in bounded memory."""
    total = WordCounts(max_types)
    for block in text_blocks(texts):
        total.add(splitter.count(block))
    return total


def train_wordpiece(
    counts: Mapping[str, int],
    size: int,
    *,
    score: Score = "frequency",
    min_count: int = 2,
    alphabet_limit: int = 6000,
    on_progress: Callable[[int], None] | None = None,
) -> list[str]:
    """A vocabulary of exactly ``size`` pieces: special tokens, alphabet, joined pieces in order of joining.

    ``score``: "frequency" joins the pair that occurs most often, "likelihood" the one with the largest
    count(ab) / (count(a) count(b)); ties go to the smaller strings. Pairs seen fewer than ``min_count``
    times are never joined. ``on_progress`` is called with the number of pieces now and then.
    Raises TokenizerError when the text cannot give so many pieces, or the size cannot hold the alphabet.
    """
    words = {word: n for word, n in counts.items() if 0 < len(word) <= WORD_LIMIT and n > 0}
    if not words:
        raise TokenizerError("no words to learn a vocabulary from; give text with letters in it")
    alphabet = _alphabet(words, size, alphabet_limit)
    pieces = [*SPECIALS, *alphabet]
    for piece in _Merger(words, pieces, score, min_count).merges(size):
        pieces.append(piece)
        if on_progress is not None and len(pieces) % 50 == 0:
            on_progress(len(pieces))
    if len(pieces) < size:
        largest = len(pieces)
        if _alphabet(words, largest, alphabet_limit) != alphabet:
            # A smaller vocabulary may keep fewer characters, and so support fewer pieces still.
            train_wordpiece(words, largest, score=score, min_count=min_count, alphabet_limit=alphabet_limit)
        raise TokenizerError(
            f"the text supports at most {largest} pieces, not {size}; pass --size {largest} or give more text"
        )
    return pieces


def _alphabet(words: Mapping[str, int], size: int, limit: int) -> list[str]:
    """Characters by count, then code point, in the forms they occur in, as many as fit."""
    counts: Counter[str] = Counter()
    first: set[str] = set()
    inner: set[str] = set()
    for word, n in words.items():
        first.add(word[0])
        inner.update(word[1:])
        for character in word:
            counts[character] += n
    ranked = sorted(counts, key=lambda c: (-counts[c], c))
    room, total, covered = size - len(SPECIALS), counts.total(), 0
    pieces: list[str] = []
    for character in ranked[:limit]:
        forms = [character] * (character in first) + [PREFIX + character] * (character in inner)
        over_half = len(pieces) + len(forms) > room // 2
        if len(pieces) + len(forms) > room or (over_half and covered >= _ENOUGH * total):
            break
        pieces += forms
        covered += counts[character]
    if covered < _NEEDED * total:
        raise TokenizerError(_too_small(size, ranked, counts, first, inner, limit))
    return pieces


def _too_small(
    size: int, ranked: list[str], counts: Counter[str], first: set[str], inner: set[str], limit: int
) -> str:
    needed, covered, n_characters = len(SPECIALS), 0, 0
    for character in ranked:
        if covered >= _NEEDED * counts.total():
            break
        needed += (character in first) + (character in inner)
        covered += counts[character]
        n_characters += 1
    if n_characters > limit:
        return (
            f"{n_characters} characters are needed for {_NEEDED:.0%} of this text, more than "
            f"alphabet_limit={limit}; raise it"
        )
    return (
        f"{size} pieces cannot hold the alphabet of this text: {needed} are needed for {_NEEDED:.0%} of its "
        f"characters; pass a --size well above {needed}"
    )


class _Merger:
    """Words as lists of symbols, counts of neighbouring pairs, and a heap of candidates.

    A heap entry may be out of date; it is checked when it comes up. So a score that falls needs no work,
    and only one that rises is pushed again.
    """

    def __init__(self, counts: Mapping[str, int], pieces: list[str], score: Score, min_count: int):
        self.pieces = list(pieces)
        self.ids = {piece: i for i, piece in enumerate(pieces)}
        self.likelihood = score == "likelihood"
        self.min_count = max(min_count, 1)
        self.words: list[list[int]] = []
        self.weights: list[int] = []
        self.symbol_counts: Counter[int] = Counter()
        self.pair_counts: dict[tuple[int, int], int] = {}
        self.where: dict[tuple[int, int], list[int]] = {}
        self.touching: dict[int, set[tuple[int, int]]] = {}
        self.heap: list[tuple[float, str, str, tuple[int, int]]] = []
        self._load(counts)

    def _load(self, counts: Mapping[str, int]) -> None:
        for word, weight in counts.items():
            try:
                symbols = [self.ids[word[0]]] + [self.ids[PREFIX + c] for c in word[1:]]
            except KeyError:
                continue  # a character outside the alphabet: the word will be [UNK]
            index = len(self.words)
            self.words.append(symbols)
            self.weights.append(weight)
            for symbol in symbols:
                self.symbol_counts[symbol] += weight
            for pair in zip(symbols, symbols[1:], strict=False):
                self.pair_counts[pair] = self.pair_counts.get(pair, 0) + weight
                self.where.setdefault(pair, []).append(index)
        for pair in self.pair_counts:
            self._push(pair)
            self._touch(pair)

    def _touch(self, pair: tuple[int, int]) -> None:
        if self.likelihood:
            self.touching.setdefault(pair[0], set()).add(pair)
            self.touching.setdefault(pair[1], set()).add(pair)

    def _score(self, pair: tuple[int, int]) -> float:
        count = self.pair_counts.get(pair, 0)
        if not self.likelihood or not count:
            return count
        return count / (self.symbol_counts[pair[0]] * self.symbol_counts[pair[1]])

    def _push(self, pair: tuple[int, int]) -> None:
        if self.pair_counts.get(pair, 0) >= self.min_count:
            left, right = self.pieces[pair[0]], self.pieces[pair[1]]
            heapq.heappush(self.heap, (-self._score(pair), joined(left, right), left, pair))

    def merges(self, size: int) -> Iterator[str]:
        """New pieces in order until there are ``size`` in all or no pair is left."""
        while len(self.pieces) < size and self.heap:
            negative_score, piece, _, pair = heapq.heappop(self.heap)
            score = self._score(pair)
            if score != -negative_score:
                if score < -negative_score:
                    self._push(pair)
                continue
            if self.pair_counts.get(pair, 0) < self.min_count:
                continue
            new = self.ids.get(piece)
            if new is None:  # else another pair has made the same string before
                new = self.ids[piece] = len(self.pieces)
                self.pieces.append(piece)
                yield piece
            self._join(pair, new)

    def _join(self, pair: tuple[int, int], new: int) -> None:
        first, second = pair
        changes: dict[tuple[int, int], int] = {}
        n_joined = 0
        for index in self.where.pop(pair):
            old = self.words[index]
            symbols = _replaced(old, first, second, new)
            if len(symbols) == len(old):
                continue
            self.words[index] = symbols
            weight = self.weights[index]
            n_joined += weight * (len(old) - len(symbols))
            for neighbours in zip(old, old[1:], strict=False):
                changes[neighbours] = changes.get(neighbours, 0) - weight
            for neighbours in zip(symbols, symbols[1:], strict=False):
                changes[neighbours] = changes.get(neighbours, 0) + weight
                if new in neighbours:
                    self.where.setdefault(neighbours, []).append(index)
        self.symbol_counts[first] -= n_joined
        self.symbol_counts[second] -= n_joined
        self.symbol_counts[new] += n_joined
        self._apply(changes)
        if self.likelihood:
            for neighbours in sorted(self.touching[first] | self.touching[second]):
                self._push(neighbours)

    def _apply(self, changes: dict[tuple[int, int], int]) -> None:
        for pair, change in changes.items():
            if not change:
                continue
            count = self.pair_counts.get(pair, 0) + change
            if count:
                self.pair_counts[pair] = count
                self._touch(pair)
                if change > 0:
                    self._push(pair)
            else:
                del self.pair_counts[pair]
                self.where.pop(pair, None)
                if self.likelihood:
                    self.touching[pair[0]].discard(pair)
                    self.touching[pair[1]].discard(pair)


def joined(left: str, right: str) -> str:
    """``wa`` and ``##nt`` -> ``want``."""
    return left + right[len(PREFIX) :]


def _replaced(symbols: list[int], first: int, second: int, new: int) -> list[int]:
    """Each ``first second`` from the left as ``new``."""
    result: list[int] = []
    i, last = 0, len(symbols) - 1
    while i <= last:
        if i < last and symbols[i] == first and symbols[i + 1] == second:
            result.append(new)
            i += 2
        else:
            result.append(symbols[i])
            i += 1
    return result
