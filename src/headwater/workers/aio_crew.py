"""A crew of tasks: as ``crew``, for asyncio. When it is cancelled, it returns all that it holds.

Written twice because threads and tasks differ: they are stopped and cancelled in other ways.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, Protocol

from headwater.errors import HandlerTimeout, HeadwaterError, InvalidInput, StoreError
from headwater.kernel.failures import Failure, Outage, store_may_recover
from headwater.kernel.handlers import check_async, check_takes, not_awaitable
from headwater.kernel.instrument import observe_handler
from headwater.kernel.stopping import AsyncStopSignal
from headwater.store.aio_store import AsyncStore
from headwater.store.presence import ReportedPart, reporting_async
from headwater.workers.attempts import (
    NOT_BEGUN,
    Attempt,
    AttemptUnderWay,
    Handled,
    HandledBatch,
    HandledCounts,
    Item,
    NotBegun,
    Retries,
    batch_of,
)
from headwater.workers.holding import BUSY_LOOK_MS, LOOK_MS, Prefetch, TagOrder


class AsyncMessageSource(Protocol[Item]):
    """Where messages come from, and where they are acknowledged; ``name`` is for instruments."""

    log: logging.Logger
    name: str
    retries: Retries

    @property
    def store(self) -> AsyncStore:
        """The store that the messages are in."""

    async def begin(self) -> None:
        """Read what must be known before the first message."""

    async def take(self, count: int, wait_ms: int) -> list[Item]:
        """Take up to ``count`` messages, waiting a while for the first."""

    async def settle(self, batch: HandledBatch[Item]) -> None:
        """Acknowledge what is done, and return the rest for redelivery."""

    async def extend(self, items: list[Item]) -> None:
        """Extend the time of messages that are still in hand."""

    def key_of(self, item: Item) -> Hashable:
        """Return the key of a message; redelivered while it is in hand, it has the same key."""

    def failed(self, item: Item, error: BaseException, began: float) -> Failure:
        """Log a failed attempt that began then; returns what to report of it."""

    def buries(self, failure: Failure) -> bool:
        """Return whether a message is given up by this failure."""


class AsyncCrew(Generic[Item]):
    """Handles the messages of a source until it is asked to stop."""

    def __init__(
        self,
        source: AsyncMessageSource[Item],
        handler: Callable[[Item], Awaitable[object]],
        prefetch: Prefetch,
        timeout_ms: int | None = None,
        tag_order: TagOrder[Item] | None = None,
    ) -> None:
        check_async(handler)
        check_takes(handler, "message")
        self._source = source
        self._handler = handler
        self._prefetch = prefetch
        self._begun = False
        self._timeout_ms = timeout_ms
        self._tag_order = tag_order
        self._stop = AsyncStopSignal()
        self._work: asyncio.Queue[Item | None] = asyncio.Queue()
        self._held: dict[Hashable, Item] = {}
        self._handled: list[Handled[Item]] = []
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._ended = False
        self._fault: InvalidInput | None = None
        self._hands: list[asyncio.Task[None]] = []
        self.counts = HandledCounts()

    async def run(self) -> None:
        """Work until ``stop``, and report that; see ``_run``."""
        async with reporting_async(self._source.store, self._standing):
            await self._run()

    def _standing(self) -> ReportedPart:
        return self.counts.report(self._source.name, len(self._held))

    async def _run(self) -> None:
        """Work until ``stop``: then return what was not begun, and wait for running handlers.

        Raises InvalidInput when the handler turns out not to be async.
        """
        acks = asyncio.create_task(self._settle_until_ended())
        self._hands = hands = [
            asyncio.create_task(self._handle()) for _ in range(self._prefetch.concurrency)
        ]
        try:
            await self._take_until_stopped()
            self._return_untouched()
            for _ in hands:
                self._work.put_nowait(None)
            # They catch what handlers raise; only ``give_back`` cancels them.
            await asyncio.gather(*hands, return_exceptions=True)
            if self._fault:
                raise self._fault
        finally:
            for hand in hands:
                hand.cancel()
            await asyncio.gather(*hands, return_exceptions=True)
            self._return_untouched()
            self._ended = True
            self._news.set()
            await acks

    async def run_once(self) -> Attempt | None:
        """Handle one message that is due, in this task; None when there is none."""
        if not self._begun:
            await self._source.begin()
            self._begun = True
        for item in await self._source.take(1, 0):
            attempt = AttemptUnderWay(self._source, item)
            with attempt:
                self._source.retries.check(item)
                await self._handler(item)
            with attempt.settling():
                await self._source.settle(attempt.batch())
            return attempt.outcome()
        return None

    def stop(self) -> None:
        """Ask ``run`` to end; from any thread or signal handler. It stays stopped."""
        self._stop.set()

    def give_back(self) -> int:
        """Cancel handlers, so that ``run`` returns all that is in hand, and ends.

        To be called in the event loop. Returns how many messages were in hand.
        """
        self._stop.set()
        for hand in self._hands:
            hand.cancel()
        return len(self._held)

    async def _take_until_stopped(self) -> None:
        outage = Outage(f"the worker of {self._source!r}", self._source.log)
        begun = False
        while not self._stop.is_set():
            try:
                if not begun:
                    await self._source.begin()
                    begun = True
                await self._take()
                outage.over()
            except StoreError as error:
                if not store_may_recover(error):
                    raise
                await self._stop.wait(outage.meet(error))

    async def _take(self) -> None:
        room = self._prefetch.room
        if len(self._held) > room // 2:
            self._room.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._room.wait(), BUSY_LOOK_MS / 1000)
            return
        free, look_ms = room - len(self._held), BUSY_LOOK_MS if self._held else LOOK_MS
        if self._tag_order is not None:
            self._tag_order.begin_take()
        taken = await self._source.take(free, look_ms)
        # A message that is redelivered while it is handled here is not handled twice at once.
        held, key_of = self._held.setdefault, self._source.key_of
        items = [item for item in taken if held(key_of(item), item) is item]
        if self._tag_order is not None:
            items, never = self._tag_order.admit(items)
            for item in never:
                self._report(Handled(item, NOT_BEGUN))
        for item in items:
            self._work.put_nowait(item)

    async def _handle(self) -> None:
        while (item := await self._work.get()) is not None:
            observation = observe_handler(self._source.name, item)
            began = time.monotonic()
            try:
                self._source.retries.check(item)
                outcome = await self._call(item)
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                    if observation is not None:
                        observation.end("retried", error)
                    self._report(Handled(item, NOT_BEGUN))
                    raise
                # Whatever was raised, even SystemExit: the message is not done.
                if observation is not None:
                    observation.end("failed", error)
                self._report(Handled(item, self._source.failed(item, error, began)))
            else:
                if observation is not None:
                    observation.messages = 1
                    observation.end("ok" if self._fault is None else "failed", self._fault)
                self._report(Handled(item, outcome))

    async def _call(self, item: Item) -> NotBegun | None:
        result: object = self._handler(item)
        if inspect.isawaitable(result):
            if self._timeout_ms is None:
                await result
            else:
                await _await_within(result, self._timeout_ms)
            return None
        # It would do its work each time the message is redelivered: stop after the first time.
        self._fault = not_awaitable(result)
        self._stop.set()
        self._return_untouched()
        return NOT_BEGUN

    def _report(self, handled: Handled[Item]) -> None:
        if self._tag_order is not None:
            self._let_on(self._tag_order, handled)
        self._handled.append(handled)
        self._news.set()

    def _let_on(self, tag_order: TagOrder[Item], handled: Handled[Item]) -> None:
        """Begin what waits behind a message of its tag; unless that succeeded, return it."""
        if handled.failure is not None:
            self._handled += (Handled(each, NOT_BEGUN) for each in tag_order.failed(handled.item))
            return
        follower = tag_order.done(handled.item)
        if follower is not None:
            self._work.put_nowait(follower)

    def _return_untouched(self) -> None:
        if self._tag_order is not None:
            self._handled += (Handled(each, NOT_BEGUN) for each in self._tag_order.take_waiting())
        while not self._work.empty():
            item = self._work.get_nowait()
            if item is not None:
                self._report(Handled(item, NOT_BEGUN))

    # ── Beside the handlers: acknowledge what is done, extend what is still in hand ───────────

    async def _settle_until_ended(self) -> None:
        beat_at = time.monotonic() + self._prefetch.beat_s
        while not (self._ended and not self._handled):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), max(beat_at - time.monotonic(), 0))
            self._news.clear()
            handled, self._handled = self._handled, []
            if handled:
                await self._settle(handled)
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + self._prefetch.beat_s
                await self._extend()

    async def _settle(self, handled: list[Handled[Item]]) -> None:
        # First let go, then settle: what is returned may be redelivered here at once.
        for each in handled:
            del self._held[self._source.key_of(each.item)]
        batch = batch_of(handled)
        try:
            await self._source.settle(batch)
        except HeadwaterError as error:
            words = "messages could not be acknowledged, and will be redelivered: %s"
            self._source.log.warning(words, error)
        self.counts.add(batch)
        if self._tag_order is not None:
            self._tag_order.settled(handled)
        self._prefetch.adapt(len(handled))
        self._room.set()

    async def _extend(self) -> None:
        if self._held:
            try:
                await self._source.extend(list(self._held.values()))
            except HeadwaterError as error:
                words = "messages in hand could not be extended: %s"
                self._source.log.warning(words, error)


async def _await_within(result: Awaitable[object], timeout_ms: int) -> None:
    """Await a handler, and cancel it when its time is over; raises HandlerTimeout then."""
    try:
        async with asyncio.timeout(timeout_ms / 1000) as limit:
            await result
    except TimeoutError as error:
        # A handler may raise TimeoutError by itself.
        if not limit.expired():
            raise
        raise HandlerTimeout(timeout_ms) from error


def _is_cancelled() -> bool:
    """Return whether this task is being cancelled; a handler may raise CancelledError by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
