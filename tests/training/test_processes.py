"""The processes of one machine: what they exchange, and that none is left running, whatever happens."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from firth.errors import ConfigError, TrainingError
from firth.training.processes import Group, start_group


@pytest.fixture(autouse=True)
def find_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))


def run(size: int, **message: Any) -> list[subprocess.Popen[bytes]]:
    """Start a group for one task and join it; returns its other processes, which have ended."""
    children: list[subprocess.Popen[bytes]] = []
    try:
        with start_group(size, "group_worker", message) as group:
            assert group is not None
            children = group._children
            group.all_gather(b"")
    finally:
        assert all(child.poll() is not None for child in children)
    return children


def test_one_process_is_no_group() -> None:
    with start_group(1, "group_worker", {}) as group:
        assert group is None


@pytest.mark.parametrize("size", [2, 3])
def test_each_hears_all_in_their_order(size: int) -> None:
    n_bytes = 3_000_000  # more than a socket buffer holds
    with (
        pytest.raises(KeyboardInterrupt),
        start_group(size, "group_worker", {"do": "meet", "n_bytes": n_bytes}) as group,
    ):
        assert group is not None
        assert group.gather(b"") == [b"first" * rank for rank in range(size)]
        assert group.all_gather(bytes(n_bytes)) == [bytes([rank]) * n_bytes for rank in range(size)]
        shared = group.share(8)
        group.all_gather(b"")
        assert bytes(shared) == bytes(rank if rank < size else 0 for rank in range(8))
        shared.close()
        raise KeyboardInterrupt  # the others wait for a signal that never comes
    assert all(child.poll() is not None for child in group._children)


def test_an_error_of_one_is_the_error_of_the_run() -> None:
    with pytest.raises(ConfigError, match="^no such thing: give another$"):
        run(3, do="refuse", of=2)


def test_a_mistake_of_ours_in_one_shows_where() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)process 2 failed:.*in work.*ZeroDivisionError: ours"):
        run(2, do="break", of=1)


@pytest.mark.parametrize(("by", "how"), [(signal.SIGKILL, "killed.*memory"), (signal.SIGTERM, "ended by SIGTERM")])
def test_one_that_dies_ends_the_run_with_a_reason(by: signal.Signals, how: str) -> None:
    with pytest.raises(TrainingError, match=f"process 3 of 3 was {how}"):
        run(3, do="die", of=2, by=by)


def test_one_that_does_not_start_ends_the_run() -> None:
    with (
        pytest.raises(TrainingError, match="process 2 of 2 ended with exit code"),
        start_group(2, "no_such_module", {}) as group,
    ):
        assert group is not None
        group.all_gather(b"")


LEADER = """
import signal, sys
from firth.training.processes import start_group
# A shell without job control starts what it runs beside it with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
with start_group(3, "group_worker", {"do": "nothing"}) as group:
    group.all_gather(b"")
    print("met", flush=True)
    sys.stdin.read()
"""


def test_none_outlives_the_leading_process() -> None:
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert leader.stdout is not None and leader.stdout.readline() == b"met\n"
    leader.kill()
    # The others share its stderr, which closes when the last of them has ended.
    assert leader.communicate()[1] == b""


def test_ctrl_c_reaches_the_leading_process_alone() -> None:
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert leader.stdout is not None and leader.stdout.readline() == b"met\n"
    os.killpg(leader.pid, signal.SIGINT)
    errors = leader.communicate()[1]
    assert errors.count(b"KeyboardInterrupt") == 1


def test_memory_that_is_shared_begins_as_zeros() -> None:
    def share(group: Group) -> bytes:
        memory = group.share(16)
        try:
            return bytes(memory)
        finally:
            memory.close()

    from groups import in_threads

    def of(world: Any) -> bytes:
        return share(world.group)

    assert in_threads(2, of) == [bytes(16)] * 2
