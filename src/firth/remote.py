"""Files at addresses such as s3://bucket/text.txt, by fsspec: read in ranges, or copied whole into a bounded cache."""

import hashlib
import io
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path, PosixPath
from typing import Any, TypeVar
from urllib.request import url2pathname

from firth.errors import FirthError, InputError

_T = TypeVar("_T")

# The supported schemes, each with the library that fsspec needs for it.
SCHEMES = {"s3": "s3fs", "gs": "gcsfs", "memory": "fsspec"}
TRIES = 3
# Seconds before the second try; doubled before each further one.
WAIT_S = 1.0
# Bytes requested at a time.
_RANGE = 1 << 22
# Seconds after which an unfinished copy counts as left by a process that died.
_ABANDONED_S = 3600
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def is_address(path: str | Path) -> bool:
    """Whether this is an address such as s3://bucket/key, rather than a path."""
    return isinstance(path, RemotePath) or _ADDRESS.match(str(path)) is not None


def place_of(address: str | Path) -> Path:
    """The path or remote path that an address or a path names; InputError for an address that cannot be read."""
    text = str(address)
    found = _ADDRESS.match(text)
    if found is None:
        return Path(address)
    scheme, rest = found[1].lower(), text[found.end() :]
    if "@" in rest.partition("/")[0]:
        raise InputError(
            f"{scheme}://…: an address with a user or password would be stored with the corpus: leave them out, and "
            "set credentials as the service's own tools read them"
        )
    if scheme == "file":
        return Path(url2pathname("/" + rest.partition("/")[2]))
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in (*SCHEMES, "file"))
        raise InputError(f"{text}: {scheme}:// is not supported: expected a path or one of {known}")
    return _remote(f"{scheme}:", rest)


class RemotePath(PosixPath):
    """A path on a remote file system, with the methods of Path that reading needs."""

    def __str__(self) -> str:
        return f"{self.parts[0]}//{'/'.join(self.parts[1:])}"

    def stat(self, **_: Any) -> os.stat_result:
        """Only the size is known; InputError if there is no such file."""
        size = self._call(lambda system, path: system.info(path)["size"])
        return os.stat_result((0, 0, 0, 0, 0, 0, int(size or 0), 0, 0, 0))

    def open(self, *_: Any, **__: Any) -> io.BufferedReader:  # type: ignore[override]  # reads bytes only
        """Open the file for reading bytes. A range that fails is requested again."""
        return io.BufferedReader(_Ranges(self))

    def is_file(self, **_: Any) -> bool:
        return bool(self._call(lambda system, path: system.isfile(path)))

    def is_dir(self, **_: Any) -> bool:
        return bool(self._call(lambda system, path: system.isdir(path)))

    def resolve(self, strict: bool = False) -> "RemotePath":
        return self

    def files(self) -> "list[RemotePath]":
        """All files below this folder, sorted."""
        return self._named(self._call(lambda system, path: system.find(path)))

    def matches(self) -> "list[RemotePath]":
        """The files that match this path, a pattern with ``*``, ``?`` or ``[…]``, sorted."""
        return self._named(self._call(lambda system, path: [p for p in system.glob(path) if system.isfile(p)]))

    def part(self, start: int, end: int) -> bytes:
        """The bytes from ``start`` to ``end``; InputError if there are fewer."""
        found: bytes = self._call(lambda system, path: system.cat_file(path, start=start, end=end))
        if len(found) != end - start:
            raise InputError(
                f"{self}: ends at byte {start + len(found):,}, expected more: it changed while it was read"
            )
        return found

    def _named(self, names: list[str]) -> "list[RemotePath]":
        return [_remote(self.parts[0], name) for name in sorted(names)]

    def _call(self, job: Callable[[Any, str], _T]) -> _T:
        """Call the file system, repeatedly if it fails. Its own messages are hidden: they may contain credentials."""
        scheme = self.parts[0].rstrip(":")
        for number in range(1, TRIES + 1):
            try:
                import fsspec

                return job(fsspec.filesystem(scheme), "/".join(self.parts[1:]))
            except ImportError:
                raise InputError(
                    f"{self}: reading {scheme}:// needs the extra: pip install 'firth[remote]' ({SCHEMES[scheme]})"
                ) from None
            except FileNotFoundError:
                raise InputError(f"{self}: no such file or folder; check the address") from None
            except Exception as error:
                kind = type(error).__name__
                if isinstance(error, PermissionError) or "credential" in kind.lower():
                    raise InputError(
                        f"{self}: no access: credentials for {scheme}:// are missing or refused; set them as "
                        "the service's own tools read them"
                    ) from None
                if number == TRIES:
                    raise InputError(f"{self}: cannot be read after {TRIES} tries: {kind}") from None
            time.sleep(WAIT_S * 2 ** (number - 1))
        raise AssertionError("the last try returns or raises")


