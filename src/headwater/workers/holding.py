"""The messages that a worker holds: how many, in which order, and for how long."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, NamedTuple

from headwater.errors import HandlerTimeout
from headwater.kernel.inputs import Duration, check_int, check_ms
from headwater.workers.attempts import Handled, Item

# ── Prefetch ──────────────────────────────────────────────────────────────────────────────────────
# How many messages a worker holds: enough that fast handlers never wait for a round trip.


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


# ── Tag order ─────────────────────────────────────────────────────────────────────────────────────
# Order within a crew: of the messages of one tag that it holds, one is handled at a time.
#
# The store delivers the messages of a tag to one member at a time, which states what it has when
# it asks for more. In that member they start one after the other. When one fails, the messages
# after it are returned to the store, which keeps them until their turn; so are those of a read
# that began before the failure.


class AdmittedMessages(NamedTuple, Generic[Item]):
    """Messages to handle at once, and those to return; the others wait for their tag."""

    now: list[Item]
    never: list[Item]


class TagOrder(Generic[Item]):
    """Messages of a crew by tag: one that is handled, and those that wait for it.

    ``tag_of`` returns what orders a message, and something false when nothing does.
    """

    def __init__(self, tag_of: Callable[[Item], Hashable], key_of: Callable[[Item], Any]) -> None:
        self._tag_of = tag_of
        self._key_of = key_of
        # For each tag with a message that is being handled: the messages after it.
        self._waiting: dict[Hashable, deque[Item] | None] = {}
        # Messages in hand that have not failed; and tags that failed since a take began.
        self._owned: dict[Any, None] = {}
        self._failed: set[Hashable] = set()
        self._lock = threading.Lock()

    def owned(self) -> list[Any]:
        """Return the keys of all that is in hand and did not fail."""
        with self._lock:
            return list(self._owned)

    def begin_take(self) -> None:
        """Note that messages are asked for."""
        with self._lock:
            self._failed.clear()

    def admit(self, items: Iterable[Item]) -> AdmittedMessages[Item]:
        """Return when messages are handled that were taken."""
        tag_of, key_of, waiting, failed = self._tag_of, self._key_of, self._waiting, self._failed
        found = AdmittedMessages[Item]([], [])
        begin = found.now.append
        with self._lock:
            for item in items:
                tag = tag_of(item)
                if tag in failed:
                    found.never.append(item)
                    continue
                self._owned[key_of(item)] = None
                if not tag:
                    begin(item)
                elif tag not in waiting:
                    waiting[tag] = None
                    begin(item)
                elif (behind := waiting[tag]) is None:
                    waiting[tag] = deque((item,))
                else:
                    behind.append(item)
        return found

    def done(self, item: Item) -> Item | None:
        """Note that a message succeeded; returns the one that may begin now, if there is any."""
        tag = self._tag_of(item)
        with self._lock:
            waiting = self._waiting.get(tag)
            if waiting:
                return waiting.popleft()
            self._waiting.pop(tag, None)
            return None

    def settled(self, handled: Iterable[Handled[Item]]) -> None:
        """Note that messages were acknowledged, or returned."""
        forget, key_of = self._owned.pop, self._key_of
        with self._lock:
            for item, _ in handled:
                forget(key_of(item), None)

    def failed(self, item: Item) -> list[Item]:
        """Note that a message did not succeed; returns those after it, which must not begin."""
        tag = self._tag_of(item)
        with self._lock:
            if not tag:
                self._owned.pop(self._key_of(item), None)
                return []
            self._failed.add(tag)
            behind = list(self._waiting.pop(tag, None) or ())
            for each in (item, *behind):
                self._owned.pop(self._key_of(each), None)
            return behind

    def take_waiting(self) -> list[Item]:
        """Return all messages that wait, and forget them; what is handled continues."""
        with self._lock:
            found = [item for waiting in self._waiting.values() for item in waiting or ()]
            self._waiting = dict.fromkeys(self._waiting)
            for item in found:
                self._failed.add(self._tag_of(item))
                self._owned.pop(self._key_of(item), None)
            return found


# ── Timeouts ──────────────────────────────────────────────────────────────────────────────────────
# Time limits of handlers: which threads have been working since when, and which took too long.
#
# A thread cannot be stopped. When its handler has run past the limit, the crew gives the message
# up and replaces the thread; what the handler returns later is ignored.


def check_timeout(timeout_ms: Duration | None) -> int | None:
    """Accept how long a handler may run, in milliseconds; None is no limit."""
    return None if timeout_ms is None else check_ms(timeout_ms, "timeout_ms", 1)


class RunningHandler(NamedTuple, Generic[Item]):
    """A thread and the message that it handles since ``began``, by the monotonic clock."""

    item: Item
    began: float
    thread: threading.Thread


class TimedHandlers(Generic[Item]):
    """The handlers that run, in the order in which they began, which is that of their ends."""

    def __init__(self, timeout_ms: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.timeout_ms = timeout_ms
        self._clock = clock
        self._running: dict[Hashable, RunningHandler[Item]] = {}
        self._lock = threading.Lock()

    def begin(self, key: Hashable, item: Item, began: float) -> None:
        """Note that this thread begins to handle a message."""
        with self._lock:
            self._running[key] = RunningHandler(item, began, threading.current_thread())

    def end(self, key: Hashable) -> bool:
        """Note that a handler ended; returns whether that was in time."""
        with self._lock:
            found = self._running.get(key)
            if found is None or found.thread is not threading.current_thread():
                return False
            del self._running[key]
            return True

    def next_end(self) -> float:
        """Return when the next handler will have run too long, by the monotonic clock."""
        with self._lock:
            for running in self._running.values():
                return running.began + self.timeout_ms / 1000
        return self._clock() + self.timeout_ms / 1000

    def take_overdue(self) -> list[RunningHandler[Item]]:
        """Return the handlers that have run too long, and forget them."""
        limit = self._clock() - self.timeout_ms / 1000
        with self._lock:
            overdue = [key for key, running in self._running.items() if running.began <= limit]
            return [self._running.pop(key) for key in overdue]

    def error(self) -> HandlerTimeout:
        """Return the error of a message whose handler has run too long."""
        return HandlerTimeout(self.timeout_ms)
