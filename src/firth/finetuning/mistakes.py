"""A classifier's most confident mistakes, and the words that decided them.

A word's weight is how much the log-odds of the predicted label fall without it (occlusion: Zeiler and Fergus 2014,
§4.2; Li et al. 2016, "Understanding neural networks through representation erasure").
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from firth.folder import Loaded
from firth.inference.answering import answer_records
from firth.tasks.predictions import Labelled
from firth.text.records import Text

# Mistakes that are kept, and most words of a text for which each is left out in turn.
MOST = 10
_MOST_WORDS = 80
_LEAST = 1e-7  # probabilities are clipped to this distance from 0 and 1


@dataclass(frozen=True, slots=True)
class Mistake:
    """A wrong prediction. ``words``: of the text, then of the second, with the weight of each.

    The weight is None in a long text, and for the only word of a text.
    """

    where: str
    gold: str
    predicted: str
    probability: float
    words: tuple[tuple[str, float | None], ...]

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data for JSON."""
        return asdict(self) | {"words": [list(pair) for pair in self.words]}


def find_mistakes(
    loaded: Loaded, records: Sequence[Text], answers: Sequence[Labelled], most: int = MOST
) -> list[Mistake]:
    """Explain the wrong answers of highest probability. ``answers``: of ``records``, by the model ``loaded``."""
    wrong = [(a.probability, n) for n, (r, a) in enumerate(zip(records, answers, strict=True)) if a.label != r.label]
    chosen = [n for _, n in sorted(wrong, key=lambda pair: (-pair[0], pair[1]))[:most]]
    return [_explain(loaded, records[n], answers[n]) for n in chosen]


def _explain(loaded: Loaded, record: Text, answer: Labelled) -> Mistake:
    first, second = record.text.split(), (record.second or "").split()
    words = [*first, *second]
    weights: list[float | None] = [None] * len(words)
    # Without its only word a text would be empty, which models of two texts refuse.
    places = [n for n in range(len(words)) if len(first if n < len(first) else second) > 1]
    if places and len(words) <= _MOST_WORDS:
        without = [
            replace(
                record,
                text=" ".join(_without(first, n)),
                second=None if record.second is None else " ".join(_without(second, n - len(first))),
            )
            for n in places
        ]
        found, _ = answer_records(loaded, without)
        for n, one in zip(places, found, strict=True):
            weights[n] = _log_odds(answer.probability) - _log_odds(one.probabilities[answer.label])
    gold = str(record.label)
    return Mistake(record.where, gold, answer.label, answer.probability, tuple(zip(words, weights, strict=True)))


def _log_odds(probability: float) -> float:
    p = min(max(probability, _LEAST), 1 - _LEAST)
    return math.log(p / (1 - p))


def _without(words: list[str], n: int) -> list[str]:
    return [word for place, word in enumerate(words) if place != n]
