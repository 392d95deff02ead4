"""Select the documents of a corpus: those that cleaning keeps, repeated by the weight of each file."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from hashlib import blake2b
from pathlib import Path
from typing import Protocol
from unicodedata import normalize

import numpy as np

from firth.corpus.clean import REASONS
from firth.corpus.duplicates import PARAGRAPH_BITS, split_key
from firth.corpus.survey import QUOTED, Readable, Verdict
from firth.errors import ConfigError
from firth.text.corpus import CorpusReader, ReadReport
from firth.text.parallel import ParallelReader
from firth.text.records import Document

MOST = 100.0  # highest weight
_SNIPPET = 160  # characters


class DocumentReader(Readable, Protocol):
    """Reads the documents of files: ``CorpusReader`` or ``ParallelReader``."""

    @property
    def report(self) -> ReadReport: ...


@dataclass(slots=True)
class Removed:
    """What was removed for one reason, with examples: (place, text, the document it resembles or "")."""

    documents: int = 0
    paragraphs: int = 0
    characters: int = 0
    examples: list[tuple[str, str, str]] = field(default_factory=list)


@dataclass(slots=True)
class FileTally:
    """What a file contributed: documents and characters counted once, and further copies."""

    documents: int = 0
    characters: int = 0
    copies: int = 0


def document_hash(paragraphs: Sequence[str], salt: str = "") -> int:
    """Compute a 64-bit hash of a document's text, by which documents are held out or sampled.

    The text is composed (NFC): a document in composed and in decomposed letters is one document.
    """
    text = normalize("NFC", "\n".join(paragraphs)).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8, salt=salt.encode()).digest(), "little")


def weights_of(files: Sequence[Path], given: Mapping[str, float] | Mapping[Path, float]) -> list[float]:
    """Return the weight of each file, from the last pattern that matches its path or name; 1 if none does.

    A Path instead of a pattern matches only that file.

    ConfigError for a pattern that matches no file, and for invalid weights.
    """
    weights = [1.0] * len(files)
    for pattern, weight in given.items():
        if not 0 <= weight <= MOST:
            raise ConfigError(f"--weight {pattern}={weight:g}: expected 0 to {MOST:g}")
        if isinstance(pattern, Path):
            matching = [number for number, file in enumerate(files) if file == pattern]
        else:
            matching = matching_files(files, pattern)
        if not matching:
            raise ConfigError(f"--weight {pattern}={weight:g}: none of the text files has such a path or name")
        for number in matching:
            weights[number] = weight
    if files and not any(weights):
        raise ConfigError("every file has weight 0: no text would be left")
    return weights


def matching_files(files: Sequence[Path], pattern: str) -> list[int]:
    """The indices of the files that a pattern matches or equals: by path, by name, or by a folder of the path.

    Names are compared composed (NFC): macOS writes them decomposed.
    """
    pattern = normalize("NFC", pattern)

    def matches(name: str) -> bool:
        return name == pattern or fnmatch(name, pattern)

    names = [[normalize("NFC", name) for name in (str(path), path.name, *path.parts)] for path in files]
    return [number for number, some in enumerate(names) if any(map(matches, some))]


class Selection:
    """Streams documents with the index of their copy (0 for the first), any number of times.

    All files come first, in order, then those with a weight above 1 again, and so on, so copies are far apart; ``read``
    reads them again as ``reader`` does. The fraction of a weight is sampled by a hash of the text. Documents with a
    hash below ``threshold`` are held out, and have no copies. ``removed`` and ``files`` describe the current or last
    pass; ``removed`` counts only the first reading of a file.
    """

    def __init__(
        self,
        reader: DocumentReader,
        verdict: Verdict | None = None,
        weights: Sequence[float] = (),
        read: Callable[[Sequence[Path]], DocumentReader] = CorpusReader,
    ):
        self._reader, self._read = reader, read
        self._of_pairs = isinstance(reader, ParallelReader)
        self._verdict = verdict
        self._weights = list(weights) or [1.0] * len(reader.files)
        self.threshold = 0
        copies = max([1, *(int(np.ceil(weight)) for weight in self._weights)])
        # The files of each additional reading.
        self._rounds = [[n for n, w in enumerate(self._weights) if w > copy] for copy in range(1, copies)]
        again = [reader.files[n] for chosen in self._rounds for n in chosen]
        self.total_bytes = reader.total_bytes + sum(path.stat().st_size for path in again)
        # Documents named in the examples of duplicates.
        self._wanted = frozenset(earlier for earlier, _ in verdict.like.values()) if verdict else frozenset[int]()
        self._begin()

    def _begin(self) -> None:
        self.removed: dict[str, Removed] = {}
        self.files = [FileTally() for _ in self._reader.files]
        self._named: dict[int, tuple[str, str]] = {}
        self._current: DocumentReader = self._reader
        self._done = 0

    @property
    def bytes_consumed(self) -> int:
        """Bytes read from disk so far, of ``total_bytes``."""
        return self._done + self._current.bytes_consumed

    def __iter__(self) -> Iterator[tuple[Document, int]]:
        self._begin()
        yield from self._reading(0)
        for copy, chosen in enumerate(self._rounds, start=1):
            self._done += self._current.total_bytes
            self._current = self._read([self._reader.files[n] for n in chosen])
            yield from self._reading(copy)

    def _reading(self, copy: int) -> Iterator[tuple[Document, int]]:
        """Yield the remaining documents of the current reader."""
        files = {str(path): number for number, path in enumerate(self._reader.files)}
        first = self._verdict.first if self._verdict is not None else []
        last, number = -1, 0
        for document in self._current:
            file = files[document.where.rpartition(":")[0]]
            number = number + 1 if file == last else first[file] if first else 0
            last = file
            kept = self._kept(document, number, tally=copy == 0)
            if kept is None or not self._is_sampled(kept, self._weights[file] - copy, copy):
                continue
            if copy and document_hash(kept.paragraphs) < self.threshold:
                continue
            # The sides of a pair are of two files, one after the other.
            sides = [(text,) for text in kept.paragraphs] if self._of_pairs else [kept.paragraphs]
            for tally, paragraphs in zip(self.files[file:], sides, strict=False):
                if copy:
                    tally.copies += 1
                else:
                    tally.documents += 1
                    tally.characters += sum(map(len, paragraphs))
            yield kept, copy

    def _is_sampled(self, document: Document, share: float, copy: int) -> bool:
        return share >= 1 or document_hash(document.paragraphs, f"copy {copy}") < share * 2**64

    def _kept(self, document: Document, number: int, *, tally: bool) -> Document | None:
        """Return the part of a document that the verdict keeps; None if nothing is left."""
        verdict = self._verdict
        if verdict is None:
            return document
        names = list(REASONS)
        if tally and number in self._wanted:
            self._named[number] = (document.where, document.paragraphs[0])
        if reason := int(verdict.documents[number]):
            if tally:
                self._count_document(document, number, names[reason - 1])
            return None
        begin, end = np.searchsorted(verdict.paragraphs, np.array([number, number + 1], np.uint64) << PARAGRAPH_BITS)
        if begin == end:
            return document
        gone = split_key(verdict.paragraphs[begin:end])[1].tolist()
        if tally:
            for place, why in zip(gone, verdict.paragraph_reasons[begin:end].tolist(), strict=True):
                self._count_paragraph(document, document.paragraphs[place], names[why - 1])
        left = set(gone)
        paragraphs = tuple(text for place, text in enumerate(document.paragraphs) if place not in left)
        return Document(paragraphs, document.where) if paragraphs else None

    def _count_document(self, document: Document, number: int, name: str) -> None:
        row = self.removed.setdefault(name, Removed())
        row.documents += 1
        row.characters += sum(map(len, document.paragraphs))
        if len(row.examples) < QUOTED:
            row.examples.append((document.where, _snippet(" / ".join(document.paragraphs)), self._like(number)))

    def _count_paragraph(self, document: Document, text: str, name: str) -> None:
        row = self.removed.setdefault(name, Removed())
        row.paragraphs += 1
        row.characters += len(text)
        if len(row.examples) < QUOTED:
            row.examples.append((document.where, _snippet(text), ""))

    def _like(self, number: int) -> str:
        """Describe the document that a duplicate resembles, for the card."""
        if self._verdict is None or number not in self._verdict.like:
            return ""
        earlier, similarity = self._verdict.like[number]
        if earlier < 0:
            return f"a document of the evaluation text, similarity {similarity:.2f}"
        where, title = self._named.get(earlier, ("", ""))
        return f"{where.rpartition('/')[2]}, similarity {similarity:.2f}: {_snippet(title)}"


def _snippet(text: str) -> str:
    return text if len(text) <= _SNIPPET else f"{text[: _SNIPPET - 1]}…"