def _remote(scheme: str, key: str) -> RemotePath:
    """The path of an object; InputError for a key that a path would change, and so not find again."""
    path, key = RemotePath(scheme, key.lstrip("/")), key.strip("/")
    if "/".join(path.parts[1:]) != key:
        raise InputError(f"{scheme}//{key}: a part of the address is empty or a dot, which cannot be read: rename it")
    return path


class _Ranges(io.RawIOBase):
    """The bytes of a remote file, read one range at a time."""

    def __init__(self, path: RemotePath):
        super().__init__()
        self._path, self._size = path, path.stat().st_size
        self._position = self._start = 0
        self._held = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(origin + offset, 0)
        return self._position

    def readinto(self, buffer: Any) -> int:
        if self._position >= self._size:
            return 0
        if not self._start <= self._position < self._start + len(self._held):
            self._start = self._position
            self._held = self._path.part(self._start, min(self._start + _RANGE, self._size))
        offset = self._position - self._start
        found = self._held[offset : offset + len(buffer)]
        buffer[: len(found)] = found
        self._position += len(found)
        return len(found)


class Cache:
    """Whole copies of remote files, by their SHA-256, in one folder for all processes of a user.

    Beyond ``most_bytes`` the least recently used copies are deleted; what a process has memory-mapped stays readable.
    """

    def __init__(self, most_bytes: float, folder: Path | None = None):
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self.folder = folder or Path(home) / "firth" / "shards"
        self._most, self._lock = most_bytes, threading.Lock()
        self._ahead: threading.Thread | None = None

    def get(self, path: RemotePath, size: int, sha256: str) -> Path:
        """The local copy of a file; InputError if it is missing or its content is wrong in every try."""
        kept = self.folder / sha256
        with self._lock:
            try:
                if kept.stat().st_size == size:
                    os.utime(kept)
                    return kept
            except OSError:
                pass  # not there
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._copy(path, size, sha256, kept)
                self._bound(kept)
            except OSError as error:
                raise InputError(f"{self.folder}: cannot be written: {error.strerror}") from None
        return kept

    def read_ahead(self, wanted: Sequence[tuple[RemotePath, int, str]]) -> None:
        """Start copying files that will be needed soon; errors are left to the call that needs them."""
        if self._ahead is None or not self._ahead.is_alive():
            # A daemon: the process does not wait for it when it ends.
            self._ahead = threading.Thread(target=self._get_all, args=(wanted,), name="firth-ahead", daemon=True)
            self._ahead.start()

    def _get_all(self, wanted: Sequence[tuple[RemotePath, int, str]]) -> None:
        for one in wanted:
            try:
                self.get(*one)
            except FirthError:
                return

    def _copy(self, path: RemotePath, size: int, sha256: str, kept: Path) -> None:
        # Not named by process id: containers that share the folder may have equal ones.
        part = self.folder / f"{sha256}.{secrets.token_hex(8)}.part"
        try:
            for _ in range(TRIES):
                digest, found = hashlib.sha256(), 0
                with path.open() as source, part.open("wb") as target:
                    while block := source.read(_RANGE):
                        digest.update(block)
                        found += target.write(block)
                if digest.hexdigest() == sha256:
                    part.replace(kept)
                    return
        finally:
            part.unlink(missing_ok=True)
        what = f"has {found:,} bytes, expected {size:,}" if found != size else "does not match its checksum"
        raise InputError(f"{path} {what}, in {TRIES} tries: it is damaged; copy this file again")

    def _bound(self, newest: Path) -> None:
        """Delete the least recently used copies, and leftovers of processes that died."""
        files = []
        for file in self.folder.iterdir():
            try:
                found = file.stat()
            except OSError:
                continue  # another process deleted it
            if file.suffix == ".part":
                if time.time() - found.st_mtime > _ABANDONED_S:
                    file.unlink(missing_ok=True)
            elif file != newest:
                files.append((found.st_mtime, file, found.st_size))
        total = newest.stat().st_size + sum(size for _, _, size in files)
        for _, file, size in sorted(files):
            if total <= self._most:
                return
            file.unlink(missing_ok=True)
            total -= size
