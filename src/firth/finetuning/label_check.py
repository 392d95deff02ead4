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
    """The examples that cross-validated TF-IDF takes for another label, at most 50, the likeliest errors first.

    An example counts as of another label if that label is as probable as it is, on average, for the examples that have
    it, and its own label less so. A rare label is improbable everywhere, so probabilities alone would list all of its
    examples. ``probability`` is that of the given label.
    Source: Northcutt et al. 2021, §3 (confident learning: thresholds by class, ranking by self-confidence).
    """
    folds = list(unseen_outputs(config, folds_of(records, 2 if len(records) > _MANY else FOLDS)))
    asked = [record for some, _ in folds for record in some]
    shares = softmax(np.concatenate([outputs for _, outputs in folds]) / config.temperature)
    gold = targets_of(config, asked).argmax(1)
    # A label without an example is never reached.
    usual = np.array([shares[gold == k, k].mean() if (gold == k).any() else np.inf for k in range(shares.shape[1])])
    above = np.where(shares >= usual, shares, 0.0)
    numbers = np.arange(len(asked))
    given, other = shares[numbers, gold], above.argmax(1)
    margin = given - usual[gold]
    doubtful = np.flatnonzero((other != gold) & (above[numbers, other] > 0) & (margin < 0))
    suspects = [
        Suspect(asked[i].where, _both(asked[i]), str(asked[i].label), config.labels[other[i]], float(given[i]))
        for i in sorted(doubtful.tolist(), key=lambda i: (margin[i], asked[i].where))
    ]
    return suspects[:_MOST]


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
