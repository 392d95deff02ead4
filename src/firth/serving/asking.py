"""Shared by the routes of all protocols: request bodies, their checks, and calls of the engine."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, cast, dataclass_transform

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from firth.serving.config import Limits
from firth.serving.engine import Caller, Engine
from firth.serving.forward import Job
from firth.serving.hosted import Hosted
from firth.serving.labels import entropy
from firth.serving.refusals import RefusalError

# The routes of each ability and task, for the error of a model that was asked for something else.
ABILITY_ROUTES = {
    "predict": "POST /predict",
    "embed": "POST /embed, /v1/embeddings, /feature-extraction, /sentence-similarity, /hidden_states, /learn, /probe",
    "fill-mask": "POST /fill-mask, /masking",
    "generate": "POST /v1/completions, /text-generation",
    "translate": "POST /translation",
    "attention": "POST /attention",
    "cross-attention": "POST /cross_attention",
    "follow": "POST /next_sentence",
    "find-nearest": "POST /nearest",
}
TASK_ROUTES = {
    "classify": "/text-classification",
    "multilabel": "/text-classification",
    "regress": "/text-classification",
    "tag": "/token-classification",
    "answer": "/question-answering",
    "choose": "/multiple-choice",
}
T = TypeVar("T")
# A list in a body: only the first wrong element is reported, however many there are.
Listed = Annotated[list[T], Field(fail_fast=True)]
Texts = str | Listed[str]
# The last of an answer's server-sent events, as OpenAI's clients expect it.
LAST_EVENT = b"data: [DONE]\n\n"


@dataclass(eq=False)
class ServerState:
    """The state of the server that routes share: its models by name, the first of which is the default, and more."""

    models: dict[str, Hosted]
    engine: Engine
    limits: Limits
    accept_ids: bool = False
    started: bool = False
    reloads: asyncio.Lock = field(default_factory=asyncio.Lock)
    reloading: set[asyncio.Task[Hosted]] = field(default_factory=set)  # a task that nothing refers to may vanish
    learning: bool = False  # a learning curve is being computed; only one at a time

    def check_ready(self) -> None:
        """Raise RefusalError 503 while models are being loaded at the start, and once the server shuts down."""
        if not self.ready:
            what = "shutting down" if self.engine.draining else "loading"
            raise RefusalError(503, "not ready", f"the server is {what}", headers={"Retry-After": "5"})

    def model(self, name: str | None) -> Hosted:
        """The model with a name, or the default; RefusalError 404 if there is none."""
        found = next(iter(self.models.values())) if name is None else self.models.get(name)
        if found is None:
            message = f"there is no model {str(name)[:60]!r}; there are: {', '.join(self.models)}"
            raise RefusalError(404, "model", message, "model")
        return found

    @property
    def ready(self) -> bool:
        return self.started and not self.engine.draining


@dataclass(eq=False)
class Context:
    """One request: its server, its caller, the raw request, and the model that answered.

    ``at_end``: closed once the request has ended, however it ends; a stream ends with its last part.
    """

    state: ServerState
    caller: Caller
    request: Request
    model_name: str = ""
    characters: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    at_end: ExitStack = field(default_factory=ExitStack)

    def hosted(self, ability: str, name: str | None = None) -> Hosted:
        """The model named in the path or by ``name``, or the default; RefusalError 400 if it lacks the ability."""
        hosted = self.state.model(self.request.path_params.get("model", name))
        self.model_name = hosted.name
        if ability not in hosted.abilities:
            routes = [ABILITY_ROUTES[one] for one in sorted(hosted.abilities)]
            routes += [f"POST {TASK_ROUTES[hosted.task]}"] if hosted.task in TASK_ROUTES else []
            raise RefusalError(400, "task", f"{hosted.name} cannot {ability}; it answers {'; '.join(routes)}")
        return hosted

    def texts(self, value: Sequence[str], name: str = "inputs") -> list[str]:
        """Return texts of the body, after checking their number and lengths."""
        limits = self.state.limits
        self.check_number(len(value), name)
        for text in value:
            if len(text) > limits.characters:
                message = f"{name}: a text of {len(text):,} characters; this server takes {limits.characters:,}"
                raise RefusalError(422, "length", message, name)
        self.characters += sum(map(len, value))
        return list(value)

    def texts_or_ids(self, hosted: Hosted, value: Any, name: str) -> list[Any]:
        """Texts, or sequences of token ids, of the body, after the checks of either."""
        ids = ids_of(value)
        return self.texts(as_list(value), name) if ids is None else checked_ids(hosted, ids, self.state.limits)

    def check_pairs(self, hosted: Hosted, items: Sequence[Any], two: str, pair: str) -> None:
        """Raise RefusalError for a pair of texts if the model was trained on single ones, or the reverse.

        ``two`` and ``pair``: how a request writes two texts, and a pair; the model's own message is about files.
        """
        if hosted.pairs is False and any(isinstance(item, tuple) for item in items):
            message = f"inputs: a pair of texts, and {hosted.name} reads single texts; write two texts as {two}"
            raise RefusalError(422, "pair", message, "inputs")
        if hosted.pairs and not all(isinstance(item, tuple) for item in items):
            message = f"inputs: a single text, and {hosted.name} reads pairs of texts; write a pair as {pair}"
            raise RefusalError(422, "pair", message, "inputs")

    def check_number(self, n: int, name: str = "inputs") -> None:
        """Raise RefusalError for no inputs, and for more than the server accepts in one request."""
        limits = self.state.limits
        if not n:
            raise RefusalError(400, "empty", f"{name}: expected at least one", name)
        if n > limits.inputs:
            raise RefusalError(422, "inputs", f"{name}: {n}; this server takes {limits.inputs} in one request", name)

    def admit(self) -> None:
        """Raise RefusalError 429 for a long body from a client whose requests would wait too long."""
        self.state.engine.admit_long(self.caller)

    async def aside(self, make: Callable[[], T]) -> T:
        """Return what ``make`` returns, without blocking others if the body is long; RefusalError 504 if too late."""
        return await self.state.engine.aside(self.caller, make)

    async def ask(self, job: Job) -> Any:
        """Return the engine's answers to a question."""
        found = await self.state.engine.ask(job, self.caller)
        if job.forward.what == "predict":
            for _, answer in found:
                self.caller.windows = max(self.caller.windows, answer.windows)
                self.caller.cut = self.caller.cut or answer.cut
                if (share := entropy(answer)) is not None:
                    self.state.engine.metrics.answer(job.forward.hosted.name, share)
        return found


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def request_body(kind: type[T]) -> type[T]:
    """Make a class the frozen dataclass of a request body; unknown fields are refused instead of ignored."""
    kind.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]  # read by TypeAdapter
    return dataclass(frozen=True, kw_only=True)(kind)


