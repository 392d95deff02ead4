"""Write files and folders atomically, one writer at a time, and never through a link.

While it is written, a file or folder has an unguessable name beside its target, ``.NAME.<16 hex digits>.tmp``, and its
writer holds a system lock on it. So the next writer of the same target can tell what a killed process left there
(nobody holds it) from what another process is writing, and removes the former.

    new run folder     check_new, then lock: one process at a time, for as long as it runs
    new folder         new_folder, or make_folder with a manifest: made once, then complete
    folder, replaced   write_folder, or staged_folder: the older one stays until the new one is complete
    new file           new_file
    file, replaced     write_file, write_text, write_json
    log                append_to
"""

import ctypes
import difflib
import errno
import fcntl
import io
import itertools
import json
import os
import re
import secrets
import shutil
import stat
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from firth.errors import ConfigError, FirthError, SaveError
from firth.manifest import write_manifest

_LOCK = ".lock"
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{16}\.tmp", re.DOTALL)
# How many names in a folder are compared with a missing one.
MOST_BESIDE = 1000
_FULL = (errno.ENOSPC, errno.EDQUOT)
# Constants of Linux's renameat2(2).
_AT_FDCWD, _NO_REPLACE = -100, 1
# Two letters or more: one is a drive of Windows.
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def check_new(path: Path, *, resume: str = "", but: str = "") -> None:
    """Raise ConfigError if ``path`` already exists and is not an empty folder.

    ``resume``: the command that resumes what is there, for the message. ``but``: the name of a file to ignore.
    """
    _check_local(path)
    if not os.path.lexists(path):
        return
    if path.is_dir() and not path.is_symlink() and not holds_something(path, but=but):
        return
    raise _exists(path, f"resume it with: {resume}; or " if resume else "")


def check_new_file(path: Path) -> None:
    """Raise ConfigError if ``path`` already exists."""
    _check_local(path)
    if os.path.lexists(path):
        raise _exists(path)


def _check_local(path: Path) -> None:
    """Raise ConfigError for the address of another machine, of which a path keeps one slash: s3:/bucket/name."""
    if _ADDRESS.match(str(path)):
        raise ConfigError(f"{path}: results are written to a local folder; copy them to that address afterwards")


def nearest(path: Path) -> str:
    """Return ``did you mean NAME?`` for a missing path; empty if no name is similar.

    Compared are the names beside its first part that is missing. A name of the same letters in the other Unicode form
    (macOS decomposes them) looks like the given one, so it is described.
    """
    try:
        while not path.parent.exists():
            path = path.parent
        names = {
            unicodedata.normalize("NFC", e.name): e.name for e in itertools.islice(path.parent.iterdir(), MOST_BESIDE)
        }
    except OSError:
        return ""
    own = unicodedata.normalize("NFC", path.name)
    if names.get(own, path.name) != path.name:
        form = "composed" if names[own] == own else "decomposed"
        return f"{path.parent} has this name in {form} letters: copy it from there"
    near = difflib.get_close_matches(own, names, n=1, cutoff=0.75)
    return f"did you mean {path.with_name(names[near[0]])}?" if near else ""


def _exists(path: Path, also: str = "") -> ConfigError:
    return ConfigError(f"{path} exists already: {also}choose another name, or delete it")


def holds_something(folder: Path, *, but: str = "") -> bool:
    """Whether a folder holds anything but a lock, half-written files, and a file named ``but``."""
    names = (path.name for path in folder.iterdir())
    return any(name not in (_LOCK, but) and not _TEMPORARY.fullmatch(name) for name in names)


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Create the folder if needed and lock it; ConfigError if it is not writable or another process holds it.

    The system releases the lock when the process ends, however it ends. What a killed process left half written in the
    folder is removed, and so is the folder itself if nothing was written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = _lock_file(folder)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {_reason(folder, error)}") from None
    with file:
        refuse_links(folder)
        clear_litter(folder)
        try:
            yield
        finally:
            if folder.exists() and not holds_something(folder):
                (folder / _LOCK).unlink(missing_ok=True)
                with suppress(OSError):
                    folder.rmdir()


