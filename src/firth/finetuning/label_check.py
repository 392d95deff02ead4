"""Find labels that may be wrong: those that cross-validation finds improbable, and conflicting equal texts."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from firth.baseline.config import TfidfConfig
from firth.baseline.fit import FOLDS, folds_of, targets_of, unseen_outputs
from firth.baseline.grams import normalise
from firth.metrics.calibration import softmax
from firth.text.records import Text

# With more examples two folds are enough; five would take too long.
_MANY = 20_000
_MOST = 50


@dataclass(frozen=True, slots=True)
class Suspect:
    """An example whose label a model fitted without it finds improbable."""

    where: str
    text: str
    label: str
    predicted: str
    probability: float


@dataclass(frozen=True, slots=True)
class Conflict:
    """Examples with the same text (ignoring case and spacing) and different labels."""

    text: str
    labels: tuple[str, ...]
    where: tuple[str, ...]


def label_suspects(records: Sequence[Text], config: TfidfConfig) -> list[Suspect]:
    """The 50 examples with the highest loss under cross-validated TF-IDF, highest first.

    Lists only those that it predicts differently; ``probability`` is that of the given label.
    Source: Müller and Markert 2019; Northcutt et al. 2021 (ranking by self-confidence).
    """
    found = []
    for some, outputs in unseen_outputs(config, folds_of(records, 2 if len(records) > _MANY else FOLDS)):
        shares = softmax(outputs / config.temperature)
        gold = targets_of(config, some).argmax(1)
        given, best = shares[np.arange(len(some)), gold], shares.argmax(1)
        for number in np.flatnonzero(best != gold):
            record = some[number]
            found.append(
                Suspect(
                    record.where, _both(record), str(record.label), config.labels[best[number]], float(given[number])
                )
            )
    return sorted(found, key=lambda suspect: (suspect.probability, suspect.where))[:_MOST]


def label_conflicts(records: Sequence[Text]) -> list[Conflict]:
    """Find equal texts with different labels, in the order of the file."""
    groups: dict[tuple[str, str], list[Text]] = defaultdict(list)
    for record in records:
        groups[normalise(record.text), normalise(record.second or "")].append(record)
    return [
        Conflict(_both(some[0]), tuple(str(r.label) for r in some), tuple(r.where for r in some))
        for some in groups.values()
        if len({r.label for r in some}) > 1
    ]


def _both(record: Text) -> str:
    return record.text if record.second is None else f"{record.text} | {record.second}"
