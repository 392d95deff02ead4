"""Texts and bodies that clients send by mistake: each is answered, or refused with a one-line reason."""

import asyncio
import math
import socket
from pathlib import Path
from typing import Any

import pytest
from served import Client, Serve

from firth.cli import main
from firth.errors import ConfigError
from firth.inference.model import Model
from firth.serving.access import read_keys
from firth.serving.server import listen, start_http

# NUL, bell, escape, delete, and a control character above ASCII.
CONTROLS = "\x00\x07\x1b\x7f\x85"
SYLLABLES = "강가에서늙은농부는편지를썼다"
# One token per syllable, or one per unknown word: with spaces 512 in any case.
HANGUL = " ".join(SYLLABLES[i % len(SYLLABLES)] for i in range(512))

# Every route that reads texts, by the model that answers it, with a text in place of each None. An empty second text
# counts as missing, so pairs have a word there.
ASKED: tuple[tuple[str, str, Any], ...] = (
    ("classify", "/models/classify/predict", {"inputs": None}),
    ("classify", "/models/classify/predict", {"inputs": [None, "a"]}),
    ("multilabel", "/models/multilabel/predict", {"inputs": [[None], [None, "a"]]}),
    ("regress", "/models/regress/rerank", {"query": None, "texts": ["a", "b"]}),
    ("baseline", "/models/baseline/pipeline/token-classification", {"inputs": None}),
    ("tag", "/models/tag/pipeline/token-classification", {"inputs": [None, "a"]}),
    ("answer", "/models/answer/pipeline/question-answering", {"inputs": {"question": "Who?", "context": None}}),
    ("answer", "/models/answer/pipeline/question-answering", {"inputs": {"question": None, "context": "The river."}}),
    ("choose", "/models/choose/pipeline/multiple-choice", {"inputs": {"text": None, "choices": ["a", "b"]}}),
    ("masked", "/models/masked/embed", {"inputs": None}),
    ("masked", "/models/masked/embed_all", {"inputs": None}),
    ("masked", "/models/masked/similarity", {"inputs": {"source_sentence": None, "sentences": [None, "a"]}}),
    ("masked", "/models/masked/tokenize", {"inputs": None}),
    ("masked", "/models/masked/attention", {"inputs": None}),
    ("masked", "/models/masked/masking", {"inputs": None}),
    ("masked", "/models/masked/hidden_states", {"inputs": None}),
    ("masked", "/models/masked/pipeline/feature-extraction", {"inputs": None}),
    ("masked", "/models/masked/pipeline/fill-mask", {"inputs": None}),
    ("gpt", "/models/gpt/pipeline/text-generation", {"inputs": None, "parameters": {"max_new_tokens": 2}}),
    ("gpt", "/v1/completions", {"model": "gpt", "prompt": None, "max_tokens": 2}),
    ("masked", "/v1/embeddings", {"model": "masked", "input": None}),
    ("mt", "/models/mt/pipeline/translation", {"inputs": None, "parameters": {"num_beams": 1}}),
    (
        "classify",
        "/v2/models/classify/infer",
        {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [None]}]},
    ),
)
# Routes that refuse a text of too many tokens for one forward pass, and those that refuse a text without tokens.
TOO_LONG = {"attention", "masking", "hidden_states", "fill-mask", "text-generation", "completions"}
NO_TOKENS = {"masking", "fill-mask", "text-generation", "completions"}


def with_text(body: Any, text: str) -> Any:
    """The body with ``text`` in place of each None."""
    if isinstance(body, dict):
        return {key: with_text(value, text) for key, value in body.items()}
    if isinstance(body, list):
        return [with_text(value, text) for value in body]
    return text if body is None else body


def numbers_of(value: Any) -> list[float]:
    """All numbers of an answer."""
    if isinstance(value, dict):
        return [x for item in value.values() for x in numbers_of(item)]
    if isinstance(value, list):
        return [x for item in value for x in numbers_of(item)]
    return [float(value)] if isinstance(value, (int, float)) else []


def ask_all(serve: Serve, *texts: str) -> list[list[Any]]:
    """The answers of every route to each text."""

    async def work(client: Client) -> list[list[Any]]:
        asked = [[client.post(path, with_text(body, text)) for _, path, body in ASKED] for text in texts]
        return [await asyncio.gather(*some) for some in asked]

    return serve(work, *dict.fromkeys(name for name, _, _ in ASKED))


def check(answers: list[Any], refusing: set[str]) -> None:
    """The routes in ``refusing`` refuse in one line; all others answer with finite numbers."""
    for (_, path, _), answer in zip(ASKED, answers, strict=True):
        if path.rpartition("/")[2] in refusing:
            error = answer.json()["error"]
            message = error["message"] if isinstance(error, dict) else error
            assert answer.status_code == 422, (path, answer.text)
            assert "\n" not in message and len(message) < 200 and message.isprintable(), message
        else:
            assert answer.status_code == 200, (path, answer.text)
            assert all(math.isfinite(number) for number in numbers_of(answer.json())), path


