"""Writes of one moment to one stream go as one call, whichever door and connection they came by.

Each is in the log whole or not at all, at neighbouring offsets, as if it had been alone. A batch
that the log refuses is written part by part, as nothing of it was sent. If the outcome of a call is
unknown, that is the answer to all writes in it: none is sent twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from headwater.errors import InvalidInput
from headwater.log.handles import StreamHandle
from headwater.serve.batching import Batcher, BatchPart
from headwater.store.faults import Caller

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater
    from headwater.log.aio_stream import AsyncStream

# Of tag and value, or of tag, value and headers.
Entries: TypeAlias = "list[tuple[Any, ...]]"
# Called with the first offset of a batch and the place in it of the first entry, or with an error.
Written: TypeAlias = "Callable[[int | Exception, int], None]"

# A stream that was read by this keeps the node that was read last, which may have 1 MiB.
MOST_STREAMS: Final = 256


class _Known(NamedTuple):
    stream: AsyncStream[Any]
    batcher: Batcher[Any, int]
    reading: StreamHandle


class StreamWrites:
    """The streams that a process used last, and the writes to them."""

    def __init__(self, hw: AsyncHeadwater) -> None:
        self._hw = hw
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def stream(self, name: str) -> AsyncStream[Any]:
        """Return the stream of that name; raises InvalidInput.

        It is the same one for all requests, so that it knows how large the packed part has become.
        """
        return self._find(name).stream

    def reading(self, name: str) -> StreamHandle:
        """Return what reads of columns from that stream share; raises InvalidInput."""
        return self._find(name).reading

    def add(
        self, name: str, entries: Entries, size: int, done: Written, caller: Caller | None
    ) -> None:
        """Write entries of this many bytes, all or none; raises InvalidInput for the name.

        ``done`` is called later, never before this returns. They are not written any more if the
        ``caller`` is gone before they are sent.
        """
        self._find(name).batcher.add(BatchPart(entries, done, size, caller))

    def _find(self, name: str) -> _Known:
        found = self._known.get(name)
        if found is None:
            stream = self._hw.stream(name)
            batcher = Batcher(partial(_write, stream), _was_refused)
            found = self._known[name] = _Known(stream, batcher, StreamHandle(name, set()))
            self._forget()
        else:
            self._known.move_to_end(name)
        return found

    def _forget(self) -> None:
        """Drop streams that nobody has used for long; those that are being written stay."""
        for name in list(self._known)[: max(0, len(self._known) - MOST_STREAMS)]:
            if self._known[name].batcher.idle:
                del self._known[name]


async def _write(stream: AsyncStream[Any], entries: Entries) -> int:
    """Append entries; returns the offset of the first."""
    if len(entries) == 1:
        tag, value, *rest = entries[0]
        return await stream.write(tag, value, headers=rest[0] if rest else None)
    return (await stream.write_many(entries)).start


def _was_refused(error: Exception) -> bool:
    """Return whether nothing of a batch was sent."""
    return isinstance(error, InvalidInput)
