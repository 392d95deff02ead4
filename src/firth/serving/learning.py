"""Learn a few labels in the browser: a learning curve of a model's vectors beside TF-IDF, and the layer that does best.

All of them use the same logistic regression. One answer is computed at a time, for seconds, beside other requests.
"""

import dataclasses
import math
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from starlette.responses import StreamingResponse

from firth.baseline.config import TfidfConfig
from firth.baseline.fit import GRAMS, fit_linear
from firth.baseline.tfidf import fit_vectorizer, linear_outputs
from firth.data.hashing import permutation, seed_of
from firth.serving.asking import LAST_EVENT, Context, Listed, Route, ServerState, event, request_body
from firth.serving.forward import Job
from firth.serving.hosted import Hosted
from firth.serving.refusals import RefusalError
from firth.text.records import Text

MOST_TEXTS, MOST_LABELS, MOST_CHARACTERS = 256, 16, 100_000
MOST_S = 20.0
# Splits over which a point is averaged, and the share of the texts that each holds out.
_SPLITS, _HELD_OUT = 10, 0.25
# Folds of the cross-validation of layers, each predicted from all others, and percentiles of its intervals.
_FOLDS, _INTERVAL = 5, (2.5, 97.5)
# C of the logistic regressions: on TF-IDF, and on vectors with components of variance 1/H.
_TFIDF_STRENGTH, _VECTOR_STRENGTH = 3.0, 10.0


@request_body
class LearnBody:
    """Texts, and the label of each."""

    texts: Listed[str]
    labels: Listed[str]


async def learn(context: Context, body: LearnBody) -> Any:
    def points(vectors: list[np.ndarray], records: list[Text], left: threading.Event) -> Iterator[dict[str, Any]]:
        return curve(np.stack(vectors), records, left)

    return await _streamed(context, body, Hosted.embed, points)


async def probe(context: Context, body: LearnBody) -> Any:
    def points(vectors: list[list[np.ndarray]], records: list[Text], left: threading.Event) -> Iterator[dict[str, Any]]:
        return layer_accuracies([np.stack(layer) for layer in zip(*vectors, strict=True)], records, left)

    return await _streamed(context, body, Hosted.layer_means, points)


async def _streamed(
    context: Context,
    body: LearnBody,
    read: Callable[[Hosted, list[str]], Job],
    points_of: Callable[[list[Any], list[Text], threading.Event], Iterator[dict[str, Any]]],
) -> StreamingResponse:
    """Stream the points that ``points_of`` computes from the texts as ``read`` encodes them; one answer at a time."""
    hosted, state = context.hosted("embed"), context.state
    _check(context, body)
    if state.learning:
        message = f"other labels are being learned: try again in {MOST_S:g} s"
        raise RefusalError(429, "learning", message, headers={"Retry-After": str(round(MOST_S))})
    state.learning = True
    left = threading.Event()
    context.at_end.callback(_end, state, left)
    at_once = state.limits.inputs
    parts = [body.texts[start : start + at_once] for start in range(0, len(body.texts), at_once)]
    # ``alone``, so that it runs after others' requests: a learning curve can wait.
    found = [await context.ask(dataclasses.replace(read(hosted, part), alone=True)) for part in parts]
    records = [
        Text(text, label, where=f"texts.{number}")
        for number, (text, label) in enumerate(zip(body.texts, body.labels, strict=True))
    ]
    points = points_of([vector for part in found for vector in part], records, left)
    return StreamingResponse(_events(state, points), media_type="text/event-stream")


def _end(state: ServerState, left: threading.Event) -> None:
    """Allow the next request; a computation that still runs ends after its current point."""
    left.set()
    state.learning = False


