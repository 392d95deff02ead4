"""The playground: it loads nothing from elsewhere, requests existing routes, and draws what the models compute."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import Client, Serve

from firth.serving.access import Access
from firth.serving.app import ROUTES
from firth.serving.hosted import Hosted
from firth.serving.playground import MOST_TOKENS, PAGE

STATIC = files("firth.serving") / "static"
SCRIPT = (STATIC / "playground.js").read_text("utf-8")
DRAWINGS = (STATIC / "drawings.js").read_text("utf-8")
WORDS = (STATIC / "words.js").read_text("utf-8")


def test_the_page_comes_from_the_server_and_needs_no_key(serve: Serve) -> None:
    access = Access(keys=(hashlib.sha256(b"a-key-of-sixteen-letters").digest(),))

    async def work(client: Client) -> list[tuple[int, str]]:
        paths = ["/", *(f"/playground/{name}" for name in PAGE), "/playground/app.py"]
        found = [await client.get(path) for path in paths]
        assert all(one.headers["content-security-policy"].startswith("default-src 'self'") for one in found)
        posted = await client.post("/", {"inputs": "a"})
        assert posted.status_code == 401, "the same path answers questions with a key alone"
        return [(one.status_code, one.headers["content-type"]) for one in found]

    types = [PAGE["index.html"], *PAGE.values()]
    assert serve(work, "classify", access=access) == [*((200, kind) for kind in types), (404, "application/json")]


def test_no_part_names_another_host() -> None:
    for name in PAGE:
        text = (STATIC / name).read_text("utf-8")
        # The SVG namespace is only a name; nothing is loaded from it.
        assert set(re.findall(r"(?:https?:)?//[\w.]+\.\w+", text)) <= {"http://www.w3.org"}
        assert "innerHTML" not in text and "style=" not in text and "onclick=" not in text


def test_it_asks_for_routes_that_there_are() -> None:
    known = {route.path for route in ROUTES}
    paths = re.findall(r'path: "([^"]+)"', SCRIPT)
    assert len(paths) == 18
    assert {f"/models/{{model}}{path}" for path in paths} <= known
    assert {"/v1/models", "/models/{model}/info"} <= known


def test_both_languages_have_the_same_words() -> None:
    tables = re.findall(r"^  (?:en|ko): \{(.*?)^  \},", WORDS, flags=re.MULTILINE | re.DOTALL)
    english, korean, hints, hints_korean, examples, examples_korean = [
        re.findall(r"(?:^|[ ,])(\w+): [\"\[]", table, flags=re.MULTILINE) for table in tables
    ]
    assert (english, hints) == (korean, hints_korean) and sorted(examples) == sorted(examples_korean)
    panels = set(re.findall(r'name: "(\w+)"', SCRIPT))
    assert set(hints) == panels
    assert panels | set(re.findall(r'say\("(\w+)"\)', SCRIPT + DRAWINGS)) <= set(english)


def test_the_last_of_several_runs_is_shown_with_its_command(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js, which runs the page's script, is not installed")
    for name in (name for name in PAGE if name.endswith(".js")):
        (tmp_path / name).write_bytes((STATIC / name).read_bytes())
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copy(Path(__file__).with_name("playground.mjs"), tmp_path)
    done = subprocess.run([node, "playground.mjs"], cwd=tmp_path, capture_output=True, text=True, check=True)
    shown = json.loads(done.stdout)
    assert shown.pop("answer").startswith("second")
    assert shown == {
        "seed_of_the_command": "1",
        "seed_of_the_next": "2",
        "dropped": [True, False],
        "gone": "No answer from the server",
        "proxy": "No answer from the server",
        "refused": ["no ko", 0],
        "chosen": [False, True],
    }


TEXT = "The old farmer walked to the river in the morning."


def test_masks_are_those_of_pre_training_and_predictions_the_models_own(
    serve: Serve, predictors: dict[str, Any]
) -> None:
    async def work(client: Client) -> Any:
        asked = [{"inputs": TEXT, "share": 0.5, "seed": seed} for seed in (1, 1, *range(2, 12))]
        return [(await client.post("/masking", body)).json() for body in asked]

    first, again, *others = serve(work, "masked")
    assert first == again and any(one["masked"] != first["masked"] for one in others)
    model = predictors["masked"]
    ways = set()
    for found in (first, *others):
        tokens, masked = found["tokens"], found["masked"]
        # Half of all tokens, counting special ones as in pre-training; no special token is masked.
        assert len(masked) == round(0.5 * len(tokens)) and not any(tokens[one["index"]]["special"] for one in masked)
        for one in masked:
            ways.add(one["how"])
            assert (one["shown"] == "[MASK]") == (one["how"] == "mask")
            assert (one["shown"] == tokens[one["index"]]["text"]) == (one["how"] == "kept")
            scores = [best["score"] for best in one["candidates"]]
            assert scores == sorted(scores, reverse=True) and one["probability"] <= scores[0] + 1e-6
    assert ways == {"mask", "random", "kept"}
    # A single mask gives the same result as fill-mask.
    one = next(one for seed in range(20) if (one := _single(serve, seed))["how"] == "mask")
    start, stop = one["start"], one["stop"]
    (blank,) = model.fill_mask(f"{TEXT[:start]}[MASK]{TEXT[stop:]}", top_k=3)
    assert [best["token_str"] for best in one["candidates"]] == [c.token for c in blank.candidates]
    assert [best["score"] for best in one["candidates"]] == pytest.approx([c.probability for c in blank.candidates])


def _single(serve: Serve, seed: int) -> dict[str, Any]:
    """The only masked token, with its position: the share is so small that there is just one."""

    async def work(client: Client) -> Any:
        return (await client.post("/masking", {"inputs": TEXT, "share": 0.01, "seed": seed})).json()

    found = serve(work, "masked")
    (one,) = found["masked"]
    return {**found["tokens"][one["index"]], **one}


def test_hidden_states_are_the_models_own_in_every_layer(serve: Serve, predictors: dict[str, Any]) -> None:
    texts = [TEXT, "강가에서"]

    async def work(client: Client) -> Any:
        return (await client.post("/hidden_states", {"inputs": texts})).json()

    for name in ("masked", "gpt", "classify"):
        found, model = serve(work, name), predictors[name]
        n_layers = len(model.loaded.objective.encoder.widths)
        for text, one in zip(texts, found, strict=True):
            assert len(one["layers"]) == n_layers
            for number, layer in enumerate(one["layers"]):
                states = np.frombuffer(base64.b64decode(layer["states"]), "<f2").reshape(layer["shape"])
                assert len(states) == len(one["tokens"])
                expected = model.embed(text, layer=number, pool="mean")
                np.testing.assert_allclose(states.astype(np.float32).mean(0), expected, atol=2e-3)


def test_whether_a_text_follows_is_the_models_own_answer(serve: Serve, predictors: dict[str, Any]) -> None:
    second = "It was cold."

    async def work(client: Client) -> Any:
        return (await client.post("/next_sentence", {"inputs": TEXT, "second": second})).json()

    assert serve(work, "masked")["probability"] == pytest.approx(predictors["masked"].follows(TEXT, second), abs=1e-6)


def test_nearest_words_are_the_librarys(serve: Serve, predictors: dict[str, Any]) -> None:
    async def work(client: Client) -> Any:
        found = await client.post("/nearest", {"inputs": "bank", "top_k": 2})
        unknown = await client.post("/nearest", {"inputs": "castle"})
        return found, unknown, await client.post("/models/masked/nearest", {"inputs": "bank"})

    found, unknown, other = serve(work, "words", "masked")
    assert Hosted("words", Path("words"), predictors["words"]).nearest("bank", 2).alone, "it takes longer than it says"
    expected = predictors["words"].nearest("bank", 2)
    assert [(one["label"], one["score"]) for one in found.json()] == [
        (w.word, pytest.approx(w.cosine)) for w in expected
    ]
    assert [one.word for one in expected] == ["river", "money"]
    assert unknown.status_code == 422 and "'castle' is not among the 5 words" in unknown.json()["error"]
    assert other.status_code == 400 and "cannot find-nearest" in other.json()["error"]


@pytest.mark.parametrize("target", [None, "the river was old"])
def test_attention_over_the_source_is_the_models_own(
    serve: Serve, predictors: dict[str, Any], target: str | None
) -> None:
    async def work(client: Client) -> Any:
        body = {"inputs": TEXT, **({} if target is None else {"target": target})}
        return (await client.post("/cross_attention", body)).json()

    found, expected = serve(work, "mt"), predictors["mt"].cross_attention(TEXT, target)
    assert found["tokens"] == expected.tokens and found["source"] == expected.columns
    assert found["translation"] == (predictors["mt"].translate(TEXT) if target is None else target)
    weights = np.frombuffer(base64.b64decode(found["weights"]), np.uint8).reshape(found["shape"])
    np.testing.assert_allclose(weights / 255, expected.weights, atol=0.5 / 255 + 1e-5)


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/models/masked/cross_attention", {"inputs": "a"}, 400, "cannot cross-attention"),
        ("/models/mt/cross_attention", {"inputs": ""}, 422, "no tokens"),
        ("/models/mt/cross_attention", {"inputs": "a " * MOST_TOKENS}, 422, "shorten"),
        ("/models/mt/cross_attention", {"inputs": "a", "target": "a " * MOST_TOKENS}, 422, "shorten"),
        ("/models/words/nearest", {"inputs": "bank", "top_k": 0}, 422, "1 to 100"),
        ("/models/masked/masking", {"inputs": ""}, 422, "no tokens"),
        ("/models/masked/masking", {"inputs": "\u0000\u0007\u001b"}, 422, "no tokens"),
        ("/models/masked/masking", {"inputs": "a", "share": 0}, 422, "share=0"),
        ("/models/masked/masking", {"inputs": "a", "share": 1.5}, 422, "share=1.5"),
        ("/models/masked/masking", {"inputs": "a " * MOST_TOKENS}, 422, "shorten"),
        ("/models/gpt/masking", {"inputs": "a"}, 400, "cannot fill-mask"),
        ("/models/masked/hidden_states", {"inputs": ["a " * 50] * 3}, 422, "shorten"),
        ("/models/gpt/hidden_states", {"inputs": "a " * 100}, 422, "more than 64 tokens"),
        ("/models/gpt/hidden_states", {"inputs": ["a", ""]}, 422, "no tokens"),
        ("/models/baseline/hidden_states", {"inputs": "a"}, 400, "cannot embed"),
        ("/models/masked/next_sentence", {"inputs": "a", "second": ""}, 422, "no tokens"),
        ("/models/masked/next_sentence", {"inputs": "a " * 200, "second": "b"}, 422, "the model reads at most"),
        ("/models/gpt/next_sentence", {"inputs": "a", "second": "b"}, 400, "cannot follow"),
    ],
)
def test_what_cannot_be_drawn_is_refused(serve: Serve, path: str, body: Any, status: int, words: str) -> None:
    async def work(client: Client) -> Any:
        return await client.post(path, body)

    answer = serve(work, "masked", "gpt", "mt", "words", "baseline")
    assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text
