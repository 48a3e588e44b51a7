"""Workers for asyncio: the same promises, with a task for each hand."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from headwater.errors import HeadwaterError, InvalidInput, StoreError
from headwater.handlers import check_async, not_awaitable
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
from headwater.stopping import AsyncStopSignal

if TYPE_CHECKING:
    from headwater.queue.aio_queue import AsyncQueue

__all__ = ["AsyncHandler", "AsyncQueueWorker", "WorkerOptions"]

log = logging.getLogger("headwater.queue")

AsyncHandler: TypeAlias = "Callable[[Delivery], Awaitable[object]]"


class AsyncQueueWorker:
    """Handles the messages of a queue in tasks; QueueWorker says what each argument means."""

    def __init__(
        self,
        queue: AsyncQueue,
        handler: AsyncHandler,
        *,
        concurrency: int = 4,
        ack_ms: int = 30_000,
    ) -> None:
        check_async(handler)
        self._queue = queue
        self._handler = handler
        self._terms = Terms(concurrency, ack_ms)
        self._stop = AsyncStopSignal()
        self._work: asyncio.Queue[Delivery | None] = asyncio.Queue()
        self._held: dict[str, Delivery] = {}
        self._outcomes: list[Outcome] = []
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._ended = False
        self._fault: InvalidInput | None = None

    async def run(self) -> None:
        """See QueueWorker.run. When it is cancelled, its handlers are, and all is given back.

        Raises InvalidInput when the handler turns out not to be async.
        """
        clerk = asyncio.create_task(self._settle())
        hands = [asyncio.create_task(self._lend_a_hand()) for _ in range(self._terms.concurrency)]
        try:
            await self._take_until_stopped()
            self._give_back()
            for _ in hands:
                self._work.put_nowait(None)
            await asyncio.gather(*hands)
            if self._fault:
                raise self._fault
        finally:
            for hand in hands:
                hand.cancel()
            await asyncio.gather(*hands, return_exceptions=True)
            self._give_back()
            self._ended = True
            self._news.set()
            await clerk

    def stop(self) -> None:
        """See QueueWorker.stop."""
        self._stop.set()

    async def _take_until_stopped(self) -> None:
        outage = Outage(f"the worker of {self._queue!r}", log)
        known = False
        while not self._stop.is_set():
            try:
                if not known:
                    self._terms.settings, known = (await self._queue.stats()).settings, True
                await self._take()
                outage.over()
            except StoreError as error:
                if not store_may_recover(error):
                    raise
                await self._stop.wait(outage.meet(error))

    async def _take(self) -> None:
        room = self._terms.room
        if len(self._held) > room // 2:
            self._room.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._room.wait(), BUSY_LOOK_MS / 1000)
            return
        free, look_ms = room - len(self._held), BUSY_LOOK_MS if self._held else LOOK_MS
        deliveries = await self._queue.pop(free, ack_ms=self._terms.ack_ms, block_ms=look_ms)
        for delivery in deliveries:
            self._held[delivery.receipt] = delivery
            self._work.put_nowait(delivery)

    async def _lend_a_hand(self) -> None:
        while (delivery := await self._work.get()) is not None:
            try:
                rest = await self._handle(delivery)
            except asyncio.CancelledError:
                self._note(Outcome(delivery, NOT_BEGUN))
                raise
            except BaseException:
                # Whatever it was, even SystemExit: the message is not done.
                rest = self._terms.rest_ms(delivery.attempt)
                log.exception("message %s failed, attempt %d", delivery.id, delivery.attempt)
                self._note(Outcome(delivery, rest))
            else:
                self._note(Outcome(delivery, rest))

    async def _handle(self, delivery: Delivery) -> int | None:
        result: object = self._handler(delivery)
        if inspect.isawaitable(result):
            await result
            return None
        # It would do its work each time the message comes again: end, with one time at most.
        self._fault = not_awaitable(result)
        self._stop.set()
        self._give_back()
        return NOT_BEGUN

    def _note(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        self._news.set()

    def _give_back(self) -> None:
        while not self._work.empty():
            delivery = self._work.get_nowait()
            if delivery is not None:
                self._note(Outcome(delivery, NOT_BEGUN))

    # ── Beside the handlers: tell the store what is done, and what is still in hand ──────────

    async def _settle(self) -> None:
        beat_at = time.monotonic() + self._terms.beat_s
        while not (self._ended and not self._outcomes):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), max(beat_at - time.monotonic(), 0))
            await self._tell_all()
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + self._terms.beat_s
                await self._extend()

    async def _tell_all(self) -> None:
        self._news.clear()
        outcomes, self._outcomes = self._outcomes, []
        if outcomes:
            await self._tell(verdict_of(outcomes))
            for outcome in outcomes:
                self._held.pop(outcome.delivery.receipt, None)
            self._terms.note(len(outcomes))
            self._room.set()

    async def _tell(self, verdict: Verdict) -> None:
        try:
            if verdict.done:
                await self._queue.ack(*verdict.done)
            if verdict.untried:
                await self._queue.release(*verdict.untried)
            for rest, deliveries in verdict.failed:
                await self._queue.nack(*deliveries, delay_ms=rest)
        except HeadwaterError as error:
            log.warning("the store could not be told what is done, it comes again: %s", error)

    async def _extend(self) -> None:
        if self._held:
            try:
                await self._queue.extend(*self._held.values(), ack_ms=self._terms.ack_ms)
            except HeadwaterError as error:
                log.warning("the store could not be told what is in hand: %s", error)
