"""Refusals: their status and error format, and that other requests are answered meanwhile."""

import asyncio
import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from served import Client, Serve

from firth.errors import ConfigError, InputError
from firth.inference.model import Model
from firth.serving.access import Access, allowed_name, host_name, make_access, read_keys
from firth.serving.config import Limits
from firth.serving.engine import Caller
from firth.serving.forward import Forward, Job, Prepared
from firth.serving.scheduler import QueuedRow
from firth.serving.server import listen, named_models
from firth.serving.strict_json import parse_json

KEY = "a-key-of-sixteen-letters"


def _tensor(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "shape": [1], "datatype": "BYTES", "data": [text]}


def test_options_that_change_nothing_are_taken_and_others_are_not(serve: Serve) -> None:
    similar = {"inputs": {"source_sentence": "a", "sentences": ["b"]}}
    written = {"model": "gpt", "prompt": "the old", "max_tokens": 1}
    asked = [
        ("/models/masked/similarity", similar | {"parameters": {}}, 200),
        ("/models/masked/similarity", similar | {"parameters": {"foo": 1}}, 422),
        ("/v1/completions", written | {"stop": [], "suffix": "", "stream_options": {"include_usage": False}}, 200),
        ("/v1/completions", written | {"stop": ["."]}, 422),
        ("/v1/completions", written | {"stream_options": {"include_usage": True}}, 422),
    ]

    async def work(client: Client) -> Any:
        return [(await client.post(path, body)).status_code for path, body, _ in asked]

    assert serve(work, "masked", "gpt") == [status for *_, status in asked]


