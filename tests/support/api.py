"""The HTTP API in a thread of this process, on a real store, and a client of it."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from headwater.serve.api.opening import ApiSettings
from headwater.serve.limits import HttpLimits
from headwater.serve.listening import ListenAddress
from headwater.serve.store_server import StoreServer
from headwater.serve.tokens import Tokens
from tests.support.serving import ServerThread


class Answer(NamedTuple):
    """An answer: its status, its headers by lower-case names, and its body, decoded if JSON."""

    status: int
    headers: dict[str, str]
    body: Any


class ApiServer(ServerThread):
    """A server in a thread, which serves until the block ends."""

    def __init__(
        self,
        store_url: str,
        tokens: Tokens | None = None,
        limits: HttpLimits | None = None,
        **words: Any,
    ) -> None:
        self._clients: list[ApiClient] = []
        around = {name: words.pop(name) for name in ("tls", "resp", "front") if name in words}
        settings = ApiSettings(store_url, tokens or Tokens(), **words)
        address = ListenAddress("127.0.0.1", 0)
        super().__init__(StoreServer(settings, address, limits or HttpLimits(), **around).serve)

    def client(self, token: str | None = None) -> ApiClient:
        """Return a client on a connection of its own, which is closed with the server."""
        client = ApiClient(self.port, token)
        self._clients.append(client)
        return client

    def stop(self) -> None:
        """Tell the server to stop, as SIGTERM does, and wait until it has."""
        super().stop()
        self.stopped()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for client in self._clients:
            client.close()


class ApiClient:
    """A client of the API, by one connection."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._token = token

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        media: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Send a request; a body that is not bytes is sent as JSON."""
        sent = dict(headers or {})
        if self._token:
            sent["Authorization"] = f"Bearer {self._token}"
        data = body
        if body is not None:
            sent["Content-Type"] = media
            if not isinstance(body, bytes):
                data = json.dumps(body).encode()
        self._connection.request(method, path, data, sent)
        reply = self._connection.getresponse()
        text = reply.read()
        found = {name.lower(): value for name, value in reply.getheaders()}
        is_json = found.get("content-type", "").endswith("json") and b"\n" not in text
        return Answer(reply.status, found, json.loads(text) if is_json and text else text)

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})

    def post(self, path: str, body: Any, **words: Any) -> Answer:
        return self.ask("POST", path, body, **words)

    def events(self, path: str, last: int | str | None = None) -> Iterator[dict[str, str]]:
        """Open a tail and return its events, without comments and what says when to reconnect."""
        sent = {} if last is None else {"Last-Event-ID": str(last)}
        if self._token:
            sent["Authorization"] = f"Bearer {self._token}"
        self._connection.request("GET", path, headers=sent)
        reply = self._connection.getresponse()
        assert reply.status == 200, reply.read()
        return self._events(reply)

    def _events(self, reply: http.client.HTTPResponse) -> Iterator[dict[str, str]]:
        event: dict[str, str] = {}
        while line := reply.readline():
            name, colon, value = line.decode().rstrip("\n").partition(": ")
            if colon and name:
                event[name] = value
            elif event:
                if "data" in event:
                    yield event
                event = {}

    def close(self) -> None:
        self._connection.close()


def messages_of(stream: str, query: str = "") -> str:
    """Return the path of the messages of a stream."""
    return f"/v1/streams/{quote(stream, safe='')}/messages{query}"


@contextmanager
def serving(store: str, *options: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Run `headwater serve` on a store; yields its port and its process."""
    command = [str(Path(sys.executable).with_name("headwater")), "serve", "--http", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--store", store, *options], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            said = re.search(r"http://[^ ]*:(\d+)", process.stdout.readline())
            assert said is not None
            yield int(said[1]), process
        finally:
            process.kill()