def _check(context: Context, body: LearnBody) -> None:
    if len(body.texts) != len(body.labels):
        message = f"{len(body.texts)} texts and {len(body.labels)} labels: expected one label for each text"
        raise RefusalError(422, "body", message, "labels")
    if len(body.texts) > MOST_TEXTS:
        raise RefusalError(422, "inputs", f"{len(body.texts)} texts: expected at most {MOST_TEXTS}", "texts")
    if unnamed := [number for number, label in enumerate(body.labels) if not label.strip()]:
        message = f"labels.{unnamed[0]} is empty: expected a label for the text {body.texts[unnamed[0]][:60]!r}"
        raise RefusalError(422, "empty", message, "labels")
    counts = Counter(body.labels)
    if not 2 <= len(counts) <= MOST_LABELS:
        message = f"{len(counts)} different labels: expected 2 to {MOST_LABELS}"
        raise RefusalError(422, "body", message, "labels")
    if rare := [label for label, n in counts.items() if n < 2]:
        message = f"the label {rare[0][:40]!r} has one text: expected two or more of each"
        raise RefusalError(422, "body", message, "labels")
    context.characters = sum(map(len, body.texts))
    if context.characters > MOST_CHARACTERS:
        message = f"{context.characters:,} characters: expected at most {MOST_CHARACTERS:,}"
        raise RefusalError(422, "length", message, "texts")
    if empty := [number for number, text in enumerate(body.texts) if not text.strip()]:
        raise RefusalError(422, "empty", f"texts.{empty[0]} is empty", "texts")


async def _events(state: ServerState, points: Iterator[dict[str, Any]]) -> AsyncGenerator[bytes]:
    """Server-sent events: one per point, then [DONE]; an error in the middle is the last event."""
    engine = state.engine
    try:
        while (point := await engine.in_thread(engine.learners, lambda: next(points, None))) is not None:
            yield event(point)
        yield LAST_EVENT
    except RefusalError as error:
        yield event(error.body("tei"))


def _check_time(ends_s: float) -> None:
    """Raise RefusalError when the time for an answer is up."""
    if time.monotonic() > ends_s:
        raise RefusalError(503, "late", f"stopped after {MOST_S:g} s: ask with fewer texts, or when less is asked")


def curve(
    vectors: Float[np.ndarray, "n H"], records: Sequence[Text], left: threading.Event
) -> Iterator[dict[str, float]]:
    """Yield points of the curve: ``examples`` to learn from, and the accuracy of each method on held-out texts.

    ``encoder``: logistic regression on the vectors; ``tfidf``: the same on TF-IDF; ``majority``: the most frequent
    label. Means over splits that keep the proportions of the labels. RefusalError after ``MOST_S`` seconds; it ends
    when the client has ``left``.
    """
    ends_s = time.monotonic() + MOST_S
    labels = tuple(sorted({str(record.label) for record in records}))
    scaled = _scaled(vectors)
    orders = [_mixed(records, split) for split in range(_SPLITS)]
    held = max(len(labels), round(_HELD_OUT * len(records)))
    sizes = [len(labels)]
    while 2 * sizes[-1] < len(records) - held:
        sizes.append(2 * sizes[-1])
    sizes.append(len(records) - held)
    for n in dict.fromkeys(sizes):
        right: dict[str, list[float]] = {"encoder": [], "tfidf": [], "majority": []}
        for order in orders:
            if left.is_set():
                return
            _check_time(ends_s)
            for way, share in _split(scaled, records, labels, order[held:][:n], order[:held]).items():
                right[way].append(share)
        yield {"examples": n, "held_out": held, **{way: float(np.mean(shares)) for way, shares in right.items()}}


def layer_accuracies(
    layers: Sequence[Float[np.ndarray, "n width"]], records: Sequence[Text], left: threading.Event
) -> Iterator[dict[str, Any]]:
    """Yield how well the labels can be read from each layer, 0 (embeddings) first, then which layer is best.

    Cross-validation: the logistic regression predicts each text once, from the vectors of other texts. A layer's point
    has ``layer``, ``accuracy``, its ``interval`` and ``majority``, the share of the most frequent label; the last point
    has ``best`` and ``best_interval``, both in layers. Intervals are at 95 %: Wilson's for accuracies, and a bootstrap
    over the texts for the best layer. RefusalError after ``MOST_S`` seconds; it ends without the last point when the
    client has ``left``.
    """
    from firth.finetuning.layer_probes import resampled_accuracies

    ends_s = time.monotonic() + MOST_S
    labels = tuple(sorted({str(record.label) for record in records}))
    gold = np.array([labels.index(str(record.label)) for record in records])
    majority = float(np.bincount(gold).max() / len(gold))
    # Runs of this order keep the proportions of the labels, so that none is missing when a fold is left out.
    folds = np.array_split(np.array(_mixed(records, 0)), min(_FOLDS, len(records)))
    correct = np.zeros((len(layers), len(records)), bool)
    for number, vectors in enumerate(layers):
        scaled = _scaled(vectors)
        for ask in folds:
            if left.is_set():
                return
            _check_time(ends_s)
            fit = np.setdiff1d(np.arange(len(records)), ask).tolist()
            correct[number, ask] = _predict_vectors(scaled, records, labels, fit, ask.tolist()) == gold[ask]
        yield {
            "layer": number,
            "accuracy": float(correct[number].mean()),
            "interval": wilson_interval(int(correct[number].sum()), len(records)),
            "majority": majority,
        }
    samples = resampled_accuracies(correct, np.arange(len(records)), seed=0)
    # With few texts, layers often tie: ties are broken at random, or the lowest layer would seem better than it is.
    best = (samples + 1e-9 * np.random.default_rng(0).random(samples.shape)).argmax(0)
    yield {"best": int(correct.mean(1).argmax()), "best_interval": np.percentile(best, _INTERVAL).tolist()}


