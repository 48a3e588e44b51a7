"""Streams and groups for blocking code: thin shells over the operations."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.log import (
    acks,
    compaction,
    dead_letters,
    grouping,
    housekeeping,
    node,
    reading,
    retention,
    staging,
    writing,
)
from headwater.log.handles import GroupHandle, GroupOptions, Start, StreamHandle
from headwater.log.limits import MAX_OFFSET, MAX_READ, check_offset
from headwater.log.types import (
    DeadLetter,
    GroupInfo,
    Message,
    Passage,
    Published,
    Redriven,
    Retained,
    Retention,
    StreamInfo,
)

if TYPE_CHECKING:
    from headwater.store.store import Store


class Stream:
    """A durable sequence of messages with dense offsets from 1.

    It comes into being with its first write; before that it reads as empty.
    """

    def __init__(self, store: Store, handle: StreamHandle, member: str) -> None:
        self._run = store.run
        self._store = store
        self._handle = handle
        self._member = member
        self.name = handle.name

    def __repr__(self) -> str:
        return f"Stream({self.name!r})"

    def write(self, tag: str, value: bytes | str, *, backlog: int | None = None) -> int:
        """Append one message and return its offset.

        It is in the log when this returns. ``backlog`` then evicts old messages so that at least
        that many remain; it never passes a registered reader. Raises OutcomeUnknown when the
        connection broke in between. One round trip.
        """
        return self._run(writing.write(self._handle, tag, value, backlog))

    def write_many(
        self,
        entries: Iterable[tuple[str, bytes | str]],
        *,
        backlog: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> range:
        """Append (tag, value) pairs, all or none, and return their offsets.

        With ``producer`` and ``sequence`` (increasing per producer) a repeat changes nothing and
        returns the offsets of the first time; the last 128 sequences of a producer are remembered.
        Raises StaleSequence for an older one. One round trip.
        """
        return self._run(writing.write_many(self._handle, entries, backlog, producer, sequence))

    def append(
        self,
        arrow_batch: pa.RecordBatch | pa.Table,
        *,
        backlog: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> range:
        """Append Arrow columns tag, value and, if present, time, without touching a row."""
        batch = node.from_arrow(arrow_batch)
        return self._run(writing.append(self._handle, batch, backlog, producer, sequence))

    def stage(
        self,
        arrow_batch: pa.RecordBatch | pa.Table,
        into: str,
        *,
        place: int = 0,
        keep_ms: int = staging.STAGED_MS,
    ) -> int:
        """Put Arrow columns tag, value and, if present, time aside, to be published later.

        ``into`` names the staging. The first batch goes to place 0, each next one to the place
        that the one before returned; so a repeat changes nothing. Nobody sees them, and the server
        forgets them when nothing is added for ``keep_ms``. Raises StagingGone. One round trip.
        """
        batch = node.from_arrow(arrow_batch)
        return self._run(staging.stage(self._handle, batch, into, place, keep_ms))

    def publish(self, *stagings: str, producer: str, sequence: int) -> Published:
        """Append what is staged under these names, in order, once for each (producer, sequence).

        A publish that has begun will be in the stream as a whole: whoever repeats it, or the
        housekeeper, finishes it. A repeat drops what is staged under the names it gives, and
        returns where the first one lies. Raises StagingGone when one of them is not there, and
        StaleSequence; then nothing has happened. A round trip for each 256 nodes or 8 MiB.
        """
        return self._run(staging.publish(self._handle, stagings, producer, sequence))

    def unstage(self, *stagings: str) -> int:
        """Forget what is staged under these names; returns how many were there.

        What a publish has begun with stays with it.
        """
        return self._run(staging.unstage(self._handle, stagings))

    def read(
        self, offset: int, count: int, *, block_ms: float | None = None
    ) -> list[Message | None]:
        """Read up to ``count`` messages from ``offset`` on.

        Place i of the answer belongs to ``offset + i``; it is None when that message was evicted
        or compacted away. The answer is shorter at the end of the stream, and empty beyond it;
        then ``block_ms`` waits for the offset to come. O(log n) to find the place.
        """
        return self._run(reading.read(self._handle, offset, count, block_ms))

    def read_from(self, offset: int, count: int, *, block_ms: float | None = None) -> Passage:
        """Read on from ``offset``: up to ``count`` messages, and the offset to go on from.

        For readers that keep their own position. Fewer messages come when they are large, so that
        memory stays bounded. Holes that compaction left are passed over, even when there is no
        message behind them; evicted offsets are told as an exact gap. ``block_ms`` waits while
        there is nothing to see. At most a few round trips, however many the holes.
        """
        return self._run(reading.read_from(self._handle, offset, count, block_ms))

    def scan(self, start: int | None = None, stop: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the messages of start..stop-1 as record batches: offset, tag, value, time.

        Ends at what is the end when it gets there. Evicted and compacted offsets are left out.
        """
        at = 1 if start is None else check_offset(start, "start")
        end = MAX_OFFSET if stop is None else check_offset(stop, "stop")
        while at and at < end:
            batches, at, *_ = self._run(reading.scan_part(self._handle, at, end))
            yield from batches

    def info(self) -> StreamInfo:
        """Say where the stream stands."""
        return self._run(reading.info(self._handle))

    def offset_at(self, time_ms: int | dt.datetime) -> int:
        """Give the offset of the first message at or after a time; last + 1 when there is none."""
        return self._run(reading.offset_at(self._handle, time_ms))

    def newest_sequence(self, producer: str) -> int | None:
        """Give the newest sequence of a producer that is remembered; None when there is none.

        For a producer that starts again and has to know where to go on.
        """
        return self._run(reading.newest_sequence(self._handle.key, producer))

    def evict(self, n: int, *, past_readers: bool = True) -> int:
        """Forget all messages up to offset ``n``, or, for -n, those that are not the newest n.

        At least n stay then; where compaction left holes it may be a few more. Returns how many
        went. Readers that still needed them are not asked; each is told its gap. Without
        ``past_readers`` all stay that a group or a registered reader still needs.
        """
        return self._run(retention.evict(self._handle, n, past_readers))

    def retain(
        self,
        *,
        max_count: int | None = None,
        max_age_ms: int | None = None,
        max_bytes: int | None = None,
        force: bool = False,
    ) -> Retained:
        """Set how much is kept, and evict what is beyond it now.

        Never passes the slowest registered reader unless ``force``. ``headwater keep`` applies the
        policy from then on. Without any limit, everything is kept.
        """
        return self._run(
            retention.retain(self._handle.key, Retention(max_count, max_age_ms, max_bytes), force)
        )

    def compact(self, *, marker_ms: int = compaction.MARKER_MS) -> int:
        """Keep the last message of every tag; returns how many messages went.

        Offsets stay. An empty value marks a tag as deleted; the mark goes too once it is older
        than ``marker_ms`` and every registered reader is past it.
        """
        return self._run(compaction.compact(self._handle, marker_ms))

    def auto_compact(self, on: bool = True, *, marker_ms: int = compaction.MARKER_MS) -> None:
        """Ask ``headwater keep`` to compact from now on, or no longer.

        It does so when at least half of the messages have come since the last time.
        """
        self._run(housekeeping.auto_compact(self._handle.key, on, marker_ms))

    def seal(self) -> int:
        """Pack everything written so far as small as can be; returns how many left the tail."""
        return self._run(housekeeping.seal_all(self._handle))

    def register_reader(self, reader: str, offset: int) -> None:
        """Make retention wait for a reader outside the log, which needs ``offset`` next."""
        self._run(retention.set_reader(self._handle.key, reader, offset))

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
    ) -> Group:
        """Give a member's view of a group; the group comes into being with its first read.

        A new group starts at "first", "last" (only what comes later), an offset, or a datetime.
        ``max_pending`` stops new deliveries while so many messages await their ack (0: no limit).
        ``dead_letters`` keeps what expires in a stream: True for one named after the group, or a
        name. None leaves both as the group has them.
        """
        options = GroupOptions(start, max_pending, dead_letters)
        handle = GroupHandle(self._handle, name, member or self._member, options)
        return Group(self._store, handle)


