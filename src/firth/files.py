"""One process at a time in a folder that is written."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from firth.errors import ConfigError

_LOCK = ".lock"


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Make the folder if need be and hold it; ConfigError if it cannot be written, or another process holds it.

    The system lets go of it when the process ends, however it ends. A folder in which nothing was
    written is taken away again.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / _LOCK, "wb")  # noqa: SIM115  # closed below
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{folder} is in use by another firth process: wait for it, or stop it") from None
        try:
            yield
        finally:
            if folder.exists() and not holds_something(folder):
                (folder / _LOCK).unlink()
                folder.rmdir()


def holds_something(folder: Path, *, but: str = "") -> bool:
    """Whether anything is in the folder but a lock, and a file of the name ``but``, whole or half written."""
    names = (path.name for path in folder.iterdir())
    return any(name not in (_LOCK, but) and not (but and name.startswith(f".{but}.")) for name in names)