def test_five_hundred_tokens_of_hangul(serve: Serve, predictors: dict[str, Any]) -> None:
    (answers,) = ask_all(serve, HANGUL)
    check(answers, TOO_LONG)
    found = dict(zip([(path, str(body)) for _, path, body in ASKED], answers, strict=True))
    tokens = found["/models/masked/tokenize", str({"inputs": None})].json()[0]
    assert len(tokens) - 2 == 512 and tokens[-2]["stop"] == len(HANGUL)
    model: Model = predictors["classify"]
    labels = {one["label"]: one["score"] for one in found["/models/classify/predict", str({"inputs": None})].json()}
    assert labels == pytest.approx(model.predict(HANGUL).probabilities, abs=1e-5)
    assert int(found["/models/classify/predict", str({"inputs": None})].headers["x-windows"]) > 1


def test_a_text_of_control_characters_is_one_without_words(serve: Serve) -> None:
    controls, nothing = ask_all(serve, CONTROLS, "")
    check(controls, NO_TOKENS)
    for (_, path, _), found, empty in zip(ASKED, controls, nothing, strict=True):
        # Taggers tag every character of a text, control characters too.
        if path.rpartition("/")[2] not in {*NO_TOKENS, "token-classification"}:
            assert numbers_of(found.json()) == pytest.approx(numbers_of(empty.json()), abs=1e-5), path


@pytest.mark.parametrize("path", ["/predict", "/v1/embeddings", "/v2/models/classify/infer", "/text-classification"])
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"inputs": NaN}', "NaN, which is not a JSON number"),
        (b'{"inputs": [Infinity]}', "Infinity, which is not a JSON number"),
        (b'{"inputs": {"a": -Infinity}}', "-Infinity, which is not a JSON number"),
        (b'{"inputs": -1e400}', "too large"),
        (b'{"inputs": "a", "parameters": {"top_k": 1, "top_k": 2}}', "'top_k' twice"),
        (b'{"inputs": [{"name": "text", "name": "text"}]}', "'name' twice"),
        (b'{"a": 1, "\\u0061": 2}', "'a' twice"),
    ],
)
def test_json_that_is_none_is_refused_by_each_protocol(serve: Serve, path: str, body: bytes, words: str) -> None:
    async def work(client: Client) -> Any:
        return await client.post(path, content=body)

    answer = serve(work, "classify")
    error = answer.json()["error"]
    message = error["message"] if isinstance(error, dict) else error
    assert answer.status_code == 400 and words in message and "\n" not in message


def test_numbers_in_an_item_of_a_tensor_are_checked_too(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        tensor = {"name": "item", "shape": [1], "datatype": "BYTES", "data": ['{"text": NaN, "choices": ["a", "b"]}']}
        return await client.post("/v2/models/choose/infer", {"inputs": [tensor]})

    answer = serve(work, "choose")
    assert answer.status_code == 400 and "NaN" in answer.json()["error"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o777])
def test_a_key_file_that_others_reach_is_refused(tmp_path: Path, mode: int, capsys: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a-key-of-sixteen-letters\n", "utf-8")
    keys.chmod(mode)
    link = tmp_path / "link"
    link.symlink_to(keys)
    for file in (keys, link):
        assert main(["serve", f"a={tmp_path}", "--key-file", str(file), "--port", "0", "--check"]) == 2
        (error,) = capsys.readouterr().err.splitlines()
        assert error.startswith("firth: ") and f"chmod 600 {file}" in error


def test_comments_and_a_mark_of_byte_order_are_no_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("\ufeff# ours\n  # theirs\n a-key-of-sixteen-letters \n\n", "utf-8")
    file.chmod(0o600)
    assert read_keys(file) == ["a-key-of-sixteen-letters"]


def test_the_command_line_says_that_a_port_is_in_use_before_it_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with listen("127.0.0.1", 0) as bound:
        bound.listen()
        port = str(bound.getsockname()[1])
        for more in ([], ["--check"]):
            assert main(["serve", f"a={tmp_path / 'no model'}", "--port", port, *more]) == 2
            (error,) = capsys.readouterr().err.splitlines()
            assert error == f"firth: port {port} of 127.0.0.1 is in use: choose another one with --port"


def test_two_servers_that_start_at_the_same_time_do_not_share_a_port() -> None:
    """Both can bind the same port until one of them listens."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("nobody asks")

    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with listen("127.0.0.1", port) as second:
            server, thread, _ = start_http(app, first)
            try:
                with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 is in use"):
                    start_http(app, second)
                with socket.create_connection(("127.0.0.1", port), timeout=60):
                    pass
            finally:
                server.should_exit = True
                thread.join()
