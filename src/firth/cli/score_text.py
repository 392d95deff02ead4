"""``firth score-text``."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from firth.cli.shared import JsonFlag, Precision, check_text, lines_from, load_model, print_json, print_table
from firth.errors import InputError, UsageError

if TYPE_CHECKING:
    from firth.inference.model import Model
    from firth.inference.text_scores import MinimalPair


def score_text(
    model: Annotated[Path, Parameter(name="MODEL")],
    /,
    *texts: Annotated[str, Parameter(name="TEXT")],
    pairs: Path | None = None,
    precision: Precision = "float32",
    as_json: JsonFlag = False,
) -> None:
    """Score texts with a language model: the log-probability of each token, or which sentence of a pair it prefers.

    Example: firth score-text runs/a --pairs blimp.jsonl

    Parameters
    ----------
    model
        A run, a model folder or hub:org/name, with its language-model head.
    texts
        Texts to score; lines of stdin if none is given.
    pairs
        JSON lines with sentence_good and sentence_bad (optional: field, UID), as BLiMP and Zorro publish them.
    precision
        dtype of the encoder; auto is bfloat16 where the machine multiplies in it.
    as_json
        Print JSON: one object per text, or one object for all pairs.
    """
    if pairs is not None and texts:
        raise UsageError("firth score-text takes texts or --pairs, not both")
    for text in texts:
        check_text(text, "TEXT")
    given = list(_read_pairs(pairs)) if pairs is not None else None
    loaded = load_model(model, precision)
    if given is not None:
        _score_pairs(loaded, given, as_json)
        return
    n_texts = 0
    for text in texts or (line for line in lines_from(None) if line.strip()):
        n_texts += 1
        (score,) = loaded.score_texts([text])
        if as_json:
            print_json({"text": text, "log_probability": score.log_probability, "tokens": [*map(asdict, score.tokens)]})
        else:
            print(f"{score.log_probability:10.2f}  {text}", flush=True)
    if not n_texts:
        raise InputError("no text: give one after MODEL, or lines on stdin")


def _read_pairs(path: Path) -> Iterator["MinimalPair"]:
    from firth.inference.text_scores import MinimalPair
    from firth.tasks.readers.files import Problems, read_jsonl, text_field

    number = 0
    for number, row in read_jsonl(path, Problems()):
        where = f"{path}:{number}"
        field, paradigm = row.get("field") or "", row.get("UID") or ""
        yield MinimalPair(
            text_field(row, "sentence_good", where), text_field(row, "sentence_bad", where), str(field), str(paradigm)
        )
    if not number:
        raise InputError(f"{path}: no pairs: expected one JSON object with sentence_good and sentence_bad per line")


def _score_pairs(model: "Model", pairs: list["MinimalPair"], as_json: bool) -> None:
    from firth.inference.text_scores import pair_accuracies
    from firth.progress import Progress

    answers = []
    with Progress("scoring", len(pairs), "pairs") as progress:
        for answer in model.prefers_good(pairs):
            answers.append(answer)
            progress.advance(1)
    found = pair_accuracies(answers)
    if as_json:
        print_json(found)
        return
    rows = [(f"{name or 'pairs'}", f"{share:6.1%}") for name, share in found["field"].items()]
    print_table([*rows, ("mean over paradigms", f"{found['all']['accuracy']:6.1%}"), ("pairs", f"{len(pairs):,}")])
