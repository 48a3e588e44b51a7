"""Inspecting a queue without changing it: its state, and all of its messages, page by page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields
from typing import Any, NamedTuple, get_args

from headwater.errors import InvalidInput
from headwater.kernel.headers import NO_HEADERS, Headers
from headwater.kernel.inputs import check_int
from headwater.queue.bundles import StoredMessage, count_messages, open_bundle
from headwater.queue.handles import QueueHandle
from headwater.queue.limits import MAX_POP
from headwater.queue.replies import DueReply, PageReply, Reply, TimedBundle, stats_of
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
