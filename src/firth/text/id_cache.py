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

# What is remembered: 35 MB of English, 45 of long runs. When it is full, all is forgotten: text changes, and what is
# frequent is soon back.
MOST_RUNS = 250_000
MOST_CHARACTERS = 8_000_000
# Punctuation marks that stand alone as words anyway: with blanks around them there are half as many different runs.
_MARKS = tuple((mark, f" {mark} ") for mark in ".,\"'()-:;")
_RUNS_AT_ONCE = 1000


class IdCache:
    """The ids of sentences, remembered by the runs of characters between their blanks.

    Neither normalising nor splitting into words looks across a blank in BERT's tokenizers, published ones too, and in
    those that are built here; with any other one, nothing is remembered.
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
        self._ends = np.zeros(1, np.int64)  # where the ids of run n begin, and end

    def ids_many(self, sentences: Sequence[str]) -> tuple[np.ndarray, Int[np.ndarray, " S"]]:
        """All ids one after the other, uint16 (or uint32 of large vocabularies), and how many are of each sentence."""
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
        """The ids of the runs that were met for the first time."""
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
        # Whether a capital sigma ends its word, and so which small letter it becomes, is seen across marks.
        if "Σ" not in text:
            for mark, alone in self._marks:
                text = text.replace(mark, alone)
        return text


class _Numbers(dict[str, int]):
    """The number of each run, given to it when it is first asked for; ``new``: the runs that were."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[str] = []

    def __missing__(self, run: str) -> int:
        self[run] = number = len(self)
        self.new.append(run)
        return number


def _splits_at_blanks(tokenizer: Tokenizer) -> tuple[bool, bool]:
    """Whether it is known to split words at blanks and to normalise no further than a word; and if so, whether marks
    are words of their own."""
    rules = tokenizer.rules()
    # Special ones are text in texts; others are found before anything is split.
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
