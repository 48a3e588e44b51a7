"""Tails of streams and topics as server-sent events, from any offset on, without loss.

All tails of a stream that have come to its end wait together: one read of the store is blocked for
them, and what wakes it is read and encoded once. A tail whose client reads slowly blocks no other
and loses nothing: it reads from the log by itself, from its own offset. Only what was evicted
before it came there is missing, and the client is told which offsets (event ``skipped``). A tail of
a topic waits for all partitions, and reads by itself what has arrived in one.

Who reads what is there already takes turns with all others who do, a small piece each, so that
a hundred of them delay no other request by more than a few pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.serve.api.reading import PIECE_BYTES, PIECE_MESSAGES, Source, nothing_new

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater

# A comment is sent after this time, so that both sides notice when the other is gone.
KEEP_ALIVE_MS: Final = 15_000
# So many pieces are under way: while one is encoded, the store reads the next.
_AT_ONCE: Final = 2
# How long a tail that waits may go on after its token was revoked, beside what tokens take.
_LOOK_S: Final = 0.4
# Before a tail reads again what a follower of its stream is past already.
_AHEAD_S: Final = 0.02
ALIVE: Final = b": still here\n\n"
# How long a client waits before it connects again.
HELLO: Final = b"retry: 1000\n\n"


class _Arrived(NamedTuple):
    """What woke the tails of a stream: everything from ``at`` up to ``next``, as events."""

    at: int
    next: int
    events: bytes


_NOWHERE: Final = _Arrived(-1, -1, b"")


class _Follower:
    """Waits at the end of a stream for all tails that have come there."""

    def __init__(self, source: Source, at: int, ended: Callable[[], None]) -> None:
        self._source = source
        self.at = at
        self._ended = ended
        self._waiting: dict[asyncio.Future[_Arrived], Callable[[], bool]] = {}
        self._task = asyncio.get_running_loop().create_task(self._follow())

    def arrival(self, allowed: Callable[[], bool]) -> asyncio.Future[_Arrived]:
        """Return what arrives next; nothing has when it was time to show that we are alive.

        Who is no longer ``allowed`` to wait is told so by what is nowhere in the stream.
        """
        future: asyncio.Future[_Arrived] = asyncio.get_running_loop().create_future()
        self._waiting[future] = allowed
        return future

    def release_revoked(self) -> None:
        """End the wait of those who are no longer allowed to."""
        for future, allowed in list(self._waiting.items()):
            if not allowed():
                del self._waiting[future]
                if not future.done():
                    future.set_result(_NOWHERE)

    async def _follow(self) -> None:
        # Those who made this wait by the time that it runs.
        await asyncio.sleep(0)
        try:
            while self._waiting:
                passage = await self._source.streams[0].read_from(
                    self.at, PIECE_MESSAGES, block_ms=KEEP_ALIVE_MS, max_bytes=PIECE_BYTES
                )
                events = self._source.events_of([passage], [self.at])
                arrived = _Arrived(self.at, passage.next, events)
                self.at = passage.next
                waiting, self._waiting = self._waiting, {}
                for future in waiting:
                    if not future.done():
                        future.set_result(arrived)
                # The tails send it, and those that are not held up wait here again.
                await asyncio.sleep(0)
        except Exception as error:  # noqa: BLE001  every tail ends with it
            for future in self._waiting:
                if not future.done():
                    future.set_exception(error)
        finally:
            self._ended()

    def stop(self) -> None:
        """End the follower; nobody waits any more."""
        self._task.cancel()


class Tails:
    """The tails of a process; ``changed`` is called with 1 and -1 when one begins and ends.

    Whoever reads much of what is there already does so in ``turns``, a piece in each.
    """

    def __init__(self, hw: AsyncHeadwater, changed: Callable[[int], None] = lambda _: None) -> None:
        self._hw = hw
        self._changed = changed
        self._followers: dict[str, _Follower] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.turns = asyncio.Semaphore(_AT_ONCE)

    async def events(
        self, source: Source, at: list[int], allowed: Callable[[], bool]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events of a stream or topic from a position on, as long as that is allowed.

        That is looked up again before each piece, and every now and then in a wait.
        """
        share = max(1, PIECE_MESSAGES // len(at))
        self._changed(1)
        try:
            yield HELLO
            while allowed():
                if not self._are_awaited(source, at):
                    async with self.turns:
                        passages = await source.passages(at, share, PIECE_BYTES)
                        events = source.events_of(passages, at)
                    if not allowed():
                        return
                    if not nothing_new(passages, at):
                        yield events or ALIVE
                        at = [passage.next for passage in passages]
                        continue
                source.rest()
                arrived = await self._arrival(source, at, allowed)
                if not allowed() or arrived.at not in at:
                    continue
                if arrived.next == arrived.at:
                    yield ALIVE
                elif not source.in_topic:
                    yield arrived.events or ALIVE
                    at = [arrived.next]
        finally:
            self._changed(-1)

    def _are_awaited(self, source: Source, at: list[int]) -> bool:
        """Return whether somebody waits for every partition from these offsets on."""
        return all(
            (follower := self._followers.get(name)) is not None and follower.at == start
            for name, start in zip(source.names, at, strict=True)
        )

    async def news(
        self, source: Source, at: list[int], allowed: Callable[[], bool] = lambda: True
    ) -> None:
        """Wait until there is something from a position on, or it is time for a sign of life.

        What is there already is not noticed: read it first. Also returns when the client is no
        longer ``allowed`` to wait.
        """
        await self._arrival(source, at, allowed)

    async def _arrival(
        self, source: Source, at: list[int], allowed: Callable[[], bool]
    ) -> _Arrived:
        """Return what arrives first in a partition; nowhere if it is there already."""
        waiting = []
        try:
            for name, start in zip(source.names, at, strict=True):
                follower = self._followers.get(name) or self._follow(name, start)
                if follower.at > start:
                    # It has seen what was not there yet, or a stream that was deleted since.
                    await asyncio.sleep(_AHEAD_S)
                    return _NOWHERE
                waiting.append(follower.arrival(allowed))
            if len(waiting) == 1:
                return await waiting[0]
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in waiting:
                future.cancel()
        errors = [error for future in done if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        return max((future.result() for future in done), key=lambda one: one.next - one.at)

    def _follow(self, name: str, at: int) -> _Follower:
        def ended() -> None:
            if self._followers.get(name) is follower:
                del self._followers[name]

        follower = _Follower(Source(self._hw, name), at, ended)
        self._followers[name] = follower
        if self._timer is None:
            self._look_later()
        return follower

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        for follower in self._followers.values():
            follower.release_revoked()
        if self._followers:
            self._look_later()

    def stop(self) -> None:
        """End all followers."""
        if self._timer is not None:
            self._timer.cancel()
        for follower in list(self._followers.values()):
            follower.stop()
