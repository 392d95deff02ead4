"""Semantic search: embed a file once, then find its lines nearest to any query by exact cosine similarity.

index.json        format, model, layer and pooling, number of texts, vector size
vectors.f32       little-endian float32, a vector of length 1 for each text (zeros if the model gives none)
texts.txt         the texts, one per line
lines.npy         byte offset of each line, and the end
manifest.json     checksums of these files, compared when the index is opened
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from firth.config import read_json
from firth.errors import CheckpointError, ConfigError, InputError
from firth.files import check_new, make_folder, nearest, write_json
from firth.inference.model import Model
from firth.manifest import MANIFEST, check_folder
from firth.progress import Progress
from firth.tasks.config import Pool

ABOUT, VECTORS, TEXTS, LINES = "index.json", "vectors.f32", "texts.txt", "lines.npy"
FORMAT, VERSION = "firth-index", 1
# Vectors compared at once: a few tens of megabytes.
_BLOCK = 1 << 15
# Least cosine between an indexed text's vector and its new one for the model to count as the same.
_SAME = 0.999


@dataclass(frozen=True, slots=True)
class Hit:
    """A search result: line number from 1, and cosine similarity to the query."""

    line: int
    cosine: float
    text: str


def build_index(
    model: Model, name: str, texts: Iterable[str], out: str | Path, *, layer: int = -1, pool: Pool | None = None
) -> int:
    """Embed texts, one per line, into the new folder ``out`` in constant memory; returns their number.

    ``name``: the model's, to load it again. ``layer``, ``pool``: as for ``Model.embed``. InputError if there
    are no texts.
    """
    out = Path(out)
    check_new(out)
    counts: list[int] = []
    make_folder(out, lambda folder: counts.append(_write(folder, model, name, texts, layer, pool)))
    return counts[0]


def _write(folder: Path, model: Model, name: str, texts: Iterable[str], layer: int, pool: Pool | None) -> int:
    ends, width = [0], 0
    with (
        open(folder / VECTORS, "wb") as vectors,
        open(folder / TEXTS, "wb") as lines,
        Progress("embedding", None, "texts") as progress,
    ):
        blank = deque[bool]()

        def kept() -> Iterator[str]:
            for text in texts:
                blank.append(not text.strip())
                line = text.encode() + b"\n"
                lines.write(line)
                ends.append(ends[-1] + len(line))
                yield text

        for vector in model.embed_stream(kept(), layer, pool):
            width = len(vector)
            # A blank line keeps its place, and is similar to nothing.
            kept_vector = np.zeros(width) if blank.popleft() else _of_length_1(vector)
            vectors.write(kept_vector.astype("<f4").tobytes())
            progress.advance(1)
    if len(ends) == 1:
        raise InputError("no texts to embed: the file has no lines; give one with a text a line")
    np.save(folder / LINES, np.array(ends, np.int64), allow_pickle=False)
    about = {
        "format": FORMAT,
        "version": VERSION,
        "model": name,
        "layer": layer,
        "pool": pool,
        "texts": len(ends) - 1,
        "width": width,
    }
    write_json(folder / ABOUT, about)
    return len(ends) - 1


def _of_length_1(vector: Float[np.ndarray, " H"]) -> Float[np.ndarray, " H"]:
    length = np.linalg.norm(vector)
    return vector / length if length else vector


class Index:
    """An opened, memory-mapped folder of ``build_index``."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        if not (self.folder / ABOUT).is_file():
            if hint := "" if self.folder.exists() else nearest(self.folder):
                raise ConfigError(f"{folder}: no such index; {hint}")
            raise ConfigError(_no_index(self.folder))
        about = read_json(self.folder / ABOUT)
        if about.get("format") != FORMAT or about.get("version") != VERSION:
            raise CheckpointError(f"{folder} is not an index of this version: build it again")
        if (self.folder / MANIFEST).is_file():
            check_folder(self.folder)
        try:
            self.model, self.layer, self.pool = str(about["model"]), int(about["layer"]), about["pool"]
            self.n_texts, self.width = int(about["texts"]), int(about["width"])
            self._ends: np.ndarray = np.load(self.folder / LINES, mmap_mode="r", allow_pickle=False)
            size = 4 * self.n_texts * self.width, (self.folder / VECTORS).stat().st_size
            lines = len(self._ends), int(self._ends[-1]), (self.folder / TEXTS).stat().st_size
            if size[0] != size[1] or lines[0] != self.n_texts + 1 or lines[1] != lines[2]:
                raise ValueError("files of other sizes")
        except (KeyError, TypeError, ValueError, OSError, IndexError, EOFError) as error:
            raise CheckpointError(f"{folder} is damaged ({error}): build it again") from None
        self.vectors = np.memmap(self.folder / VECTORS, "<f4", "r", shape=(self.n_texts, self.width))

    def text(self, number: int) -> str:
        """The text at an index from 0."""
        with open(self.folder / TEXTS, "rb") as file:
            file.seek(int(self._ends[number]))
            return file.read(int(self._ends[number + 1] - self._ends[number]) - 1).decode()

    def nearest(self, query: Float[np.ndarray, " H"], top_k: int) -> list[Hit]:
        """The ``top_k`` texts with the highest cosine similarity to ``query``; ties in file order.

        Every vector is compared: the search is exact.
        """
        wanted, best = _of_length_1(query.astype(np.float32)), np.empty(0, np.float32)
        numbers = np.empty(0, np.int64)
        for start in range(0, self.n_texts, _BLOCK):
            cosines = self.vectors[start : start + _BLOCK] @ wanted
            best = np.concatenate([best, cosines])
            numbers = np.concatenate([numbers, np.arange(start, start + len(cosines))])
            chosen = np.lexsort((numbers, -best))[:top_k]
            best, numbers = best[chosen], numbers[chosen]
        pairs: list[Any] = list(zip(numbers.tolist(), best.tolist(), strict=True))
        return [Hit(number + 1, cosine, self.text(number)) for number, cosine in pairs]

    def check_model(self, model: Model) -> None:
        """Raise ConfigError for a model other than the index's, detected by re-embedding a text that has a vector."""
        number = next((n for n in range(self.n_texts) if self.vectors[n].any()), None)
        if number is None:
            return
        again = self.embed(model, self.text(number))
        if len(again) != self.width or float(_of_length_1(again) @ self.vectors[number]) < _SAME:
            raise ConfigError(f"{self.folder} was built with another model ({self.model} at that time): build it again")

    def embed(self, model: Model, text: str) -> Float[np.ndarray, " H"]:
        """Embed a query as the texts were."""
        return model.embed(text, self.layer, self.pool)


def _no_index(path: Path) -> str:
    """Message for a path that is not an index: a command that builds one in a new folder."""
    new = path
    if path.exists():
        # "." is named after its folder; "/" has no name.
        stem, parent = (path.stem, path.parent) if path.name else (path.resolve().stem or "texts", Path())
        names = (f"{stem}-index{number}" for number in ("", *range(2, 100)))
        new = next(place for name in names if not (place := parent / name).exists())
    of_embed = path.suffix == ".npy" and path.is_file()
    what = "holds vectors without their texts and their model, and is no index" if of_embed else "is not an index"
    return f"{path} {what}: firth search {new} --texts FILE --model MODEL makes one"
