"""Detect evaluation texts in a corpus by shared runs of 8 to 13 words.

Source: Brown et al. 2020, appendix C: the run length is the 5th percentile of a file's text lengths, but at least 8
and at most 13 words; a run that occurs in more than ten places of the corpus is a common phrase, not a leak.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firth.corpus.duplicates import LONG, paragraph_key, split_key
from firth.corpus.fingerprints import FingerprintBlock, fingerprint, inside, mix, ngrams
from firth.errors import InputError
from firth.tasks.readers.files import csv_rows, is_filled
from firth.text.corpus import read_text_lines
from firth.text.finding import bare_name
from firth.text.tokenizer import whole_text

# Suffixes of evaluation files in a folder.
SUFFIXES = (".txt", ".text", ".tsv", ".csv", ".json", ".jsonl", ".ndjson")
SHORTEST, LONGEST = 8, 13  # words
COMMON = 10  # places
_FILTER_BITS = 22
_QUOTED = 3  # matches shown per file
_JSON_DEPTH = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The overlap of an evaluation file with the corpus.

    ``examples``: number of its rows (in JSON: strings). ``short``: those without a text of ``n`` words, not compared.
    ``found``: those that share ``n`` consecutive words with the corpus. ``quotes``: some of them, as (words, place).
    """

    file: str
    n: int
    examples: int
    short: int
    found: int
    quotes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _File:
    """An evaluation file: its examples, and the example of each run of words (sorted by hash)."""

    path: Path
    n: int
    examples: list[str]
    short: int
    runs: np.ndarray
    owners: np.ndarray


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of one length to search for: sorted hashes, numbered from ``first``, and a prefilter."""

    n: int
    first: int
    hashes: np.ndarray
    might_be: np.ndarray

    def find(self, block: FingerprintBlock) -> tuple[np.ndarray, np.ndarray]:
        """Return (indices of the runs found, the words of the block at which they start)."""
        hashes = mix(ngrams(block.words, self.n))
        at = np.flatnonzero(self.might_be[(hashes >> np.uint64(64 - _FILTER_BITS)).astype(np.int64)])
        at = at[inside(block.document_starts, self.n)[at]]
        places = np.minimum(np.searchsorted(self.hashes, hashes[at]), len(self.hashes) - 1)
        same = self.hashes[places] == hashes[at]
        return places[same] + self.first, at[same]


@dataclass(frozen=True, slots=True)
class Hits:
    """Matches: index of the run, document in the block, first and last paragraph in the block."""

    runs: np.ndarray
    documents: np.ndarray
    first: np.ndarray
    last: np.ndarray


def find_all(block: FingerprintBlock, searched: list[Runs]) -> Hits:
    """Find every position in a block where a run of an evaluation text starts."""
    found = [runs.find(block) for runs in searched]
    sizes = np.concatenate([np.full(len(at), runs.n) for runs, (_, at) in zip(searched, found, strict=True)])
    numbers, at = (np.concatenate(parts) for parts in zip(*found, strict=True))
    first = np.searchsorted(block.word_starts, at, "right") - 1
    last = np.searchsorted(block.word_starts, at + sizes - 1, "right") - 1
    return Hits(numbers, np.searchsorted(block.paragraph_starts, first, "right") - 1, first, last)


class Contamination:
    """Evaluation files, the runs to search for, and the matches found."""

    def __init__(self, paths: tuple[Path, ...]):
        self._files = [_read(path) for path in paths]
        self.searched: list[Runs] = []
        self._size = 0
        for n in sorted({file.n for file in self._files}):
            hashes = np.unique(np.concatenate([file.runs for file in self._files if file.n == n]))
            might_be = np.zeros(1 << _FILTER_BITS, bool)
            might_be[(hashes >> np.uint64(64 - _FILTER_BITS)).astype(np.int64)] = True
            self.searched.append(Runs(n, self._size, hashes, might_be))
            self._size += len(hashes)
        self._counts = np.zeros(self._size, np.int64)
        # For each run, the hashes of the documents in which it occurs, with the number of the first such document.
        self._documents: dict[int, dict[int, int]] = {}
        self._hits: list[tuple[int, str, np.ndarray]] = []  # run, place, keys of the paragraphs it touches

    def add(self, run: int, where: str, keys: np.ndarray, document: int = 0) -> None:
        """Record a match of a run, with the keys of the paragraphs it touches.

        ``document``: hash of the document if later ones with the same hash are removed as duplicates, else 0: copies
        that will be removed do not make a run a common phrase.
        """
        if self._counts[run] > COMMON:
            return
        if document:
            number = int(split_key(keys)[0][0])
            if self._documents.setdefault(run, {}).setdefault(document, number) != number:
                return
        self._counts[run] += 1
        if self._counts[run] <= COMMON:
            self._hits.append((run, where, keys))

    def found(self, removed: np.ndarray) -> tuple[list[Found], np.ndarray]:
        """Return (overlap of each file, sorted keys of matching paragraphs), ignoring ``removed`` documents (bool)."""
        places: dict[int, str] = {}
        keys: list[np.ndarray] = []
        for run, where, paragraphs in self._hits:
            stays = paragraphs[~removed[split_key(paragraphs)[0]]]
            if self._counts[run] <= COMMON and len(stays):
                places.setdefault(run, where)
                keys.append(stays)
        results = []
        for file in self._files:
            runs = next(runs for runs in self.searched if runs.n == file.n)
            numbers = np.searchsorted(runs.hashes, file.runs) + runs.first
            is_hit = np.zeros(self._size, bool)
            is_hit[list(places)] = True
            hit = is_hit[numbers]
            examples, firsts = np.unique(file.owners[hit], return_index=True)
            quotes = [
                (file.examples[int(example)], places[int(numbers[hit][first])])
                for example, first in zip(examples[:_QUOTED], firsts[:_QUOTED], strict=True)
            ]
            results.append(
                Found(
                    file=str(file.path),
                    n=file.n,
                    examples=len(file.examples),
                    short=file.short,
                    found=len(examples),
                    quotes=tuple(quotes),
                )
            )
        return results, np.unique(np.concatenate(keys)) if keys else np.zeros(0, np.uint64)


def _read(path: Path) -> _File:
    examples = list(_examples(path))
    block = fingerprint([[text.replace("\n", " ") for text in texts] for texts in examples])
    sizes = np.diff(block.word_starts)
    long = sizes[sizes >= SHORTEST]
    if not len(long):
        raise InputError(
            f"{path}: no text of {SHORTEST} words or more to search for; expected lines, fields of .tsv or "
            f".csv, or JSON strings"
        )
    n = int(np.clip(np.percentile(long, 5), SHORTEST, LONGEST))
    hashes = mix(ngrams(block.words, n))
    keep = inside(block.word_starts, n)
    paragraphs = np.repeat(np.arange(len(sizes)), sizes)[: len(hashes)]
    owners = (np.searchsorted(block.paragraph_starts, paragraphs, "right") - 1)[keep]
    short = len(examples) - len(np.unique(owners))
    return _File(path, n, [whole_text(" | ".join(texts)) for texts in examples], short, hashes[keep], owners)


def _examples(path: Path) -> Iterator[list[str]]:
    """Yield the texts of each row of an evaluation file."""
    name = bare_name(path.name)
    if name.endswith(".csv"):
        yield from (row for _, row in filter(is_filled, csv_rows(path, read_text_lines(path))))
        return
    lines: Iterable[tuple[int, str]] = (
        (number, line) for number, line in enumerate(read_text_lines(path), start=1) if line.strip()
    )
    if name.endswith(".json"):
        lines = list(lines)
        if (whole := _document(path, lines)) is not None:
            yield from ([text] for text in _strings(whole))
            return
    if name.endswith((".json", ".jsonl", ".ndjson")):
        for number, line in lines:
            yield list(_strings(_parsed(line, f"{path}:{number}"))) or [""]
    else:
        yield from (line.split("\t") for _, line in lines)


def _document(path: Path, lines: Sequence[tuple[int, str]]) -> Any:
    """Parse a file of one JSON value; None if its first line is one by itself, and so, perhaps, are the others."""
    try:
        return json.loads("\n".join(line for _, line in lines))
    except (ValueError, RecursionError) as error:
        try:
            json.loads(lines[0][1] if lines else "")
        except (ValueError, RecursionError):
            raise InputError(f"{path}: not JSON ({error}); expected one JSON value, or one in each line") from None
    return None


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON ({error}); expected a JSON value in each line") from None


def _strings(value: Any, depth: int = 0) -> Iterator[str]:
    if depth > _JSON_DEPTH:
        return
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part, depth + 1)


def keys_of(hits: Hits, block: FingerprintBlock) -> list[np.ndarray]:
    """Keys of the paragraphs that each match touches; documents are numbered from the block's first."""
    is_long = np.diff(block.word_starts) >= LONG
    keys = []
    for document, first, last in zip(hits.documents, hits.first, hits.last, strict=True):
        paragraphs = np.arange(first, last + 1)
        place = paragraphs - block.paragraph_starts[document]
        keys.append(paragraph_key(np.full(len(paragraphs), document), place, is_long[paragraphs]))
    return keys
