"""Lists as servers return them, page by page: dead letters, messages of queues, timelines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from headwater.errors import InvalidInput
from headwater.kernel.failures import LetterFilter
from headwater.kernel.headers import LIST_BYTES
from headwater.kernel.inputs import check_int
from headwater.log.dead_letters import list_dead
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.keys import MAX_OFFSET
from headwater.log.topics import TopicHandle, list_topic_dead, open_group
from headwater.log.types import DeadLetter, TopicDeadLetter
from headwater.queue import dead_letters as queue_letters
from headwater.queue.handles import QueueHandle
from headwater.queue.inspecting import peek_page
from headwater.queue.types import QueueItem, State
from headwater.timeline.records import MAX_SIZE, Cursor, Record

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater
    from headwater.timeline.farm.aio_farm import AsyncFarm


# ── Letter lists ──────────────────────────────────────────────────────────────────────────────────
# Lists of dead letters and of messages in queues, as servers return them: page by page.
#
# A page ends once its messages have 4 MiB, with one at least, and names the place where the next
# one begins. Nothing more is asked of the store: large messages do not take any amount of memory.


Item = TypeVar("Item")

_NOBODY: Final = "letters"
_DIGITS: Final = len(str(MAX_OFFSET))


class ListedPage(NamedTuple, Generic[Item]):
    """Some items of a list; ``next`` names where the next page begins, None at the end."""

    items: list[Item]
    next: str | None


async def letters_of_group(
    hw: AsyncHeadwater,
    stream: str,
    group: str,
    count: int,
    start: str = "",
    matching: LetterFilter | None = None,
) -> ListedPage[DeadLetter]:
    """Return the oldest dead letters of a group that fit, from a place on."""
    (place,) = _places(start, 1) if start else (0,)
    handle = GroupHandle(StreamHandle(stream, set()), group, _NOBODY)
    found = await hw.store.run(list_dead(handle, count, matching, LIST_BYTES, place))
    return ListedPage(found.letters, _spelled([found.place]))


async def letters_of_topic(
    hw: AsyncHeadwater,
    topic: str,
    group: str,
    count: int,
    start: str = "",
    matching: LetterFilter | None = None,
) -> ListedPage[TopicDeadLetter]:
    """Return the oldest dead letters of a group of a topic that fit, from a place on."""
    handle = open_group(
        *(TopicHandle(topic, None, set()), group, _NOBODY, "first", None, None),
        ordered=False,
        one_server=True,
    )
    places = _places(start) if start else []
    found = await hw.store.run(list_topic_dead(handle, count, matching, LIST_BYTES, places))
    return ListedPage(found.letters, _spelled(found.places))


async def letters_of_queue(
    hw: AsyncHeadwater,
    queue: str,
    count: int,
    start: str = "",
    matching: LetterFilter | None = None,
) -> ListedPage[QueueItem]:
    """Return the oldest dead letters of a queue that fit, from a place on."""
    handle, place = QueueHandle(queue, set(), _NOBODY), start.encode("utf-8", "replace")
    found = await hw.store.run(queue_letters.list_dead(handle, count, matching, LIST_BYTES, place))
    return ListedPage(found.letters, found.place.decode() or None)


async def messages_in_queue(
    hw: AsyncHeadwater, queue: str, state: State, count: int, start: str = ""
) -> ListedPage[QueueItem]:
    """Return the messages of a queue that come first in a state, from a place on."""
    if state == "dead":
        return await letters_of_queue(hw, queue, count, start)
    handle = QueueHandle(queue, set(), _NOBODY)
    found = await hw.store.run(peek_page(handle, count, state, LIST_BYTES, start))
    return ListedPage(found.items, found.next)


def _places(text: str, count: int | None = None) -> list[int]:
    """Return the place in each partition that a text names, -1 where it names none."""
    parts = text.split(".")
    fits = all(not part or (part.isascii() and part.isdecimal()) for part in parts)
    if not fits or max(map(len, parts)) > _DIGITS or count not in (None, len(parts)):
        shown = text[:100]
        raise InvalidInput(f"{shown!r} is no place among letters; give next as it was returned")
    return [int(part) if part else -1 for part in parts]


def _spelled(places: list[int]) -> str | None:
    """Return places among letters as text; None when none of them has more."""
    if all(place < 0 for place in places):
        return None
    return ".".join("" if place < 0 else str(place) for place in places)


# ── Timeline pages ────────────────────────────────────────────────────────────────────────────────
# A page of a timeline as servers return it: read in steps, and no more once it has 4 MiB.


# Members may be large: a page begins with so many, and goes on by their size.
_FIRST: Final = 16


class TimelinePart(NamedTuple):
    """Records of a timeline, the newest first, and why some may be missing."""

    records: list[Record]
    failures: list[Any]


async def timeline_part(
    farm: AsyncFarm, key: Any, offset: int, limit: int, start: Any = None, stop: Any = None
) -> TimelinePart:
    """Return records by rank, or behind and before places; with places, offset is 0."""
    records: list[Record] = []
    failures: list[Any] = []
    size = 0
    step = min(check_int(limit, "limit", 1, MAX_SIZE), _FIRST)
    while True:
        if start is None and stop is None:
            found = await farm.select([key], offset, step)
        else:
            found = await farm.select_range([key], start, stop, step)
        some = found[key]
        failures += [one for one in found.failures if str(one) not in map(str, failures)]
        for record in some:
            records.append(record)
            size += len(record.member)
            if size >= LIST_BYTES:
                return TimelinePart(records, failures)
        if len(some) < step or len(records) >= limit:
            return TimelinePart(records, failures)
        # What is inserted meanwhile does not move a place.
        start = Cursor.of(records[-1])
        fitting = (LIST_BYTES - size) * len(records) // max(size, 1)
        step = max(1, min(limit - len(records), fitting))
