"""Routes of all protocols: answers equal the model's predictions, whoever shares the batch."""

import asyncio
import base64
import dataclasses
import json
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from served import Client, Serve
from tiny_language_models import LEFT_TO_RIGHT, tiny_language_model

from firth.baseline.config import JointConfig
from firth.baseline.fit import fit_tfidf
from firth.baseline.model import Baseline
from firth.folder import PRETRAINING, Loaded
from firth.inference.joint import Joint
from firth.inference.masks import MASK
from firth.inference.model import Model
from firth.models.config import GptConfig
from firth.models.gpt import Gpt
from firth.objectives.config import TiedLMConfig
from firth.objectives.next_token import TiedLM
from firth.serving import hosted as hosting
from firth.serving.config import Limits
from firth.serving.hosted import Hosted
from firth.serving.kserve import packed, unpack_strings
from firth.serving.refusals import RefusalError
from firth.serving.tei import relevant_label
from firth.tasks.config import ClassifyConfig, WindowConfig
from firth.tasks.table import TASKS
from firth.text.records import Text
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import BPE_SPECIALS, SPECIALS, WORDS

TEXTS = ["the river", "", "The old farmer walked to the river in the morning. " * 6, "강가에서 편지를 썼다.", "a"]
HEADERS = ("x-compute-tokens", "x-queue-time", "x-inference-time", "x-tokenization-time", "x-total-time")


def labels(found: Any) -> dict[str, float]:
    return {one["label"]: one["score"] for one in found}


