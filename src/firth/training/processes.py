"""Start the worker processes of a run on one machine, and connect them to the leading process.

Each worker has a socket to the leading process and a pipe from it. The socket carries messages (and its closing shows
that a process died); the pipe stays open while the leading process lives, so that no worker outlives it. Large tensors
go through shared memory, an unnamed file that the system frees when the last process ends, however it ends.
"""

import contextlib
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import firth.errors
from firth.errors import FirthError, TrainingError

# A message header: its kind, and the number of bytes that follow.
_HEAD = struct.Struct("<cQ")
_DATA, _ERROR = b"d", b"e"
# Seconds that a finished process may take to exit before it is killed.
_END_S = 20.0


class Group:
    """One process's connections to the others of its run.

    ``lines``: in the leading process, a socket to each worker by rank; in a worker, the one to the leading process.
    ``memory``: descriptor of the shared memory file.
    """

    def __init__(self, rank: int, size: int, lines: list[socket.socket], memory: int):
        self.rank, self.size, self.lines, self.memory = rank, size, lines, memory
        self._children: list[subprocess.Popen[bytes]] = []

    def gather(self, mine: bytes) -> list[bytes]:
        """Collect each process's message, by rank, at the leading one (others get an empty list)."""
        if self.rank:
            self._send(0, _DATA, mine)
            return []
        return [mine, *(self._receive(line) for line in range(self.size - 1))]

    def all_gather(self, mine: bytes) -> list[bytes]:
        """Collect each process's message, by rank, in every process; also a barrier."""
        if not self.rank:
            found = self.gather(mine)
            joined = b"".join(found)
            lengths = struct.pack(f"<{self.size}Q", *map(len, found))
            for line in range(self.size - 1):
                self._send(line, _DATA, lengths + joined)
            return found
        self.gather(mine)
        answer = self._receive(0)
        at, found = 8 * self.size, []
        for length in struct.unpack_from(f"<{self.size}Q", answer):
            found.append(answer[at : at + length])
            at += length
        return found

    def share(self, n_bytes: int) -> mmap.mmap:
        """Allocate zeroed memory shared by all processes; all must ask for the same size, once per run."""
        if not self.rank:
            os.ftruncate(self.memory, n_bytes)
        self.all_gather(b"")
        return mmap.mmap(self.memory, n_bytes)

    def fail(self, error: BaseException) -> None:
        """Report an error to the leading process, which raises it."""
        kind = type(error).__name__ if isinstance(error, FirthError) else ""
        text = str(error) if kind else "".join(traceback.format_exception(error))
        with contextlib.suppress(OSError):
            self._send(0, _ERROR, json.dumps({"kind": kind, "text": text}).encode())

    def _send(self, line: int, kind: bytes, payload: bytes) -> None:
        try:
            self.lines[line].sendall(_HEAD.pack(kind, len(payload)))
            self.lines[line].sendall(payload)
        except (BrokenPipeError, ConnectionResetError):
            self._lost(line)

    def _receive(self, line: int) -> bytes:
        head = self._exactly(line, _HEAD.size)
        kind, length = _HEAD.unpack(head)
        payload = self._exactly(line, length)
        if kind == _ERROR:
            _raise(json.loads(payload), line + 1)
        return payload

    def _exactly(self, line: int, n_bytes: int) -> bytes:
        data = bytearray(n_bytes)
        view, got = memoryview(data), 0
        while got < n_bytes:
            try:
                n = self.lines[line].recv_into(view[got:])
            except ConnectionResetError:
                n = 0
            if not n:
                self._lost(line)
            got += n
        return bytes(data)

    def _lost(self, line: int) -> None:
        """Raise a lost process's last error, or one that says how it ended. Workers end with the leading process."""
        if self.rank:
            raise SystemExit(1)
        rest = b""
        with contextlib.suppress(OSError):
            while chunk := self.lines[line].recv(1 << 16):
                rest += chunk
        # Skip messages sent before the failure: the error comes last.
        while len(rest) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(rest)
            if kind == _ERROR:
                _raise(json.loads(rest[_HEAD.size : _HEAD.size + length]), line + 1)
            rest = rest[_HEAD.size + length :]
        code = self._children[line].wait(_END_S)
        if code == -signal.SIGKILL:
            how = "was killed, probably because memory ran out: lower train.batch_tokens, or use fewer --processes"
        elif code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        else:
            how = f"ended with exit code {code}"
        raise TrainingError(f"process {line + 2} of {self.size} {how}. Saved checkpoints are untouched")


