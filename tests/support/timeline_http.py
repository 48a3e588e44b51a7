"""Roshi's server in this process, and a client that talks to it as any program does."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import threading
from typing import Any, NamedTuple, Self

from headwater.timeline import AsyncFarm
from headwater.timeline.server.connection import Connections
from headwater.timeline.server.prometheus import Figures, shared
from headwater.timeline.server.service import Service, Tokens


def b64(text: str | bytes) -> str:
    raw = text.encode() if isinstance(text, str) else text
    return base64.b64encode(raw).decode()


def element(key: str | bytes, score: float, member: str | bytes) -> dict[str, Any]:
    return {"key": b64(key), "score": score, "member": b64(member)}


class Answer(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]


class Client:
    """One connection to a server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)

    def ask(
        self, method: str, path: str, content: Any = None, *, token: str | None = None
    ) -> Answer:
        """Send a request; content that is not bytes goes as JSON."""
        body = content if isinstance(content, bytes | None) else json.dumps(content).encode()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._connection.request(method, path, body, headers)
        reply = self._connection.getresponse()
        raw = reply.read()
        kind = reply.headers["Content-Type"]
        found = json.loads(raw) if raw and kind == "application/json" else raw.decode()
        return Answer(reply.status, found, dict(reply.headers))

    def insert(self, *elements: dict[str, Any]) -> Answer:
        return self.ask("POST", "/", list(elements))

    def delete(self, *elements: dict[str, Any]) -> Answer:
        return self.ask("DELETE", "/", list(elements))

    def select(self, *keys: str | bytes, query: str = "") -> Answer:
        return self.ask("GET", f"/?{query}", [b64(key) for key in keys])

    def figure(self, name: str) -> int:
        """Read one figure of /metrics."""
        for line in self.ask("GET", "/metrics").body.splitlines():
            if line.startswith(f"headwater_{name} "):
                return int(line.split()[1])
        raise AssertionError(f"there is no headwater_{name}")

    def close(self) -> None:
        self._connection.close()


class LocalServer:
    """A server in a thread of this process, on a port of its own."""

    def __init__(
        self,
        farm: str,
        *,
        tokens: Tokens | None = None,
        max_body: int = 1 << 20,
        **words: Any,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        figures = Figures(shared(1), 0)
        self._farm = AsyncFarm.open(farm, metrics=figures, **words)
        service = Service(self._farm, figures, tokens or Tokens(None, None))
        self.connections = Connections(service, max_body)
        self.port: int = self._run(self._start())

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _start(self) -> int:
        self._server = await self._loop.create_server(self.connections.make, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _stop(self) -> None:
        self._server.close()
        await self.connections.drain(1)
        await self._farm.close()

    def settle(self) -> None:
        self._run(self._farm.settle())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
