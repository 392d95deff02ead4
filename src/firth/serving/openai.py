"""The routes of OpenAI's API: embeddings, completions, models."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal

from starlette.responses import StreamingResponse

from firth.errors import FirthError
from firth.serving.asking import (
    LAST_EVENT,
    Context,
    Listed,
    Route,
    Texts,
    as_base64,
    as_list,
    event,
    ids_of,
    refuse_other,
    request_body,
)
from firth.serving.hosted import Hosted
from firth.serving.refusals import RefusalError
from firth.serving.searches import check_prompts, check_writing, generate, generate_parts, prompt_ids


@request_body
class EmbeddingsBody:
    """Texts to vectors."""

    model: str
    input: str | Listed[str] | Listed[int] | Listed[Listed[int]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None


@request_body
class CompletionsBody:
    """Continuations of prompts by a left-to-right model."""

    model: str
    prompt: Texts
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    seed: int | None = None
    stream: bool | None = None
    stop: Texts | None = None
    echo: bool | None = None
    best_of: int | None = None
    logprobs: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    suffix: str | None = None
    user: str | None = None
    stream_options: dict[str, Any] | None = None


async def embeddings(context: Context, body: EmbeddingsBody) -> Any:
    hosted = context.hosted("embed", body.model)
    if ids_of(body.input) is not None and not context.state.accept_ids:
        message = (
            "input has token ids, which are of another tokenizer than this model's: send texts (LangChain: "
            "OpenAIEmbeddings(check_embedding_ctx_length=False)), or start the server with --accept-ids"
        )
        raise RefusalError(422, "ids", message, "input")
    inputs = context.texts_or_ids(hosted, body.input, "input")
    vectors = await context.ask(hosted.embed(inputs, unit=True))
    refuse_other("dimensions", body.dimensions, None, len(vectors[0]))
    form = as_base64 if body.encoding_format == "base64" else lambda vector: vector
    data = [{"object": "embedding", "index": i, "embedding": form(vector)} for i, vector in enumerate(vectors)]
    usage = {"prompt_tokens": context.caller.tokens, "total_tokens": context.caller.tokens}
    return {"object": "list", "data": data, "model": hosted.name, "usage": usage}


async def completions(context: Context, body: CompletionsBody) -> Any:
    hosted = context.hosted("generate", body.model)
    refuse_other("stop", body.stop, None, [])
    refuse_other("suffix", body.suffix, None, "")
    refuse_other("logprobs", body.logprobs, None)
    refuse_other("stream_options", body.stream_options, None, {}, {"include_usage": False})
    for name in ("frequency_penalty", "presence_penalty"):
        refuse_other(name, getattr(body, name), None, 0)
    refuse_other("best_of", body.best_of, None, 1, body.n)
    refuse_other("echo", body.echo, None, False)
    prompts, n = context.texts(as_list(body.prompt), "prompt"), 1 if body.n is None else body.n
    if n < 1 or n * len(prompts) > context.state.limits.inputs:
        message = f"n={n} of {len(prompts)} prompts: expected 1 to {context.state.limits.inputs} completions"
        raise RefusalError(422, "inputs", message, "n")
    rows = await prompt_ids(context, hosted, prompts, "prompt")
    tokens, seed = 16 if body.max_tokens is None else body.max_tokens, body.seed or 0
    check_writing(context, tokens, n * len(prompts), "max_tokens")
    await check_prompts(context, hosted, prompts, tokens)
    wanted = [
        (prompt, ids, _writing(body, tokens, seed + draw))
        for prompt, ids in zip(prompts, rows, strict=True)
        for draw in range(n)
    ]
    head: dict[str, Any] = {
        "id": f"cmpl-{context.headers['x-request-id']}",
        "object": "text_completion",
        "model": hosted.name,
    }
    head |= {"created": 0}
    if body.stream:
        parts = _events(context, hosted, wanted, head)
        first = await anext(parts)  # errors are reported before the stream begins
        return StreamingResponse(_from(first, parts), media_type="text/event-stream")
    choices, written, read = [], 0, sum(map(len, rows))
    for index, (prompt, _, writing) in enumerate(wanted):
        made = await generate(context, hosted, prompt, writing)
        written += len(made.tokens)
        choices.append({"index": index, "text": made.text, "logprobs": None, "finish_reason": "length"})
    usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    return {**head, "choices": choices, "usage": usage}


def _writing(body: CompletionsBody, tokens: int, seed: int) -> dict[str, Any]:
    temperature = 1.0 if body.temperature is None else body.temperature
    if temperature == 0:
        return {"how": "greedy", "max_new_tokens": tokens}
    top_p = 1.0 if body.top_p is None else body.top_p
    return {"how": "sample", "max_new_tokens": tokens, "temperature": temperature, "top_p": top_p, "seed": seed}


async def _events(
    context: Context, hosted: Hosted, wanted: list[tuple[str, list[int], dict[str, Any]]], head: dict[str, Any]
) -> AsyncGenerator[bytes]:
    """Server-sent events: one per part of a text, then [DONE]; an error in the middle is the last event."""
    begun = False
    try:
        for index, (prompt, ids, writing) in enumerate(wanted):
            async with aclosing(generate_parts(context, hosted, prompt, ids, writing)) as parts:
                async for part in parts:
                    begun = True
                    yield event(head | {"choices": [{"index": index, "text": part, "finish_reason": None}]})
            begun = True
            yield event(head | {"choices": [{"index": index, "text": "", "finish_reason": "length"}]})
        yield LAST_EVENT
    except (RefusalError, FirthError) as error:
        if not begun:
            raise
        refusal = error if isinstance(error, RefusalError) else RefusalError(422, "input", str(error))
        yield event(refusal.body("openai"))


async def _from(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(rest):
        yield first
        async for one in rest:
            yield one


async def models(context: Context, body: None) -> Any:
    return {"object": "list", "data": [_model(name) for name in context.state.models]}


async def model(context: Context, body: None) -> Any:
    return _model(context.state.model(context.request.path_params["name"]).name)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "firth"}


ROUTES = (
    Route("POST", "/v1/embeddings", embeddings, EmbeddingsBody, "Texts to vectors"),
    Route("POST", "/v1/completions", completions, CompletionsBody, "Continuations of prompts"),
    Route("GET", "/v1/models", models, None, "The models"),
    Route("GET", "/v1/models/{name}", model, None, "A model"),
)
