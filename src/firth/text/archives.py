"""Read compressed files (.gz, .xz, .bz2, .zst), and distinguish damaged files from empty ones."""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from firth.errors import InputError
from firth.files import check_regular
from firth.manifest import POINTER_ADVICE, is_pointer
from firth.text.streams import UnpackedStreams
from firth.text.zstd import open_zstd

# What the libraries raise for a file that is not an archive, or a truncated one.
BROKEN_ARCHIVE = (EOFError, zlib.error, gzip.BadGzipFile)
# Magic bytes of compressed files; .xz may be the older .lzma, .zst may start with a skippable frame.
_MAGIC: dict[str, tuple[bytes, ...]] = {
    ".gz": (b"\x1f\x8b",),
    ".xz": (b"\xfd7", b"]\0"),
    ".bz2": (b"BZ",),
    ".zst": (b"\x28\xb5", *(bytes((0x50 + n, 0x2A)) for n in range(16))),
}


def unpacked(raw: io.BufferedReader, suffix: str) -> BinaryIO:
    """Decompress an open file whose name ends in ``suffix``; other files are returned unchanged.

    Opening or reading a damaged file raises an exception of BROKEN_ARCHIVE; a pointer of Git LFS is an InputError.
    """
    if is_pointer(raw.peek(64)):
        raise InputError(f"{getattr(raw, 'name', 'the file')}: {POINTER_ADVICE}")
    # The libraries read a file of no bytes, and an archive preceded by zeros, as an empty text.
    if suffix in _MAGIC and not raw.peek(2).startswith(_MAGIC[suffix]):
        raise EOFError("wrong magic bytes")
    stream: object = raw
    if suffix == ".gz":
        stream = gzip.GzipFile(fileobj=raw)
    elif suffix == ".bz2":
        stream = io.BufferedReader(UnpackedStreams(raw, bz2.BZ2Decompressor, (OSError,)))
    elif suffix == ".zst":
        stream = open_zstd(raw)
    elif suffix == ".xz":
        stream = io.BufferedReader(UnpackedStreams(raw, lzma.LZMADecompressor, (lzma.LZMAError,)))
    return stream  # type: ignore[return-value]  # read as one


@contextmanager
def open_packed(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed according to its suffix.

    Errors as in ``unpacked``; OSError for a pipe or device.
    """
    check_regular(path)
    with open(path, "rb") as raw, unpacked(raw, path.suffix.lower()) as stream:
        yield stream
