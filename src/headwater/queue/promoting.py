"""Delayed messages of a queue that are to be delivered now."""

from __future__ import annotations

from collections.abc import Iterable

from headwater.queue.acks import BUNDLES_PER_CALL, by_bundle, messages_settled
from headwater.queue.handles import QueueHandle
from headwater.queue.inspecting import chosen, places_by_id, spots_of
from headwater.queue.replies import SettleReply
from headwater.queue.types import QueueItem
from headwater.store.call import Argument, Call, Operation


def promote(queue: QueueHandle, messages: Iterable[QueueItem | str]) -> Operation[int]:
    """Have delayed messages delivered now; returns how many were still delayed."""
    words = by_bundle((yield from places_of(queue, messages)))
    total = start = 0
    while start < len(words):
        args: tuple[Argument, ...] = tuple(words[start : start + 2 * BUNDLES_PER_CALL])
        call = Call("hw_queue_promote", queue.key, args, repeatable=True, messages=messages_settled)
        reply = SettleReply(*(yield call))
        total, start = total + reply.messages, start + 2 * reply.bundles
    return total


def places_of(queue: QueueHandle, messages: Iterable[QueueItem | str]) -> Operation[list[str]]:
    """Return where delayed messages are; ids are looked up among all of them."""
    cure = "give several messages as peek() returned them, their places or their ids"
    places, ids = chosen(messages, cure)
    if ids:
        rest = yield from spots_of(queue, ["delayed"])
        places += yield from places_by_id(queue, ids, rest, "delayed")
    return places
