"""Workers: messages of a queue, several at a time, each until its handler has succeeded.

A message is acknowledged after its handler returned, and comes again when the handler failed or
the worker died. A handler may take as long as it likes: while it runs, its message is kept.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

from headwater.errors import HeadwaterError, InvalidInput, StoreError
from headwater.handlers import check_done, is_async
from headwater.outages import Outage, store_may_recover
from headwater.queue.types import Delivery
from headwater.queue.work import (
    BUSY_LOOK_MS,
    LOOK_MS,
    NOT_BEGUN,
    Outcome,
    Terms,
    Verdict,
    WorkerOptions,
    verdict_of,
)
from headwater.stopping import StopSignal

if TYPE_CHECKING:
    from headwater.queue.queue import Queue

__all__ = ["Handler", "QueueWorker", "WorkerOptions"]

log = logging.getLogger("headwater.queue")

Handler: TypeAlias = "Callable[[Delivery], object]"


class QueueWorker:
    """Handles the messages of a queue in threads; run any number of them, anywhere.

    ``concurrency`` handlers run at once. ``ack_ms`` after a worker died, its messages go to another
    one; as long as it lives, it extends what it holds. A message whose handler raised rests as the
    queue's back-off says, or, when it has none, for a second, doubled each time up to a minute.
    """

    def __init__(
        self, queue: Queue, handler: Handler, *, concurrency: int = 4, ack_ms: int = 30_000
    ) -> None:
        if is_async(handler):
            raise InvalidInput("the handler must not be async here; use headwater.aio")
        self._queue = queue
        self._handler = handler
        self._terms = Terms(concurrency, ack_ms)
        self._stop = StopSignal()
        self._work: SimpleQueue[Delivery | None] = SimpleQueue()
        self._outcomes: SimpleQueue[Outcome | None] = SimpleQueue()
        self._held: dict[str, Delivery] = {}
        self._changed = threading.Condition()

    def run(self) -> None:
        """Work until ``stop``; an outage of the store is waited out.

        When it is asked to stop, what was not begun is given back at once; when it returns, running
        handlers have ended.
        """
        names = [("clerk", self._settle)]
        names += [(f"hand-{i}", self._lend_a_hand) for i in range(self._terms.concurrency)]
        threads = [
            threading.Thread(target=work, name=f"headwater-{name}", daemon=True)
            for name, work in names
        ]
        for thread in threads:
            thread.start()
        try:
            self._take_until_stopped()
        finally:
            self._give_back()
            for _ in threads[1:]:
                self._work.put(None)
            for thread in threads[1:]:
                thread.join()
            self._outcomes.put(None)
            threads[0].join()

    def stop(self) -> None:
        """Ask ``run`` to end; from any thread or signal handler. It stays stopped."""
        self._stop.set()

    def _take_until_stopped(self) -> None:
        outage = Outage(f"the worker of {self._queue!r}", log)
        known = False
        while not self._stop.is_set():
            try:
                if not known:
                    self._terms.settings, known = self._queue.stats().settings, True
                self._take()
                outage.over()
            except StoreError as error:
                if not store_may_recover(error):
                    raise
                self._stop.wait(outage.meet(error))

    def _take(self) -> None:
        with self._changed:
            room = self._terms.room
            # A few large pops instead of many small ones: wait until half of the room is free.
            if len(self._held) > room // 2:
                self._changed.wait(BUSY_LOOK_MS / 1000)
                return
            free, look_ms = room - len(self._held), BUSY_LOOK_MS if self._held else LOOK_MS
        deliveries = self._queue.pop(free, ack_ms=self._terms.ack_ms, block_ms=look_ms)
        with self._changed:
            self._held.update((delivery.receipt, delivery) for delivery in deliveries)
        for delivery in deliveries:
            self._work.put(delivery)

    def _lend_a_hand(self) -> None:
        take, tell, handle = self._work.get, self._outcomes.put, self._handler
        while (delivery := take()) is not None:
            try:
                check_done(handle(delivery))
            except BaseException:
                # Whatever it was, even SystemExit: the message is not done.
                rest = self._terms.rest_ms(delivery.attempt)
                log.exception("message %s failed, attempt %d", delivery.id, delivery.attempt)
                tell(Outcome(delivery, rest))
            else:
                tell(Outcome(delivery))

    def _give_back(self) -> None:
        try:
            while True:
                delivery = self._work.get_nowait()
                if delivery is not None:
                    self._outcomes.put(Outcome(delivery, NOT_BEGUN))
        except Empty:
            pass

    # ── Beside the handlers: tell the store what is done, and what is still in hand ──────────

    def _settle(self) -> None:
        beat_at = time.monotonic() + self._terms.beat_s
        ended = False
        while not ended:
            outcomes, ended = self._gather(beat_at)
            if outcomes:
                self._tell(verdict_of(outcomes))
                with self._changed:
                    for outcome in outcomes:
                        self._held.pop(outcome.delivery.receipt, None)
                    self._terms.note(len(outcomes))
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
                self._queue.ack(*verdict.done)
            if verdict.untried:
                self._queue.release(*verdict.untried)
            for rest, deliveries in verdict.failed:
                self._queue.nack(*deliveries, delay_ms=rest)
        except HeadwaterError as error:
            log.warning("the store could not be told what is done, it comes again: %s", error)

    def _extend(self) -> None:
        with self._changed:
            held = list(self._held.values())
        if held:
            try:
                self._queue.extend(*held, ack_ms=self._terms.ack_ms)
            except HeadwaterError as error:
                log.warning("the store could not be told what is in hand: %s", error)
