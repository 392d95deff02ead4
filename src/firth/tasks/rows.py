"""Texts to sequences: long texts become windows, by one rule for all tasks.

A window begins ``stride`` pieces after the one before; the last one ends where the text ends. Source:
google-research/bert run_squad.py (specification of tasks §4), which has it for contexts alone.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from firth.data.batch import Batch, Target
from firth.errors import ConfigError
from firth.packed import Rows, Tokens, Words
from firth.tasks.config import WindowConfig
from firth.text.layouts import Layout
from firth.text.open_words import OpenWords
from firth.text.tokenizer import Tokenizer

# Rows of a system that can read any length, where nothing else is said.
_DEFAULT_LENGTH = 512


@dataclass(frozen=True, slots=True)
class RowWords:
    """Words of a row: ``pieces`` (W, 2), places of the first and the last; ``asked`` (M,), those to be answered."""

    pieces: np.ndarray
    asked: np.ndarray


@dataclass(frozen=True, slots=True)
class Row:
    """One row: ``ids`` (T,) with special pieces, ``segments`` (T,). ``cut``: a part of its text is in no row.

    ``chars`` (T, C): of each token, where the tokens are words that are read by their characters. ``stored`` (T,): the
    number of each token's vector, where vectors on disk stand in for an encoder (``finetuning/features.py``).
    """

    ids: np.ndarray
    segments: np.ndarray
    words: RowWords | None = None
    cut: bool = False
    chars: np.ndarray | None = None
    stored: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """What a task reads of one record: one or more rows, and what is to be found.

    ``candidates``: how many rows each text has (one text, or one for each choice). ``targets`` by term: places
    (m,) and labels (m, …); a place counts texts, rows or asked words of this example, as the term does
    (``TERMS``). ``about``: what the task needs to turn outputs into an answer.
    """

    rows: tuple[Row, ...]
    candidates: tuple[int, ...]
    targets: dict[str, tuple[np.ndarray, np.ndarray]]
    about: Any = None

    @property
    def windows(self) -> int:
        """In how many windows it is read; of several texts, the longest."""
        return max(self.candidates)

    @property
    def cut(self) -> bool:
        """Whether a part of it is not read."""
        return any(row.cut for row in self.rows)


# The outputs of each row of an example, by name; the first axis counts the row's units.
Outputs = Sequence[Mapping[str, np.ndarray]]

# What the places of a term count.
TERMS = {
    "label": "candidates",
    "value": "candidates",
    "choice": "candidates",
    "tag": "words",
    "start": "rows",
    "end": "rows",
}


def target(places: Sequence[int], labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Places and labels as an example holds them."""
    return np.asarray(places, np.int64), np.asarray(labels)


