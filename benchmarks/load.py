"""Load on a server, and its outcome: closed-loop clients (as fast as they are answered) or open-loop ones (Poisson).

Latencies of Poisson requests count from the time at which a request was due, not from when it was sent: a server that
stalls is charged for all requests that were due meanwhile (no coordinated omission). The client is thin (httptools on
asyncio), because it shares the CPU with the server.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import httptools
import numpy as np
import uvloop

T = TypeVar("T")
# Seconds after which the client gives up: more than any server here waits.
PATIENCE_S = 180.0
# The status of a request that got no answer.
NO_ANSWER = 0


@dataclass(frozen=True, slots=True)
class Question:
    """A request: its path and JSON body. ``tokens``: those that answering it computes, special ones included."""

    path: str
    body: bytes
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server sent back."""

    status: int
    body: bytes


@dataclass
class Outcome:
    """The outcome of one load: answers by status, and seconds since the due time, of answered and refused requests."""

    seconds: float = 0.0
    tokens: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    answered_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)

    def note(self, question: Question, status: int, latency_s: float) -> None:
        """Count an answer."""
        self.statuses[status] += 1
        if status == 200:
            self.tokens += question.tokens
        (self.answered_s if status == 200 else self.refused_s).append(latency_s)

    @property
    def rate(self) -> float:
        """Answered requests per second."""
        return len(self.answered_s) / self.seconds

    def summary(self) -> dict[str, Any]:
        """Answers and tokens per second, and percentiles in milliseconds."""
        found: dict[str, Any] = {
            "answered_per_s": self.rate,
            "tokens_per_s": self.tokens / self.seconds,
            "seconds": self.seconds,
            "statuses": {str(status): n for status, n in sorted(self.statuses.items())},
        }
        for name, values in (("answered", self.answered_s), ("refused", self.refused_s)):
            if values:
                p50, p99 = np.percentile(values, (50, 99)) * 1e3
                found |= {f"{name}_p50_ms": round(float(p50), 2), f"{name}_p99_ms": round(float(p99), 2)}
        return found


class _Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self.parser, self.parts = httptools.HttpResponseParser(self), list[bytes]()
        self.answer: asyncio.Future[Answer] | None = None
        self.transport: asyncio.Transport | None = None
        self.open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.open = cast(asyncio.Transport, transport), True

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(ConnectionResetError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)

    def on_message_complete(self) -> None:
        self.open = self.open and self.parser.should_keep_alive()
        found, self.parts = Answer(self.parser.get_status_code(), b"".join(self.parts)), []
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(found)

    async def ask(self, message: bytes) -> Answer:
        assert self.transport is not None
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(message)
        async with asyncio.timeout(PATIENCE_S):
            return await self.answer


class Client:
    """A client with its own address, by which servers with per-client fairness identify it.

    ``source``: a loopback address. Concurrent requests have a connection each; idle connections are reused.
    """

    def __init__(self, host: str, port: int, source: str = "127.0.0.1"):
        self.host, self.port, self.source = host, port, source
        self.idle, self.every = list[_Connection](), list[_Connection]()

    async def ask(self, question: Question) -> Answer:
        """The answer; status ``NO_ANSWER`` if there is none."""
        while self.idle:
            connection = self.idle.pop()
            if not connection.open:
                continue
            try:
                return await self._ask(connection, question)
            except ConnectionResetError:
                # The connection had been idle too long; the server closed it before it saw the request.
                continue
            except TimeoutError:
                return Answer(NO_ANSWER, b"")
        try:
            return await self._ask(await self._connect(), question)
        except OSError:
            return Answer(NO_ANSWER, b"")

    async def _ask(self, connection: _Connection, question: Question) -> Answer:
        head = (
            f"POST {question.path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(question.body)}\r\n\r\n"
        )
        answer = await connection.ask(head.encode() + question.body)
        if connection.open:
            self.idle.append(connection)
        return answer

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(_Connection, self.host, self.port, local_addr=(self.source, 0))
        self.every = [connection for connection in self.every if connection.open]
        self.every.append(made)
        return made

    def close(self) -> None:
        """Close all connections."""
        for connection in self.every:
            if connection.transport is not None:
                connection.transport.close()


@asynccontextmanager
async def clients(host: str, port: int, n: int) -> AsyncIterator[list[Client]]:
    """Clients, each at its own address."""
    made = [Client(host, port, f"127.0.0.{2 + number}") for number in range(n)]
    try:
        yield made
    finally:
        for client in made:
            client.close()
        await asyncio.sleep(0.01)  # until the sockets are closed


async def closed(some: Sequence[Client], questions: Iterable[Question], seconds: float = float("inf")) -> Outcome:
    """Closed loop: each client sends its next request when it is answered, until requests or time run out."""
    outcome, left, begun_s = Outcome(), iter(questions), time.monotonic()

    async def one(client: Client) -> None:
        for question in left:
            due_s = time.monotonic()
            outcome.note(question, (await client.ask(question)).status, time.monotonic() - due_s)
            if time.monotonic() > begun_s + seconds:
                return

    await asyncio.gather(*map(one, some))
    outcome.seconds = time.monotonic() - begun_s
    return outcome


async def opened(
    some: Sequence[Client], questions: Iterable[Question], rate: float, seconds: float = float("inf")
) -> Outcome:
    """Open loop: Poisson requests, ``rate`` per second, by the clients in turn, until requests or time run out."""
    outcome, rng, begun_s = Outcome(), random.Random(1), time.monotonic()

    async def one(client: Client, question: Question, due_s: float) -> None:
        status = (await client.ask(question)).status
        outcome.note(question, status, time.monotonic() - due_s)

    due_s, tasks = begun_s, list[asyncio.Task[None]]()
    for number, question in enumerate(questions):
        due_s += rng.expovariate(rate)
        if due_s > begun_s + seconds:
            break
        await asyncio.sleep(max(due_s - time.monotonic(), 0))
        tasks.append(asyncio.create_task(one(some[number % len(some)], question, due_s)))
    await asyncio.gather(*tasks)
    outcome.seconds = time.monotonic() - begun_s
    return outcome


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on uvloop, whose overhead is small."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
