"""What happened to messages that a worker took: done, failed, or not begun."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeVar

from headwater.kernel.failures import Failure
from headwater.store.presence import ReportedPart

Item = TypeVar("Item")

# No handler was called, or it was cancelled: the message counts no attempt.
NotBegun: TypeAlias = Literal["not begun"]
NOT_BEGUN: NotBegun = "not begun"


class Handled(NamedTuple, Generic[Item]):
    """One message: done, unless it has a ``failure`` or was not begun."""

    item: Item
    failure: Failure | NotBegun | None = None


class HandledBatch(NamedTuple, Generic[Item]):
    """Several messages, as a source settles them."""

    done: list[Item]
    not_begun: list[Item]
    failed: list[Failure]


class HandledCounts:
    """How many messages a crew has handled since it was made, and how many attempts failed.

    ``stuck`` threads still run a handler past its time now.
    """

    __slots__ = ("done", "failed", "stuck")

    def __init__(self) -> None:
        self.done = self.failed = self.stuck = 0

    def report(self, name: str, held: int) -> ReportedPart:
        """Return what a crew reports for monitoring."""
        return ReportedPart(name, "worker", name, "running", self.done, self.failed, held=held)

    def add(self, batch: HandledBatch[Item]) -> None:
        """Count the messages of a batch that was settled."""
        self.done += len(batch.done)
        self.failed += len(batch.failed)


def batch_of(handled: Iterable[Handled[Item]]) -> HandledBatch[Item]:
    """Sort messages by what happened to them."""
    batch = HandledBatch[Item]([], [], [])
    for item, failure in handled:
        if failure is None:
            batch.done.append(item)
        elif isinstance(failure, Failure):
            batch.failed.append(failure)
        else:
            batch.not_begun.append(item)
    return batch
