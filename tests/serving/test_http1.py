"""HTTP/1.1 bytes from clients, before a request reaches the application."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from firth.serving.http1 import MOST_HEAD_BYTES, Http1Protocol
from firth.serving.server import listen, start_http

BODY = b"a body\r\nUpgrade: of text\r\n\r\nupgrade: too"


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    """A server that reports what it was sent, and by whom."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        told = json.dumps({"body": body.decode(), "client": scope["client"][0]}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(told))]})
        await send({"type": "http.response.body", "body": told})

    with listen("127.0.0.1", 0) as bound:
        server, thread, _ = start_http(app, bound)
        try:
            yield bound.getsockname()[:2]
        finally:
            server.should_exit = True
            thread.join()


def told(connection: socket.socket, *headers: bytes) -> Any:
    lines = [b"POST / HTTP/1.1", b"Host: x", b"Content-Length: %d" % len(BODY), *headers, b"", b""]
    connection.sendall(b"\r\n".join(lines) + BODY[:9])
    connection.sendall(BODY[9:])
    found = b""
    while not found.endswith(b"}"):
        found += connection.recv(4096)
    return json.loads(found.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("offered", [b"h2c", b"websocket"])
def test_an_offer_to_speak_another_protocol_is_ignored(address: tuple[str, int], offered: bytes) -> None:
    headers = b"Connection: Upgrade, HTTP2-Settings", b"HTTP2-Settings: AAMAAABk", b"upGrade: " + offered
    with socket.create_connection(address, timeout=60) as connection:
        for _ in range(2):  # the connection stays open
            assert told(connection, *headers)["body"] == BODY.decode()


def test_an_offer_that_is_divided_between_packets_is_ignored_too(monkeypatch: pytest.MonkeyPatch) -> None:
    head = b"POST / HTTP/1.1\r\nA: up\r\nUPGRADE: h2c\r\nUp: upgrade: no\r\nU: u\r\nUpgrade: ws\r\n\r\n"
    for sent in (head, head + b"up\nup"):
        expected = sent.replace(b"UPGRADE:", b"x-offer:").replace(b"Upgrade:", b"x-offer:")
        divided = [[sent[:place], sent[place:]] for place in range(1, len(sent))]
        for packets in (*divided, [sent[i : i + 1] for i in range(len(head))] + [sent[len(head) :]]):
            parsed = list[bytes]()
            monkeypatch.setattr(
                HttpToolsProtocol, "data_received", lambda self, data, parsed=parsed: parsed.append(data)
            )
            protocol = Http1Protocol.__new__(Http1Protocol)
            for packet in packets:
                protocol.data_received(packet)
            assert b"".join(parsed) == expected, packets


def test_a_client_is_who_has_the_connection(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=60) as connection:
        assert told(connection, b"X-Forwarded-For: 10.0.0.7")["client"] == "127.0.0.1"


def test_headers_are_limited_in_length(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=60) as connection:
        for _ in range(3):  # each request's own
            assert told(connection, b"A: " + b"a" * (MOST_HEAD_BYTES // 2))["body"] == BODY.decode()
    for endless in (b"GET /" + b"a" * MOST_HEAD_BYTES, b"GET / HTTP/1.1\r\nA: " + b"a" * MOST_HEAD_BYTES):
        with socket.create_connection(address, timeout=60) as connection:
            connection.sendall(endless)
            found = b"".join(iter(lambda: connection.recv(4096), b""))  # noqa: B023  # called at once
            assert found.startswith(b"HTTP/1.1 400") and found.endswith(b"headers are longer than 65,536 bytes.")
