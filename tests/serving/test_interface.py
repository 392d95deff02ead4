"""The OpenAPI document against the application: every route, with valid and invalid bodies."""

import asyncio
import json
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from served import Client, Serve

from firth.serving.app import ROUTES
from firth.serving.huggingface import _BODIES, _INPUTS, _PARAMETERS, CHOICE_INPUTS
from firth.serving.tei import EmbedBody

MODELS = ("classify", "masked", "gpt", "mt", "regress", "tag", "answer", "choose", "baseline")
# Bodies per route: a few hundred requests in all.
EXAMPLES = 8

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["", "the river", "a [MASK] b", "강가에서", "\x00", "classify", "masked", "gpt"]
)
WHOLE = st.integers(-2, 40) | st.sampled_from([-(10**18), 10**18])
JSON = st.recursive(
    st.none() | st.booleans() | WHOLE | st.floats(-1e9, 1e9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)

# Inputs of Hugging Face's tasks, which the schemas of the bodies do not specify.
TASK_INPUTS = st.one_of(
    TEXTS,
    st.lists(TEXTS, max_size=3),
    st.fixed_dictionaries({"question": TEXTS, "context": TEXTS}),
    st.fixed_dictionaries({"choices": st.lists(TEXTS, max_size=3)}, optional={"text": TEXTS, "question": TEXTS}),
    st.fixed_dictionaries({"text": TEXTS}, optional={"text_pair": TEXTS}),
)
TASK_PARAMETERS = st.dictionaries(
    st.sampled_from(
        ("top_k", "max_new_tokens", "num_beams", "temperature", "top_p", "seed", "length_penalty", "do_sample")
    ),
    WHOLE | st.floats(-2, 2) | st.booleans() | st.none(),
    max_size=3,
)


def fitting(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a schema allows; ``JSON`` if it allows everything."""
    if "anyOf" in schema:
        return st.one_of([fitting(one) for one in schema["anyOf"]])
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "object":
        if "properties" not in schema:
            return st.dictionaries(TEXTS, JSON, max_size=3)
        known = {name: fitting(one) for name, one in schema["properties"].items()}
        required = {name: known.pop(name) for name in schema.get("required", ())}
        return st.fixed_dictionaries(required, optional=known)
    if kind == "array":
        return st.lists(fitting(schema.get("items", {})), max_size=3)
    plain = {
        "string": TEXTS,
        "integer": WHOLE,
        "number": st.floats(-10, 10),
        "boolean": st.booleans(),
        "null": st.none(),
    }
    return plain[kind] if kind is not None else JSON


def fits(schema: dict[str, Any], value: Any) -> bool:
    """Whether a schema allows a value."""
    if "anyOf" in schema:
        return any(fits(one, value) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return isinstance(value, str) and value in schema.get("enum", [schema.get("const")])
    kind = schema.get("type")
    if kind == "object":
        known = schema.get("properties", {})
        return (
            isinstance(value, dict)
            and set(schema.get("required", ())) <= set(value)
            and (schema.get("additionalProperties", True) is not False or set(value) <= set(known))
            and all(fits(known[name], item) for name, item in value.items() if name in known)
        )
    if kind == "array":
        return isinstance(value, list) and all(fits(schema.get("items", {}), item) for item in value)
    types: dict[Any, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool}
    types |= {"null": type(None), None: object}
    return isinstance(value, types[kind]) and (kind in ("boolean", None) or not isinstance(value, bool))


def bodies(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Valid bodies; some with a field of another type, or an extra field."""
    names = [*schema.get("properties", {}), "unknown"]
    wrong = st.tuples(fitting(schema), st.sampled_from(names), JSON).map(lambda given: {**given[0], given[1]: given[2]})
    inputs = schema.get("properties", {}).get("inputs", {"type": "none"})
    if not {"type", "anyOf"} & set(inputs):
        task = st.fixed_dictionaries({"inputs": TASK_INPUTS}, optional={"parameters": TASK_PARAMETERS})
        return task | fitting(schema) | wrong
    return fitting(schema) | wrong | JSON


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


@pytest.fixture
def document(serve: Serve) -> dict[str, Any]:
    async def work(client: Client) -> Any:
        return (await client.get("/openapi.json")).json()

    found: dict[str, Any] = serve(work)
    return found


def test_every_route_is_described_and_nothing_refers_elsewhere(document: dict[str, Any]) -> None:
    described = {(method, path) for method, path, _ in operations(document)}
    assert described == {(route.method, route.path) for route in ROUTES}
    assert "$ref" not in json.dumps(document)
    for method, path, operation in operations(document):
        parameters = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
        assert parameters == {part[1:-1] for part in path.split("/") if part.startswith("{")}
        assert ("requestBody" in operation) == (method == "POST"), path
        assert operation["summary"]
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(names) == len(set(names))


def lists_of(schema: Any) -> Iterator[dict[str, Any]]:
    """The list schemas in pydantic's core schema of a type."""
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            yield schema
        schema = list(schema.values())
    if isinstance(schema, list):
        for inner in schema:
            yield from lists_of(inner)


def test_of_a_list_of_wrong_elements_only_the_first_is_described() -> None:
    adapters = [TypeAdapter(route.body) for route in ROUTES if route.body is not None]
    adapters += [*_INPUTS.values(), *_PARAMETERS.values(), *_BODIES.values(), CHOICE_INPUTS]
    found = [one for adapter in adapters for one in lists_of(adapter.core_schema)]
    lists = [one for one in found if one.get("items_schema", {}).get("type") != "any"]
    assert len(lists) > 20 and all(one.get("fail_fast") for one in lists)
    for inputs in ([None] * 100, [[None] * 100] * 2):
        with pytest.raises(ValidationError) as wrong:
            TypeAdapter(EmbedBody).validate_python({"inputs": inputs})
        assert wrong.value.error_count() <= 4  # the alternatives


def examples(values: st.SearchStrategy[Any]) -> list[Any]:
    """Some values of a strategy, the same each time."""
    found: list[Any] = []

    @seed(1)
    @settings(max_examples=EXAMPLES, database=None, suppress_health_check=list(HealthCheck))
    @given(values)
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return found


def test_every_route_answers_with_a_status_that_it_documents(serve: Serve, document: dict[str, Any]) -> None:
    asked: list[tuple[str, str, Any, dict[str, Any]]] = []
    names = st.sampled_from([*MODELS, "other", "%00", "a b"])
    for method, path, operation in operations(document):
        body: st.SearchStrategy[Any] = st.none()
        if method == "POST":
            body = bodies(operation["requestBody"]["content"]["application/json"]["schema"])
        for name, value in examples(st.tuples(names, body)):
            asked.append((method, re.sub(r"{\w+}", name, path), value, operation))
    assert len(asked) > 4 * len(ROUTES)

    async def work(client: Client) -> list[Any]:
        at_once = asyncio.Semaphore(8)

        async def one(method: str, path: str, body: Any) -> Any:
            async with at_once:
                return await (client.get(path) if method == "GET" else client.post(path, content=json.dumps(body)))

        return await asyncio.gather(*[one(method, path, body) for method, path, body, _ in asked])

    answers = serve(work, *MODELS)
    for (method, path, body, operation), answer in zip(asked, answers, strict=True):
        what = f"{method} {path} {json.dumps(body)}: {answer.status_code} {answer.text[:300]}"
        found = operation["responses"].get(str(answer.status_code))
        assert found is not None and answer.status_code != 500, what
        assert any(fnmatch(answer.headers["content-type"], kind) for kind in found["content"]), what
        if answer.status_code >= 400:
            assert "error" in answer.json(), what
        elif method == "POST":
            assert fits(operation["requestBody"]["content"]["application/json"]["schema"], body), what
    assert {200, 400, 404, 422} <= {answer.status_code for answer in answers}


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/embed", {"inputs": "a", "truncate": 0}, "truncate: "),
        ("/embed", {"inputs": "a", "normalize": "true"}, "normalize: "),
        ("/embed", {"inputs": [[1.0]]}, "inputs"),
        ("/decode", {"ids": [[False]]}, "ids"),
        ("/tokenize", {"inputs": "a", "add_special_tokens": "yes"}, "add_special_tokens: "),
        ("/fill-mask", {"inputs": None}, "inputs: "),
        ("/fill-mask", {"inputs": "[MASK]", "parameters": {"top_k": "3"}}, "parameters.top_k: "),
        ("/masking", {"inputs": "a", "seed": True}, "seed: "),
    ],
)
def test_values_of_other_types_are_not_taken_for_what_they_resemble(
    serve: Serve, path: str, body: Any, words: str
) -> None:
    async def work(client: Client) -> Any:
        return await client.post(path, body)

    answer = serve(work, "masked")
    assert answer.status_code == 422 and answer.json()["error"].startswith(words), answer.text


def test_a_path_names_all_its_methods(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        return [await client.http.request("DELETE", path) for path in ("/", "/predict", "/info")]

    found = serve(work)
    assert [(one.status_code, one.headers["allow"]) for one in found] == [
        (405, "GET, HEAD, POST"),
        (405, "POST"),
        (405, "GET, HEAD"),
    ]
