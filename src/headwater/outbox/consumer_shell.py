"""What Consumer and AsyncConsumer share: all that does not wait for a store or a database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import add
from typing import Generic, TypeVar

from headwater.log.handles import StreamHandle
from headwater.outbox.consuming import Turn
from headwater.outbox.plan import (
    ConsumerPlan,
    ConsumerStats,
    Streams,
    coders_of,
    for_each,
    names_of,
    streams_of,
)

H = TypeVar("H")
R = TypeVar("R")


class ConsumerShell(Generic[H, R]):
    """A consumer without its I/O: its names, its functions, and what it does on each stream."""

    def __init__(
        self,
        plan: ConsumerPlan,
        stream: Streams,
        handler: H | Mapping[str, H],
        on_reset: R | Mapping[str, R] | None,
        steps: Callable[[str], None] | None,
    ) -> None:
        self.name = plan.name
        given = streams_of(stream)
        self.streams = names_of(given)
        self._handlers = for_each(self.streams, handler, "handler")
        self._resetters = for_each(self.streams, on_reset, "on_reset") if on_reset else {}
        self._steps = steps
        self._patience_s: float | None = None
        known: set[str] = set()
        coders = coders_of(given)
        self._turns = {
            place: Turn(
                plan,
                StreamHandle(place, known, coders.get(place)),
                StreamHandle(plan.dead_letters(place), known),
            )
            for place in self.streams
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r} of {', '.join(self.streams)})"

    @property
    def stats(self) -> ConsumerStats:
        """What was done since the consumer was made."""
        return reduce(add, [turn.stats for turn in self._turns.values()], ConsumerStats())
