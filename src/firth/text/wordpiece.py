"""Train a WordPiece vocabulary: count words, then repeatedly merge the best pair of tokens.

Source: Schuster & Nakajima 2012 (likelihood score); the frequency score is that of byte-pair encoding.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from tokenizers import normalizers, pre_tokenizers

from firth.text.merging import Merger, choose_alphabet, known_words, too_large
from firth.text.tokenizer_kinds import PREFIX, SPECIALS
from firth.text.words import MARK, build_marked_pre_tokenizer, build_normalizer, build_pre_tokenizer

Score = Literal["frequency", "likelihood"]

MAX_TYPES = 5_000_000

# str.split() treats these control characters as white space; the tokenizer drops them.
_NOT_SPACE = re.compile("[\x0b\x0c\x1c-\x1f\x85]")


class WordSplitter:
    """Counts the words of texts as the future tokenizer will see them.

    ``marked``: with a ``▁`` for the white space before a word, as in BPE.
    """

    def __init__(self, *, lowercase: bool, keep_accents: bool = False, marked: bool = False):
        self.lowercase, self.keep_accents, self.marked = lowercase, keep_accents, marked
        self._normalizer: normalizers.Normalizer = build_normalizer(
            lowercase=lowercase, keep_accents=keep_accents, google=False
        )
        self._pre_tokenizer: pre_tokenizers.PreTokenizer = (
            build_marked_pre_tokenizer() if marked else build_pre_tokenizer()
        )

    def count(self, texts: Iterable[str]) -> Counter[str]:
        """Count words over all texts.

        Neither normalising nor splitting looks across white space, so each distinct run of other characters
        goes through the library once.
        """
        runs: Counter[str] = Counter()
        for text in texts:
            runs.update((_NOT_SPACE.sub("", text) if _NOT_SPACE.search(text) else text).split())
        words: Counter[str] = Counter()
        if not runs:
            return words
        # A newline is kept and never part of a run, so one call normalises all runs.
        normal = self._normalizer.normalize_str("\n".join(runs))
        mark = MARK if self.marked else ""
        if self.marked:
            normal = normal.replace(MARK, "_")  # as the future tokenizer's normaliser does
        for run, count in zip(normal.split("\n"), runs.values(), strict=True):
            if run.isascii() and run.isalnum():
                words[mark + run] += count
            elif run:
                for word, _ in self._pre_tokenizer.pre_tokenize_str(mark + run):
                    words[word] += count
        return words


@dataclass(slots=True)
class WordCounts:
    """Word counts with bounded memory; counts what it drops."""

    max_types: int = MAX_TYPES
    counts: Counter[str] = field(default_factory=Counter)
    pruned_types: int = 0
    pruned_occurrences: int = 0

    def add(self, counts: Mapping[str, int]) -> None:
        """Add counts; while there are too many words, drop the rarest (all of count 1, then 2, ...)."""
        self.counts.update(counts)
        threshold = 0
        while len(self.counts) > self.max_types:
            threshold += 1
            rare = [word for word, count in self.counts.items() if count <= threshold]
            for word in rare:
                self.pruned_occurrences += self.counts.pop(word)
            self.pruned_types += len(rare)


def text_blocks(texts: Iterable[str], block_characters: int = 4_000_000) -> Iterator[list[str]]:
    """Group texts into lists of about ``block_characters`` characters: one unit of work."""
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


def train_wordpiece(
    counts: Mapping[str, int],
    size: int,
    *,
    score: Score = "frequency",
    min_count: int = 2,
    alphabet_limit: int = 6000,
    on_progress: Callable[[int], None] | None = None,
) -> list[str]:
    """Train a vocabulary of exactly ``size`` tokens: special tokens, alphabet, merged tokens in order.

    ``score``: "frequency" merges the most frequent pair, "likelihood" the one with the largest
    count(ab) / (count(a) count(b)); ties go to the smaller strings. Pairs seen fewer than ``min_count``
    times are never merged. ``on_progress`` periodically receives the number of tokens.
    Raises TokenizerError if the text supports fewer tokens, or the size cannot hold the alphabet.
    """
    words = known_words(counts)
    forms = _forms(words)
    alphabet = choose_alphabet(words, forms, len(SPECIALS), size, alphabet_limit)
    pieces = [*SPECIALS, *alphabet]
    for piece in islice(joined_pieces(words, pieces, score, min_count), min(size - len(pieces), sys.maxsize)):
        pieces.append(piece)
        if on_progress is not None and len(pieces) % 50 == 0:
            on_progress(len(pieces))
    if len(pieces) < size:
        largest = len(pieces)
        if choose_alphabet(words, forms, len(SPECIALS), largest, alphabet_limit) != alphabet:
            # A smaller vocabulary may keep fewer characters, and therefore support even fewer tokens.
            train_wordpiece(words, largest, score=score, min_count=min_count, alphabet_limit=alphabet_limit)
        raise too_large(size, largest)
    return pieces


def _forms(words: Iterable[str]) -> dict[str, list[str]]:
    """The tokens that each character needs: at the start of a word, and inside."""
    first: set[str] = set()
    inner: set[str] = set()
    for word in words:
        first.add(word[0])
        inner.update(word[1:])
    return {c: [c] * (c in first) + [PREFIX + c] * (c in inner) for c in first | inner}


def joined_pieces(words: Mapping[str, int], pieces: Iterable[str], score: Score, min_count: int) -> Iterator[str]:
    """Yield new tokens in the order of merging, until none is left.

    A word with a character outside ``pieces`` is ignored: it will be [UNK].
    """
    known = set(pieces)
    spelt = (([word[0], *(PREFIX + c for c in word[1:])], n) for word, n in words.items())
    merger = Merger(
        ((symbols, n) for symbols, n in spelt if known.issuperset(symbols)),
        join=joined,
        tie=lambda left, right: (joined(left, right), left),
        likelihood=score == "likelihood",
        min_count=min_count,
    )
    for left, right in merger.merges():
        piece = joined(left, right)
        if piece not in known:
            known.add(piece)
            yield piece


def joined(left: str, right: str) -> str:
    """Merge ``wa`` and ``##nt`` into ``want``."""
    return left + right[len(PREFIX) :]
