"""A client of the library whose objects go over HTTP, for the models."""

from __future__ import annotations

from typing import Any

import headwater
from tests.support.api import ApiClient
from tests.support.http_driver import HttpDriver, HttpIck, HttpQueue, HttpStream
from tests.support.http_topics import HttpChannel, HttpTopic


class HttpClient(HttpDriver):
    """A client; what it has no object for goes to the store directly."""

    def stream(self, name: str) -> Any:
        return HttpStream(self._direct.stream(name), self._client, f"/v1/streams/{name}")

    def topic(self, name: str, partitions: int) -> Any:
        done = self._ask("PUT", f"/v1/topics/{name}", {"partitions": partitions})
        assert done["partitions"] == partitions
        return HttpTopic(self._direct.topic(name, partitions), self._client, f"/v1/topics/{name}")

    def queue(self, name: str) -> Any:
        return HttpQueue(self._direct.queue(name), self._client, f"/v1/queues/{name}")

    def ick(self, name: str) -> Any:
        return HttpIck(self._direct.ick(name), self._client, f"/v1/icks/{name}")

    def ick_channel(self, name: str, *, ack_ms: int, **options: Any) -> Any:
        direct = self._direct.ick_channel(name, ack_ms=ack_ms, **options)
        return HttpChannel(direct, self._client, f"/v1/channels/{name}", ack_ms)


def over_http(direct: headwater.Headwater, client: ApiClient) -> Any:
    """Return a client of the library whose objects go over HTTP."""
    return HttpClient(direct, client)
