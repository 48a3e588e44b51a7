# Generated from aio_stream.py by `make derived`, which renews it: change that file.
"""Streams for blocking code: thin shells over the operations."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Generic, Literal, overload

import pyarrow as pa

from headwater.kernel.codecs import D
from headwater.kernel.headers import GivenHeaders
from headwater.kernel.inputs import Duration
from headwater.log import inspecting, node, reading, retention, writing
from headwater.log.group import Group
from headwater.log.handles import Entry, GroupHandle, GroupOptions, Start, StreamHandle
from headwater.log.node import with_maps
from headwater.log.types import (
    Message,
    Passage,
    Published,
    Retained,
    Searched,
    StreamInfo,
    WithInfo,
)

if TYPE_CHECKING:
    from headwater.store.store import Store


class Stream(Generic[D]):
    """A durable sequence of messages with dense offsets from 1.

    Its first write creates it; before that it reads as empty.
    """

    def __init__(self, store: Store, handle: StreamHandle, member: str) -> None:
        self._run = store.run
        self._store = store
        self._handle = handle
        self._member = member
        self.name = handle.name
        self.codec = handle.coder

    def __repr__(self) -> str:
        return f"Stream({self.name!r})"

    def write(
        self,
        tag: str,
        value: D | str,
        *,
        backlog: int | None = None,
        headers: GivenHeaders | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> int:
        """Append one message and return its offset.

        It is in the log when this returns. ``backlog`` then evicts old messages so that at least
        that many remain; it never passes a registered reader. ``headers`` are a small map beside
        the value, of names to bytes or str. Raises OutcomeUnknown when the connection broke in
        between; with ``producer`` and ``sequence`` the client repeats the write instead, as
        write_many does. One round trip.
        """
        encoded = self._handle.encoded(value)
        return self._run(
            writing.write(self._handle, tag, encoded, backlog, headers, producer, sequence)
        )

    def write_many(
        self,
        entries: Iterable[Entry[D]],
        *,
        backlog: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> range:
        """Append (tag, value) pairs, all or none, and return their offsets.

        An entry may also be (tag, value, headers), or a message that was read, which is copied.
        With ``producer`` and ``sequence`` (increasing per producer) a repeat changes nothing and
        returns the offsets of the first time; the last 128 sequences of a producer are remembered.
        Raises StaleSequence for an older one, and ReusedSequence for one with other content. One
        round trip.
        """
        return self._run(
            writing.write_many(
                self._handle, self._handle.encoded_entries(entries), backlog, producer, sequence
            )
        )

    def append(
        self,
        arrow_batch: pa.RecordBatch | pa.Table,
        *,
        backlog: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> range:
        """Append Arrow columns tag, value and, if present, time and headers (map<string, binary>).

        Without headers, no row is touched.
        """
        batch = node.from_arrow(arrow_batch)
        return self._run(writing.append(self._handle, batch, backlog, producer, sequence))

    def stage(
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
        return self._run(writing.stage(self._handle, batch, into, place, keep_ms))

    def publish(
        self, *stagings: str, producer: str, sequence: int, content: str | None = None
    ) -> Published:
        """Append what is staged under these names, in order, once for each (producer, sequence).

        A publish that has begun will be in the stream as a whole: a repeat by any client, or the
        housekeeper, finishes it. A repeat drops what is staged under the names it is given, and
        returns where the first one is. Raises StagingGone when one of them is not there, and
        StaleSequence; then nothing has happened. ``content`` is a digest of what they hold, in hex:
        a repeat with another one raises ReusedSequence. A round trip for each 256 nodes or 8 MiB.
        """
        return self._run(writing.publish(self._handle, stagings, producer, sequence, content))

    def unstage(self, *stagings: str) -> int:
        """Drop what is staged under these names; returns how many were there.

        A staging that is being published stays.
        """
        return self._run(writing.unstage(self._handle, stagings))

    @overload
    def read(
        self,
        offset: int,
        count: int,
        *,
        block_ms: Duration | float | None = None,
        with_info: Literal[False] = False,
    ) -> list[Message[D] | None]: ...
    @overload
    def read(
        self,
        offset: int,
        count: int,
        *,
        block_ms: Duration | float | None = None,
        with_info: Literal[True],
    ) -> WithInfo[Message[D] | None]: ...
    def read(
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
        found, first, last = self._run(
            reading.read(self._handle, offset, count, block_ms, with_info=with_info)
        )
        messages = self._handle.decoded(found)
        return WithInfo(messages, first, last) if with_info else messages

    def read_from(
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
        passage = self._run(found)
        return Passage(self._handle.decoded(passage.messages), *passage[1:])

    def scan(
        self, start: int | None = None, stop: int | None = None, *, headers: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages of start..stop-1 as record batches: offset, tag, value, time.

        With ``headers``, a further column has them: map<string, binary>. The scan ends where the
        stream ends when it gets there. Evicted and compacted offsets are left out.
        """
        at, end = reading.scan_range(start, stop)
        while at and at < end:
            batches, at, *_ = self._run(reading.scan_part(self._handle, at, end, headers=headers))
            for batch in batches:
                yield with_maps(batch) if headers else batch

    def search(
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
        found = self._run(inspecting.search(self._handle, asked))
        return found._replace(messages=self._handle.decoded(found.messages))

    def info(self) -> StreamInfo:
        """Return the state of the stream."""
        return self._run(reading.info(self._handle))

    def offset_at(self, time_ms: int | dt.datetime) -> int:
        """Return the offset of the first message at or after a time; last + 1 without one."""
        return self._run(reading.offset_at(self._handle, time_ms))

    def newest_sequence(self, producer: str) -> int | None:
        """Return the newest sequence of a producer that is remembered; None when there is none.

        A producer that starts again continues from there.
        """
        return self._run(reading.newest_sequence(self._handle.key, producer))

    def evict(self, n: int, *, past_readers: bool = True) -> int:
        """Evict all messages up to offset ``n``, or, for -n, all but the newest n.

        Returns how many. Where compaction left holes, a few more than n may stay, never fewer.
        Readers that still needed the messages are not waited for; each gets its gap reported.
        Without ``past_readers`` all stay that a group or a registered reader still needs.
        """
        return self._run(retention.evict(self._handle, n, past_readers))

    def retain(
        self,
        *,
        max_count: int | None = None,
        max_age_ms: Duration | None = None,
        max_bytes: int | None = None,
        max_idle_ms: Duration | None = None,
        force: bool = False,
    ) -> Retained:
        """Set how much is kept, and evict what is beyond it now.

        Eviction never passes the slowest group or registered reader unless ``force``; one that was
        silent for longer than ``max_idle_ms`` is not waited for, and gets its gap reported when it
        reads again. ``headwater keep`` applies the policy from then on. Without any limit,
        everything is kept.
        """
        policy = retention.policy_of(max_count, max_age_ms, max_bytes, max_idle_ms)
        return self._run(retention.retain(self._handle.key, policy, force))

    def compact(self, *, marker_ms: Duration = retention.MARKER_MS) -> int:
        """Keep the last message of every tag; returns how many messages were removed.

        Offsets stay. An empty value marks a tag as deleted; the mark is removed once it is older
        than ``marker_ms`` and every registered reader is past it.
        """
        return self._run(retention.compact(self._handle, marker_ms))

    def auto_compact(self, on: bool = True, *, marker_ms: Duration = retention.MARKER_MS) -> None:
        """Ask ``headwater keep`` to compact from now on, or no longer.

        It does so when at least half of the messages are newer than the last compaction.
        """
        self._run(retention.auto_compact(self._handle.key, on, marker_ms))

    def seal(self) -> int:
        """Pack everything written so far as small as possible; returns how many left the tail."""
        return self._run(retention.seal_all(self._handle))

    def register_reader(self, reader: str, offset: int) -> None:
        """Make retention wait for a reader outside the log, which needs ``offset`` next."""
        self._run(retention.set_reader(self._handle.key, reader, offset))

    def seek_reader(self, reader: str, position: Start) -> int:
        """Set which offset a reader outside the log needs next; returns it. See Group.seek."""
        return self._run(retention.seek_reader(self._handle, reader, position))

    def forget_reader(self, reader: str) -> None:
        """Make retention wait no longer for a reader."""
        self._run(retention.set_reader(self._handle.key, reader, None))

    def delete(self) -> bool:
        """Remove the stream with its groups and readers; returns whether it existed."""
        return self._run(retention.delete(self._handle))

    def group(
        self,
        name: str,
        start: Start = "first",
        *,
        member: str | None = None,
        max_pending: int | None = None,
        dead_letters: bool | str | None = None,
        ordered: bool = False,
    ) -> Group[D]:
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
        return Group(self._store, handle)