def test_a_slash_at_the_end_leads_nowhere(serve: Serve) -> None:
    """A redirect would contain any host that a client sends."""

    async def work(client: Client) -> Any:
        return await client.post("/predict/", {"inputs": "x"})

    answer = serve(work, "classify")
    assert answer.status_code == 404 and "location" not in answer.headers and "POST /predict/" in answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "empty"),
        (b"{", 400, "not JSON"),
        (b'{"inputs": "a", "inputs": "b"}', 400, "'inputs' twice"),
        (b'{"inputs": NaN}', 400, "NaN"),
        (b'{"inputs": 1e999}', 400, "too large"),
        (b'{"inputs": "\\ud800"}', 400, "surrogate"),
        (b'{"inputs": "\xff"}', 400, "UTF-8"),
        (b"[" * 100_000, 400, "nested"),
        (b'{"inputs": "a", "input": "b"}', 422, "input: Unexpected"),
        (b'{"inputs": 7}', 422, "inputs"),
        (b'{"inputs": []}', 400, "inputs: expected at least one"),
        (b'{"inputs": ["a", "b", "c"]}', 422, "pair"),
        (b'{"inputs": "a", "raw_scores": true}', 422, "raw_scores=True is not supported"),
        (b'"text"', 422, "body"),
    ],
)
def test_bodies_that_are_none(serve: Serve, body: bytes, status: int, words: str) -> None:
    async def work(client: Client) -> Any:
        return await client.post("/predict", content=body)

    answer = serve(work, "classify")
    assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text
    assert answer.json()["error_type"] == "Validation" and "Traceback" not in answer.text


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/fill-mask", {"inputs": "a"}, 400, "POST /text-classification"),
        ("/token-classification", {"inputs": "a"}, 400, "ask POST /text-classification"),
        ("/models/other/predict", {"inputs": "a"}, 404, "there are: classify, masked, gpt"),
        ("/models/masked/pipeline/fill-mask", {"inputs": "a"}, 422, "[MASK]"),
        ("/models/masked/pipeline/fill-mask", {"inputs": "[MASK]", "parameters": {"top_k": 0}}, 422, "top_k"),
        ("/models/masked/pipeline/fill-mask", {"inputs": "[MASK]", "parameters": {"k": 1}}, 422, "k: Unexpected"),
        ("/models/gpt/pipeline/text-generation", {"inputs": ""}, 422, "no tokens"),
        ("/models/gpt/pipeline/text-generation", {"inputs": "a", "parameters": {"stop": ["."]}}, 422, "stop=['.']"),
        (
            "/models/gpt/pipeline/text-generation",
            {"inputs": "a", "parameters": {"typical_p": 0.9}},
            422,
            "typical_p=0.9",
        ),
        (
            "/models/gpt/pipeline/text-generation",
            {"inputs": ["a"] * 11},
            422,
            "max_new_tokens=50 for each of 11 texts: this server generates at most 512",
        ),
        ("/text-classification", {"inputs": "a", "parameters": {"top_k": 0}}, 422, "top_k=0: expected at least 1"),
        ("/text-classification", {"inputs": "a", "parameters": {"top_k": -1}}, 422, "top_k=-1: expected at least 1"),
        (
            "/models/answer/pipeline/question-answering",
            {"inputs": {"question": "a", "context": "b"}, "parameters": {"top_k": 0}},
            422,
            "top_k=0: expected at least 1",
        ),
        ("/predict", {"inputs": [["a"]] * 33}, 422, "32 in one request"),
        ("/predict", {"inputs": "a" * 100_001}, 422, "100,000"),
        ("/models/choose/pipeline/multiple-choice", {"inputs": []}, 400, "at least one"),
        (
            "/models/choose/pipeline/multiple-choice",
            {"inputs": [{"choices": ["a", "b"]}] * 33},
            422,
            "32 in one request",
        ),
        ("/models/choose/pipeline/multiple-choice", {"inputs": {"choices": ["a"] * 33}}, 422, "32 in one request"),
        (
            "/models/choose/pipeline/multiple-choice",
            {"inputs": [{"choices": ["a", "b", "c"]}] * 11},
            422,
            "choices: 33",
        ),
        (
            "/v2/models/choose/infer",
            {"inputs": [_tensor("item", json.dumps({"choices": ["a"] * 33}))]},
            422,
            "32 in",
        ),
        ("/v2/models/choose/infer", {"inputs": [_tensor("item", '{"choice": ["a"]}')]}, 422, "item.choices"),
        (
            "/v2/models/masked/infer",
            {"inputs": [_tensor("text", "a") | {"shape": [10**20 - 1]}]},
            422,
            "shape [99999999999999999999], but 1 elements",
        ),
        ("/v2/models/masked/infer", {"inputs": [_tensor("text", "a") | {"shape": [-1, -1]}]}, 422, "negative"),
        (
            "/v2/models/masked/infer",
            {"inputs": [_tensor("text", "a") | {"shape": [2, 2], "data": [["a"], ["b", "c", "d"]]}]},
            422,
            "rows of other lengths",
        ),
        (
            "/v2/models/masked/infer",
            {"inputs": [_tensor("text", "a") | {"shape": [1, 1], "data": [[["a"]]]}]},
            422,
            "as deep as shape",
        ),
        ("/v2/models/masked/infer", {"inputs": [_tensor("text", "a"), _tensor("second", "b")]}, 422, "named text"),
        (
            "/v2/models/tag/infer",
            {"inputs": [_tensor("text", "Mr"), _tensor("second", "b")]},
            422,
            "named text, not second",
        ),
        (
            "/v2/models/masked/infer",
            {"inputs": [_tensor("text", "a")], "parameters": {"binary_data_output": 1}},
            422,
            "parameters: binary_data_output=1: expected true or false",
        ),
        (
            "/v2/models/masked/infer",
            {"inputs": [_tensor("text", "a")], "outputs": [{"name": "embedding", "parameters": {"binary_data": "no"}}]},
            422,
            "embedding: parameters: binary_data='no': expected true or false",
        ),
        (
            "/v2/models/masked/infer",
            {"inputs": [_tensor("text", "a") | {"parameters": {"binary_data_size": True}}]},
            422,
            "text: parameters: binary_data_size=True: expected a number of bytes",
        ),
        (
            "/v2/models/masked/infer",
            {"inputs": [_tensor("text", "a") | {"parameters": {"binary_data_size": 5}}]},
            422,
            "text: data and binary_data_size: leave one out",
        ),
        (
            "/v2/models/masked/infer",
            {"inputs": [_tensor("text", "a")], "outputs": [{"name": "embedding"}, {"name": "embedding"}]},
            422,
            "one is asked for twice",
        ),
        ("/v2/models/masked/versions/2/infer", {"inputs": [_tensor("text", "a")]}, 404, "has no version '2'"),
        ("/embed", {"inputs": "a", "dimensions": 7}, 422, "dimensions=7"),
        ("/embed", {"inputs": [5, 1.5]}, 422, "inputs.1: Input should be a valid integer"),
        ("/tokenize", {"inputs": ["a", 5]}, 422, "inputs.1: Input should be a valid string"),
        ("/predict", {"inputs": [["a"], ["b", 5]]}, 422, "inputs.1.1: Input should be a valid string"),
        ("/text-classification", {"inputs": {"text": "a", "txt_pair": "b"}}, 422, "inputs.txt_pair: Unexpected"),
        (
            "/text-classification",
            {"inputs": "a", "parameters": {"function_to_apply": "sigmoid"}},
            422,
            "function_to_apply='sigmoid' is not",
        ),
        (
            "/models/answer/pipeline/question-answering",
            {"inputs": {"question": "a", "context": "b"}, "parameters": {"align_to_words": True}},
            422,
            "align_to_words=True is not",
        ),
        (
            "/models/gpt/pipeline/text-generation",
            {"inputs": "a", "parameters": {"num_beams": 2, "temperature": 0.5}},
            422,
            "temperature is for samples, and these parameters ask for beam search",
        ),
        (
            "/models/gpt/pipeline/text-generation",
            {"inputs": "a", "parameters": {"do_sample": False, "seed": 1}},
            422,
            "seed is for samples, and these parameters ask for the most probable tokens",
        ),
        (
            "/models/gpt/pipeline/text-generation",
            {"inputs": "a", "parameters": {"num_beams": 2, "do_sample": True}},
            422,
            "do_sample is not supported with num_beams",
        ),
        (
            "/v2/models/masked/infer",
            {"inputs": [_tensor("text", "a")], "parameters": {"timeout": 1, "priority": 3}},
            422,
            "parameters: priority, timeout: expected binary_data_output or nothing",
        ),
        (
            "/v2/models/masked/infer",
            {"inputs": [_tensor("text", "a")], "outputs": [{"name": "embedding", "parameters": {"classification": 2}}]},
            422,
            "embedding: parameters: classification: expected binary_data",
        ),
        ("/v2/models/choose/infer", {"inputs": [_tensor("item", "none")]}, 400, "item: an element is not JSON"),
        (
            "/models/choose/pipeline/multiple-choice",
            {"inputs": {"choices": ["a"]}},
            422,
            "expected at least two choices",
        ),
        ("/decode", {"ids": []}, 400, "ids: expected at least one"),
        ("/embed", {"inputs": "a", "prompt_name": "query"}, 422, "prompt_name"),
        ("/nothing", {}, 404, "/nothing: Not Found"),
        ("/models/classify/fill-mask", {}, 404, "did you mean /models/classify/pipeline/fill-mask?"),
        ("/embedd", {}, 404, "did you mean /embed?"),
    ],
)
def test_questions_that_have_no_answer(serve: Serve, path: str, body: Any, status: int, words: str) -> None:
    async def work(client: Client) -> Any:
        return await client.post(path, body)

    answer = serve(work, "classify", "masked", "gpt", "choose", "answer", "tag")
    assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "gpt", "prompt": ["the", "the old farmer"]}),
        ("/v1/completions", {"model": "gpt", "prompt": "the old farmer", "stream": True}),
        ("/text-generation", {"inputs": ["the", "the old farmer"]}),
        ("/models/mt/pipeline/translation", {"inputs": ["the", "the old farmer"]}),
        ("/models/mt/cross_attention", {"inputs": "the old farmer"}),
    ],
)
def test_a_prompt_that_would_keep_all_others_waiting_is_refused(serve: Serve, path: str, body: Any) -> None:
    steps = list[Any]()

    async def work(client: Client) -> Any:
        client.state.engine.scheduler.add = steps.append
        return await client.post(path, body)

    answer = serve(work, "gpt", "mt", limits=Limits(prompt_tokens=2, timeout_ms=600_000))
    assert answer.status_code == 422 and not steps
    assert "tokens; this server continues or translates at most 2" in answer.text


