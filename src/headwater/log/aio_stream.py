"""Streams and groups for asyncio: the same names over the same operations."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Iterable
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
    from headwater.store.aio_store import AsyncStore


class AsyncStream:
    """A stream for asyncio; Stream says what each method promises."""

    def __init__(self, store: AsyncStore, handle: StreamHandle, member: str) -> None:
        self._run = store.run
        self._store = store
        self._handle = handle
        self._member = member
        self.name = handle.name

    def __repr__(self) -> str:
        return f"AsyncStream({self.name!r})"

    async def write(self, tag: str, value: bytes | str, *, backlog: int | None = None) -> int:
        """See Stream.write."""
        return await self._run(writing.write(self._handle, tag, value, backlog))

    async def write_many(
        self,
        entries: Iterable[tuple[str, bytes | str]],
        *,
        backlog: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> range:
        """See Stream.write_many."""
        return await self._run(
            writing.write_many(self._handle, entries, backlog, producer, sequence)
        )

    async def append(
        self,
        arrow_batch: pa.RecordBatch | pa.Table,
        *,
        backlog: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> range:
        """See Stream.append."""
        batch = node.from_arrow(arrow_batch)
        return await self._run(writing.append(self._handle, batch, backlog, producer, sequence))

    async def stage(
        self,
        arrow_batch: pa.RecordBatch | pa.Table,
        into: str,
        *,
        place: int = 0,
        keep_ms: int = staging.STAGED_MS,
    ) -> int:
        """See Stream.stage."""
        batch = node.from_arrow(arrow_batch)
        return await self._run(staging.stage(self._handle, batch, into, place, keep_ms))

    async def publish(self, *stagings: str, producer: str, sequence: int) -> Published:
        """See Stream.publish."""
        return await self._run(staging.publish(self._handle, stagings, producer, sequence))

    async def unstage(self, *stagings: str) -> int:
        """See Stream.unstage."""
        return await self._run(staging.unstage(self._handle, stagings))

    async def read(
        self, offset: int, count: int, *, block_ms: float | None = None
    ) -> list[Message | None]:
        """See Stream.read."""
        return await self._run(reading.read(self._handle, offset, count, block_ms))

    async def read_from(self, offset: int, count: int, *, block_ms: float | None = None) -> Passage:
        """See Stream.read_from."""
        return await self._run(reading.read_from(self._handle, offset, count, block_ms))

    async def scan(
        self, start: int | None = None, stop: int | None = None
    ) -> AsyncIterator[pa.RecordBatch]:
        """See Stream.scan."""
        at = 1 if start is None else check_offset(start, "start")
        end = MAX_OFFSET if stop is None else check_offset(stop, "stop")
        while at and at < end:
            batches, at, *_ = await self._run(reading.scan_part(self._handle, at, end))
            for batch in batches:
                yield batch

    async def info(self) -> StreamInfo:
        """See Stream.info."""
        return await self._run(reading.info(self._handle))

    async def offset_at(self, time_ms: int | dt.datetime) -> int:
        """See Stream.offset_at."""
        return await self._run(reading.offset_at(self._handle, time_ms))

    async def newest_sequence(self, producer: str) -> int | None:
        """See Stream.newest_sequence."""
        return await self._run(reading.newest_sequence(self._handle.key, producer))

    async def evict(self, n: int, *, past_readers: bool = True) -> int:
        """See Stream.evict."""
        return await self._run(retention.evict(self._handle, n, past_readers))

    async def retain(
        self,
        *,
        max_count: int | None = None,
        max_age_ms: int | None = None,
        max_bytes: int | None = None,
        force: bool = False,
    ) -> Retained:
        """See Stream.retain."""
        return await self._run(
            retention.retain(self._handle.key, Retention(max_count, max_age_ms, max_bytes), force)
        )

    async def compact(self, *, marker_ms: int = compaction.MARKER_MS) -> int:
        """See Stream.compact."""
        return await self._run(compaction.compact(self._handle, marker_ms))

    async def auto_compact(self, on: bool = True, *, marker_ms: int = compaction.MARKER_MS) -> None:
        """See Stream.auto_compact."""
        await self._run(housekeeping.auto_compact(self._handle.key, on, marker_ms))

    async def seal(self) -> int:
        """See Stream.seal."""
        return await self._run(housekeeping.seal_all(self._handle))

    async def register_reader(self, reader: str, offset: int) -> None:
        """See Stream.register_reader."""
        await self._run(retention.set_reader(self._handle.key, reader, offset))

    async def forget_reader(self, reader: str) -> None:
        """See Stream.forget_reader."""
        await self._run(retention.set_reader(self._handle.key, reader, None))

    async def delete(self) -> bool:
        """See Stream.delete."""
        return await self._run(retention.delete(self._handle))

    def group(
        self,
        name: str,
        start: Start = "first",
        *,
        member: str | None = None,
        max_pending: int | None = None,
        dead_letters: bool | str | None = None,
    ) -> AsyncGroup:
        """See Stream.group."""
        options = GroupOptions(start, max_pending, dead_letters)
        handle = GroupHandle(self._handle, name, member or self._member, options)
        return AsyncGroup(self._store, handle)


class AsyncGroup:
    """One member's view of a consumer group, for asyncio; see Group."""

    def __init__(self, store: AsyncStore, handle: GroupHandle) -> None:
        self._run = store.run
        self._handle = handle
        self.name = handle.name
        self.member = handle.member

    def __repr__(self) -> str:
        return f"AsyncGroup({self.name!r} of {self._handle.stream.name!r})"

    async def read(
        self,
        count: int,
        *,
        block_ms: float | None = None,
        retry_ms: int | None = None,
        expire_ms: int | None = None,
    ) -> list[Message]:
        """See Group.read."""
        return await self._run(grouping.read(self._handle, count, block_ms, retry_ms, expire_ms))

    async def ack(self, *offsets: int | tuple[int, int]) -> int:
        """See Group.ack."""
        return await self._run(acks.ack(self._handle, offsets))

    async def nack(self, *offsets: int | tuple[int, int], delay_ms: int = 0) -> int:
        """See Group.nack."""
        return await self._run(acks.nack(self._handle, offsets, delay_ms))

    async def extend(self, *offsets: int | tuple[int, int], retry_ms: int) -> int:
        """See Group.extend."""
        return await self._run(acks.extend(self._handle, offsets, retry_ms))

    async def seek(self, offset: Start) -> int:
        """See Group.seek."""
        return await self._run(grouping.seek(self._handle, offset))

    async def info(self) -> GroupInfo:
        """See Group.info."""
        return await self._run(grouping.info(self._handle))

    async def dead(self, count: int = 100) -> list[DeadLetter]:
        """See Group.dead."""
        return await self._run(dead_letters.dead(self._handle, count))

    async def redrive(self, count: int = MAX_READ) -> Redriven:
        """See Group.redrive."""
        return await self._run(dead_letters.redrive(self._handle, count))

    async def bury(self) -> int:
        """See Group.bury."""
        _, buried = await self._run(dead_letters.give_up(self._handle))
        return buried

    async def remove(self) -> bool:
        """See Group.remove."""
        return await self._run(grouping.remove(self._handle))
