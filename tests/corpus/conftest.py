"""Texts of tests are small, and little text is read by one process."""

import pytest

import firth.workers


@pytest.fixture
def in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read text of any size in as many processes as asked for."""
    monkeypatch.setattr(firth.workers, "LITTLE_TEXT", 0)
