"""Fixtures for the contract tests."""

from pathlib import Path

import pytest

from firth.systems import SYSTEMS


@pytest.fixture
def tiny_corpus(request: pytest.FixtureRequest, tiny_corpus: Path) -> Path:
    """The corpus that suits the system under test: of text, in pieces or in whole words, or of parallel text."""
    case = getattr(request.node, "callspec", None)
    system = case.params.get("system") if case else None
    name = None
    if system is not None and "translations" in SYSTEMS[system].instances:
        name = "tiny_pairs"
    elif system is not None and SYSTEMS[system].characters:
        name = "tiny_word_corpus"
    found: Path = tiny_corpus if name is None else request.getfixturevalue(name)
    return found
