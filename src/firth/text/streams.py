"""Read compressed files of several streams one after another, as parallel compressors and concatenation make them."""

import io
from collections.abc import Callable
from typing import Any, BinaryIO

_READ = 1 << 17  # bytes
# Bytes decompressed at a time. Three may hold a block of 128 kB (.zst), so these hold at most 44 MB.
_SLICE = 1 << 10


class UnpackedStreams(io.RawIOBase):
    """The decompressed bytes of all streams of a file; zeros between streams and at the end are padding.

    ``begin`` makes the decompressor of a stream, which raises one of ``errors`` for damaged data. EOFError for that,
    for a last stream that is cut off, and for anything else after a stream: the standard library's readers take a
    damaged stream for the end of the file.
    """

    def __init__(self, raw: BinaryIO, begin: Callable[[], Any], errors: tuple[type[Exception], ...]):
        self._raw, self._begin, self._errors = raw, begin, errors
        self._stream: Any = None
        self._packed = memoryview(b"")  # read, not yet decompressed
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            if not self._packed:
                self._packed = memoryview(self._raw.read(_READ))
                if not self._packed and self._stream is not None:
                    raise EOFError("the last stream ends too early")
                if not self._packed:
                    return 0
            if self._stream is None:
                self._packed = memoryview(self._packed.tobytes().lstrip(b"\0"))
                if not self._packed:
                    continue
                self._stream = self._begin()
            packed, self._packed = self._packed[:_SLICE], self._packed[_SLICE:]
            try:
                self._ready = self._stream.decompress(packed)
            except self._errors as error:
                raise EOFError(str(error)) from None
            if self._stream.eof:
                self._packed = memoryview(self._stream.unused_data + self._packed.tobytes())
                self._stream = None
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size
