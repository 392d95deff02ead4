"""Find duplicate documents, near-duplicate documents, and recurring paragraphs.

Near-duplicates are found by MinHash: a document is the set of its five-word windows, signatures estimate how much of
that set two documents share (the Jaccard similarity), and only documents that agree in a whole band of the signature
are compared. The first document of each group stays, so the result depends only on the order of the text.

Source: Broder 1997 (MinHash); Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, §3.4 (bands); Shrivastava
2017 (one permutation with optimal densification: a document is hashed once, not once per signature value).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from firth.corpus.fingerprints import FingerprintBlock, inside, mix, ngrams
from firth.corpus.spill import Spill, groups
from firth.files import append_to

SIGNATURE = 128  # values of a signature; the estimate's standard deviation is 0.035 at a similarity of 0.8
SHINGLE = 5  # words
LEAST_WORDS = 30  # a shorter document has too few windows: only exact duplicates are found
RECURRING = 3  # a paragraph that occurs this often in the corpus is boilerplate
LONG = 6  # words that make a paragraph long; shorter ones (headings) may recur
_FOUND = 0.95  # smallest share of the pairs exactly at the threshold that must share a band
_ROUNDS = 8
_EMPTY = np.uint32(0xFFFFFFFF)
PARAGRAPH_BITS = np.uint64(24)  # the lowest one marks a long paragraph
_AT_ONCE = 1 << 16  # signatures compared at once


def band_rows(threshold: float) -> int:
    """Signature values per band: the most for which 95 % of the pairs at the threshold still share a band."""
    found = [rows for rows in range(1, SIGNATURE + 1) if 1 - (1 - threshold**rows) ** (SIGNATURE // rows) >= _FOUND]
    return max(found, default=1)


def signatures(block: FingerprintBlock) -> tuple[np.ndarray, np.ndarray]:
    """Return (documents with a signature, their signatures as uint16 (n, SIGNATURE)).

    Only the sixteen low bits of each value are kept: two different values collide once in 65,536 times.
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
    """Fill each empty bin from another bin of the same document, chosen only by (bin, attempt)."""
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
    """Encode a paragraph of a document, and whether it is ``long``, as one number that sorts in text order."""
    place = (document.astype(np.uint64) << PARAGRAPH_BITS) | (paragraph.astype(np.uint64) << np.uint64(1))
    return place | long.astype(np.uint64)


def split_key(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Decode ``paragraph_key``: (documents, paragraphs, whether they are long)."""
    paragraphs = (keys & np.uint64((1 << int(PARAGRAPH_BITS)) - 1)) >> np.uint64(1)
    return (keys >> PARAGRAPH_BITS).astype(np.int64), paragraphs.astype(np.int64), (keys & np.uint64(1)) == 1


def later_ones(spill: Spill) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """From a spill of (hash, document), yield documents whose hash occurred before, and the first document with it."""
    for keys, documents in spill.sorted_parts():
        starts, sizes = groups(keys)
        first = np.repeat(documents[starts], sizes)
        later = documents != first
        yield documents[later].astype(np.int64), first[later].astype(np.int64)


def recurring(spill: Spill, removed: np.ndarray) -> Iterator[np.ndarray]:
    """From a spill of (hash, paragraph key), yield all but the first occurrence of each recurring paragraph.

    Paragraphs of ``removed`` documents (bool, one per document) do not count.
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
    """Finds near-duplicates; keeps signatures in text order in a file, and their bands in a spill."""

    file: Path
    spill: Spill
    threshold: float
    rows: int = 0

    def add(self, documents: np.ndarray, signed: np.ndarray, keys: np.ndarray) -> None:
        """Add documents by number, with their signatures and band keys."""
        numbers = np.arange(self.rows, self.rows + len(signed), dtype=np.uint64)
        with append_to(self.file) as file:
            file.write(signed.tobytes())
        with append_to(self.file.with_suffix(".documents")) as file:
            file.write(documents.astype(np.int64).tobytes())
        self.rows += len(signed)
        self.spill.add(keys.ravel(), np.repeat(numbers, keys.shape[1]))

    def find(self, removed: np.ndarray) -> Iterator[tuple[int, int, float]]:
        """Yield (document, the earlier document it resembles, estimated similarity) for each one to remove, in order.

        Already ``removed`` documents do not count. The earlier document always stays.
        """
        if not self.rows:
            return
        signed = np.memmap(self.file, np.uint16, "r", shape=(self.rows, SIGNATURE))
        documents = np.fromfile(self.file.with_suffix(".documents"), np.int64)
        gone = removed[documents]
        leaders = self._leaders(signed, gone)
        # In text order: the document that one resembles may itself have been removed.
        stands_for = np.arange(self.rows)
        for row in np.flatnonzero(leaders < np.arange(self.rows)):
            leader = stands_for[leaders[row]]
            similarity = float(np.mean(signed[row] == signed[leader]))
            if similarity >= self.threshold:
                stands_for[row] = leader
                yield int(documents[row]), int(documents[leader]), similarity

    def _leaders(self, signed: np.ndarray, gone: np.ndarray) -> np.ndarray:
        """Find the earliest similar signature of each signature; itself if there is none."""
        leaders = np.arange(self.rows)
        for keys, values in self.spill.sorted_parts():
            rows = values.astype(np.int64)
            keys, rows = keys[~gone[rows]], rows[~gone[rows]]
            # All members of a group are compared with its first; dissimilar ones form the next group, repeatedly.
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
