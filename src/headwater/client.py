"""What ``connect`` returns: one connected store, and the objects that live in it."""

from __future__ import annotations

import os
import socket
from types import TracebackType

from headwater.ick.ick import Ick, IckChannel
from headwater.ick.layout import LEASE_MS, ChannelHandle, finish_change, list_channels
from headwater.ick.single import IckHandle
from headwater.ick.types import KeptChannel
from headwater.log import housekeeping
from headwater.log.handles import StreamHandle, list_streams, list_topics
from headwater.log.housekeeping import Kept
from headwater.log.stream import Stream
from headwater.log.topic import Topic
from headwater.log.topics import TopicHandle
from headwater.queue import upkeep
from headwater.queue.handles import QueueHandle, list_queues
from headwater.queue.queue import Queue
from headwater.queue.types import KeptQueue
from headwater.store.store import Store


def member_name(token: str) -> str:
    """Return the name of this client among the members of a group: where it runs, and which."""
    host = "".join(c for c in socket.gethostname() if c.isalnum() or c in ".-")[:60] or "host"
    return f"{host}-{os.getpid()}-{token}"


class Headwater:
    """A connected store. Safe to share between threads; close it, or use it in ``with``."""

    def __init__(self, url: str | None = None) -> None:
        self.store = Store(url)
        self._registered: set[str] = set()
        self._member = member_name(self.store.token())

    def __repr__(self) -> str:
        return f"Headwater({self.store.where!r})"

    def __enter__(self) -> Headwater:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def stream(self, name: str) -> Stream:
        """Give the stream of that name; it need not exist yet."""
        return Stream(self.store, StreamHandle(name, self._registered), self._member)

    def topic(self, name: str, partitions: int | None = None) -> Topic:
        """Give the topic of that name; the first to open it decides how many partitions it has.

        Without ``partitions``: what the topic has, or 8 for a new one. Raises PartitionMismatch.
        """
        handle = TopicHandle(name, partitions, self._registered)
        self.store.run(handle.open())
        return Topic(self.store, handle, self._member)

    def queue(self, name: str) -> Queue:
        """Give the queue of that name; it need not exist yet."""
        return Queue(self.store, QueueHandle(name, self._registered, self._member))

    def ick(self, name: str) -> Ick:
        """Give the Ick under that key, which is the same for redis-ick; it need not exist yet."""
        return Ick(self.store, IckHandle(name, self.store.kind != "cluster"))

    def ick_channel(
        self,
        name: str,
        shards: int | None = None,
        *,
        consumer: str | None = None,
        lease_ms: int = LEASE_MS,
    ) -> IckChannel:
        """Give a consumer's view of the channel of that name, which its first use brings about.

        ``shards`` is for a new channel, 8 if not said; one that is there keeps its own number.
        ``consumer`` names who reserves by this object; without it each has a name of its own.
        ``lease_ms`` is how long a shard stays with a consumer that is not heard of.
        """
        who = consumer or f"{self._member}.{self.store.token()}"
        return IckChannel(self.store, ChannelHandle(name, shards, who, lease_ms, self._registered))

    def ick_channels(self) -> list[str]:
        """List the names of all channels, sorted."""
        return self.store.run(list_channels())

    def streams(self) -> list[str]:
        """List the names of all streams, sorted."""
        return self.store.run(list_streams())

    def topics(self) -> list[str]:
        """List the names of all topics, sorted."""
        return self.store.run(list_topics())

    def queues(self) -> list[str]:
        """List the names of all queues, sorted."""
        return self.store.run(list_queues())

    def keep(self, *streams: str) -> list[Kept]:
        """Do the housekeeping of the named streams, or of all, once; says what was done to each.

        Seals, gives up what expired, applies retention, compacts where asked for, and forgets
        producers and members that are gone. Any number of clients may do it at once. Without
        names, queues and channels are kept as well; ``keep_queues`` and ``keep_channels`` say what
        that did.
        """
        if not streams:
            self.keep_queues()
            self.keep_channels()
        return [
            self.store.run(housekeeping.keep(StreamHandle(name, self._registered)))
            for name in streams or self.streams()
        ]

    def keep_channels(self, *channels: str) -> list[KeptChannel]:
        """Bring changes of the number of shards forward, of the named channels or of all.

        Says what became of each that is being changed; consumers do the same as they reserve.
        """
        found = []
        for name in channels or self.ick_channels():
            handle = ChannelHandle(name, None, self._member, LEASE_MS, self._registered)
            layout = self.store.run(finish_change(handle))
            if layout is not None:
                found.append(KeptChannel(name, layout.settled, layout.leases))
        return found

    def keep_queues(self, *queues: str) -> list[KeptQueue]:
        """Do the housekeeping of the named queues, or of all, once; says what was done to each.

        What was not acknowledged in time comes again or is given up, what outlived its time goes.
        A pop does so by itself; this is for queues that nobody pops.
        """
        return [
            self.store.run(upkeep.keep(QueueHandle(name, self._registered, self._member)))
            for name in queues or self.queues()
        ]

    def close(self) -> None:
        """Close the connections; an embedded server ends when its last user is gone."""
        self.store.close()


def connect(url: str | None = None) -> Headwater:
    """Connect to a store: ``url``, else ``$HEADWATER_URL``, else an embedded server.

    URLs: ``redis://``, ``rediss://``, ``unix://``, ``redis+cluster://``, ``rediss+cluster://``,
    ``embedded:///directory``. Raises StoreUnreachable, AccessDenied, StoreTooOld, LibraryTooNew,
    EmbeddedServerFailed or InvalidInput.
    """
    return Headwater(url)
