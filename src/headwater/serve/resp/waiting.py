"""Blocked readers: they cost no thread and no connection to the store each, and are served in turn.

Readers of a stream share one wait for its end; those that the same write wakes share what they
read, if they asked for the same. Members of a group, and consumers of a queue, stand in line: the
first few wait at the store, which serves them in turn, the others behind them here. Whoever goes
away leaves the line at once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, TypeVar

from headwater.log.aio_stream import AsyncStream

T = TypeVar("T")

# So many of a line wait at the store, each with a connection.
AT_THE_STORE: Final = 4


class Woken:
    """What woke readers of a stream: one write, after which the stream ends at ``last``.

    They began to wait before it, so that what one of them reads now is new enough for all.
    """

    __slots__ = ("_shared", "last")

    def __init__(self, last: int) -> None:
        self.last = last
        self._shared: dict[Hashable, asyncio.Future[Any]] = {}

    async def share(self, wish: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """Return what ``make`` makes for the first reader with that wish."""
        shared = self._shared.get(wish)
        if shared is None:
            shared = self._shared[wish] = asyncio.ensure_future(make())
        found: T = await asyncio.shield(shared)
        return found


class StreamEnd:
    """The end of one stream, and those who wait for it to pass an offset."""

    __slots__ = ("_at", "_stream", "_task", "_waiting")

    def __init__(self, stream: AsyncStream) -> None:
        self._stream = stream
        self._waiting: dict[asyncio.Future[Woken | None], int] = {}
        self._task: asyncio.Task[None] | None = None
        self._at = 0

    def __len__(self) -> int:
        return len(self._waiting)

    async def passes(self, offset: int, timeout_ms: float) -> Woken | None:
        """Wait until the stream has something at an offset; returns None when time is up."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[Woken | None] = loop.create_future()
        self._waiting[woken] = offset
        if self._task is None or offset < self._at:
            self._restart()
        timer = None
        if timeout_ms != math.inf:
            timer = loop.call_later(timeout_ms / 1000, _set, woken, None)
        try:
            return await woken
        finally:
            if timer is not None:
                timer.cancel()
            self._waiting.pop(woken, None)
            if not self._waiting and self._task is not None:
                self._task.cancel()
                self._task = None

    def _restart(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        me = asyncio.current_task()
        while self._waiting:
            self._at = min(self._waiting.values())
            try:
                found = await self._stream.read(self._at, 1, block_ms=math.inf, with_info=True)
            except Exception as error:  # noqa: BLE001  whatever it is, clients wait for an answer
                for waiting in list(self._waiting):
                    if not waiting.done():
                        waiting.set_exception(error)
                self._waiting.clear()
                break
            woken = Woken(found.last)
            for waiting, offset in list(self._waiting.items()):
                if offset <= woken.last:
                    del self._waiting[waiting]
                    _set(waiting, woken)
        if self._task is me:
            self._task = None


class Line:
    """Those who wait for the messages of one group or of one queue, in the order they came."""

    __slots__ = ("_ahead", "_waiting")

    def __init__(self) -> None:
        self._ahead = 0
        self._waiting: dict[asyncio.Future[bool], None] = {}

    def __len__(self) -> int:
        return self._ahead + len(self._waiting)

    async def take(self, timeout_ms: float, read: Callable[[float], Awaitable[list[T]]]) -> list[T]:
        """Call ``read`` with the milliseconds that are left, in turn; [] when time is up."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_ms / 1000
        if self._ahead >= AT_THE_STORE:
            if not await self._come_forward(timeout_ms):
                return []
        else:
            self._ahead += 1
        try:
            return await read(max(0.0, (until - loop.time()) * 1000))
        finally:
            self._ahead -= 1
            self._call_next()

    async def _come_forward(self, timeout_ms: float) -> bool:
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        self._waiting[turn] = None
        timer = None
        if timeout_ms != math.inf:
            timer = loop.call_later(timeout_ms / 1000, _set, turn, False)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                # Called forward and cancelled in one moment: somebody else has the turn.
                self._ahead -= 1
                self._call_next()
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._waiting.pop(turn, None)

    def _call_next(self) -> None:
        while self._waiting and self._ahead < AT_THE_STORE:
            turn = next(iter(self._waiting))
            del self._waiting[turn]
            if not turn.done():
                self._ahead += 1
                turn.set_result(True)


class Waiting:
    """All blocked readers of a process; what nobody waits for is forgotten."""

    def __init__(self) -> None:
        self._ends: dict[str, StreamEnd] = {}
        self._lines: dict[Hashable, Line] = {}

    def __len__(self) -> int:
        """How many readers are blocked."""
        return sum(map(len, self._ends.values())) + sum(map(len, self._lines.values()))

    async def passes(self, stream: AsyncStream, offset: int, timeout_ms: float) -> Woken | None:
        """Wait until a stream has something at an offset; returns None when time is up."""
        end = self._ends.get(stream.name)
        if end is None:
            end = self._ends[stream.name] = StreamEnd(stream)
        try:
            return await end.passes(offset, timeout_ms)
        finally:
            if not end and self._ends.get(stream.name) is end:
                del self._ends[stream.name]

    async def in_turn(
        self,
        place: Hashable,
        timeout_ms: float,
        read: Callable[[float], Awaitable[list[T]]],
    ) -> list[T]:
        """Call ``read`` with the milliseconds that are left once those before have been served."""
        line = self._lines.get(place)
        if line is None:
            line = self._lines[place] = Line()
        try:
            return await line.take(timeout_ms, read)
        finally:
            if not line and self._lines.get(place) is line:
                del self._lines[place]


def _set(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)
