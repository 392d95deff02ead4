"""Speak only HTTP/1.1: a client's offer to upgrade to another protocol is ignored (RFC 9110, §7.8)."""

import re

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_OFFER = re.compile(rb"^upgrade(?=:)", re.IGNORECASE | re.MULTILINE)


class Http1Protocol(HttpToolsProtocol):
    """Hides the header ``Upgrade``, after which the parser would take a request's body for another protocol.

    Java's client uses it to offer HTTP/2 with each request, and so does ``curl --http2``.
    """

    _in_body = False

    def data_received(self, data: bytes) -> None:
        if not self._in_body and b"pgrade" in data:
            head, end, rest = data.partition(b"\r\n\r\n")
            data = _OFFER.sub(b"x-offer", head) + end + rest
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()
