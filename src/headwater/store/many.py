"""Calls that go to the servers together: how they are cut, and what happens to each.

Thousands of calls cost a handful of round trips. A call that fails recovers as it would alone, and
the others keep their replies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from headwater.errors import BrokenObject, StoreError, UnreadableNode
from headwater.store.call import Call, Many, Operation, Request
from headwater.store.faults import Recovery, Refusal, Step

T = TypeVar("T")

log = logging.getLogger("headwater.store")

# How much is sent before replies are read: little to keep in memory at either end. A server serves
# others in between, since it reads some kilobytes of commands at a time.
CHUNK_CALLS = 2000
CHUNK_BYTES = 1 << 20


class BeforeRetry(NamedTuple):
    """What is to be done before calls that failed are sent again."""

    step: Step
    delay_s: float


class CallChunk:
    """Calls that are sent together, until each has a reply."""

    def __init__(self, calls: Sequence[Call], recover: Callable[[Call], Recovery]) -> None:
        self._calls = calls
        self._recover = recover
        self._recoveries: dict[int, Recovery] = {}
        self._open: Sequence[int] = range(len(calls))
        self.replies: list[Any] = [None] * len(calls)

    @property
    def unanswered(self) -> list[Call]:
        """The calls that are to be sent."""
        return [self._calls[place] for place in self._open]

    def take(self, found: Sequence[Any]) -> BeforeRetry | None:
        """Take the replies and faults of the unanswered calls.

        Returns what must be done before those that failed are sent again, None when none is left.
        Raises StoreError when one of them will not succeed.
        """
        failed: list[int] = []
        delays: dict[Step, float] = {}
        for place, reply in zip(self._open, found, strict=True):
            if not isinstance(reply, Exception):
                self.replies[place] = reply
                continue
            recovery = self._recoveries.get(place)
            if recovery is None:
                recovery = self._recoveries[place] = self._recover(self._calls[place])
            try:
                step = recovery.next_step(reply)
            except (Refusal, BrokenObject) as fault:
                # It is for the operation that asked; the others have nothing to do with it.
                self.replies[place] = fault
            else:
                failed.append(place)
                delays[step] = max(delays.get(step, 0.0), recovery.delay_s)
        self._open = failed
        steps: tuple[Step, ...] = ("load", "renew", "wait")
        return next((BeforeRetry(step, delays[step]) for step in steps if step in delays), None)


def chunks(request: Many, recover: Callable[[Call], Recovery]) -> Iterator[CallChunk]:
    """Cut calls into chunks, each of which is sent at once; ``recover`` is for those that fail.

    Raises ValueError for a call that must not be sent twice: a fault would leave it in doubt.
    """
    part: list[Call] = []
    size = 0
    for call in request.calls:
        if not (call.read_only or call.repeatable):
            raise ValueError(f"{call.function} is not to be repeated, so it must be sent alone")
        more = sum(len(arg) for arg in call.args if not isinstance(arg, int))
        if part and (len(part) == CHUNK_CALLS or size + more > CHUNK_BYTES):
            yield CallChunk(part, recover)
            part, size = [], 0
        part.append(call)
        size += more
    if part:
        yield CallChunk(part, recover)


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
