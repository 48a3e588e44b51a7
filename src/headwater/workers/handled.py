"""What became of messages that a worker took: done, failed, or not begun."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")

# In the place of a delay: no handler was called, so the message counts no attempt.
NOT_BEGUN = -1


class Handled(NamedTuple, Generic[Item]):
    """One message: done without a ``delay_ms``, else to be redelivered after it."""

    item: Item
    delay_ms: int | None = None


class HandledBatch(NamedTuple, Generic[Item]):
    """Several messages, as a source settles them; those that failed by their delay."""

    done: list[Item]
    not_begun: list[Item]
    failed: list[tuple[int, list[Item]]]


def batch_of(handled: Iterable[Handled[Item]]) -> HandledBatch[Item]:
    """Sort messages by what became of them."""
    done = [each.item for each in handled if each.delay_ms is None]
    failed = sorted(
        (each for each in handled if each.delay_ms is not None),
        key=lambda each: each.delay_ms or 0,
    )
    by_delay = {
        delay or 0: [each.item for each in part]
        for delay, part in groupby(failed, lambda each: each.delay_ms)
    }
    not_begun = by_delay.pop(NOT_BEGUN, [])
    return HandledBatch(done, not_begun, list(by_delay.items()))
