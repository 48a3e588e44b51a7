"""Workers for asyncio: the same promises, with a task for each message."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from headwater.errors import HeadwaterError, InvalidInput, StoreError
from headwater.handlers import check_async, not_awaitable
from headwater.log.aio_stream import AsyncGroup
from headwater.log.types import Message
from headwater.outbox.outages import Outage, is_passing
from headwater.outbox.worker import LOOK_MS, Outcome, Terms, Verdict, verdict_of
from headwater.stopping import AsyncStopSignal

log = logging.getLogger("headwater.outbox")

AsyncWorkerHandler: TypeAlias = "Callable[[Message], Awaitable[object]]"


class AsyncWorker:
    """Handles the messages of a group in tasks; Worker says what each argument means."""

    def __init__(
        self,
        group: AsyncGroup,
        handler: AsyncWorkerHandler,
        *,
        concurrency: int = 4,
        retry_ms: int = 30_000,
        expire_ms: int | None = None,
        backoff_ms: int = 1000,
        longest_backoff_ms: int = 60_000,
    ) -> None:
        check_async(handler)
        self._group = group
        self._handler = handler
        self._terms = Terms(concurrency, retry_ms, expire_ms, backoff_ms, longest_backoff_ms)
        self._stop = AsyncStopSignal()
        self._hands = asyncio.Semaphore(concurrency)
        self._held: dict[int, asyncio.Task[None]] = {}
        self._begun: set[int] = set()
        self._outcomes: list[Outcome] = []
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._ended = False
        self._fault: InvalidInput | None = None

    async def run(self) -> None:
        """See Worker.run. When it is cancelled, its handlers are, and all is given back.

        Raises InvalidInput when the handler turns out not to be async.
        """
        outage = Outage(f"the worker of {self._group!r}", log)
        clerk = asyncio.create_task(self._settle())
        try:
            while not self._stop.is_set():
                try:
                    await self._take()
                    outage.over()
                except StoreError as error:
                    if not is_passing(error):
                        raise
                    await self._stop.wait(outage.meet(error))
            self._give_back(begun=False)
            await self._end_handlers()
            if self._fault:
                raise self._fault
        finally:
            self._give_back(begun=True)
            await self._end_handlers()
            self._ended = True
            self._news.set()
            await clerk

    def stop(self) -> None:
        """See Worker.stop."""
        self._stop.set()

    async def _take(self) -> None:
        free = self._terms.room - len(self._held)
        if free <= 0:
            self._room.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._room.wait(), LOOK_MS / 1000)
            return
        messages = await self._group.read(
            free, block_ms=LOOK_MS, retry_ms=self._terms.retry_ms, expire_ms=self._terms.expire_ms
        )
        for message in messages:
            # What comes again while it is still being handled here needs no second hand.
            if message.offset not in self._held:
                task = asyncio.create_task(self._handle(message))
                task.add_done_callback(partial(self._note, message))
                self._held[message.offset] = task

    async def _handle(self, message: Message) -> None:
        async with self._hands:
            self._begun.add(message.offset)
            result: object = self._handler(message)
            if inspect.isawaitable(result):
                await result
                return
            # It would do its work each time the message comes again: end, with one time at most.
            self._fault = not_awaitable(result)
            self._stop.set()
            self._give_back(begun=False)
            raise asyncio.CancelledError

    def _note(self, message: Message, task: asyncio.Task[None]) -> None:
        """Take note of how a message went; it was given back when its task was cancelled."""
        if task.cancelled():
            outcome = Outcome(message.offset, 0)
        elif error := task.exception():
            pause_ms = self._terms.pause_ms(message.attempt)
            words = "offset %d failed; it comes again in %d ms"
            log.error(words, message.offset, pause_ms, exc_info=error)
            outcome = Outcome(message.offset, pause_ms)
        else:
            outcome = Outcome(message.offset)
        self._outcomes.append(outcome)
        self._news.set()

    def _give_back(self, *, begun: bool) -> None:
        for offset, task in self._held.items():
            if begun or offset not in self._begun:
                task.cancel()

    async def _end_handlers(self) -> None:
        await asyncio.gather(*self._held.values(), return_exceptions=True)

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
            # First let go, then tell: what is given back may come again at once.
            for outcome in outcomes:
                del self._held[outcome.offset]
                self._begun.discard(outcome.offset)
            await self._tell(verdict_of(outcomes))
            self._room.set()

    async def _tell(self, verdict: Verdict) -> None:
        try:
            if verdict.done:
                await self._group.ack(*verdict.done)
            for pause_ms, offsets in verdict.again:
                await self._group.nack(*offsets, delay_ms=pause_ms)
        except HeadwaterError as error:
            log.warning("the store could not be told what is done, it comes again: %s", error)

    async def _extend(self) -> None:
        if self._held:
            try:
                await self._group.extend(*self._held, retry_ms=self._terms.retry_ms)
            except HeadwaterError as error:
                log.warning("the store could not be told what is in hand: %s", error)
