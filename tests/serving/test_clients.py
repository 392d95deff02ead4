"""OpenAI's client against the application, in this process."""

from typing import Any

import httpx2
import numpy as np
import pytest
from served import Client, Serve

openai: Any = pytest.importorskip("openai", reason="openai is not installed (extra clients-test)")


def client_of(client: Client) -> Any:
    """OpenAI's client, which sends its requests to the application without a network."""
    transport = httpx2.ASGITransport(app=client.app, client=("10.0.0.2", 1))
    http = httpx2.AsyncClient(transport=transport)
    return openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="any", http_client=http, max_retries=0)


def test_embeddings_are_the_models_own(serve: Serve, predictors: dict[str, Any]) -> None:
    texts = ["the river", "강가에서"]

    async def work(client: Client) -> Any:
        async with client_of(client) as asked:
            # In base64, the client's default, and as numbers.
            coded = await asked.embeddings.create(model="masked", input=texts)
            plain = await asked.embeddings.create(model="masked", input=texts, encoding_format="float")
            return coded, plain, [one.id async for one in asked.models.list()]

    coded, plain, models = serve(work, "masked", "gpt")
    expected = predictors["masked"].embed(texts)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    for found in (coded, plain):
        np.testing.assert_allclose([one.embedding for one in found.data], expected, atol=1e-5)
        assert found.usage.prompt_tokens > 0
    assert models == ["masked", "gpt"]


def test_completions_are_the_models_own_whole_and_streamed(serve: Serve, predictors: dict[str, Any]) -> None:
    asked_for = {"model": "gpt", "prompt": "the old", "max_tokens": 6, "seed": 3}

    async def work(client: Client) -> Any:
        async with client_of(client) as asked:
            whole = await asked.completions.create(**asked_for)
            parts = [part async for part in await asked.completions.create(**asked_for, stream=True)]
            return whole, parts

    whole, parts = serve(work, "gpt")
    expected = predictors["gpt"].generate("the old", max_new_tokens=6, top_p=1.0, seed=3).text
    assert whole.choices[0].text == "".join(part.choices[0].text for part in parts) == expected
    assert parts[-1].choices[0].finish_reason == "length" and whole.usage.completion_tokens == 6


def test_a_prompt_counts_once_however_many_texts_continue_it(serve: Serve, predictors: dict[str, Any]) -> None:
    prompts = ["the old", "the river in winter"]

    async def work(client: Client) -> Any:
        async with client_of(client) as asked:
            return (await asked.completions.create(model="gpt", prompt=prompts, n=3, max_tokens=2)).usage

    usage, n_read = serve(work, "gpt"), sum(len(predictors["gpt"].tokenize(prompt)) for prompt in prompts)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (n_read, 12, n_read + 12)


def test_refusals_arrive_as_the_clients_errors(serve: Serve) -> None:
    async def work(client: Client) -> None:
        async with client_of(client) as asked:
            with pytest.raises(openai.NotFoundError) as unknown:
                await asked.embeddings.create(model="other", input="a")
            assert unknown.value.code == "model" and "masked" in unknown.value.message
            with pytest.raises(openai.UnprocessableEntityError, match="check_embedding_ctx_length=False"):
                await asked.embeddings.create(model="masked", input=[1, 2])
            with pytest.raises(openai.BadRequestError, match="cannot generate"):
                await asked.completions.create(model="masked", prompt="a")

    serve(work, "masked")
