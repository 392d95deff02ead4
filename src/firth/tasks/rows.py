"""Convert texts to sequences; long texts become windows by one rule for all tasks.

A window starts ``stride`` tokens after the previous one; the last one ends where the text ends. Source:
google-research/bert run_squad.py (specification of tasks §4), where it applies to contexts only.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from firth.data.batch import Batch, Target
from firth.errors import ConfigError
from firth.packed import Rows, Tokens, Words
from firth.tasks.config import WindowConfig
from firth.text.layouts import Layout
from firth.text.open_words import OpenWords
from firth.text.shared_words import shared_words
from firth.text.tokenizer import Encoded, Tokenizer

# Default sequence length of a system that can read any length.
_DEFAULT_LENGTH = 512
# Tokens of text that a sequence has to hold besides the special ones of a pair.
LEAST_WORDS = 8
# The segments of a pair; tokens of marked words are in as many more.
N_SEGMENTS = 2


@dataclass(frozen=True, slots=True)
class RowWords:
    """Words of a sequence: ``pieces`` (W, 2), first and last token of each; ``asked`` (M,), the words to predict."""

    pieces: np.ndarray
    asked: np.ndarray


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence: ``ids`` (T,) with special tokens, ``segments`` (T,). ``cut``: a part of its text is in no sequence.

    ``chars`` (T, C): characters of each token, for systems that read them. ``stored`` (T,): index of each token's
    vector, where vectors on disk replace the encoder (``finetuning/features.py``).
    """

    ids: np.ndarray
    segments: np.ndarray
    words: RowWords | None = None
    cut: bool = False
    chars: np.ndarray | None = None
    stored: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """One record as a task reads it: one or more sequences, and the targets.

    ``candidates``: number of sequences of each text (one text, or one per choice). ``targets`` by loss term: indices
    (m,) and labels (m, …); an index counts texts, sequences or target words of this example, as the term does
    (``TERMS``). ``about``: what the task needs to decode outputs into an answer.
    """

    rows: tuple[Row, ...]
    candidates: tuple[int, ...]
    targets: dict[str, tuple[np.ndarray, np.ndarray]]
    about: Any = None

    @property
    def windows(self) -> int:
        """The number of windows; of several texts, the largest."""
        return max(self.candidates)

    @property
    def cut(self) -> bool:
        """Whether a part of it is not read."""
        return any(row.cut for row in self.rows)


# The outputs of each sequence of an example, by name; the first axis counts the sequence's units.
Outputs = Sequence[Mapping[str, np.ndarray]]

# What the indices of a term count.
TERMS = {
    "label": "candidates",
    "value": "candidates",
    "choice": "candidates",
    "tag": "words",
    "start": "rows",
    "end": "rows",
}


def target(places: Sequence[int], labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Convert indices and labels to the arrays that an example holds."""
    return np.asarray(places, np.int64), np.asarray(labels)


def spans(n: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Windows ``[start, end)`` of at most ``room`` over ``n`` tokens; one empty window if there are none."""
    found, begin = list[tuple[int, int]](), 0
    while True:
        end = min(begin + room, n)
        found.append((begin, end))
        if end == n:
            return found
        begin += min(room, stride)


@dataclass(frozen=True, slots=True)
class PairText:
    """One text of a pair, or a part of it: its token ids (n,).

    ``shared`` (n,): which tokens belong to words of the other text; None: they are not marked.
    """

    ids: Sequence[int]
    shared: Bool[np.ndarray, " n"] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, begin: int, end: int) -> "PairText":
        """The tokens ``[begin, end)``."""
        return PairText(self.ids[begin:end], None if self.shared is None else self.shared[begin:end])


