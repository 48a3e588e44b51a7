"""Small writes of one moment to a topic: each partition gets its part of all of them in one call.

A part of a request is in its partition whole or not at all, as if the request had been alone. The
number of partitions is asked for once for all requests of a moment, and again for later ones: a
topic may be deleted and created with another number meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final

from headwater.errors import HeadwaterError
from headwater.log.reading import partitions_of
from headwater.log.topics import partition_of
from headwater.serve.batching import Batcher, BatchPart
from headwater.serve.stream_writes import Entries, StreamWrites
from headwater.store.faults import BRIEF_S, CallerGone, callers, is_given_up

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater

_MOST_TOPICS: Final = 256


class TopicWrites:
    """The topics that a process wrote to last."""

    def __init__(self, hw: AsyncHeadwater, streams: StreamWrites) -> None:
        self._hw = hw
        self._streams = streams
        self._asking: OrderedDict[str, Batcher[None, int]] = OrderedDict()

    async def write(self, name: str, entries: Entries, size: int) -> dict[int, range]:
        """Write entries of a given size, each to the partition of its tag; returns their offsets.

        The first write creates the topic. Raises InvalidInput and what a write to a stream raises;
        an error names its partition, and the partitions in which entries of it were written.
        """
        began = time.monotonic()
        partitions = await self._partitions(name)
        if time.monotonic() - began >= BRIEF_S and is_given_up():
            raise CallerGone
        parts: dict[int, Entries] = {}
        for entry in entries:
            parts.setdefault(partition_of(entry[0], partitions), []).append(entry)
        found = await asyncio.gather(
            *(self._add(f"{name}/{place}", part, size) for place, part in sorted(parts.items())),
            return_exceptions=True,
        )
        written = dict(zip(sorted(parts), found, strict=True))
        done = {place: one for place, one in written.items() if isinstance(one, range)}
        for place, one in written.items():
            if isinstance(one, HeadwaterError):
                raise _in_partition(one, place, done) from None
            if isinstance(one, BaseException):
                raise one
        return done

    def _add(self, stream: str, entries: Entries, size: int) -> asyncio.Future[range]:
        future: asyncio.Future[range] = asyncio.get_running_loop().create_future()

        def done(first: int | Exception, at: int) -> None:
            if future.done():
                return
            if isinstance(first, Exception):
                future.set_exception(first)
            else:
                future.set_result(range(first + at, first + at + len(entries)))

        self._streams.add(stream, entries, size, done, next(iter(callers()), None))
        return future

    async def _partitions(self, name: str) -> int:
        asking = self._asking.get(name)
        if asking is None:
            topic = self._hw.topic(name)
            asking = self._asking[topic.name] = Batcher(partial(_ask, self._hw, name))
            for old in list(self._asking)[:-_MOST_TOPICS]:
                if self._asking[old].idle:
                    del self._asking[old]
        self._asking.move_to_end(name)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def told(partitions: int | Exception, _: int) -> None:
            if answer.done():
                return
            if isinstance(partitions, Exception):
                answer.set_exception(partitions)
            else:
                answer.set_result(partitions)

        asking.add(BatchPart((None,), told))
        return await answer


async def _ask(hw: AsyncHeadwater, name: str, _: list[None]) -> int:
    """Return how many partitions a topic has; one that is not there is created."""
    return await hw.store.run(partitions_of(name)) or await hw.topic(name).partitions()


def _in_partition(error: HeadwaterError, place: int, done: dict[int, range]) -> HeadwaterError:
    """Return an error of a batch as that of one request: others have it as well, in their words."""
    kind = type(error)
    own = kind.__new__(kind)
    own.args = error.args
    vars(own).update(vars(error))
    own.partition, own.partitions_done = place, done
    return own