@dataclass(frozen=True, slots=True)
class Route:
    """A route: method and path, the function that answers it, and the dataclass of its body (None: it has none).

    ``media``: the media type of its answers, if they share one.
    """

    method: str
    path: str
    answer: Callable[[Context, Any], Awaitable[Any]]
    body: Any = None
    summary: str = ""
    media: str = "application/json"


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Make a JSON response from a value, which may contain NumPy arrays and numbers."""
    content = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(content, status, headers, media_type="application/json")


# Types in a union, which pydantic reports as if they were fields.
_TYPE_NAMES = frozenset({"str", "int", "float", "bool", "none"})


def validated(adapter: TypeAdapter[Any], value: Any, name: str = "") -> Any:
    """Convert a body, or its field ``name``, to its type; RefusalError 422 names the first wrong field.

    Types are those of JSON: a number is not a boolean, and a string is not a number.
    """
    try:
        return adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = _nearest(error.errors(include_url=False, include_context=False, include_input=False))
        parts = [name, *_named(first["loc"])]
        where = ".".join(str(part) for part in parts if part != "")
        raise RefusalError(422, "body", f"{where or 'body'}: {first['msg']}", where or None) from None


def _nearest(errors: list[Any]) -> Any:
    """Choose among the first errors of each type that a value may have: that of the type that matched furthest."""

    def right(error: Any) -> tuple[int, list[int]]:
        place = _named(error["loc"])
        return len(place), [part for part in place if isinstance(part, int)]

    return max(errors, key=right)


def _named(place: Sequence[Any]) -> list[Any]:
    """The parts of an error's location that are in the body: fields and indices."""
    return [part for part in place if isinstance(part, int) or _is_field(part)]


def _is_field(part: str) -> bool:
    return part.isidentifier() and part[0].islower() and part not in _TYPE_NAMES


def as_list(value: Texts) -> list[str]:
    return [value] if isinstance(value, str) else value


def refuse_other(name: str, value: Any, *allowed: Any) -> None:
    """Raise RefusalError for a known option whose value would not do here what the client expects."""
    if value not in allowed:
        message = f"{name}={value!r} is not supported: leave it out"
        raise RefusalError(422, "option", message, name)


def checked_ids(hosted: Hosted, ids: list[list[int]], limits: Limits) -> list[list[int]]:
    """Check the token ids of a body; RefusalError for too many, and for one that is not in the vocabulary."""
    size = hosted.model.loaded.tokenizer.size
    if len(ids) > limits.inputs:
        raise RefusalError(422, "inputs", f"{len(ids)} inputs; this server takes {limits.inputs} in one request")
    if any(len(row) > limits.characters for row in ids):
        raise RefusalError(422, "length", f"an input of more than {limits.characters:,} token ids")
    if any(not 0 <= number < size for row in ids for number in row):
        raise RefusalError(422, "ids", f"a token id is outside the vocabulary of {size:,}")
    return ids


def event(value: Any) -> bytes:
    """A server-sent event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


def as_base64(vector: Any) -> str:
    """Encode a vector as little-endian float32 in base64."""
    import numpy as np

    return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode("ascii")


def ids_of(inputs: Any) -> list[list[int]] | None:
    """Inputs that are token ids, as a list of sequences; None if they are texts."""
    if not isinstance(inputs, list) or not inputs:
        return None
    if isinstance(inputs[0], int):
        return [cast(list[int], inputs)]
    return cast(list[list[int]], inputs) if isinstance(inputs[0], list) else None
