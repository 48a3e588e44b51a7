"""A client of the library whose objects go through the RESP door."""

from __future__ import annotations

from typing import Any

import headwater
from tests.support.resp_driver import DoorIck, DoorQueue, DoorStream, Driver
from tests.support.resp_topics import DoorChannel, DoorTopic


class DoorClient(Driver):
    """A client; what it has no object for goes to the store directly."""

    def stream(self, name: str) -> Any:
        return DoorStream(self._direct.stream(name), self._client, name)

    def topic(self, name: str, partitions: int) -> Any:
        assert self._ask("TPCREATE", name, partitions) == partitions
        return DoorTopic(self._direct.topic(name, partitions), self._client, name)

    def queue(self, name: str) -> Any:
        return DoorQueue(self._direct.queue(name), self._client, name)

    def ick(self, name: str) -> Any:
        return DoorIck(self._direct.ick(name), self._client, name)

    def ick_channel(self, name: str, *, ack_ms: int, **options: Any) -> Any:
        direct = self._direct.ick_channel(name, ack_ms=ack_ms, **options)
        return DoorChannel(direct, self._client, ack_ms)


def through_door(direct: headwater.Headwater, client: Any) -> Any:
    """Return a client of the library whose objects go through the door."""
    return DoorClient(direct, client)
