"""Reads of a topic over HTTP: all partitions from a place on, as passages, lines or Arrow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.log.aio_topic import AsyncTopic
from headwater.log.header_columns import MAP
from headwater.log.runs import SCHEMA
from headwater.log.topics import PARTITION, in_partition, with_partition
from headwater.log.types import Passage
from headwater.serve.api.formats import arrow_pieces
from headwater.views.streams import GoneView, MessageView, OffsetsView

_PAGE: Final = 1000

_encode = msgspec.json.Encoder().encode


async def passages(topic: AsyncTopic[Any], at: list[int], count: int) -> list[Passage[Any]]:
    """Read on in every partition, this many messages of each."""
    streams = [await topic.partition(place) for place in range(len(at))]
    return await asyncio.gather(
        *(stream.read_from(start, count) for stream, start in zip(streams, at, strict=True))
    )


def nothing_new(found: list[Passage[Any]], at: list[int]) -> bool:
    """Return whether no partition has anything from its offset on."""
    return all(one.next == start for one, start in zip(found, at, strict=True))


def gone(place: int, gap: tuple[int, int]) -> GoneView:
    """Return the view of offsets of a partition that were evicted."""
    return GoneView(partition=place, gone=OffsetsView(first=gap[0], last=gap[1]))


async def lines(topic: AsyncTopic[Any], at: list[int], count: int) -> AsyncGenerator[bytes, None]:
    """Yield up to ``count`` messages, a line each, and a line for each gap."""
    while count:
        found = await passages(topic, at, max(1, min(count, _PAGE) // len(at)))
        if nothing_new(found, at):
            return
        page: list[bytes] = []
        for place, one in enumerate(found):
            if one.gap is not None and count:
                page.append(_encode(gone(place, one.gap)) + b"\n")
            messages = in_partition(place, one.messages[:count])
            page += [_encode(MessageView.of(message)) + b"\n" for message in messages]
            count -= len(messages)
        yield b"".join(page)
        at = [one.next for one in found]


def arrow(
    topic: AsyncTopic[Any], at: list[int], count: int, *, headers: bool
) -> AsyncGenerator[bytes, None]:
    """Yield up to ``count`` messages as an Arrow IPC stream, with a column for the partition."""
    columns = [PARTITION, *SCHEMA, *([MAP] if headers else [])]
    return arrow_pieces(_in_turn(topic, at, headers), count, pa.schema(columns))


async def _in_turn(
    topic: AsyncTopic[Any], at: list[int], headers: bool
) -> AsyncIterator[pa.RecordBatch]:
    """Yield batches of the partitions in turn, until all of them end."""
    scans = {
        place: aiter((await topic.partition(place)).scan(start, headers=headers))
        for place, start in enumerate(at)
    }
    while scans:
        for place, scan in list(scans.items()):
            try:
                yield with_partition(await anext(scan), place)
            except StopAsyncIteration:
                del scans[place]
