"""Inspecting a queue without changing it: its state, and all of its messages, page by page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields
from typing import Any, NamedTuple, get_args

from headwater.errors import InvalidInput
from headwater.kernel.headers import NO_HEADERS, Headers, bytes_of, check_max_bytes, first_of
from headwater.kernel.inputs import MAX_EXACT, check_int
from headwater.queue.handles import QueueHandle
from headwater.queue.keys import MAX_POP, check_count
from headwater.queue.replies import (
    DueReply,
    PageReply,
    Reply,
    StoredMessage,
    TimedBundle,
    count_messages,
    open_bundle,
    stats_of,
)
from headwater.queue.types import QueueItem, QueueStats, State
from headwater.store.call import Call, Operation

PAGE_MESSAGES = 1000
PAGE_BYTES = 4 * 1024 * 1024

# In which parts of a queue a state is found: what is due stays where it is until it is taken.
_PARTS: dict[State, tuple[str, ...]] = {
    "ready": ("unacked", "retry", "delayed", "ready"),
    "delayed": ("delayed", "retry", "unacked"),
    "unacked": ("unacked",),
    "dead": ("dead", "unacked"),
    "damaged": ("damaged",),
}
_WITHOUT_PRIORITY = ("dead", "damaged")
WITHOUT_TIME = ("ready", "damaged")
# The totals in a mark for rates, in their order.
_RATED = ("pushed", "popped", "acked")
# In the order in which messages pass through them.
_ALL_PARTS = ("delayed", "ready", "retry", "unacked", "dead", "damaged")


class Spot(NamedTuple):
    """One part of a queue, and where in it a page begins; ``now_ms`` is when it was named.

    With ``newest``, a part that has times is read from the latest one on.
    """

    part: str
    priority: int
    after: bytes = b""
    now_ms: int = 0
    newest: bool = False


class QueuePage(NamedTuple):
    """Some messages of a queue, and the spots that were not read yet."""

    items: list[QueueItem]
    rest: list[Spot]


def read_stats(queue: QueueHandle) -> Operation[dict[str, Any]]:
    """Return the server's facts about a queue, by name; see ``hw_queue_stats``."""
    return stats_of((yield Call("hw_queue_stats", queue.key, read_only=True)))


def stats(queue: QueueHandle) -> Operation[QueueStats]:
    """Return the state of the queue."""
    return (yield from stats_out_of(queue, (yield from read_stats(queue))))


def stats_out_of(queue: QueueHandle, facts: dict[str, Any]) -> Operation[QueueStats]:
    """Return the state of the queue, from the server's facts."""
    now = facts["now"]
    facts["ready"] = facts["listed"]
    # Due messages are counted in the set where they are.
    for priority, part in facts["due"]:
        found = yield from _count_due(queue, priority, part, now)
        facts[part] -= found.due
        facts["ready"] += found.due - found.given_up - found.resting
        facts["dead"] += found.given_up
        facts["delayed"] += found.resting
    facts["delayed"] += facts["retry"]
    for age in ("oldest", "oldest_delayed", "oldest_unacked", "oldest_dead"):
        facts[f"{age}_ms"] = max(now - facts[age], 0) if facts[age] else None
    facts |= _rates(facts)
    facts["name"] = queue.name
    return QueueStats(**{field.name: facts[field.name] for field in fields(QueueStats)})


def _count_due(queue: QueueHandle, priority: int, part: str, now: int) -> Operation[DueReply]:
    total = DueReply(0, 0, 0, 0)
    while total.rank >= 0:
        args = (priority, part, now, total.rank)
        step = DueReply(*(yield Call("hw_queue_due", queue.key, args, read_only=True)))
        total = DueReply(
            total.due + step.due,
            total.given_up + step.given_up,
            total.resting + step.resting,
            step.rank,
        )
    return total


def _rates(facts: dict[str, Any]) -> dict[str, float]:
    """Return rates since the mark before the last, or since the last one if that is long ago."""
    for text, longest in ((facts["mark_before"], 20_000), (facts["mark"], None)):
        if text:
            then, *counts = (int(word) for word in text.split(b":"))
            took = facts["now"] - then
            if took > 0 and (longest is None or took <= longest):
                return {
                    f"{name}_per_s": (facts[name] - count) * 1000 / took
                    for name, count in zip(_RATED, counts, strict=True)
                }
    return {f"{name}_per_s": 0.0 for name in _RATED}


# ── Pages ────────────────────────────────────────────────────────────────────────────────────


def check_states(states: Iterable[str]) -> None:
    """Accept states of messages."""
    for state in states:
        if state not in get_args(State):
            raise InvalidInput(f"there is no state {state!r}; use one of {get_args(State)}")