def wilson_interval(right: int, n: int) -> list[float]:
    """The 95 % interval of a share (Wilson 1927); unlike a bootstrap's, it has a width even if all are right."""
    z = 1.96
    middle, half = right + z**2 / 2, z * math.sqrt(right * (n - right) / n + z**2 / 4)
    return [max(0.0, (middle - half) / (n + z**2)), min(1.0, (middle + half) / (n + z**2))]


def _scaled(vectors: Float[np.ndarray, "n H"]) -> Float[np.ndarray, "n H"]:
    """Scale components to mean 0 and variance 1/H."""
    spread = vectors - vectors.mean(0)
    return spread / (np.maximum(spread.std(0), 1e-6) * np.sqrt(vectors.shape[1]))


def _mixed(records: Sequence[Text], split: int) -> list[int]:
    """An order of the examples in which every run keeps the proportions of the labels, as far as possible."""
    order = permutation(seed_of("learn", split), len(records)).tolist()
    totals, seen = Counter(record.label for record in records), Counter[Any]()
    place = {}
    for number in order:
        label = records[number].label
        # The middles of equal steps: two labels with equal counts alternate.
        place[number] = (seen[label] + 0.5) / totals[label]
        seen[label] += 1
    return sorted(order, key=place.__getitem__)


def _split(
    vectors: Float[np.ndarray, "n H"], records: Sequence[Text], labels: tuple[str, ...], fit: list[int], ask: list[int]
) -> dict[str, float]:
    known, asked = [records[i] for i in fit], [records[i] for i in ask]
    gold = np.array([labels.index(str(record.label)) for record in asked])
    reader = fit_vectorizer(known, GRAMS[0])
    counted = _predict(_TFIDF_STRENGTH, labels, known, reader.read(known), reader.read(asked))
    commonest = Counter(str(record.label) for record in known).most_common(1)[0][0]
    return {
        "encoder": float(np.mean(_predict_vectors(vectors, records, labels, fit, ask) == gold)),
        "tfidf": float(np.mean(counted == gold)),
        "majority": float(np.mean(gold == labels.index(commonest))),
    }


def _predict_vectors(
    vectors: Float[np.ndarray, "n H"], records: Sequence[Text], labels: tuple[str, ...], fit: list[int], ask: list[int]
) -> np.ndarray:
    """Predict the label numbers of the texts ``ask`` from the vectors of the texts ``fit``."""
    from scipy.sparse import csr_matrix

    known = [records[i] for i in fit]
    return _predict(_VECTOR_STRENGTH, labels, known, csr_matrix(vectors[fit]), csr_matrix(vectors[ask]))


def _predict(strength: float, labels: tuple[str, ...], known: Sequence[Text], given: Any, wanted: Any) -> np.ndarray:
    """Predict label numbers by logistic regression on features."""
    config = TfidfConfig(labels=labels, strength=strength)
    return np.asarray(linear_outputs(wanted, *fit_linear(config, given, known), "classify").argmax(1))


_LEARNED: tuple[tuple[str, Any, str], ...] = (
    ("/learn", learn, "The learning curve of a few labels"),
    ("/probe", probe, "The layer that a few labels are best read from"),
)
ROUTES = tuple(
    Route("POST", prefix + path, answer, LearnBody, summary, "text/event-stream")
    for path, answer, summary in _LEARNED
    for prefix in ("", "/models/{model}")
)
