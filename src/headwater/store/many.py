"""Calls that go to the servers together: how they are cut, and operations that run side by side.

Thousands of calls cost a handful of round trips.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from headwater.errors import BrokenObject, StoreError, UnreadableNode
from headwater.store.call import Call, Many, Operation, Request
from headwater.store.faults import Refusal

T = TypeVar("T")

log = logging.getLogger("headwater.store")

# How much is sent before replies are read: little to keep in memory at either end. A server serves
# others in between, since it reads some kilobytes of commands at a time.
CHUNK_CALLS = 2000
CHUNK_BYTES = 1 << 20


def chunks(request: Many) -> Iterator[list[Call]]:
    """Cut calls into chunks, each of which is sent at once.

    Raises ValueError for a call that must not be sent twice: a fault would leave it in doubt.
    """
    part: list[Call] = []
    size = 0
    for call in request.calls:
        if not (call.read_only or call.repeatable):
            raise ValueError(f"{call.function} is not to be repeated, so it must be sent alone")
        more = sum(len(arg) for arg in call.args if not isinstance(arg, int))
        if part and (len(part) == CHUNK_CALLS or size + more > CHUNK_BYTES):
            yield part
            part, size = [], 0
        part.append(call)
        size += more
    if part:
        yield part


def together(operations: Iterable[Operation[T]]) -> Operation[list[T]]:
    """Run operations concurrently, and return their results in order.

    What they ask for at the same time goes together, as far as it may be repeated; so operations of
    one call each cost a handful of round trips, whatever their number. The first error that one
    of them raises ends them all.
    """
    results: list[Any] = []
    running: dict[int, tuple[Operation[T], Request]] = {}

    def advance(place: int, operation: Operation[T], reply: Any) -> None:
        refused = isinstance(reply, Refusal | StoreError | UnreadableNode)
        try:
            running[place] = operation, operation.throw(reply) if refused else operation.send(reply)
        except StopIteration as done:
            results[place] = done.value
            running.pop(place, None)

    for place, operation in enumerate(operations):
        results.append(None)
        advance(place, operation, None)
    while running:
        side_by_side = list(running.items())
        replies = yield from _ask([request for _, (_, request) in side_by_side])
        for (place, (operation, _)), reply in zip(side_by_side, replies, strict=True):
            advance(place, operation, reply)
    return results


def sound(operations: Iterable[Operation[T]]) -> Operation[list[T | None]]:
    """Run operations on many objects concurrently; the result is None for an object that is broken.

    Each such object is logged: whoever shows the others leaves it out.
    """
    return (yield from together(map(_or_none, operations)))


def _or_none(operation: Operation[T]) -> Operation[T | None]:
    try:
        return (yield from operation)
    except (BrokenObject, UnreadableNode) as error:
        log.warning("an object is left out: %s", error)
        return None


def _ask(requests: Sequence[Request]) -> Generator[Request, Any, list[Any]]:
    """Send what can go together, and the rest one by one; an error takes the place of a reply."""
    gathered = {
        place: request
        for place, request in enumerate(requests)
        if isinstance(request, Call) and (request.read_only or request.repeatable)
    }
    found = (yield Many(list(gathered.values()))) if gathered else ()
    replies = dict(zip(gathered, found, strict=True))
    for place, request in enumerate(requests):
        if place not in gathered:
            try:
                replies[place] = yield request
            except (Refusal, StoreError, UnreadableNode) as error:
                replies[place] = error
    return [replies[place] for place in range(len(requests))]
