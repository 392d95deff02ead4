"""A few labels in the browser: how well a model's vectors learn them beside TF-IDF, with more and more of them.

Both are read by the same logistic regression. One curve is computed at a time, for seconds, beside all other requests.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

import numpy as np
import orjson
from jaxtyping import Float
from starlette.responses import StreamingResponse

from firth.baseline.config import TfidfConfig
from firth.baseline.fit import GRAMS, fit_linear
from firth.baseline.tfidf import fit_vectorizer, linear_outputs
from firth.data.hashing import permutation, seed_of
from firth.serving.asking import Context, Route, request_body
from firth.serving.refusals import RefusalError
from firth.text.records import Text

MOST_TEXTS, MOST_LABELS, MOST_CHARACTERS = 256, 16, 100_000
MOST_S = 20.0
# Splits that a point is the mean of, and the share of the texts that each holds out.
_SPLITS, _HELD_OUT = 10, 0.25
# C of the logistic regressions: of TF-IDF, and of vectors with components of variance 1/H.
_TFIDF_STRENGTH, _VECTOR_STRENGTH = 3.0, 10.0


@request_body
class LearnBody:
    """Texts, and the label of each."""

    texts: list[str]
    labels: list[str]


async def learn(context: Context, body: LearnBody) -> Any:
    hosted, state = context.hosted("embed"), context.state
    _check(context, body)
    if state.learning:
        message = f"another curve is computed: try again in {MOST_S:g} s"
        raise RefusalError(429, "learning", message, headers={"Retry-After": str(round(MOST_S))})
    state.learning = True
    try:
        at_once = state.limits.inputs
        parts = [body.texts[start : start + at_once] for start in range(0, len(body.texts), at_once)]
        found = [await context.ask(hosted.embed(part)) for part in parts]
    except BaseException:
        state.learning = False
        raise
    vectors = np.stack([vector for part in found for vector in part])
    records = [
        Text(text, label, where=f"texts.{number}")
        for number, (text, label) in enumerate(zip(body.texts, body.labels, strict=True))
    ]
    return StreamingResponse(_events(context, vectors, records), media_type="text/event-stream")


def _check(context: Context, body: LearnBody) -> None:
    if len(body.texts) != len(body.labels):
        message = f"{len(body.texts)} texts and {len(body.labels)} labels: expected one label for each text"
        raise RefusalError(422, "body", message, "labels")
    if len(body.texts) > MOST_TEXTS:
        raise RefusalError(422, "inputs", f"{len(body.texts)} texts: expected at most {MOST_TEXTS}", "texts")
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


async def _events(
    context: Context, vectors: Float[np.ndarray, "n H"], records: Sequence[Text]
) -> AsyncGenerator[bytes]:
    """Server-sent events: a point of the curve each, then [DONE]. Whoever leaves ends the work after a point."""
    state, loop = context.state, asyncio.get_running_loop()
    left = threading.Event()
    points = curve(vectors, records, left)
    try:
        while (point := await loop.run_in_executor(state.engine.searches, next, points, None)) is not None:
            yield b"data: " + orjson.dumps(point) + b"\n\n"
        yield b"data: [DONE]\n\n"
    finally:
        left.set()
        state.learning = False


def curve(
    vectors: Float[np.ndarray, "n H"], records: Sequence[Text], left: threading.Event
) -> Iterator[dict[str, float]]:
    """Points of the curve: ``examples`` to learn from, and the share of held-out texts that each way gets right.

    ``encoder``: logistic regression on the vectors; ``tfidf``: the same on TF-IDF; ``majority``: the most frequent
    label. Means over splits with as many of each label as there are. Ends early after ``MOST_S`` seconds.
    """
    ends_s = time.monotonic() + MOST_S
    labels = tuple(sorted({str(record.label) for record in records}))
    spread = vectors - vectors.mean(0)
    scaled = spread / (np.maximum(spread.std(0), 1e-6) * np.sqrt(vectors.shape[1]))
    orders = [_mixed(records, split) for split in range(_SPLITS)]
    held = max(len(labels), round(_HELD_OUT * len(records)))
    sizes = [len(labels)]
    while 2 * sizes[-1] < len(records) - held:
        sizes.append(2 * sizes[-1])
    sizes.append(len(records) - held)
    for n in dict.fromkeys(sizes):
        right: dict[str, list[float]] = {"encoder": [], "tfidf": [], "majority": []}
        for order in orders:
            if left.is_set() or time.monotonic() > ends_s:
                return
            for way, share in _split(scaled, records, labels, order[held:][:n], order[:held]).items():
                right[way].append(share)
        yield {"examples": n, "held_out": held, **{way: float(np.mean(shares)) for way, shares in right.items()}}


def _mixed(records: Sequence[Text], split: int) -> list[int]:
    """An order of the examples in which every run has the labels in their shares, as far as it can."""
    order = permutation(seed_of("learn", split), len(records)).tolist()
    totals, seen = Counter(record.label for record in records), Counter[Any]()
    place = {}
    for number in order:
        label = records[number].label
        # The middles of equal steps: two labels of equal number take turns.
        place[number] = (seen[label] + 0.5) / totals[label]
        seen[label] += 1
    return sorted(order, key=place.__getitem__)


def _split(
    vectors: Float[np.ndarray, "n H"], records: Sequence[Text], labels: tuple[str, ...], fit: list[int], ask: list[int]
) -> dict[str, float]:
    from scipy.sparse import csr_matrix

    known, asked = [records[i] for i in fit], [records[i] for i in ask]
    gold = np.array([labels.index(str(record.label)) for record in asked])
    reader = fit_vectorizer(known, GRAMS[0])
    both = {
        "encoder": (_VECTOR_STRENGTH, csr_matrix(vectors[fit]), csr_matrix(vectors[ask])),
        "tfidf": (_TFIDF_STRENGTH, reader.read(known), reader.read(asked)),
    }
    found = {}
    for way, (strength, given, wanted) in both.items():
        config = TfidfConfig(labels=labels, strength=strength)
        outputs = linear_outputs(wanted, *fit_linear(config, given, known), "classify")
        found[way] = float(np.mean(outputs.argmax(1) == gold))
    commonest = Counter(str(record.label) for record in known).most_common(1)[0][0]
    return {**found, "majority": float(np.mean(gold == labels.index(commonest)))}


ROUTES = tuple(
    Route("POST", f"{prefix}/learn", learn, LearnBody, "The learning curve of a few labels", "text/event-stream")
    for prefix in ("", "/models/{model}")
)