def _raise(error: dict[str, str], rank: int) -> None:
    kind = getattr(firth.errors, error["kind"]) if error["kind"] else None
    if kind is not None:
        raise kind(error["text"])
    raise RuntimeError(f"process {rank + 1} failed:\n{error['text']}")


@contextlib.contextmanager
def start_group(size: int, module: str, message: dict[str, Any]) -> Iterator[Group | None]:
    """Start the worker processes of a run; they end with the context, however it ends.

    They run ``python -m module``, where ``join_group`` receives the ``message``. Yields None for a size of one.
    """
    if size == 1:
        yield None
        return
    with contextlib.ExitStack() as stack:
        memory = stack.enter_context(_nameless())
        group = Group(0, size, [], memory)
        stack.callback(_close, group.lines)
        stack.push(lambda kind, error, trace: _end(group._children, in_peace=kind is None))
        for rank in range(1, size):
            ours, theirs = socket.socketpair()
            group.lines.append(ours)
            with theirs:
                facts = {"rank": rank, "size": size, "line": theirs.fileno(), "memory": memory, "message": message}
                group._children.append(_start(module, facts))
        yield group


def _start(module: str, facts: dict[str, Any]) -> "subprocess.Popen[bytes]":
    # The package's location, whether it is installed or not.
    here = str(Path(firth.errors.__file__).parents[1])
    path = os.pathsep.join(p for p in (here, os.environ.get("PYTHONPATH", "")) if p)
    # Workers inherit blocked signals: Ctrl-C goes to the leading process, which asks the others to stop.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(facts["line"], facts["memory"]),
            env={**os.environ, "PYTHONPATH": path},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has already ended; the first message to it reports that
        child.stdin.write(json.dumps(facts).encode() + b"\n")
        child.stdin.flush()
    return child


@contextlib.contextmanager
def _nameless() -> Iterator[int]:
    """Open an empty unnamed memory file; yields its descriptor."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("firth")
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    else:
        with tempfile.TemporaryFile() as file:
            yield file.fileno()


def _end(children: "list[subprocess.Popen[bytes]]", *, in_peace: bool) -> None:
    """Wait for finished processes; the others end when their pipe closes."""
    for child in children:
        if in_peace:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_END_S)
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
    for child in children:
        try:
            child.wait(_END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _close(lines: list[socket.socket]) -> None:
    for line in lines:
        line.close()


def join_group(work: Callable[[Group, dict[str, Any]], None]) -> None:
    """Run ``work`` as one of the processes that ``start_group`` started.

    Errors are reported to the leading process. The process exits at once when the leading one ends.
    """
    facts = json.loads(_first_line(0))
    threading.Thread(target=_exit_with_leader, daemon=True).start()
    group = Group(facts["rank"], facts["size"], [socket.socket(fileno=facts["line"])], facts["memory"])
    try:
        work(group, facts["message"])
    except Exception as error:
        group.fail(error)
        raise SystemExit(1) from None


def _first_line(descriptor: int) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n"):
        some = os.read(descriptor, 1)
        if not some:
            raise SystemExit(1)
        line += some
    return bytes(line)


def _exit_with_leader() -> None:
    # Not sys.stdin: its lock would be held at interpreter exit.
    while os.read(0, 1):
        pass
    os._exit(1)
