"""Blocked readers: they cost no thread and no connection to the store each, and are served in turn.

Readers of a stream share one wait for its end; those that the same write wakes share what they
read, if they asked for the same. Members of a group, and consumers of a queue, stand in line: the
first few wait at the store, which serves them in turn, the others behind them here. A client that
disconnects leaves the line at once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from headwater.log.aio_stream import AsyncStream

T = TypeVar("T")

# So many of a line wait at the store, each with a connection.
AT_THE_STORE: Final = 4


class _Reader(NamedTuple):
    """Who waits for an offset, and what it reads then; equal wishes are read once."""

    offset: int
    wish: Hashable
    read: Callable[[], Awaitable[Any]]


class StreamEnd:
    """The end of one stream, and those who wait for it to pass an offset."""

    __slots__ = ("_at", "_stream", "_task", "_waiting")

    def __init__(self, stream: AsyncStream) -> None:
        self._stream = stream
        self._waiting: dict[asyncio.Future[Any], _Reader] = {}
        self._task: asyncio.Task[None] | None = None
        self._at = 0

    def __len__(self) -> int:
        return len(self._waiting)

    async def read(
        self, offset: int, wish: Hashable, read: Callable[[], Awaitable[T]], timeout_ms: float
    ) -> T | None:
        """Read once the stream has something at an offset; returns None when time is up."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T | None] = loop.create_future()
        self._waiting[answer] = _Reader(offset, wish, read)
        if self._task is None or offset < self._at:
            self._restart()
        timer = None
        if timeout_ms != math.inf:
            timer = loop.call_later(timeout_ms / 1000, _set, answer, None)
        try:
            return await answer
        finally:
            if timer is not None:
                timer.cancel()
            self._waiting.pop(answer, None)
            if not self._waiting and self._task is not None:
                self._task.cancel()
                self._task = None

    def covers(self, offset: int) -> bool:
        """Return whether a wait is under way that notices whatever comes at an offset."""
        return self._task is not None and self._at <= offset

    def _restart(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._at = min(reader.offset for reader in self._waiting.values())
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while self._waiting:
            self._at = min(reader.offset for reader in self._waiting.values())
            try:
                found = await self._stream.read(self._at, 1, block_ms=math.inf, with_info=True)
            except Exception as error:  # noqa: BLE001  whatever it is, clients wait for an answer
                for answer in self._waiting:
                    _fail(answer, error)
                self._waiting.clear()
                break
            woken: dict[Hashable, list[asyncio.Future[Any]]] = {}
            reads: dict[Hashable, Callable[[], Awaitable[Any]]] = {}
            for answer, reader in list(self._waiting.items()):
                if reader.offset <= found.last:
                    del self._waiting[answer]
                    woken.setdefault(reader.wish, []).append(answer)
                    reads.setdefault(reader.wish, reader.read)
            # Not cancelled with this task: the last of those who still wait may go away meanwhile.
            for wish, answers in woken.items():
                reading = asyncio.ensure_future(reads[wish]())
                reading.add_done_callback(partial(_tell_all, answers))
        self._task = None


def _tell_all(answers: list[asyncio.Future[Any]], reading: asyncio.Future[Any]) -> None:
    error = asyncio.CancelledError() if reading.cancelled() else reading.exception()
    for answer in answers:
        if error is None:
            _set(answer, reading.result())
        else:
            _fail(answer, error)


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
                # Called and cancelled at the same moment: another one gets the turn.
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

    async def read(
        self,
        stream: AsyncStream,
        offset: int,
        wish: Hashable,
        read: Callable[[], Awaitable[T]],
        timeout_ms: float,
    ) -> T | None:
        """Call ``read`` once a stream has something at an offset; returns None when time is up.

        Readers of the same wish, woken by the same write, share what the first of them reads: all
        of them began to wait before that write.
        """
        end = self._ends.get(stream.name)
        if end is None:
            end = self._ends[stream.name] = StreamEnd(stream)
        try:
            return await end.read(offset, wish, read, timeout_ms)
        finally:
            if not end and self._ends.get(stream.name) is end:
                del self._ends[stream.name]

    def covers(self, stream: str, offset: int) -> bool:
        """Return whether a wait is under way that notices whatever comes at an offset.

        Then a reader that wants to wait for it need not look first.
        """
        end = self._ends.get(stream)
        return end is not None and end.covers(offset)

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


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _set(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)
