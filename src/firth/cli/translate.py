"""``firth translate``."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from firth.cli.shared import (
    AtLeastOne,
    Flag,
    InputFile,
    JsonFlag,
    check_text,
    lines_from,
    load_model,
    on_interrupt,
    print_json,
)
from firth.errors import ConfigError
from firth.progress import Progress


def translate(
    model: Annotated[Path, Parameter(name="MODEL")],
    /,
    *texts: Annotated[str, Parameter(name="TEXT")],
    file: InputFile = None,
    beam: AtLeastOne = None,
    length_penalty: float | None = None,
    greedy: Flag = False,
    extra: AtLeastOne = None,
    as_json: JsonFlag = False,
) -> None:
    """Translate lines of text, one translation a line, in their order (an empty line stays empty).

    Example: firth translate runs/t < english.txt > german.txt

    Parameters
    ----------
    model
        The folder of a run or of a model.
    texts
        What to translate; stdin if none is given.
    file
        A file of lines in place of stdin.
    beam
        How many beginnings are followed at once; 4 if not given.
    length_penalty
        Of the length penalty: 0 is none, more prefers longer translations; 0.6 if not given.
    greedy
        Take the likeliest piece at each step, which is a beam of 1.
    extra
        Most pieces that a translation may have more than its line, the end piece of each counted; 50 if not given.
    as_json
        One JSON object a line: translation, score, log_prob, pieces, and whether it ended.
    """
    if greedy and (beam or length_penalty is not None):
        raise ConfigError("--greedy follows one beginning and ranks none: leave out --beam and --length-penalty")
    if texts and file is not None:
        raise ConfigError("give TEXT or --input FILE, not both")
    from firth.inference.translating import AT_ONCE, Search, trained_length

    search = Search(
        beam=1 if greedy else beam or 4,
        length_penalty=0.6 if length_penalty is None else length_penalty,
        extra=extra or 50,
    )
    for number, given in enumerate(texts, 1):
        check_text(given, f"TEXT {number}")
    loaded = load_model(model, "float32")
    known = trained_length(loaded.loaded)
    at_once = 1 if not texts and file is None and sys.stdin.isatty() else AT_ONCE
    with on_interrupt("the translations so far are complete"), Progress("translating", None, "lines") as progress:
        found = loaded.translate_stream(texts or lines_from(file), search, at_once, progress.advance)
        for number, translated in enumerate(found, 1):
            if known is not None and translated.read > known:
                progress.message(
                    f"note: line {number} has {translated.read:,} pieces, and in training none had more than {known:,} "
                    "(data.length): of such lines the rest is translated by guess; cut them into sentences"
                )
                known = None  # said once
            if as_json:
                print_json({
                    "translation": translated.text, "score": translated.score, "log_prob": translated.log_prob,
                    "pieces": translated.pieces, "ended": translated.ended,
                })  # fmt: skip
            else:
                print(translated.text)
            if number % at_once == 0:
                sys.stdout.flush()