def refuse_links(folder: Path) -> None:
    """Raise ConfigError if a folder contains a link to another: files written there would end up elsewhere."""
    for path in folder.iterdir():
        if path.is_symlink() and path.is_dir():
            raise ConfigError(f"{path} is a link, and nothing is written through links: put the folder itself there")


def _lock_file(folder: Path) -> BinaryIO:
    path = folder / _LOCK
    while True:
        file = open(path, "ab", opener=_regular)  # noqa: SIM115  # closed by the caller
        try:
            if _hold(file.fileno()) is False:
                raise ConfigError(f"{folder} is in use by another firth process: wait for it, or stop it")
            # The previous holder may have removed the lock file together with the folder.
            if _is_at(path, file.fileno()):
                return file
        except BaseException:
            file.close()
            raise
        file.close()


def open_log(path: Path) -> TextIO:
    """Open a text file to append messages, each of which is there at once; errors as of ``append_to``."""
    return io.TextIOWrapper(append_to(path), "utf-8", write_through=True)


def append_to(path: Path) -> BinaryIO:
    """Open a file to append, creating it if needed. ConfigError for a link or another non-regular file.

    A file that has other names too (hard links, as some backups create) is first replaced by a separate copy.
    """
    try:
        file = open(path, "ab", opener=_regular)  # noqa: SIM115  # closed by the caller
        if os.fstat(file.fileno()).st_nlink > 1:
            file.close()
            with path.open("rb") as shared, write_file(path) as own:
                shutil.copyfileobj(shared, own)
            file = open(path, "ab", opener=_regular)  # noqa: SIM115  # closed by the caller
        return file
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {_reason(path, error)}") from None


def _regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | _SAFE, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return descriptor


def check_regular(path: Path) -> None:
    """Raise OSError for a pipe or a device: a named pipe waits for its writer, and neither can be read twice.

    A missing file or a folder is left to the reader's own message.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "not a regular file (a pipe?); write what it gives to a file first", str(path))


def _reason(path: Path, error: OSError) -> str:
    """Return the system's error message, or its meaning in plain words; names the file if it is elsewhere."""
    if error.errno == errno.ELOOP:
        return f"{error.filename} is a link, and nothing is written through links: delete it"
    if error.errno == errno.EEXIST:
        return f"{error.filename} is a file"
    reason, place = error.strerror or str(error), path.absolute()
    if isinstance(error.filename, str):
        failed = Path(error.filename).absolute()
        if not failed.is_relative_to(place.parent) and not place.is_relative_to(failed):
            return f"{error.filename}: {reason}"  # a file that was being read at the same time
    return reason


def _hold(descriptor: int) -> bool | None:
    """Lock an open file or folder: False if another process holds it, None if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def clear_litter(folder: Path, name: str = "") -> bool:
    """Remove half-written files of killed processes from a folder: all, or those meant to become ``name``.

    Returns whether another process is writing there at this moment; its files are kept.
    """
    busy = False
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            found = _TEMPORARY.fullmatch(entry.name)
            if found is None or (name and found[1] != name):
                continue
            # Links and other users' files are left alone.
            with suppress(OSError):
                descriptor = os.open(entry.path, os.O_RDONLY | _SAFE)
                try:
                    held = _hold(descriptor)
                    busy |= held is False
                    if held:
                        _remove(Path(entry.path))
                finally:
                    os.close(descriptor)
    return busy


def _remove(path: Path) -> None:
    """Delete a file, link or folder, as far as the system allows."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def remove_folder(path: Path) -> None:
    """Delete a folder; a kill in between leaves it whole, or under a name that the next writer there removes.

    Leftovers of an earlier removal under such a name are deleted too.
    """
    clear_litter(path.parent, path.name)
    if not os.path.lexists(path):
        return
    doomed = _temporary(path)
    try:
        try:
            os.rename(path, doomed)
        except OSError:
            doomed = path
        _remove(doomed)
    except KeyboardInterrupt:
        # Interrupted in the middle: do not leave a half-deleted folder.
        if os.path.lexists(doomed):
            _remove(doomed)
        raise


