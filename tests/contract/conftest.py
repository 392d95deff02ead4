"""Fixtures for the contract tests."""

import random
from pathlib import Path

import pytest
from systems_under_test import VECTORS

from firth.corpus.prepare import prepare
from firth.corpus.vocab import build_vocab
from firth.systems import SYSTEMS
from firth.text.tokenizer import Tokenizer


@pytest.fixture
def tiny_corpus(request: pytest.FixtureRequest, tiny_corpus: Path) -> Path:
    """The corpus for the system under test: text or parallel text, in subword tokens or whole words."""
    case = getattr(request.node, "callspec", None)
    system = case.params.get("system") if case else None
    name = None
    if system == "cove":
        name = "tiny_word_pairs"
    elif system is not None and "translations" in SYSTEMS[system].instances:
        name = "tiny_pairs"
    elif system is not None and SYSTEMS[system].characters:
        name = "tiny_word_corpus"
    found: Path = tiny_corpus if name is None else request.getfixturevalue(name)
    return found


@pytest.fixture(scope="session")
def tiny_word_pairs(tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parallel text in whole words, with vectors of most of them beside the corpus (``VECTORS``)."""
    folder = tmp_path_factory.mktemp("tiny")
    lines = [line for line in tiny_text.read_text("utf-8").splitlines() if line]
    (folder / "a.txt").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "b.txt").write_text("\n".join(" ".join(line.split()[::-1]) for line in lines) + "\n", "utf-8")
    build_vocab([folder / "a.txt"], folder / "words", size=80, kind="words", workers=1)
    prepare([folder / "a.txt"], folder / "words", folder / "pairs", second=[folder / "b.txt"], hold_out=0.1, workers=1)
    rng = random.Random(1)
    words = [word for word in Tokenizer.load(folder / "words").pieces if not word.startswith("<")][:60]
    rows = [" ".join([word, *(f"{rng.gauss(0, 1):.3f}" for _ in range(16))]) for word in words]
    (folder / VECTORS).write_text("\n".join(rows) + "\n", "utf-8")
    return folder / "pairs"
