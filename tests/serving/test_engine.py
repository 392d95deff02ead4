"""The engine: which requests are answered while a long row is computed."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from served import Client, Serve

from firth.inference.model import Model
from firth.serving import app, huggingface, kserve
from firth.serving.config import Limits
from firth.serving.cost import CostModel
from firth.serving.engine import Caller
from firth.serving.hosted import Hosted
from firth.serving.refusals import RefusalError
from firth.serving.scheduler import OverloadError, Request
from firth.text.tokenizer import Tokenizer


class MillisecondAToken(CostModel):
    """A fixed cost estimate for every batch, whatever it really costs here."""

    def predict(self, tokens: int, squares: float) -> float:
        return tokens / 1e3


@pytest.mark.parametrize("own", [False, True])
def test_a_short_question_is_answered_in_the_middle_of_a_long_one(
    serve: Serve, predictors: dict[str, Any], own: bool
) -> None:
    """By the same model or another, in another precision; the answers are the same as without the interruption."""
    model: Model = predictors["masked"]
    last = model.loaded.objective.encoder.regions()[-1]
    long, short = " ".join(["the old farmer"] * 10), "the river"

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


@pytest.mark.parametrize("stream", [False, True])
def test_long_prompts_are_not_tokenised_where_all_requests_arrive(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    threads, ids_many, encode_many = set[str](), Tokenizer.ids_many, Tokenizer.encode_many

    def ids_noted(self: Tokenizer, texts: Sequence[str]) -> Any:
        threads.add(threading.current_thread().name)
        return ids_many(self, texts)

    def noted(self: Tokenizer, texts: Sequence[str]) -> Any:
        threads.add(threading.current_thread().name)
        return encode_many(self, texts)

    async def work(client: Client) -> Any:
        body = {"model": "gpt", "prompt": "the river" + " " * 2000, "max_tokens": 2, "stream": stream}
        return (await client.post("/v1/completions", body)).status_code

    monkeypatch.setattr(Tokenizer, "ids_many", ids_noted)
    monkeypatch.setattr(Tokenizer, "encode_many", noted)
    assert serve(work, "gpt") == 200
    assert threads and threading.main_thread().name not in threads


def test_long_bodies_are_not_read_where_all_requests_arrive(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, read, check = list[str](), app.parse_json, huggingface.validated

    def noted(do: Any) -> Any:
        def run(*given: Any) -> Any:
            threads.append(threading.current_thread().name)
            return do(*given)

        return run

    monkeypatch.setattr(app, "parse_json", noted(read))
    monkeypatch.setattr(huggingface, "validated", noted(check))

    async def work(client: Client) -> Any:
        return (await client.post("/models/masked/pipeline/fill-mask", {"inputs": ["[MASK]"] * 200 + [7]})).status_code

    assert serve(work, "masked") == 422
    assert threads[0].startswith("tokenizer") and threads[1].startswith("tokenizer")


LATE = {"x-timeout-ms": "50"}


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("gpt", "/text-generation", {"inputs": "the old"}),
        ("mt", "/translation", {"inputs": "the old"}),
        ("masked", "/tokenize", {"inputs": "river " * 1000}),
        ("masked", "/decode", {"ids": [5] * 1000}),
    ],
)
def test_who_waits_for_a_thread_waits_until_the_deadline(serve: Serve, name: str, path: str, body: Any) -> None:
    async def work(client: Client) -> Any:
        engine, end = client.state.engine, threading.Event()
        for pool in (engine.searches, engine.tokenizers):
            for _ in range(pool._max_workers):
                pool.submit(end.wait)
        try:
            return await asyncio.wait_for(client.post(path, body, headers=LATE), 60)
        finally:
            end.set()

    answer = serve(work, name)
    assert answer.status_code == 504 and "x-timeout-ms" in answer.json()["error"]


def test_long_texts_to_tokenize_are_refused_in_an_overload(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> None:
        raise OverloadError("queue", 3.0)

    async def work(client: Client) -> Any:
        monkeypatch.setattr(client.state.engine.scheduler, "admit", full)
        asked = [("/tokenize", {"inputs": "river " * n}) for n in (1, 1000)]
        asked += [("/decode", {"ids": [5] * n}) for n in (1, 1000)]
        return [(await client.post(path, body)).status_code for path, body in asked]

    assert serve(work, "masked") == [200, 429, 200, 429]


def test_a_client_takes_a_part_of_the_threads_for_searches(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        engine, hosted, end, begun = client.state.engine, client.state.models["gpt"], threading.Event(), list[str]()

        async def search(name: str, *, wait: bool) -> str:
            def run(through: Any) -> str:
                begun.append(name)
                return name if not wait or end.wait(60) else "not let go"

            return await engine.search(Caller(name, 1e12), hosted, run)

        greedy = [asyncio.ensure_future(search("greedy", wait=True)) for _ in range(20)]
        try:
            other = await asyncio.wait_for(search("other", wait=False), 60)
            at_once = begun.count("greedy")
        finally:
            end.set()
        return other, at_once, await asyncio.gather(*greedy), len(engine._turns)

    assert serve(work, "gpt") == ("other", 4, ["greedy"] * 20, 0)


def test_one_client_s_texts_to_tokenize_leave_a_thread_to_others(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(client: Client) -> Any:
        engine, end, begun = client.state.engine, threading.Event(), list[str]()

        async def tokenize(name: str, *, wait: bool) -> str:
            def make() -> str:
                begun.append(name)
                return name if not wait or end.wait(60) else "not let go"

            caller = Caller(name, 1e12, body_bytes=10_000)
            async with engine.tokenizer_turn(caller):
                return await engine.aside(caller, make)

        async def late() -> int:
            try:
                async with engine.tokenizer_turn(Caller("greedy", 0.0)):
                    return 200
            except RefusalError as refusal:
                return refusal.status

        greedy = [asyncio.ensure_future(tokenize("greedy", wait=True)) for _ in range(5)]
        try:
            other = await asyncio.wait_for(tokenize("other", wait=False), 60)
            at_once, status = begun.count("greedy"), await late()
        finally:
            end.set()
        return other, at_once, await asyncio.gather(*greedy), len(engine._tokenizer_turns), status

    assert serve(work, "masked") == ("other", 1, ["greedy"] * 5, 0, 504)


def test_tensors_of_long_bodies_are_not_made_where_all_requests_arrive(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, tensors = list[str](), kserve._tensors

    def noted(*given: Any) -> Any:
        threads.append(threading.current_thread().name)
        return tensors(*given)

    async def work(client: Client) -> int:
        tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["the river " * 300]}
        return int((await client.post("/v2/models/baseline/infer", {"inputs": [tensor]})).status_code)

    monkeypatch.setattr(kserve, "_tensors", noted)
    assert serve(work, "baseline") == 200
    (thread,) = threads
    assert thread != threading.main_thread().name


def test_a_search_that_is_left_lets_go_of_its_thread(serve: Serve) -> None:
    """An abandoned search releases its thread, even while its step waits in the queue."""

    async def work(client: Client) -> Any:
        engine, hosted, end, ended = client.state.engine, client.state.models["gpt"], threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def run(step: Any) -> Any:
            def through_all(through: Any) -> Any:
                try:
                    return through(step, 1)
                finally:
                    loop.call_soon_threadsafe(ended.set)

            return through_all

        busy = asyncio.ensure_future(engine.search(Caller("busy", 1e9), hosted, run(end.wait)))
        try:
            while not engine._tickets or engine.waiting()[0]:
                await asyncio.sleep(0.001)
            left = asyncio.ensure_future(engine.search(Caller("left", 1e9), hosted, run(lambda: 1)))
            while engine.waiting()[0] == 0:
                await asyncio.sleep(0.001)
            left.cancel()
            await asyncio.wait_for(ended.wait(), 60)
            return engine.waiting()
        finally:
            end.set()
            await busy

    assert serve(work, "gpt") == (0, 0)


def test_a_step_of_a_search_counts_for_what_it_reads(
    serve: Serve, predictors: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step reads the whole prompt, or as many sources as the limit allows; then each beam reads one token."""
    prompt, sources = "the old farmer walked to the river", ["the old farmer", "the old farmer walked", "the river"]
    tokens = list[int]()

    async def work(client: Client) -> Any:
        scheduler = client.state.engine.scheduler
        add = scheduler.add

        def noted(request: Request) -> None:
            tokens.extend(row.tokens for row in request.rows)
            add(request)

        monkeypatch.setattr(scheduler, "add", noted)
        parameters = {"max_new_tokens": 3, "do_sample": False}
        generated = await client.post("/text-generation", {"inputs": prompt, "parameters": parameters})
        n_generated, body = len(tokens), {"inputs": sources, "parameters": {"num_beams": 2}}
        translated = await client.post("/models/mt/pipeline/translation", body)
        return generated.status_code, translated.status_code, tokens[:n_generated], tokens[n_generated:]

    model: Model = predictors["mt"]
    n_prompt, n_source = len(model.tokenize(prompt)), len(model.tokenize(sources[1])) + 1
    limits = Limits(timeout_ms=600_000, max_queue_ms=600_000, prompt_tokens=n_prompt)
    *statuses, generated, translated = serve(work, "gpt", "mt", limits=limits)
    assert statuses == [200, 200]
    assert generated == [n_prompt, 1, 1]
    assert translated[:3] == [n_source, 1, 2] and max(translated) == n_source


