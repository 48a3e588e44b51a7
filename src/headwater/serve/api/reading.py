"""Streams and topics as requests read them: partition by partition, of which a stream is one.

A position in a topic is an offset in each partition, ``5.1.12``: a read returns the position to
continue at, and the id of an event is the position behind it. In a stream a position is an offset,
and the id of an event is the offset of its message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from msgspec import UNSET, UnsetType

from headwater.errors import InvalidInput, LostFuture, UnknownTopic
from headwater.kernel.headers import LIST_BYTES, bytes_of
from headwater.log.handles import StreamHandle
from headwater.log.keys import MAX_OFFSET
from headwater.log.node import MAP, SCHEMA
from headwater.log.reading import info, partitions_of
from headwater.log.topics import PARTITION, with_partition
from headwater.log.types import Passage, StreamInfo
from headwater.serve.api.formats import arrow_pieces
from headwater.serve.fields import MAX_DIGITS
from headwater.store.many import together
from headwater.views.streams import GoneView, MessageView, OffsetsView

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater
    from headwater.log.aio_stream import AsyncStream

# A piece is read and encoded in some milliseconds, in which the process does nothing else.
PIECE_MESSAGES: Final = 1000
PIECE_BYTES: Final = 256 << 10
# So many partitions are read at once; each may have a message of the largest size.
_TOGETHER: Final = 8

_encode = msgspec.json.Encoder().encode


class Source:
    """A stream, or the ``partitions`` of a topic, as requests read them."""

    def __init__(self, hw: AsyncHeadwater, name: str, partitions: int | None = None) -> None:
        self._hw = hw
        self.name = name
        self.in_topic = partitions is not None
        self.names = (
            [name] if partitions is None else [f"{name}/{number}" for number in range(partitions)]
        )
        self._streams: list[AsyncStream[Any]] = []

    @property
    def streams(self) -> list[AsyncStream[Any]]:
        """The stream of each partition; raises InvalidInput for a name that cannot be."""
        self._streams = self._streams or [self._hw.stream(name) for name in self.names]
        return self._streams

    def rest(self) -> None:
        """Drop the nodes that were read last, which thousands of idle tails must not keep."""
        self._streams = []

    async def infos(self) -> list[StreamInfo]:
        """Return the state of each partition."""
        if not self.in_topic:
            return [await self.streams[0].info()]
        handles = [StreamHandle(name, set()) for name in self.names]
        return await self._hw.store.run(together(list(map(info, handles))))

    async def begin(self, position: int | str) -> list[int]:
        """Return the offset in each partition from which to begin; raises InvalidInput."""
        if position in ("first", "last"):
            return [
                max(facts.first, 1) if position == "first" else facts.last + 1
                for facts in await self.infos()
            ]
        return [position] if isinstance(position, int) else self._offsets(position, _NO_POSITION)

    async def behind(self, seen: str) -> list[int]:
        """Return where to go on behind the event that a client has seen.

        A tail that began elsewhere would leave messages out, and the client would not know. Raises
        InvalidInput, and LostFuture for what is not there any more.
        """
        ends = self._offsets(seen, _NO_ID if self.in_topic else _NO_OFFSET)
        at = ends if self.in_topic else [ends[0] + 1]
        for offset, facts in zip(at, await self.infos(), strict=True):
            if offset - 1 > facts.last:
                raise LostFuture(facts.name, facts.last + 1, offset - 1)
        return at

    def _offsets(self, text: str, refusal: str) -> list[int]:
        parts = text.split(".") if self.in_topic else [text]
        if not all(one.isascii() and one.isdecimal() and len(one) <= MAX_DIGITS for one in parts):
            raise InvalidInput(f"{text[:100]!r} {refusal}")
        offsets = [int(part) for part in parts]
        fits = len(offsets) == len(self.names) and all(1 <= one <= MAX_OFFSET for one in offsets)
        if self.in_topic and not fits:
            raise InvalidInput(
                f"topic {self.name!r} has {len(self.names)} partitions; give an offset from 1 on "
                "for each"
            )
        return offsets

    async def passages(
        self, at: Sequence[int], count: int, max_bytes: int = LIST_BYTES
    ) -> list[Passage[Any]]:
        """Read on in every partition, this many messages of each, up to so many bytes in all.

        Partitions that are not reached are as they were: the next read begins with another one.
        """
        streams = self.streams
        if len(streams) == 1:
            return [await streams[0].read_from(at[0], count, max_bytes=max_bytes)]
        first = sum(at) % len(at)
        order = (*range(first, len(at)), *range(first))
        passages: dict[int, Passage[Any]] = {}
        room, share = max_bytes, max(1, max_bytes // len(at))
        for begin in range(0, len(order), _TOGETHER):
            some = order[begin : begin + _TOGETHER]
            reads = [streams[one].read_from(at[one], count, max_bytes=share) for one in some]
            for one, passage in zip(some, await asyncio.gather(*reads), strict=True):
                if room > 0:
                    passages[one] = passage
                    room -= bytes_of(passage.messages)
            if room <= 0:
                break
        if len(passages) < len(at):
            for one, facts in enumerate(await self.infos()):
                passages.setdefault(one, Passage([], at[one], None, facts.last))
        return [passages[one] for one in range(len(at))]

    def partition(self, number: int) -> int | UnsetType:
        """Return a partition as views show it: the one of a stream is not shown."""
        return number if self.in_topic else UNSET

    def lines_of(self, passages: list[Passage[Any]], count: int) -> list[bytes]:
        """Return up to ``count`` messages, a line of JSON each, and a line for each gap."""
        lines: list[bytes] = []
        for number, passage in enumerate(passages):
            partition = self.partition(number)
            if passage.gap is not None and count:
                lines.append(_encode(gone(passage.gap, partition)) + b"\n")
            some = passage.messages[:count]
            lines += [_encode(MessageView.of(message, partition)) + b"\n" for message in some]
            count -= len(some)
        return lines

    def events_of(self, passages: list[Passage[Any]], at: Sequence[int]) -> bytes:
        """Return what was read from a position on as events, and what was evicted before."""
        behind = list(at)
        events: list[bytes] = []
        for number, passage in enumerate(passages):
            partition = self.partition(number)
            if passage.gap is not None:
                behind[number] = passage.gap[1] + 1
                first, last = passage.gap
                view = gone(passage.gap, partition) if self.in_topic else _offsets(first, last)
                events.append(b"event: skipped\n" + self._event(behind, view))
            for message in passage.messages:
                behind[number] = message.offset + 1
                events.append(self._event(behind, MessageView.of(message, partition)))
            behind[number] = passage.next
        return b"".join(events)

    def _event(self, behind: list[int], view: msgspec.Struct) -> bytes:
        event = spelled(behind).encode() if self.in_topic else b"%d" % (behind[0] - 1)
        return b"id: %b\ndata: %b\n\n" % (event, _encode(view))

    def arrow(self, at: list[int], count: int, *, headers: bool) -> AsyncGenerator[bytes, None]:
        """Yield up to ``count`` messages as an Arrow IPC stream; a topic has a column more."""
        columns = [*([PARTITION] if self.in_topic else []), *SCHEMA, *([MAP] if headers else [])]
        return arrow_pieces(self._in_turn(at, headers), count, pa.schema(columns))

    async def _in_turn(self, at: list[int], headers: bool) -> AsyncIterator[pa.RecordBatch]:
        """Yield batches of the partitions in turn, until all of them end."""
        scans = {
            number: aiter(self.streams[number].scan(start, headers=headers))
            for number, start in enumerate(at)
        }
        while scans:
            for number, scan in list(scans.items()):
                try:
                    batch = await anext(scan)
                except StopAsyncIteration:
                    del scans[number]
                else:
                    yield with_partition(batch, number) if self.in_topic else batch


async def topic_source(hw: AsyncHeadwater, name: str) -> Source:
    """Return a topic as it is read; raises UnknownTopic for one that is not there."""
    partitions = await hw.store.run(partitions_of(name))
    if not partitions:
        raise UnknownTopic(name)
    return Source(hw, name, partitions)


def nothing_new(passages: list[Passage[Any]], at: Sequence[int]) -> bool:
    """Return whether no partition has anything from its offset on."""
    return all(passage.next == start for passage, start in zip(passages, at, strict=True))


def gone(gap: tuple[int, int], partition: int | UnsetType = UNSET) -> GoneView:
    """Return the view of offsets that were evicted."""
    return GoneView(partition=partition, gone=_offsets(*gap))


def _offsets(first: int, last: int) -> OffsetsView:
    return OffsetsView(first=first, last=last)


def spelled(offsets: Sequence[int]) -> str:
    """Return a position in a topic as requests name it."""
    return ".".join(map(str, offsets))


_NO_POSITION: Final = "is not a position in a topic; give first, last, or offsets such as 5.1.12"
_NO_ID: Final = (
    "is no id of an event here: that is an offset for each partition, such as 5.1.12; leave the "
    "header Last-Event-ID out to begin anew"
)
_NO_OFFSET: Final = (
    "is no id of an event here: that is an offset; leave the header Last-Event-ID out to begin anew"
)
