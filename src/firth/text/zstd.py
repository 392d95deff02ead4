"""Read .zst files; needs the extra ``data``."""

import io
from typing import Any, BinaryIO

from firth.errors import InputError

_READ = 1 << 17  # bytes
# Bytes decompressed at a time. Three may hold a block of 128 kB, so these hold at most 44 MB.
_SLICE = 1 << 10
# Dumps are compressed with --long=31; by default the library reads windows of at most 128 MB.
_LARGEST_WINDOW = 1 << 31  # bytes


class _Unpacked(io.RawIOBase):
    """The decompressed bytes of all frames of a .zst file; EOFError if the last one is truncated."""

    def __init__(self, raw: BinaryIO, zstandard: Any):
        self._raw = raw
        self._zstandard = zstandard
        self._frame: Any = None
        self._packed = memoryview(b"")  # read, not yet decompressed
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            if not self._packed:
                self._packed = memoryview(self._raw.read(_READ))
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("the last frame ends too early")
                return 0
            packed, self._packed = self._packed[:_SLICE], self._packed[_SLICE:]
            try:
                if self._frame is None:
                    unpacker = self._zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
                    self._frame = unpacker.decompressobj()
                self._ready = self._frame.decompress(packed)
            except self._zstandard.ZstdError as error:
                raise EOFError(str(error)) from None
            if self._frame.eof:
                self._packed = memoryview(self._frame.unused_data + self._packed.tobytes())
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
