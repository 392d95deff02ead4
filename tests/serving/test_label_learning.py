"""The learning curve of a few labels: its points, what it refuses, and that there is one at a time."""

import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from served import Client, Serve

from firth.serving import learning
from firth.serving.learning import MOST_TEXTS, curve
from firth.text.records import Text

ANIMALS, RIVERS = ("a dog barks", "a cat sleeps", "the horse runs"), ("a cold river", "the deep lake", "a wide sea")
TEXTS = [f"{text} {n}" for n in range(8) for text in (*ANIMALS, *RIVERS)]
LABELS = [label for _ in range(8) for label in ("animal",) * 3 + ("water",) * 3]
RECORDS = [Text(text, label) for text, label in zip(TEXTS, LABELS, strict=True)]


def vectors_of(right: bool) -> np.ndarray:
    """Vectors that tell the labels, or nothing."""
    noise = np.random.default_rng(0).normal(size=(len(TEXTS), 8))
    gold = np.array([label == "animal" for label in LABELS])
    return noise + (6.0 * gold[:, None] if right else 0.0)


def test_a_curve_says_what_each_way_learns_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MOST_S", 600.0)  # a busy machine is no reason to end early
    points = list(curve(vectors_of(right=True), RECORDS, threading.Event()))
    assert [point["examples"] for point in points] == [2, 4, 8, 16, 32, 36]
    assert {point["held_out"] for point in points} == {12}
    assert points[0]["encoder"] > 0.95 and points[-1]["encoder"] == 1.0
    assert points[0]["tfidf"] < points[-1]["tfidf"] <= 1.0
    assert all(point["majority"] == pytest.approx(0.5) for point in points)
    blind = list(curve(vectors_of(right=False), RECORDS, threading.Event()))
    assert blind[-1]["encoder"] < 0.75 and blind[-1]["tfidf"] == points[-1]["tfidf"]


def test_whoever_leaves_ends_it() -> None:
    left = threading.Event()
    points = curve(vectors_of(right=True), RECORDS, left)
    next(points)
    left.set()
    assert list(points) == []


def test_it_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MOST_S", -1.0)
    assert list(curve(vectors_of(right=True), RECORDS, threading.Event())) == []


def events_of(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_points_are_sent_as_events_and_the_next_one_may_ask(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        found = []
        for _ in range(2):
            answer = await client.post("/learn", {"texts": TEXTS, "labels": LABELS})
            assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
            found.append(events_of(answer.text))
        assert not client.state.learning
        return found

    first, again = serve(work, "classify")
    assert first == again and [point["examples"] for point in first] == [2, 4, 8, 16, 32, 36]


def test_one_at_a_time(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        client.state.learning = True
        return await client.post("/learn", {"texts": TEXTS, "labels": LABELS})

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
        (body(lambda texts, labels: (texts * 6, labels * 6)), 422, f"expected at most {MOST_TEXTS}"),
        (body(lambda texts, labels: (["a" * 100_000, *texts[1:]], labels)), 422, "expected at most 100,000"),
        ({"texts": [], "labels": []}, 422, "0 different labels"),
        ({"texts": ["a"], "labels": ["b"], "seed": 1}, 422, "seed"),
    ],
)
def test_what_cannot_be_learnt_from_is_refused(serve: Serve, asked: Any, status: int, words: str) -> None:
    async def work(client: Client) -> Any:
        answer = await client.post("/learn", asked)
        assert not client.state.learning
        return answer

    answer = serve(work, "classify")
    assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text
