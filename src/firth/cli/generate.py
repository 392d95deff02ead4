"""``firth generate``."""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from firth.cli.shared import (
    AtLeastOne,
    Flag,
    JsonFlag,
    Precision,
    check_text,
    lines_from,
    load_model,
    print_json,
)
from firth.errors import ConfigError, InputError


def generate(
    model: Annotated[Path, Parameter(name="MODEL")],
    /,
    *prompts: Annotated[str, Parameter(name="TEXT")],
    max_new_tokens: AtLeastOne = None,
    sample: Flag = False,
    greedy: Flag = False,
    beam: AtLeastOne = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    precision: Precision = "float32",
    as_json: JsonFlag = False,
) -> None:
    """Go on with a text.

    Example: firth generate runs/gpt "The old farmer walked to" --max-new-tokens 30

    Parameters
    ----------
    model
        The folder of a run or of a model that was pre-trained from left to right (gpt), also of another tool, or
        hub:org/name.
    prompts
        Texts to go on with; lines of stdin if none is given.
    max_new_tokens
        Pieces to write; 50 if not given. With those of the text at most as many as the model reads.
    sample
        Draw each piece by chance, as likely as the model finds it: what happens if nothing is said.
    greedy
        Take the likeliest piece each time.
    beam
        Search for the likeliest text, with so many beginnings kept.
    temperature
        Of drawing: below 1 likely pieces become likelier.
    top_k
        Of drawing: only the likeliest so many pieces; 0 for all.
    top_p
        Of drawing: only the fewest pieces that hold this share of the probability; 0.9 if not given.
    seed
        Of drawing: the same seed gives the same text; 0 if not given.
    precision
        What the encoder computes in; auto is bfloat16 where the machine multiplies in it.
    as_json
        Print one JSON object a text.
    """
    for prompt in prompts:
        check_text(prompt, "TEXT")
    drawing = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    options = _options(sample, greedy, beam, drawing)
    if max_new_tokens is not None:
        options["max_new_tokens"] = max_new_tokens
    from firth.inference.generation import AT_ONCE, Writing

    writing = Writing(**options)
    loaded = load_model(model, precision)
    # A person who types lines wants each answered at once.
    at_once = 1 if not prompts and sys.stdin.isatty() else AT_ONCE
    source = prompts or (line for line in lines_from(None) if line.strip())
    n_texts = 0
    for found in loaded.generate_stream(source, writing, at_once):
        n_texts += 1
        if as_json:
            print_json(asdict(found))
        else:
            print(found.prompt + found.text, flush=True)
    if not n_texts:
        raise InputError("no text: give one behind the model, or lines on stdin")


def _options(sample: bool, greedy: bool, beam: int | None, drawing: Mapping[str, object]) -> dict[str, Any]:
    """The search that was asked for; ConfigError for two at once, and for options that it does not have."""
    asked = {"--sample": sample, "--greedy": greedy, "--beam": beam is not None}
    names = [name for name, given in asked.items() if given]
    if len(names) > 1:
        raise ConfigError(f"{' and '.join(names)}: give one of them")
    given: dict[str, Any] = {name: value for name, value in drawing.items() if value is not None}
    how = names[0].removeprefix("--") if names else "sample"
    if given and how != "sample":
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigError(f"{flags} {'is' if len(given) == 1 else 'are'} for --sample: leave out, or leave out --{how}")
    return {"how": how, **given, **({} if beam is None else {"beam": beam})}