def spots_of(queue: QueueHandle, states: Collection[State]) -> Operation[list[Spot]]:
    """Return all spots where messages of some states may be; of all states when none is named."""
    check_states(states)
    facts = yield from read_stats(queue)
    parts = {part for state in states for part in _PARTS[state]} or set(_ALL_PARTS)
    return [
        Spot(part, priority, b"", facts["now"])
        for part in _ALL_PARTS
        if part in parts
        for priority in ([0] if part in _WITHOUT_PRIORITY else facts["priorities"])
    ]


def page(queue: QueueHandle, spots: list[Spot], count: int = PAGE_MESSAGES) -> Operation[QueuePage]:
    """Read one page: about ``count`` messages or 4 MiB at most, in one call."""
    check_int(count, "count", 1, MAX_POP)
    spot, *others = spots
    part, priority, after, _, newest = spot
    order = "newest" if newest else ""
    args = (part, priority, after, min(count, PAGE_MESSAGES), PAGE_BYTES, order)
    call = Call("hw_queue_page", queue.key, args, read_only=True, messages=_messages_on_page)
    reply = PageReply.of((yield call))
    if part == "damaged":
        items = [_item(StoredMessage("", text), "damaged", 0) for text in reply.found]
    elif part == "ready":
        messages = (message for text in reply.found for message in open_bundle(text))
        # A page begins with a whole bundle, some of whose messages may have been on the page
        # before.
        items = [
            _item(message, "ready", priority)
            for message in messages
            if not message.id or message.id.encode() > after
        ]
    else:
        items = [item for bundle in reply.bundles() for item in _items(part, bundle, reply.now_ms)]
    return QueuePage(items, [spot._replace(after=reply.after), *others] if reply.after else others)


def _messages_on_page(call: Call, reply: Reply) -> int:
    found = PageReply.of(reply)
    if call.args[0] in WITHOUT_TIME:
        return count_messages(found.found)
    return sum(count_messages(bundle.texts) for bundle in found.bundles())


def _items(part: str, bundle: TimedBundle, now_ms: int) -> Iterator[QueueItem]:
    name = bundle.name.decode()
    _, priority, attempt, *_ = name.split(":")
    time_ms = int(float(bundle.time_ms))
    for place, text in enumerate(bundle.texts):
        deadline = bundle.deadlines[place] if bundle.deadlines else time_ms
        state, due_ms = _state(part, deadline, bundle.rest_ms, now_ms)
        for message in open_bundle(text):
            where = f"{name}.{message.id}"
            yield _item(message, state, int(priority), int(attempt), due_ms, where)


def _state(part: str, time_ms: int, rest_ms: int, now_ms: int) -> tuple[State, int]:
    """Return the state of a message that has a time, and when it is due by that state."""
    if part == "dead":
        return "dead", time_ms
    if part == "unacked":
        if time_ms > now_ms:
            return "unacked", time_ms
        if rest_ms < 0:
            return "dead", time_ms
        time_ms += rest_ms
    return "ready" if time_ms <= now_ms else "delayed", time_ms


def _item(
    message: StoredMessage,
    state: State,
    priority: int,
    attempt: int = 0,
    due_ms: int | None = None,
    place: str = "",
) -> QueueItem:
    """Make an item of a message; one that is damaged is shown as it was found."""
    return QueueItem(
        message.id,
        message.value,
        state if message.id else "damaged",
        priority,
        attempt,
        int(message.id or 0) // 1000,
        due_ms,
        message.expires_ms,
        place,
        Headers.stored(message.headers) if message.headers else NO_HEADERS,
    )


def chosen(
    messages: Iterable[QueueItem | str], cure: str, state: str | None = None
) -> tuple[list[str], set[str]]:
    """Return the places and the ids by which messages are named.

    Raises InvalidInput, which tells the ``cure``, for anything else, or a message in another state.
    """
    if isinstance(messages, str):
        raise InvalidInput(cure)
    places: list[str] = []
    ids: set[str] = set()
    for message in messages:
        if isinstance(message, QueueItem) and state in (None, message.state):
            places.append(message.place)
        elif isinstance(message, str) and message.isascii() and message.isdigit():
            ids.add(message)
        elif isinstance(message, str) and "." in message:
            places.append(message)
        elif isinstance(message, str):
            shown = message[:100]
            raise InvalidInput(f"{shown!r} is neither the id nor the place of a message; {cure}")
        else:
            raise InvalidInput(cure)
    return places, ids


def places_by_id(
    queue: QueueHandle, ids: set[str], rest: list[Spot], state: str
) -> Operation[list[str]]:
    """Return where messages with these ids are, looked up page by page from some spots on."""
    places: list[str] = []
    left = set(ids)
    while rest and left:
        items, rest = yield from page(queue, rest)
        places += [item.place for item in items if item.id in left and item.state == state]
        left -= {item.id for item in items}
    return places


# ── Peeking ───────────────────────────────────────────────────────────────────────────────────────
# The messages of a queue that come first in some state, without taking them.
#
# They are looked for in every part of the queue where the state may be, page by page; no more are
# kept than are wanted, so that large messages do not take any amount of memory.


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
