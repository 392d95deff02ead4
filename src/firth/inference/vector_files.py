"""Write contextual vectors: NumPy's .npz, AllenNLP's .hdf5 for ELMo, and JSON lines.

Memory is constant, except for the index of an .hdf5, which holds all texts.
"""

import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from jaxtyping import Float
from numpy.lib.format import write_array_header_1_0

from firth.errors import ConfigError
from firth.files import new_file
from firth.inference.defaults import UNIT_FILES
from firth.inference.token_vectors import ResolvedMix, TextVectors, Unit
from firth.progress import Progress

UnitName = Literal["token", "word"]
# The member of an .hdf5 file that maps texts to data sets, as allennlp.commands.elmo writes it.
INDEX = "sentence_to_index"


def units_of(found: TextVectors, unit: UnitName) -> tuple[Unit, ...]:
    """The tokens or words of a text."""
    return found.tokens if unit == "token" else found.words


def vectors_of_units(found: TextVectors, unit: UnitName, mix: ResolvedMix | None) -> Float[np.ndarray, "*_ n H"]:
    """The vectors of these units: of the mix or the only stored layer (n, H), or of all stored layers (L + 1, n, H)."""
    if mix is not None:
        x = found.mixed(mix)
        return x if unit == "token" else found.of_words(x)
    layers = found.layers if unit == "token" else found.word_layers
    return layers[0] if len(layers) == 1 else layers


def json_line(found: TextVectors, unit: UnitName, mix: ResolvedMix | None) -> str:
    """One JSON object per text: its units with their spans and vectors (a list of vectors for several layers)."""
    x = vectors_of_units(found, unit, mix)
    rows = x.swapaxes(0, 1) if x.ndim == 3 else x
    units = (
        f'{{"text": {_quoted(one.text)}, "start": {one.start}, "end": {one.end}, "vector": {_numbers(row)}}}'
        for one, row in zip(units_of(found, unit), rows, strict=True)
    )
    return f'{{"text": {_quoted(found.text)}, "{unit}s": [{", ".join(units)}]}}'


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _numbers(x: np.ndarray) -> str:
    if x.ndim > 1:
        return f"[{', '.join(map(_numbers, x))}]"
    return "[" + ", ".join(f"{value:.9g}" for value in x.tolist()) + "]"  # 9 digits represent a float32 exactly


def write_units(found: Iterable[TextVectors], out: Path, unit: UnitName, mix: ResolvedMix | None) -> tuple[int, int]:
    """Write texts' vectors to a new file, formatted by its suffix (``UNIT_FILES``); returns counts of texts and units.

    ``.npz``: ``vectors`` (N, H), or (N, L + 1, H) for several layers; ``offsets``: text i has ``[offsets[i]:offsets[i +
    1]]`` of them; ``spans`` (N, 2): their characters in the text. ``.hdf5``: a data set ``"0"``, ``"1"``, … for each
    text, (L + 1, n, H) or (n, H), and ``sentence_to_index``, like AllenNLP's command for ELMo. ConfigError for another
    suffix, or if h5py is missing.
    """
    write = {".npz": _write_npz, ".jsonl": _write_json_lines}.get(out.suffix.lower(), _write_hdf5)
    if out.suffix.lower() not in UNIT_FILES:
        raise ConfigError(f"--out {out}: vectors of {unit}s go to a file that ends in {', '.join(UNIT_FILES)}")
    if write is _write_hdf5:
        try:
            import h5py  # noqa: F401  # before any text is read
        except ImportError:
            raise ConfigError(".hdf5 files need h5py: pip install 'firth[convert]'") from None
    with new_file(out) as file, Progress("embedding", None, "texts") as progress:
        return write(file, found, unit, mix, progress)


def _write_json_lines(
    file: IO[bytes], found: Iterable[TextVectors], unit: UnitName, mix: ResolvedMix | None, progress: Progress
) -> tuple[int, int]:
    n_texts = n_units = 0
    for one in found:
        file.write(f"{json_line(one, unit, mix)}\n".encode())
        n_texts, n_units = n_texts + 1, n_units + len(units_of(one, unit))
        progress.advance(1)
    return n_texts, n_units


def _write_npz(
    file: IO[bytes], found: Iterable[TextVectors], unit: UnitName, mix: ResolvedMix | None, progress: Progress
) -> tuple[int, int]:
    # The header holds the count, which is known only at the end; until then the numbers are in unnamed files.
    folder = Path(file.name).parent
    shape: tuple[int, ...] = (0,)
    n_texts = n_units = 0
    with (
        tempfile.TemporaryFile(dir=folder) as vectors,
        tempfile.TemporaryFile(dir=folder) as offsets,
        tempfile.TemporaryFile(dir=folder) as spans,
    ):
        offsets.write(np.int64(0).tobytes())
        for one in found:
            x = vectors_of_units(one, unit, mix)
            rows = x.swapaxes(0, 1) if x.ndim == 3 else x
            shape = rows.shape[1:]
            units = units_of(one, unit)
            vectors.write(rows.astype("<f4").tobytes())
            spans.write(np.array([(u.start, u.end) for u in units], "<i8").tobytes())
            n_texts, n_units = n_texts + 1, n_units + len(units)
            offsets.write(np.int64(n_units).tobytes())
            progress.advance(1)
        members: list[tuple[str, IO[bytes], str, tuple[int, ...]]] = [
            ("vectors", vectors, "<f4", (n_units, *shape)),
            ("offsets", offsets, "<i8", (n_texts + 1,)),
            ("spans", spans, "<i8", (n_units, 2)),
        ]
        with zipfile.ZipFile(file, "w") as archive:
            for name, source, dtype, size in members:
                source.seek(0)
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                    write_array_header_1_0(member, {"descr": dtype, "fortran_order": False, "shape": size})
                    shutil.copyfileobj(source, member)
    return n_texts, n_units


def _write_hdf5(
    file: IO[bytes], found: Iterable[TextVectors], unit: UnitName, mix: ResolvedMix | None, progress: Progress
) -> tuple[int, int]:
    import h5py

    n_texts = n_units = 0
    numbers: dict[str, str] = {}
    # We already hold the lock on the file.
    with h5py.File(file.name, "w", locking=False) as archive:
        for one in found:
            archive.create_dataset(str(n_texts), data=vectors_of_units(one, unit, mix), dtype="float32")
            # For a repeated text, AllenNLP records the last occurrence.
            numbers[one.text] = str(n_texts)
            n_texts, n_units = n_texts + 1, n_units + len(units_of(one, unit))
            progress.advance(1)
        index: Any = archive.create_dataset(INDEX, (1,), dtype=h5py.string_dtype())
        index[0] = json.dumps(numbers)
    return n_texts, n_units
