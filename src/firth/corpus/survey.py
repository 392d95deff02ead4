"""The first pass over a corpus: measure documents and paragraphs, and decide which of them cleaning removes.

Workers measure blocks of documents; results are combined in text order, so the verdict is the
same for any number of workers. Hashes beyond the memory limit go to disk in the survey's folder, which
also stores the verdict, so that an interrupted ``firth prepare`` does not repeat the pass.
"""

import json
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from firth.corpus.clean import Cleaning, code, document_reasons, paragraph_reasons
from firth.corpus.contamination import Contamination, Found, Runs, find_all, keys_of
from firth.corpus.duplicates import (
    LONG,
    PARAGRAPH_BITS,
    SIGNATURE,
    NearDuplicates,
    band_rows,
    bands,
    later_ones,
    paragraph_key,
    recurring,
    signatures,
    split_key,
)
from firth.corpus.fingerprints import SCRIPTS, fingerprint, sequence_hashes
from firth.corpus.spill import Spill
from firth.errors import FirthError
from firth.files import refuse_links, remove_folder, write_text
from firth.progress import Progress
from firth.text.records import Document
from firth.workers import make_pool_for_text, submit

BLOCK_CHARACTERS = 1_000_000
QUOTED = 3  # documents and paragraphs shown per reason
_NOT_REMOVED = 0
_DONE = "survey.json"


class Readable(Protocol):
    """A source of documents, such as ``CorpusReader``."""

    files: list[Path]
    total_bytes: int

    @property
    def bytes_consumed(self) -> int: ...

    def __iter__(self) -> Iterator[Document]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class FileCount:
    """The contents of a file before cleaning; ``scripts``: its letters by SCRIPTS."""

    documents: int
    characters: int
    scripts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What cleaning removes; documents are numbered in the order of the files.

    ``documents``: uint8, the number of a reason, or 0. ``like``: for the first few duplicates and near-duplicates, the
    earlier document (negative: one of the held-out text) and the similarity. ``paragraphs``: sorted keys
    of paragraphs, with their ``paragraph_reasons``.
    """

    documents: np.ndarray
    like: dict[int, tuple[int, float]]
    paragraphs: np.ndarray
    paragraph_reasons: np.ndarray
    files: tuple[FileCount, ...]
    found: tuple[Found, ...]

    @property
    def first(self) -> list[int]:
        """The number of each file's first document."""
        return [0, *np.cumsum([file.documents for file in self.files]).tolist()]


@dataclass(frozen=True, slots=True)
class _Measured:
    """A worker's measurements of a block; documents are numbered from the block's first."""

    characters: np.ndarray
    scripts: np.ndarray
    reasons: np.ndarray
    hashes: np.ndarray
    n_long: np.ndarray
    hollow: np.ndarray  # whether rules on single paragraphs leave no long one
    removed: tuple[np.ndarray, np.ndarray]  # keys of paragraphs, reasons
    long: tuple[np.ndarray, np.ndarray]  # hashes of long paragraphs, their keys
    signed: tuple[np.ndarray, np.ndarray]  # documents, signatures
    runs: np.ndarray
    run_documents: np.ndarray
    run_keys: list[np.ndarray]


def survey(reader: Readable, held_out: Readable | None, cleaning: Cleaning, folder: Path, workers: int) -> Verdict:
    """Read all text and decide what to remove. ``held_out``: evaluation text, from which nothing is removed, and
    whose documents count as earlier ones. Creates ``folder``, which finally holds the verdict.
    """
    if folder.is_dir():
        refuse_links(folder)
    if (folder / _DONE).is_file():
        return _load(folder)
    remove_folder(folder)  # left by an interrupted survey
    folder.mkdir()
    state = _State(cleaning, folder)
    total = reader.total_bytes + (held_out.total_bytes if held_out else 0)
    with Progress("reading", total, "B") as progress:
        if held_out is not None:
            _read(held_out, state, workers, progress, keep=True)
        state.n_kept = state.n_documents
        _read(reader, state, workers, progress, keep=False)
    verdict = state.decide(len(reader.files))
    _save(verdict, folder)
    return verdict


