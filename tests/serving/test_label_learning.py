"""Learning from a few labels: the points of the curve and of the layers, refusals, and one answer at a time."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from served import Client, Serve

from firth.serving import learning
from firth.serving.engine import Caller, Engine
from firth.serving.learning import MOST_TEXTS, curve, layer_accuracies, wilson_interval
from firth.serving.refusals import RefusalError
from firth.text.records import Text

ANIMALS, RIVERS = ("a dog barks", "a cat sleeps", "the horse runs"), ("a cold river", "the deep lake", "a wide sea")
TEXTS = [f"{text} {n}" for n in range(8) for text in (*ANIMALS, *RIVERS)]
LABELS = [label for _ in range(8) for label in ("animal",) * 3 + ("water",) * 3]
RECORDS = [Text(text, label) for text, label in zip(TEXTS, LABELS, strict=True)]


def vectors_of(right: bool) -> np.ndarray:
    """Vectors that separate the labels, or pure noise."""
    noise = np.random.default_rng(0).normal(size=(len(TEXTS), 8))
    gold = np.array([label == "animal" for label in LABELS])
    return noise + (6.0 * gold[:, None] if right else 0.0)


def test_a_curve_says_what_each_way_learns_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MOST_S", 600.0)  # a busy machine must not end it early
    points = list(curve(vectors_of(right=True), RECORDS, threading.Event()))
    assert [point["examples"] for point in points] == [2, 4, 8, 16, 32, 36]
    assert {point["held_out"] for point in points} == {12}
    assert points[0]["encoder"] > 0.95 and points[-1]["encoder"] == 1.0
    assert points[0]["tfidf"] < points[-1]["tfidf"] <= 1.0
    assert all(point["majority"] == pytest.approx(0.5) for point in points)
    blind = list(curve(vectors_of(right=False), RECORDS, threading.Event()))
    assert blind[-1]["encoder"] < 0.75 and blind[-1]["tfidf"] == points[-1]["tfidf"]


def test_the_best_layer_is_the_one_that_tells_the_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MOST_S", 600.0)
    # Layers may differ in their numbers of components.
    layers = [vectors_of(right=False), vectors_of(right=False)[:, :5], vectors_of(right=True)]
    *points, last = layer_accuracies(layers, RECORDS, threading.Event())
    assert [point["layer"] for point in points] == [0, 1, 2]
    assert points[2]["accuracy"] == 1.0 and points[2]["interval"] == pytest.approx([0.926, 1.0], abs=1e-3)
    for point in points[:2]:
        low, high = point["interval"]
        assert low < point["accuracy"] < high and point["accuracy"] < 0.75
    assert all(point["majority"] == 0.5 for point in points)
    assert last == {"best": 2, "best_interval": [2.0, 2.0]}
    # If no layer separates the labels, the best layer is undetermined.
    blind = [np.random.default_rng(seed).normal(size=(len(RECORDS), 8)) for seed in range(6)]
    low, high = list(layer_accuracies(blind, RECORDS, threading.Event()))[-1]["best_interval"]
    assert low + 2 <= high
    # Likewise if all layers separate them.
    *_, last = layer_accuracies([vectors_of(right=True)] * 4, RECORDS, threading.Event())
    assert last == {"best": 0, "best_interval": [0.0, 3.0]}


def test_intervals_are_wilsons() -> None:
    # Newcombe 1998, Statistics in Medicine 17, table I: method 3.
    for right, n, expected in ((81, 263, (0.2553, 0.3662)), (15, 148, (0.0624, 0.1605)), (0, 20, (0.0, 0.1611))):
        assert wilson_interval(right, n) == pytest.approx(expected, abs=1e-4)


def test_no_label_is_missing_from_what_a_layer_learns_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MOST_S", 600.0)
    seen = list[set[Any]]()
    fit = learning.fit_linear

    def heard(config: Any, features: Any, records: Any) -> Any:
        seen.append({record.label for record in records})
        return fit(config, features, records)

    monkeypatch.setattr(learning, "fit_linear", heard)
    rare = [Text(f"text {n}", "rare" if n < 2 else "usual" if n < 19 else "other") for n in range(23)]
    for records in (rare, rare[:4] + rare[19:], [*rare[:2], *rare[3:5]]):
        seen.clear()
        list(layer_accuracies([np.random.default_rng(0).normal(size=(len(records), 4))], records, threading.Event()))
        assert len(seen) == min(5, len(records)) and {len(some) for some in seen} == {len({r.label for r in records})}


def layers_points(left: threading.Event) -> Iterator[Any]:
    return layer_accuracies([vectors_of(right=True)] * 3, RECORDS, left)


def curve_points(left: threading.Event) -> Iterator[Any]:
    return curve(vectors_of(right=True), RECORDS, left)


@pytest.mark.parametrize("points_of", [curve_points, layers_points])
def test_whoever_leaves_ends_it(points_of: Callable[[threading.Event], Iterator[Any]]) -> None:
    left = threading.Event()
    points = points_of(left)
    next(points)
    left.set()
    assert list(points) == []


@pytest.mark.parametrize("points_of", [curve_points, layers_points])
def test_it_ends_after_its_time(
    points_of: Callable[[threading.Event], Iterator[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "MOST_S", -1.0)
    with pytest.raises(RefusalError, match="stopped after -1 s"):
        next(points_of(threading.Event()))


def events_of(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_that_the_time_was_up_is_the_last_event(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(client: Client) -> Any:
        return [(await client.post(path, {"texts": TEXTS, "labels": LABELS})).text for path in ("/learn", "/probe")]

    monkeypatch.setattr(learning, "MOST_S", 0.0)
    for text in serve(work, "masked"):
        assert json.loads(text.removeprefix("data: "))["error"].startswith("stopped after 0 s")


def test_points_are_sent_as_events_and_the_next_one_may_ask(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        found = []
        for path in ("/learn", "/probe") * 2:
            answer = await client.post(path, {"texts": TEXTS, "labels": LABELS})
            assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
            found.append(events_of(answer.text))
        assert not client.state.learning
        return found

    curve_points, layers, *again = serve(work, "classify")
    assert again == [curve_points, layers]
    assert [point["examples"] for point in curve_points] == [2, 4, 8, 16, 32, 36]
    assert [point.get("layer") for point in layers] == [0, 1, 2, None]


@pytest.mark.parametrize("path", ["/learn", "/probe"])
def test_its_texts_come_after_what_others_ask(serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    ask, alone = Engine.ask, list[bool]()

    async def work(client: Client) -> Any:
        def noted(engine: Engine, job: Any, caller: Caller) -> Any:
            alone.append(job.alone)
            return ask(engine, job, caller)

        monkeypatch.setattr(Engine, "ask", noted)
        answer = await client.post(path, {"texts": TEXTS, "labels": LABELS})
        return answer.status_code

    assert serve(work, "classify") == 200
    assert alone and all(alone)


def test_layers_are_read_as_they_are_embedded(serve: Serve, predictors: dict[str, Any]) -> None:
    # More texts than in one request, one of them longer than the model reads at once.
    texts = [*TEXTS, "the river " * 200]

    async def work(client: Client) -> Any:
        hosted = client.state.model("classify")
        return await client.state.engine.ask(hosted.layer_means(texts), Caller("one", 1e12))

    found, model = serve(work, "classify"), predictors["classify"]
    for number in range(3):
        expected = model.embed(texts, layer=number, pool="mean")
        np.testing.assert_allclose(np.stack([layers[number] for layers in found]), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("begun", [False, True])
def test_whoever_leaves_as_the_answer_comes_lets_others_ask(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """The client leaves before the answer begins, where the cancellation is lost, or between two of its parts."""
    ask, sent = Engine.ask, json.dumps({"texts": TEXTS[:12], "labels": LABELS[:12]}).encode()

    async def work(client: Client) -> Any:
        body, left = [{"type": "http.request", "body": sent}], asyncio.Event()

        async def asked(*given: Any) -> Any:
            found = await ask(*given)
            if not begun:
                left.set()
                # As in ``asyncio.wait_for`` of Python 3.11.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
            return found

        async def receive() -> Any:
            if not body:
                await left.wait()
                return {"type": "http.disconnect"}
            return body.pop()

        async def send(message: Any) -> None:
            if message.get("more_body"):
                left.set()
                await asyncio.Event().wait()

        monkeypatch.setattr(Engine, "ask", asked)
        headers = [(b"host", b"localhost")]
        scope = {"type": "http", "method": "POST", "path": "/learn", "query_string": b"", "headers": headers}
        await client.app({**scope, "client": ("10.0.0.1", 1)}, receive, send)
        monkeypatch.setattr(Engine, "ask", ask)
        in_flight = client.state.engine.in_flight
        return in_flight, (await client.post("/learn", json.loads(sent))).status_code

    assert serve(work, "classify") == (0, 200)


@pytest.mark.parametrize("path", ["/learn", "/probe"])
def test_one_at_a_time(serve: Serve, path: str) -> None:
    async def work(client: Client) -> Any:
        client.state.learning = True
        return await client.post(path, {"texts": TEXTS, "labels": LABELS})

    answer = serve(work, "classify")
    assert answer.status_code == 429 and answer.headers["retry-after"] == "20"


def body(change: Callable[[list[str], list[str]], tuple[list[str], list[str]]]) -> dict[str, Any]:
    texts, labels = change(list(TEXTS), list(LABELS))
    return {"texts": texts, "labels": labels}


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        (body(lambda texts, labels: (texts, labels[:-1])), 422, "expected one label for each text"),
        (body(lambda texts, labels: (texts, ["x"] * len(texts))), 422, "1 different labels: expected 2 to 16"),
        (body(lambda texts, labels: ([*texts, "more"], [*labels, "rare"])), 422, "'rare' has one text"),
        (body(lambda texts, labels: ([" ", *texts[1:]], labels)), 422, "texts.0 is empty"),
        (body(lambda texts, labels: (["no colon", *texts[1:]], ["", *labels[1:]])), 422, "labels.0 is empty"),
        (body(lambda texts, labels: (["no colon", *texts[1:]], ["", *labels[1:]])), 422, "for the text 'no colon'"),
        (body(lambda texts, labels: (texts * 6, labels * 6)), 422, f"expected at most {MOST_TEXTS}"),
        (body(lambda texts, labels: (["a" * 100_000, *texts[1:]], labels)), 422, "expected at most 100,000"),
        ({"texts": [], "labels": []}, 422, "0 different labels"),
        ({"texts": ["a"], "labels": ["b"], "seed": 1}, 422, "seed"),
    ],
)
def test_what_cannot_be_learnt_from_is_refused(serve: Serve, asked: Any, status: int, words: str) -> None:
    async def work(client: Client) -> Any:
        answers = [await client.post(path, asked) for path in ("/learn", "/probe")]
        assert not client.state.learning
        return answers

    for answer in serve(work, "classify"):
        assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text
