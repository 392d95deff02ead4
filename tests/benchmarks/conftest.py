"""The benchmark scripts as modules, with their folder on the path, as when they are run."""

import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
Script = Callable[[str], ModuleType]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """``script("encode")`` imports a benchmark; its changes to this process are undone."""
    monkeypatch.syspath_prepend(str(FOLDER))
    # A matrix product that takes no time.
    monkeypatch.setattr("firth.bench.measure.PRODUCT", (8, 8, 8))
    before = set(sys.modules)
    for name, value in importlib.import_module("measure").QUIET.items():
        monkeypatch.setenv(name, value)
    level = logging.getLogger().level
    yield importlib.import_module
    logging.getLogger().setLevel(level)
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
