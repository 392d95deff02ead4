"""``firth embed``."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter, validators

from firth.cli.shared import (
    CompileFlag,
    InputFile,
    Whole,
    check_texts,
    counted,
    load_and_say,
    on_interrupt,
    say_unknown,
    texts_from,
)
from firth.errors import ConfigError, InputError, UsageError
from firth.files import check_new_file, new_file
from firth.inference.defaults import UNIT_FILES, MixName
from firth.inference.precision import Precision
from firth.progress import Progress
from firth.tasks.config import Pool

if TYPE_CHECKING:
    import numpy as np

    from firth.inference.model import Model
    from firth.inference.token_vectors import Mix, ResolvedMix

Unit = Literal["text", "word", "token"]
# File name endings that promise text.
_NOT_ARRAYS = (".csv", ".tsv", ".txt", ".json")


def embed(
    model: Annotated[Path, Parameter(name="MODEL")],
    /,
    *texts: Annotated[str, Parameter(name="TEXT")],
    unit: Unit = "text",
    layer: Annotated[Whole | None, Parameter(show_default=False)] = None,
    mix: MixName | None = None,
    last: Annotated[Whole, Parameter(validator=validators.Number(gte=1))] | None = None,
    weights: Annotated[list[float] | None, Parameter(name="--weights", consume_multiple=True)] = None,
    pool: Pool | None = None,
    out: Path | None = None,
    file: InputFile = None,
    columns: str | None = None,
    precision: Precision = "float32",
    compile: CompileFlag = False,
) -> None:
    """Embed lines of text: one vector per line, or one per word or token in its context; empty lines included.

    Example: firth embed runs/a --layer -2 --pool mean --out vectors.npy < lines.txt

    Parameters
    ----------
    model
        Run or model folder, also of another tool, or hub:org/name.
    texts
        Texts to embed; lines of --input or stdin if none is given.
    unit
        What gets a vector: a text, or each word or token of it in context.
    layer
        Layer: 0 is the embedding output, -1 the top layer (default). Words and tokens in .hdf5: default all layers.
    mix
        Combine layers instead: their sum, mean, concatenation, or a scalar mix (ELMo's weighted sum).
    last
        With --mix: only the top N layers; default: all, the embedding output included.
    weights
        With --mix scalar: one weight per layer, lowest first; default: what the model learned for its task.
    pool
        Pooling over the tokens of a text; default: the model's own, else mean.
    out
        Output file, must be new: .npy for texts (float32, one row per line); .npz, .hdf5 (AllenNLP's layout for ELMo)
        or .jsonl for words and tokens. Default: JSONL on stdout.
    file
        Input file; default stdin. The column of texts is read from .csv, .tsv, .json and .jsonl, lines from others.
    columns
        Which column of a table, or which key, has the texts, by name or number from 0: text=review or text=0.
    precision
        dtype of the encoder; auto is bfloat16 where the hardware supports it, else float16 weights. int8 must first
        pass the quality gate of firth evaluate.
    compile
        Compile the encoder with torch.compile: about a minute of warm-up, then faster.
    """
    from firth.inference.embedding import AT_ONCE as TEXTS_AT_ONCE
    from firth.inference.token_vectors import MOST_TEXTS as UNITS_AT_ONCE

    _check_flags(unit, layer, mix, last, weights, pool, out)
    check_texts(texts, file)
    if texts and columns is not None:
        raise ConfigError("--columns is for a table: name its file with --input")
    lines = iter(texts) if texts else _some(texts_from(file, columns), str(file or "stdin"))
    loaded = load_and_say(model, precision, compile)
    for text in texts:
        say_unknown(text, loaded)
    asked = _mix(mix, last, weights)
    # At a terminal each line is answered before the next is read.
    typed = not texts and file is None and out is None and sys.stdin.isatty()
    with on_interrupt("no vectors were written" if out else "the vectors so far are complete"):
        if unit != "text":
            at_once = 1 if typed else UNITS_AT_ONCE
            _embed_units(loaded, lines, unit, layer, None if asked is None else loaded.mix(asked), out, at_once)
            return
        at_once = 1 if typed else TEXTS_AT_ONCE
        vectors = loaded.embed_stream(lines, -1 if layer is None else layer, pool, mix=asked, at_once=at_once)
        n_vectors = _print_vectors(vectors) if out is None else _save_vectors(vectors, out)
    if out is not None:
        print(f"{out}: {counted(n_vectors, 'vector')}")


def _check_flags(
    unit: Unit,
    layer: int | None,
    mix: MixName | None,
    last: int | None,
    weights: list[float] | None,
    pool: str | None,
    out: Path | None,
) -> None:
    if out is not None:
        check_new_file(out)
    if layer is not None and mix is not None:
        raise UsageError("--layer is one layer, --mix several: give one of them")
    if last is not None and mix is None:
        raise UsageError("--last says how many layers --mix combines: give --mix sum, mean, concat or scalar too")
    if weights and mix != "scalar":
        raise UsageError("--weights are of a scalar mix: give --mix scalar too")
    if unit != "text" and pool is not None:
        raise UsageError(f"--pool is for --unit text; a vector of a {unit} is its token's, or the mean of its tokens'")
    suffix = "" if out is None else out.suffix.lower()
    if unit == "text" and suffix in UNIT_FILES:
        raise UsageError(f"--out {out}: {suffix} files hold words or tokens (--unit); vectors of texts go to .npy")
    if unit == "text" and suffix in _NOT_ARRAYS:
        raise UsageError(f"--out {out}: vectors are written as a NumPy array, expected a name such as vectors.npy")
    if out is not None and unit != "text" and suffix not in UNIT_FILES:
        raise UsageError(f"--out {out}: vectors of {unit}s go to a file that ends in {', '.join(UNIT_FILES)}")


def _mix(kind: MixName | None, last: int | None, weights: list[float] | None) -> "Mix | None":
    if kind is None:
        return None
    from firth.inference.token_vectors import Mix

    return Mix(kind=kind, last=last or 0, weights=tuple(weights or ()))


def _embed_units(
    model: "Model",
    lines: Iterator[str],
    unit: Literal["word", "token"],
    layer: int | None,
    mix: "ResolvedMix | None",
    out: Path | None,
    at_once: int,
) -> None:
    from firth.inference.vector_files import json_line, write_units

    every = layer is None and out is not None and out.suffix.lower() in (".hdf5", ".h5")
    choice = mix if mix is not None else None if every else -1 if layer is None else layer
    found = model.vectors_stream(lines, choice, at_once=at_once)
    if out is None:
        for one in found:
            print(json_line(one, unit, mix))
        return
    n_texts, n_units = write_units(found, out, unit, mix)
    print(f"{out}: {counted(n_units, f'{unit} vector')} of {counted(n_texts, 'text')}")


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
        print("[" + ", ".join(f"{x:.9g}" for x in vector.tolist()) + "]")  # 9 digits represent a float32 exactly
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
        # The format leaves room in the header for a row count of any length.
        file.seek(0)
        write_header()
    return n_rows
