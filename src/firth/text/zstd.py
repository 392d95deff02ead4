"""Read .zst files; needs the extra ``data``."""

import io
from typing import Any, BinaryIO

from firth.errors import InputError

_READ = 1 << 17  # bytes
# Dumps are compressed with --long=31; by default the library reads windows of at most 128 MB.
_LARGEST_WINDOW = 1 << 31  # bytes


class _Unpacked(io.RawIOBase):
    """The decompressed bytes of all frames of a .zst file; EOFError if the last one is truncated."""

    def __init__(self, raw: BinaryIO, zstandard: Any):
        self._raw = raw
        self._zstandard = zstandard
        self._frame: Any = None
        self._packed = b""  # read, not yet decompressed
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            if not self._packed and not (packed := self._raw.read(_READ)):
                if self._frame is not None:
                    raise EOFError("the last frame ends too early")
                return 0
            if not self._packed:
                self._packed = packed
            try:
                if self._frame is None:
                    unpacker = self._zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
                    self._frame = unpacker.decompressobj()
                self._ready = self._frame.decompress(self._packed)
            except self._zstandard.ZstdError as error:
                raise EOFError(str(error)) from None
            self._packed = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = None
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


def open_zstd(raw: BinaryIO) -> io.BufferedReader:
    """Open a .zst file as a stream of its decompressed bytes. InputError if the library is missing."""
    try:
        import zstandard
    except ImportError:
        raise InputError("reading .zst needs the extra: pip install 'firth[data]'") from None
    return io.BufferedReader(_Unpacked(raw, zstandard))