def test_each_protocol_has_its_own_form_of_errors(serve: Serve) -> None:
    async def work(client: Client) -> list[Any]:
        many = {"model": "gpt", "prompt": ["a", "b"], "n": 16, "max_tokens": 17}
        too_many = [await client.post("/v1/completions", {**many, "stream": stream}) for stream in (False, True)]
        assert [one.json()["error"]["param"] for one in too_many] == ["max_tokens"] * 2
        openai = await client.post("/v1/embeddings", {"model": "gpt-4", "input": "a"})
        later = [
            await client.post(
                "/v1/completions", {"model": "gpt", "prompt": ["the", ""], "max_tokens": 5, "stream": stream}
            )
            for stream in (False, True)
        ]
        assert [answer.status_code for answer in later] == [422, 422], "the first prompt is not continued in vain"
        stop = await client.post("/v1/completions", {"model": "gpt", "prompt": "the", "stop": "x", "stream": True})
        none = await client.post("/v1/completions", {"model": "gpt", "prompt": "the", "max_tokens": 0})
        assert none.json()["error"]["message"] == "max_tokens=0: expected at least 1"
        kserve = await client.post("/v2/models/classify/infer", {"inputs": []})
        return [openai, stop, kserve]

    openai, stop, kserve = serve(work, "classify", "gpt")
    assert openai.status_code == 404 and openai.json()["error"]["type"] == "not_found_error"
    assert set(openai.json()["error"]) == {"message", "type", "param", "code"}
    assert stop.status_code == 422 and stop.json()["error"]["param"] == "stop"
    assert kserve.status_code == 422 and set(kserve.json()) == {"error"}


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"\x00\x00", "middle"), (b"\x01\x00\x00\x00\xff", "UTF-8"), (b"\x09\x00\x00\x00a", "middle")],
)
def test_binary_tensors_that_are_damaged(serve: Serve, data: bytes, words: str) -> None:
    head = b'{"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": %d}}]}'
    head = head % len(data)

    async def work(client: Client) -> Any:
        headers = {"inference-header-content-length": str(len(head))}
        return await client.post("/v2/models/classify/infer", content=head + data, headers=headers)

    answer = serve(work, "classify")
    assert answer.status_code == 422 and words in answer.json()["error"]


