"""``firth next-sentence``."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from firth.cli.shared import InputFile, JsonFlag, check_texts, load_and_say, numbered_lines, print_json
from firth.errors import FirthError, InputError, LengthError, UsageError
from firth.inference.precision import Precision

if TYPE_CHECKING:
    from firth.folder import Loaded


def next_sentence(
    model: Annotated[Path, Parameter(name="MODEL")],
    /,
    *texts: Annotated[str, Parameter(name="TEXT")],
    file: InputFile = None,
    precision: Precision = "float32",
    as_json: JsonFlag = False,
) -> None:
    """Predict the probability that one text follows another, with a next-sentence head.

    Example: firth next-sentence runs/a "He went to the store." "He bought some milk."

    Parameters
    ----------
    model
        Run or model folder, or hub:org/name: a BERT with its next-sentence head.
    texts
        Two texts, the first and the one that may follow it; pairs of --input if none is given.
    file
        File with two texts per line, separated by a tab; default stdin.
    precision
        dtype of the encoder; auto is bfloat16 where the hardware supports it, else float16 weights.
    as_json
        Print one JSON object per pair.
    """
    if texts and (len(texts) != 2 or file is not None):
        raise UsageError(f"firth next-sentence takes two texts, or pairs on stdin or --input; got {len(texts)} texts")
    check_texts(texts, file)
    from firth.inference.next_sentence import AT_ONCE, next_sentence_model

    loaded = load_and_say(model, precision)
    next_sentence_model(loaded.loaded)  # before anything is read
    given: list[tuple[str, str]] = []
    bad: list[FirthError] = []

    def pairs() -> Iterator[tuple[str, str]]:
        for pair in [(texts[0], texts[1])] if texts else _pairs(file, loaded.loaded, bad):
            given.append(pair)
            yield pair

    # At a terminal each pair is answered before the next is read.
    at_once = 1 if not texts and file is None and sys.stdin.isatty() else AT_ONCE
    n_pairs = 0
    for probability in loaded.follows_stream(pairs(), at_once=at_once):
        n_pairs += 1
        first, second = given.pop(0)
        if as_json:
            print_json({"first": first, "second": second, "follows": probability})
        else:
            print(f"{probability:7.2%}  {first}  |  {second}", flush=True)
    if bad:
        raise bad[0]
    if not n_pairs:
        raise InputError(f"{file or 'stdin'}: no pairs: give two texts a line, separated by a tab")


def _pairs(file: Path | None, loaded: "Loaded", bad: list[FirthError]) -> Iterator[tuple[str, str]]:
    """The pairs up to the first bad one, whose error is appended to ``bad``: earlier pairs are answered first."""
    from firth.inference.next_sentence import pair_row

    for number, line in numbered_lines(file):
        parts = line.split("\t")
        try:
            if len(parts) != 2:
                raise InputError(f"{len(parts)} fields: expected two texts, separated by one tab")
            pair_row(loaded, *parts)
        except (InputError, LengthError) as error:
            bad.append(type(error)(f"{file or 'stdin'}:{number}: {error}"))
            return
        yield parts[0], parts[1]
