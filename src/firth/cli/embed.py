"""``firth embed``."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from firth.cli.shared import CompileFlag, InputFile, Precision, counted, lines_from, load_model, on_interrupt
from firth.errors import InputError
from firth.files import check_new_file, new_file
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
    """Embed lines of text: one vector per line, empty lines included.

    Example: firth embed runs/a --layer -2 --pool mean --out vectors.npy < lines.txt

    Parameters
    ----------
    model
        Run or model folder, also of another tool, or hub:org/name.
    layer
        Layer: 0 is the embedding output, -1 the top layer.
    pool
        Pooling over tokens; default: the model's own, else mean.
    out
        Output .npy file (float32, one row per line), must be new; default: JSONL on stdout.
    file
        Input file; default stdin.
    precision
        dtype of the encoder; auto is bfloat16 where the hardware supports it. int8 must first pass
        the quality gate of firth evaluate.
    compile
        Compile the encoder with torch.compile: about a minute of warm-up, then faster.
    """
    if out is not None:
        check_new_file(out)
    lines = _some(lines_from(file), str(file or "stdin"))
    vectors = load_model(model, precision, compile).embed_stream(lines, layer, pool)
    with on_interrupt("no vectors were written" if out else "the vectors so far are complete"):
        n_vectors = _print_vectors(vectors) if out is None else _save_vectors(vectors, out)
    if out is not None:
        print(f"{out}: {counted(n_vectors, 'vector')}")


def _some(lines: Iterable[str], where: str) -> Iterator[str]:
    """The lines; InputError if there are none."""
    number = 0
    for number, line in enumerate(lines, start=1):  # noqa: B007  # counted
        yield line
    if not number:
        raise InputError(f"{where}: no lines: give text, one a line")


def _print_vectors(vectors: "Iterable[np.ndarray]") -> int:
    """Write vectors as JSONL to stdout; returns how many."""
    n_vectors = 0
    for vector in vectors:
        print("[" + ", ".join(f"{x:.9g}" for x in vector.tolist()) + "]")  # 9 digits are all of a float32
        n_vectors += 1
    return n_vectors


def _save_vectors(vectors: "Iterable[np.ndarray]", out: Path) -> int:
    """Write vectors as a new .npy file of float32 rows; returns how many."""
    from numpy.lib.format import write_array_header_1_0

    def write_header() -> None:
        header = {"descr": "<f4", "fortran_order": False, "shape": (n_rows, width)}
        write_array_header_1_0(file, header)

    n_rows, width = 0, 0
    with new_file(out) as file, Progress("embedding", None, "lines") as progress:
        for vector in vectors:
            if not n_rows:
                width = len(vector)
                write_header()
            file.write(vector.astype("<f4").tobytes())
            n_rows += 1
            progress.advance(1)
        # The format leaves room in the header for a number of rows of any length.
        file.seek(0)
        write_header()
    return n_rows
