"""What all clients of a process share: the store, the farm, tokens, limits, and who is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from headwater.aio_client import AsyncHeadwater
from headwater.queue.aio_queue import AsyncQueue
from headwater.serve.resp.faults import CommandRefused
from headwater.serve.resp.limits import RespLimits
from headwater.serve.resp.waiting import Waiting
from headwater.serve.stream_writes import StreamWrites
from headwater.serve.tokens import Tokens
from headwater.serve.topic_writes import TopicWrites

if TYPE_CHECKING:
    from headwater.serve.resp.session import RespSession
    from headwater.timeline.farm.aio_farm import AsyncFarm

# A name costs little; those that are used are many fewer.
_MOST_QUEUES = 1000
_MOST_CALLS = 64


class Door:
    """The door of one process; one that is ``read_only`` refuses whatever changes something.

    ``change`` is called with the name of a level of the metrics, and by how much it changes.
    """

    def __init__(
        self,
        client: AsyncHeadwater,
        writes: StreamWrites,
        tokens: Tokens,
        limits: RespLimits,
        farm: AsyncFarm | None = None,
        *,
        read_only: bool = False,
        change: Callable[[str, int], None] = lambda _name, _n: None,
    ) -> None:
        self.client = client
        self.tokens = tokens
        self.limits = limits
        self.read_only = read_only
        self.change = change
        self.writes = writes
        self.topic_writes = TopicWrites(client, writes)
        self.waiting = Waiting()
        # Held by all that asks the store and does not wait there: each has a connection to it.
        self.at_store = asyncio.Semaphore(_MOST_CALLS)
        self.sessions: dict[int, RespSession] = {}
        self.numbers = count(1)
        self.since = time.monotonic()
        self.commands = 0
        self.connections = 0
        self._farm = farm
        self._queues: dict[str, AsyncQueue] = {}

    def queue(self, name: str) -> AsyncQueue:
        """Return the queue of that name; raises InvalidInput."""
        found = self._queues.get(name)
        if found is None:
            if len(self._queues) >= _MOST_QUEUES:
                self._queues.clear()
            found = self._queues[name] = self.client.queue(name)
        return found

    @property
    def farm(self) -> AsyncFarm:
        """The farm of timelines; raises CommandRefused when the server has none."""
        if self._farm is None:
            raise CommandRefused(
                "this server has no farm of timelines; start it with --farm", "NOTFOUND"
            )
        return self._farm
