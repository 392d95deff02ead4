"""Fixtures for all tests."""

import gc
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
from hypothesis import settings

# The default deadline of 200 ms per example is a timing assertion, which fails on a busy machine.
settings.register_profile("firth", deadline=None)
settings.load_profile("firth")
# No test depends on surviving a power cut, and each of the tens of thousands of fsync calls takes milliseconds.
os.fsync = lambda file: None
# Modules and tests live to the end. pytest_collection_finish exempts them from garbage collection, which would
# otherwise traverse them in every full pass: 0.3 s each.
gc.disable()
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # tests that import onnxruntime themselves send nothing either


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the repository; tests that need it are skipped without it."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the shared data folder is not beside the repository")
    return folder


# The end-to-end pipeline in miniature, run once per session: text -> vocabulary -> corpus -> run.
# Tests read these folders and must not change them; a test that needs to change one makes a copy.

TINY_RECIPE: dict[str, Any] = {
    "model": "bert-tiny",
    "encoder": {"width": 32, "n_layers": 2, "n_heads": 2, "feed_forward_width": 64, "max_positions": 64},
    "data": {"length": 32},
    "optim": {"learning_rate": 1e-3, "warmup_share": 0.25},
    "train": {
        "steps": 20,
        "batch_tokens": 256,
        "log_every": 5,
        "eval_every": 10,
        "save_every": 10,
        "precision": "float32",
    },
}

_WORDS = {
    "who": "the old farmer|a young doctor|our teacher|the captain|a small child|the queen|my neighbour|the baker",
    "does": "walked to|looked at|wrote about|waited near|painted|returned to|never forgot|dreamed of",
    "what": "the river|a green hill|the market|an empty house|the harbour|the long road|a quiet garden|the mill",
    "when": "in the morning|before winter|after the war|every Sunday|at midnight|last summer|for nine days",
    "누가": "늙은 농부는|젊은 의사는|우리 선생님은|작은 아이는|선장은",
    "어디": "강가에서|시장에서|빈 집에서|조용한 정원에서|항구에서",
    "무엇": "편지를 썼다|그림을 그렸다|친구를 기다렸다|노래를 불렀다|빵을 먹었다",
}
_CHOICES = {name: words.split("|") for name, words in _WORDS.items()}


def _sentence(rng: random.Random, korean: bool) -> str:
    if korean:
        return " ".join(rng.choice(_CHOICES[name]) for name in ("누가", "어디", "무엇")) + "."
    words = " ".join(rng.choice(_CHOICES[name]) for name in ("who", "does", "what", "when"))
    return words[0].upper() + words[1:] + rng.choice(".....?!")


def _documents(n_documents: int, seed: int) -> Iterator[str]:
    """Every fourth document is Korean; paragraphs have one to four sentences."""
    rng = random.Random(seed)
    for number in range(n_documents):
        sentences = [_sentence(rng, korean=number % 4 == 3) for _ in range(rng.randint(8, 20))]
        lines = []
        while sentences:
            n = rng.randint(1, 4)
            lines.append(" ".join(sentences[:n]))
            del sentences[:n]
        yield "\n".join(lines)


@pytest.fixture(autouse=True)
def plots_are_not_drawn(request: pytest.FixtureRequest) -> Iterator[None]:
    """Skip the drawing of plots in reports, which takes longer than training a tiny model.

    Everything up to the drawing still runs; tests marked ``draws`` draw the plots too.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("draws") is None:
            patch.setattr("firth.page._inline_svg", lambda figure, title, prefix: "<svg></svg>")
        yield


# Tests in these folders check shapes and types at each call. Together they call every layer, model, objective, task and
# system. Tests elsewhere run whole jobs of thousands of calls, and a check takes as long as a tiny layer.
_CHECKED = {"contract", "convert", "inference", "layers", "models", "objectives", "parity", "tasks"}


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    unchecked = item.get_closest_marker("unchecked") or item.path.parent.name not in _CHECKED
    jaxtyping.config.update("jaxtyping_disable", bool(unchecked))


@pytest.fixture(scope="session")
def tiny_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text file: 80 documents of 8 to 20 sentences, English and some Korean, about 60 kB."""
    path = tmp_path_factory.mktemp("tiny") / "text.txt"
    path.write_text("\n\n".join(_documents(80, seed=1)) + "\n", "utf-8")
    return path


@pytest.fixture(scope="session")
def tiny_vocab(tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer folder with a vocabulary of 300 tokens."""
    from firth.corpus.vocab import build_vocab

    out = tmp_path_factory.mktemp("tiny") / "vocab"
    build_vocab([tiny_text], out, size=300, workers=1)
    return out


@pytest.fixture(scope="session")
def tiny_corpus(tiny_text: Path, tiny_vocab: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus folder with one shard of training text and one of held-out text."""
    from firth.corpus.prepare import prepare

    out = tmp_path_factory.mktemp("tiny") / "corpus"
    prepare([tiny_text], tiny_vocab, out, hold_out=0.1, workers=1)
    return out


@pytest.fixture(scope="session")
def tiny_word_corpus(tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as ``tiny_corpus``, but in whole words, the rarest of which are unknown."""
    from firth.corpus.prepare import prepare
    from firth.corpus.vocab import build_vocab

    folder = tmp_path_factory.mktemp("tiny")
    build_vocab([tiny_text], folder / "words", size=80, kind="words", workers=1)
    prepare([tiny_text], folder / "words", folder / "corpus", hold_out=0.1, workers=1)
    return folder / "corpus"


@pytest.fixture(scope="session")
def tiny_pairs(tiny_text: Path, tiny_vocab: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus folder of parallel text: lines, and the same lines with their words reversed."""
    from firth.corpus.prepare import prepare

    folder = tmp_path_factory.mktemp("tiny")
    lines = [line for line in tiny_text.read_text("utf-8").splitlines() if line]
    (folder / "a.txt").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "b.txt").write_text("\n".join(" ".join(line.split()[::-1]) for line in lines) + "\n", "utf-8")
    prepare([folder / "a.txt"], tiny_vocab, folder / "pairs", second=[folder / "b.txt"], hold_out=0.1, workers=1)
    return folder / "pairs"


@pytest.fixture(scope="session")
def tiny_run(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 20 steps with its model and two checkpoints (steps 10 and 20)."""
    from firth.pretraining.run import pretrain, resolve

    out = tmp_path_factory.mktemp("tiny") / "run"
    pretrain(resolve(TINY_RECIPE, [f"data.corpus={tiny_corpus}"], "tiny recipe"), out, tell=lambda text: None)
    return out
