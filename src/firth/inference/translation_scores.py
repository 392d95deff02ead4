"""Score translations against references: BLEU and chrF."""

import json
from pathlib import Path
from typing import Any

from firth.errors import ConfigError, InputError
from firth.inference.defaults import TRANSLATE
from firth.inference.model import load_model
from firth.inference.translating import Search, translates
from firth.metrics.translation import score_translations, translation_metrics
from firth.progress import Progress
from firth.tasks.learnt import trained_length
from firth.tasks.readers.files import read_lines


def evaluate_translation(model: str | Path, data: str, gold: str, search: Search | None = None) -> dict[str, Any]:
    """Translate the lines of ``data`` and score them against those of ``gold``.

    Returns ``scores``, ``signatures``, ``examples``, ``notes``, and the search options. InputError if the files
    differ in their number of lines; ConfigError for a model that does not translate, or if scoring is unavailable.
    """
    search = search or Search()
    translation_metrics()
    loaded = load_model(model)
    if not translates(loaded.loaded):
        raise ConfigError(f"{model} does not translate, which --gold requires; to score files use firth score")
    sources, references = _parallel(data, gold)
    hypotheses, unended, n_long = [], 0, 0
    known = trained_length(loaded.loaded.provenance)
    with Progress("translating", len(sources), "lines") as progress:
        for translated in loaded.translate_stream(sources, search, on_progress=progress.advance):
            hypotheses.append(translated.text)
            unended += not translated.ended
            n_long += known is not None and translated.read > known
    notes = [f"{unended:,} translations reached the maximum length without an end token"] if unended else []
    notes += [f"{n_long:,} lines are longer than any in training: data.length was {known}"] if n_long else []
    found = _scored(hypotheses, references, notes)
    return found | {"search": {"beam": search.beam, "length_penalty": search.length_penalty, "extra": search.extra}}


def score_translation_file(predictions: str, gold: str) -> dict[str, Any]:
    """Score a file of translations from any system: plain lines, or the output of ``firth translate --json``."""
    hypotheses, references = _parallel(predictions, gold)
    if Path(predictions).suffix == ".jsonl":
        hypotheses = [_text_of(line, f"{predictions}:{number}") for number, line in enumerate(hypotheses, 1)]
    return _scored(hypotheses, references, [])


def _parallel(first: str, second: str) -> tuple[list[str], list[str]]:
    sides = [[line for _, line in read_lines(Path(path))] for path in (first, second)]
    if len(sides[0]) != len(sides[1]):
        raise InputError(
            f"{first} has {len(sides[0]):,} lines and {second} {len(sides[1]):,}: line i of one must be the "
            f"translation of line i of the other"
        )
    return sides[0], sides[1]


def _text_of(line: str, where: str) -> str:
    try:
        text = json.loads(line)["translation"]
    except (ValueError, KeyError, TypeError, RecursionError):
        text = None
    if not isinstance(text, str):
        raise InputError(
            f'{where}: expected an object with the text of a "translation", as firth translate --json writes'
        )
    return text


def _scored(hypotheses: list[str], references: list[str], notes: list[str]) -> dict[str, Any]:
    scores, signatures = score_translations(hypotheses, references)
    return {"task": TRANSLATE, "scores": scores, "signatures": signatures, "examples": len(references), "notes": notes}
