"""Speak only HTTP/1.1, with headers of limited length.

A client's offer to upgrade to another protocol is ignored (RFC 9110, §7.8).
"""

import re

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Bytes of a request's first line and headers, which are held in memory before any key is checked.
MOST_HEAD_BYTES = 65_536
_END, _NAME = b"\r\n\r\n", b"\r\nupgrade"
_OFFER = re.compile(rb"(?<=\n)upgrade(?=:)", re.IGNORECASE)


class Http1Protocol(HttpToolsProtocol):
    """Hides the header ``Upgrade``, after which the parser would take a request's body for another protocol.

    Java's client uses it to offer HTTP/2 with each request, and so does ``curl --http2``. It is not hidden in a
    request that a client sends before the answer to its last one, which neither does.
    """

    _in_body = False
    _begun = b""
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        if not self._in_body:
            head, end, rest = (self._begun + data).partition(_END)
            self._head_bytes += len(head) - len(self._begun)
            if self._head_bytes > MOST_HEAD_BYTES:
                self.send_400_response(f"The request's headers are longer than {MOST_HEAD_BYTES:,} bytes.")
                return
            self._begun = b"" if end else _begun(head)
            data = _OFFER.sub(b"x-offer", head.removesuffix(self._begun)) + end + rest
        if data:
            super().data_received(data)

    def on_headers_complete(self) -> None:
        self._in_body, self._head_bytes = True, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()


def _begun(head: bytes) -> bytes:
    """What may be the beginning of the name, or of the head's end: it waits for the next packet."""
    for n in range(len(_NAME), 0, -1):
        if any(whole.startswith(head[-n:].lower()) for whole in (_END, _NAME)):
            return head[-n:]
    return b""
