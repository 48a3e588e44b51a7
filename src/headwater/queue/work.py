"""What both kinds of worker have in common: their terms, and what becomes of a delivery."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import NamedTuple, TypedDict

from headwater.inputs import check_int, check_ms
from headwater.outages import delay_s
from headwater.queue.types import Delivery, QueueSettings

MOST_AT_ONCE = 10_000
# A pop that waits comes back this often, to look whether the worker shall stop.
LOOK_MS = 500
# The same while it holds messages, which it must then give back at once.
BUSY_LOOK_MS = 100
# How much work is held ahead, and how much at most, so that quick handlers need few round trips.
AHEAD_S = 0.05
MOST_AHEAD = 1000
FIRST_REST_MS = 1000
LONGEST_REST_MS = 60_000


class WorkerOptions(TypedDict, total=False):
    """How a worker treats its messages; QueueWorker says what each means."""

    concurrency: int
    ack_ms: int


class Terms:
    """How many messages are handled at once, how long each is held, and when it is tried again."""

    def __init__(
        self, concurrency: int, ack_ms: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.concurrency = check_int(concurrency, "concurrency", 1, MOST_AT_ONCE)
        self.ack_ms = check_ms(ack_ms, "ack_ms", 100)
        self.settings = QueueSettings()
        self._done = 0
        self._clock = clock
        self._since = clock()
        self.room = 2 * concurrency

    @property
    def beat_s(self) -> float:
        """How often what is held is extended."""
        return self.ack_ms / 3000

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

    def rest_ms(self, attempt: int) -> int:
        """How long a message rests after it failed, if its queue does not say so itself."""
        if self.settings.backoff != "none":
            return 0
        return int(delay_s(attempt, FIRST_REST_MS, LONGEST_REST_MS))


class Outcome(NamedTuple):
    """What became of a delivery: done; failed, to rest a while; or not begun (rest of -1)."""

    delivery: Delivery
    rest_ms: int | None = None


class Verdict(NamedTuple):
    """What the store is to be told of several deliveries at once."""

    done: list[Delivery]
    untried: list[Delivery]
    failed: list[tuple[int, list[Delivery]]]


NOT_BEGUN = -1


def verdict_of(outcomes: Iterable[Outcome]) -> Verdict:
    """Sort outcomes into what is done, what was not begun, and what failed, by its rest."""
    done = [outcome.delivery for outcome in outcomes if outcome.rest_ms is None]
    failed = sorted(
        (outcome for outcome in outcomes if outcome.rest_ms is not None),
        key=lambda outcome: outcome.rest_ms or 0,
    )
    by_rest = {
        rest or 0: [outcome.delivery for outcome in part]
        for rest, part in groupby(failed, lambda outcome: outcome.rest_ms)
    }
    untried = by_rest.pop(NOT_BEGUN, [])
    return Verdict(done, untried, list(by_rest.items()))