def spans(n: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Windows ``[begin, end)`` of at most ``room`` over ``n`` pieces; one empty window if there are none."""
    found, begin = list[tuple[int, int]](), 0
    while True:
        end = min(begin + room, n)
        found.append((begin, end))
        if end == n:
            return found
        begin += min(room, stride)


class RowMaker:
    """Makes rows of a system's own layout. ``noted`` counts texts that did not fit, by what was done with them.

    ``characters``: whether something reads those of words, if the tokenizer has them; they take 100 bytes a token.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        layout: Layout,
        windows: WindowConfig,
        max_length: int | None,
        *,
        characters: bool = True,
    ):
        self.tokenizer, self.layout, self.windows, self.characters = tokenizer, layout, windows, characters
        self.length = windows.length or max_length or _DEFAULT_LENGTH
        if max_length is not None and self.length > max_length:
            raise ConfigError(f"windows.length={self.length}: this model reads rows of at most {max_length}")
        if self.length < layout.n_special_pair + 8:
            raise ConfigError(f"windows.length={self.length}: expected at least {layout.n_special_pair + 8}")
        self.noted: Counter[str] = Counter()

    def stride(self, room: int) -> int:
        """Pieces between the begins of neighbouring windows that have ``room`` pieces of text."""
        return min(self.windows.stride or max(room // 2, 1), room)

    def single(self, ids: Sequence[int]) -> list[Row]:
        """The rows of one text."""
        found = self._windows(len(ids), self.length - self.layout.n_special)
        cut = found[-1][1] < len(ids)
        return [self.row(self.layout.single(ids[a:b]), cut=cut) for a, b in found]

    def pair(self, a: Sequence[int], b: Sequence[int], *, window_first: bool | None = None) -> list[Row]:
        """The rows of a pair: windows over the longer text (or the one that is said), the other in each of them.

        The other may take half of a row, or all that the windowed text leaves; what is beyond is left out and noted.
        """
        room = self.length - self.layout.n_special_pair
        if len(a) + len(b) <= room:
            return [self._pair(a, b)]
        if self.windows.long == "cut":
            self.noted["cut"] += 1
            n_a, n_b = cut_pair(len(a), len(b), room)
            return [self._pair(a[:n_a], b[:n_b], cut=True)]
        first = len(a) > len(b) if window_first is None else window_first
        long, short = (a, b) if first else (b, a)
        most = max(room // 2, room - len(long))
        cut = len(short) > most
        if cut:
            self.noted["one text of a pair cut"] += 1
            short = short[:most]
        parts = [long[x:y] for x, y in self._windows(len(long), room - len(short))]
        return [self._pair(part, short, cut) if first else self._pair(short, part, cut) for part in parts]

    def both_orders(self, a: Sequence[int], b: Sequence[int]) -> list[Row]:
        """A pair as two rows, each of its texts first in one of them; what does not fit is cut, as for ``pair``."""
        room = self.length - self.layout.n_special_pair
        cut = len(a) + len(b) > room
        self.noted.update(["cut"] if cut else [])
        rows = []
        for x, y in ((a, b), (b, a)):
            n_x, n_y = cut_pair(len(x), len(y), room)
            rows.append(self._pair(x[:n_x], y[:n_y], cut))
        return rows

    def apart(self, a: Sequence[int], b: Sequence[int]) -> list[Row]:
        """A pair as two rows, a text each; that all of the second is of segment 1 tells which rows belong together."""
        (first,), (second,) = self.single(a), self.single(b)
        return [first, replace(second, segments=np.ones_like(second.segments))]

    def _windows(self, n: int, room: int) -> list[tuple[int, int]]:
        if n <= room:
            return [(0, n)]
        if self.windows.long == "cut":
            self.noted["cut"] += 1
            return [(0, room)]
        self.noted["read in windows"] += 1
        return spans(n, room, self.stride(room))

    def _pair(self, a: Sequence[int], b: Sequence[int], cut: bool = False) -> Row:
        return self.row(*self.layout.pair(a, b), cut=cut)

    def row(
        self,
        ids: Sequence[int],
        segments: Sequence[int] | None = None,
        words: RowWords | None = None,
        *,
        cut: bool = False,
    ) -> Row:
        """A row of ids that the layout has framed; of words outside the vocabulary it keeps the characters."""
        if not isinstance(self.tokenizer, OpenWords):
            return make_row(ids, segments, words, cut=cut)
        chars = self.tokenizer.characters(ids) if self.characters else None
        known = np.where(np.asarray(ids) < self.tokenizer.size, ids, self.tokenizer.unk_id)
        return make_row(known, segments, words, cut=cut, chars=chars)


def make_row(
    ids: Sequence[int] | np.ndarray,
    segments: Sequence[int] | None = None,
    words: RowWords | None = None,
    *,
    cut: bool = False,
    chars: np.ndarray | None = None,
) -> Row:
    """A row as arrays; without ``segments`` all are of the first."""
    kinds = np.zeros(len(ids), np.int8) if segments is None else np.asarray(segments, np.int8)
    return Row(np.asarray(ids, np.int32), kinds, words, cut, chars)


def cut_pair(n_a: int, n_b: int, room: int) -> tuple[int, int]:
    """How many pieces of each text of a pair stay: the last of the longer goes, in ties that of the second.

    Source: google-research/bert run_classifier.py, _truncate_seq_pair.
    """
    over = max(n_a + n_b - room, 0)
    # First the longer one alone shrinks, down to the other.
    from_a, from_b = min(over, max(n_a - n_b, 0)), min(over, max(n_b - n_a, 0))
    left = over - from_a - from_b
    return n_a - from_a - left // 2, n_b - from_b - (left + 1) // 2


def collate(examples: Sequence[Example], place: str = "", *, next_tokens: bool = False) -> Batch:
    """Examples as one micro-batch. ``next_tokens``: term ``lm`` beside those of the task."""
    rows = [row for example in examples for row in example.rows]
    segments = np.concatenate([row.segments for row in rows]).astype(np.int64)
    tokens = Tokens(
        Rows.from_lengths([len(row.ids) for row in rows]),
        torch.from_numpy(np.concatenate([row.ids for row in rows]).astype(np.int64)),
        # All of the first segment is what encoders take for granted.
        torch.from_numpy(segments) if segments.any() else None,
        _words(rows),
        _joined([row.chars for row in rows], np.int32),
        _joined([row.stored for row in rows], np.int64),
    )
    candidates = torch.tensor([n for example in examples for n in example.candidates])
    targets = {term: _target(examples, term) for term in examples[0].targets}
    if next_tokens:
        targets["lm"] = following(tokens)
    return Batch(tokens, targets, place, rows_per_example=candidates)


def following(tokens: Tokens) -> Target:
    """Each token that has one after it in its row, and that."""
    has_next = torch.ones(tokens.rows.n_tokens, dtype=torch.bool)
    has_next[tokens.rows.last] = False
    index = has_next.nonzero()[:, 0]
    return Target(index, tokens.ids.index_select(0, index + 1))


def _words(rows: Sequence[Row]) -> Words | None:
    found = [row.words for row in rows if row.words is not None]
    if len(found) < len(rows):
        return None
    token_starts = np.cumsum([0, *(len(row.ids) for row in rows)])
    word_starts = np.cumsum([0, *(len(words.pieces) for words in found)])
    pieces = np.concatenate([words.pieces + start for words, start in zip(found, token_starts, strict=False)])
    asked = np.concatenate([words.asked + start for words, start in zip(found, word_starts, strict=False)])
    return Words(
        first=torch.from_numpy(np.ascontiguousarray(pieces[:, 0])),
        last=torch.from_numpy(np.ascontiguousarray(pieces[:, 1])),
        rows=Rows.from_lengths([len(words.pieces) for words in found]),
        asked=torch.from_numpy(asked),
        asked_rows=Rows.from_lengths([len(words.asked) for words in found]),
    )


def _joined(arrays: Sequence[np.ndarray | None], dtype: type[np.integer[Any]]) -> Tensor | None:
    """What all rows have, one after the other; None where some row lacks it."""
    found = [array for array in arrays if array is not None]
    return torch.from_numpy(np.concatenate(found).astype(dtype)) if len(found) == len(arrays) else None


def _target(examples: Sequence[Example], term: str) -> Target:
    count = {
        "candidates": lambda e: len(e.candidates),
        "rows": lambda e: len(e.rows),
        "words": lambda e: sum(len(row.words.asked) for row in e.rows if row.words is not None),
    }[TERMS[term]]
    starts = np.cumsum([0, *map(count, examples)])
    pairs = [example.targets[term] for example in examples]
    index = np.concatenate([places + start for (places, _), start in zip(pairs, starts, strict=False)])
    return Target(torch.from_numpy(index), torch.from_numpy(np.concatenate([labels for _, labels in pairs])))


def split_rows(lengths: Sequence[int]) -> list[slice]:
    """Where each of several runs of the given lengths stands when they are one after the other."""
    return [slice(a, b) for a, b in pairwise(np.cumsum([0, *lengths]).tolist())]


def merge_outputs(rows: Sequence[np.ndarray], how: str) -> np.ndarray:
    """The outputs of a text's rows as one: their mean, maximum or sum."""
    if how == "sum":
        return np.sum(rows, 0)
    return np.mean(rows, 0) if how == "mean" else np.max(rows, 0)
