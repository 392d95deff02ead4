"""Read documents from text files in constant memory: plain text, JSONL, Parquet, Wikipedia dumps; also compressed.

Plain text: blank lines separate documents, every other line is one paragraph. JSONL (.jsonl, .ndjson, .json): one
document per line, an object whose "text" holds the paragraphs, one per line. Parquet: the same, one document per row
of the column "text". Wikipedia dumps (``pages-articles.xml``): one document per article.
"""

import codecs
import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Literal

from firth.errors import ConfigError, InputError
from firth.progress import say
from firth.remote import RemotePath
from firth.text.archives import BROKEN_ARCHIVE, unpacked
from firth.text.encodings import conversion, is_utf16, wide_encoding
from firth.text.finding import PACKED, SURROGATE, bare_name, find_files, reason_of
from firth.text.parquet import texts_of_parquet
from firth.text.records import Document
from firth.text.wikipedia import articles

LINE_LIMIT = 1_000_000  # characters of one paragraph
DOCUMENT_LIMIT = 2_000_000  # characters of one document
_JSON_LIMIT = 256 * LINE_LIMIT  # characters of one JSONL line, which cannot be split
_BLOCK = 1 << 18  # bytes
_PLACES = 5  # positions of invalid bytes to keep
# Largest share of invalid bytes in a file's first block, and the shortest block in which they are counted.
_MOST_BAD, _ENOUGH = 0.2, 1000
_JSONL = (".jsonl", ".ndjson", ".json")
_TABLES = (".tsv", ".csv")
_OTHER_PACKED = (".zip", ".7z", ".tar", ".tgz", ".tbz2", ".txz", ".lz4")


