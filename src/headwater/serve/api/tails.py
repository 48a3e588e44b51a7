"""Tails of streams as server-sent events, from any offset on, without loss.

All tails of a stream that have come to its end wait together: one read of the store is blocked for
them, and what wakes it is read and encoded once. A tail whose client reads slowly blocks no other
and loses nothing: it reads from the log by itself, from its own offset. Only what was evicted
before it came there is missing, and the client is told which offsets (event ``skipped``).

Who reads what is there already takes turns with all others who do, a small piece each, so that
a hundred of them delay no other request by more than a few pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from headwater.errors import InvalidInput, LostFuture
from headwater.log.types import Message, Passage
from headwater.serve.fields import MAX_DIGITS
from headwater.views.streams import MessageView, OffsetsView

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater
    from headwater.log.aio_stream import AsyncStream

# A comment is sent after this time, so that both sides notice when the other is gone.
KEEP_ALIVE_MS: Final = 15_000
# A piece is read and encoded in some milliseconds, in which the process does nothing else.
PIECE_MESSAGES: Final = 1000
PIECE_BYTES: Final = 256 << 10
# So many pieces are under way: while one is encoded, the store reads the next.
_AT_ONCE: Final = 2
# How long a tail that waits may go on after its token was revoked, beside what tokens take.
_LOOK_S: Final = 0.4
ALIVE: Final = b": still here\n\n"
# How long a client waits before it connects again.
HELLO: Final = b"retry: 1000\n\n"

_encode = msgspec.json.Encoder().encode


class _Arrived(NamedTuple):
    """What woke the tails of a stream: everything from ``at`` up to ``next``, as events."""

    at: int
    next: int
    events: bytes


_NOWHERE: Final = _Arrived(-1, -1, b"")


class _Follower:
    """Waits at the end of a stream for all tails that have come there."""

    def __init__(self, stream: AsyncStream[Any], at: int, ended: Callable[[], None]) -> None:
        self._stream = stream
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
                passage = await self._stream.read_from(
                    self.at, PIECE_MESSAGES, block_ms=KEEP_ALIVE_MS, max_bytes=PIECE_BYTES
                )
                arrived = _Arrived(self.at, passage.next, events_of(passage))
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
        self, name: str, at: int, allowed: Callable[[], bool]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events of a stream from an offset on, as long as the client is allowed to.

        That is looked up again before each piece, and every now and then in a wait.
        """
        stream: AsyncStream[Any] | None = None
        self._changed(1)
        try:
            yield HELLO
            while allowed():
                follower = self._followers.get(name)
                if follower is None or follower.at != at:
                    stream = stream or self._hw.stream(name)
                    async with self.turns:
                        passage = await stream.read_from(at, PIECE_MESSAGES, max_bytes=PIECE_BYTES)
                        events = events_of(passage)
                    if not allowed():
                        return
                    if passage.next > at:
                        yield events
                        at = passage.next
                        continue
                    follower = self._followers.get(name) or self._follow(name, at)
                # It may hold a node that it has read, which thousands of idle tails must not.
                stream = None
                arrived = await follower.arrival(allowed)
                if arrived.at != at or not allowed():
                    continue
                yield arrived.events or ALIVE
                at = arrived.next
        finally:
            self._changed(-1)

    async def news(
        self, places: dict[str, int], allowed: Callable[[], bool] = lambda: True
    ) -> None:
        """Wait until a stream has something from its offset on, or it is time for a sign of life.

        What is there already is not noticed: read it first. Also returns when the client is no
        longer ``allowed`` to wait.
        """
        waiting = []
        for name, at in places.items():
            follower = self._followers.get(name) or self._follow(name, at)
            if follower.at > at:
                return
            waiting.append(follower.arrival(allowed))
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in waiting:
                future.cancel()
        errors = [error for one in done if (error := one.exception()) is not None]
        if errors:
            raise errors[0]

    def _follow(self, name: str, at: int) -> _Follower:
        def ended() -> None:
            if self._followers.get(name) is follower:
                del self._followers[name]

        follower = _Follower(self._hw.stream(name), at, ended)
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


async def offset_behind(hw: AsyncHeadwater, stream: str, seen: str) -> int:
    """Return the offset behind the event that a client has seen; raises InvalidInput, LostFuture.

    A tail that began elsewhere would leave messages out, and the client would not know.
    """
    if not (seen.isascii() and seen.isdecimal() and len(seen) <= MAX_DIGITS):
        raise InvalidInput(
            f"{seen[:100]!r} is no id of an event here: that is an offset; leave the header "
            "Last-Event-ID out to begin anew"
        )
    check_seen(stream, int(seen), (await hw.stream(stream).info()).last)
    return int(seen) + 1


def check_seen(stream: str, seen: int, last: int) -> None:
    """Refuse to go on behind an offset that a client has seen and the stream does not have."""
    if seen > last:
        raise LostFuture(stream, last + 1, seen)


def events_of(passage: Passage[Any]) -> bytes:
    """Return a passage as events: each message by its offset, and what was evicted before."""
    found = [_event(message) for message in passage.messages]
    if passage.gap is not None:
        first, last = passage.gap
        facts = _encode(OffsetsView(first=first, last=last))
        found.insert(0, b"event: skipped\nid: %d\ndata: %b\n\n" % (last, facts))
    return b"".join(found)


def _event(message: Message[Any]) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (message.offset, _encode(MessageView.of(message)))
