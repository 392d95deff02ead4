"""``firth fill-mask``."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from firth.cli.shared import JsonFlag, Whole, check_texts, load_and_say, print_json, say_unknown, until_bad
from firth.errors import FirthError, InputError
from firth.inference.precision import Precision

if TYPE_CHECKING:
    from firth.inference.masks import FilledMask

_AT_ONCE = 64  # texts


def fill_mask(
    model: Annotated[Path, Parameter(name="MODEL")],
    /,
    *texts: Annotated[str, Parameter(name="TEXT")],
    top_k: Whole = 5,
    precision: Precision = "float32",
    as_json: JsonFlag = False,
) -> None:
    """Predict the masked tokens of a text.

    Example: firth fill-mask runs/a "The capital of France is [MASK]."

    Parameters
    ----------
    model
        Run or model folder, also of another tool, or hub:org/name.
    texts
        Texts with one or more [MASK]; lines of stdin if none is given.
    top_k
        Candidates per mask.
    precision
        dtype of the encoder; auto is bfloat16 where the hardware supports it, else float16 weights.
    as_json
        Print one JSON object per text.
    """
    check_texts(texts, reads="<")
    loaded = load_and_say(model, precision)
    from firth.inference.masks import check_masked, masked_row

    # Typed lines are answered one by one.
    at_once = 1 if not texts and sys.stdin.isatty() else _AT_ONCE
    check_masked(loaded.loaded, top_k)
    bad: list[FirthError] = []
    source = iter(texts or until_bad(lambda line: masked_row(loaded.loaded, line), bad))
    n_texts = 0
    while some := list(islice(source, at_once)):
        n_texts += len(some)
        for text in some:
            say_unknown(text, loaded)
        for text, masks in zip(some, loaded.fill_mask(some, top_k), strict=True):
            if as_json:
                print_json({"text": text, "masks": [asdict(mask) for mask in masks]})
            else:
                print("\n".join(_readable(text, masks)), flush=True)
    if bad:
        raise bad[0]
    if not n_texts:
        raise InputError("no text: give one behind the model, or lines on stdin")


def _readable(text: str, masks: "Iterable[FilledMask]") -> Iterator[str]:
    """The text, and below it each mask's candidates, most probable first."""
    yield text
    masks = list(masks)
    for number, mask in enumerate(masks, start=1):
        if len(masks) > 1:
            yield f"  mask {number}"
        for candidate in mask.candidates:
            yield f"  {candidate.probability:7.2%}  {candidate.token}"
