"""Small models of every kind, served in this process."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from served import Client, Serve
from vector_files import write_text

from firth.baseline.config import CommonestTagConfig
from firth.baseline.fit import fit_tfidf
from firth.baseline.model import Baseline
from firth.baseline.tags import fit_commonest_tag
from firth.folder import PRETRAINING, Loaded, read_model
from firth.inference.loading import load
from firth.inference.model import Model
from firth.models.config import GptConfig, TransformerConfig
from firth.models.gpt import Gpt
from firth.models.transformer import TransformerEncoder
from firth.objectives.config import TiedLMConfig, TranslationConfig
from firth.objectives.next_token import TiedLM
from firth.objectives.translation import Translation
from firth.serving.access import Access
from firth.serving.asking import ServerState
from firth.serving.config import Limits
from firth.serving.engine import Engine
from firth.serving.hosted import Hosted
from firth.serving.metrics import Metrics
from firth.tasks.config import (
    AnswerConfig,
    ChooseConfig,
    ClassifyConfig,
    MultiLabelConfig,
    RegressConfig,
    TagConfig,
    TowersConfig,
    WindowConfig,
)
from firth.tasks.items import words_of
from firth.tasks.table import TASKS
from firth.text.records import Tagged, Text
from firth.vectors.folder import convert_vectors

T = TypeVar("T")
# Tests that need a running server, clients of other projects or a browser: make test-serve.
collect_ignore = ["real"]
# Tests must not fail because a busy machine makes the server refuse, time out, or divide a request into batches, which
# changes the last bit of its answers.
PATIENT = Limits(timeout_ms=600_000, max_queue_ms=600_000, slice_ms=600_000)
OPTIONS: dict[str, Any] = {
    "classify": ClassifyConfig(labels=("a", "b", "c"), windows=WindowConfig(length=24)),
    "multilabel": MultiLabelConfig(labels=("a", "b")),
    "regress": RegressConfig(lowest=0.0, highest=5.0),
    "tag": TagConfig(labels=("O", "B-X", "I-X")),
    "answer": AnswerConfig(can_refuse=True, max_question=16),
    "choose": ChooseConfig(),
}


WORDS = [
    (b"bank", [1.0, 0.1, 0.0]),
    (b"river", [0.9, 0.4, 0.1]),
    (b"money", [0.5, -0.8, 0.2]),
    ("배".encode(), [0.1, 0.2, 1.0]),
    ("물".encode(), [0.2, 0.5, 0.8]),
]


def _learnt(base: Loaded, kind: str, seed: int, **facts: Any) -> Model:
    torch.manual_seed(seed)
    model = TASKS[kind].model(base.objective.encoder, OPTIONS[kind])
    model.head.weight.data.mul_(50)  # answers that differ from one another
    return Model(Loaded(base.system_name, kind, model.eval(), base.tokenizer, facts), torch.device("cpu"))


@pytest.fixture(scope="session")
def predictors(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model | Baseline]:
    """A model for each kind of task, masks, generation and translation, one of word vectors, and a baseline."""
    base, cpu = read_model(tiny_run), torch.device("cpu")
    found: dict[str, Model | Baseline] = {kind: _learnt(base, kind, n) for n, kind in enumerate(OPTIONS)}
    found["single"] = _learnt(base, "classify", 0, pairs=False)
    found["pairs"] = _learnt(base, "classify", 0, pairs=True)
    options = RegressConfig(network=TowersConfig(), windows=WindowConfig(length=24, long="cut"))
    towers = TASKS["regress"].model(base.objective.encoder, options)
    found["towers"] = Model(Loaded(base.system_name, "regress", towers.eval(), base.tokenizer), cpu)
    base.objective.eval()
    found["masked"] = Model(base, cpu)
    size = base.tokenizer.size
    torch.manual_seed(7)
    gpt = TiedLM(Gpt(GptConfig(vocab_size=size, width=32, n_layers=2, n_heads=4, max_positions=64)), TiedLMConfig())
    found["gpt"] = Model(Loaded("gpt", PRETRAINING, gpt.eval(), base.tokenizer), cpu)
    sizes = TransformerConfig(vocab_size=size, width=32, n_layers=1, n_heads=2, feed_forward_width=64)
    translation = Translation(TransformerEncoder(sizes), TranslationConfig())
    found["mt"] = Model(Loaded("transformer", PRETRAINING, translation.eval(), base.tokenizer), cpu)
    place = tmp_path_factory.mktemp("words")
    convert_vectors(write_text(place / "vectors.txt", WORDS), place / "model")
    found["words"] = load(place / "model", device="cpu")
    text = words_of("The old farmer", "word")
    records = [Tagged(text.text, text.spans, ("O", "O", "B-X"))]
    found["baseline"] = Baseline(fit_commonest_tag(records, CommonestTagConfig(labels=("O", "B-X", "I-X"))))
    plain = [Tagged(text.text, text.spans, ("O", "O", "X"))]
    found["plain-tags"] = Baseline(fit_commonest_tag(plain, CommonestTagConfig(labels=("O", "X"), scheme="plain")))
    single = [Text("a good day", "yes"), Text("a bad day", "no"), Text("good", "yes"), Text("bad", "no")]
    found["tfidf"] = Baseline(fit_tfidf("classify", ("no", "yes"), single, [], lambda texts, answers: 0.0).model)
    return found


@pytest.fixture
def serve(predictors: dict[str, Model | Baseline]) -> Iterator[Serve]:
    """``serve(work, "classify", …)`` runs ``work(client)`` on a server of these models, and returns its result."""
    engines: list[Engine] = []

    def run(
        work: Callable[[Client], Awaitable[T]],
        *names: str,
        limits: Limits | None = None,
        access: Access | None = None,
        threshold: float = 0.0,
        precision: str = "float32",
        accept_ids: bool = False,
    ) -> T:
        chosen = limits or PATIENT
        hosted = {n: Hosted(n, Path(n), predictors[n], threshold, precision) for n in names or ("classify",)}
        state = ServerState(hosted, Engine(chosen, Metrics()), chosen, accept_ids, started=True)
        state.engine.start()
        engines.append(state.engine)

        async def within() -> T:
            client = Client(state, access or Access())
            async with client.http:
                return await work(client)

        return asyncio.run(within())

    yield run
    for engine in engines:
        engine.stop()
