"""Streams for asyncio, and what topics share with them: thin shells over the operations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, overload

import pyarrow as pa

from headwater.kernel.codecs import D
from headwater.kernel.declaring import DOORS, Scope, operation
from headwater.kernel.headers import GivenHeaders
from headwater.kernel.inputs import Duration
from headwater.log import inspecting, node, reading, retention, writing
from headwater.log.aio_group import AsyncGroup
from headwater.log.handles import (
    Entry,
    GroupHandle,
    GroupOptions,
    Position,
    ProducerName,
    ReaderName,
    Start,
    StreamHandle,
    TimeMs,
    batch_of_entries,
    total,
)
from headwater.log.node import with_maps
from headwater.log.retention import Compacting, EvictUpTo, Force, MarkerMs, PastReaders
from headwater.log.types import (
    MaxAgeMs,
    MaxBytes,
    MaxCount,
    MaxIdleMs,
    Message,
    Passage,
    Published,
    Retained,
    Searched,
    StreamInfo,
    WithInfo,
)
from headwater.store.call import Operation

if TYPE_CHECKING:
    from headwater.log.topics import TopicHandle
    from headwater.store.aio_store import AsyncStore


# Where a message went, and where a batch did.
At = TypeVar("At")
Range = TypeVar("Range")


class AsyncLog(Generic[At, Range, D]):
    """What a stream and a topic have in common: how they are written and kept.

    An operation of a topic is done in one partition after the other, and what it returns is merged.
    """

    _handle: StreamHandle | TopicHandle
    _write: Callable[..., Operation[At]]
    _append: Callable[..., Operation[Range]]

    def __init__(self, store: AsyncStore, handle: StreamHandle | TopicHandle, member: str) -> None:
        self._run = store.run
        self._store = store
        self._member = member
        self.name = handle.name
        self.codec = handle.coder

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @operation(Scope.WRITE, "offset", override=DOORS)
    async def write(
        self,
        tag: str,
        value: D | str,
        *,
        backlog: int | None = None,
        headers: GivenHeaders | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> At:
        """Append one message and return its offset, in a topic with the partition of its tag.

        It is in the log when this returns. ``backlog`` then evicts old messages so that at least
        that many remain; it never passes a registered reader. ``headers`` are a small map beside
        the value, of names to bytes or str. Raises OutcomeUnknown when the connection broke in
        between; with ``producer`` and ``sequence`` the client repeats the write instead, as
        write_many does. One round trip.
        """
        encoded = self._handle.encoded(value)
        return await self._run(
            self._write(self._handle, tag, encoded, backlog, headers, producer, sequence)
        )

    async def write_many(
        self,
        entries: Iterable[Entry[D]],
        *,
        backlog: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Range:
        """Append (tag, value) pairs, all or none; returns their offsets, of a topic by partition.

        An entry may also be (tag, value, headers), or a message that was read, which is copied.
        With ``producer`` and ``sequence`` (increasing per producer) a repeat changes nothing and
        returns the offsets of the first time; the last 128 sequences of a producer are remembered.
        Raises StaleSequence for an older one, and ReusedSequence for one with other content. One
        round trip for each partition; a write to a topic is all or none in each of them.
        """
        batch = batch_of_entries(self._handle.encoded_entries(entries), carry=producer is None)
        return await self._run(self._append(self._handle, batch, backlog, producer, sequence))

    async def append(
        self,
        arrow_batch: pa.RecordBatch | pa.Table,
        *,
        backlog: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Range:
        """Append Arrow columns tag, value and, if present, time and headers (map<string, binary>).

        Without headers, no row is touched.
        """
        batch = node.from_arrow(arrow_batch)
        return await self._run(self._append(self._handle, batch, backlog, producer, sequence))

    @operation(Scope.ADMIN, http="PUT retention", override=("command line",))
    async def retain(
        self,
        *,
        max_count: MaxCount = None,
        max_age_ms: MaxAgeMs = None,
        max_bytes: MaxBytes = None,
        max_idle_ms: MaxIdleMs = None,
        force: Force = False,
    ) -> Retained:
        """Set how much is kept, and evict what is beyond it now.

        Eviction never passes the slowest group or registered reader unless ``force``; one that was
        silent for longer than ``max_idle_ms`` is not waited for, and gets its gap reported when it
        reads again. ``headwater keep`` applies the policy from then on. Without any limit,
        everything is kept. Each limit holds for every partition of a topic by itself; then sums are
        returned, and who holds up the most.
        """
        policy = retention.policy_of(max_count, max_age_ms, max_bytes, max_idle_ms)
        act = partial(retention.retain, policy=policy, force=force)
        return await self._run(self._handle.across(retention.retained_in_all, act))

    @operation(Scope.ADMIN, "removed", says="removed {removed:message}")
    async def compact(self, *, marker_ms: MarkerMs = retention.MARKER_MS) -> int:
        """Remove all but the last message of each tag, read by groups or not; returns how many.

        Offsets stay. An empty value marks a tag as deleted; the mark is removed once it is older
        than ``marker_ms`` and every registered reader is past it.
        """
        return await self._run(
            self._handle.across(total, partial(retention.compact, marker_ms=marker_ms))
        )

    @operation(
        Scope.ADMIN,
        "set",
        http="PUT compaction",
        says="noted for `headwater keep`",
    )
    async def auto_compact(
        self, on: Compacting = True, *, marker_ms: MarkerMs = retention.MARKER_MS
    ) -> None:
        """Ask ``headwater keep`` to compact from now on, or no longer.

        It does so when at least half of the messages are newer than the last compaction.
        """
        act = partial(retention.auto_compact, on=on, marker_ms=marker_ms)
        await self._run(self._handle.across(lambda _: None, act))

    @operation(Scope.ADMIN, "sealed", says="sealed {sealed:message}")
    async def seal(self) -> int:
        """Pack everything written so far as small as possible; returns how many were sealed."""
        return await self._run(self._handle.across(total, retention.seal_all))


class AsyncStream(AsyncLog[int, range, D], Generic[D]):
    """A durable sequence of messages with dense offsets from 1.

    Its first write creates it; before that it reads as empty.
    """

    _handle: StreamHandle

    def __init__(self, store: AsyncStore, handle: StreamHandle, member: str) -> None:
        super().__init__(store, handle, member)
        self._handle = handle
        self._write = writing.write
        self._append = writing.append

    async def stage(
        self,
        arrow_batch: pa.RecordBatch | pa.Table,
        into: str,
        *,
        place: int = 0,
        keep_ms: Duration = writing.STAGED_MS,
    ) -> int:
        """Stage Arrow columns, as append takes them, to be published later.

        ``into`` names the staging. The first batch goes to place 0, each next one to the place
        that the one before returned; so a repeat changes nothing. No reader sees a staging, and the
        server drops it when nothing is added for ``keep_ms``. Raises StagingGone. One round trip.
        """
        batch = node.from_arrow(arrow_batch)
        return await self._run(writing.stage(self._handle, batch, into, place, keep_ms))

    async def publish(
        self, *stagings: str, producer: str, sequence: int, content: str | None = None
    ) -> Published:
        """Append what is staged under these names, in order, once for each (producer, sequence).

        A publish that has begun will be in the stream as a whole: a repeat by any client, or the
        housekeeper, finishes it. A repeat drops what is staged under the names it is given, and
        returns where the first one is. Raises StagingGone when one of them is not there, and
        StaleSequence; then nothing has happened. ``content`` is a digest of what they hold, in hex:
        a repeat with another one raises ReusedSequence. A round trip for each 256 nodes or 8 MiB.
        """
        return await self._run(writing.publish(self._handle, stagings, producer, sequence, content))

    async def unstage(self, *stagings: str) -> int:
        """Drop what is staged under these names; returns how many were there.

        A staging that is being published stays.
        """
        return await self._run(writing.unstage(self._handle, stagings))

    @overload
    async def read(
        self,
        offset: int,
        count: int,
        *,
        block_ms: Duration | float | None = None,
        with_info: Literal[False] = False,
    ) -> list[Message[D] | None]: ...
    @overload
    async def read(
        self,
        offset: int,
        count: int,
        *,
        block_ms: Duration | float | None = None,
        with_info: Literal[True],
    ) -> WithInfo[Message[D] | None]: ...
    @operation(Scope.READ, "messages", override=DOORS)
    async def read(
        self,
        offset: int,
        count: int,
        *,
        block_ms: Duration | float | None = None,
        with_info: bool = False,
    ) -> list[Message[D] | None] | WithInfo[Message[D] | None]:
        """Read up to ``count`` messages from ``offset`` on.

        Place i of the list belongs to ``offset + i``; it is None when that message was evicted
        or compacted away. The list is shorter at the end of the stream, and empty beyond it; then
        ``block_ms`` waits for the offset to be written. ``with_info`` returns also the first and
        last offset that the stream holds, of the same reply; a count of 0 asks for these alone.
        O(log n) to find the place; one round trip for each 4 MiB.
        """
        found, first, last = await self._run(
            reading.read(self._handle, offset, count, block_ms, with_info=with_info)
        )
        messages = self._handle.decoded(found)
        return WithInfo(messages, first, last) if with_info else messages

    async def read_from(
        self,
        offset: int,
        count: int,
        *,
        block_ms: Duration | float | None = None,
        max_bytes: int | None = None,
    ) -> Passage[D]:
        """Read on from ``offset``: up to ``count`` messages, and the offset to continue from.

        This is for readers that keep their own position. It returns fewer messages when they have
        ``max_bytes`` or are large: memory stays bounded. Holes that compaction left are passed
        over; evicted offsets are returned as an exact gap. ``block_ms`` waits while there is
        nothing to see.
        """
        found = reading.read_from(self._handle, offset, count, block_ms, max_bytes=max_bytes)
        passage = await self._run(found)
        return Passage(self._handle.decoded(passage.messages), *passage[1:])

    async def scan(
        self, start: int | None = None, stop: int | None = None, *, headers: bool = False
    ) -> AsyncIterator[pa.RecordBatch]:
        """Yield the messages of start..stop-1 as record batches: offset, tag, value, time.

        With ``headers``, a further column has them: map<string, binary>. The scan ends where the
        stream ends when it gets there. Evicted and compacted offsets are left out.
        """
        at, end = reading.scan_range(start, stop)
        while at and at < end:
            batches, at, *_ = await self._run(
                reading.scan_part(self._handle, at, end, headers=headers)
            )
            for batch in batches:
                yield with_maps(batch) if headers else batch

    @operation(
        Scope.READ,
        "found",
        override=("command line", "HTTP"),
        absent={
            "RESP": "its answer is a page with places to continue from, which clients expect "
            "of HTTP"
        },
    )
    async def search(
        self,
        *,
        tag: str | None = None,
        text: str | None = None,
        where: str | None = None,
        start: int | None = None,
        newest_first: bool = False,
        count: int = 100,
        max_messages: int | None = None,
        max_ms: int | None = None,
        max_bytes: int | None = None,
    ) -> Searched[D]:
        """Search for messages by tag, by a text in the value, by a field of a JSON value.

        In ``tag`` a * stands for any text; ``where`` is like ``fare.amount>12``. All that are given
        must hold. It begins at ``start``, or at the end with ``newest_first``, reads all messages
        on its way, and stops after ``count`` or ``max_bytes`` found, ``max_messages`` looked at or
        ``max_ms``: then ``next`` of the answer is where to continue.
        """
        asked = inspecting.SearchRequest(
            tag, text, where, start, newest_first, count, max_messages, max_ms, max_bytes
        )
        found = await self._run(inspecting.search(self._handle, asked))
        return found._replace(messages=self._handle.decoded(found.messages))

    @operation(Scope.READ, "state", override=DOORS)
    async def info(self) -> StreamInfo:
        """Return the state of the stream."""
        return await self._run(reading.info(self._handle))

    @operation(Scope.READ, "offset", http="GET offset", says="{offset}")
    async def offset_at(self, time_ms: TimeMs) -> int:
        """Return the offset of the first message at or after a time; last + 1 without one."""
        return await self._run(reading.offset_at(self._handle, time_ms))

    @operation(
        Scope.READ,
        "sequence",
        http="GET producers/{producer}",
        says="{sequence}",
        says_not="nothing is remembered of it",
    )
    async def newest_sequence(self, producer: ProducerName) -> int | None:
        """Return the newest sequence of a producer that is remembered, if there is one.

        A producer that starts again continues from there.
        """
        return await self._run(reading.newest_sequence(self._handle.key, producer))

    @operation(
        Scope.ADMIN,
        "evicted",
        asks="Evict all messages {which} from {stream}, also what groups have not read?",
        override=("command line",),
    )
    async def evict(self, n: EvictUpTo, *, past_readers: PastReaders = True) -> int:
        """Evict all messages up to an offset, or, for -n, all but the newest n.

        Returns how many. Where compaction left holes, a few more than n may stay, never fewer.
        Readers that still needed the messages are not waited for; each gets its gap reported.
        Without ``past_readers`` all stay that a group or a registered reader still needs.
        """
        return await self._run(retention.evict(self._handle, n, past_readers))

    async def register_reader(self, reader: str, offset: int) -> None:
        """Make retention wait for a reader outside the log, which needs ``offset`` next."""
        await self._run(retention.set_reader(self._handle.key, reader, offset))

    @operation(
        Scope.WRITE,
        "next",
        http="PUT readers/{reader}",
        says="{reader} needs {next} next",
        override=("command line",),
    )
    async def seek_reader(self, reader: ReaderName, position: Position) -> int:
        """Set which offset a reader outside the log needs next, and return it.

        Retention keeps everything from there on. A reader that is new is registered.
        """
        return await self._run(retention.seek_reader(self._handle, reader, position))

    @operation(
        Scope.WRITE,
        "forgotten",
        http="DELETE readers/{reader}",
        says="forgot {reader}",
        override=("command line",),
    )
    async def forget_reader(self, reader: ReaderName) -> None:
        """Make retention wait no longer for a reader."""
        await self._run(retention.set_reader(self._handle.key, reader, None))

    @operation(
        Scope.ADMIN,
        "deleted",
        http="DELETE ",
        resp="TDEL",
        says="deleted {stream}",
        asks="Delete {stream} with {info.length:message} and {info.groups:group}?",
        must=True,
    )
    async def delete(self) -> bool:
        """Remove the stream, its groups and its readers for good; returns whether it existed."""
        return await self._run(retention.delete(self._handle))

    def group(
        self,
        name: str,
        start: Start = "first",
        *,
        member: str | None = None,
        max_pending: int | None = None,
        dead_letters: bool | str | None = None,
        ordered: bool = False,
    ) -> AsyncGroup[D]:
        """Return a member's view of a group; its first read creates the group.

        A new group starts at "first", "last" (only what comes later), an offset, or a datetime.
        ``max_pending`` stops new deliveries while this many messages await their ack (0: no limit).
        ``dead_letters`` keeps what expires in a stream: True for one named after the group, or a
        name. None leaves both as the group has them. ``ordered`` has the group keep the order of
        each tag, for all its members and permanently: a message is delivered when the earlier
        messages of its tag are acknowledged or buried.
        """
        options = GroupOptions(start, max_pending, dead_letters, ordered)
        handle = GroupHandle(self._handle, name, member or self._member, options)
        return AsyncGroup(self._store, handle)
