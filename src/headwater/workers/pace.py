"""What crews of threads and of tasks have in common: how much they hold, and what becomes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Generic, NamedTuple, TypeVar

from headwater.inputs import check_int, check_ms

Item = TypeVar("Item")

MOST_AT_ONCE = 10_000
# A wait for work ends this often, to look whether the crew shall stop.
LOOK_MS = 500
# The same while it holds messages, which it must then give back at once.
BUSY_LOOK_MS = 100
# How much work is held ahead, and how much at most, so that quick handlers need few round trips.
AHEAD_S = 0.05
MOST_AHEAD = 1000


class Pace:
    """How many messages are handled at once, how many are held, and for how long each.

    ``name`` is what the caller calls ``held_ms``, the time after which a message that is not
    extended goes to somebody else.
    """

    def __init__(
        self,
        concurrency: int,
        held_ms: int,
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.concurrency = check_int(concurrency, "concurrency", 1, MOST_AT_ONCE)
        self.beat_s = check_ms(held_ms, name, 100) / 3000
        self.room = 2 * concurrency
        self._done = 0
        self._clock = clock
        self._since = clock()

    def note(self, done: int) -> None:
        """Take note of messages that are done, and hold as many as a moment's work ahead."""
        self._done += done
        took = self._clock() - self._since
        if took >= AHEAD_S:
            per_moment = int(self._done * AHEAD_S / took)
            self.room = min(max(per_moment, 2 * self.concurrency), MOST_AHEAD)
            self._done, self._since = 0, self._clock()
        elif self._done >= self.room:
            # Quicker than a moment: there may be much more to come.
            self.room = min(2 * self.room, MOST_AHEAD)


NOT_BEGUN = -1


class Outcome(NamedTuple, Generic[Item]):
    """What became of a message: done; failed, to rest a while; or not begun."""

    item: Item
    rest_ms: int | None = None


class Verdict(NamedTuple, Generic[Item]):
    """What the store is to be told of several messages at once; what failed, by its rest."""

    done: list[Item]
    untried: list[Item]
    failed: list[tuple[int, list[Item]]]


def verdict_of(outcomes: Iterable[Outcome[Item]]) -> Verdict[Item]:
    """Sort outcomes into what is done, what was not begun, and what failed, by its rest."""
    done = [outcome.item for outcome in outcomes if outcome.rest_ms is None]
    failed = sorted(
        (outcome for outcome in outcomes if outcome.rest_ms is not None),
        key=lambda outcome: outcome.rest_ms or 0,
    )
    by_rest = {
        rest or 0: [outcome.item for outcome in part]
        for rest, part in groupby(failed, lambda outcome: outcome.rest_ms)
    }
    untried = by_rest.pop(NOT_BEGUN, [])
    return Verdict(done, untried, list(by_rest.items()))
