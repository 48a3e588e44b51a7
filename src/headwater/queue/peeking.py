"""The messages of a queue that come first in some state, without taking them.

They are looked for in every part of the queue where the state may be, page by page; no more are
kept than are wanted, so that large messages do not take any amount of memory.
"""

from __future__ import annotations

from typing import NamedTuple

from headwater.errors import InvalidInput
from headwater.kernel.headers import bytes_of, check_max_bytes, first_of
from headwater.kernel.inputs import MAX_EXACT
from headwater.queue.handles import QueueHandle
from headwater.queue.inspecting import PAGE_MESSAGES, WITHOUT_TIME, Spot, page, spots_of
from headwater.queue.limits import check_count
from headwater.queue.types import QueueItem, State
from headwater.store.call import Operation

_ID_DIGITS = 16


class _Turn(NamedTuple):
    """The place of a message among those of its state; ``rank`` grows as the priority falls.

    Messages are ordered by time. Of ready ones, as pop does, those redelivered come first.
    """

    rank: int
    new: int
    us: int
    delayed: int
    place: str

    @classmethod
    def of(cls, part: str, item: QueueItem) -> _Turn:
        """Return the turn of a message that was found in a part."""
        us = int(item.id or 0) if item.due_ms is None else item.due_ms * 1000
        new = item.state == "ready" and part in ("delayed", "ready")
        rank = 0 if item.state == "dead" else -item.priority
        return cls(rank, int(new), us, int(part == "delayed"), item.place or item.id)

    def spelled(self) -> str:
        """Return it as text."""
        return ":".join(map(str, self))

    @classmethod
    def read(cls, text: str) -> _Turn:
        """Read it from text; raises InvalidInput."""
        *numbers, place = text.split(":", 4)
        try:
            rank, new, us, delayed = (int(number[:20]) for number in numbers)
        except ValueError:
            rank, new, us, delayed = 0, 0, -1, 0
        if not (0 <= us <= MAX_EXACT * 1000 and place):
            raise InvalidInput(
                f"{text[:100]!r} is no place in a queue; give next as it was returned"
            )
        return cls(rank, new, us, delayed, place)


class PeekPage(NamedTuple):
    """Messages of a state, in order; ``next`` is the place behind them, None at the end."""

    items: list[QueueItem]
    next: str | None


class _Wish(NamedTuple):
    """Which messages are wanted: of a state, behind a turn, so many, up to so many bytes."""

    state: State
    after: _Turn | None
    most: int
    room: int | None

    def best(self, found: list[tuple[_Turn, QueueItem]]) -> list[tuple[_Turn, QueueItem]]:
        """Return the first ones, in order."""
        found.sort(key=lambda pair: pair[0])
        some = found[: self.most]
        return some[: len(first_of([item for _, item in some], self.room))]

    def is_met(self, found: list[tuple[_Turn, QueueItem]]) -> bool:
        """Return whether there are as many as are wanted."""
        if len(found) >= self.most:
            return True
        return self.room is not None and bytes_of(item for _, item in found) >= self.room


def peek(
    queue: QueueHandle, count: int, state: State, max_bytes: int | None = None
) -> Operation[list[QueueItem]]:
    """Return the messages of a state that come first, without taking them.

    What is ready comes in the order in which pop takes it, what is delayed or unacked by priority
    and then by time, dead letters by the time at which they were given up. There are no more once
    they have ``max_bytes``.
    """
    return (yield from peek_page(queue, count, state, max_bytes)).items


def peek_page(
    queue: QueueHandle, count: int, state: State, max_bytes: int | None = None, start: str = ""
) -> Operation[PeekPage]:
    """Do as peek does, from where a page before ended."""
    wish = _Wish(
        state,
        _Turn.read(start) if start else None,
        check_count(count),
        check_max_bytes(max_bytes),
    )
    spots = yield from spots_of(queue, [state])
    ranks = sorted({_rank(state, spot) for spot in spots})
    found: list[tuple[_Turn, QueueItem]] = []
    for rank in ranks:
        if wish.after is None or rank >= wish.after.rank:
            some = [spot for spot in spots if _rank(state, spot) == rank]
            found += yield from _first(queue, some, _left(wish, found))
            if wish.is_met(found):
                break
    more = bool(found) and wish.is_met(found)
    return PeekPage([item for _, item in found], found[-1][0].spelled() if more else None)


def _rank(state: State, spot: Spot) -> int:
    return 0 if state == "dead" else -spot.priority


def _left(wish: _Wish, found: list[tuple[_Turn, QueueItem]]) -> _Wish:
    """Return what is still wanted when some messages are found."""
    room = None if wish.room is None else wish.room - bytes_of(item for _, item in found)
    return wish._replace(most=wish.most - len(found), room=room)


def _first(
    queue: QueueHandle, spots: list[Spot], wish: _Wish
) -> Operation[list[tuple[_Turn, QueueItem]]]:
    """Return the first messages of a state out of some parts of a queue."""
    found: list[tuple[_Turn, QueueItem]] = []
    for spot in spots:
        found = wish.best(found + (yield from _first_of_part(queue, spot, wish)))
    return found


def _first_of_part(
    queue: QueueHandle, spot: Spot, wish: _Wish
) -> Operation[list[tuple[_Turn, QueueItem]]]:
    """Return candidates for the first messages of a state in one part, reading little."""
    state, after, most, _ = wish
    lapses = spot.part == "unacked" and state != "unacked"
    if state == "delayed" and not lapses:
        # Due messages come before delayed ones.
        spot = spot._replace(after=b"%d ~" % spot.now_ms)
    elif spot.part == "ready" and after is not None and after.new and after.rank == -spot.priority:
        spot = spot._replace(after=b"%0*d" % (_ID_DIGITS, after.us))
    found: list[tuple[_Turn, QueueItem]] = []
    rest = [spot] if most else []
    size = PAGE_MESSAGES if after is not None else min(most, PAGE_MESSAGES)
    while rest:
        items, rest = yield from page(queue, rest, size)
        turns = [(_Turn.of(spot.part, item), item) for item in items if item.state == state]
        found = wish.best(found + [pair for pair in turns if after is None or pair[0] > after])
        if not rest or (spot.part in WITHOUT_TIME and not wish.is_met(found)):
            continue
        if spot.part in WITHOUT_TIME:
            break
        reached = int(float(rest[0].after.split()[0]))
        if (lapses or state == "ready") and reached > spot.now_ms:
            break
        # Bundles are in the order of their times, but a message may have a later one of its own.
        if wish.is_met(found) and all((item.due_ms or 0) <= reached for _, item in found):
            break
    return found
