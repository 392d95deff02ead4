"""``firth embed``."""

import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from firth.cli.shared import CompileFlag, InputFile, Precision, counted, lines_from, load_model, on_interrupt
from firth.errors import ConfigError, InputError
from firth.progress import Progress

if TYPE_CHECKING:
    import numpy as np


def embed(
    model: Annotated[Path, Parameter(name="MODEL")],
    /,
    *,
    layer: int = -1,
    pool: Literal["mean", "max", "first", "last", "summary"] | None = None,
    out: Path | None = None,
    file: InputFile = None,
    precision: Precision = "float32",
    compile: CompileFlag = False,
) -> None:
    """Turn lines of text into vectors, one a line (an empty line has one too).

    Example: firth embed runs/a --layer -2 --pool mean --out vectors.npy < lines.txt

    Parameters
    ----------
    model
        The folder of a run or of a model, also of another tool, or hub:org/name.
    layer
        0 is the embedding output, -1 the top.
    pool
        How the vectors of a line's pieces become one; mean if the model does not say.
    out
        A new .npy file, float32, a row a line; without it, JSONL goes to stdout.
    file
        The file of lines; stdin if not given.
    precision
        What the encoder computes in; auto is bfloat16 where the machine multiplies in it, int8 wants
        firth evaluate --precision int8 first.
    compile
        Compile the encoder: the first lines take about a minute longer, the others less.
    """
    if out is not None and out.exists():
        raise ConfigError(f"--out {out} exists already: delete it, or choose another name")
    lines = lines_from(file)
    vectors = load_model(model, precision, compile).embed_stream(lines, layer, pool)
    with on_interrupt("no vectors were written" if out else "the vectors so far are complete"):
        n_vectors = _print_vectors(vectors) if out is None else _save_vectors(vectors, out)
    if not n_vectors:
        raise InputError(f"{file or 'stdin'}: no lines: give text, one a line")
    if out is not None:
        print(f"{out}: {counted(n_vectors, 'vector')}")


def _print_vectors(vectors: "Iterable[np.ndarray]") -> int:
    """Write vectors as JSONL to stdout; returns how many."""
    n_vectors = 0
    for vector in vectors:
        print("[" + ", ".join(f"{x:.9g}" for x in vector.tolist()) + "]")  # 9 digits are all of a float32
        n_vectors += 1
    return n_vectors


def _save_vectors(vectors: "Iterable[np.ndarray]", out: Path) -> int:
    """Write vectors as a .npy file; returns how many. Without any, no file is made."""
    with _NpyFile(out) as file, Progress("embedding", None, "lines") as progress:
        for vector in vectors:
            file.append(vector)
            progress.advance(1)
        return file.n_rows


class _NpyFile:
    """A .npy file of float32 rows that is written as they come, and appears whole or not at all."""

    def __init__(self, path: Path):
        self.path, self.n_rows, self._width = path, 0, 0

    def __enter__(self) -> "_NpyFile":
        self._temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        try:
            self._file = open(self._temporary, "xb")
        except OSError as error:
            raise ConfigError(f"--out {self.path} cannot be written: {error.strerror}") from None
        return self

    def append(self, row: "np.ndarray") -> None:
        if not self.n_rows:
            self._width = len(row)
            self._write_header()
        self._file.write(row.astype("<f4").tobytes())
        self.n_rows += 1

    def _write_header(self) -> None:
        # The format leaves room in the header for a number of rows of any length.
        from numpy.lib.format import write_array_header_1_0

        header = {"descr": "<f4", "fortran_order": False, "shape": (self.n_rows, self._width)}
        write_array_header_1_0(self._file, header)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with self._file:
                if kind is None and self.n_rows:
                    self._file.seek(0)
                    self._write_header()
                    self._file.flush()
                    os.fsync(self._file.fileno())
            if kind is None and self.n_rows:
                os.replace(self._temporary, self.path)
        finally:
            self._temporary.unlink(missing_ok=True)
