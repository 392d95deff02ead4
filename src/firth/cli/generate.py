"""``firth generate``."""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, validators

from firth.cli.shared import (
    AtLeastOne,
    Flag,
    JsonFlag,
    Whole,
    check_texts,
    load_and_say,
    print_json,
    print_table,
    until_bad,
)
from firth.errors import ConfigError, FirthError, InputError, UsageError
from firth.inference.precision import Precision
from firth.progress import say


def generate(
    model: Annotated[Path, Parameter(name="MODEL")],
    /,
    *prompts: Annotated[str, Parameter(name="TEXT")],
    max_new_tokens: AtLeastOne = None,
    sample: Flag = False,
    greedy: Flag = False,
    beam: AtLeastOne = None,
    temperature: float | None = None,
    top_k: Whole | None = None,
    top_p: float | None = None,
    seed: Whole | None = None,
    next_tokens: Annotated[Whole | None, Parameter(name="--next", validator=validators.Number(gte=1))] = None,
    precision: Precision = "float32",
    as_json: JsonFlag = False,
) -> None:
    """Continue a text with a language model, or list the most probable next tokens.

    Example: firth generate runs/gpt "The old farmer walked to" --max-new-tokens 30

    Parameters
    ----------
    model
        Run or model folder of a language model that predicts the next token (gpt, bert-ltr, lstm, awd-lstm, elmo),
        also of another tool, or hub:org/name. A backward model generates text before the prompt.
    prompts
        Prompts; lines of stdin if none is given.
    max_new_tokens
        Tokens to generate (default 50); prompt and output together must fit the model's maximum length.
    sample
        Sample from the model's distribution (the default).
    greedy
        Take the most probable token at each step.
    beam
        Beam search with this beam width.
    temperature
        Sampling temperature (default 1); lower is more conservative.
    top_k
        Sample only from the k most probable tokens; 0: all.
    top_p
        Nucleus sampling: the smallest set of tokens with this probability (default 0.9).
    seed
        Sampling seed (default 0); the same seed gives the same text.
    next_tokens
        Print the N most probable next tokens with their probabilities instead.
    precision
        dtype of the encoder; auto is bfloat16 where the hardware supports it, else float16 weights.
    as_json
        Print one JSON object per prompt.
    """
    check_texts(prompts, reads="<")
    drawing = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    options = _options(sample, greedy, beam, drawing)
    if max_new_tokens is not None:
        options["max_new_tokens"] = max_new_tokens
    if next_tokens is not None:
        if len(options) > 1 or options["how"] != "sample":
            raise UsageError("--next lists probabilities and generates nothing: leave out the options of the search")
        _print_next_tokens(model, prompts, next_tokens, precision, as_json)
        return
    from firth.inference.generation import AT_ONCE, Writing, check_prompt

    writing = Writing(**options)
    loaded = load_and_say(model, precision)
    # Typed lines are answered one by one.
    at_once = 1 if not prompts and sys.stdin.isatty() else AT_ONCE
    bad: list[FirthError] = []
    source = prompts or until_bad(lambda line: check_prompt(loaded.loaded, line, writing.max_new_tokens), bad)
    n_texts, known = 0, loaded.loaded.window_length
    for found in loaded.generate_stream(source, writing, at_once):
        n_texts += 1
        if known is not None and len(loaded.tokenize(found.prompt)) + len(found.tokens) > known:
            say(f"pre-training read at most {known:,} tokens (data.length): what is generated beyond them is worse")
            known = None  # said once
        if as_json:
            print_json(asdict(found))
        else:
            print(found.whole, flush=True)
    if bad:
        raise bad[0]
    if not n_texts:
        raise InputError("no text: give one behind the model, or lines on stdin")


def _print_next_tokens(model: Path, prompts: tuple[str, ...], top_k: int, precision: Precision, as_json: bool) -> None:
    loaded = load_and_say(model, precision)
    from firth.inference.generation import check_prompt

    bad: list[FirthError] = []
    n_texts = 0
    for prompt in prompts or until_bad(lambda line: check_prompt(loaded.loaded, line, 0), bad):
        n_texts += 1
        found = loaded.next_tokens(prompt, top_k)
        if as_json:
            print_json({"prompt": prompt, "next": [{"token": c.token, "probability": c.probability} for c in found]})
            continue
        print(prompt)
        print_table([(candidate.token, f"{candidate.probability:7.2%}") for candidate in found])
    if bad:
        raise bad[0]
    if not n_texts:
        raise InputError("no text: give one behind the model, or lines on stdin")


def _options(sample: bool, greedy: bool, beam: int | None, drawing: Mapping[str, object]) -> dict[str, Any]:
    """The requested search; ConfigError for several at once, and for options that it does not have."""
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
