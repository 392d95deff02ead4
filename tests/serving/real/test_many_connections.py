"""Idle connections that tie up a server, and its memory over a long life."""

import asyncio
import json
import random
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from running import PATIENT, Server, serving

IDLE = 10_000
# Files that this process and the server have open besides connections.
OTHER_FILES = 500
REQUESTS, WARM_UP, AT_ONCE, MOST_S = 100_000, 10_000, 16, 240
MOST_GROWTH = 0.01
BODY_S = 2


@pytest.fixture(scope="module")
def many_files() -> Iterator[int]:
    """Raise this process's open-file limit as far as the system allows; the server must raise its own."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    yield most
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


@pytest.fixture(scope="module")
def tiny(served_folders: dict[str, Path]) -> Iterator[Server]:
    """A server of one small classifier, started with the low default open-file limit of many systems."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, most), most))
    try:
        with serving(f"classify={served_folders['classify']}", *PATIENT, "--set", f"body_s={BODY_S}") as running:
            resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))
            yield running
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=120)


def head(path: str, *fields: str) -> bytes:
    lines = f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json", *fields
    return "\r\n".join([*lines, "", ""]).encode()


def post(connection: socket.socket, path: str, inputs: str | list[str]) -> None:
    body = json.dumps({"inputs": inputs}).encode()
    connection.sendall(head(path, f"content-length: {len(body)}") + body)


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """The status and the body of an answer, read to its end."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _received(connection)
    start, _, body = data.partition(b"\r\n\r\n")
    lines = start.lower().split(b"\r\n")
    size = next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:"))
    while len(body) < size:
        body += _received(connection)
    return int(lines[0].split()[1]), body


def _received(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    assert data, "the server closed the connection"
    return data


def others_are_answered(server: Server) -> None:
    with connect(server) as asking:
        for _ in range(5):
            post(asking, "/predict", "the old farmer")
            status, body = answer(asking)
            assert status == 200 and json.loads(body)[0]["label"] in ("a", "b", "c")


def test_idle_connections(tiny: Server, many_files: int) -> None:
    count = min(IDLE, many_files - OTHER_FILES)
    with ExitStack() as stack:
        opened = [stack.enter_context(connect(tiny)) for _ in range(count)]
        others_are_answered(tiny)
        # The idle connections are answered too, once they send a request.
        for one in (opened[0], opened[count // 2], opened[-1]):
            post(one, "/predict", "the old farmer")
            assert answer(one)[0] == 200
        print(f"{count:,} idle connections")
    others_are_answered(tiny)


def test_clients_that_read_slowly(tiny: Server) -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(tiny)) for _ in range(20)]
        for one in slow:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            post(one, "/embed_all", ["the old farmer walked to the river " * 40] * 32)
        others_are_answered(tiny)
        status, body = answer(slow[0])
        assert status == 200 and len(json.loads(body)) == 32
        assert len(body) > 1_000_000, "the answer must be more than what buffers hold"
        others_are_answered(tiny)


def test_bodies_and_heads_that_never_end(tiny: Server) -> None:
    with ExitStack() as stack:
        bodies, chunked, heads = ([stack.enter_context(connect(tiny)) for _ in range(50)] for _ in range(3))
        for one in bodies:
            one.sendall(head("/predict", "content-length: 1000") + b'{"inputs": "')
        for one in chunked:
            one.sendall(head("/predict", "transfer-encoding: chunked") + b'5\r\n{"inp\r\n')
        for one in heads:
            one.sendall(b"POST /predict HTTP/1.1\r\nhost: localhost\r\nx-")
        others_are_answered(tiny)
        for one in (*bodies, *chunked):
            status, body = answer(one)
            assert status == 408 and b"after 2 s" in body
        others_are_answered(tiny)


def test_memory_stays_where_it_is(tiny: Server) -> None:
    """Texts of many lengths, because caches per length would grow too."""
    words, rng = ["the", "old", "farmer", "walked", "river", "강가에서"], random.Random(1)
    bodies = [json.dumps({"inputs": " ".join(rng.choices(words, k=rng.randint(1, 20)))}).encode() for _ in range(1000)]
    requests = [head("/predict", f"content-length: {len(body)}") + body for body in bodies]
    left, ends_s = REQUESTS, time.monotonic() + MOST_S

    async def ask(until: int) -> None:
        nonlocal left
        reader, writer = await asyncio.open_connection("127.0.0.1", tiny.port)
        while left > until and time.monotonic() < ends_s:
            left -= 1
            writer.write(requests[left % len(requests)])
            start = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert start.startswith(b"http/1.1 200"), start
            await reader.readexactly(int(start.partition(b"content-length:")[2].split(b"\r\n")[0]))
        writer.close()
        await writer.wait_closed()

    async def ask_all(until: int) -> int:
        await asyncio.gather(*(ask(until) for _ in range(AT_ONCE)))
        return tiny.resident_bytes()

    before = asyncio.run(ask_all(REQUESTS - WARM_UP))
    after = asyncio.run(ask_all(0))
    growth = after / before - 1
    done = f"{REQUESTS - left:,} requests: {growth:+.2%} of {before / 1e6:.0f} MB"
    print(done)
    assert growth < MOST_GROWTH
    if left > 0:
        pytest.skip(f"this machine is too slow for {REQUESTS:,} requests in {MOST_S} s; {done}")
