"""Clients of other projects query a running server; they get the library's own answers.

A client that is not installed is skipped; make test-serve installs all.
"""

import asyncio
import importlib
import json
import subprocess
import warnings
from typing import Any

import numpy as np
import pytest
from running import Server

from firth.inference.model import Model
from firth.metrics.neighbours import unit_vectors

TEXTS = ["The old farmer sat on the bank of the river.", "A bank lent him money.", "강가에서 노래를 불렀다."]
CLOSE = {"rtol": 0, "atol": 1e-5}
# Warnings in other projects are theirs to fix.
pytestmark = pytest.mark.filterwarnings("ignore")


def client(name: str) -> Any:
    """The module of a client; the test is skipped if it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            return pytest.skip(f"{error.name} is not installed: make test-serve")


def triton(server: Server) -> tuple[Any, Any]:
    module = client("tritonclient.http")
    return module, module.InferenceServerClient(server.address.removeprefix("http://"))


def tensor(module: Any, name: str, texts: list[str], *, binary: bool = True) -> Any:
    found = module.InferInput(name, [len(texts)], "BYTES")
    found.set_data_from_numpy(np.array([text.encode() for text in texts], dtype=object), binary_data=binary)
    return found


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_tritons_client_in_binary_and_in_json(server: Server, mini: Model, binary_in: bool, binary_out: bool) -> None:
    module, asked = triton(server)
    wanted = [module.InferRequestedOutput("embedding", binary_data=binary_out)]
    found = asked.infer("en", [tensor(module, "text", TEXTS, binary=binary_in)], outputs=wanted, request_id="7")
    np.testing.assert_allclose(found.as_numpy("embedding"), mini.embed(TEXTS), **CLOSE)
    assert found.get_response()["id"] == "7" and found.get_response()["model_name"] == "en"
    # If no outputs are named, the client requests all of them in binary.
    found = asked.infer("en", [tensor(module, "text", TEXTS)])
    np.testing.assert_allclose(found.as_numpy("embedding"), mini.embed(TEXTS), **CLOSE)


def test_tritons_client_reads_labels_values_and_predictions(server: Server, predictors: dict[str, Any]) -> None:
    module, asked = triton(server)
    expected = predictors["classify"].predict(TEXTS)
    found = asked.infer("classify", [tensor(module, "text", TEXTS)])
    assert [label.decode() for label in found.as_numpy("label")] == [one.label for one in expected]
    np.testing.assert_allclose(found.as_numpy("probability"), [one.probability for one in expected], **CLOSE)
    np.testing.assert_allclose(
        found.as_numpy("probabilities"), [list(one.probabilities.values()) for one in expected], **CLOSE
    )
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    found = asked.infer("regress", [tensor(module, "text", TEXTS), tensor(module, "second", TEXTS[::-1])])
    values = [one.value for one in predictors["regress"].predict(pairs)]
    np.testing.assert_allclose(found.as_numpy("value"), values, **CLOSE)
    questions = [{"question": "Who sat?", "context": text} for text in TEXTS]
    sent = [tensor(module, name, [one[name] for one in questions]) for name in ("question", "context")]
    answers = [json.loads(one) for one in asked.infer("answer", sent).as_numpy("prediction")]
    assert [one["text"] for one in answers] == [one.text for one in predictors["answer"].predict(questions)]


def test_tritons_client_asks_for_health_and_tensors_and_is_refused(server: Server) -> None:
    module, asked = triton(server)
    assert asked.is_server_live() and asked.is_server_ready() and asked.is_model_ready("en")
    assert not asked.is_model_ready("other")
    assert "binary_tensor_data" in asked.get_server_metadata()["extensions"]
    assert [one["name"] for one in asked.get_model_metadata("classify")["inputs"]] == ["text"]
    with pytest.raises(client("tritonclient.utils").InferenceServerException, match="no model 'other'"):
        asked.infer("other", [tensor(module, "text", TEXTS)])
    with pytest.raises(client("tritonclient.utils").InferenceServerException, match="expected tensors named text"):
        asked.infer("en", [tensor(module, "texts", TEXTS)])


def test_openais_client(server: Server, mini: Model, predictors: dict[str, Any]) -> None:
    openai = client("openai")
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="any", max_retries=0) as asked:
        found = asked.embeddings.create(model="en", input=TEXTS)
        np.testing.assert_allclose([one.embedding for one in found.data], unit_vectors(mini.embed(TEXTS)), **CLOSE)
        parts = asked.completions.create(model="gpt", prompt="the old", max_tokens=6, seed=3, stream=True)
        text = "".join(part.choices[0].text for part in parts)
    assert text == predictors["gpt"].generate("the old", max_new_tokens=6, top_p=1.0, seed=3).text


def test_langchains_openai_embeddings(server: Server, mini: Model) -> None:
    made = client("langchain_openai").OpenAIEmbeddings(
        model="en", base_url=f"{server.address}/v1", api_key="any", check_embedding_ctx_length=False
    )
    expected = unit_vectors(mini.embed(TEXTS))
    np.testing.assert_allclose(made.embed_documents(TEXTS), expected, **CLOSE)
    np.testing.assert_allclose(made.embed_query(TEXTS[0]), expected[0], **CLOSE)
    np.testing.assert_allclose(asyncio.run(made.aembed_documents(TEXTS)), expected, **CLOSE)


def test_langchains_openai_completions(server: Server, predictors: dict[str, Any]) -> None:
    made = client("langchain_openai").OpenAI(
        model="gpt", base_url=f"{server.address}/v1", api_key="any", max_tokens=6, temperature=1.0, top_p=1.0, seed=3
    )
    expected = predictors["gpt"].generate("the old", max_new_tokens=6, top_p=1.0, seed=3).text
    assert made.invoke("the old") == expected
    assert "".join(made.stream("the old")) == expected


def test_langchains_hugging_face_embeddings(server: Server, mini: Model) -> None:
    made = client("langchain_huggingface").HuggingFaceEndpointEmbeddings(
        repo_id="firth/en", huggingfacehub_api_token="any"
    )
    # Since 1.2 it refuses addresses, but accepts a client created for one.
    made.client = client("huggingface_hub").InferenceClient(f"{server.address}/models/en/pipeline/feature-extraction")
    expected = mini.embed(TEXTS)
    np.testing.assert_allclose(made.embed_documents(TEXTS), expected, **CLOSE)
    np.testing.assert_allclose(made.embed_query(TEXTS[0]), expected[0], **CLOSE)


def test_langchains_hugging_face_endpoint(server: Server, predictors: dict[str, Any]) -> None:
    made = client("langchain_huggingface").HuggingFaceEndpoint(
        endpoint_url=f"{server.address}/models/gpt/pipeline/text-generation",
        huggingfacehub_api_token="any",
        max_new_tokens=6,
        do_sample=True,
        temperature=1.0,
        top_p=0.9,
        typical_p=None,  # the default is 0.95, which the server refuses
        seed=3,
    )
    assert made.invoke("the old") == predictors["gpt"].generate("the old", max_new_tokens=6, seed=3).text


def test_llama_index_as_client_of_tei(server: Server, mini: Model) -> None:
    module = client("llama_index.embeddings.text_embeddings_inference")
    made = module.TextEmbeddingsInference(model_name="en", base_url=f"{server.address}/models/en")
    expected = mini.embed(TEXTS)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(made.get_text_embedding_batch(TEXTS), expected, **CLOSE)
    np.testing.assert_allclose(made.get_query_embedding(TEXTS[0]), expected[0], **CLOSE)
    np.testing.assert_allclose(asyncio.run(made.aget_text_embedding_batch(TEXTS)), expected, **CLOSE)


def test_hugging_faces_client(server: Server, mini: Model, predictors: dict[str, Any]) -> None:
    asked = client("huggingface_hub").InferenceClient(server.address)
    found = asked.fill_mask("The capital of France is [MASK].", top_k=3)
    (blank,) = mini.fill_mask("The capital of France is [MASK].", top_k=3)
    assert [one.token_str for one in found] == [one.token for one in blank.candidates]
    named = client("huggingface_hub").InferenceClient(f"{server.address}/models/classify/pipeline/text-classification")
    (best, *_) = named.text_classification(TEXTS[0])
    (expected,) = predictors["classify"].predict(TEXTS[:1])
    assert best.label == expected.label and best.score == pytest.approx(expected.probability, abs=1e-5)


def test_hugging_faces_client_generates(server: Server, predictors: dict[str, Any]) -> None:
    asked = client("huggingface_hub").InferenceClient(f"{server.address}/models/gpt/pipeline/text-generation")
    expected = predictors["gpt"].generate("the old", max_new_tokens=6, seed=3).text
    assert asked.text_generation("the old", max_new_tokens=6, seed=3, return_full_text=False) == expected


def test_curl(server: Server, mini: Model, predictors: dict[str, Any]) -> None:
    def curl(path: str, body: Any) -> Any:
        command = ["curl", "--silent", "--fail", server.address + path, "-H", "content-type: application/json"]
        try:
            done = subprocess.run([*command, "-d", json.dumps(body)], capture_output=True, timeout=120, check=True)
        except FileNotFoundError:
            return pytest.skip("curl is not installed")
        return json.loads(done.stdout)

    np.testing.assert_allclose(curl("/embed", {"inputs": TEXTS, "normalize": False}), mini.embed(TEXTS), **CLOSE)
    (expected,) = predictors["classify"].predict(TEXTS[:1])
    scores = {one["label"]: one["score"] for one in curl("/models/classify/predict", {"inputs": TEXTS[0]})}
    assert scores == pytest.approx(expected.probabilities, abs=1e-5)
    assert next(iter(scores)) == expected.label


def test_sentence_transformers_computes_the_same_vectors(
    server: Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from firth.export.convert import convert

    oracle, folder = client("sentence_transformers"), tmp_path_factory.mktemp("oracle") / "st"
    convert("firth-mini-en", folder, "st")
    model = oracle.SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": "float32"})
    openai = client("openai")
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="any", max_retries=0) as asked:
        found = asked.embeddings.create(model="en", input=TEXTS)
    expected = model.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose([one.embedding for one in found.data], expected, **CLOSE)
