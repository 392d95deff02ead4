"""Read parallel text: line i of one file is the translation of line i of the other."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from firth.errors import InputError
from firth.text.corpus import CorpusReader, ReadReport
from firth.text.records import Document


class ParallelReader:
    """Streams pairs of lines as documents of two paragraphs, any number of times, like ``CorpusReader``.

    Files are paired by their order. A pair with a blank side is skipped and counted in ``skipped``.
    InputError, with both counts, if one side has more files or lines.
    """

    def __init__(
        self,
        first: Sequence[str | Path],
        second: Sequence[str | Path],
        errors: Literal["replace", "strict"] = "replace",
    ):
        self._readers = CorpusReader(first, errors), CorpusReader(second, errors)
        ours, theirs = (reader.files for reader in self._readers)
        if len(ours) != len(theirs):
            raise InputError(
                f"{len(ours)} files of one language and {len(theirs)} of the other: expected equal numbers, in the "
                f"same order"
            )
        self._pairs = list(zip(ours, theirs, strict=True))
        self.files = [path for pair in self._pairs for path in pair]
        self.total_bytes = sum(reader.total_bytes for reader in self._readers)
        self.skipped = 0

    @property
    def bytes_consumed(self) -> int:
        return sum(reader.bytes_consumed for reader in self._readers)

    @property
    def report(self) -> ReadReport:
        """Statistics of both sides together; a document is a pair that was not skipped."""
        ours, theirs = (reader.report for reader in self._readers)
        return ReadReport(
            files=ours.files + theirs.files,
            bytes_read=ours.bytes_read + theirs.bytes_read,
            documents=ours.documents,
            paragraphs=2 * ours.documents,
            characters=ours.characters + theirs.characters,
            bad_bytes=ours.bad_bytes + theirs.bad_bytes,
            bad_places=[*ours.bad_places, *theirs.bad_places],
            cut_lines=0,
            cut_documents=0,
        )

    def __iter__(self) -> Iterator[Document]:
        self.skipped = 0
        for reader in self._readers:
            reader.begin()
        for paths in self._pairs:
            lines = [reader.lines_of(path) for reader, path in zip(self._readers, paths, strict=True)]
            for number, pair in enumerate(zip_longest(*lines), start=1):
                if None in pair:
                    self._refuse(paths, number, lines[pair.index(None) ^ 1], pair.index(None))
                ours, theirs = (line.strip() for line in pair)
                if not ours or not theirs:
                    self.skipped += 1
                    continue
                report, other = (reader.report for reader in self._readers)
                report.documents += 1
                report.characters += len(ours)
                other.characters += len(theirs)
                yield Document((ours, theirs), f"{paths[0]}:{number}")

    def _refuse(self, paths: tuple[Path, Path], number: int, longer: Iterator[str], ended: int) -> None:
        counts = [0, 0]
        counts[ended], counts[1 - ended] = number - 1, number + sum(1 for _ in longer)
        raise InputError(
            f"{paths[0]} has {counts[0]:,} lines and {paths[1]} {counts[1]:,}: line i of one must be the "
            f"translation of line i of the other"
        )
