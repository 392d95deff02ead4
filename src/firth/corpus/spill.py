"""Sort pairs of numbers in bounded memory: what does not fit goes to disk."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from firth.files import append_to

_PARTS = 256  # files that pairs are spread over, by the highest bits of their key
_PAIR = np.dtype([("key", "<u8"), ("value", "<u8")])


class Spill:
    """Sorts pairs (key, value) of uint64: add them in any order, read them back sorted by key, then value.

    Keys must be spread evenly over 64 bits, as hashes are. Up to ``memory`` bytes of pairs stay in memory; beyond that,
    all of them move to files in ``folder``, which must exist. The result is the same either way. Reading holds
    a 256th of the pairs at a time.
    """

    def __init__(self, folder: Path, name: str, memory: int):
        self._folder, self._name, self._memory = folder, name, memory
        self._held: list[np.ndarray] = []
        self._bytes = 0
        self.spilled = False

    def add(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Add pairs: two arrays of equal length."""
        pairs = np.empty(len(keys), _PAIR)
        pairs["key"], pairs["value"] = keys, values
        self._held.append(pairs)
        self._bytes += pairs.nbytes
        if self._bytes > self._memory:
            self._write()

    def sorted_parts(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield sorted (keys, values); pairs with the same key come together. Then memory and disk are cleared."""
        if self.spilled:
            self._write()
            for part in range(_PARTS):
                path = self._path(part)
                if path.is_file():
                    pairs = np.fromfile(path, _PAIR)
                    path.unlink()
                    yield _sorted(pairs)
            return
        held, self._held, self._bytes = self._held, [], 0
        if held:
            yield _sorted(np.concatenate(held))

    def _path(self, part: int) -> Path:
        return self._folder / f"{self._name}-{part:03}.bin"

    def _write(self) -> None:
        if not self._held:
            return
        self.spilled = True
        pairs = np.concatenate(self._held)
        self._held, self._bytes = [], 0
        parts = (pairs["key"] >> np.uint64(56)).astype(np.uint8)
        order = np.argsort(parts, kind="stable")
        bounds = np.searchsorted(parts[order], np.arange(_PARTS + 1))
        for part in np.flatnonzero(np.diff(bounds)):
            with append_to(self._path(int(part))) as file:
                file.write(pairs[order[bounds[part] : bounds[part + 1]]].tobytes())


def _sorted(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.lexsort((pairs["value"], pairs["key"]))
    return pairs["key"][order], pairs["value"][order]


def groups(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Start and size of each group of equal keys in sorted ``keys``."""
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1]))) if len(keys) else np.zeros(0, np.int64)
    return starts, np.diff(np.append(starts, len(keys)))
