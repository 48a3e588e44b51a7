"""Reads of a topic over HTTP: all partitions from a place on, as passages, lines or Arrow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.kernel.headers import LIST_BYTES, bytes_of
from headwater.log.aio_topic import AsyncTopic
from headwater.log.node import MAP, SCHEMA
from headwater.log.topics import PARTITION, in_partition, with_partition
from headwater.log.types import Passage
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.formats import arrow_pieces
from headwater.serve.api.tails import PIECE_BYTES, PIECE_MESSAGES
from headwater.views.streams import GoneView, MessageView, OffsetsView

# So many partitions are read at once; each may have a message of the largest size.
_TOGETHER: Final = 8

_encode = msgspec.json.Encoder().encode


async def passages(
    topic: AsyncTopic[Any], at: list[int], count: int, max_bytes: int = LIST_BYTES
) -> list[Passage[Any]]:
    """Read on in every partition, this many messages of each; no more once they have so many bytes.

    Partitions that are not reached are as they were: the next read begins with another one.
    """
    first = sum(at) % len(at)
    order = (*range(first, len(at)), *range(first))
    found: dict[int, Passage[Any]] = {}
    room = max_bytes
    for begin in range(0, len(order), _TOGETHER):
        some = order[begin : begin + _TOGETHER]
        streams = [await topic.partition(place) for place in some]
        share = max(1, max_bytes // len(at))
        read = await asyncio.gather(
            *(
                stream.read_from(at[place], count, max_bytes=share)
                for place, stream in zip(some, streams, strict=True)
            )
        )
        for place, one in zip(some, read, strict=True):
            if room > 0:
                found[place] = one
                room -= bytes_of(one.messages)
        if room <= 0:
            break
    if len(found) < len(at):
        for place, facts in enumerate(await topic.info()):
            found.setdefault(place, Passage([], at[place], None, facts.last))
    return [found[place] for place in range(len(at))]


def nothing_new(found: list[Passage[Any]], at: list[int]) -> bool:
    """Return whether no partition has anything from its offset on."""
    return all(one.next == start for one, start in zip(found, at, strict=True))


def gone(place: int, gap: tuple[int, int]) -> GoneView:
    """Return the view of offsets of a partition that were evicted."""
    return GoneView(partition=place, gone=OffsetsView(first=gap[0], last=gap[1]))


async def lines(
    call: ApiCall, topic: AsyncTopic[Any], at: list[int], count: int
) -> AsyncGenerator[bytes, None]:
    """Yield up to ``count`` messages, a line each, and a line for each gap."""
    while count:
        page: list[bytes] = []
        async with call.served.tails.turns:
            share = max(1, min(count, PIECE_MESSAGES) // len(at))
            found = await passages(topic, at, share, PIECE_BYTES)
            if nothing_new(found, at):
                return
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
