"""Looking at a queue without touching it: how it stands, what comes next, all that is in it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple, get_args

from headwater.errors import InvalidInput
from headwater.inputs import check_int
from headwater.queue.handles import QueueHandle
from headwater.queue.limits import MAX_POP, check_count
from headwater.queue.packs import Message, open_element, read_entry
from headwater.queue.types import QueueItem, QueueSettings, QueueStats, State
from headwater.store.call import Call, Operation

PAGE_MESSAGES = 1000
PAGE_BYTES = 4 * 1024 * 1024

# In which parts of a queue a state is found: what is due stays where it lies until it is taken.
_PARTS: dict[State, tuple[str, ...]] = {
    "ready": ("held", "again", "later", "ready"),
    "delayed": ("later", "again"),
    "unacked": ("held",),
    "dead": ("dead", "held"),
    "damaged": ("aside",),
}
_WITHOUT_LEVEL = ("dead", "aside")
# In the order in which messages pass through them.
_ALL_PARTS = ("later", "ready", "again", "held", "dead", "aside")


class Spot(NamedTuple):
    """One part of a queue, and where in it a page begins."""

    part: str
    level: str
    after: bytes = b""
    most_attempts: int | None = None
    now: int = 0


class Page(NamedTuple):
    """Some of what is in a queue, and the spots that were not looked at yet."""

    items: list[QueueItem]
    rest: list[Spot]


def stats(queue: QueueHandle) -> Operation[QueueStats]:
    """Say how the queue stands."""
    reply = yield Call("hw_queue_stats", queue.key, read_only=True)
    now, levels, paused, settings, exists, waiting, oldest, listed, counts = reply[:9]
    _, pushed, popped, acked, expired, damaged, held, later, again, dead = counts
    ready = listed
    due = reply[11]
    for level, part in zip(due[::2], due[1::2], strict=True):
        come, spent = yield from _count_due(queue, level, part, now)
        ready, dead = ready + come - spent, dead + spent
        if part == b"held":
            held -= come
        elif part == b"again":
            again -= come
        else:
            later -= come
    rates = _rates(now, (pushed, popped, acked), reply[9], reply[10])
    return QueueStats(
        name=queue.name,
        ready=ready,
        delayed=later + again,
        unacked=held,
        dead=dead,
        damaged=damaged,
        oldest_ms=max(now - oldest, 0) if oldest else None,
        pushed=pushed,
        popped=popped,
        acked=acked,
        expired=expired,
        pushed_per_s=rates[0],
        popped_per_s=rates[1],
        acked_per_s=rates[2],
        waiting=waiting,
        paused=bool(paused),
        exists=bool(exists),
        priorities=tuple(int(level) for level in levels.split(b",") if level),
        settings=parse_settings(settings),
    )


def _count_due(queue: QueueHandle, level: bytes, part: bytes, now: int) -> Operation[list[int]]:
    total = spent = rank = 0
    while rank >= 0:
        args = (level, part, now, rank)
        some, of_them, rank = yield Call("hw_queue_due", queue.key, args, read_only=True)
        total, spent = total + some, spent + of_them
    return [total, spent]


def _rates(now: int, totals: tuple[int, ...], before: bytes, mark: bytes) -> tuple[float, ...]:
    """Take rates since the mark before the last, or the last one if that is long ago."""
    for text, longest in ((before, 20_000), (mark, None)):
        if text:
            then, *counts = (int(word) for word in text.split(b":"))
            took = now - then
            if took > 0 and (longest is None or took <= longest):
                return tuple(
                    (total - count) * 1000 / took
                    for total, count in zip(totals, counts, strict=True)
                )
    return (0.0,) * len(totals)


def parse_settings(text: bytes) -> QueueSettings:
    """Read the settings as the server keeps them; none are the defaults."""
    if not text:
        return QueueSettings()
    most, manner, first, longest = text.decode().split(":")
    return QueueSettings(int(most) or None, manner, int(first), int(longest))  # type: ignore[arg-type]


def peek(queue: QueueHandle, count: int, state: State) -> Operation[list[QueueItem]]:
    """Return the messages of a state that come first, without taking them.

    What is ready comes in the order in which pop takes it, what is delayed or unacked by priority
    and then by time, dead letters by the time at which they were given up.
    """
    check_count(count)
    spots = yield from spots_of(queue, [state])
    if state == "dead":
        return (yield from _first(queue, spots, count, state))
    found: list[QueueItem] = []
    for level in sorted({spot.level for spot in spots}, key=lambda level: -int(level or 0)):
        of_level = [spot for spot in spots if spot.level == level]
        found += yield from _first(queue, of_level, count - len(found), state)
        if len(found) >= count:
            break
    return found


def _first(
    queue: QueueHandle, spots: list[Spot], count: int, state: State
) -> Operation[list[QueueItem]]:
    """Return the first messages of a state out of some parts of a queue."""
    found: list[tuple[tuple[bool, int, bool], QueueItem]] = []
    for spot in spots:
        items = yield from _first_of_part(queue, spot, count, state)
        found += ((_turn(spot.part, item), item) for item in items)
    found.sort(key=lambda pair: pair[0])
    return [item for _, item in found[:count]]


def _turn(part: str, item: QueueItem) -> tuple[bool, int, bool]:
    """Order messages as pop does: those that are redelivered, then new ones, each by time."""
    us = int(item.id or 0) if item.due_ms is None else item.due_ms * 1000
    return (part in ("later", "ready"), us, part == "later")


def _first_of_part(
    queue: QueueHandle, spot: Spot, count: int, state: State
) -> Operation[list[QueueItem]]:
    """Return what may be among the first of a state in one part, reading as little as will do."""
    found: list[QueueItem] = []
    if state == "delayed":
        # What is due lies before all that is delayed.
        spot = spot._replace(after=b"%d ~" % spot.now)
    rest = [spot] if count else []
    while rest:
        items, rest = yield from page(queue, rest, min(count, PAGE_MESSAGES))
        found += (item for item in items if item.state == state)
        if not rest or spot.part in ("ready", "aside"):
            if len(found) >= count:
                break
            continue
        # Parts with times are in the order of them, but a message may have a later one of its own.
        reached = int(float(rest[0].after.split()[0]))
        if state in ("ready", "dead") and reached > spot.now:
            break
        if len(found) >= count <= sum((item.due_ms or 0) <= reached for item in found):
            break
    return found


def check_states(states: Iterable[str]) -> None:
    """Accept states of messages."""
    for state in states:
        if state not in get_args(State):
            raise InvalidInput(f"there is no state {state!r}; use one of {get_args(State)}")


def spots_of(queue: QueueHandle, states: Collection[State]) -> Operation[list[Spot]]:
    """Name all spots where messages of some states may lie; of all states when none is named."""
    check_states(states)
    reply = yield Call("hw_queue_stats", queue.key, read_only=True)
    levels = [level.decode() for level in reply[1].split(b",") if level]
    most = parse_settings(reply[3]).max_attempts
    parts = {part for state in states for part in _PARTS[state]} or set(_ALL_PARTS)
    return [
        Spot(part, level, b"", most, reply[0])
        for part in _ALL_PARTS
        if part in parts
        for level in ([""] if part in _WITHOUT_LEVEL else levels)
    ]


def page(queue: QueueHandle, spots: list[Spot], count: int = PAGE_MESSAGES) -> Operation[Page]:
    """Read one page: about ``count`` messages or 4 MiB at most, in one call."""
    check_int(count, "count", 1, MAX_POP)
    spot, *others = spots
    part, level, after, *_ = spot
    args = (part, level, after, min(count, PAGE_MESSAGES), PAGE_BYTES)
    reply = yield Call("hw_queue_page", queue.key, args, read_only=True)
    now, on, *found = reply
    if part == "aside":
        items = [QueueItem("", what, "damaged", 0, 0, 0, None, None, "") for what in found]
    elif part == "ready":
        messages = [message for element in found for message in open_element(element)]
        # A page begins with a whole run, of which some may have been on the page before.
        items = [
            _item(message, "ready", int(level), 0, None, "")
            for message in messages
            if not message.id or message.id.encode() > after
        ]
    else:
        items = _of_parcels(spot, found, now)
    return Page(items, [spot._replace(after=on), *others] if on else others)


def _of_parcels(spot: Spot, found: list[Any], now: int) -> list[QueueItem]:
    items: list[QueueItem] = []
    for start in range(0, len(found), 3):
        head, due, entries = found[start].decode(), int(float(found[start + 1])), found[start + 2]
        _, level, attempt, *_ = head.split(":")
        for place, entry, *own in entries:
            at = own[0] if own else due
            state = _state(spot, at <= now, int(attempt))
            message = read_entry(entry)
            items.append(_item(message, state, int(level), int(attempt), at, f"{head}.{place}"))
    return items


def _state(spot: Spot, due: bool, attempt: int) -> State:
    spent = spot.part == "held" and spot.most_attempts and attempt >= spot.most_attempts
    if spot.part == "dead" or (due and spent):
        return "dead"
    if due:
        return "ready"
    return "unacked" if spot.part == "held" else "delayed"


def _item(
    message: Message, state: State, priority: int, attempt: int, due_ms: int | None, place: str
) -> QueueItem:
    """Make an item of a message; one that is damaged is shown as it was found."""
    if not message.id:
        return QueueItem("", message.value, "damaged", priority, attempt, 0, due_ms, None, place)
    pushed_ms = int(message.id) // 1000
    return QueueItem(
        message.id,
        message.value,
        state,
        priority,
        attempt,
        pushed_ms,
        due_ms,
        message.expires_ms,
        place,
    )
