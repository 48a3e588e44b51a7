"""Lists of dead letters and of messages in queues, as servers return them: page by page.

A page ends once its messages have 4 MiB, with one at least, and names the place where the next one
begins. Nothing more is asked of the store: large messages do not take any amount of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from headwater.doors.catalogue import GROUP, QUEUE, TOPIC_GROUP, Kind
from headwater.kernel.failures import LetterFilter
from headwater.kernel.headers import LIST_BYTES
from headwater.log.topics import list_dead, topic_group
from headwater.queue.handles import QueueHandle
from headwater.queue.inspecting import peek_page
from headwater.queue.types import QueueItem, State
from headwater.store.call import Operation
from headwater.store.letters import LetterPage
from headwater.whole_store.letters import letter_box

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater

Item = TypeVar("Item")

_NOBODY: Final = "letters"


class ListedPage(NamedTuple, Generic[Item]):
    """Some items of a list; ``next`` names where the next page begins, None at the end."""

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