@pytest.mark.parametrize("size", ["9", "-1", "1" * 5000, "0" * 5000])
def test_a_size_of_json_that_the_body_has_no_room_for(serve: Serve, size: str) -> None:
    async def work(client: Client) -> Any:
        headers = {"inference-header-content-length": size}
        return await client.post("/v2/models/classify/infer", content=b"{}", headers=headers)

    answer = serve(work, "classify")
    assert answer.status_code == 422 and "expected at most 2" in answer.json()["error"]


def test_a_body_that_is_too_long_or_never_ends(serve: Serve) -> None:
    async def endless() -> Any:
        yield b'{"inputs": "'
        while True:
            await asyncio.sleep(0)
            yield b"a" * 100

    async def silent() -> Any:
        yield b'{"inputs": "'
        await asyncio.Event().wait()

    async def too_long(client: Client) -> Any:
        long = await client.post("/predict", {"inputs": "a" * 3000})
        never = await client.post("/predict", content=endless())
        return long.status_code, never.status_code, client.state.engine.in_flight

    async def too_slow(client: Client) -> Any:
        slow = await client.post("/predict", content=silent())
        return slow.status_code, client.state.engine.in_flight

    # Each limit is tested alone: on a busy machine 2,000 bytes may take longer than the time limit used here.
    assert serve(too_long, "classify", limits=Limits(body_bytes=2000, body_s=600)) == (413, 413, 0)
    assert serve(too_slow, "classify", limits=Limits(body_s=0.05)) == (408, 0)