class RowMaker:
    """Builds sequences in a system's layout. ``noted`` counts texts that did not fit, by what was done with them.

    ``characters``: whether to keep the characters of words, if the tokenizer has them; they take 100 bytes per token.
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
            raise ConfigError(
                f"windows.length={self.length}: this model reads sequences of at most {max_length} tokens"
            )
        if self.length < layout.n_special_pair + LEAST_WORDS:
            raise ConfigError(f"windows.length={self.length}: expected at least {layout.n_special_pair + LEAST_WORDS}")
        self.noted: Counter[str] = Counter()

    def stride(self, room: int) -> int:
        """Tokens between the starts of neighbouring windows of ``room`` tokens."""
        return min(self.windows.stride or max(room // 2, 1), room)

    def pair_texts(self, pairs: Sequence[tuple[str, str]], *, mark: bool) -> Iterator[tuple[PairText, PairText]]:
        """Tokenise pairs, each text once however many it is part of. ``mark``: the words that both texts have."""
        known = list(dict.fromkeys(chain.from_iterable(pairs)))
        if not mark:
            plain = dict(zip(known, map(PairText, self.tokenizer.ids_many(known)), strict=True))
            yield from ((plain[a], plain[b]) for a, b in pairs)
            return
        encoded = dict(zip(known, self.tokenizer.encode_many(known), strict=True))
        yield from (marked_texts((a, encoded[a]), (b, encoded[b])) for a, b in pairs)

    def single(self, ids: Sequence[int]) -> list[Row]:
        """Build the sequences of one text."""
        found = self._windows(len(ids), self.length - self.layout.n_special)
        cut = found[-1][1] < len(ids)
        return [self.row(self.layout.single(ids[a:b]), cut=cut) for a, b in found]

    def pair(self, a: PairText, b: PairText, *, window_first: bool | None = None) -> list[Row]:
        """Build the sequences of a pair: windows over the longer text (or ``window_first``), each with the other text.

        The other text may take half of a sequence, or all that the windowed text leaves; the rest is cut and counted.
        """
        room = self.length - self.layout.n_special_pair
        if len(a) + len(b) <= room:
            return [self.pair_row(a, b)]
        if self.windows.long == "cut":
            self.noted["cut"] += 1
            n_a, n_b = cut_pair(len(a), len(b), room)
            return [self.pair_row(a.part(0, n_a), b.part(0, n_b), cut=True)]
        first = len(a) > len(b) if window_first is None else window_first
        long, short = (a, b) if first else (b, a)
        most = max(room // 2, room - len(long))
        cut = len(short) > most
        if cut:
            self.noted["one text of a pair cut"] += 1
            short = short.part(0, most)
        parts = [long.part(x, y) for x, y in self._windows(len(long), room - len(short))]
        return [self.pair_row(*((part, short) if first else (short, part)), cut=cut) for part in parts]

    def both_orders(self, a: PairText, b: PairText) -> list[Row]:
        """Build a pair as two sequences, one per order of its texts; what does not fit is cut, as for ``pair``."""
        room = self.length - self.layout.n_special_pair
        cut = len(a) + len(b) > room
        self.noted.update(["cut"] if cut else [])
        rows = []
        for x, y in ((a, b), (b, a)):
            n_x, n_y = cut_pair(len(x), len(y), room)
            rows.append(self.pair_row(x.part(0, n_x), y.part(0, n_y), cut=cut))
        return rows

    def apart(self, a: PairText, b: PairText) -> list[Row]:
        """Build a pair as two sequences, one per text; segment 1 marks the second, so that a batch can pair them."""
        (first,), (second,) = self.single(a.ids), self.single(b.ids)
        return [first, replace(second, segments=np.ones_like(second.segments))]

    def _windows(self, n: int, room: int) -> list[tuple[int, int]]:
        if n <= room:
            return [(0, n)]
        if self.windows.long == "cut":
            self.noted["cut"] += 1
            return [(0, room)]
        self.noted["read in windows"] += 1
        return spans(n, room, self.stride(room))

    def pair_row(self, a: PairText, b: PairText, *, cut: bool = False) -> Row:
        """The sequence of a pair that fits."""
        return self.row(*marked_pair(self.layout, a, b), cut=cut)

    def row(
        self,
        ids: Sequence[int],
        segments: Sequence[int] | None = None,
        words: RowWords | None = None,
        *,
        cut: bool = False,
    ) -> Row:
        """A sequence of ids with special tokens; keeps the characters of words outside the vocabulary."""
        if not isinstance(self.tokenizer, OpenWords):
            return make_row(ids, segments, words, cut=cut)
        chars = self.tokenizer.characters(ids) if self.characters else None
        known = np.where(np.asarray(ids) < self.tokenizer.size, ids, self.tokenizer.unk_id)
        return make_row(known, segments, words, cut=cut, chars=chars)


def marked_texts(first: tuple[str, Encoded], second: tuple[str, Encoded]) -> tuple[PairText, PairText]:
    """The texts of a pair, each given with its tokens, with the words that both have marked."""
    a, b = shared_words(first, second)
    return PairText(first[1].ids, a), PairText(second[1].ids, b)


def marked_pair(layout: Layout, a: PairText, b: PairText) -> tuple[list[int], list[int]]:
    """The sequence of a pair, and its segments: the tokens of words to mark have their own."""
    ids, segments = layout.pair(a.ids, b.ids)
    for begin, text in ((len(layout.first), a), (layout.begin_of_second(len(a)), b)):
        for at in () if text.shared is None else np.flatnonzero(text.shared).tolist():
            segments[begin + at] += N_SEGMENTS
    return ids, segments


def make_row(
    ids: Sequence[int] | np.ndarray,
    segments: Sequence[int] | np.ndarray | None = None,
    words: RowWords | None = None,
    *,
    cut: bool = False,
    chars: np.ndarray | None = None,
) -> Row:
    """A sequence as arrays; without ``segments`` all tokens are in segment 0."""
    kinds = np.zeros(len(ids), np.int8) if segments is None else np.asarray(segments, np.int8)
    return Row(np.asarray(ids, np.int32), kinds, words, cut, chars)


def unknown_share(examples: Sequence[Example], tokenizer: Tokenizer) -> float:
    """The share of unknown tokens among the tokens of some examples' texts, so without the other special ones.

    Words whose characters are read are known.
    """
    rows = [row for example in examples for row in example.rows]
    n_unknown = sum(int(np.count_nonzero(row.ids == tokenizer.unk_id)) for row in rows if row.chars is None)
    n_known = sum(int(np.count_nonzero(~np.isin(row.ids, tokenizer.special_ids))) for row in rows)
    return n_unknown / max(n_unknown + n_known, 1)


def unreadable(examples: Sequence[Example], tokenizer: Tokenizer) -> int:
    """The number of examples without a known token: they have only unknown and other special ones."""
    return sum(
        any((row.ids == tokenizer.unk_id).any() for row in example.rows)
        # With characters any word is read.
        and all(row.chars is None and np.isin(row.ids, tokenizer.special_ids).all() for row in example.rows)
        for example in examples
    )


def cut_pair(n_a: int, n_b: int, room: int) -> tuple[int, int]:
    """How many tokens of each text of a pair to keep: the longer text loses its last token; in ties the second does.

    Source: google-research/bert run_classifier.py, _truncate_seq_pair.
    """
    over = max(n_a + n_b - room, 0)
    # First the longer text alone shrinks, down to the other.
    from_a, from_b = min(over, max(n_a - n_b, 0)), min(over, max(n_b - n_a, 0))
    left = over - from_a - from_b
    return n_a - from_a - left // 2, n_b - from_b - (left + 1) // 2


def collate(examples: Sequence[Example], place: str = "", *, next_tokens: bool = False) -> Batch:
    """Collate examples into one micro-batch. ``next_tokens``: add term ``lm`` to those of the task."""
    rows = [row for example in examples for row in example.rows]
    segments = np.concatenate([row.segments for row in rows]).astype(np.int64)
    tokens = Tokens(
        Rows.from_lengths([len(row.ids) for row in rows]),
        torch.from_numpy(np.concatenate([row.ids for row in rows]).astype(np.int64)),
        # Encoders assume segment 0 where none is given.
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
    """Next-token targets: each token that has a successor in its sequence, and the successor."""
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
    """Concatenate an array of all sequences; None if any sequence lacks it."""
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
    """The slice of each run when runs of the given lengths are concatenated."""
    return [slice(a, b) for a, b in pairwise(np.cumsum([0, *lengths]).tolist())]


def merge_outputs(rows: Sequence[np.ndarray], how: str) -> np.ndarray:
    """Combine the outputs of a text's sequences: mean, maximum or sum."""
    if how == "sum":
        return np.sum(rows, 0)
    return np.mean(rows, 0) if how == "mean" else np.max(rows, 0)
