"""Little text is read by this process, more by several."""

import os
from concurrent.futures import ProcessPoolExecutor

import pytest

from firth.workers import LITTLE_TEXT, ThisProcess, make_pool_for_text, submit

started: list[str] = []


def start(name: str) -> None:
    """Note that a process has started its work."""
    started.append(name)


def where() -> tuple[int, list[str], str | None]:
    """The process that works, what it has started, and whether the tokenizer library may start threads in it."""
    return os.getpid(), started, os.environ.get("TOKENIZERS_PARALLELISM")


def fail() -> None:
    raise ValueError("broken")


@pytest.mark.parametrize(("n_bytes", "workers"), [(LITTLE_TEXT - 1, 2), (LITTLE_TEXT, 1)])
def test_little_text_is_read_by_this_process(n_bytes: int, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    started.clear()
    with make_pool_for_text(n_bytes, workers, start, "here") as pool:
        assert isinstance(pool, ThisProcess)
        assert submit(pool, where).result() == (os.getpid(), ["here"], None)
        with pytest.raises(ValueError, match="broken"):
            submit(pool, fail).result()


def test_more_text_is_read_by_several() -> None:
    started.clear()
    with make_pool_for_text(LITTLE_TEXT, 2, start, "there") as pool:
        assert isinstance(pool, ProcessPoolExecutor)
        process, begun, parallel = submit(pool, where).result()
    assert process != os.getpid() and (begun, parallel, started) == (["there"], "false", [])