def _read(reader: Readable, state: "_State", workers: int, progress: Progress, *, keep: bool) -> None:
    """Measure every document of a reader, in order."""
    pool = make_pool_for_text(reader.total_bytes, workers, _start_worker, state.cleaning, state.searched)
    waiting: deque[tuple[Future[_Measured], list[str], np.ndarray]] = deque()
    seen = 0

    def finish() -> None:
        future, places, files = waiting.popleft()
        state.add(future.result(), places, files, keep=keep)

    try:
        for documents, places, files in _blocks(reader):
            progress.advance(reader.bytes_consumed - seen)
            seen = reader.bytes_consumed
            waiting.append((submit(pool, measure_block, documents), places, files))
            while len(waiting) > workers + 1 or (waiting and waiting[0][0].done()):
                finish()
        while waiting:
            finish()
        progress.advance(reader.total_bytes - seen)
    except BrokenProcessPool:
        raise FirthError(
            f"a worker process of firth prepare was killed (out of memory?): run the same command again, with fewer "
            f"--workers than {workers}"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _blocks(reader: Readable) -> Iterator[tuple[list[tuple[str, ...]], list[str], np.ndarray]]:
    """Yield (documents, their places, the file index of each), a million characters at a time."""
    numbers = {str(path): number for number, path in enumerate(reader.files)}
    documents: list[tuple[str, ...]] = []
    places: list[str] = []
    files: list[int] = []
    size = 0
    for document in reader:
        documents.append(document.paragraphs)
        places.append(document.where)
        files.append(numbers[document.where.rpartition(":")[0]])
        size += sum(map(len, document.paragraphs))
        if size >= BLOCK_CHARACTERS:
            yield documents, places, np.array(files)
            documents, places, files, size = [], [], [], 0
    if documents:
        yield documents, places, np.array(files)


_cleaning: Cleaning | None = None
_searched: list[Runs] = []


def _start_worker(cleaning: Cleaning, searched: list[Runs]) -> None:
    """Initialise a worker process with the options and the runs to search for."""
    global _cleaning, _searched
    _cleaning, _searched = cleaning, searched


def measure_block(documents: list[tuple[str, ...]]) -> _Measured:
    """Measure a block of documents; runs in a worker."""
    assert _cleaning is not None
    rules = _cleaning.rules
    block = fingerprint(documents)
    n = len(documents)
    by_itself = paragraph_reasons(block, rules)
    sizes = np.diff(block.word_starts)
    is_long = sizes >= LONG
    owners = np.repeat(np.arange(n), np.diff(block.paragraph_starts))
    keys = paragraph_key(owners, np.arange(len(owners)) - block.paragraph_starts[owners], is_long)
    hashes = sequence_hashes(block.words, block.word_starts)
    compared = is_long & (by_itself == _NOT_REMOVED) if "repeated" in rules else np.zeros(len(keys), bool)
    none = np.zeros(0, np.uint64)
    n_long, own = np.bincount(owners[is_long], minlength=n), by_itself > 0
    n_own, n_own_long = (np.bincount(owners[some], minlength=n) for some in (own, own & is_long))
    hits = find_all(block, _searched) if _searched else None
    return _Measured(
        characters=np.array([sum(map(len, paragraphs)) for paragraphs in documents]),
        scripts=block.scripts,
        reasons=document_reasons(block, _cleaning),
        hashes=_document_hashes(hashes, block.paragraph_starts),
        n_long=n_long,
        hollow=(n_own > 0) & (n_long == n_own_long),
        removed=(keys[own], by_itself[own]),
        long=(hashes[compared], keys[compared]),
        signed=signatures(block) if "near-duplicates" in rules else (none, np.zeros((0, SIGNATURE), np.uint16)),
        runs=hits.runs if hits else none,
        run_documents=hits.documents if hits else none,
        run_keys=keys_of(hits, block) if hits else [],
    )


def _document_hashes(paragraphs: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Hash all words of each document; 0 for a document without words."""
    has_words = np.concatenate(([0], np.cumsum(paragraphs != 0)))
    return sequence_hashes(paragraphs[paragraphs != 0], has_words[starts])


class _State:
    """The measurements so far, in text order."""

    def __init__(self, cleaning: Cleaning, folder: Path):
        self.cleaning = cleaning
        self.n_documents = self.n_kept = 0
        self._contamination = Contamination(cleaning.against) if cleaning.against else None
        self.searched = self._contamination.searched if self._contamination else []
        # Bands take the most memory: about eight times as much as the rest of a document of a few paragraphs.
        part = cleaning.memory // 8
        self._rows = band_rows(cleaning.similarity)
        self._hashes = Spill(folder, "documents", part)
        self._long = Spill(folder, "paragraphs", part)
        self._near = NearDuplicates(folder / "signatures.bin", Spill(folder, "bands", 4 * part), cleaning.similarity)
        self._reasons: list[np.ndarray] = []
        self._n_long: list[np.ndarray] = []
        self._removed: list[tuple[np.ndarray, np.ndarray]] = []
        self._counts: dict[int, np.ndarray] = {}

    def add(self, found: _Measured, places: list[str], files: np.ndarray, *, keep: bool) -> None:
        """Add the next block of the text, or with ``keep``, of text from which nothing is removed."""
        first = self.n_documents
        shift = np.uint64(first) << PARAGRAPH_BITS
        stays = np.ones(len(places), bool) if keep else found.reasons == _NOT_REMOVED
        numbers = np.arange(first, first + len(places))
        self.n_documents += len(places)
        self._reasons.append(np.where(stays, 0, found.reasons).astype(np.uint8))
        self._n_long.append(found.n_long.astype(np.int32))
        # A document of which nothing will be left must not remove its copies.
        compared = stays if keep else stays & ~found.hollow
        has_words = compared & (found.hashes != 0)
        if "duplicates" in self.cleaning.rules:
            self._hashes.add(found.hashes[has_words], numbers[has_words].astype(np.uint64))
        documents, signed = found.signed
        near = compared[documents.astype(np.int64)]
        if near.any():
            kept = signed[near]
            self._near.add(numbers[documents[near]], kept, bands(kept, self._rows))
        if keep:
            return
        hashes, keys = found.long
        self._long.add(hashes, keys + shift)
        self._removed.append((found.removed[0] + shift, found.removed[1]))
        for file in np.unique(files):
            mine = files == file
            row = np.array([mine.sum(), found.characters[mine].sum(), *found.scripts[mine].sum(0)])
            self._counts[int(file)] = self._counts.get(int(file), np.zeros_like(row)) + row
        if self._contamination is not None:
            alike = found.hashes if "duplicates" in self.cleaning.rules else np.zeros_like(found.hashes)
            for run, document, touched in zip(found.runs, found.run_documents, found.run_keys, strict=True):
                if stays[document]:
                    self._contamination.add(int(run), places[document], touched + shift, int(alike[document]))

    def decide(self, n_files: int) -> Verdict:
        """Decide what to remove from everything added."""
        reasons = np.concatenate(self._reasons) if self._reasons else np.zeros(0, np.uint8)
        like: dict[int, tuple[int, float]] = {}
        for later, first in later_ones(self._hashes):
            ours = later >= self.n_kept
            reasons[later[ours]] = code("duplicates")
            few = np.argsort(later[ours])[:QUOTED]
            pairs = zip(later[ours][few].tolist(), first[ours][few].tolist(), strict=True)
            like = dict(sorted([*like.items(), *((a, (b, 1.0)) for a, b in pairs)])[:QUOTED])
        n_near = 0
        for document, earlier, similarity in self._near.find(reasons > 0):
            if document >= self.n_kept:
                reasons[document] = code("near-duplicates")
                n_near += 1
                if n_near <= QUOTED:
                    like[document] = (earlier, similarity)
        found: list[Found] = []
        overlapping = np.zeros(0, np.uint64)
        if self._contamination is not None:
            found, overlapping = self._contamination.found(reasons > 0)
        paragraphs, why = self._paragraphs(reasons, overlapping if self.cleaning.remove_overlap else overlapping[:0])
        self._empty(reasons, paragraphs)
        stays = reasons[split_key(paragraphs)[0]] == _NOT_REMOVED
        n = self.n_kept
        counts = [self._counts.get(file, np.zeros(2 + len(SCRIPTS), np.int64)).tolist() for file in range(n_files)]
        return Verdict(
            documents=reasons[n:],
            like={a - n: (b - n, similarity) for a, (b, similarity) in like.items()},
            paragraphs=paragraphs[stays] - (np.uint64(n) << PARAGRAPH_BITS),
            paragraph_reasons=why[stays],
            files=tuple(FileCount(documents=row[0], characters=row[1], scripts=tuple(row[2:])) for row in counts),
            found=tuple(found),
        )

    def _paragraphs(self, reasons: np.ndarray, overlapping: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the sorted keys of the paragraphs to remove from documents that stay, with their reasons."""
        parts = [*self._removed, (overlapping, np.full(len(overlapping), code("evaluation"), np.uint8))]
        for keys in recurring(self._long, reasons > 0):
            parts.append((keys, np.full(len(keys), code("repeated"), np.uint8)))
        keys = np.concatenate([part for part, _ in parts])
        why = np.concatenate([part for _, part in parts])
        keys, first = np.unique(keys, return_index=True)
        why = why[first]
        stays = reasons[split_key(keys)[0]] == _NOT_REMOVED
        return keys[stays], why[stays]

    def _empty(self, reasons: np.ndarray, paragraphs: np.ndarray) -> None:
        """Mark documents that lost paragraphs and have no long one left."""
        left = np.concatenate(self._n_long) if self._n_long else np.zeros(0, np.int32)
        documents, _, long = split_key(paragraphs)
        np.subtract.at(left, documents[long], 1)
        touched = np.unique(documents)
        reasons[touched[left[touched] <= 0]] = code("nothing-left")


def _save(verdict: Verdict, folder: Path) -> None:
    for path in folder.glob("*"):
        path.unlink()
    np.save(folder / "documents.npy", verdict.documents)
    np.save(folder / "paragraphs.npy", verdict.paragraphs)
    np.save(folder / "paragraph_reasons.npy", verdict.paragraph_reasons)
    rest = {
        "files": [asdict(file) for file in verdict.files],
        "found": [asdict(file) for file in verdict.found],
        "like": [(a, b, similarity) for a, (b, similarity) in verdict.like.items()],
    }
    # Written last: its presence shows that the verdict is complete.
    write_text(folder / _DONE, json.dumps(rest))


def _load(folder: Path) -> Verdict:
    rest = json.loads((folder / _DONE).read_text("utf-8"))
    return Verdict(
        documents=np.load(folder / "documents.npy"),
        like={a: (b, similarity) for a, b, similarity in rest["like"]},
        paragraphs=np.load(folder / "paragraphs.npy"),
        paragraph_reasons=np.load(folder / "paragraph_reasons.npy"),
        files=tuple(FileCount(**{**file, "scripts": tuple(file["scripts"])}) for file in rest["files"]),
        found=tuple(Found(**{**file, "quotes": tuple(map(tuple, file["quotes"]))}) for file in rest["found"]),
    )