@dataclass(slots=True)
class ReadReport:
    """Statistics of one pass over the files so far.

    ``bytes_read`` counts decompressed bytes. A bad place is a pair (file, offset in the decompressed bytes).
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


def read_text_lines(path: Path) -> Iterator[str]:
    """Yield each line of a text file, compressed or not, unchanged and at any length; InputError if it is not UTF-8."""
    reader = CorpusReader([path], errors="strict")
    parts: list[str] = []
    for _, part, ends in reader.raw_lines(path):
        parts.append(part)
        if ends:
            yield "".join(parts)
            parts = []
    if parts:
        yield "".join(parts)


class CorpusReader:
    """Streams the documents of text files, any number of times.

    ``report`` describes the current or last pass. Its progress is ``bytes_consumed`` of ``total_bytes``, both
    counted on disk. Bytes that are not UTF-8 become U+FFFD and are counted, or with
    ``errors="strict"`` raise InputError. Lines and documents beyond the limits are split and counted.
    ``books``: each plain text file is one document, and blank lines separate its paragraphs, whose lines are joined.
    """

    def __init__(
        self, paths: Sequence[str | Path], errors: Literal["replace", "strict"] = "replace", *, books: bool = False
    ):
        if errors not in ("replace", "strict"):
            raise ConfigError(f"errors={errors!r}: expected 'replace' or 'strict'")
        self.files = find_files(paths)
        self.errors, self.books = errors, books
        self.report = ReadReport()
        self.bytes_consumed = 0
        self.total_bytes = sum(_size(path) for path in self.files)

    @property
    def named(self) -> str:
        """A short description of the files, for a message."""
        more = f" and {len(self.files) - 1} more files" if len(self.files) > 1 else ""
        return f"{self.files[0]}{more}"

    def begin(self) -> None:
        """Start a pass and reset all counts."""
        self.report, self.bytes_consumed = ReadReport(), 0

    def lines_of(self, path: Path) -> Iterator[str]:
        """Yield every line of one of the files unchanged, blank ones too; InputError for one beyond the limit.

        Call ``begin`` once, then this for each file in turn.
        """
        if bare_name(path.name).endswith((*_JSONL, ".xml", ".parquet")):
            raise InputError(f"{path}: expected plain text, one sentence per line, not JSONL, XML or Parquet")
        before = self.bytes_consumed
        self.report.files += 1
        # As in other line-by-line files, \r ends a line only before \n, so that two texts stay aligned.
        for number, (line, ends) in enumerate(_split_lines(self._texts(path), bare_returns=False), start=1):
            if not ends:
                raise InputError(
                    f"{path}:{number}: found a line of more than {LINE_LIMIT:,} characters, expected a sentence"
                )
            yield line.removesuffix("\r")
        self.bytes_consumed = before + _size(path)

    def __iter__(self) -> Iterator[Document]:
        for _, documents in self.by_file():
            yield from documents

    def by_file(self) -> Iterator[tuple[Path, Iterator[Document]]]:
        """Start a pass: yield each file with its documents, which must be read before the next file is requested."""
        self.begin()
        for path in self.files:
            self.report.files += 1
            before = self.bytes_consumed
            yield path, self._documents(path, self._groups(path))
            self.bytes_consumed = before + _size(path)

    def _groups(self, path: Path) -> Iterator[tuple[int, Iterable[str]]]:
        """Yield the documents of one file, by its suffix: the number of the line, page or row, and the paragraphs."""
        name = bare_name(path.name)
        if name.endswith(_JSONL):
            return self._jsonl(path, self.raw_lines(path))
        if name.endswith(".parquet"):
            return self._texts_with_lines(path, texts_of_parquet(path, self._moved))
        if name.endswith(".xml"):
            return self._articles(path)
        if name.endswith(_TABLES):
            _tell_table(str(path))
        groups = self._plain(self.raw_lines(path))
        return self._book(groups) if self.books else groups

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
        """Convert groups of paragraphs with their first line numbers to documents within the limit."""
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
        """Yield one group per run of non-blank lines."""
        for number, first, ends in lines:
            paragraphs = self._paragraphs_of_run(first, ends, lines)
            start = next(paragraphs, None)
            if start is not None:
                yield number, _chain(start, paragraphs)

    def _book(self, runs: Iterator[tuple[int, Iterable[str]]]) -> Iterator[tuple[int, Iterable[str]]]:
        """Yield one group, with a paragraph for each run of lines, split where it would exceed the limit of a line."""
        first = next(runs, None)
        if first is None:
            return

        def paragraphs() -> Iterator[str]:
            for _, lines in chain([first], runs):
                held, size = list[str](), 0
                for line in lines:
                    if held and size + len(line) > LINE_LIMIT:
                        self.report.cut_lines += 1
                        yield " ".join(held)
                        held, size = [], 0
                    held.append(line)
                    size += len(line) + 1
                yield " ".join(held)

        yield first[0], paragraphs()

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
        unsure = bare_name(path.name).endswith(".json")
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
                    if unsure:
                        _check_is_jsonl(path, line)
                        unsure = False
                    yield number, self._paragraphs_of_json(f"{path}:{number}", line)

    def _paragraphs_of_json(self, where: str, line: str) -> Iterator[str]:
        return self._paragraphs_of_text(where, _text_of_json(where, line))

    def _paragraphs_of_text(self, where: str, text: str) -> Iterator[str]:
        n_bad = len(SURROGATE.findall(text))
        if n_bad:
            if self.errors == "strict":
                raise InputError(f"{where}: the text has an unpaired surrogate; it is not valid Unicode")
            self.report.bad_bytes += n_bad
            text = SURROGATE.sub("\ufffd", text)
        was_cut = False
        for paragraph, ends in _split_lines([text]):
            self.report.cut_lines += not ends and not was_cut
            was_cut = not ends
            if paragraph.strip():
                yield paragraph.strip()

    def raw_lines(self, path: Path) -> Iterator[tuple[int, str, bool]]:
        """Yield (line number from 1, text, whether the line ends here); lines beyond the limit come in parts."""
        number = 1
        for text, ends in _split_lines(self._texts(path)):
            yield number, text, ends
            number += ends

    def _texts(self, path: Path) -> Iterator[str]:
        """Yield the file as blocks of decoded text."""
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
                    f"{path}: not UTF-8 at byte {offset + error.start}; {conversion(path, data)}"
                ) from None
        text, used = codecs.utf_8_decode(data, "replace", final)
        # A U+FFFD in the file itself is not an error; its three bytes cannot be part of another character.
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
        raise InputError(f"{path}: cannot be read: {reason_of(error)}") from None


def _chain(first: str, rest: Iterable[str]) -> Iterator[str]:
    yield first
    yield from rest


def _check_is_jsonl(path: Path, line: str) -> None:
    """InputError unless the first line of a file named .json is a whole object, as in JSONL."""
    try:
        if isinstance(json.loads(line), dict):
            return
    except (ValueError, RecursionError):
        pass  # the first line of a longer document, or not JSON at all
    how = "write one object per line"
    if line.lstrip().startswith("[") and path.suffix.lower() == ".json" and not isinstance(path, RemotePath):
        lines = path.with_suffix(".jsonl")
        how += f", such as by: jq -c '.[]' {shlex.quote(str(path))} > {shlex.quote(str(lines))}"
    raise InputError(f'{path}: expected JSON lines such as {{"text": "..."}}, and its first line is no object; {how}')


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
    """Yield (block of decompressed bytes, position in the file on disk); the last block is empty."""
    suffix = path.suffix.lower()
    if bare_name(path.name).endswith(_OTHER_PACKED):
        archive = "".join(path.suffixes[-2:]) if suffix in PACKED else suffix
        raise InputError(f"{path}: {archive} is not supported; decompress it, or compress it as {', '.join(PACKED)}")
    try:
        with path.open("rb") as raw, unpacked(raw, suffix) as stream:
            while block := stream.read(_BLOCK):
                yield block, raw.tell() if raw.seekable() else 0
            yield b"", raw.tell() if raw.seekable() else 0
    except BROKEN_ARCHIVE as error:
        raise InputError(f"{path}: broken or truncated {suffix} archive ({error}); download or pack it again") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {reason_of(error)}") from None


class _Stream:
    """A file object over blocks of bytes; ``position``: the position in the file on disk."""

    def __init__(self, blocks: Iterator[tuple[bytes, int]]):
        self._blocks = blocks
        self._rest = b""
        self._taken = 0
        self.position = 0

    def read(self, size: int = -1) -> bytes:
        """Read at most ``size`` bytes; b"" at the end."""
        if not self._rest:
            self._rest, self.position = next(self._blocks, (b"", self.position))
            self._taken += len(self._rest)
        size = len(self._rest) if size < 0 else size
        block, self._rest = self._rest[:size], self._rest[size:]
        return block

    def taken(self) -> int:
        """Bytes read since the last call."""
        taken, self._taken = self._taken, 0
        return taken


@cache  # a file may be read several times
def _tell_table(path: str) -> None:
    """Warn that a file looks like a table. It is read anyway: plain text with tabs may have such a name."""
    name, file = bare_name(path), shlex.quote(path)
    command = f"cut -f2 {file} | sed G > text.txt"
    if name.endswith(".csv"):  # quoted fields may contain commas
        rows = "import csv, sys; [print(row[1] + chr(10)) for row in csv.reader(open(sys.argv[1]))]"
        command = f'python3 -c "{rows}" {file} > text.txt'
    if name != path.lower():
        command = "unpack it, then take the column"
    say(
        f"{path} looks like a table: each row is read as a paragraph, labels and numbers too. To train on its text, "
        f"write the column of text to a file first, with a blank line after each, such as the second one: {command}"
    )


def _check_is_text(path: Path, block: bytes) -> None:
    if wide := wide_encoding(block):
        raise InputError(f"{path}: {wide} text; {conversion(path, block)}")
    # A few bytes that are not UTF-8 are damage; in a file of another encoding hardly a letter would be left.
    n_bad = len(block) - len(block.decode("utf-8", "ignore").encode())
    if len(block) >= _ENOUGH and n_bad > _MOST_BAD * len(block) and not block.count(0):
        raise InputError(f"{path}: {n_bad / len(block):.0%} of its bytes are not UTF-8; {conversion(path, block)}")
    n_zero = block.count(0)
    if not n_zero:
        return
    if is_utf16(block) and 10 * max(block[::2].count(0), block[1::2].count(0)) >= 9 * n_zero:
        raise InputError(f"{path}: looks like UTF-16 text; {conversion(path, block)}")
    # Real text may contain a stray NUL, which the tokenizer drops; many of them, or NULs along with bytes
    # that are not UTF-8, mean a binary file.
    if n_zero * 100 > len(block) or _valid_prefix(block) + 4 < len(block):
        raise InputError(f"{path}: not a text file; expected UTF-8 text or JSONL")


def _valid_prefix(block: bytes) -> int:
    try:
        return codecs.utf_8_decode(block, "strict", False)[1]
    except UnicodeDecodeError as error:
        return error.start


def _split_lines(texts: Iterable[str], *, bare_returns: bool = True) -> Iterator[tuple[str, bool]]:
    """Split text into (part, whether a line ends with it); a line beyond the limit comes in several parts.

    Newlines are \\n, \\r\\n and, with ``bare_returns``, \\r, not the others that ``str.splitlines`` splits at.
    """
    held = ""
    for text in texts:
        held += text
        # A \r at the very end may be the first half of \r\n.
        ready, held = (held[:-1], "\r") if held.endswith("\r") else (held, "")
        ready = ready.replace("\r\n", "\n")
        *lines, last = (ready.replace("\r", "\n") if bare_returns else ready).split("\n")
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
    """Split after the last white space within the limit, or at the limit if there is none."""
    while len(line) > LINE_LIMIT:
        at = max(line.rfind(space, 0, LINE_LIMIT) for space in " \t\u3000") + 1 or LINE_LIMIT
        yield line[:at], False
        line = line[at:]
    yield line, ends
