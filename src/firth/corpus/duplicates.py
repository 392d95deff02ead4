"""Duplicates: documents of the same words, documents of nearly the same words, and paragraphs that recur.

Near-duplicates are found by MinHash: a document is the set of its windows of five words, its signature estimates how
much of that set it shares with another (the Jaccard similarity), and only documents that agree in a whole band of the
signature are compared. Of each group the first document stays, so the result depends on the order of the text alone.

Source: Broder 1997 (MinHash); Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, §3.4 (bands); Shrivastava
2017 (one permutation with optimal densification: a document is hashed once, not once for each number of the signature).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from firth.corpus.fingerprints import Block, inside, mix, ngrams
from firth.corpus.spill import Spill, groups
from firth.files import append_to

SIGNATURE = 128  # numbers of a signature; the estimate's standard deviation is 0.035 at a similarity of 0.8
SHINGLE = 5  # words
LEAST_WORDS = 30  # a shorter document has too few windows: it is only compared as a whole
RECURRING = 3  # a paragraph that occurs this often in the corpus is boilerplate
LONG = 6  # words that make a paragraph long; shorter ones (headings) may recur
_FOUND = 0.95  # share of the pairs just at the threshold that the bands must bring together
_ROUNDS = 8
_EMPTY = np.uint32(0xFFFFFFFF)
PARAGRAPH_BITS = np.uint64(24)  # one of them says whether the paragraph is long
_AT_ONCE = 1 << 16  # signatures compared at once


def band_rows(threshold: float) -> int:
    """Numbers of a signature in a band: as many as still bring 95 % of the pairs at the threshold together."""
    found = [rows for rows in range(1, SIGNATURE + 1) if 1 - (1 - threshold**rows) ** (SIGNATURE // rows) >= _FOUND]
    return max(found, default=1)


def signatures(block: Block) -> tuple[np.ndarray, np.ndarray]:
    """(which documents have a signature, their signatures as uint16 (n, SIGNATURE)).

    The sixteen low bits of each number are kept: two that differ look alike once in 65,536 times.
    """
    starts = block.document_starts
    chosen = np.flatnonzero(np.diff(starts) >= LEAST_WORDS)
    shingles = mix(ngrams(block.words, SHINGLE))
    owners = np.repeat(np.arange(len(starts) - 1), np.diff(starts))[: len(shingles)]
    rows = np.full(len(starts) - 1, -1, np.int64)
    rows[chosen] = np.arange(len(chosen))
    keep = inside(starts, SHINGLE) & (rows[owners] >= 0)
    shingles, owners = shingles[keep], rows[owners[keep]]
    cells = owners * SIGNATURE + (shingles >> np.uint64(57)).astype(np.int64)
    values = np.full(len(chosen) * SIGNATURE, _EMPTY, np.uint32)
    np.minimum.at(values, cells, (shingles & np.uint64(0xFFFFFFFE)).astype(np.uint32) >> np.uint32(1))
    return chosen, (_densified(values.reshape(-1, SIGNATURE)) & np.uint32(0xFFFF)).astype(np.uint16)


def _densified(values: np.ndarray) -> np.ndarray:
    """Fill each empty bin from another bin of the same document, which (bin, attempt) alone choose."""
    filled = values.copy()
    rows, bins = np.nonzero(values == _EMPTY)
    attempt = 0
    while len(rows):
        attempt += 1
        chosen = mix(bins.astype(np.uint64) * np.uint64(1 << 20) + np.uint64(attempt)) >> np.uint64(57)
        found = values[rows, chosen.astype(np.int64)]
        filled[rows, bins] = found
        left = found == _EMPTY
        rows, bins = rows[left], bins[left]
    return filled


def bands(signed: np.ndarray, rows: int) -> np.ndarray:
    """Keys of the bands of signatures, uint64 (n, SIGNATURE // rows)."""
    n_bands = SIGNATURE // rows
    parts = signed[:, : n_bands * rows].astype(np.uint64).reshape(len(signed), n_bands, rows)
    keys = np.broadcast_to(mix(np.arange(n_bands, dtype=np.uint64)), (len(signed), n_bands)).copy()
    for row in range(rows):
        keys = mix(keys + parts[:, :, row])
    return keys


def paragraph_key(document: np.ndarray, paragraph: np.ndarray, long: np.ndarray) -> np.ndarray:
    """One number for a paragraph of a document, and whether it is ``long``; it sorts as the text goes."""
    place = (document.astype(np.uint64) << PARAGRAPH_BITS) | (paragraph.astype(np.uint64) << np.uint64(1))
    return place | long.astype(np.uint64)


def split_key(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(documents, paragraphs, whether they are long) of the numbers that ``paragraph_key`` makes."""
    paragraphs = (keys & np.uint64((1 << int(PARAGRAPH_BITS)) - 1)) >> np.uint64(1)
    return (keys >> PARAGRAPH_BITS).astype(np.int64), paragraphs.astype(np.int64), (keys & np.uint64(1)) == 1


def later_ones(spill: Spill) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of a spill of (hash, document number): the documents whose hash an earlier one has, and the earliest such."""
    for keys, documents in spill.sorted_parts():
        starts, sizes = groups(keys)
        first = np.repeat(documents[starts], sizes)
        later = documents != first
        yield documents[later].astype(np.int64), first[later].astype(np.int64)


def recurring(spill: Spill, removed: np.ndarray) -> Iterator[np.ndarray]:
    """Of a spill of (hash, paragraph key): the keys of all but the first occurrence of each recurring paragraph.

    Paragraphs of documents that are ``removed`` (bool, one a document) do not count.
    """
    for hashes, keys in spill.sorted_parts():
        stays = ~removed[split_key(keys)[0]]
        hashes, keys = hashes[stays], keys[stays]
        starts, sizes = groups(hashes)
        later = np.ones(len(keys), bool)
        later[starts] = False
        yield keys[later & np.repeat(sizes >= RECURRING, sizes)]


@dataclass(slots=True)
class NearDuplicates:
    """Signatures in the order of the text, in a file, and their bands in a spill."""

    file: Path
    spill: Spill
    threshold: float
    rows: int = 0

    def add(self, documents: np.ndarray, signed: np.ndarray, keys: np.ndarray) -> None:
        """Add documents (numbers) with their signatures and the keys of their bands."""
        numbers = np.arange(self.rows, self.rows + len(signed), dtype=np.uint64)
        with append_to(self.file) as file:
            signed.tofile(file)
        with append_to(self.file.with_suffix(".documents")) as file:
            documents.astype(np.int64).tofile(file)
        self.rows += len(signed)
        self.spill.add(keys.ravel(), np.repeat(numbers, keys.shape[1]))

    def find(self, removed: np.ndarray) -> Iterator[tuple[int, int, float]]:
        """(document, the earlier document it is like, estimated similarity) for each one to remove, in order.

        Documents that are ``removed`` already neither count nor are named. The earlier document is one that stays.
        """
        if not self.rows:
            return
        signed = np.memmap(self.file, np.uint16, "r", shape=(self.rows, SIGNATURE))
        documents = np.fromfile(self.file.with_suffix(".documents"), np.int64)
        gone = removed[documents]
        leaders = self._leaders(signed, gone)
        # In the order of the text: what a document is like may itself be like an earlier one, and be gone.
        stands_for = np.arange(self.rows)
        for row in np.flatnonzero(leaders < np.arange(self.rows)):
            leader = stands_for[leaders[row]]
            similarity = float(np.mean(signed[row] == signed[leader]))
            if similarity >= self.threshold:
                stands_for[row] = leader
                yield int(documents[row]), int(documents[leader]), similarity

    def _leaders(self, signed: np.ndarray, gone: np.ndarray) -> np.ndarray:
        """For each signature the earliest one found that is like it; itself if there is none."""
        leaders = np.arange(self.rows)
        for keys, values in self.spill.sorted_parts():
            rows = values.astype(np.int64)
            keys, rows = keys[~gone[rows]], rows[~gone[rows]]
            # In each group all are compared with the first; what is unlike it makes up a group of its own, and again.
            for _ in range(_ROUNDS):
                starts, sizes = groups(keys)
                first = np.repeat(rows[starts], sizes)
                later = rows != first
                if not later.any():
                    break
                keys, rows, first = keys[later], rows[later], first[later]
                alike = self._alike(signed, rows, first)
                np.minimum.at(leaders, rows[alike], first[alike])
                keys, rows = keys[~alike], rows[~alike]
        return leaders

    def _alike(self, signed: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        alike = np.empty(len(ours), bool)
        for begin in range(0, len(ours), _AT_ONCE):
            part = slice(begin, begin + _AT_ONCE)
            alike[part] = (signed[ours[part]] == signed[theirs[part]]).mean(1) >= self.threshold
        return alike