class Group:
    """One member's view of a consumer group."""

    def __init__(self, store: Store, handle: GroupHandle) -> None:
        self._run = store.run
        self._handle = handle
        self.name = handle.name
        self.member = handle.member

    def __repr__(self) -> str:
        return f"Group({self.name!r} of {self._handle.stream.name!r})"

    def read(
        self,
        count: int,
        *,
        block_ms: float | None = None,
        retry_ms: int | None = None,
        expire_ms: int | None = None,
    ) -> list[Message]:
        """Take up to ``count`` messages that no other member has.

        With ``retry_ms`` each must be acknowledged, or it comes again after that time, to any
        member, with a higher ``attempt`` (at least once). ``expire_ms`` after its first delivery it
        is given up. Without ``retry_ms`` taking it is all (at most once). ``block_ms`` waits;
        blocked members are served in turn.
        """
        return self._run(grouping.read(self._handle, count, block_ms, retry_ms, expire_ms))

    def ack(self, *offsets: int | tuple[int, int]) -> int:
        """Say that messages are done: offsets and (start, end) ranges, ends included.

        Returns how many were pending until now; anything else is left as it is. Raises
        UnknownGroup.
        """
        return self._run(acks.ack(self._handle, offsets))

    def nack(self, *offsets: int | tuple[int, int], delay_ms: int = 0) -> int:
        """Give messages back, to come again after ``delay_ms``; returns how many were pending."""
        return self._run(acks.nack(self._handle, offsets, delay_ms))

    def extend(self, *offsets: int | tuple[int, int], retry_ms: int) -> int:
        """Take more time: messages come again ``retry_ms`` from now; returns how many."""
        return self._run(acks.extend(self._handle, offsets, retry_ms))

    def seek(self, offset: Start) -> int:
        """Set where the group stands, and return it: all before is done, all from it on is new."""
        return self._run(grouping.seek(self._handle, offset))

    def info(self) -> GroupInfo:
        """Say where the group stands; raises UnknownGroup before its first read."""
        return self._run(grouping.info(self._handle))

    def dead(self, count: int = 100) -> list[DeadLetter]:
        """Look at the oldest dead letters."""
        return self._run(dead_letters.dead(self._handle, count))

    def redrive(self, count: int = MAX_READ) -> Redriven:
        """Give dead letters back to the group, as if they had never been tried."""
        return self._run(dead_letters.redrive(self._handle, count))

    def bury(self) -> int:
        """Give up what has expired now; returns how many messages went to the dead letters.

        Reads and ``headwater keep`` do this by themselves.
        """
        _, buried = self._run(dead_letters.give_up(self._handle))
        return buried

    def remove(self) -> bool:
        """End the group, so that retention no longer waits for it; returns whether it existed."""
        return self._run(grouping.remove(self._handle))