def test_answers_are_the_models_own_whatever_shares_the_batch(serve: Serve, predictors: dict[str, Any]) -> None:
    async def work(client: Client) -> list[Any]:
        asked = [client.post("/predict", {"inputs": text}) for text in TEXTS for _ in range(6)]
        asked += [client.post("/predict", {"inputs": [[text] for text in TEXTS]})]
        return [(answer.status_code, answer.json()) for answer in await asyncio.gather(*asked)]

    found = serve(work, "classify")
    assert {status for status, _ in found} == {200}
    alone = [predictors["classify"].predict(text).probabilities for text in TEXTS]
    for number, (_, answer) in enumerate(found[:-1]):
        assert labels(answer) == pytest.approx(alone[number // 6], abs=1e-5)
        assert [one["score"] for one in answer] == sorted((one["score"] for one in answer), reverse=True)
    for answer, expected in zip(found[-1][1], alone, strict=True):
        assert labels(answer) == pytest.approx(expected, abs=1e-5)


def test_pairs_values_and_label_sets(serve: Serve, predictors: dict[str, Any]) -> None:
    async def work(client: Client) -> list[Any]:
        path = "/models/{}/predict"
        return [
            (await client.post(path.format("classify"), {"inputs": ["a river", "the winter"]})).json(),
            (await client.post(path.format("regress"), {"inputs": [["a", "b"], ["the river"]]})).json(),
            (await client.post(path.format("multilabel"), {"inputs": "the river"})).json(),
        ]

    pair, values, several = serve(work, "classify", "regress", "multilabel")
    assert labels(pair) == pytest.approx(predictors["classify"].predict(("a river", "the winter")).probabilities)
    expected = [one.value for one in predictors["regress"].predict([("a", "b"), "the river"])]
    assert [one[0]["score"] for one in values] == pytest.approx(expected, abs=1e-5)
    assert labels(several) == pytest.approx(predictors["multilabel"].predict("the river").probabilities)


@pytest.mark.parametrize(
    ("path", "inputs", "several"),
    [
        ("predict", ["a river", "the winter"], '{"inputs": [["first text"], ["second text"]]}'),
        ("predict", [["a", "b"], ["a river", "the winter"]], '{"inputs": [["first text"], ["second text"]]}'),
        (
            "pipeline/text-classification",
            {"text": "a river", "text_pair": "the winter"},
            '{"inputs": ["first text", "second text"]}',
        ),
    ],
)
def test_a_model_of_single_texts_refuses_a_pair_and_says_how_two_texts_are_written(
    serve: Serve, path: str, inputs: Any, several: str
) -> None:
    async def work(client: Client) -> Any:
        refused = await client.post(f"/models/single/{path}", {"inputs": inputs})
        written = await client.post(f"/models/single/{path}", json.loads(several))
        return refused, written, await client.post(f"/models/pairs/{path}", {"inputs": inputs})

    refused, written, of_pairs = serve(work, "single", "pairs")
    error = f"inputs: a pair of texts, and single reads single texts; write two texts as {several}"
    assert (refused.status_code, refused.json()["error"]) == (422, error)
    assert written.status_code == 200 and len(written.json()) == 2, "the error's own words are an answer's body"
    assert of_pairs.status_code == 200


def test_an_empty_text_is_compared_like_any_other(serve: Serve, predictors: dict[str, Any]) -> None:
    async def work(client: Client) -> Any:
        ranked = await client.post("/rerank", {"query": "a river", "texts": ["the winter", ""]})
        return ranked, await client.get("/v2/models/towers")

    ranked, about = serve(work, "towers")
    expected = [one.value for one in predictors["towers"].predict([("a river", "the winter"), ("a river", "")])]
    found = {one["index"]: one["score"] for one in ranked.json()}
    assert [found[0], found[1]] == pytest.approx(expected, abs=1e-6)
    assert ranked.headers["x-windows"] == "1", "the two texts of a pair are no windows"
    assert [tensor["name"] for tensor in about.json()["inputs"]] == ["text", "second"]


def test_a_choice_below_the_threshold_is_none_by_every_protocol(serve: Serve) -> None:
    item = {"question": "who?", "choices": ["a farmer", "a queen"]}
    tensor = {"name": "item", "shape": [1], "datatype": "BYTES", "data": [json.dumps(item)]}

    async def work(client: Client) -> Any:
        ours = await client.post("/multiple-choice", {"inputs": item})
        return ours.json(), (await client.post("/v2/models/choose/infer", {"inputs": [tensor]})).json()

    for threshold in (0.0, 1.1):
        ours, theirs = serve(work, "choose", threshold=threshold)
        prediction = json.loads(theirs["outputs"][0]["data"][0])
        assert (ours["choice"] is None, prediction["choice"] is None) == (threshold > 1, threshold > 1)
        assert (ours["label"], ours["scores"]) == (prediction["text"], pytest.approx(prediction["probabilities"]))


def test_equal_texts_have_a_cosine_of_one_at_most(serve: Serve) -> None:
    texts = ["a", "the river", "the old farmer", "walked", "a a", "the winter"]

    async def work(client: Client) -> Any:
        asked = [{"inputs": {"source_sentence": text, "sentences": [text]}} for text in texts]
        return [(await client.post("/similarity", one)).json()[0] for one in asked]

    assert serve(work, "masked") == pytest.approx([1.0] * len(texts), abs=1e-6)
    assert max(serve(work, "masked")) <= 1


def test_the_best_answer_is_the_first_of_several_and_may_be_asked_not_to_be_empty(
    serve: Serve, predictors: dict[str, Any]
) -> None:
    inputs = {"question": "the river", "context": "the old farmer walked to the river in winter"}
    refusing, no_refusal = predictors["answer"].loaded.objective, {"handle_impossible_answer": False}

    async def work(client: Client) -> Any:
        asked = [
            {"inputs": inputs, "parameters": one} for one in ({}, {"top_k": 3}, no_refusal, {"top_k": 3, **no_refusal})
        ]
        return [(await client.post("/question-answering", one)).json() for one in asked]

    config = refusing.config
    try:
        for threshold in (-1e9, 1e9):  # it always refuses, then never
            refusing.config = dataclasses.replace(config, threshold=threshold)
            best, several, answered, all_answered = serve(work, "answer")
            assert (best["answer"] == "") is (threshold < 0)
            assert several[0] == best and len(several) == 3
            assert answered["answer"] and all(one["answer"] for one in all_answered)
            assert all_answered[0] == answered
    finally:
        refusing.config = config


@pytest.mark.parametrize("model", ["towers", "pairs"])
@pytest.mark.parametrize(
    ("path", "inputs", "pair"),
    [
        ("/predict", "a river", '{"inputs": ["first text", "second text"]}'),
        ("/predict", [["a river", "the winter"], ["a river"]], '{"inputs": ["first text", "second text"]}'),
        (
            "/text-classification",
            ["a river", "the winter"],
            '{"inputs": {"text": "first text", "text_pair": "second text"}}',
        ),
    ],
)
def test_a_model_of_pairs_refuses_a_single_text_and_says_how_a_pair_is_written(
    serve: Serve, model: str, path: str, inputs: Any, pair: str
) -> None:
    async def work(client: Client) -> Any:
        return await client.post(path, {"inputs": inputs}), await client.post(path, json.loads(pair))

    refused, written = serve(work, model)
    error = f"inputs: a single text, and {model} reads pairs of texts; write a pair as {pair}"
    assert (refused.status_code, refused.json()["error"]) == (422, error)
    assert written.status_code == 200, "the error's own words are a body"


def test_info_says_which_models_read_two_texts_apart(serve: Serve) -> None:
    names = ["towers", "pairs", "masked", "tfidf"]

    async def work(client: Client) -> Any:
        return [(await client.get(f"/models/{name}/info")).json()["apart"] for name in names]

    assert serve(work, *names) == [True, False, False, False]


def test_a_joint_model_reads_what_its_baseline_does(predictors: dict[str, Any]) -> None:
    config = JointConfig(kind="classify", labels=("no", "yes"))
    joint = Joint(config, predictors["tfidf"].method, predictors["single"])
    hosted = Hosted("a", Path("a"), Baseline(joint))
    assert hosted.pairs is False and hosted.encoder is predictors["single"]
    assert Hosted("a", Path("a"), predictors["classify"]).pairs is None, "a folder that says nothing refuses nothing"


def test_a_joint_model_s_windows_are_rows_of_the_queue(predictors: dict[str, Any]) -> None:
    config = JointConfig(kind="classify", labels=("a", "b", "c"))
    texts = [Text("a good day", "a"), Text("a bad day", "b"), Text("good", "c"), Text("bad", "b")]
    tfidf = fit_tfidf("classify", config.labels, texts, [], lambda texts, answers: 0.0).model
    joint = Baseline(Joint(config, tfidf, predictors["classify"]))
    asked = ["a good day", "the old farmer " * 20]
    job = Hosted("a", Path("a"), joint).predict(asked)
    prepared = job.prepare()
    assert len(prepared.rows) > 3 and max(row.tokens for row in prepared.rows) <= 24
    found = prepared.answers(job.forward.run([row.work for row in prepared.rows]))
    for (_, answer), expected in zip(found, joint.predict(asked), strict=True):
        assert answer.probabilities == pytest.approx(expected.probabilities, abs=1e-6)
        assert answer.windows == expected.windows


def test_a_text_that_is_read_in_one_piece_is_limited(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "MOST_TOKENS", 8)

    async def work(client: Client) -> Any:
        long = "the old farmer " * 4
        wholes = [await client.post(f"/models/{name}/embed", {"inputs": long}) for name in ("mt", "masked")]
        return [*wholes, await client.post("/models/mt/embed", {"inputs": long, "truncate": True})]

    refused, in_windows, cut = serve(work, "mt", "masked")
    assert (
        refused.status_code == 422 and "mt reads a text in one piece, and this server reads at most 8" in refused.text
    )
    assert in_windows.status_code == 200
    assert cut.status_code == 200 and cut.headers["x-truncated"] == "true"


def test_a_model_of_single_texts_ranks_nothing(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        return await client.post("/rerank", {"query": "good", "texts": ["bad", "a day"]})

    answer = serve(work, "tfidf")
    assert answer.status_code == 400 and "expected a model for pairs" in answer.json()["error"]


def test_headers_tell_what_a_request_took(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        return await client.post("/predict", {"inputs": TEXTS[2]}, headers={"x-request-id": "mine"})

    answer = serve(work, "classify")
    assert all(answer.headers[name].isdigit() for name in HEADERS)
    assert answer.headers["x-request-id"] == "mine"
    assert int(answer.headers["x-windows"]) > 1 and answer.headers["x-truncated"] == "false"
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    assert answer.headers["x-compute-type"] == "cpu"


def test_the_windows_of_a_tagger_are_counted(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        return [await client.post("/token-classification", {"inputs": text}) for text in ("a1 b2", "a1 " * 200)]

    short, long = serve(work, "tag")
    assert short.headers["x-windows"] == "1" and int(long.headers["x-windows"]) > 1


def test_the_header_of_a_gpu_names_it(predictors: dict[str, Any]) -> None:
    on_gpu = dataclasses.replace(predictors["classify"], device=torch.device("cuda"))
    assert Hosted("a", Path("a"), on_gpu).compute_type == "gpu"
    assert Hosted("a", Path("a"), predictors["baseline"]).compute_type == "cpu"


def test_below_the_threshold_the_answer_is_null_with_its_score(serve: Serve, predictors: dict[str, Any]) -> None:
    async def work(client: Client) -> Any:
        return (await client.post("/predict", {"inputs": "the river"})).json()

    best = predictors["classify"].predict("the river").probability
    sure = serve(work, "classify", threshold=best - 1e-3)
    unsure = serve(work, "classify", threshold=best + 1e-3)
    assert sure[0]["label"] is not None
    assert unsure[0] == {"label": None, "score": pytest.approx(best, abs=1e-5)} and unsure[1:] == sure


def test_embeddings_of_tei_openai_and_hugging_face_agree(serve: Serve, predictors: dict[str, Any]) -> None:
    expected = predictors["masked"].embed(TEXTS)

    async def work(client: Client) -> Any:
        asked = (
            client.post("/embed", {"inputs": TEXTS, "normalize": False}),
            client.post("/embed", {"inputs": TEXTS}),
            client.post("/v1/embeddings", {"model": "masked", "input": TEXTS}),
            client.post("/v1/embeddings", {"model": "masked", "input": TEXTS, "encoding_format": "base64"}),
            client.post("/feature-extraction", {"inputs": TEXTS, "dimensions": len(expected[0])}),
            client.post("/feature-extraction", {"inputs": TEXTS, "dimensions": 1}),
            client.post("/similarity", {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS}}),
            client.post("/embed_all", {"inputs": TEXTS[:1]}),
        )
        return [answer.json() for answer in await asyncio.gather(*asked)]

    raw, unit, openai, coded, features, shorter, cosines, tokens = serve(work, "masked")
    assert "dimensions=1" in shorter["error"]
    np.testing.assert_allclose(raw, expected, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose([one["embedding"] for one in openai["data"]], unit, atol=1e-5)
    vectors = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in coded["data"]]
    np.testing.assert_allclose(vectors, unit, atol=1e-5)
    np.testing.assert_allclose(features, expected, atol=1e-5)
    np.testing.assert_allclose(cosines, np.array(unit) @ np.array(unit[0]), atol=1e-5)
    assert openai["usage"]["prompt_tokens"] > 0
    np.testing.assert_allclose(np.mean(tokens[0], 0), expected[0], atol=1e-5)


def test_token_ids_are_texts_too_where_they_are_expected(serve: Serve, predictors: dict[str, Any]) -> None:
    ids = predictors["masked"].loaded.tokenizer.encode("the river").ids

    async def work(client: Client) -> Any:
        texts = await client.post("/embed", {"inputs": "the river"})
        from_ids = await client.post("/embed", {"inputs": ids})
        openai = await client.post("/v1/embeddings", {"model": "masked", "input": ids})
        wrong = await client.post("/embed", {"inputs": [[10**9]]})
        return texts.json(), from_ids.json(), openai, wrong.status_code

    texts, from_ids, openai, wrong = serve(work, "masked")
    np.testing.assert_allclose(from_ids, texts, atol=1e-6)
    assert openai.status_code == 422 and "check_embedding_ctx_length=False" in openai.json()["error"]["message"]
    assert wrong == 422
    _, _, accepted, _ = serve(work, "masked", accept_ids=True)
    assert accepted.status_code == 200


def test_long_texts_are_cut_only_where_asked(serve: Serve, predictors: dict[str, Any]) -> None:
    text = "the river " * 60 + "before winter " * 60

    async def work(client: Client) -> Any:
        asked = [client.post("/embed", {"inputs": text, "normalize": False})]
        for direction in ("right", "left"):
            body = {"inputs": text, "normalize": False, "truncate": True, "truncation_direction": direction}
            asked.append(client.post("/embed", body))
        return await asyncio.gather(*asked)

    windows, right, left = serve(work, "masked")
    np.testing.assert_allclose(windows.json()[0], predictors["masked"].embed(text), atol=1e-5)
    assert [one.headers["x-truncated"] for one in (windows, right, left)] == ["false", "true", "true"]
    assert right.headers["x-windows"] == "1"
    assert np.abs(np.array(right.json()) - left.json()).max() > 1e-4


def test_tokens_and_back(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        tokens = (await client.post("/tokenize", {"inputs": "The river"})).json()[0]
        ids = [one["id"] for one in tokens]
        return tokens, (await client.post("/decode", {"ids": ids})).json()

    tokens, decoded = serve(work, "masked")
    assert decoded == ["The river"]
    assert [one["special"] for one in tokens] == [True, *[False] * (len(tokens) - 2), True]
    assert tokens[1]["start"] == 0 and tokens[-2]["stop"] == len("The river")


def test_ranks_texts_for_a_query(serve: Serve, predictors: dict[str, Any]) -> None:
    texts = ["the river", "winter", "강가에서"]

    async def work(client: Client) -> Any:
        return (await client.post("/rerank", {"query": "who", "texts": texts, "return_text": True})).json()

    found = serve(work, "regress")
    values = [one.value for one in predictors["regress"].predict([("who", text) for text in texts])]
    assert [one["score"] for one in found] == pytest.approx(sorted(values, reverse=True), abs=1e-5)
    assert all(one["text"] == texts[one["index"]] for one in found)


@pytest.mark.parametrize(
    ("labels", "relevant"),
    [
        (("entailment", "not_entailment"), "entailment"),
        (("not_duplicate", "duplicate"), "duplicate"),
        (("0", "1"), "1"),
        (("No", "Yes"), "Yes"),
        (("match", "no match"), "match"),
        (("bad", "good"), None),
        (("not", "other"), None),
    ],
)
def test_the_relevant_one_of_two_labels_is_told_by_their_names(labels: tuple[str, str], relevant: str | None) -> None:
    assert relevant_label(labels) == relevant_label(labels[::-1]) == relevant


@pytest.mark.parametrize("labels", [("entailment", "not_entailment"), ("bad", "good")])
def test_texts_are_ranked_by_the_relevant_label_or_not_at_all(
    serve: Serve, predictors: dict[str, Any], monkeypatch: pytest.MonkeyPatch, labels: tuple[str, str]
) -> None:
    torch.manual_seed(0)
    encoder = predictors["masked"].loaded.objective.encoder
    learnt = TASKS["classify"].model(encoder, ClassifyConfig(labels=labels, windows=WindowConfig(length=24)))
    learnt.head.weight.data.mul_(50)
    loaded = dataclasses.replace(predictors["pairs"].loaded, objective=learnt.eval())
    model = dataclasses.replace(predictors["pairs"], loaded=loaded)
    monkeypatch.setitem(predictors, "ranks", model)
    texts = ["the river", "winter", "강가에서"]

    async def work(client: Client) -> Any:
        return await client.post("/rerank", {"query": "who", "texts": texts})

    answer = serve(work, "ranks")
    if "entailment" not in labels:
        assert answer.status_code == 400 and "bad and good" in answer.json()["error"]
        return
    of_pairs = model.predict([("who", text) for text in texts])
    expected = sorted((one.probabilities["entailment"] for one in of_pairs), reverse=True)
    assert [one["score"] for one in answer.json()] == pytest.approx(expected, abs=1e-5)


def test_hugging_faces_tasks(serve: Serve, predictors: dict[str, Any]) -> None:
    sentence, question = "The old farmer walked.", {"question": "Who?", "context": "The old farmer walked."}
    choice = {"text": "winter", "question": "how?", "choices": ["cold", "warm"]}

    async def work(client: Client) -> Any:
        asked = (
            client.post("/", {"inputs": "the river"}),
            client.post("/models/tag/pipeline/token-classification", {"inputs": sentence}),
            client.post("/models/answer/pipeline/question-answering", {"inputs": question}),
            client.post("/models/choose/pipeline/multiple-choice", {"inputs": choice}),
            client.post("/models/masked/pipeline/fill-mask", {"inputs": f"the {MASK} is {MASK}"}),
            client.post("/models/baseline/pipeline/token-classification", {"inputs": "The farmer"}),
            client.post("/models/plain-tags/pipeline/token-classification", {"inputs": "The farmer"}),
            client.post(
                "/models/classify/pipeline/text-classification",
                {"inputs": [{"text": "a", "text_pair": "b"}], "parameters": {"top_k": 1}},
            ),
        )
        return [answer.json() for answer in await asyncio.gather(*asked)]

    root, tagged, answered, chosen, masked, baseline, plain, pair = serve(
        work, "classify", "tag", "answer", "choose", "masked", "baseline", "plain-tags"
    )
    assert labels(root[0]) == pytest.approx(predictors["classify"].predict("the river").probabilities, abs=1e-5)
    entities = predictors["tag"].predict(sentence).entities
    assert [(e["entity_group"], e["word"], e["start"]) for e in tagged] == [
        (e.label, e.text, e.start) for e in entities
    ]
    best = predictors["answer"].predict(question)
    assert (answered["answer"], answered["start"], answered["end"]) == (best.text, best.start, best.end)
    expected = predictors["choose"].predict(choice)
    assert chosen["choice"] == expected.choice and chosen["label"] == choice["choices"][expected.choice]
    assert chosen["scores"] == pytest.approx(expected.probabilities, abs=1e-5)
    blanks = predictors["masked"].fill_mask(f"the {MASK} is {MASK}")
    assert [[one["token_str"] for one in mask] for mask in masked] == [[c.token for c in b.candidates] for b in blanks]
    pieces = predictors["masked"].loaded.tokenizer.pieces
    assert all(pieces[one["token"]] == one["token_str"] for mask in masked for one in mask)
    assert baseline == [{"entity_group": "X", "score": 1.0, "word": "farmer", "start": 4, "end": 10}]
    # Tags that mark no entities are those of words, O among them.
    assert [(one["entity_group"], one["word"]) for one in plain] == [("O", "The"), ("X", "farmer")]
    assert len(pair) == 1 and len(pair[0]) == 1


def test_generation_is_the_models_own_and_equal_requests_get_equal_texts(
    serve: Serve, predictors: dict[str, Any]
) -> None:
    async def work(client: Client) -> Any:
        body = {"model": "gpt", "prompt": ["the old", "the old"], "max_tokens": 6, "seed": 3}
        asked = [client.post("/v1/completions", body) for _ in range(3)]
        asked.append(client.post("/models/classify/predict", {"inputs": "the river"}))
        parameters = {"max_new_tokens": 6, "do_sample": False, "return_full_text": False}
        asked.append(client.post("/text-generation", {"inputs": "the old", "parameters": parameters}))
        stream = await client.post("/v1/completions", {**body, "prompt": "the old", "stream": True})
        answers = await asyncio.gather(*asked)
        assert all(answers[at].headers[name].isdigit() for at in (0, -1) for name in HEADERS)
        assert [answers[at].headers["x-compute-tokens"] for at in (0, -1)] == ["4", "2"], "the tokens of the prompts"
        return [one.json() for one in answers], stream.text

    (*sampled, _, greedy), stream = serve(work, "gpt", "classify")
    model: Model = predictors["gpt"]
    own = model.generate("the old", max_new_tokens=6, top_p=1.0, seed=3).text
    texts = [choice["text"] for answer in sampled for choice in answer["choices"]]
    assert texts == [own] * 6
    assert greedy == [{"generated_text": model.generate("the old", how="greedy", max_new_tokens=6).text}]
    events = [line.removeprefix("data: ") for line in stream.split("\n") if line]
    assert events[-1] == "[DONE]"
    parts = [json.loads(event)["choices"][0] for event in events[:-1]]
    assert "".join(part["text"] for part in parts) == own
    assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["length"]


@pytest.mark.parametrize("name", LEFT_TO_RIGHT)
def test_all_that_the_verb_continues_is_continued_here(
    serve: Serve, predictors: dict[str, Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    model = tiny_language_model(name)
    monkeypatch.setitem(predictors, "lm", model)

    async def work(client: Client) -> Any:
        parameters = {"max_new_tokens": 6, "do_sample": False, "return_full_text": False}
        whole = await client.post("/text-generation", {"inputs": "a1 b2", "parameters": parameters})
        body = {"model": "lm", "prompt": "a1 b2", "max_tokens": 6, "temperature": 0, "stream": True}
        return whole, await client.post("/v1/completions", body)

    whole, stream = serve(work, "lm")
    if name.endswith("backward"):
        assert whole.status_code == stream.status_code == 400 and "lm cannot generate" in whole.json()["error"]
        return
    own = model.generate("a1 b2", how="greedy", max_new_tokens=6).text
    assert whole.json() == [{"generated_text": own}]
    events = [json.loads(line.removeprefix("data: ")) for line in stream.text.split("\n") if line.startswith("data: {")]
    parts = [event["choices"][0]["text"] for event in events]
    assert "".join(parts) == own and len(parts) > 2


def _tokenizer(kind: str, folder: Path) -> Tokenizer:
    """A tokenizer of a kind, covering all ways in which its tokens join; none knows 漢."""
    if kind == "WordPiece":
        return Tokenizer.from_vocab([*SPECIALS, *"ab.'", "##a", "##가", "강", "'s", "n't"], lowercase=True)
    if kind == "BPE":
        return Tokenizer.from_merges([*BPE_SPECIALS, "▁", *"ab강", "▁a"], [("▁", "a")], lowercase=True)
    if kind == "words":
        return Tokenizer.from_words([*WORDS.specials, *"ab.강"], lowercase=True)
    pieces = ["<unk>", *"ab강", "a</w>", "b</w>", "강</w>", "ab</w>"]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}), "utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\na b</w>\n", "utf-8")
    return Tokenizer.load(folder)


@pytest.mark.parametrize("kind", ["WordPiece", "BPE", "words", "OpenAI GPT"])
def test_streamed_parts_join_to_the_text_and_the_prompt_is_not_written_again_for_each(
    serve: Serve, predictors: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    tokenizer = _tokenizer(kind, tmp_path)
    torch.manual_seed(0)
    config = GptConfig(vocab_size=tokenizer.size, width=16, n_layers=1, n_heads=2, max_positions=64)
    gpt = TiedLM(Gpt(config), TiedLMConfig()).eval()
    model = Model(Loaded("gpt", PRETRAINING, gpt, tokenizer), torch.device("cpu"))
    monkeypatch.setitem(predictors, "lm", model)
    prompts, decode, written = ["a b 강 a b 강 a", "a b 漢 漢", "漢", "A."], Tokenizer.decode, list[int]()
    own = [model.generate(prompt, max_new_tokens=24, top_p=1.0, seed=5).text for prompt in prompts]

    def noted(self: Tokenizer, ids: Sequence[int]) -> str:
        if threading.current_thread() is threading.main_thread():
            written.append(len(ids))
        return decode(self, ids)

    async def work(client: Client) -> list[str]:
        body = {"model": "lm", "max_tokens": 24, "seed": 5, "stream": True}
        return [(await client.post("/v1/completions", {**body, "prompt": prompt})).text for prompt in prompts]

    monkeypatch.setattr(Tokenizer, "decode", noted)
    for text, stream in zip(own, serve(work, "lm"), strict=True):
        events = [json.loads(line[6:]) for line in stream.split("\n") if line.startswith("data: {")]
        parts = [event["choices"][0]["text"] for event in events]
        assert "".join(parts) == text and len(parts) > 12
    assert max(written) <= 4


def test_a_model_without_its_head_does_not_generate(predictors: dict[str, Any]) -> None:
    loaded = predictors["gpt"].loaded
    headless = dataclasses.replace(predictors["gpt"], loaded=dataclasses.replace(loaded, untrained=("lm",)))
    assert "generate" in Hosted("a", Path("a"), predictors["gpt"]).abilities
    assert "generate" not in Hosted("a", Path("a"), headless).abilities


def test_vectors_of_more_tokens_than_an_answer_has_room_for_are_refused(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        n = len((await client.post("/tokenize", {"inputs": "the river"})).json()[0])
        client.state.limits = Limits(vector_numbers=n * 32)
        answers = [await client.post("/embed_all", {"inputs": inputs}) for inputs in ("the river", ["the river"] * 2)]
        return answers, client.state.engine.waiting()

    (fits, refused), waiting = serve(work, "masked")
    assert fits.status_code == 200 and refused.status_code == 422 and waiting == (0, 0)
    assert "at most" in refused.json()["error"] and "shorter texts" in refused.json()["error"]


def test_candidates_that_an_answer_has_no_room_for_are_refused(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        client.state.limits = Limits(candidate_characters=2 * 3 * len("a [MASK] [MASK]"))
        body = {"inputs": "a [MASK] [MASK]"}
        answers = [await client.post("/fill-mask", {**body, "parameters": {"top_k": n}}) for n in (3, 4)]
        return answers, client.state.engine.waiting()

    (fits, refused), waiting = serve(work, "masked")
    assert fits.status_code == 200 and refused.status_code == 422 and waiting == (0, 0)
    assert "ask for fewer" in refused.json()["error"]


def test_texts_to_tokenize_are_limited_together(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        client.state.limits = Limits(characters=20)
        return [await client.post("/tokenize", {"inputs": ["the river!"] * n}) for n in (2, 3)]

    fits, refused = serve(work, "masked")
    assert fits.status_code == 200 and refused.status_code == 422
    assert "texts of 30 characters; this server splits at most 20" in refused.json()["error"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_answered_by_one_model_even_if_another_is_loaded_meanwhile(
    serve: Serve, predictors: dict[str, Any], monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    torch.manual_seed(1)
    other = TiedLM(Gpt(predictors["gpt"].loaded.objective.encoder.config), TiedLMConfig()).eval()
    loaded = dataclasses.replace(predictors["gpt"].loaded, objective=other)
    later = Hosted("gpt", Path("gpt"), dataclasses.replace(predictors["gpt"], loaded=loaded))
    own = predictors["gpt"].generate("the old", how="greedy", max_new_tokens=4).text
    assert later.model.generate("the old", how="greedy", max_new_tokens=4).text != own

    async def work(client: Client) -> str:
        search = client.state.engine.search

        async def swapping(*given: Any) -> Any:
            found = await search(*given)
            client.state.models["gpt"] = later
            return found

        monkeypatch.setattr(client.state.engine, "search", swapping)
        body = {"model": "gpt", "prompt": ["the old"] * 2, "max_tokens": 4, "temperature": 0, "stream": stream}
        return (await client.post("/v1/completions", body)).text

    text = serve(work, "gpt")
    events = [json.loads(line.removeprefix("data: ")) for line in text.split("\n") if "choices" in line]
    parts = [(choice["index"], choice["text"]) for event in events for choice in event["choices"]]
    assert ["".join(part for index, part in parts if index == n) for n in (0, 1)] == [own, own]


def test_tags_are_those_of_the_model_that_was_asked(
    serve: Serve, predictors: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(client: Client) -> int:
        ask = client.state.engine.ask

        async def swapping(*given: Any) -> Any:
            found = await ask(*given)
            client.state.models["tag"] = client.state.models["classify"]
            return found

        monkeypatch.setattr(client.state.engine, "ask", swapping)
        return int((await client.post("/models/tag/pipeline/token-classification", {"inputs": "the old"})).status_code)

    assert serve(work, "classify", "tag") == 200


def test_translation_is_the_models_own(serve: Serve, predictors: dict[str, Any]) -> None:
    async def work(client: Client) -> Any:
        return (await client.post("/translation", {"inputs": ["the river", "winter"]})).json()

    expected = predictors["mt"].translate(["the river", "winter"])
    assert [one["translation_text"] for one in serve(work, "mt")] == expected


@pytest.mark.parametrize("binary", [False, True])
def test_tensors_of_kserve(serve: Serve, predictors: dict[str, Any], binary: bool) -> None:
    blob = packed(TEXTS)
    tensor: dict[str, Any] = {"name": "text", "shape": [len(TEXTS)], "datatype": "BYTES"}
    tensor |= {"parameters": {"binary_data_size": len(blob)}} if binary else {"data": TEXTS}
    outputs = [{"name": n, "parameters": {"binary_data": binary}} for n in ("label", "probabilities")]
    head = orjson.dumps({"id": "7", "inputs": [tensor], "outputs": outputs})

    async def work(client: Client) -> Any:
        headers = {"inference-header-content-length": str(len(head))} if binary else {}
        content = head + (blob if binary else b"")
        return await client.post("/v2/models/classify/infer", content=content, headers=headers)

    answer = serve(work, "classify")
    assert answer.status_code == 200, answer.text
    expected = predictors["classify"].predict(TEXTS)
    if binary:
        size = int(answer.headers["inference-header-content-length"])
        found, rest = json.loads(answer.content[:size]), memoryview(answer.content)[size:]
        sizes = [output["parameters"]["binary_data_size"] for output in found["outputs"]]
        texts = unpack_strings(rest[: sizes[0]], 1 << 20)
        shares = np.frombuffer(rest[sizes[0] :], "<f4").reshape(found["outputs"][1]["shape"])
    else:
        found = answer.json()
        texts = found["outputs"][0]["data"]
        shares = np.reshape(found["outputs"][1]["data"], found["outputs"][1]["shape"])
    assert found["id"] == "7" and texts == [one.label for one in expected]
    np.testing.assert_allclose(shares, [list(one.probabilities.values()) for one in expected], atol=1e-5)


@pytest.mark.parametrize(
    ("all_binary", "own", "is_binary"), [(True, None, True), (True, False, False), (False, True, True)]
)
def test_an_output_of_kserve_has_its_own_form_or_that_of_all(
    serve: Serve, all_binary: bool, own: bool | None, is_binary: bool
) -> None:
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["the river"]}
    output = {"name": "label"} if own is None else {"name": "label", "parameters": {"binary_data": own}}
    body = {"inputs": [tensor], "outputs": [output], "parameters": {"binary_data_output": all_binary}}

    async def work(client: Client) -> Any:
        return await client.post("/v2/models/classify/infer", body)

    answer = serve(work, "classify")
    assert answer.status_code == 200 and ("inference-header-content-length" in answer.headers) is is_binary


def test_tensors_of_kserve_may_have_a_list_for_each_row(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        tensor = {"name": "text", "datatype": "BYTES"}
        forms = [([2], ["a", "b"]), ([2, 1], ["a", "b"]), ([2, 1], [["a"], ["b"]]), ([1, 2], [["a", "b"]])]
        asked = [{"inputs": [tensor | {"shape": shape, "data": data}]} for shape, data in forms]
        return [(await client.post("/v2/models/classify/infer", body)).json()["outputs"] for body in asked]

    first, *others = serve(work, "classify")
    assert others == [first] * 3


def test_a_bytes_tensor_is_lengths_and_texts() -> None:
    assert packed(["a", "강"]) == struct.pack("<I", 1) + b"a" + struct.pack("<I", 3) + "강".encode()
    assert unpack_strings(memoryview(packed(["a", "", "강"])), 3) == ["a", "", "강"]
    with pytest.raises(RefusalError, match="more elements than its shape: 2"):
        unpack_strings(memoryview(packed(["a", "", "강"])), 2)


def test_every_kind_is_described_by_kserve_and_answers_what_it_describes(serve: Serve) -> None:
    names = ("classify", "multilabel", "regress", "tag", "answer", "choose", "masked", "baseline")
    texts = {"item": '{"text": "a", "choices": ["b", "c"]}'}

    async def work(client: Client) -> None:
        for name in names:
            about = (await client.get(f"/v2/models/{name}")).json()
            inputs = [
                {"name": one["name"], "shape": [1], "datatype": "BYTES", "data": [texts.get(one["name"], "the river")]}
                for one in about["inputs"]
            ]
            answer = await client.post(f"/v2/models/{name}/infer", {"inputs": inputs})
            assert answer.status_code == 200, answer.text
            assert [(o["name"], o["datatype"]) for o in answer.json()["outputs"]] == [
                (o["name"], o["datatype"]) for o in about["outputs"]
            ]
            # The model's version may be given in the path.
            assert about["versions"] == [answer.json()["model_version"]]
            versioned = f"/v2/models/{name}/versions/{about['versions'][0]}"
            assert (await client.get(versioned)).json() == about
            assert (await client.get(f"{versioned}/ready")).json()["ready"]
            again = await client.post(f"{versioned}/infer", {"inputs": inputs})
            assert again.json()["outputs"] == answer.json()["outputs"]

    serve(work, *names)


def test_attention_weights_are_the_models_own(serve: Serve, predictors: dict[str, Any]) -> None:
    async def work(client: Client) -> Any:
        return (await client.post("/attention", {"inputs": "the river", "second": "winter"})).json()

    found = serve(work, "masked")
    expected = predictors["masked"].attention("the river", "winter")
    levels = np.frombuffer(base64.b64decode(found["weights"]), np.uint8).reshape(found["shape"])
    assert found["tokens"] == expected.tokens
    np.testing.assert_allclose(levels / 255, expected.weights, atol=0.5 / 255 + 1e-6)


def test_answers_in_int8_do_not_depend_on_strangers_texts(serve: Serve, predictors: dict[str, Any]) -> None:
    """Each token has a scale of its own: the only difference left is the rounding of sums in another order."""

    async def work(client: Client) -> list[Any]:
        together = await asyncio.gather(*[client.post("/predict", {"inputs": text}) for text in TEXTS * 3])
        alone = [await client.post("/predict", {"inputs": text}) for text in TEXTS]
        return [one.json() for one in together], [one.json() for one in alone]

    together, alone = serve(work, "classify", precision="int8")
    for one, other in zip(together, alone * 3, strict=True):
        assert [x["label"] for x in one] == [x["label"] for x in other]
        assert [x["score"] for x in one] == pytest.approx([x["score"] for x in other], abs=2e-3)


def test_lists_models_and_describes_itself(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        paths = ("/v1/models", "/v1/models/masked", "/info", "/models/masked/info", "/openapi.json", "/v2", "/metrics")
        return [await client.get(path) for path in paths]

    models, model, info, other, document, server, metrics = serve(work, "classify", "masked")
    assert [one["id"] for one in models.json()["data"]] == ["classify", "masked"]
    assert model.json()["id"] == "masked"
    assert info.json()["abilities"] == ["attention", "embed", "predict"]
    assert other.json()["abilities"] == ["attention", "embed", "fill-mask", "follow"]
    assert {"/predict", "/v1/embeddings", "/v2/models/{model}/infer"} <= set(document.json()["paths"])
    assert server.json()["extensions"] == ["binary_tensor_data"]
    assert "firth_queued_tokens 0.0" in metrics.text
