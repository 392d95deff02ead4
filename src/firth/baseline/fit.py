"""Fit TF-IDF with a linear model: n-grams and strength chosen on examples that the fit has not seen.

Only this module needs scikit-learn, for its solvers.
"""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar
from unicodedata import normalize

import numpy as np
from jaxtyping import Float, Int

from firth.baseline.config import GramConfig, JointConfig, TfidfConfig
from firth.baseline.tfidf import Tfidf, Vectorizer, answers_of, fit_vectorizer, linear_outputs
from firth.data.hashing import seed_of
from firth.errors import InputError
from firth.metrics.calibration import best_threshold, careful_temperature, sigmoid, softmax
from firth.tasks.readers.texts import TextKind
from firth.tasks.split import numbers_by, split_key
from firth.text.records import Text

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

# What is tried: n-grams first, with one strength in the middle, then strengths for the best n-grams.
# Character n-grams across words scored as well as those within words, or better: see docs/verbs/finetune.md.
GRAMS: tuple[GramConfig, ...] = (
    GramConfig(words=3, shortest=1, longest=4, across=True),
    GramConfig(words=2, longest=0),
)
STRENGTHS: dict[str, tuple[float, ...]] = {
    "classify": (0.3, 1.0, 3.0, 10.0, 30.0),
    "multilabel": (1.0, 3.0, 10.0, 30.0),
    "regress": (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
}
_MIDDLE: dict[str, float] = {"classify": 3.0, "multilabel": 10.0, "regress": 1.0}
# With fewer held-out examples, choices are made by cross-validation, else on the held-out examples.
FEWEST_HELD = 200
FOLDS = 5
# Weights of a model, in bytes four times as many: with many labels there are fewer n-grams.
_MOST_WEIGHTS = 50_000_000
# n-grams are chosen on at most this many examples, the strength on all.
_MOST_TRIED = 5_000

# Scores predictions; higher is better.
Score = Callable[[Sequence[Text], Sequence[Any]], float]
# Examples to fit on, and examples to choose on.
Fold = tuple[list[Text], list[Text]]
C = TypeVar("C", TfidfConfig, JointConfig)


@dataclass(frozen=True, slots=True)
class Tried:
    """One way to fit, and its scores on examples that it has not seen."""

    grams: GramConfig
    strength: float
    score: float
    log_loss: float


@dataclass(frozen=True, slots=True)
class FittedTfidf:
    """A model fitted to all examples. ``outputs``, ``records``: of the unseen examples that choices were made on.

    ``by``: how choices were made, in words.
    """

    model: Tfidf
    tried: tuple[Tried, ...]
    chosen: Tried
    records: list[Text]
    outputs: Float[np.ndarray, "n K"]
    by: str


def fit_tfidf(
    kind: TextKind,
    labels: Sequence[str],
    train: Sequence[Text],
    held: Sequence[Text],
    score: Score,
    *,
    grams: Sequence[GramConfig] = GRAMS,
    strengths: Sequence[float] | None = None,
) -> FittedTfidf:
    """Choose n-grams and strength by ``score``, then fit all of ``train`` and ``held``.

    Choices are made on ``held``, or by cross-validation over all examples where ``held`` is small.
    Temperature or threshold are fitted on the same unseen examples. InputError with fewer than two examples, or
    with one label.
    """
    every = [*train, *held]
    _check(kind, labels, every)
    if len(held) >= FEWEST_HELD:
        folds, by = [(list(train), list(held))], "held-out training examples"
    else:
        folds = folds_of(every, min(FOLDS, len(every)))
        if not folds:
            raise InputError("all examples have one text, or are of one group: expected two at least, to choose on one")
        by = f"cross-validation over {len(folds)} folds of the training examples"
    strengths = strengths or STRENGTHS[kind]
    most = _MOST_WEIGHTS // (2 * max(len(labels), 1))  # of either kind
    grams = [replace(option, most=min(option.most, most)) for option in grams]
    # Any known label may be predicted; one without an example is just never probable.
    config = TfidfConfig(kind=kind, labels=tuple(labels), pairs=any(text.second is not None for text in every))
    if kind == "regress":
        values = [float(text.label) for text in every]  # type: ignore[arg-type]  # checked above
        config = replace(config, lowest=min(values), highest=max(values))
    work = _Work(config, score)
    some = folds if len(every) <= _MOST_TRIED else [(_sample(fit, _MOST_TRIED), ask) for fit, ask in folds]
    first = [work.try_(some, option, [_MIDDLE[kind]])[0] for option in grams] if len(grams) > 1 else []
    best = max(range(len(first)), key=lambda i: _rank(first[i][0]), default=0)
    found = work.try_(folds, grams[best], strengths)
    chosen, outputs = max(found, key=lambda pair: _rank(pair[0]))
    records = [text for _, ask in folds for text in ask]
    config = replace(config, grams=chosen.grams, strength=chosen.strength)
    config = calibrated(config, records, outputs)
    reader = fit_vectorizer(every, chosen.grams)
    weight, bias = fit_linear(config, reader.read(every), every)
    tried = tuple(tried for tried, _ in [*first, *found])
    return FittedTfidf(Tfidf(config, reader, weight, bias), tried, chosen, records, outputs, by)


def folds_of(records: Sequence[Text], n: int) -> list[Fold]:
    """Split examples into ``n`` folds, each held out once; labels are spread, equal texts and groups stay together.

    The split is by hash of the texts or groups, whatever their order. There are fewer folds if there are fewer groups.
    """
    if any(record.group for record in records):
        fold = _dealt(records, n)
    else:
        texts = numbers_by(records, lambda record: normalize("NFC", f"{record.text}\t{record.second or ''}"))
        order = sorted(texts, key=lambda key: (str(records[texts[key][0]].label), seed_of("folds", key), key))
        fold = {number: place % n for place, key in enumerate(order) for number in texts[key]}
    found = []
    for held in range(n):
        fit = [record for number, record in enumerate(records) if fold[number] != held]
        ask = [record for number, record in enumerate(records) if fold[number] == held]
        if fit and ask:
            found.append((fit, ask))
    return found


def _dealt(records: Sequence[Text], n: int) -> dict[int, int]:
    """The fold of each record: groups are dealt largest first, each to the fold that has the least of its labels."""
    groups = numbers_by(records, split_key)
    counts = {key: Counter(str(records[number].label) for number in numbers) for key, numbers in groups.items()}
    every = Counter(str(record.label) for record in records)
    # What each fold has: examples of each label, and in total.
    labels, sizes = [Counter[str]() for _ in range(n)], [0] * n

    def has(fold: int, key: str) -> float:
        of_labels = sum(count * labels[fold][label] / every[label] for label, count in counts[key].items())
        return of_labels + len(groups[key]) * sizes[fold] / len(records)

    found = dict[int, int]()
    for key in sorted(groups, key=lambda key: (-len(groups[key]), seed_of("folds", key), key)):
        chosen = min(range(n), key=lambda fold: (has(fold, key), sizes[fold]))
        labels[chosen] += counts[key]
        sizes[chosen] += len(groups[key])
        found |= dict.fromkeys(groups[key], chosen)
    return found


def unseen_outputs(config: TfidfConfig, folds: Sequence[Fold]) -> Iterator[tuple[list[Text], Float[np.ndarray, "n K"]]]:
    """For each fold, yield the held-out examples and their outputs by a model fitted to the others."""
    for fit, ask in folds:
        reader = fit_vectorizer(fit, config.grams)
        weight, bias = fit_linear(config, reader.read(fit), fit)
        yield ask, linear_outputs(reader.read(ask), weight, bias, config.kind)


class _Work:
    """Tries ways to fit, over all folds."""

    def __init__(self, config: TfidfConfig, score: Score):
        self.config, self.score = config, score

    def try_(
        self, folds: Sequence[Fold], grams: GramConfig, strengths: Sequence[float]
    ) -> list[tuple[Tried, Float[np.ndarray, "n K"]]]:
        """Try every strength with these n-grams: returns its scores, and the outputs for all held-out examples."""
        parts: list[list[np.ndarray]] = [[] for _ in strengths]
        for fit, ask in folds:
            reader = fit_vectorizer(fit, grams)
            known, asked = reader.read(fit), reader.read(ask)
            for number, strength in enumerate(strengths):
                config = replace(self.config, grams=grams, strength=strength)
                parts[number].append(linear_outputs(asked, *fit_linear(config, known, fit), config.kind))
        records = [text for _, ask in folds for text in ask]
        found = []
        for strength, outputs in zip(strengths, map(np.concatenate, parts), strict=True):
            config = calibrated(replace(self.config, grams=grams, strength=strength), records, outputs)
            score = self.score(records, answers_of(outputs, config))
            found.append((Tried(grams, strength, score, float(losses_of(config, records, outputs).mean())), outputs))
        return found


def _rank(tried: Tried) -> tuple[float, float, float]:
    """Rank by score; ties go to the lower loss, then to the simpler model."""
    return (tried.score if math.isfinite(tried.score) else -math.inf, -round(tried.log_loss, 9), -tried.strength)


def fit_linear(
    config: TfidfConfig, features: "csr_matrix", records: Sequence[Text]
) -> tuple[Float[np.ndarray, "K F"], Float[np.ndarray, " K"]]:
    """Weights and biases, float32: logistic regression for each label, or ridge regression."""
    if config.kind == "regress":
        from sklearn.linear_model import Ridge

        values = np.array([record.label for record in records], np.float64)
        ridge = Ridge(alpha=1 / config.strength, solver="sparse_cg", tol=1e-6).fit(features, values)
        return np.asarray(ridge.coef_, np.float32)[None], np.array([ridge.intercept_], np.float32)
    gold = targets_of(config, records)
    if len(config.labels) == 2 and config.kind == "classify":
        gold = gold[:, 1:]
    rows = [_logistic(features, column, config.strength) for column in gold.T]
    return np.stack([weight for weight, _ in rows]), np.array([bias for _, bias in rows], np.float32)


def targets_of(config: TfidfConfig | JointConfig, records: Sequence[Text]) -> Int[np.ndarray, "n K"]:
    """1 where an example has a label, else 0."""
    held = [record.label if isinstance(record.label, tuple) else (record.label,) for record in records]
    return np.array([[label in some for label in config.labels] for some in held], np.int64)


def _logistic(features: "csr_matrix", gold: Int[np.ndarray, " n"], strength: float) -> tuple[np.ndarray, float]:
    """Fit one label against the others."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    n_right = int(gold.sum())
    if n_right in (0, len(gold)):
        # Nothing to distinguish: as certain as this many examples allow.
        sure = math.log(len(gold) + 1)
        return np.zeros(features.shape[1], np.float32), sure if n_right else -sure
    # Coordinate descent in the dual: by far the fastest where most features are rare.
    model = LogisticRegression(C=strength, solver="liblinear", dual=True, random_state=0, tol=1e-2, max_iter=100)
    with warnings.catch_warnings():
        # If labels contradict the texts, the weakest penalties do not converge; stopping them is a penalty too, and
        # they are chosen only if they are better on unseen examples.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(features, gold)
    return np.asarray(model.coef_[0], np.float32), float(model.intercept_[0])


def calibrated(config: C, records: Sequence[Text], outputs: Float[np.ndarray, "n K"]) -> C:
    """The options with the temperature, or the threshold, that fits examples the model has not seen."""
    if config.kind == "classify":
        gold = targets_of(config, records).argmax(1)
        return replace(config, temperature=careful_temperature(outputs, gold))
    if config.kind == "multilabel":
        gold = targets_of(config, records).astype(bool)
        return replace(config, threshold=best_threshold(sigmoid(outputs), gold)[0])
    return config


def losses_of(
    config: TfidfConfig | JointConfig, records: Sequence[Text], outputs: Float[np.ndarray, "n K"]
) -> Float[np.ndarray, " n"]:
    """Each example's negative log likelihood of the gold labels, or the squared error of the predicted value."""
    if config.kind == "regress":
        gold = np.array([record.label for record in records], np.float64)
        return (np.clip(outputs[:, 0], config.lowest, config.highest) - gold) ** 2
    targets = targets_of(config, records)
    if config.kind == "multilabel":
        return np.logaddexp(0, np.where(targets, -outputs, outputs)).mean(1)
    shares = softmax(outputs / config.temperature)
    return -np.log(np.maximum(shares[targets.astype(bool)], 1e-300))


def _sample(records: Sequence[Text], n: int) -> list[Text]:
    """Sample ``n`` of the records by hash, in their order."""
    keys = [seed_of("sample", number, record.text) for number, record in enumerate(records)]
    kept = set(sorted(range(len(records)), key=keys.__getitem__)[:n])
    return [record for number, record in enumerate(records) if number in kept]


def _check(kind: TextKind, labels: Sequence[str], records: Sequence[Text]) -> None:
    if len(records) < 2:
        raise InputError(f"{len(records)} labelled examples: expected two at least, to choose on one of them")
    if kind == "classify":
        counts = Counter(record.label for record in records)
        if len(counts) < 2:
            raise InputError(
                f"{records[0].where}: all {len(records):,} examples have the label {records[0].label!r}; expected two "
                "labels or more"
            )
    assert kind == "regress" or labels


def weightiest(model: Tfidf, n: int) -> dict[str, list[tuple[str, float]]]:
    """The ``n`` n-grams with the highest positive weights for each label (or for the value), with their weights."""
    names = _feature_names(model.reader)
    rows = {"value": model.weight[0]} if model.config.kind == "regress" else {}
    if model.config.kind != "regress" and len(model.weight) == 1:
        rows = {model.labels[0]: -model.weight[0], model.labels[1]: model.weight[0]}
    elif model.config.kind != "regress":
        rows = dict(zip(model.labels, model.weight, strict=True))
    best = {label: np.argsort(-row, kind="stable")[:n] for label, row in rows.items()}
    return {label: [(names[i], float(rows[label][i])) for i in best[label] if rows[label][i] > 0] for label in rows}


def _feature_names(reader: Vectorizer) -> list[str]:
    names = []
    for vocabulary in reader.vocabularies:
        grams = [f"“{gram}”" for gram in vocabulary.grams]
        names += grams
        if reader.pairs:
            names += [f"second {gram}" for gram in grams] + [f"both {gram}" for gram in grams]
            names += [f"cosine of {vocabulary.block}", f"its square, {vocabulary.block}", "difference of lengths"]
    return names
