"""A crew of threads: one takes messages, some handle them, one tells the store what became of them.

A message is done after its handler returned. As long as it is in hand here, it is extended, however
long its handler takes; an outage of the store is waited out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from queue import Empty, SimpleQueue
from typing import Generic, Protocol

from headwater.errors import HeadwaterError, InvalidInput, StoreError
from headwater.handlers import check_done, is_async
from headwater.outages import Outage, store_may_recover
from headwater.stopping import StopSignal
from headwater.workers.pace import (
    BUSY_LOOK_MS,
    LOOK_MS,
    NOT_BEGUN,
    Item,
    Outcome,
    Pace,
    Verdict,
    verdict_of,
)


class Source(Protocol[Item]):
    """Where messages come from, and who is told what became of them."""

    log: logging.Logger

    def begin(self) -> None:
        """Learn what must be known before the first message."""

    def take(self, count: int, wait_ms: int) -> list[Item]:
        """Take up to ``count`` messages, waiting a while for the first."""

    def tell(self, verdict: Verdict[Item]) -> None:
        """Say what became of messages."""

    def extend(self, items: list[Item]) -> None:
        """Say which messages are still in hand."""

    def key_of(self, item: Item) -> Hashable:
        """Name a message; one that comes again while it is in hand has the same name."""

    def failed(self, item: Item) -> int:
        """Log the error that is being handled; gives how many ms the message rests."""


class Crew(Generic[Item]):
    """Handles the messages of a source until it is asked to stop."""

    def __init__(self, source: Source[Item], handler: Callable[[Item], object], pace: Pace) -> None:
        if is_async(handler):
            raise InvalidInput("the handler must not be async here; use headwater.aio")
        self._source = source
        self._handler = handler
        self._pace = pace
        self._stop = StopSignal()
        self._work: SimpleQueue[Item | None] = SimpleQueue()
        self._outcomes: SimpleQueue[Outcome[Item] | None] = SimpleQueue()
        self._held: dict[Hashable, Item] = {}
        self._changed = threading.Condition()

    def run(self) -> None:
        """Work until ``stop``: then give back what was not begun, and wait for running handlers."""
        names = [("clerk", self._settle)]
        names += [(f"hand-{i}", self._lend_a_hand) for i in range(self._pace.concurrency)]
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
        outage = Outage(f"the worker of {self._source!r}", self._source.log)
        known = False
        while not self._stop.is_set():
            try:
                if not known:
                    self._source.begin()
                    known = True
                self._take()
                outage.over()
            except StoreError as error:
                if not store_may_recover(error):
                    raise
                self._stop.wait(outage.meet(error))

    def _take(self) -> None:
        with self._changed:
            room = self._pace.room
            # A few large takes instead of many small ones: wait until half of the room is free.
            if len(self._held) > room // 2:
                self._changed.wait(BUSY_LOOK_MS / 1000)
                return
            free, look_ms = room - len(self._held), BUSY_LOOK_MS if self._held else LOOK_MS
        items = self._source.take(free, look_ms)
        with self._changed:
            for item in items:
                # What comes again while it is still being handled here needs no second hand.
                if self._held.setdefault(self._source.key_of(item), item) is item:
                    self._work.put(item)

    def _lend_a_hand(self) -> None:
        take, tell, handle = self._work.get, self._outcomes.put, self._handler
        while (item := take()) is not None:
            try:
                check_done(handle(item))
            except BaseException:  # noqa: BLE001  it is logged there
                # Whatever it was, even SystemExit: the message is not done.
                tell(Outcome(item, self._source.failed(item)))
            else:
                tell(Outcome(item))

    def _give_back(self) -> None:
        try:
            while True:
                item = self._work.get_nowait()
                if item is not None:
                    self._outcomes.put(Outcome(item, NOT_BEGUN))
        except Empty:
            pass

    # ── Beside the handlers: tell the store what is done, and what is still in hand ──────────

    def _settle(self) -> None:
        beat_at = time.monotonic() + self._pace.beat_s
        ended = False
        while not ended:
            outcomes, ended = self._gather(beat_at)
            if outcomes:
                self._tell(outcomes)
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + self._pace.beat_s
                self._extend()

    def _gather(self, until: float) -> tuple[list[Outcome[Item]], bool]:
        """Wait for an outcome, and give all there are by then; and whether it was the last."""
        outcomes: list[Outcome[Item]] = []
        try:
            found = self._outcomes.get(timeout=max(until - time.monotonic(), 0))
            while found is not None:
                outcomes.append(found)
                found = self._outcomes.get_nowait()
        except Empty:
            return outcomes, False
        return outcomes, True

    def _tell(self, outcomes: list[Outcome[Item]]) -> None:
        # First let go, then tell: what is given back may come again at once.
        with self._changed:
            for outcome in outcomes:
                del self._held[self._source.key_of(outcome.item)]
        try:
            self._source.tell(verdict_of(outcomes))
        except HeadwaterError as error:
            words = "the store could not be told what is done, it comes again: %s"
            self._source.log.warning(words, error)
        with self._changed:
            self._pace.note(len(outcomes))
            self._changed.notify_all()

    def _extend(self) -> None:
        with self._changed:
            held = list(self._held.values())
        if held:
            try:
                self._source.extend(held)
            except HeadwaterError as error:
                words = "the store could not be told what is in hand: %s"
                self._source.log.warning(words, error)
