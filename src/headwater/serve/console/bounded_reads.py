"""Messages of a stream for a page: fetched in steps of 4 MiB, and of large values the beginning."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from headwater.kernel.headers import LIST_BYTES
from headwater.log.aio_stream import AsyncStream
from headwater.log.types import Message
from headwater.serve.console.values import cut


async def each_message(stream: AsyncStream[Any], first: int, last: int) -> AsyncIterator[Message]:
    """Yield the messages of a range of offsets that are there."""
    at = first
    while at <= last:
        passage = await stream.read_from(at, last - at + 1, max_bytes=LIST_BYTES)
        for message in passage.messages:
            if message.offset <= last:
                yield message
        if passage.next <= at:
            return
        at = passage.next


async def shown_messages(
    stream: AsyncStream[Any], first: int, last: int
) -> list[tuple[int, Message | None]]:
    """Return each offset of a range with its message, large values cut; None where it is gone."""
    found = {
        message.offset: msgspec.structs.replace(message, value=cut(message.value))
        async for message in each_message(stream, first, last)
    }
    return [(offset, found.get(offset)) for offset in range(first, last + 1)]
