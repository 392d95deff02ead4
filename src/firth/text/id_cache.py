"""Tokenize a corpus faster: cache the ids of each distinct run of characters."""

import json
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Int

from firth.text.tokenizer import Tokenizer, whole_text
from firth.text.words import (
    build_blank_splitter,
    build_marked_normalizer,
    build_marked_pre_tokenizer,
    build_normalizer,
    build_pre_tokenizer,
)

# Size of the cache: 35 MB for English, 45 MB for long runs. A full cache is cleared: text changes, and frequent runs
# soon return.
MOST_RUNS = 250_000
MOST_CHARACTERS = 8_000_000
# Punctuation marks that are words anyway: with spaces around them there are half as many distinct runs.
_MARKS = tuple((mark, f" {mark} ") for mark in ".,\"'()-:;")
_RUNS_AT_ONCE = 1000


class IdCache:
    """Tokenises sentences with a cache of the ids of each run of characters between white space.

    In BERT's tokenizers, published or built here, neither normalising nor word splitting looks across white space; with
    any other tokenizer nothing is cached.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._remembers, marks_alone = _splits_at_blanks(tokenizer)
        self._marks = _MARKS if marks_alone else ()
        self._dtype = np.uint16 if tokenizer.size <= 1 << 16 else np.uint32
        self._forget()

    def _forget(self) -> None:
        self._numbers = _Numbers()
        self._n_characters = 0
        self._ids = np.zeros(0, self._dtype)
        self._ends = np.zeros(1, np.int64)  # start of the ids of run n, and the end

    def ids_many(self, sentences: Sequence[str]) -> tuple[np.ndarray, Int[np.ndarray, " S"]]:
        """Tokenise sentences: all ids concatenated, uint16 (uint32 for large vocabularies), and counts by sentence."""
        if not sentences:
            return np.zeros(0, self._dtype), np.zeros(0, np.int64)
        if not self._remembers:
            found = self._tokenizer.ids_many(sentences)
            sizes = np.array([len(ids) for ids in found], np.int64)
            return np.fromiter((number for ids in found for number in ids), self._dtype, int(sizes.sum())), sizes
        if len(self._numbers) > MOST_RUNS or self._n_characters > MOST_CHARACTERS:
            self._forget()
        spaced = [self._spaced(sentence) for sentence in sentences]
        runs = " ".join(spaced).split(" ")
        numbers = np.fromiter(map(self._numbers.__getitem__, runs), np.int64, len(runs))
        self._learn()
        begins = self._ends[numbers]
        sizes = self._ends[numbers + 1] - begins
        ends = np.cumsum(sizes)
        places = np.arange(ends[-1]) + np.repeat(begins - (ends - sizes), sizes)
        n_runs = np.fromiter((sentence.count(" ") + 1 for sentence in spaced), np.int64, len(spaced))
        return self._ids[places], np.diff(ends[np.cumsum(n_runs) - 1], prepend=0)

    def _learn(self) -> None:
        """Tokenise the runs seen for the first time."""
        new = self._numbers.new
        ids, sizes = [self._ids], list[np.ndarray]()
        for begin in range(0, len(new), _RUNS_AT_ONCE):
            some = [whole_text(run) for run in new[begin : begin + _RUNS_AT_ONCE]]
            row = self._tokenizer.encode_runs(some)
            ids.append(np.array(row.ids, self._dtype))
            sizes.append(np.bincount(np.array(row.words, np.int64), minlength=len(some)))
        if new:
            self._ids = np.concatenate(ids)
            self._ends = np.concatenate([self._ends, self._ends[-1] + np.cumsum(np.concatenate(sizes))])
            self._n_characters += sum(map(len, new))
            new.clear()

    def _spaced(self, text: str) -> str:
        # Lower-casing a capital sigma depends on whether it ends its word, which depends on text beyond the marks.
        if "Σ" not in text:
            for mark, alone in self._marks:
                text = text.replace(mark, alone)
        return text


class _Numbers(dict[str, int]):
    """Numbers runs in order of first use; ``new``: the runs numbered since the last reset."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[str] = []

    def __missing__(self, run: str) -> int:
        self[run] = number = len(self)
        self.new.append(run)
        return number


def _splits_at_blanks(tokenizer: Tokenizer) -> tuple[bool, bool]:
    """Whether the tokenizer is known to split at white space and to normalise only within words; and if so, whether
    punctuation marks are words."""
    rules = tokenizer.rules()
    # Special tokens in a text are plain text; other added tokens are matched before splitting.
    if not all(token["special"] for token in rules["added_tokens"]):
        return False, False
    normalizer, splitter = rules["normalizer"], rules["pre_tokenizer"]
    cases = list(product((True, False), repeat=2))
    plain = [
        _state(build_normalizer(lowercase=lowercase, keep_accents=keep_accents, google=google))
        for lowercase, keep_accents in cases
        for google in (True, False)
    ]
    marked = [_state(build_marked_normalizer(lowercase=low, keep_accents=keep)) for low, keep in cases]
    if normalizer in marked:
        return splitter == _state(build_marked_pre_tokenizer()), False
    if normalizer in (*plain, None) or normalizer["type"] == "BertNormalizer":
        if splitter in (_state(build_pre_tokenizer()), {"type": "BertPreTokenizer"}):
            return True, True
        return splitter in (_state(build_blank_splitter()), {"type": "WhitespaceSplit"}), False
    return False, False


def _state(step: Any) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(step.__getstate__())
    return state
