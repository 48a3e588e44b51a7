"""What both clients do without I/O: the handles of objects, and housekeeping over many."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headwater.errors import fault_of_one
from headwater.kernel.codecs import AnyCodec, coder_of
from headwater.kernel.inputs import Duration, check_ms
from headwater.log.keys import list_deleted, list_streams
from headwater.store.call import Operation

# Each data type is imported with its first use; see ``client``.
if TYPE_CHECKING:
    from headwater.ick.channels import ChannelHandle
    from headwater.ick.single import IckHandle
    from headwater.ick.types import KeptChannel
    from headwater.log.handles import StreamHandle
    from headwater.log.retention import Kept
    from headwater.log.topics import TopicHandle
    from headwater.queue.handles import QueueHandle
    from headwater.queue.types import KeptQueue

log = logging.getLogger("headwater.client")


def member_name(token: str) -> str:
    """Return the name of this client among the members of a group: where it runs, and which."""
    host = "".join(c for c in socket.gethostname() if c.isalnum() or c in ".-")[:60] or "host"
    return f"{host}-{os.getpid()}-{token}"


def wait_seconds(wait_ms: Duration | None) -> float | None:
    """Return the seconds that a client waits for a store that does not answer; None: as calls."""
    return None if wait_ms is None else check_ms(wait_ms, "wait_ms") / 1000


def shown_store(client: object) -> str:
    """Return what the repr of a client shows of its store; a client may have failed to connect."""
    store = getattr(client, "store", None)
    return "not connected" if store is None else repr(store.where)


class ClientHandles:
    """Makes the handles of one client, which share what it told the registry of names."""

    def __init__(self, kind: str, token: Callable[[], str]) -> None:
        self.member = member_name(token())
        self._token = token
        self._one_server = kind != "cluster"
        self._registered: set[str] = set()

    def stream(self, name: str, codec: AnyCodec[Any] | None = None) -> StreamHandle:
        """Return the handle of a stream."""
        from headwater.log.handles import StreamHandle

        return StreamHandle(name, self._registered, coder_of(codec))

    def topic(
        self, name: str, partitions: int | None, codec: AnyCodec[Any] | None = None
    ) -> TopicHandle:
        """Return the handle of a topic."""
        from headwater.log.topics import TopicHandle

        return TopicHandle(name, partitions, self._registered, coder_of(codec))

    def queue(self, name: str, codec: AnyCodec[Any] | None = None) -> QueueHandle:
        """Return the handle of a queue."""
        from headwater.queue.handles import QueueHandle

        return QueueHandle(name, self._registered, self.member, coder_of(codec))

    def ick(self, name: str) -> IckHandle:
        """Return the handle of an Ick."""
        from headwater.ick.single import IckHandle

        return IckHandle(name, self._one_server)

    def channel(
        self,
        name: str,
        shards: int | None,
        consumer: str | None,
        ack_ms: Duration | None = None,
    ) -> ChannelHandle:
        """Return the handle of a channel; without ``consumer``, each has a name of its own."""
        from headwater.ick.channels import LEASE_MS, ChannelHandle

        if consumer is None:
            consumer = f"{self.member}.{self._token()}"
        held_ms = LEASE_MS if ack_ms is None else ack_ms
        return ChannelHandle(name, shards, consumer, held_ms, self._registered)

    def keep(self, streams: Sequence[str]) -> Operation[list[Kept]]:
        """Keep the named streams; or all, and before them all queues and channels."""
        from headwater.log import retention

        if not streams:
            others: list[Kept | KeptQueue | KeptChannel] = [*(yield from self.keep_queues(()))]
            others += yield from self.keep_channels(())
            for name in (yield from list_deleted()):
                others.append((yield from self.free(name)))
            for fault in filter(None, [one.fault for one in others]):
                log.error("%s", fault)
        kept = []
        for name in streams or (yield from list_streams()):
            done = yield from retention.keep(self.stream(name))
            kept.append(done)
        return kept

    def free(self, deleted: str) -> Operation[Kept]:
        """Free a part of what a deleted stream leaves."""
        from headwater.log.retention import Kept, free

        fault = None
        try:
            yield from free(self.stream(deleted))
        except Exception as error:  # noqa: BLE001  whatever it is, other streams can be kept
            fault = fault_of_one(error)
        return Kept(deleted, fault=fault)

    def keep_queues(self, queues: Sequence[str]) -> Operation[list[KeptQueue]]:
        """Keep the named queues, or all."""
        from headwater.queue import upkeep
        from headwater.queue.handles import list_queues

        kept = []
        for name in queues or (yield from list_queues()):
            done = yield from upkeep.keep(self.queue(name))
            kept.append(done)
        return kept

    def keep_channels(self, channels: Sequence[str]) -> Operation[list[KeptChannel]]:
        """Keep the named channels, or all."""
        from headwater.ick.channels import finish_change, list_channels
        from headwater.ick.types import KeptChannel

        kept = []
        for name in channels or (yield from list_channels()):
            handle = self.channel(name, None, self.member)
            try:
                layout = yield from finish_change(handle)
            except Exception as error:  # noqa: BLE001  whatever it is, the others can be kept
                kept.append(KeptChannel(name, False, 0, fault_of_one(error)))
                continue
            if layout is not None:
                kept.append(KeptChannel(name, layout.settled, layout.leases))
        return kept
