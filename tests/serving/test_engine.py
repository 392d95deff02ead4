"""The engine: who is answered while a long row is computed."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from served import Client, Serve

from firth.inference.model import Model
from firth.serving.config import Limits
from firth.serving.cost import CostModel
from firth.serving.engine import Caller
from firth.serving.hosted import Hosted
from firth.text.tokenizer import Tokenizer


class MillisecondAToken(CostModel):
    """What every batch is said to cost, whatever it costs here."""

    def predict(self, tokens: int, squares: float) -> float:
        return tokens / 1e3


@pytest.mark.parametrize("own", [False, True])
def test_a_short_question_is_answered_in_the_middle_of_a_long_one(
    serve: Serve, predictors: dict[str, Any], own: bool
) -> None:
    """By the same model or another, in another precision; the answers are as without."""
    model: Model = predictors["masked"]
    last = model.loaded.objective.encoder.regions()[-1]
    long, short = " ".join(["the old farmer"] * 12), "the river"

    async def work(client: Client) -> Any:
        engine, hosted = client.state.engine, client.state.models["masked"]
        other: Hosted = client.state.models["masked" if own else "classify"]
        done: list[str] = []

        async def ask(client: str, hosted: Hosted, text: str) -> np.ndarray:
            vectors = await engine.ask(hosted.embed([text]), Caller(client, 1e12))
            done.append(text)
            return np.asarray(vectors[0])

        alone = [await ask("one", hosted, long), await ask("two", other, short)]
        hosted.cost = other.cost = MillisecondAToken()
        n_long = len(hosted.model.tokenize(long)) + 2
        assert engine.scheduler.slice_s > 0.03 and n_long > 30
        engine.scheduler.slice_s = 0.03
        done.clear()
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wait_for_the_short_one(layer: Any, inputs: Any) -> None:
            if len(inputs[0]) == n_long:
                loop.call_soon_threadsafe(begun.set)
                while engine.waiting()[0] == 0:
                    pass

        handle = last.register_forward_pre_hook(wait_for_the_short_one)
        try:
            first = asyncio.ensure_future(ask("one", hosted, long))
            await begun.wait()
            second = await ask("two", other, short)
            return done.copy(), alone, [await first, second]
        finally:
            handle.remove()

    done, alone, together = serve(work, "masked", "classify", limits=Limits(timeout_ms=600_000, max_queue_ms=600_000))
    assert done[0] == short
    for expected, found in zip(alone, together, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("path", ["/tokenize", "/masking", "/attention", "/hidden_states"])
def test_long_bodies_are_not_tokenised_where_all_requests_arrive(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    threads, encode = list[str](), Tokenizer.encode_many

    def noted(self: Tokenizer, texts: Sequence[str]) -> Any:
        threads.append(threading.current_thread().name)
        return encode(self, texts)

    async def work(client: Client) -> Any:
        return [(await client.post(path, {"inputs": "river " * n})).status_code for n in (1, 1000)]

    monkeypatch.setattr(Tokenizer, "encode_many", noted)
    assert serve(work, "masked") == [200, 200 if path == "/tokenize" else 422]
    assert threads[0] == threading.current_thread().name and threads[-1].startswith("tokenizer")


def test_attention_maps_are_not_interrupted(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """They watch the layers, and would see others' rows there."""
    paused: list[str] = []

    @contextmanager
    def between_layers(hosted: Hosted, do: Any) -> Iterator[None]:
        paused.append(hosted.name)
        yield

    monkeypatch.setattr(Hosted, "between_layers", between_layers)

    async def work(client: Client) -> Any:
        engine, hosted = client.state.engine, client.state.models["masked"]
        engine.scheduler.slice_s, hosted.cost = 0.001, MillisecondAToken()
        await engine.ask(hosted.attention("the old farmer", None), Caller("one", 1e12))
        before = list(paused)
        await engine.ask(hosted.embed(["the old farmer"]), Caller("one", 1e12))
        return before, paused

    assert serve(work, "masked") == ([], ["masked"])
