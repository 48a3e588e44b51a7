"""Batches what many requests ask for at one moment, so that one call is made for all of it.

Whatever arrives during one round of the event loop goes into one call, and so does what arrives
while a call is under way, unless that takes long. No client can tell whether its request went
alone. If a batch fails, each of its requests is retried alone, where that cannot do it twice: one
that can be served does not fail because of its neighbours. What was not sent yet is dropped when
its client hangs up: that one retries by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from headwater.errors import HeadwaterError, InvalidInput
from headwater.log.handles import StreamHandle
from headwater.log.reading import partitions_of
from headwater.log.topics import partition_of
from headwater.store.faults import BRIEF_S, Caller, CallerGone, call_for, callers, is_given_up

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater
    from headwater.log.aio_stream import AsyncStream

T = TypeVar("T")
R = TypeVar("R")

SIDE_BY_SIDE: Final = 4
# How long a call delays what arrives after it: most calls take less, and the next batch is larger.
PATIENCE_S: Final = 0.005
MOST_ITEMS: Final = 2000
MOST_BYTES: Final = 8 << 20


@dataclass(slots=True)
class BatchPart(Generic[T, R]):
    """What one request adds to a batch; ``done`` is called with the result, or the error.

    It is also called with the place in the batch at which the items of this part begin. ``size``
    is in bytes, where these are not bounded otherwise. Without its ``caller`` a part leaves its
    batch, unless that was sent.
    """

    items: Sequence[T]
    done: Callable[[R | Exception, int], None]
    size: int = 0
    caller: Caller | None = None
    since: float = field(default_factory=time.monotonic)

    @property
    def abandoned(self) -> bool:
        """Whether nobody waits for the part any more, and it could not be sent for a while."""
        gone = self.caller is not None and self.caller.gone
        return gone and time.monotonic() - self.since >= BRIEF_S


class Batcher(Generic[T, R]):
    """Batches calls of one kind; ``call`` makes one for the items of several requests.

    ``harmless`` says of an error whether the parts of its batch may be retried.
    """

    def __init__(
        self,
        call: Callable[[list[T]], Awaitable[R]],
        harmless: Callable[[Exception], bool] = lambda _: True,
    ) -> None:
        self._call = call
        self._harmless = harmless
        self._waiting: deque[BatchPart[T, R]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._plan: asyncio.Handle | None = None

    def add(self, part: BatchPart[T, R]) -> None:
        """Add to the next batch; ``part.done`` is called later, never before this returns."""
        self._waiting.append(part)
        if self._plan is None and len(self._tasks) < SIDE_BY_SIDE:
            loop = asyncio.get_running_loop()
            if self._tasks:
                self._plan = loop.call_later(PATIENCE_S, self._start)
            else:
                self._plan = loop.call_soon(self._start)

    def _start(self) -> None:
        if self._plan is not None:
            self._plan.cancel()
            self._plan = None
        while self._waiting and len(self._tasks) < SIDE_BY_SIDE:
            if self._waiting[0].abandoned:
                self._waiting.popleft().done(CallerGone(), 0)
                continue
            task = asyncio.get_running_loop().create_task(self._run(self._next_batch()))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._start()

    def _next_batch(self) -> list[BatchPart[T, R]]:
        """Take the parts of one call; a large one goes alone."""
        waiting = self._waiting
        batch = [waiting.popleft()]
        count, size = len(batch[0].items), batch[0].size
        while waiting:
            if waiting[0].abandoned:
                waiting.popleft().done(CallerGone(), 0)
                continue
            count += len(waiting[0].items)
            size += waiting[0].size
            if count > MOST_ITEMS or size > MOST_BYTES:
                break
            batch.append(waiting.popleft())
        return batch

    async def _run(self, batch: list[BatchPart[T, R]]) -> None:
        task = asyncio.current_task()
        assert task is not None
        call_for(task, [part.caller for part in batch if part.caller is not None])
        try:
            result = await self._call([item for part in batch for item in part.items])
        except CallerGone as error:
            # Nothing was sent: those who still wait are served without those who are gone.
            for part in batch:
                if part.caller is not None and part.caller.gone:
                    part.done(error, 0)
            waiting = [part for part in batch if part.caller is None or not part.caller.gone]
            if waiting:
                await self._run(waiting)
            return
        except Exception as error:  # noqa: BLE001  whatever it is, a client waits for an answer
            if len(batch) > 1 and self._harmless(error):
                await asyncio.gather(*(self._run([part]) for part in batch))
            else:
                for part in batch:
                    part.done(error, 0)
            return
        at = 0
        for part in batch:
            try:
                part.done(result, at)
            except Exception as error:  # noqa: BLE001  the other parts wait for their results
                part.done(error, at)
            at += len(part.items)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and no call is under way."""
        return not self._tasks and not self._waiting


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
    """The streams that a process used last, and the writes to them.

    Writes of one moment to one stream go as one call, whichever door and connection they came by.
    Each is in the log whole or not at all, at neighbouring offsets, as if it had been alone. A
    batch that the log refuses is written part by part, as nothing of it was sent. If the outcome of
    a call is unknown, that is the answer to all writes in it: none is sent twice.
    """

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


_MOST_TOPICS: Final = 256


class TopicWrites:
    """The topics that a process wrote to last.

    Each partition gets its part of all small writes of one moment in one call. A part of a request
    is in its partition whole or not at all, as if the request had been alone. The number of
    partitions is asked for once for all requests of a moment, and again for later ones: a topic may
    be deleted and created with another number meanwhile.
    """

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
            if isinstance(first, Exception):
                _settle(future, first)
            else:
                _settle(future, range(first + at, first + at + len(entries)))

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
        asking.add(BatchPart((None,), lambda told, _: _settle(answer, told)))
        return await answer


def _settle(future: asyncio.Future[T], answer: T | Exception) -> None:
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)


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