@pytest.mark.parametrize(("seconds", "times"), [(0.0, 2), (1e9, 0)])
def test_freed_memory_goes_back_now_and_then(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, seconds: float, times: int
) -> None:
    given_back = list[int]()
    monkeypatch.setattr("firth.machine.give_back", lambda: given_back.append(1))
    monkeypatch.setattr("firth.serving.engine._GIVE_BACK_S", seconds)

    async def work(client: Client) -> None:
        hosted: Hosted = client.state.models["masked"]
        for _ in range(3):
            await client.state.engine.ask(hosted.embed(["the river"]), Caller("one", 1e12))

    serve(work, "masked")
    # Memory is given back after the last batch too, though perhaps only once its answer has been read.
    assert len(given_back) in (times, times + bool(times))


def test_attention_maps_are_not_interrupted(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """They record the layers, and would see other requests' rows there."""
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


def test_the_time_of_a_batch_counts_once_for_each_request(serve: Serve) -> None:
    """Not once per row."""

    async def work(client: Client) -> Any:
        callers = [Caller("one", 1e12), Caller("two", 1e12)]
        hosted = client.state.models["masked"]
        begun = time.monotonic()
        await asyncio.gather(*(client.state.engine.ask(hosted.embed(["the river"] * 40), one) for one in callers))
        return [caller.inference_s for caller in callers], time.monotonic() - begun

    spent, elapsed = serve(work, "masked")
    assert all(0 < one <= elapsed for one in spent)


def test_who_waits_for_a_thread_of_a_server_that_stops_is_told(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        engine, held = client.state.engine, threading.Event()
        threads = ThreadPoolExecutor(1)
        first = asyncio.ensure_future(engine.in_thread(threads, held.wait))
        waiting, left = (asyncio.ensure_future(engine.in_thread(threads, held.wait)) for _ in range(2))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.sleep(0)
        threads.shutdown(wait=False, cancel_futures=True)
        late = asyncio.ensure_future(engine.in_thread(threads, held.wait))
        refused = await asyncio.gather(waiting, late, left, return_exceptions=True)
        held.set()
        return await first, refused

    first, (waiting, late, left) = serve(work, "tfidf")
    assert first is True and isinstance(left, asyncio.CancelledError)
    assert [(error.status, error.reason) for error in (waiting, late)] == [(503, "stopping")] * 2
