"""A crew of tasks: as ``crew``, for asyncio. When it is cancelled, it gives back all it holds."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, Protocol

from headwater.errors import HeadwaterError, InvalidInput, StoreError
from headwater.handlers import check_async, not_awaitable
from headwater.outages import Outage, store_may_recover
from headwater.stopping import AsyncStopSignal
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


class AsyncSource(Protocol[Item]):
    """Where messages come from; Source says what each method does."""

    log: logging.Logger

    async def begin(self) -> None:
        """See Source.begin."""

    async def take(self, count: int, wait_ms: int) -> list[Item]:
        """See Source.take."""

    async def tell(self, verdict: Verdict[Item]) -> None:
        """See Source.tell."""

    async def extend(self, items: list[Item]) -> None:
        """See Source.extend."""

    def key_of(self, item: Item) -> Hashable:
        """See Source.key_of."""

    def failed(self, item: Item) -> int:
        """See Source.failed."""


class AsyncCrew(Generic[Item]):
    """Handles the messages of a source until it is asked to stop."""

    def __init__(
        self, source: AsyncSource[Item], handler: Callable[[Item], Awaitable[object]], pace: Pace
    ) -> None:
        check_async(handler)
        self._source = source
        self._handler = handler
        self._pace = pace
        self._stop = AsyncStopSignal()
        self._work: asyncio.Queue[Item | None] = asyncio.Queue()
        self._held: dict[Hashable, Item] = {}
        self._outcomes: list[Outcome[Item]] = []
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._ended = False
        self._fault: InvalidInput | None = None

    async def run(self) -> None:
        """See Crew.run. Raises InvalidInput when the handler turns out not to be async."""
        clerk = asyncio.create_task(self._settle())
        hands = [asyncio.create_task(self._lend_a_hand()) for _ in range(self._pace.concurrency)]
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
        """See Crew.stop."""
        self._stop.set()

    async def _take_until_stopped(self) -> None:
        outage = Outage(f"the worker of {self._source!r}", self._source.log)
        known = False
        while not self._stop.is_set():
            try:
                if not known:
                    await self._source.begin()
                    known = True
                await self._take()
                outage.over()
            except StoreError as error:
                if not store_may_recover(error):
                    raise
                await self._stop.wait(outage.meet(error))

    async def _take(self) -> None:
        room = self._pace.room
        if len(self._held) > room // 2:
            self._room.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._room.wait(), BUSY_LOOK_MS / 1000)
            return
        free, look_ms = room - len(self._held), BUSY_LOOK_MS if self._held else LOOK_MS
        for item in await self._source.take(free, look_ms):
            # What comes again while it is still being handled here needs no second hand.
            if self._held.setdefault(self._source.key_of(item), item) is item:
                self._work.put_nowait(item)

    async def _lend_a_hand(self) -> None:
        while (item := await self._work.get()) is not None:
            try:
                rest = await self._handle(item)
            except asyncio.CancelledError:
                self._note(Outcome(item, NOT_BEGUN))
                raise
            except BaseException:  # noqa: BLE001  it is logged there
                # Whatever it was, even SystemExit: the message is not done.
                self._note(Outcome(item, self._source.failed(item)))
            else:
                self._note(Outcome(item, rest))

    async def _handle(self, item: Item) -> int | None:
        result: object = self._handler(item)
        if inspect.isawaitable(result):
            await result
            return None
        # It would do its work each time the message comes again: end, with one time at most.
        self._fault = not_awaitable(result)
        self._stop.set()
        self._give_back()
        return NOT_BEGUN

    def _note(self, outcome: Outcome[Item]) -> None:
        self._outcomes.append(outcome)
        self._news.set()

    def _give_back(self) -> None:
        while not self._work.empty():
            item = self._work.get_nowait()
            if item is not None:
                self._note(Outcome(item, NOT_BEGUN))

    # ── Beside the handlers: tell the store what is done, and what is still in hand ──────────

    async def _settle(self) -> None:
        beat_at = time.monotonic() + self._pace.beat_s
        while not (self._ended and not self._outcomes):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), max(beat_at - time.monotonic(), 0))
            self._news.clear()
            outcomes, self._outcomes = self._outcomes, []
            if outcomes:
                await self._tell(outcomes)
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + self._pace.beat_s
                await self._extend()

    async def _tell(self, outcomes: list[Outcome[Item]]) -> None:
        # First let go, then tell: what is given back may come again at once.
        for outcome in outcomes:
            del self._held[self._source.key_of(outcome.item)]
        try:
            await self._source.tell(verdict_of(outcomes))
        except HeadwaterError as error:
            words = "the store could not be told what is done, it comes again: %s"
            self._source.log.warning(words, error)
        self._pace.note(len(outcomes))
        self._room.set()

    async def _extend(self) -> None:
        if self._held:
            try:
                await self._source.extend(list(self._held.values()))
            except HeadwaterError as error:
                words = "the store could not be told what is in hand: %s"
                self._source.log.warning(words, error)
