"""The server's counts of texts and answers."""

import math
from typing import Any

import pytest
from served import Client, Serve

from firth.serving.labels import entropy
from firth.tasks.predictions import Chosen, Labelled, Valued

# Two words missing from the tiny vocabulary.
UNKNOWN = "the ☃☃ river ☂"


def figures(text: str) -> dict[str, float]:
    """The samples in Prometheus's text format."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_unknown_words_of_an_open_vocabulary_are_counted(serve: Serve) -> None:
    async def work(client: Client) -> Any:
        await client.post("/embed", {"inputs": ["bank of the river", "zzz bank"]})
        return (await client.get("/metrics")).text

    found = figures(serve(work, "words"))
    assert found['firth_unknown_tokens_total{model="words"}'] == 3
    assert found['firth_model_tokens_total{model="words"}'] == 6


def test_unknown_words_and_entropy_are_counted_for_each_model(serve: Serve, predictors: dict[str, Any]) -> None:
    texts = ["the river", UNKNOWN]

    async def work(client: Client) -> Any:
        await client.post("/models/classify/predict", {"inputs": [[text] for text in texts]})
        for path in ("embed", "embed_all", "pipeline/feature-extraction"):
            await client.post(f"/models/masked/{path}", {"inputs": texts})
        await client.post("/models/masked/pipeline/fill-mask", {"inputs": f"[MASK] {UNKNOWN}"})
        return (await client.get("/metrics")).text

    found = figures(serve(work, "classify", "masked"))
    model = predictors["classify"]
    unknown = sum(token.id == model.loaded.tokenizer.unk_id for text in texts for token in model.tokenize(text))
    assert unknown >= 2
    assert found['firth_unknown_tokens_total{model="classify"}'] == unknown
    assert found['firth_unknown_tokens_total{model="masked"}'] == 4 * unknown
    special = model.loaded.layout.n_special
    tokens = sum(len(model.tokenize(text)) + special for text in texts)
    assert found['firth_model_tokens_total{model="classify"}'] == tokens
    shares = [list(one.probabilities.values()) for one in model.predict(texts)]
    expected = sum(-sum(p * math.log(p) for p in row) / math.log(len(row)) for row in shares)
    assert found['firth_answer_entropy_ratio_sum{model="classify"}'] == pytest.approx(expected, abs=1e-4)
    assert found['firth_answer_entropy_ratio_count{model="classify"}'] == 2
    assert 'firth_answer_entropy_ratio_count{model="masked"}' not in found


def test_entropy_is_a_share_of_the_highest() -> None:
    assert entropy(Labelled("a", 1.0, {"a": 1.0, "b": 0.0})) == 0
    assert entropy(Labelled("a", 0.5, {"a": 0.5, "b": 0.5})) == pytest.approx(1)
    assert entropy(Chosen(0, "x", (0.25, 0.25, 0.25, 0.25))) == pytest.approx(1)
    assert entropy(Labelled("a", 1.0, {"a": 1.0})) == 0
    assert entropy(Valued(3.0)) is None
