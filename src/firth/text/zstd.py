"""Read .zst files; needs the extra ``data``."""

import io
from typing import BinaryIO

from firth.errors import InputError
from firth.text.streams import UnpackedStreams

# Dumps are compressed with --long=31; by default the library reads windows of at most 128 MB.
_LARGEST_WINDOW = 1 << 31  # bytes


def open_zstd(raw: BinaryIO) -> io.BufferedReader:
    """Open a .zst file as a stream of its decompressed bytes. InputError if the library is missing."""
    try:
        import zstandard
    except ImportError:
        raise InputError("reading .zst needs the extra: pip install 'firth[data]'") from None

    def begin() -> "zstandard.ZstdDecompressionObj":
        return zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).decompressobj()

    return io.BufferedReader(UnpackedStreams(raw, begin, (zstandard.ZstdError,)))
