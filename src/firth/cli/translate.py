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
    check_texts,
    lines_from,
    load_and_say,
    on_interrupt,
    print_json,
)
from firth.errors import ConfigError
from firth.inference.defaults import BEAM, EXTRA, LENGTH_PENALTY
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
    """Translate text: one translation per line, in order; empty lines stay empty.

    Example: firth translate runs/t < english.txt > german.txt

    Parameters
    ----------
    model
        Run or model folder.
    texts
        Texts to translate; stdin if none is given.
    file
        Input file instead of stdin.
    beam
        Beam width (default 4; 1 is greedy).
    length_penalty
        Exponent of the length penalty (default 0.6); 0 is none, larger prefers longer translations.
    greedy
        Greedy search, the same as --beam 1.
    extra
        Maximum output length: source length plus this many tokens, end token included (default 50).
    as_json
        Print one JSON object per line: translation, score, log_prob, tokens (their number), ended.
    """
    if greedy and (beam or length_penalty is not None):
        raise ConfigError("--greedy keeps a single hypothesis: leave out --beam and --length-penalty")
    check_texts(texts, file)
    from firth.inference.translating import AT_ONCE, Search
    from firth.tasks.learnt import trained_length

    search = Search(
        beam=1 if greedy else beam or BEAM,
        length_penalty=LENGTH_PENALTY if length_penalty is None else length_penalty,
        extra=extra or EXTRA,
    )
    loaded = load_and_say(model, "float32")
    known = trained_length(loaded.loaded.provenance)
    at_once = 1 if not texts and file is None and sys.stdin.isatty() else AT_ONCE
    with on_interrupt("the translations so far are complete"), Progress("translating", None, "lines") as progress:
        found = loaded.translate_stream(texts or lines_from(file), search, at_once, progress.advance)
        for number, translated in enumerate(found, 1):
            if known is not None and translated.read > known:
                progress.message(
                    f"note: line {number} has {translated.read:,} tokens, more than any training sequence "
                    f"({known:,}, data.length): quality drops beyond that length; split the text into sentences"
                )
                known = None  # said once
            if as_json:
                print_json(
                    {
                        "translation": translated.text,
                        "score": translated.score,
                        "log_prob": translated.log_prob,
                        "tokens": translated.tokens,
                        "ended": translated.ended,
                    }
                )
            else:
                print(translated.text)
            if number % at_once == 0:
                sys.stdout.flush()
