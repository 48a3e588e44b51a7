"""Lists as servers return them, page by page: dead letters, messages of queues, timelines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from headwater.doors.catalogue import GROUP, QUEUE, TOPIC_GROUP, Kind
from headwater.kernel.failures import LetterFilter
from headwater.kernel.headers import LIST_BYTES
from headwater.kernel.inputs import check_int
from headwater.log.topics import list_dead, topic_group
from headwater.queue.handles import QueueHandle
from headwater.queue.inspecting import peek_page
from headwater.queue.types import QueueItem, State
from headwater.store.call import Operation
from headwater.store.letters import LetterPage
from headwater.timeline.records import MAX_SIZE, Cursor, Record
from headwater.whole_store.letters import letter_box

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater
    from headwater.timeline.farm.aio_farm import AsyncFarm


Item = TypeVar("Item")

_NOBODY: Final = "letters"


class ListedPage(NamedTuple, Generic[Item]):
    """Some items of a list; ``next`` names where the next page begins, None at the end.

    A page ends once its messages have 4 MiB, with one at least. Nothing more is asked of the store:
    large messages do not take any amount of memory.
    """

    items: list[Item]
    next: str | None


def letters_of(
    kind: Kind, names: Sequence[str], count: int, place: str, matching: LetterFilter | None = None
) -> Operation[LetterPage[Any]]:
    """Return the oldest dead letters that fit, from a place on."""
    if kind is TOPIC_GROUP:
        group = topic_group(*names)
        return (yield from list_dead(group, count, matching, LIST_BYTES, place))
    box = letter_box(names[0], names[1] if kind is GROUP else None)
    return (yield from box.listed(count, matching, LIST_BYTES, place))


async def messages_in_queue(
    hw: AsyncHeadwater, queue: str, state: State, count: int, start: str = ""
) -> ListedPage[QueueItem]:
    """Return the messages of a queue that come first in a state, from a place on."""
    if state == "dead":
        return ListedPage(*await hw.store.run(letters_of(QUEUE, [queue], count, start)))
    handle = QueueHandle(queue, set(), _NOBODY)
    found = await hw.store.run(peek_page(handle, count, state, LIST_BYTES, start))
    return ListedPage(found.items, found.next)


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
