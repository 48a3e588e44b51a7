"""Writes of one moment to one stream, from any number of connections, go as one call.

One call is under way at a time; whatever arrives meanwhile is the next one. So the writes of a
stream are in the order in which they arrived, and the fewer calls there are the busier it is. A
batch that the log refuses is written one by one, as nothing of it was sent; any other error is the
answer to all of it, since nobody knows more.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from headwater.aio_client import AsyncHeadwater
from headwater.errors import InvalidInput
from headwater.log.aio_stream import AsyncStream

Entries: TypeAlias = "list[tuple[str, bytes]]"
# Called with the offset of the first entry, or with the error.
Written: TypeAlias = "Callable[[int | Exception], None]"

MOST_ENTRIES: Final = 2000
MOST_BYTES: Final = 8 << 20
# A handle keeps the node that was read last, which may have 1 MiB.
MOST_STREAMS: Final = 256


class _Run(NamedTuple):
    entries: Entries
    size: int
    done: Written


class StreamWrites:
    """The writes of one stream."""

    __slots__ = ("_stream", "_task", "_waiting")

    def __init__(self, stream: AsyncStream) -> None:
        self._stream = stream
        self._waiting: deque[_Run] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is being written."""
        return self._task is None

    def add(self, entries: Entries, size: int, done: Written) -> None:
        """Write entries, all or none; ``done`` is called later, never before this returns."""
        self._waiting.append(_Run(entries, size, done))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._write(self._next_batch())
        finally:
            self._task = None

    def _next_batch(self) -> list[_Run]:
        """Take the runs of one call; a large one goes alone."""
        waiting = self._waiting
        batch = [waiting.popleft()]
        count, size = len(batch[0].entries), batch[0].size
        while waiting:
            count += len(waiting[0].entries)
            size += waiting[0].size
            if count > MOST_ENTRIES or size > MOST_BYTES:
                break
            batch.append(waiting.popleft())
        return batch

    async def _write(self, batch: list[_Run]) -> None:
        entries = batch[0].entries
        if len(batch) > 1:
            entries = [entry for run in batch for entry in run.entries]
        answer: int | Exception
        try:
            if len(entries) == 1:
                answer = await self._stream.write(*entries[0])
            else:
                answer = (await self._stream.write_many(entries)).start
        except Exception as error:  # noqa: BLE001  whatever it is, clients wait for an answer
            if isinstance(error, InvalidInput) and len(batch) > 1:
                for run in batch:
                    await self._write([run])
                return
            answer = error
        for run in batch:
            run.done(answer)
            if isinstance(answer, int):
                answer += len(run.entries)


class Streams:
    """The streams that were used last, with their writes."""

    def __init__(self, client: AsyncHeadwater) -> None:
        self._client = client
        self._known: OrderedDict[str, tuple[AsyncStream, StreamWrites]] = OrderedDict()

    def stream(self, name: str) -> AsyncStream:
        """Return the stream of that name; raises InvalidInput."""
        return self._find(name)[0]

    def writes(self, name: str) -> StreamWrites:
        """Return the writes of the stream of that name; raises InvalidInput."""
        return self._find(name)[1]

    def _find(self, name: str) -> tuple[AsyncStream, StreamWrites]:
        found = self._known.get(name)
        if found is None:
            stream = self._client.stream(name)
            found = self._known[name] = (stream, StreamWrites(stream))
            self._forget()
        else:
            self._known.move_to_end(name)
        return found

    def _forget(self) -> None:
        """Drop streams that nobody has used for long; those that are being written stay."""
        for name in list(self._known)[: max(0, len(self._known) - MOST_STREAMS)]:
            if self._known[name][1].idle:
                del self._known[name]
