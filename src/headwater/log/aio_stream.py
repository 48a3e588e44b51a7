"""Streams for asyncio: the same names over the same operations."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Generic, Literal, overload

import pyarrow as pa

from headwater.kernel.codecs import D
from headwater.kernel.headers import GivenHeaders
from headwater.kernel.inputs import Duration
from headwater.log import inspecting, node, reading, retention, writing
from headwater.log.aio_group import AsyncGroup
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
    from headwater.store.aio_store import AsyncStore


class AsyncStream(Generic[D]):
    """A stream for asyncio; Stream says what each method promises."""

    def __init__(self, store: AsyncStore, handle: StreamHandle, member: str) -> None:
        self._run = store.run
        self._store = store
        self._handle = handle
        self._member = member
        self.name = handle.name
        self.codec = handle.coder

    def __repr__(self) -> str:
        return f"AsyncStream({self.name!r})"

    async def write(
        self,
        tag: str,
        value: D | str,
        *,
        backlog: int | None = None,
        headers: GivenHeaders | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> int:
        """Append one message and return its offset; see Stream.write."""
        return await self._run(
            writing.write(
                self._handle,
                tag,
                self._handle.encoded(value),
                backlog,
                headers,
                producer,
                sequence,
            )
        )

    async def write_many(
        self,
        entries: Iterable[Entry[D]],
        *,
        backlog: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> range:
        """Append entries, all or none; returns their offsets. See Stream.write_many."""
        return await self._run(
            writing.write_many(
                self._handle, self._handle.encoded_entries(entries), backlog, producer, sequence
            )
        )

    async def append(
        self,
        arrow_batch: pa.RecordBatch | pa.Table,
        *,
        backlog: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> range:
        """Append Arrow columns; see Stream.append."""
        batch = node.from_arrow(arrow_batch)
        return await self._run(writing.append(self._handle, batch, backlog, producer, sequence))

    async def stage(
        self,
        arrow_batch: pa.RecordBatch | pa.Table,
        into: str,
        *,
        place: int = 0,
        keep_ms: Duration = writing.STAGED_MS,
    ) -> int:
        """Stage Arrow columns, to be published later; see Stream.stage."""
        batch = node.from_arrow(arrow_batch)
        return await self._run(writing.stage(self._handle, batch, into, place, keep_ms))

    async def publish(
        self, *stagings: str, producer: str, sequence: int, content: str | None = None
    ) -> Published:
        """Append what is staged under these names, in order and once; see Stream.publish."""
        return await self._run(writing.publish(self._handle, stagings, producer, sequence, content))

    async def unstage(self, *stagings: str) -> int:
        """Drop what is staged under these names; returns how many were there."""
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
    async def read(
        self,
        offset: int,
        count: int,
        *,
        block_ms: Duration | float | None = None,
        with_info: bool = False,
    ) -> list[Message[D] | None] | WithInfo[Message[D] | None]:
        """Read up to ``count`` messages from ``offset`` on; see Stream.read."""
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
        """Read on from ``offset``, over holes and gaps; see Stream.read_from."""
        found = reading.read_from(self._handle, offset, count, block_ms, max_bytes=max_bytes)
        passage = await self._run(found)
        return Passage(self._handle.decoded(passage.messages), *passage[1:])

    async def scan(
        self, start: int | None = None, stop: int | None = None, *, headers: bool = False
    ) -> AsyncIterator[pa.RecordBatch]:
        """Yield the messages of start..stop-1 as record batches; see Stream.scan."""
        at, end = reading.scan_range(start, stop)
        while at and at < end:
            batches, at, *_ = await self._run(
                reading.scan_part(self._handle, at, end, headers=headers)
            )
            for batch in batches:
                yield with_maps(batch) if headers else batch

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
        """Search for messages within a budget; see Stream.search."""
        asked = inspecting.SearchRequest(
            tag, text, where, start, newest_first, count, max_messages, max_ms, max_bytes
        )
        found = await self._run(inspecting.search(self._handle, asked))
        return found._replace(messages=self._handle.decoded(found.messages))

    async def info(self) -> StreamInfo:
        """Return the state of the stream."""
        return await self._run(reading.info(self._handle))

    async def offset_at(self, time_ms: int | dt.datetime) -> int:
        """Return the offset of the first message at or after a time; last + 1 without one."""
        return await self._run(reading.offset_at(self._handle, time_ms))

    async def newest_sequence(self, producer: str) -> int | None:
        """Return the newest sequence of a producer that is remembered, or None."""
        return await self._run(reading.newest_sequence(self._handle.key, producer))

    async def evict(self, n: int, *, past_readers: bool = True) -> int:
        """Evict all messages up to ``n``, or all but the newest -n; see Stream.evict."""
        return await self._run(retention.evict(self._handle, n, past_readers))

    async def retain(
        self,
        *,
        max_count: int | None = None,
        max_age_ms: Duration | None = None,
        max_bytes: int | None = None,
        max_idle_ms: Duration | None = None,
        force: bool = False,
    ) -> Retained:
        """Set how much is kept, and evict what is beyond it now; see Stream.retain."""
        policy = retention.policy_of(max_count, max_age_ms, max_bytes, max_idle_ms)
        return await self._run(retention.retain(self._handle.key, policy, force))

    async def compact(self, *, marker_ms: Duration = retention.MARKER_MS) -> int:
        """Keep the last message of every tag; see Stream.compact."""
        return await self._run(retention.compact(self._handle, marker_ms))

    async def auto_compact(
        self, on: bool = True, *, marker_ms: Duration = retention.MARKER_MS
    ) -> None:
        """Ask ``headwater keep`` to compact from now on, or no longer."""
        await self._run(retention.auto_compact(self._handle.key, on, marker_ms))

    async def seal(self) -> int:
        """Pack everything written so far as small as possible; returns how many left the tail."""
        return await self._run(retention.seal_all(self._handle))

    async def register_reader(self, reader: str, offset: int) -> None:
        """Make retention wait for a reader outside the log, which needs ``offset`` next."""
        await self._run(retention.set_reader(self._handle.key, reader, offset))

    async def seek_reader(self, reader: str, position: Start) -> int:
        """Set which offset a reader outside the log needs next, and return it; see Group.seek."""
        return await self._run(retention.seek_reader(self._handle, reader, position))

    async def forget_reader(self, reader: str) -> None:
        """Make retention wait no longer for a reader."""
        await self._run(retention.set_reader(self._handle.key, reader, None))

    async def delete(self) -> bool:
        """Remove the stream with its groups and readers; returns whether it existed."""
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
        """Return a member's view of a group; its first read creates the group. See Stream.group."""
        options = GroupOptions(start, max_pending, dead_letters, ordered)
        handle = GroupHandle(self._handle, name, member or self._member, options)
        return AsyncGroup(self._store, handle)