@contextmanager
def temporary_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside ``path``, removed at the end or by the next writer; its ``name`` is its path."""
    clear_litter(path.parent, path.name)
    temporary = _temporary(path)
    with ExitStack() as stack:  # from here on: a signal may arrive as soon as the file exists
        # If the disk becomes read-only after the file got its name, the file still counts as written.
        stack.callback(lambda: _unlink(temporary))
        try:
            while True:
                # Exclusive: neither opens anybody else's file nor follows a link.
                file = stack.enter_context(open(temporary, "xb", opener=_regular))
                if _hold(file.fileno()) is not False and _is_at(temporary, file.fileno()):
                    break
                file.close()
                temporary = _temporary(path)
        except OSError as error:
            raise OSError(error.errno, _reason(path, error), str(path)) from None
        yield file


def _unlink(path: Path) -> None:
    try:
        with suppress(OSError):
            path.unlink()
    except KeyboardInterrupt:
        _unlink(path)
        raise


@contextmanager
def write_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that is written atomically to ``path``. OSError names ``path``.

    A link at ``path`` is replaced, not followed.
    """
    try:
        with temporary_file(path) as file:
            yield file
            _put(file, path, os.replace)
    except OSError as error:
        if error.filename is None:  # of writing, not of opening: a full disk, for one
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def _put(file: BinaryIO, path: Path, rename: Callable[[str, Path], None]) -> None:
    """Give a finished temporary file its final name."""
    file.flush()
    os.fsync(file.fileno())
    rename(file.name, path)
    _sync(path.parent)


@contextmanager
def as_text(file: BinaryIO) -> Iterator[TextIO]:
    """Write UTF-8 text to an open file, which stays open."""
    stream = io.TextIOWrapper(file, "utf-8")
    try:
        yield stream
        stream.flush()
    finally:
        # A full disk has already raised an error; what is still buffered is no longer wanted.
        with suppress(OSError):
            stream.detach()


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with write_file(path) as file:
        file.write(text.encode("utf-8"))


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write an indented JSON object atomically."""
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _temporary_folder(path: Path) -> Iterator[Path]:
    """Create an empty folder beside ``path``, removed at the end unless it was renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, descriptor = _temporary(path), -1
    try:  # from here on: a signal may arrive as soon as the folder exists
        while True:
            temporary.mkdir()
            descriptor = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | _SAFE)
            if _hold(descriptor) is not False and _is_at(temporary, descriptor):
                break
            os.close(descriptor)
            temporary, descriptor = _temporary(path), -1
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if descriptor >= 0:
            os.close(descriptor)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Create a folder that appears atomically at ``path``; yields where to write.

    ConfigError if there is something at ``path`` (see ``check_new``), at the start or at the end, if another process
    is writing it, or if nothing can be written there.
    """
    check_new(path)
    _refuse_second_writer(path)
    try:
        with _temporary_folder(path) as temporary:
            try:
                yield temporary
            except SaveError as error:  # of a file in it: its own name is gone with it
                raise SaveError(str(error).replace(str(temporary), str(path))) from None
            _sync_all(temporary)
            if path.is_dir() and not holds_something(path):
                (path / _LOCK).unlink(missing_ok=True)
            try:
                # Replaces an empty folder, but not what another process has put there in the meantime.
                os.rename(temporary, path)
            except OSError:
                check_new(path)
                raise
            _sync(path.parent)
    except OSError as error:
        raise _not_written(path, error) from None


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that appears atomically at ``path``. Errors as in ``new_folder``."""
    check_new_file(path)
    _refuse_second_writer(path)
    try:
        with temporary_file(path) as file:
            yield file
            _put(file, path, _rename_new)
    except OSError as error:
        raise _not_written(path, error) from None


