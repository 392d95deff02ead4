"""Files of text -> documents, in constant memory: plain text, JSONL, Parquet and Wikipedia dumps, bare or packed.

Plain text: blank lines separate documents, every other line is one paragraph. JSONL: one document per
line, an object whose "text" holds the paragraphs, one per line. Parquet: the same, one document per row
of the column "text". Wikipedia dumps (``pages-articles.xml``): one document per article.
"""

import codecs
import glob
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from firth.errors import InputError
from firth.progress import say
from firth.text.archives import BROKEN_ARCHIVE, unpacked
from firth.text.parquet import texts_of_parquet
from firth.text.records import Document
from firth.text.wikipedia import articles

SUFFIXES = (".txt", ".jsonl", ".text", ".md", ".xml", ".parquet")
PACKED = (".gz", ".xz", ".bz2", ".zst")

LINE_LIMIT = 1_000_000  # characters of one paragraph
DOCUMENT_LIMIT = 2_000_000  # characters of one document
_JSON_LIMIT = 256 * LINE_LIMIT  # characters of one JSONL line, which cannot be cut
_BLOCK = 1 << 18  # bytes
_PLACES = 5  # bad bytes whose place is kept
_TABLES = (".tsv", ".csv")
_OTHER_PACKED = (".zip", ".7z", ".tar", ".lz4")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(slots=True)
class ReadReport:
    """What one pass over the files has met so far.

    ``bytes_read`` counts unpacked bytes. A bad place is (file, offset in the unpacked bytes).
    """

    files: int = 0
    bytes_read: int = 0
    documents: int = 0
    paragraphs: int = 0
    characters: int = 0
    bad_bytes: int = 0
    bad_places: list[tuple[str, int]] = field(default_factory=list)
    cut_lines: int = 0
    cut_documents: int = 0


def find_files(paths: Sequence[str | Path]) -> list[Path]:
    """The text files that files, folders and glob patterns name, each once, in the order given.

    Folders are searched to the bottom in sorted order; hidden names and other suffixes are left out.
    A file named outright is taken whatever its suffix. Raises InputError for what leads to no file.
    """
    if not paths:
        raise InputError("no text files given; name at least one file, folder or glob pattern")
    found: dict[str, Path] = {}
    for given in paths:
        for path in _files_of(str(given)):
            found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def _files_of(given: str) -> list[Path]:
    path = Path(given)
    try:
        if path.is_dir():
            return _files_in(path)
        if path.exists():
            return [path]
    except (OSError, ValueError) as error:
        raise InputError(f"{given!r}: cannot be read: {_reason(error)}") from None
    if not glob.has_magic(given):
        raise InputError(f"{given}: no such file or folder; check the path")
    files: list[Path] = []
    for match in sorted(glob.glob(given, recursive=True)):
        if not os.path.isdir(match):
            files.append(Path(match))
    if not files:
        raise InputError(f"{given}: no file matches this pattern; check it or name the files")
    return files


def _files_in(folder: Path) -> list[Path]:
    def fail(error: OSError) -> None:
        raise InputError(f"{error.filename}: the folder cannot be read: {_reason(error)}")

    files: list[Path] = []
    for root, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(root, name) for name in names if _is_text_name(name)]
    if not files:
        raise InputError(
            f"{folder}: no text file in this folder; expected names ending in {' '.join(SUFFIXES)}, "
            f"bare or with {' or '.join(PACKED)}"
        )
    return sorted(files)


def _is_text_name(name: str) -> bool:
    return not name.startswith(".") and bare_name(name).endswith(SUFFIXES)


def bare_name(name: str) -> str:
    """A file name in lower case, without the suffix of what it is packed with."""
    lower = name.lower()
    return lower.rpartition(".")[0] if lower.endswith(PACKED) else lower


