"""Streaming vectors and answers takes memory for what is in flight, not for all that has been processed."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from firth.folder import Loaded, read_model
from firth.inference.model import Model
from firth.tasks.classify import Classifier
from firth.tasks.config import ClassifyConfig, TagConfig
from firth.tasks.tag import Tagger

pytestmark = pytest.mark.unchecked

AT_ONCE, ROUNDS = 50, 8
# Bytes: less than half of the size of a text here.
MOST = 100


@pytest.fixture(scope="module")
def models(tiny_run: Path) -> dict[str, Model]:
    base = read_model(tiny_run)
    heads = {
        "classify": Classifier(base.objective.encoder, ClassifyConfig(labels=("a", "b"))),
        "tag": Tagger(base.objective.encoder, TagConfig(labels=("O", "B-X", "I-X"))),
    }
    loaded = {kind: Loaded("bert", kind, head.eval(), base.tokenizer) for kind, head in heads.items()}
    return {kind: Model(one, torch.device("cpu")) for kind, one in (loaded | {"pretraining": base}).items()}


def texts() -> Iterator[str]:
    """Different texts of equal length: no result can be reused for the next one."""
    return (f"farmer {i:06d} {'x' * 200}" for i in range(10_000))


STREAMS: dict[str, Callable[[dict[str, Model]], Iterator[Any]]] = {
    "embed": lambda models: models["pretraining"].embed_stream(texts(), at_once=AT_ONCE),
    "classify": lambda models: models["classify"].predict_stream(texts(), at_once=AT_ONCE),
    "tag": lambda models: models["tag"].predict_stream(texts(), at_once=AT_ONCE),
}


def growth(stream: Iterator[Any]) -> float:
    """Bytes per additional text, in the best of several rounds: a one-time allocation shows in only one of them."""
    held = []
    tracemalloc.start()
    try:
        for _ in range(4):
            for _ in range(ROUNDS * AT_ONCE):
                next(stream)
            gc.collect()  # also clears the freed tuples that Python keeps for reuse
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    return min(after - before for before, after in pairwise(held)) / (ROUNDS * AT_ONCE)


@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_takes_no_more_memory_as_it_goes_on(models: dict[str, Model], stream: str) -> None:
    assert growth(STREAMS[stream](models)) < MOST


def test_a_text_that_is_kept_would_show(models: dict[str, Model]) -> None:
    kept: list[str] = []

    def keeping() -> Iterator[str]:
        for text in texts():
            kept.append(text)
            yield text

    assert growth(models["pretraining"].embed_stream(keeping(), at_once=AT_ONCE)) > MOST
    assert len(kept) == 4 * ROUNDS * AT_ONCE
