"""An ASGI application called as a server calls it, request by request, and one under uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from headwater.serve import AsgiApp
from tests.support.api import Answer
from tests.support.servers import until

JSON_HEADERS = ((b"content-type", b"application/json"), (b"host", b"app.example"))


class Exchange:
    """One request: what the application receives of it, and what it has sent by now."""

    def __init__(
        self, app: AsgiApp, method: str, path: str, body: bytes = b"", root: str = "", **more: Any
    ) -> None:
        raw, _, query = path.partition("?")
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._events.put_nowait({"type": "http.request", "body": body, "more_body": False})
        self.received = 0
        self.sent: list[Any] = []
        self._news = asyncio.Event()
        headers: Sequence[tuple[bytes, bytes]] = more.pop("headers", JSON_HEADERS)
        scope = {
            "type": "http",
            "method": method,
            "path": root + raw.replace("%2F", "/"),
            "raw_path": (root + raw).encode(),
            "root_path": root,
            "query_string": query.encode(),
            "headers": [*headers, (b"content-length", b"%d" % len(body))],
            **more,
        }
        self.done = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        self.received += 1
        return await self._events.get()

    async def _send(self, event: Any) -> None:
        self.sent.append(event)
        self._news.set()

    def leave(self) -> None:
        """Close the connection of the client."""
        self._events.put_nowait({"type": "http.disconnect"})

    @property
    def text(self) -> bytes:
        """What was sent of the body by now."""
        return b"".join(event.get("body", b"") for event in self.sent[1:])

    async def until_sent(self, text: bytes) -> None:
        """Wait until a text is in the body."""
        async with asyncio.timeout(30):
            while text not in self.text:
                self._news.clear()
                await self._news.wait()

    async def answer(self) -> Answer:
        """Wait for the end of the reply and return it."""
        async with asyncio.timeout(30):
            await self.done
        start = self.sent[0]
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        is_json = headers.get("content-type", "").endswith("json") and self.text
        return Answer(start["status"], headers, json.loads(self.text) if is_json else self.text)


@asynccontextmanager
async def lifespan_of(app: AsgiApp) -> AsyncIterator[list[Any]]:
    """Run the lifespan of an application as a server does; yields what it has sent."""
    events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    sent: list[Any] = []
    news = asyncio.Event()

    async def send(event: Any) -> None:
        sent.append(event)
        news.set()

    events.put_nowait({"type": "lifespan.startup"})
    living = asyncio.ensure_future(app({"type": "lifespan"}, events.get, send))
    async with asyncio.timeout(30):
        await news.wait()
    yield sent
    events.put_nowait({"type": "lifespan.shutdown"})
    await asyncio.wait_for(living, 60)


@contextlib.contextmanager
def under_uvicorn(app: Any) -> Iterator[int]:
    """Serve an application by uvicorn in a thread; yields its port."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(60)
        listening.close()