def read_lines(path: Path) -> Iterator[str]:
    """Every line of one UTF-8 text file, packed or not, as it stands; lines of any length are whole."""
    reader = CorpusReader([path])
    parts: list[str] = []
    for _, part, ends in reader.raw_lines(path):
        parts.append(part)
        if ends:
            yield "".join(parts)
            parts = []
    if parts:
        yield "".join(parts)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class CorpusReader:
    """Documents of text files, read as a stream as often as wanted.

    ``report`` describes the pass that runs or ran last. ``bytes_consumed`` of ``total_bytes`` (both on
    disk) says how far that pass is. Bytes that are not UTF-8 become U+FFFD and are counted, or with
    ``errors="strict"`` raise InputError. Lines and documents beyond the limits are cut and counted.
    """

    def __init__(self, paths: Sequence[str | Path], errors: Literal["replace", "strict"] = "replace"):
        self.files = find_files(paths)
        self.errors = errors
        self.report = ReadReport()
        self.bytes_consumed = 0
        self.total_bytes = sum(_size(path) for path in self.files)

    def begin(self) -> None:
        """Begin a pass: what was counted is counted anew."""
        self.report, self.bytes_consumed = ReadReport(), 0

    def lines_of(self, path: Path) -> Iterator[str]:
        """Every line of one of the files as it stands, blank ones too; InputError for one beyond the limit.

        A pass over lines is of the files one after the other, after ``begin``.
        """
        if bare_name(path.name).endswith((".jsonl", ".xml", ".parquet")):
            raise InputError(f"{path}: expected plain text, a sentence a line, not JSONL, XML or Parquet")
        before = self.bytes_consumed
        self.report.files += 1
        for number, line, ends in self.raw_lines(path):
            if not ends:
                raise InputError(f"{path}:{number}: a line of more than {LINE_LIMIT:,} characters is no sentence")
            yield line
        self.bytes_consumed = before + _size(path)

    def __iter__(self) -> Iterator[Document]:
        self.begin()
        for path in self.files:
            self.report.files += 1
            before = self.bytes_consumed
            yield from self._documents(path, self._groups(path))
            self.bytes_consumed = before + _size(path)

    def _groups(self, path: Path) -> Iterator[tuple[int, Iterable[str]]]:
        """Documents of one file, by what its name says it is: the number of a line, page or row, and paragraphs."""
        name = bare_name(path.name)
        if name.endswith(".jsonl"):
            return self._jsonl(path, self.raw_lines(path))
        if name.endswith(".parquet"):
            return self._texts_with_lines(path, texts_of_parquet(path, self._moved))
        if name.endswith(".xml"):
            return self._articles(path)
        if name.endswith(_TABLES):
            # Read as it stands all the same: text with tabs in it has been called that before.
            say(
                f"{path} looks like a table: each row is read as a paragraph, labels and numbers too. To train on its "
                f"text, write the column of text to a file first, such as: cut -f1 {path.name} > text.txt"
            )
        return self._plain(self.raw_lines(path))

    def _moved(self, position: int) -> None:
        self.bytes_consumed += position

    def _articles(self, path: Path) -> Iterator[tuple[int, Iterable[str]]]:
        before = self.bytes_consumed
        stream = _Stream(_blocks(path))
        for number, paragraphs in articles(stream, str(path)):
            self.bytes_consumed = before + stream.position
            self.report.bytes_read += stream.taken()
            if paragraphs:
                yield number, self._paragraphs_of_text(f"{path}:{number}", "\n".join(paragraphs))
        self.report.bytes_read += stream.taken()

    def _texts_with_lines(self, path: Path, texts: Iterator[tuple[int, str]]) -> Iterator[tuple[int, Iterable[str]]]:
        for row, text in texts:
            self.report.bytes_read += len(text.encode("utf-8", "surrogatepass"))
            yield row, self._paragraphs_of_text(f"{path}:{row}", text)

    def _documents(self, path: Path, groups: Iterable[tuple[int, Iterable[str]]]) -> Iterator[Document]:
        """Groups of paragraphs with the number of their first line -> documents within the limit."""
        for line, paragraphs in groups:
            held: list[str] = []
            size, was_cut = 0, False
            for paragraph in paragraphs:
                if held and size + len(paragraph) > DOCUMENT_LIMIT:
                    self.report.cut_documents += not was_cut
                    was_cut = True
                    yield self._document(path, line, held, size)
                    held, size = [], 0
                held.append(paragraph)
                size += len(paragraph)
            if held:
                yield self._document(path, line, held, size)

    def _document(self, path: Path, line: int, paragraphs: list[str], size: int) -> Document:
        self.report.documents += 1
        self.report.paragraphs += len(paragraphs)
        self.report.characters += size
        return Document(tuple(paragraphs), f"{path}:{line}")

    def _plain(self, lines: Iterator[tuple[int, str, bool]]) -> Iterator[tuple[int, Iterable[str]]]:
        """One group per run of lines that are not blank."""
        for number, first, ends in lines:
            paragraphs = self._paragraphs_of_run(first, ends, lines)
            start = next(paragraphs, None)
            if start is not None:
                yield number, _chain(start, paragraphs)

    def _paragraphs_of_run(self, text: str, ends: bool, lines: Iterator[tuple[int, str, bool]]) -> Iterator[str]:
        continued = False
        while True:
            paragraph = text.strip()
            if paragraph:
                yield paragraph
            elif ends and not continued:
                return
            if not ends and not continued:
                self.report.cut_lines += 1
            continued = not ends
            following = next(lines, None)
            if following is None:
                return
            _, text, ends = following

    def _jsonl(self, path: Path, lines: Iterator[tuple[int, str, bool]]) -> Iterator[tuple[int, Iterable[str]]]:
        parts: list[str] = []
        size = 0
        for number, part, ends in lines:
            parts.append(part)
            size += len(part)
            if size > _JSON_LIMIT:
                raise InputError(
                    f"{path}:{number}: a line of more than {_JSON_LIMIT} characters; is this really JSONL?"
                )
            if ends:
                line, parts, size = "".join(parts), [], 0
                if line.strip():
                    yield number, self._paragraphs_of_json(f"{path}:{number}", line)

    def _paragraphs_of_json(self, where: str, line: str) -> Iterator[str]:
        return self._paragraphs_of_text(where, _text_of_json(where, line))

    def _paragraphs_of_text(self, where: str, text: str) -> Iterator[str]:
        n_bad = len(_SURROGATE.findall(text))
        if n_bad:
            if self.errors == "strict":
                raise InputError(f"{where}: the text has half a surrogate pair; it is not valid Unicode")
            self.report.bad_bytes += n_bad
            text = _SURROGATE.sub("\ufffd", text)
        was_cut = False
        for paragraph, ends in _split_lines([text]):
            self.report.cut_lines += not ends and not was_cut
            was_cut = not ends
            if paragraph.strip():
                yield paragraph.strip()

    def raw_lines(self, path: Path) -> Iterator[tuple[int, str, bool]]:
        """(line number from 1, text, whether the line ends here): lines beyond the limit come in parts."""
        number = 1
        for text, ends in _split_lines(self._texts(path)):
            yield number, text, ends
            number += ends

    def _texts(self, path: Path) -> Iterator[str]:
        """The file as blocks of text, decoded."""
        before, offset, rest = self.bytes_consumed, 0, b""
        for block, position in _blocks(path):
            if offset == 0 and not rest:
                _check_is_text(path, block)
            self.bytes_consumed = before + position
            self.report.bytes_read += len(block)
            data = rest + block
            text, used = self._decode(path, data, offset, final=not block)
            yield text.removeprefix("\ufeff") if offset == 0 else text
            rest = data[used:]
            offset += used

    def _decode(self, path: Path, data: bytes, offset: int, final: bool) -> tuple[str, int]:
        try:
            return codecs.utf_8_decode(data, "strict", final)
        except UnicodeDecodeError as error:
            if self.errors == "strict":
                raise InputError(
                    f"{path}: not UTF-8 at byte {offset + error.start}; convert the file to UTF-8 or "
                    "read it with errors='replace'"
                ) from None
        text, used = codecs.utf_8_decode(data, "replace", final)
        # A U+FFFD that the file itself holds is no error; its three bytes cannot be part of another one.
        self.report.bad_bytes += text.count("\ufffd") - data[:used].count("\ufffd".encode())
        self._keep_places(str(path), data[:used], offset)
        return text, used

    def _keep_places(self, path: str, data: bytes, offset: int) -> None:
        position = 0
        while len(self.report.bad_places) < _PLACES:
            try:
                codecs.utf_8_decode(data[position:], "strict", True)
                return
            except UnicodeDecodeError as error:
                self.report.bad_places.append((path, offset + position + error.start))
                position += error.end


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {_reason(error)}") from None


