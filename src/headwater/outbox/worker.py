"""Workers: messages of a group, several at a time, each until its handler has succeeded.

For handlers that may run twice without harm. A message is acknowledged after its handler returned,
and comes again when the handler failed, after a pause that doubles each time; or when the worker
died, after ``retry_ms``. A handler may take longer than that: while it runs, its message is kept.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from queue import Empty, SimpleQueue
from typing import NamedTuple, TypeAlias

from headwater.errors import HeadwaterError, InvalidInput, StoreError
from headwater.handlers import check_done, is_async
from headwater.log.limits import check_count, check_ms
from headwater.log.stream import Group
from headwater.log.types import Message
from headwater.outages import delay_s
from headwater.outbox.outages import Outage, is_passing
from headwater.stopping import StopSignal

log = logging.getLogger("headwater.outbox")

WorkerHandler: TypeAlias = "Callable[[Message], object]"

_MOST_AT_ONCE = 10_000
# A read that waits comes back this often, to look whether the worker shall stop.
LOOK_MS = 500


class Terms:
    """How a worker treats its messages: how many at once, and when they come again."""

    def __init__(
        self,
        concurrency: int,
        retry_ms: int,
        expire_ms: int | None,
        backoff_ms: int,
        longest_backoff_ms: int,
    ) -> None:
        if check_count(concurrency, "concurrency", _MOST_AT_ONCE) == 0:
            raise InvalidInput(f"concurrency must be from 1 to {_MOST_AT_ONCE}, not 0")
        self.concurrency = concurrency
        self.retry_ms = check_ms(retry_ms, "retry_ms", 100)
        self.expire_ms = None if expire_ms is None else check_ms(expire_ms, "expire_ms", 1)
        self._backoff_ms = check_ms(backoff_ms, "backoff_ms")
        self._longest_ms = check_ms(longest_backoff_ms, "longest_backoff_ms")

    @property
    def room(self) -> int:
        """How many messages a worker holds at most: one for each hand, and one ready for it."""
        return 2 * self.concurrency

    @property
    def beat_s(self) -> float:
        """How often what is held is extended."""
        return self.retry_ms / 3000

    def pause_ms(self, attempt: int) -> int:
        """How long a message rests after its handler failed for the ``attempt``-th time."""
        return int(delay_s(attempt, self._backoff_ms, self._longest_ms))


class Outcome(NamedTuple):
    """What became of a message: done, or to come again after a pause."""

    offset: int
    pause_ms: int | None = None


class Verdict(NamedTuple):
    """What the store is to be told of several messages at once."""

    done: list[int]
    again: list[tuple[int, list[int]]]


def verdict_of(outcomes: Iterable[Outcome]) -> Verdict:
    """Sort outcomes into those that are done, and those that come again after the same pause."""
    done = [outcome.offset for outcome in outcomes if outcome.pause_ms is None]
    failed = sorted(
        (outcome.pause_ms, outcome.offset) for outcome in outcomes if outcome.pause_ms is not None
    )
    return Verdict(
        done,
        [
            (pause, [offset for _, offset in part])
            for pause, part in groupby(failed, lambda f: f[0])
        ],
    )


class Worker:
    """Handles the messages of a group in threads; run any number of them, anywhere.

    ``concurrency`` handlers run at once. ``retry_ms`` after a worker died, its messages go to
    another one. A failed message rests for ``backoff_ms``, doubled with each failure up to
    ``longest_backoff_ms``. ``expire_ms`` after its first delivery it is given up: a dead letter, if
    the group keeps those.
    """

    def __init__(
        self,
        group: Group,
        handler: WorkerHandler,
        *,
        concurrency: int = 4,
        retry_ms: int = 30_000,
        expire_ms: int | None = None,
        backoff_ms: int = 1000,
        longest_backoff_ms: int = 60_000,
    ) -> None:
        if is_async(handler):
            raise InvalidInput("the handler of a Worker must not be async; use AsyncWorker")
        self._group = group
        self._handler = handler
        self._terms = Terms(concurrency, retry_ms, expire_ms, backoff_ms, longest_backoff_ms)
        self._stop = StopSignal()
        self._held: dict[int, Future[None]] = {}
        self._changed = threading.Condition()
        self._outcomes: SimpleQueue[Outcome | None] = SimpleQueue()

    def run(self) -> None:
        """Work until ``stop``; an outage of the store is waited out.

        When it returns, running handlers have ended, and what was not begun is given back.
        """
        outage = Outage(f"the worker of {self._group!r}", log)
        clerk = threading.Thread(target=self._settle, name="headwater-worker-clerk", daemon=True)
        clerk.start()
        try:
            with ThreadPoolExecutor(self._terms.concurrency, "headwater-worker") as pool:
                try:
                    while not self._stop.is_set():
                        try:
                            self._take(pool)
                            outage.over()
                        except StoreError as error:
                            if not is_passing(error):
                                raise
                            self._stop.wait(outage.meet(error))
                finally:
                    self._give_back()
        finally:
            self._outcomes.put(None)
            clerk.join()

    def stop(self) -> None:
        """Ask ``run`` to end; from any thread or signal handler. It stays stopped."""
        self._stop.set()

    def _take(self, pool: ThreadPoolExecutor) -> None:
        with self._changed:
            free = self._terms.room - len(self._held)
            if free <= 0:
                self._changed.wait(LOOK_MS / 1000)
                return
        messages = self._group.read(
            free, block_ms=LOOK_MS, retry_ms=self._terms.retry_ms, expire_ms=self._terms.expire_ms
        )
        with self._changed:
            for message in messages:
                # What comes again while it is still being handled here needs no second hand.
                if message.offset not in self._held:
                    self._held[message.offset] = pool.submit(self._handle, message)

    def _handle(self, message: Message) -> None:
        try:
            check_done(self._handler(message))
        except BaseException:
            # Whatever it was, even SystemExit: the message is not done.
            pause_ms = self._terms.pause_ms(message.attempt)
            log.exception("offset %d failed; it comes again in %d ms", message.offset, pause_ms)
            self._outcomes.put(Outcome(message.offset, pause_ms))
        else:
            self._outcomes.put(Outcome(message.offset))

    def _give_back(self) -> None:
        with self._changed:
            for offset, future in self._held.items():
                if future.cancel():
                    self._outcomes.put(Outcome(offset, 0))

    # ── Beside the handlers: tell the store what is done, and what is still in hand ──────────

    def _settle(self) -> None:
        beat_at = time.monotonic() + self._terms.beat_s
        ended = False
        while not ended:
            outcomes, ended = self._gather(beat_at)
            if outcomes:
                # First let go, then tell: what is given back may come again at once.
                with self._changed:
                    for outcome in outcomes:
                        self._held.pop(outcome.offset, None)
                self._tell(verdict_of(outcomes))
                with self._changed:
                    self._changed.notify_all()
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + self._terms.beat_s
                self._extend()

    def _gather(self, until: float) -> tuple[list[Outcome], bool]:
        """Wait for an outcome, and give all there are by then; and whether it was the last."""
        outcomes: list[Outcome] = []
        try:
            found = self._outcomes.get(timeout=max(until - time.monotonic(), 0))
            while found is not None:
                outcomes.append(found)
                found = self._outcomes.get_nowait()
        except Empty:
            return outcomes, False
        return outcomes, True

    def _tell(self, verdict: Verdict) -> None:
        try:
            if verdict.done:
                self._group.ack(*verdict.done)
            for pause_ms, offsets in verdict.again:
                self._group.nack(*offsets, delay_ms=pause_ms)
        except HeadwaterError as error:
            log.warning("the store could not be told what is done, it comes again: %s", error)

    def _extend(self) -> None:
        with self._changed:
            held = list(self._held)
        if held:
            try:
                self._group.extend(*held, retry_ms=self._terms.retry_ms)
            except HeadwaterError as error:
                log.warning("the store could not be told what is in hand: %s", error)
