"""Writes of many small requests to one stream, made in few calls of the store.

A request is in the log whole or not at all, at neighbouring offsets, as if it had been alone. If
the outcome of a call is unknown, that is the answer to all requests in it: none is sent twice.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from headwater.errors import StoreError
from headwater.serve.batching import Batcher, BatchPart
from headwater.views.streams import LinesWrittenView

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater
    from headwater.log.aio_stream import AsyncStream

_MOST_BATCHERS: Final = 100
_MOST_STREAMS: Final = 1000


class WriteBatches:
    """Batches the writes of a process, stream by stream."""

    def __init__(self, hw: AsyncHeadwater) -> None:
        self._hw = hw
        self._batchers: dict[str, Batcher[Any, range]] = {}
        self._streams: dict[str, AsyncStream[Any]] = {}

    def stream(self, name: str) -> AsyncStream[Any]:
        """Return the stream of that name to write to; raises InvalidInput.

        It is the same one for all requests, so that it knows how large the packed part has become.
        """
        found = self._streams.get(name)
        if found is None:
            if len(self._streams) >= _MOST_STREAMS:
                self._streams.clear()
            found = self._streams[name] = self._hw.stream(name)
        return found

    def write(self, stream: str, entries: list[Any]) -> asyncio.Future[LinesWrittenView]:
        """Write entries with those of others; raises InvalidInput for a name that cannot be."""
        future: asyncio.Future[LinesWrittenView] = asyncio.get_running_loop().create_future()

        def done(result: range | Exception, at: int) -> None:
            if future.done():
                return
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(written_view(stream, result[at : at + len(entries)]))

        batcher = self._batchers.get(stream)
        if batcher is None:
            batcher = self._new(stream)
        batcher.add(BatchPart(entries, done))
        return future

    def _new(self, stream: str) -> Batcher[Any, range]:
        if len(self._batchers) >= _MOST_BATCHERS:
            self._batchers = {name: one for name, one in self._batchers.items() if not one.idle}
        batcher = Batcher(self.stream(stream).write_many, _was_not_sent)
        self._batchers[stream] = batcher
        return batcher


def written_view(stream: str, offsets: range) -> LinesWrittenView:
    """Return the view of what was written at some offsets."""
    first, last = (offsets[0], offsets[-1]) if offsets else (None, None)
    return LinesWrittenView(stream=stream, written=len(offsets), first=first, last=last)


def _was_not_sent(error: Exception) -> bool:
    """Return whether nothing of a batch can be in the log: a refusal changes nothing."""
    return not isinstance(error, StoreError)