def test_a_model_whose_outputs_are_no_numbers_fails_alone(serve: Serve, predictors: dict[str, Any]) -> None:
    damaged: Model = predictors["regress"]
    weight = damaged.loaded.objective.head.weight.data
    before = weight.clone()
    weight.fill_(torch.nan)

    async def work(client: Client) -> Any:
        asked = [client.post(f"/models/{name}/predict", {"inputs": "a"}) for name in ("regress", "classify")]
        return await asyncio.gather(*asked)

    try:
        wrong, right = serve(work, "regress", "classify")
    finally:
        weight.copy_(before)
    assert wrong.status_code == 424 and "not finite" in wrong.json()["error"]
    assert wrong.json()["error_type"] == "Backend"
    assert right.status_code == 200


def test_one_row_that_fails_does_not_take_others_along(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        hosted, engine = client.state.models["classify"], client.state.engine

        def ask(step: Any) -> Any:
            job = Job(Forward(hosted, "step"), lambda: Prepared([QueuedRow(1, step)], lambda found: found[0]))
            return engine.ask(job, Caller("one", 1e12))

        return await asyncio.gather(ask(lambda: 1), ask(lambda: 1 / 0), ask(lambda: 3), return_exceptions=True)

    one, failed, three = serve(work, "classify")
    assert (one, three) == (1, 3) and isinstance(failed, ZeroDivisionError)


class Busy:
    """A row that keeps the engine busy until it is released."""

    def __init__(self) -> None:
        self.begun, self.end = threading.Event(), threading.Event()

    def __call__(self) -> int:
        self.begun.set()
        self.end.wait()
        return 0

    async def hold(self, client: Client, name: str = "classify") -> "asyncio.Future[Any]":
        """Occupy the engine."""
        hosted = client.state.models[name]
        job = Job(Forward(hosted, "step"), lambda: Prepared([QueuedRow(1, self)], lambda found: found[0]))
        waiting = asyncio.ensure_future(client.state.engine.ask(job, Caller("busy", 1e12)))
        while not self.begun.is_set():
            await asyncio.sleep(0.001)
        return waiting


def test_an_answer_that_comes_too_late_is_not_computed(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        busy = Busy()
        waiting = await busy.hold(client)
        late = await client.post("/predict", {"inputs": "a"}, headers={"x-timeout-ms": "50"})
        busy.end.set()
        await waiting
        odd = await client.post("/predict", {"inputs": "a"}, headers={"x-timeout-ms": "soon"})
        metrics = (await client.get("/metrics")).text
        return late, odd.status_code, client.state.engine.waiting(), metrics

    late, odd, waiting, metrics = serve(work, "classify")
    assert late.status_code == 504 and "x-timeout-ms" in late.json()["error"]
    assert odd == 422 and waiting == (0, 0)
    assert "firth_dropped_total" in metrics and 'firth_rejected_total{reason="deadline"} 1.0' in metrics


def test_a_client_that_leaves_costs_nothing(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        busy = Busy()
        waiting = await busy.hold(client)
        asked = asyncio.ensure_future(client.post("/predict", {"inputs": "a"}))
        while client.state.engine.waiting()[0] == 0:
            await asyncio.sleep(0.001)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        for _ in range(10_000):
            queued = client.state.engine.waiting()
            if queued == (0, 0):
                break
            await asyncio.sleep(0.001)
        busy.end.set()
        await waiting
        after = await client.post("/predict", {"inputs": "a"})
        return queued, after.status_code, client.state.engine.in_flight

    assert serve(work, "classify") == ((0, 0), 200, 0)


def test_an_overload_is_refused_with_when_to_come_again(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        busy = Busy()
        waiting = await busy.hold(client)
        asked = [asyncio.ensure_future(client.post("/predict", {"inputs": "a"})) for _ in range(3)]
        while client.state.engine.waiting()[0] < 3:
            await asyncio.sleep(0.001)
        refused = await client.post("/predict", {"inputs": "a"})
        unread = await client.post("/predict", content=silent())
        busy.end.set()
        await waiting
        return refused, unread.status_code, [one.status_code for one in await asyncio.gather(*asked)]

    async def silent() -> Any:
        yield b'{"inputs": "'
        await asyncio.Event().wait()

    limits = Limits(requests=3, timeout_ms=600_000, max_queue_ms=600_000, body_s=30)
    refused, unread, others = serve(work, "classify", limits=limits)
    assert unread == 429, "what is refused is not read before"
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error_type"] == "Overloaded" and others == [200] * 3


def test_nothing_is_taken_before_the_start_and_after_the_end(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        client.state.started = False
        asked = [client.get(path) for path in ("/ready", "/v2/health/ready", "/info", "/v1/models")]
        loading = [await client.post("/predict", {"inputs": "a"}), *[await one for one in asked]]
        alive = [(await client.get(path)).status_code for path in ("/health", "/v2/health/live", "/", "/metrics")]
        client.state.started, client.state.engine.draining = True, True
        return loading, await client.get("/ready"), alive, (await client.get("/metrics")).status_code

    loading, draining, alive, metrics = serve(work, "classify")
    assert [one.status_code for one in loading] == [503] * 5 and alive == [200] * 4 and metrics == 200
    assert all("the server is loading" in one.text and one.headers["retry-after"] for one in loading)
    assert draining.status_code == 503 and "shutting down" in draining.json()["error"]


def test_keys_and_names(serve: Serve) -> None:
    access = Access(keys=(hashlib.sha256(KEY.encode()).digest(),), hosts=("localhost",))

    async def work(client: Client) -> list[int]:
        right, wrong = {"authorization": f"Bearer {KEY}"}, {"authorization": "Bearer another-key-of-letters"}
        asked = [
            client.post("/predict", {"inputs": "a"}),
            client.post("/predict", {"inputs": "a"}, headers=wrong),
            client.post("/predict", {"inputs": "a"}, headers=right),
            client.get("/ready"),
            client.get("/metrics"),
            client.post("/predict", {"inputs": "a"}, headers={**right, "host": "evil.example"}),
            client.post("/predict", {"inputs": "a"}, headers={**right, "origin": "http://evil.example"}),
            client.post("/predict", {"inputs": "a"}, headers={**right, "origin": "http://["}),
            client.post("/predict", {"inputs": "a"}, headers={**right, "origin": "http://localhost"}),
        ]
        return [(await one).status_code for one in asked]

    assert serve(work, "classify", access=access) == [401, 401, 200, 200, 401, 403, 403, 403, 200]


def test_administration_wants_a_key(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        return (await client.post("/admin/models/classify/reload", {})).status_code

    assert serve(work, "classify") == 403


def test_key_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# one\n{KEY}\n\n", "utf-8")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_keys(file)
    file.chmod(0o600)
    assert read_keys(file) == [KEY]
    monkeypatch.setenv("FIRTH_API_KEY", "another-key-of-letters")
    assert read_keys(file) == ["another-key-of-letters", KEY]
    monkeypatch.setenv("FIRTH_API_KEY", "short")
    with pytest.raises(ConfigError, match="at least 16"):
        read_keys(file)
    monkeypatch.delenv("FIRTH_API_KEY")
    file.write_text("# none\n", "utf-8")
    with pytest.raises(ConfigError, match="no key"):
        read_keys(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="cannot be read: not a regular file"):
        read_keys(tmp_path / "pipe")


def test_other_addresses_want_keys() -> None:
    with pytest.raises(ConfigError, match="--key-file"):
        make_access("0.0.0.0", None, [], no_auth=False)
    assert make_access("0.0.0.0", None, [], no_auth=True) == Access()
    assert "127.0.0.1" in make_access("127.0.0.1", None, [], no_auth=False).hosts
    assert "models.example" in make_access("::1", None, ["Models.example"], no_auth=False).hosts
    names = {"LocalHost:80": "localhost", "[::1]:8080": "::1", "a.b.": "a.b", "[": "", "": ""}
    assert {host: host_name(host) for host in names} == names


def test_allowed_names_are_compared_as_host_headers_are(serve: Serve) -> None:
    """A refusal names the host to allow; once allowed, it is accepted."""
    given = ["box.lan:8080", "Box.lan.", "my_box", "192.168.1.5", "fd00::1", "[FD00::1]:80"]
    assert list(map(allowed_name, given)) == ["box.lan", "box.lan", "my_box", "192.168.1.5", "fd00::1", "fd00::1"]

    def ask(*allowed: str) -> Any:
        async def work(client: Client) -> Any:
            return await client.post("/predict", {"inputs": "a"}, headers={"host": "Box.LAN.:8080"})

        return serve(work, "classify", access=make_access("127.0.0.1", None, allowed, no_auth=False))

    refused = ask()
    assert refused.status_code == 403
    assert ask(refused.json()["error"].rpartition(" --allowed-host ")[2]).status_code == 200


@pytest.mark.parametrize(
    "given", ["http://box.lan", "box.lan/", "", "*.box.lan", "a b", "a@b", "bücher.example", "[::x]"]
)
def test_what_is_no_host_name_cannot_be_allowed(given: str) -> None:
    with pytest.raises(ConfigError, match="--allowed-host .* expected a host name, such as box.lan"):
        make_access("127.0.0.1", None, [given], no_auth=False)


def test_models_have_names_of_their_own(tmp_path: Path) -> None:
    assert [name for name, _ in named_models(["a=x", str(tmp_path / "run" / "model")])] == ["a", "run"]
    for wrong, words in (
        (["a=x", "a=y"], "two models"),
        (["a b=x"], "NAME=PATH"),
        ([], "no model"),
        (["=x"], "NAME"),
        (["..=x"], "NAME"),
    ):
        with pytest.raises(ConfigError, match=words):
            named_models(wrong)


def test_a_port_in_use_is_said() -> None:
    with listen("127.0.0.1", 0) as bound:
        bound.listen()
        with pytest.raises(ConfigError, match="is in use"):
            listen("127.0.0.1", bound.getsockname()[1])
    with pytest.raises(ConfigError, match="cannot listen|no such address"):
        listen("203.0.113.1", 0)


def test_json_that_is_fine_is_read_as_it_is() -> None:
    assert parse_json('{"a": [1, -2.5, null, true, "강"]}'.encode()) == {"a": [1, -2.5, None, True, "강"]}
    with pytest.raises(InputError, match="digits"):
        parse_json(b"9" * 30)


def test_limits_are_above_zero() -> None:
    with pytest.raises(ConfigError, match="inputs=0"):
        Limits(inputs=0)


def test_keys_of_the_environment_are_no_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRTH_API_KEY", KEY)
    access = make_access("127.0.0.1", None, [], no_auth=False)
    assert access.keys and KEY not in repr(access)