def _rename_new(source: str, path: Path) -> None:
    """Rename a file; ConfigError if another process has just given something else that name."""
    check_new_file(path)
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # macOS: the check above must suffice
        os.replace(source, path)
        return
    if rename(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(path), _NO_REPLACE):
        check_new_file(path)
        os.replace(source, path)  # the file system lacks this flag, or a plain rename raises the error


def _refuse_second_writer(path: Path) -> None:
    if clear_litter(path.parent, path.name):
        raise ConfigError(f"{path} is being written by another firth process: wait for it, or choose another name")


def _not_written(path: Path, error: OSError) -> FirthError:
    """Return the error for a full disk, or for a place that cannot be written."""
    if _is_full(error):
        return SaveError(_why(path, error))
    return ConfigError(f"{path} cannot be written: {_reason(path, error)}")


def make_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Create a new folder atomically by ``fill(temporary)``, with a manifest. See ``new_folder``.

    A disk failure is a SaveError.
    """
    with new_folder(path) as temporary:
        try:
            fill(temporary)
            write_manifest(temporary)
        except OSError as error:
            raise SaveError(_why(path, error)) from None


def write_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Write or replace a folder atomically by ``fill(temporary)``, with a manifest. See ``staged_folder``."""
    with staged_folder(path) as temporary:
        fill(temporary)


@contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """Write or replace a folder atomically, with a manifest; yields where to write, also for other processes.

    An older folder at ``path`` stays until the new one is complete; only one process at a time may replace it (see
    ``lock``). A failure (disk full, no permission) is a SaveError and leaves the older folder untouched.
    """
    try:
        clear_litter(path.parent, path.name)
        with _temporary_folder(path) as temporary:
            yield temporary
            write_manifest(temporary)
            _sync_all(temporary)
            _swap(temporary, path)
    except OSError as error:
        raise SaveError(_why(path, error)) from None


def _why(path: Path, error: OSError) -> str:
    if _is_full(error):
        free = shutil.disk_usage(_mount(path)).free
        return (
            f"{path} could not be written: the disk is full ({free / 1e6:.0f} MB free at {_mount(path)}). What was "
            f"saved before is untouched: make room, then resume or run the command again"
        )
    return f"{path} could not be written: {_reason(path, error)}. What was saved before is untouched"


def _is_full(error: OSError) -> bool:
    # NumPy's error in writing an array has no number, only the two counts.
    return error.errno in _FULL or (error.errno is None and " requested and " in str(error))


@contextmanager
def saving(path: Path) -> Iterator[None]:
    """A context for work that writes files beside or below ``path``: a full disk is a SaveError that names it, and so
    is what a file's size is limited to.
    """
    try:
        yield
    except OSError as error:
        if _is_full(error) or error.errno == errno.EFBIG:
            raise SaveError(_why(path, error)) from None
        raise


def _mount(path: Path) -> Path:
    """The mount point of the disk that holds ``path``."""
    return next(folder for folder in path.absolute().parents if folder.is_mount())


def _sync_all(folder: Path) -> None:
    for entry in [*folder.rglob("*"), folder]:
        _sync(entry)


def _older(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _swap(new: Path, path: Path) -> None:
    """Replace ``path`` by ``new``. Between the two renames only ``_older(path)`` exists: see ``recover``."""
    _remove(_older(path))
    try:
        if os.path.lexists(path):
            os.rename(path, _older(path))
        os.rename(new, path)
        # Sync before the older one is removed, or a power failure could lose both.
        _sync(path.parent)
        _remove(_older(path))
    except KeyboardInterrupt:
        # Interrupted in the middle: keep one of the two, and nothing beside it.
        recover(path)
        raise


def recover(path: Path) -> None:
    """Restore the older folder after a kill between the two renames of ``write_folder``, or remove it."""
    old = _older(path)
    if not path.exists() and old.exists():
        os.rename(old, path)
    _remove(old)