def _chain(first: str, rest: Iterable[str]) -> Iterator[str]:
    yield first
    yield from rest


def _text_of_json(where: str, line: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "cannot be parsed"
        raise InputError(
            f'{where}: not JSON ({reason}); expected one object per line, such as {{"text": "..."}}'
        ) from None
    if not isinstance(value, dict):
        raise InputError(f'{where}: expected an object with a string "text", got {type(value).__name__}')
    if "text" not in value:
        keys = ", ".join(map(repr, list(value)[:5])) or "none"
        raise InputError(f'{where}: the object has no "text" (keys: {keys}); rename the key that holds it')
    if not isinstance(value["text"], str):
        raise InputError(f'{where}: "text" must be a string, got {type(value["text"]).__name__}')
    return value["text"]


def _blocks(path: Path) -> Iterator[tuple[bytes, int]]:
    """(block of unpacked bytes, position in the file on disk); the last block is empty."""
    suffix = path.suffix.lower()
    if suffix in _OTHER_PACKED:
        raise InputError(f"{path}: {suffix} is not supported; unpack it, or pack it as {', '.join(PACKED)}")
    try:
        with open(path, "rb") as raw, unpacked(raw, suffix) as stream:
            while block := stream.read(_BLOCK):
                yield block, raw.tell() if raw.seekable() else 0
            yield b"", raw.tell() if raw.seekable() else 0
    except BROKEN_ARCHIVE as error:
        raise InputError(f"{path}: broken or truncated {suffix} archive ({error}); fetch or pack it again") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {_reason(error)}") from None


class _Stream:
    """Blocks of bytes as a file that is read: ``position`` is that in the file on disk."""

    def __init__(self, blocks: Iterator[tuple[bytes, int]]):
        self._blocks = blocks
        self._rest = b""
        self._taken = 0
        self.position = 0

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes, b"" at the end."""
        if not self._rest:
            self._rest, self.position = next(self._blocks, (b"", self.position))
            self._taken += len(self._rest)
        size = len(self._rest) if size < 0 else size
        block, self._rest = self._rest[:size], self._rest[size:]
        return block

    def taken(self) -> int:
        """Bytes read since this was asked last."""
        taken, self._taken = self._taken, 0
        return taken


def _check_is_text(path: Path, block: bytes) -> None:
    if block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputError(f"{path}: UTF-16 text; convert it to UTF-8")
    n_zero = block.count(0)
    if not n_zero:
        return
    # A stray NUL happens in real text and is dropped by the tokenizer; many of them, or NULs beside bytes
    # that are not UTF-8, do not.
    if n_zero * 100 > len(block) or _valid_prefix(block) + 4 < len(block):
        raise InputError(f"{path}: not a text file; expected UTF-8 text or JSONL")


def _valid_prefix(block: bytes) -> int:
    try:
        return codecs.utf_8_decode(block, "strict", False)[1]
    except UnicodeDecodeError as error:
        return error.start


def _split_lines(texts: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Pieces of text and whether a line ends with them; a line beyond the limit comes in several pieces.

    Newlines are \\n, \\r\\n and \\r, not the further ones that ``str.splitlines`` knows.
    """
    held = ""
    for text in texts:
        held += text
        # \r at the very end may be the first half of \r\n.
        ready, held = (held[:-1], "\r") if held.endswith("\r") else (held, "")
        *lines, last = ready.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        for line in lines:
            yield from _cut(line, True)
        held = last + held
        if len(held) > LINE_LIMIT:
            *pieces, (held, _) = _cut(held, False)
            yield from pieces
    if held.endswith("\r"):
        yield held[:-1], True
    elif held:
        yield held, True


def _cut(line: str, ends: bool) -> Iterator[tuple[str, bool]]:
    """Cut behind the last white space within the limit, or at the limit where there is none."""
    while len(line) > LINE_LIMIT:
        at = max(line.rfind(space, 0, LINE_LIMIT) for space in " \t\u3000") + 1 or LINE_LIMIT
        yield line[:at], False
        line = line[at:]
    yield line, ends
