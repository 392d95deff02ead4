"""The Open Inference Protocol (KServe v2), with tensors in JSON or in binary after it.

Source: the protocol's specification and its binary tensor data extension: a BYTES element is its length as four bytes,
little-endian, and its bytes; the header Inference-Header-Content-Length says where the JSON ends.
"""

import math
import struct
from dataclasses import asdict, field
from typing import Any, TypeVar

import numpy as np
import orjson
from starlette.responses import Response

from firth.errors import InputError
from firth.serving.asking import Context, Listed, Route, request_body, validated
from firth.serving.hosted import Hosted
from firth.serving.huggingface import CHOICE_INPUTS, choice_items
from firth.serving.refusals import RefusalError

T = TypeVar("T")
HEADER = "inference-header-content-length"
_NUMPY = {"FP32": "<f4", "INT64": "<i8"}
# A server has one version of a model at a time, which a reload replaces.
VERSION = "1"


@request_body
class InputTensor:
    """A tensor of texts: ``data`` in JSON, or ``binary_data_size`` bytes after it."""

    name: str
    shape: Listed[int]
    datatype: str
    data: list[Any] | None = None
    parameters: dict[str, Any] = field(default_factory=dict)


@request_body
class OutputTensor:
    """A requested tensor."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)


@request_body
class InferBody:
    """Tensors of texts; without ``outputs``, all outputs are returned."""

    inputs: Listed[InputTensor]
    outputs: Listed[OutputTensor] = field(default_factory=list)
    id: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)


def input_names(hosted: Hosted) -> list[str]:
    """The tensors that a model reads: one text, or one JSON object, per row."""
    if hosted.task == "answer":
        return ["question", "context"]
    if hosted.task == "choose":
        return ["item"]
    return ["text", "second"] if hosted.pairs else ["text"]


def output_names(hosted: Hosted) -> dict[str, str]:
    """The tensors that a model returns, with their types."""
    if "predict" not in hosted.abilities:
        return {"embedding": "FP32"}
    if hosted.task == "classify":
        return {"label": "BYTES", "probability": "FP32", "probabilities": "FP32"}
    return {"value": "FP32"} if hosted.task == "regress" else {"prediction": "BYTES"}


def _model(context: Context) -> Hosted:
    """The model named in the path; RefusalError 404 for a version that does not exist."""
    hosted = context.state.model(context.request.path_params["model"])
    context.model_name = hosted.name
    if (version := context.request.path_params.get("version", VERSION)) != VERSION:
        message = f"{hosted.name} has no version {version[:60]!r}; this server has version {VERSION} of each model"
        raise RefusalError(404, "model", message)
    return hosted


async def infer(context: Context, body: InferBody) -> Any:
    hosted = _model(context)
    all_binary = _parameter("parameters", body.parameters, "binary_data_output", bool)
    chosen = {
        output.name: _parameter(f"{output.name}: parameters", output.parameters, "binary_data", bool)
        for output in body.outputs
    }
    tensors = _texts(context, body)
    wanted = input_names(hosted)
    # For a model of single texts, a second one is refused below, with advice on how to write two texts.
    may_be_pairs = wanted == ["text"] and hosted.task in ("classify", "multilabel", "regress")
    unknown = set(tensors) - {*wanted, *(["second"] if may_be_pairs else [])}
    if unknown or not set(wanted) <= set(tensors):
        message = f"inputs: expected tensors named {', '.join(wanted)}, not {', '.join(sorted(tensors)) or 'none'}"
        raise RefusalError(422, "body", message, "inputs")
    if len({len(texts) for texts in tensors.values()}) > 1:
        raise RefusalError(422, "body", "inputs: tensors of different lengths", "inputs")
    known = output_names(hosted)
    names = [output.name for output in body.outputs] or list(known)
    if not set(names) <= set(known):
        raise RefusalError(422, "body", f"outputs: this model has {', '.join(known)}", "outputs")
    if len(set(names)) < len(names):
        raise RefusalError(422, "body", "outputs: one is asked for twice", "outputs")
    items = await context.aside(lambda: _items(context, hosted, tensors))
    answers = await context.ask(hosted.predict(items) if "predict" in hosted.abilities else hosted.embed(items))
    binary = {name: all_binary if chosen.get(name) is None else chosen[name] for name in names}

    def make() -> Any:
        found = _tensors(hosted, answers)
        return _response(hosted, body.id, {name: found[name] for name in names}, known, binary)

    return await context.aside(make)


def _parameter(name: str, parameters: dict[str, Any], known: str, kind: type[T]) -> T | None:
    """The one supported parameter, or None.

    RefusalError for another type, and for parameters that would have no effect, such as other servers' ``timeout`` and
    ``priority``.
    """
    if unknown := sorted(set(parameters) - {known}):
        raise RefusalError(422, "option", f"{name}: {', '.join(unknown)}: expected {known} or nothing", "parameters")
    value = parameters.get(known)
    # By the exact type: in Python, true is also a number.
    if value is not None and type(value) is not kind:
        expected = "true or false" if kind is bool else "a number of bytes"
        raise RefusalError(422, "option", f"{name}: {known}={repr(value)[:40]}: expected {expected}", "parameters")
    return value


def _texts(context: Context, body: InferBody) -> dict[str, list[str]]:
    """The texts of each tensor."""
    rest = memoryview(context.request.scope.get("firth.binary", b""))
    found: dict[str, list[str]] = {}
    for tensor in body.inputs:
        if tensor.name in found:
            raise RefusalError(422, "body", f"inputs: two tensors named {tensor.name!r}", "inputs")
        if tensor.datatype != "BYTES":
            raise RefusalError(422, "body", f"{tensor.name}: {tensor.datatype}: expected BYTES", "inputs")
        if len(tensor.shape) > 2 or any(size < 0 for size in tensor.shape):
            message = f"{tensor.name}: shape: expected one or two sizes, none of them negative"
            raise RefusalError(422, "body", message, "inputs")
        size = _parameter(f"{tensor.name}: parameters", tensor.parameters, "binary_data_size", int)
        if size is None:
            texts = _flat(tensor)
        elif tensor.data is not None:
            message = f"{tensor.name}: data and binary_data_size: leave one out"
            raise RefusalError(422, "body", message, "inputs")
        else:
            if not 0 <= size <= len(rest):
                raise RefusalError(422, "body", f"{tensor.name}: binary_data_size={size}, too much", "inputs")
            # Before they are unpacked, which keeps others waiting.
            context.check_number(math.prod(tensor.shape), tensor.name)
            texts, rest = unpack_strings(rest[:size], math.prod(tensor.shape)), rest[size:]
        if math.prod(tensor.shape) != len(texts):
            message = f"{tensor.name}: shape {tensor.shape}, but {len(texts)} elements"
            raise RefusalError(422, "body", message, "inputs")
        found[tensor.name] = context.texts(texts, tensor.name)
    if len(rest):
        raise RefusalError(422, "body", f"{len(rest)} bytes behind the last tensor", "inputs")
    return found


def _flat(tensor: InputTensor) -> list[str]:
    """The texts of a tensor in JSON, row by row: with two dimensions, they may be a list per row, or one list."""
    data = tensor.data or []
    if len(tensor.shape) == 2 and data and all(isinstance(row, list) for row in data):
        if [len(row) for row in data] != [tensor.shape[1]] * len(data):
            raise RefusalError(422, "body", f"{tensor.name}: shape {tensor.shape}, but rows of other lengths", "inputs")
        data = [text for row in data for text in row]
    if not all(isinstance(text, str) for text in data):
        raise RefusalError(422, "body", f"{tensor.name}: expected strings, in lists as deep as shape", "inputs")
    return data


def unpack_strings(data: memoryview, most: int) -> list[str]:
    """Decode the texts of a binary BYTES tensor; RefusalError if there are more than ``most``."""
    texts, at = list[str](), 0
    while at < len(data):
        if len(texts) == most:
            raise RefusalError(422, "body", f"a binary tensor has more elements than its shape: {most}", "inputs")
        length = struct.unpack_from("<I", data, at)[0] if at + 4 <= len(data) else len(data)
        if at + 4 + length > len(data):
            raise RefusalError(422, "body", "a binary tensor ends in the middle of an element", "inputs")
        try:
            texts.append(bytes(data[at + 4 : at + 4 + length]).decode("utf-8"))
        except UnicodeDecodeError:
            raise RefusalError(422, "body", "a binary tensor has an element that is not UTF-8", "inputs") from None
        at += 4 + length
    return texts


def _tensors(hosted: Hosted, found: list[Any]) -> dict[str, Any]:
    """The values of each tensor; ``found``: vectors, or answers with their records."""
    if "predict" not in hosted.abilities:
        return {"embedding": np.stack(found)}
    answers = [answer for _, answer in found]
    if hosted.task == "classify":
        return {
            "label": [None if hosted.abstains(a.probability) else a.label for a in answers],
            "probability": np.array([a.probability for a in answers]),
            "probabilities": np.array([list(a.probabilities.values()) for a in answers]),
        }
    if hosted.task == "regress":
        return {"value": np.array([a.value for a in answers])}
    plain = [asdict(answer) for answer in answers]
    if hosted.task == "choose":
        for one in plain:
            if hosted.abstains(max(one["probabilities"])):
                one |= {"choice": None, "text": None}
    return {"prediction": [orjson.dumps(one).decode() for one in plain]}


def _items(context: Context, hosted: Hosted, tensors: dict[str, list[str]]) -> list[Any]:
    if hosted.task == "answer":
        pairs = zip(tensors["question"], tensors["context"], strict=True)
        return [{"question": question, "context": context} for question, context in pairs]
    if hosted.task == "choose":
        from firth.serving.strict_json import parse_json

        try:
            items = [validated(CHOICE_INPUTS, parse_json(text.encode()), "item") for text in tensors["item"]]
        except InputError as error:
            message = f"item: {str(error).replace('the body', 'an element', 1)}"
            raise RefusalError(400, "body", message, "item") from None
        context.characters = 0  # those of the JSON
        return choice_items(context, items)
    if "second" in tensors:
        both = list(zip(tensors["text"], tensors["second"], strict=True))
        two = "two elements of the tensor text, without the tensor second"
        context.check_pairs(hosted, both, two, "an element of each of both tensors")
        return both
    return list(tensors["text"])


def _response(hosted: Hosted, request_id: str | None, found: dict[str, Any], types: dict[str, str], binary: Any) -> Any:
    outputs, blobs = list[dict[str, Any]](), list[bytes]()
    for name, values in found.items():
        kind = types[name]
        if kind == "BYTES":
            # If the model abstains, the label is empty, since tensors have no null.
            texts = ["" if value is None else value for value in values]
            blob, data, shape = packed(texts), texts, [len(texts)]
        else:
            array = np.ascontiguousarray(values, _NUMPY[kind])
            blob, data, shape = array.tobytes(), array.ravel().tolist(), list(array.shape)
        output: dict[str, Any] = {"name": name, "datatype": kind, "shape": shape}
        if binary[name]:
            output["parameters"] = {"binary_data_size": len(blob)}
            blobs.append(blob)
        else:
            output["data"] = data
        outputs.append(output)
    head: dict[str, Any] = {"model_name": hosted.name, "model_version": VERSION, "outputs": outputs}
    if request_id is not None:
        head["id"] = request_id
    if not blobs:
        return head
    text = orjson.dumps(head)
    headers = {HEADER: str(len(text))}
    return Response(b"".join([text, *blobs]), 200, headers, media_type="application/octet-stream")


def packed(texts: list[str]) -> bytes:
    """Encode texts as a binary BYTES tensor."""
    elements = [text.encode() for text in texts]
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


async def server(context: Context, body: None) -> Any:
    from firth.version import firth_version

    return {"name": "firth", "version": firth_version(), "extensions": ["binary_tensor_data"]}


async def live(context: Context, body: None) -> Any:
    return {"live": True}


async def ready(context: Context, body: None) -> Any:
    context.state.check_ready()
    return {"ready": True}


async def model_ready(context: Context, body: None) -> Any:
    hosted = _model(context)
    await ready(context, body)
    return {"name": hosted.name, "ready": True}


async def metadata(context: Context, body: None) -> Any:
    hosted = _model(context)
    inputs = [{"name": name, "datatype": "BYTES", "shape": [-1]} for name in input_names(hosted)]
    wide = {"embedding", "probabilities"}
    outputs = [
        {"name": name, "datatype": kind, "shape": [-1, -1] if name in wide else [-1]}
        for name, kind in output_names(hosted).items()
    ]
    return {
        "name": hosted.name, "versions": [VERSION], "platform": f"firth-{hosted.predictor.system}",
        "inputs": inputs, "outputs": outputs,
    }  # fmt: skip


ROUTES = (
    Route("GET", "/v2", server, None, "The server"),
    Route("GET", "/v2/health/live", live, None, "Whether the process answers"),
    Route("GET", "/v2/health/ready", ready, None, "Whether requests are taken"),
    *(
        route
        for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
        for route in (
            Route("GET", path, metadata, None, "What a model reads and answers"),
            Route("GET", f"{path}/ready", model_ready, None, "Whether a model takes requests"),
            Route("POST", f"{path}/infer", infer, InferBody, "Answers for tensors of texts"),
        )
    ),
)
