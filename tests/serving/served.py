"""Requests to a server in this process."""

from collections.abc import Callable
from typing import Any

import httpx2

from firth.serving.access import Access
from firth.serving.app import make_app
from firth.serving.asking import ServerState


class Client:
    """Requests to an application in this process."""

    def __init__(self, state: ServerState, access: Access):
        self.state = state
        self.app = make_app(state, access)
        transport = httpx2.ASGITransport(app=self.app, client=("10.0.0.1", 1))
        self.http = httpx2.AsyncClient(transport=transport, base_url="http://localhost")

    async def post(self, path: str, body: Any = None, **options: Any) -> httpx2.Response:
        chosen = options if body is None else {"json": body, **options}
        return await self.http.post(path, **chosen)

    async def get(self, path: str, **options: Any) -> httpx2.Response:
        return await self.http.get(path, **options)


Serve = Callable[..., Any]
