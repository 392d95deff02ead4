"""Shared parts of WordPiece and BPE training: the alphabet, and repeated merges of the best pair.

Only counts and strings matter, so a text gives the same vocabulary on every machine.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from firth.errors import TokenizerError
from firth.text.tokenizer import WORD_LIMIT

_ENOUGH = 0.999  # of all characters: rarer ones are dropped if the alphabet exceeds half of the vocabulary
_NEEDED = 0.99  # of all characters: with fewer, too many words would be unknown


def known_words(counts: Mapping[str, int]) -> dict[str, int]:
    """The words that a vocabulary is trained on: those that are not too long; TokenizerError if there are none."""
    words = {word: n for word, n in counts.items() if 0 < len(word) <= WORD_LIMIT and n > 0}
    if not words:
        raise TokenizerError(f"no words of at most {WORD_LIMIT} characters; give text with words in it")
    return words


def too_large(size: int, largest: int) -> TokenizerError:
    """The error for a vocabulary larger than the text supports."""
    return TokenizerError(
        f"the text supports at most {largest} tokens, not {size}; pass --size {largest} or give more text"
    )


def choose_alphabet(
    words: Mapping[str, int], forms: Mapping[str, Sequence[str]], n_special: int, size: int, limit: int
) -> list[str]:
    """Choose single-character tokens, by count, then code point: as many as fit into ``size`` tokens.

    ``forms``: the tokens that each character needs. Raises TokenizerError if the size is too small for them.
    """
    counts: Counter[str] = Counter()
    for word, n in words.items():
        for character in word:
            counts[character] += n
    ranked = sorted(counts, key=lambda c: (-counts[c], c))
    room, total, covered = size - n_special, counts.total(), 0
    pieces: list[str] = []
    for character in ranked[:limit]:
        n_pieces = len(pieces) + len(forms[character])
        if n_pieces > room or (n_pieces > room // 2 and covered >= _ENOUGH * total):
            break
        pieces += forms[character]
        covered += counts[character]
    if covered < _NEEDED * total:
        raise TokenizerError(_too_small(ranked, counts, forms, n_special, size, limit))
    return pieces


def _too_small(
    ranked: list[str], counts: Counter[str], forms: Mapping[str, Sequence[str]], needed: int, size: int, limit: int
) -> str:
    covered, n_characters = 0, 0
    for character in ranked:
        if covered >= _NEEDED * counts.total():
            break
        needed += len(forms[character])
        covered += counts[character]
        n_characters += 1
    if n_characters > limit:
        return (
            f"{n_characters} characters are needed for {_NEEDED:.0%} of this text, more than "
            f"alphabet_limit={limit}; raise it"
        )
    return (
        f"{size} tokens cannot hold the alphabet of this text: {needed} are needed for {_NEEDED:.0%} of its "
        f"characters; pass a --size well above {needed}"
    )


class Merger:
    """Repeatedly merges the best pair of symbols: words as symbol lists, pair counts, and a heap of candidates.

    ``join``: two symbols -> the merged one. ``tie``: among pairs with equal scores, the one with the
    smallest ``tie(left, right)`` comes first. A heap entry may be out of date; it is checked when popped. So a
    falling score needs no work, and only a rising one is pushed again.
    """

    def __init__(
        self,
        words: Iterable[tuple[Sequence[str], int]],
        *,
        join: Callable[[str, str], str],
        tie: Callable[[str, str], tuple[Any, Any]],
        likelihood: bool = False,
        min_count: int = 2,
    ):
        self.join, self.tie = join, tie
        self.likelihood = likelihood
        self.min_count = max(min_count, 1)
        self.pieces: list[str] = []
        self.ids: dict[str, int] = {}
        self.words: list[list[int]] = []
        self.weights: list[int] = []
        self.symbol_counts: Counter[int] = Counter()
        self.pair_counts: dict[tuple[int, int], int] = {}
        self.where: dict[tuple[int, int], list[int]] = {}
        self.touching: dict[int, set[tuple[int, int]]] = {}
        self.heap: list[tuple[float, tuple[Any, Any], tuple[int, int]]] = []
        self._load(words)

    def _id(self, piece: str) -> int:
        if piece not in self.ids:
            self.ids[piece] = len(self.pieces)
            self.pieces.append(piece)
        return self.ids[piece]

    def _load(self, words: Iterable[tuple[Sequence[str], int]]) -> None:
        for word, weight in words:
            symbols = [self._id(symbol) for symbol in word]
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
            tie = self.tie(self.pieces[pair[0]], self.pieces[pair[1]])
            heapq.heappush(self.heap, (-self._score(pair), tie, pair))

    def merges(self) -> Iterator[tuple[str, str]]:
        """Yield pairs in the order of merging, until none is left."""
        while self.heap:
            negative_score, _, pair = heapq.heappop(self.heap)
            score = self._score(pair)
            if score != -negative_score:
                if score < -negative_score:
                    self._push(pair)
                continue
            if self.pair_counts.get(pair, 0) < self.min_count:
                continue
            left, right = self.pieces[pair[0]], self.pieces[pair[1]]
            yield left, right
            # Another pair may already have produced the same string: both share one symbol.
            self._join(pair, self._id(self.join(left, right)))

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


def _replaced(symbols: list[int], first: int, second: int, new: int) -> list[int]:
    """Replace each ``first second``, from the left, by ``new``."""
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
