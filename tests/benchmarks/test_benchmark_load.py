"""The load that benchmarks put on servers, tested on a small server in the same event loop."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from types import ModuleType

import pytest

pytest.importorskip("httptools")
pytest.importorskip("uvloop")

# Maps the request number (from 1) and the client's address to the bytes of the answer.
Handler = Callable[[int, str], Awaitable[bytes]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
REFUSED = b"HTTP/1.1 429 Too Many\r\nContent-Length: 4\r\n\r\nbusy"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n"


class Served:
    """A server that reads requests and sends what ``handler`` returns; ``close``: it closes connections silently."""

    def __init__(self, handler: Handler, close: bool = False):
        self.handler, self.close, self.n, self.bodies = handler, close, 0, list[bytes]()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.bodies.append(await reader.readexactly(length))
                self.n += 1
                writer.write(await self.handler(self.n, writer.get_extra_info("peername")[0]))
                await writer.drain()
                if self.close:
                    break
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def start(self) -> tuple[asyncio.Server, int]:
        server = await asyncio.start_server(self, "127.0.0.1", 0)
        return server, server.sockets[0].getsockname()[1]


async def ok(number: int, address: str) -> bytes:
    return OK


def outcome_of(load: ModuleType, served: Served, go: Callable[..., Awaitable[object]], n_clients: int = 3):
    async def main() -> object:
        server, port = await served.start()
        async with server, load.clients("127.0.0.1", port, n_clients) as clients:
            return await go(clients)

    return load.run(main())


def questions(load: ModuleType, n: int) -> list:
    return [load.Question("/x", str(number).encode(), tokens=10) for number in range(n)]


def test_clients_ask_every_question_once_and_count_by_status(script) -> None:
    load = script("load")

    async def some_are_refused(number: int, address: str) -> bytes:
        return REFUSED if number % 4 == 0 else CHUNKED if number % 4 == 1 else OK

    served = Served(some_are_refused)
    found = outcome_of(load, served, lambda clients: load.closed(clients, questions(load, 40)))
    assert sorted(map(int, served.bodies)) == list(range(40))
    assert found.statuses == Counter({200: 30, 429: 10}) and found.tokens == 300
    assert len(found.answered_s) == 30 and len(found.refused_s) == 10
    summary = found.summary()
    assert summary["statuses"] == {"200": 30, "429": 10}
    assert summary["tokens_per_s"] == pytest.approx(10 * summary["answered_per_s"])
    assert summary["answered_p50_ms"] <= summary["answered_p99_ms"]


def test_each_client_has_an_address_and_keeps_its_connection(script) -> None:
    load, addresses = script("load"), Counter[str]()

    async def note(number: int, address: str) -> bytes:
        addresses[address] += 1
        return OK

    async def go(clients) -> list[int]:
        await load.closed(clients, questions(load, 30))
        return [len(client.every) for client in clients]

    assert outcome_of(load, Served(note), go, n_clients=5) == [1] * 5
    assert len(addresses) == 5 and sum(addresses.values()) == 30


def test_requests_at_random_times_do_not_wait_for_earlier_answers(script) -> None:
    load = script("load")
    all_there = asyncio.Event()

    async def hold(number: int, address: str) -> bytes:
        # A client that waited for each answer would never send the last request.
        if number == 12:
            all_there.set()
        await all_there.wait()
        return OK

    found = outcome_of(
        load, Served(hold), lambda clients: load.opened(clients, questions(load, 12), rate=2000.0), n_clients=2
    )
    assert found.statuses == Counter({200: 12}) and found.seconds >= max(found.answered_s)


def test_a_connection_that_the_server_closed_is_replaced(script) -> None:
    load = script("load")

    async def go(clients) -> object:
        found = []
        for question in questions(load, 3):
            found.append((await clients[0].ask(question)).status)
            await asyncio.sleep(0)
        return found

    served = Served(ok, close=True)
    assert outcome_of(load, served, go) == [200] * 3 and served.n == 3


def test_no_server_is_no_answer(script) -> None:
    load, port = script("load"), script("peer_servers").free_port()

    async def main() -> int:
        return (await load.Client("127.0.0.1", port).ask(load.Question("/", b"{}"))).status

    assert load.run(main()) == load.NO_ANSWER
