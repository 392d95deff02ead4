"""Read packed files (.gz, .xz, .bz2, .zst), and tell damaged ones from empty ones."""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from firth.text.zstd import open_zstd

# What the libraries raise for a file that is no archive, or only the beginning of one.
BROKEN_ARCHIVE = (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile)
# What packed files begin with; .xz may be of the older kind, .zst may begin with a frame to be skipped.
_MAGIC: dict[str, tuple[bytes, ...]] = {
    ".gz": (b"\x1f\x8b",),
    ".xz": (b"\xfd7", b"]\0"),
    ".bz2": (b"BZ",),
    ".zst": (b"\x28\xb5", *(bytes((0x50 + n, 0x2A)) for n in range(16))),
}


def unpacked(raw: io.BufferedReader, suffix: str) -> BinaryIO:
    """The contents of an open file whose name ends in ``suffix``; those of another name come as they are.

    Raises and reads raise what is in BROKEN_ARCHIVE for a damaged file.
    """
    # The libraries take an archive of no bytes, and one behind zeros, for an empty text.
    if suffix in _MAGIC and not raw.peek(2).startswith(_MAGIC[suffix]):
        raise EOFError("it does not begin as one")
    stream: object = raw
    if suffix == ".gz":
        stream = gzip.GzipFile(fileobj=raw)
    elif suffix == ".bz2":
        stream = bz2.BZ2File(raw)  # noqa: SIM115  # closed by whoever asked for it
    elif suffix == ".zst":
        stream = open_zstd(raw)
    elif suffix == ".xz":
        stream = lzma.LZMAFile(raw)  # noqa: SIM115  # closed by whoever asked for it
    return stream  # type: ignore[return-value]  # read as one


@contextmanager
def open_packed(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read its contents, unpacked if its name says that it is packed. Errors as in ``unpacked``."""
    with open(path, "rb") as raw, unpacked(raw, path.suffix.lower()) as stream:
        yield stream
