"""Roshi's server in this process, and a client that talks to it as any program does."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple, Self

from headwater.serve.http.connection import serve_http
from headwater.serve.limits import HttpLimits
from headwater.serve.listening import ListenAddress, ServerProcess
from headwater.serve.timeline.service import ServerMetrics, Service, shared_memory
from headwater.serve.tokens import Tokens
from headwater.timeline import AsyncFarm


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
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

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

    def metric(self, name: str) -> int:
        """Read one metric of /metrics."""
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
        limits: HttpLimits | None = None,
        lenient: bool = False,
        **words: Any,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        metrics = ServerMetrics(shared_memory(1), 0)
        self._farm = AsyncFarm.open(farm, **words)
        self._farm.report_to(metrics)
        service = Service(self._farm, metrics, tokens or Tokens(), lenient=lenient)
        bound = ListenAddress("127.0.0.1", 0).bind()
        self.port: int = bound.getsockname()[1]
        self._stop = asyncio.Event()
        listening = threading.Event()
        process = ServerProcess(0, bound, self._stop, listening.set)
        work = serve_http(process, service, limits or HttpLimits())
        self._serving = asyncio.run_coroutine_threadsafe(work, self._loop)
        assert listening.wait(60)

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def settle(self) -> None:
        self._run(self._farm.settle())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._serving.result(60)
        self._run(self._farm.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def serving(farm: str, **words: Any) -> Iterator[Client]:
    """Serve a farm in this process, and connect to it."""
    with LocalServer(farm, **words) as server, closing(Client(server.port)) as client:
        yield client


def records(answer: Answer, key: str) -> list[tuple[float, str]]:
    """Return score and member of the records of a key."""
    assert answer.status == 200
    return [(row["score"], row["member"]) for row in answer.body["records"][key]]
