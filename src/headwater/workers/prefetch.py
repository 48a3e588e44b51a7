"""How many messages a worker holds: enough that fast handlers never wait for a round trip."""

from __future__ import annotations

import time
from collections.abc import Callable

from headwater.kernel.inputs import Duration, check_int, check_ms

MOST_AT_ONCE = 10_000
# A wait for messages ends this often, to check whether the crew should stop.
LOOK_MS = 500
# The same while it holds messages, which it must then return to the store at once.
BUSY_LOOK_MS = 100
# How long a process that ends waits for the store to take its messages back.
GIVE_BACK_S = 5.0
# How much work is fetched ahead, and how much at most, so that fast handlers need few round trips.
AHEAD_S = 0.05
MOST_AHEAD = 1000


class Prefetch:
    """How many messages are handled at once, how many are held, and for how long each.

    ``name`` is what the caller calls ``held_ms``, the time after which a message that is not
    extended goes to another worker. Of a ``limited`` source no more is held than is handled, unless
    handlers are fast.
    """

    def __init__(
        self,
        concurrency: int,
        held_ms: Duration,
        name: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        limited: bool = False,
    ) -> None:
        self.concurrency = check_int(concurrency, "concurrency", 1, MOST_AT_ONCE)
        self.beat_s = check_ms(held_ms, name, 100) / 3000
        # Messages that are held ahead count as in flight: where that is limited, other workers
        # could start them.
        self._least = concurrency if limited else 2 * concurrency
        self.room = self._least
        self._done = 0
        self._clock = clock
        self._since = clock()

    def adapt(self, done: int) -> None:
        """Adapt to the speed of the handlers: hold as much as ``AHEAD_S`` of their work."""
        self._done += done
        took = self._clock() - self._since
        if took >= AHEAD_S:
            per_moment = int(self._done * AHEAD_S / took)
            self.room = min(max(per_moment, self._least), MOST_AHEAD)
            self._done, self._since = 0, self._clock()
        elif self._done >= self.room:
            # Faster than that: there may be many more.
            self.room = min(2 * self.room, MOST_AHEAD)
