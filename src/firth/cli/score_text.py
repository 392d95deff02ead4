"""``firth score-text``."""

import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from firth.cli.shared import Flag, JsonFlag, check_texts, load_and_say, print_json, print_table, say_unknown, until_bad
from firth.errors import FirthError, InputError, UsageError
from firth.inference.precision import Precision
from firth.progress import say

if TYPE_CHECKING:
    from firth.inference.model import Model
    from firth.inference.text_scores import MinimalPair, TextScore, TokenScore


def score_text(
    model: Annotated[Path, Parameter(name="MODEL")],
    /,
    *texts: Annotated[str, Parameter(name="TEXT")],
    pairs: Path | None = None,
    tokens: Flag = False,
    precision: Precision = "float32",
    as_json: JsonFlag = False,
) -> None:
    """Score texts with a language model: log-probability and perplexity, or which sentence of a pair it prefers.

    Example: firth score-text runs/a "The keys are on the table." --tokens

    Parameters
    ----------
    model
        Run or model folder, or hub:org/name, with its language-model head.
    texts
        Texts to score, of any length; lines of stdin if none is given.
    pairs
        JSON lines with sentence_good and sentence_bad (optional: field, UID), as BLiMP and Zorro publish them.
    tokens
        Print each token's log-probability too.
    precision
        dtype of the encoder; auto is bfloat16 where the hardware supports it, else float16 weights.
    as_json
        Print JSON: one object per text, or one object for all pairs.
    """
    if pairs is not None and texts:
        raise UsageError("firth score-text takes texts or --pairs, not both")
    if pairs is not None and tokens:
        raise UsageError("--tokens is for texts: --pairs prints accuracies alone")
    check_texts(texts, reads="<")
    given = list(_read_pairs(pairs)) if pairs is not None else None
    loaded = load_and_say(model, precision)
    if given is not None:
        _score_pairs(loaded, given, as_json)
        return
    from firth.inference.text_scores import check_tokens

    bad: list[FirthError] = []
    source = texts or until_bad(lambda line: check_tokens(loaded.loaded, line), bad)
    totals: dict[str, tuple[float, int]] = {}
    n_texts = 0
    for score in loaded.score_stream(source) if texts else _each(loaded, source):
        n_texts += 1
        if n_texts == 1 and not as_json:
            _say_columns(score)
        for kind, scored in _directions(score):
            before, n_before = totals.get(kind, (0.0, 0))
            totals[kind] = before + sum(token.log_probability for token in scored), n_before + len(scored)
        _print_score(score, tokens, as_json)
        say_unknown(score.text, loaded)
        _say_unpredicted(score.text, loaded)
    if bad:
        raise bad[0]
    if not n_texts:
        raise InputError("no text: give one after MODEL, or lines on stdin")
    if n_texts > 1 and not as_json:
        from firth.inference.text_scores import perplexity_from

        for kind, (log_probability, n_tokens) in totals.items():
            shown = f"{perplexity_from(log_probability, n_tokens):,.2f}" if n_tokens else "-"
            say(f"{_NAMES[kind]} of all {n_texts:,} texts: {shown} ({n_tokens:,} tokens)")


def _say_unpredicted(text: str, model: "Model") -> None:
    """Warn if a model that reads any word cannot predict most words of a text."""
    from firth.text.open_words import OpenWords

    tokenizer = model.loaded.tokenizer
    if not isinstance(tokenizer, OpenWords):
        return
    (ids,) = tokenizer.ids_many([text])
    n_others = sum(one >= tokenizer.size for one in ids)
    if ids and 2 * n_others >= len(ids):
        say(f"{text!r}: {n_others} of {len(ids)} words are predicted as {tokenizer.kind.unk}: the scores mean little")


_NAMES = {"masked": "pseudo-perplexity", "forward": "perplexity", "backward": "backward perplexity"}
_WIDTH = max(map(len, _NAMES.values()))


def _say_columns(score: "TextScore") -> None:
    """Name the columns on stderr, so that stdout has one line per text."""
    names = ["log-probability", *(_NAMES[kind] for kind, _ in _directions(score))]
    say("  ".join([*(f"{name:>{_WIDTH}}" for name in names), "text"]))


def _each(model: "Model", lines: Iterable[str]) -> Iterator["TextScore"]:
    """Score lines one by one if they are typed, else many at once."""
    if not sys.stdin.isatty():
        yield from model.score_stream(lines)
        return
    for line in lines:
        yield from model.score_stream([line])


def _directions(score: "TextScore") -> list[tuple[str, tuple["TokenScore", ...]]]:
    return [(score.kind, score.tokens), *([("backward", score.backward)] if score.backward else [])]


def _number(perplexity: float) -> str:
    """Format a perplexity; ``-`` for a text of which no token is predicted."""
    return f"{'-':>{_WIDTH}}" if math.isnan(perplexity) else f"{perplexity:{_WIDTH},.2f}"


def _print_score(score: "TextScore", tokens: bool, as_json: bool) -> None:
    if as_json:
        found = {"text": score.text, "kind": score.kind, "log_probability": score.log_probability}
        found |= {"perplexity": score.perplexity, "tokens": [asdict(token) for token in score.tokens]}
        if score.backward:
            found["backward_perplexity"] = score.backward_perplexity
            found["backward"] = [asdict(token) for token in score.backward]
        print_json(found)
        return
    columns = [f"{score.log_probability:{_WIDTH}.2f}", _number(score.perplexity)]
    columns += [] if score.backward_perplexity is None else [_number(score.backward_perplexity)]
    print("  ".join([*columns, score.text]), flush=True)
    if tokens:
        for kind, scored in _directions(score):
            for token in scored:
                print(f"    {token.log_probability:8.2f}  {kind if score.backward else ''}  {token.token}".rstrip())


def _read_pairs(path: Path) -> Iterator[tuple[str, "MinimalPair"]]:
    """Read the pairs, each with its place in the file."""
    from firth.inference.text_scores import MinimalPair
    from firth.tasks.readers.files import Problems, read_jsonl, text_field

    number = 0
    for number, row in read_jsonl(path, Problems()):
        where = f"{path}:{number}"
        field, paradigm = row.get("field") or "", row.get("UID") or ""
        good, bad = text_field(row, "sentence_good", where), text_field(row, "sentence_bad", where)
        yield where, MinimalPair(good, bad, str(field), str(paradigm))
    if not number:
        raise InputError(f"{path}: no pairs: expected one JSON object with sentence_good and sentence_bad per line")


def _score_pairs(model: "Model", pairs: list[tuple[str, "MinimalPair"]], as_json: bool) -> None:
    from firth.inference.text_scores import check_tokens, pair_accuracies
    from firth.progress import Progress

    for where, pair in pairs:
        for field, text in (("sentence_good", pair.good), ("sentence_bad", pair.bad)):
            try:
                check_tokens(model.loaded, text)
            except InputError as error:
                raise InputError(f"{where}: {field}: {error}") from None
    answers = []
    with Progress("scoring", len(pairs), "pairs") as progress:
        for answer in model.prefers_good(pair for _, pair in pairs):
            answers.append(answer)
            progress.advance(1)
    found = pair_accuracies(answers)
    if as_json:
        print_json(found)
        return
    rows = [(name or "(no field)", f"{share:6.1%}") for name, share in found["field"].items()]
    print_table([*rows, ("mean over paradigms", f"{found['all']['accuracy']:6.1%}"), ("pairs", f"{len(pairs):,}")])
