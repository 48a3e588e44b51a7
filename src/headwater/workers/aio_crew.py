"""A crew: it takes messages, handles some of them at once, and acknowledges what is done.

A message is acknowledged after its handler returned. As long as this worker has it, its deadline is
extended, however long its handler takes, up to a limit if it has one. When the store is down, the
crew retries until it is back. A crew of tasks that is cancelled returns all that it holds.

How handlers run, and how they end, is written for tasks and for threads: a task is cancelled, and a
thread cannot be stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, Generic, Protocol

from headwater.errors import HandlerTimeout, HeadwaterError, InvalidInput, StoreError
from headwater.kernel.failures import Failure, Outage, store_may_recover
from headwater.kernel.handlers import check_takes
from headwater.kernel.instrument import observe_handler
from headwater.kernel.stopping import AsyncStopSignal
from headwater.store.aio_store import AsyncStore
from headwater.store.presence import ReportedPart
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
from headwater.workers.holding import (
    BUSY_LOOK_MS,
    GIVE_BACK_S,
    LOOK_MS,
    Prefetch,
    RunningHandler,
    TagOrder,
    TimedHandlers,
)

ASYNC: Final = True  # the twin has what is under else

if ASYNC:
    from headwater.kernel.handlers import check_async, not_awaitable
    from headwater.store.presence import reporting_async as reporting
else:
    import threading
    from queue import Empty, SimpleQueue

    from headwater.kernel.handlers import check_done, check_sync
    from headwater.store.presence import reporting


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
        if ASYNC:
            check_async(handler)
        else:
            check_sync(handler)
        check_takes(handler, "message")
        self._source = source
        self._handler = handler
        self._prefetch = prefetch
        self._begun = False
        self._tag_order = tag_order
        self._stop = AsyncStopSignal()
        self._held: dict[Hashable, Item] = {}
        self.counts = HandledCounts()
        if ASYNC:
            self._timeout_ms = timeout_ms
            self._work: asyncio.Queue[Item | None] = asyncio.Queue()
            self._handled: list[Handled[Item]] = []
            self._news = asyncio.Event()
            self._room = asyncio.Event()
            self._ended = False
            self._fault: InvalidInput | None = None
            self._hands: list[asyncio.Task[None]] = []
            # What threads guard by a lock: tasks change it between two awaits.
            self._changed = contextlib.nullcontext()
        else:
            self._timed = None if timeout_ms is None else TimedHandlers[Item](timeout_ms)
            self._work: SimpleQueue[Item | None] = SimpleQueue()
            self._handled: SimpleQueue[Handled[Item] | None] = SimpleQueue()
            self._changed = threading.Condition()
            # Threads that handle messages, except those whose handler has run too long.
            self._hands: set[threading.Thread] = set()
            self._hired = 0
            self._ending = False
            self._settling = False

    async def run(self) -> None:
        """Work until ``stop``, and report that; see ``_run``."""
        async with reporting(self._source.store, self._standing):
            await self._run()

    def _standing(self) -> ReportedPart:
        return self.counts.report(self._source.name, len(self._held))

    async def run_once(self) -> Attempt | None:
        """Handle one message that is due, in this task; None when there is none."""
        if not self._begun:
            await self._source.begin()
            self._begun = True
        for item in await self._source.take(1, 0):
            attempt = AttemptUnderWay(self._source, item)
            with attempt:
                self._source.retries.check(item)
                if ASYNC:
                    await self._handler(item)
                else:
                    check_done(self._handler(item))
            with attempt.settling():
                await self._source.settle(attempt.batch())
            return attempt.outcome()
        return None

    def stop(self) -> None:
        """Ask ``run`` to end; from any thread or signal handler. It stays stopped."""
        self._stop.set()

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
        # A few large takes instead of many small ones: wait until half of the room is free.
        if await self._is_full(room // 2):
            return
        free, look_ms = room - len(self._held), BUSY_LOOK_MS if self._held else LOOK_MS
        if self._tag_order is not None:
            self._tag_order.begin_take()
        items = await self._source.take(free, look_ms)
        with self._changed:
            # A message that is redelivered while it is handled here is not handled twice at once.
            held, key_of = self._held.setdefault, self._source.key_of
            items = [item for item in items if held(key_of(item), item) is item]
            if self._tag_order is not None:
                items, never = self._tag_order.admit(items)
                for item in never:
                    self._report(Handled(item, NOT_BEGUN))
            for item in items:
                self._work.put_nowait(item)

    async def _settle(self, handled: list[Handled[Item]]) -> None:
        # First let go, then settle: what is returned may be redelivered here at once.
        with self._changed:
            # What was given back while its handler ran is reported twice; the first report counts.
            let_go, key_of = self._held.pop, self._source.key_of
            batch = batch_of([one for one in handled if let_go(key_of(one.item), None) is not None])
            if not ASYNC:
                self._settling = True
        try:
            await self._source.settle(batch)
        except HeadwaterError as error:
            words = "messages could not be acknowledged, and will be redelivered: %s"
            self._source.log.warning(words, error)
        if self._tag_order is not None:
            self._tag_order.settled(handled)
        with self._changed:
            self.counts.add(batch)
            self._prefetch.adapt(len(handled))
            if ASYNC:
                self._room.set()
            else:
                self._settling = False
                self._changed.notify_all()

    async def _extend(self) -> None:
        with self._changed:
            held = list(self._held.values())
        if held:
            try:
                await self._source.extend(held)
            except HeadwaterError as error:
                words = "messages in hand could not be extended: %s"
                self._source.log.warning(words, error)

    def _let_on(self, tag_order: TagOrder[Item], item: Item, succeeded: bool) -> None:
        """Begin what waits behind a message of its tag; when that failed, return it instead."""
        if not succeeded:
            for each in tag_order.failed(item):
                self._report(Handled(each, NOT_BEGUN))
        elif (follower := tag_order.done(item)) is not None:
            self._work.put_nowait(follower)

    if ASYNC:

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

        def give_back(self) -> int:
            """Cancel handlers, so that ``run`` returns all that is in hand, and ends.

            To be called in the event loop. Returns how many messages were in hand.
            """
            self._stop.set()
            for hand in self._hands:
                hand.cancel()
            return len(self._held)

        async def _is_full(self, most: int) -> bool:
            """Return whether more is held, after a moment in which that may have changed."""
            if len(self._held) <= most:
                return False
            self._room.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._room.wait(), BUSY_LOOK_MS / 1000)
            return True

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
                        self._end(item, NOT_BEGUN)
                        raise
                    # Whatever was raised, even SystemExit: the message is not done.
                    if observation is not None:
                        observation.end("failed", error)
                    self._end(item, self._source.failed(item, error, began))
                else:
                    if observation is not None:
                        observation.messages = 1
                        observation.end("ok" if self._fault is None else "failed", self._fault)
                    self._end(item, outcome)

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
            self._handled.append(handled)
            self._news.set()

        def _end(self, item: Item, failure: Failure | NotBegun | None) -> None:
            if self._tag_order is not None:
                self._let_on(self._tag_order, item, failure is None)
            self._report(Handled(item, failure))

        def _return_untouched(self) -> None:
            if self._tag_order is not None:
                for waiting in self._tag_order.take_waiting():
                    self._report(Handled(waiting, NOT_BEGUN))
            while not self._work.empty():
                item = self._work.get_nowait()
                if item is not None:
                    self._end(item, NOT_BEGUN)

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

    else:

        def _run(self) -> None:
            """Work until ``stop``: return what was not begun, and wait for running handlers."""
            acks = threading.Thread(
                target=self._settle_until_ended, name="headwater-acks", daemon=True
            )
            acks.start()
            with self._changed:
                for _ in range(self._prefetch.concurrency):
                    self._hire()
            try:
                self._take_until_stopped()
            finally:
                self._return_untouched()
                with self._changed:
                    self._ending = True
                    self._changed.notify_all()
                    for _ in self._hands:
                        self._work.put(None)
                    while self._hands:
                        self._changed.wait()
                self._handled.put(None)
                acks.join()

        def give_back(self) -> int:
            """Return all that is in hand for a process that ends now, although handlers run.

            Waits some seconds for the store. Returns how many messages were in hand; what happened
            to their handlers no longer counts.
            """
            self._stop.set()
            with self._changed:
                # A take in progress would get again what is returned before it ends.
                self._changed.wait_for(lambda: self._ending, GIVE_BACK_S)
                held = list(self._held.values())
                for item in held:
                    self._report(Handled(item, NOT_BEGUN))
                self._changed.wait_for(lambda: not (self._held or self._settling), GIVE_BACK_S)
            return len(held)

        def _is_full(self, most: int) -> bool:
            """Return whether more is held, after a moment in which that may have changed."""
            with self._changed:
                if len(self._held) <= most:
                    return False
                self._changed.wait(BUSY_LOOK_MS / 1000)
                return True

        def _hire(self) -> None:
            """Start a thread that handles messages."""
            name = f"headwater-handler-{self._hired}"
            self._hired += 1
            thread = threading.Thread(target=self._handle_until_ended, name=name, daemon=True)
            self._hands.add(thread)
            thread.start()

        def _handle_until_ended(self) -> None:
            try:
                self._handle()
            finally:
                with self._changed:
                    self._hands.discard(threading.current_thread())
                    self._changed.notify_all()

        def _handle(self) -> None:
            take, report, handle = self._work.get, self._handled.put, self._handler
            source, check, clock = self._source, self._source.retries.check, time.monotonic
            timed = self._timed
            while (item := take()) is not None:
                observation, began = observe_handler(source.name, item), clock()
                failure: BaseException | None = None
                if timed is not None:
                    timed.begin(source.key_of(item), item, began)
                try:
                    check(item)
                    check_done(handle(item))
                except BaseException as error:  # noqa: BLE001  it is logged there
                    # Whatever was raised, even SystemExit: the message is not done.
                    failure = error
                late = timed is not None and not timed.end(source.key_of(item))
                if timed is not None and late:
                    failure = timed.error()
                if observation is not None:
                    observation.messages = int(failure is None)
                    observation.end("ok" if failure is None else "failed", failure)
                if late:
                    with self._changed:
                        self.counts.stuck -= 1
                    words = (
                        "%s ended after %.1f s; its message was given up, and this counts for "
                        "nothing"
                    )
                    source.log.warning(words, threading.current_thread().name, clock() - began)
                    return
                if self._tag_order is not None:
                    self._let_on(self._tag_order, item, failure is None)
                if failure is None:
                    report(Handled(item))
                else:
                    report(Handled(item, source.failed(item, failure, began)))

        def _report(self, handled: Handled[Item]) -> None:
            self._handled.put(handled)

        def _return_untouched(self) -> None:
            try:
                while True:
                    item = self._work.get_nowait()
                    if item is not None:
                        self._report(Handled(item, NOT_BEGUN))
            except Empty:
                pass
            if self._tag_order is not None:
                for item in self._tag_order.take_waiting():
                    self._report(Handled(item, NOT_BEGUN))

        def _settle_until_ended(self) -> None:
            beat_at = time.monotonic() + self._prefetch.beat_s
            ended = False
            while not ended:
                until = beat_at if self._timed is None else min(beat_at, self._timed.next_end())
                handled, ended = self._wait_for_handled(until)
                if handled:
                    self._settle(handled)
                if self._timed is not None:
                    for overdue in self._timed.take_overdue():
                        self._give_up(self._timed, overdue)
                if time.monotonic() >= beat_at:
                    beat_at = time.monotonic() + self._prefetch.beat_s
                    self._extend()

        def _give_up(self, timed: TimedHandlers[Item], overdue: RunningHandler[Item]) -> None:
            """Report a message whose handler has run too long, and replace the thread."""
            failure = self._source.failed(overdue.item, timed.error(), overdue.began)
            words = (
                "%s still runs a handler past its time; a thread cannot be stopped: another starts"
            )
            self._source.log.error(words, overdue.thread.name)
            if self._tag_order is not None:
                self._let_on(self._tag_order, overdue.item, succeeded=False)
            self._report(Handled(overdue.item, failure))
            with self._changed:
                self._hands.discard(overdue.thread)
                self.counts.stuck += 1
                if not self._ending:
                    self._hire()
                self._changed.notify_all()

        def _wait_for_handled(self, until: float) -> tuple[list[Handled[Item]], bool]:
            """Wait for a handled message; returns all there are by then, and if it was the last."""
            handled: list[Handled[Item]] = []
            try:
                found = self._handled.get(timeout=max(until - time.monotonic(), 0))
                while found is not None:
                    handled.append(found)
                    found = self._handled.get_nowait()
            except Empty:
                return handled, False
            return handled, True


class AsyncCrewOwner:
    """What workers of a group and of a queue do alike: they leave it to their crew."""

    _crew: AsyncCrew[Any]

    async def run(self) -> None:
        """Work until ``stop``; when the store is down, retry until it is back.

        When it is asked to stop, messages that were not begun are returned at once; when it
        returns, running handlers have ended. An async worker that is cancelled cancels its
        handlers, and returns all messages; it raises InvalidInput when the handler turns out not to
        be async.
        """
        await self._crew.run()

    async def run_once(self) -> Attempt | None:
        """Handle one message that is due, in this task; returns what happened to it, or None.

        None means that nothing is due: what waits for its retry is not. For tests and for programs
        that have a loop of their own; nothing is extended, and no time limit ends the handler.
        Raises StoreError when the store is down.
        """
        return await self._crew.run_once()

    def stop(self) -> None:
        """Ask ``run`` to end; from any thread or signal handler. It stays stopped."""
        self._crew.stop()

    @property
    def counts(self) -> HandledCounts:
        """How many messages were handled since the worker was made, and how many failed."""
        return self._crew.counts

    def give_back(self) -> int:
        """Return all messages in hand before the process ends, although handlers still run.

        Returns how many they were. An async handler is cancelled, so that ``run`` ends: call this
        in the event loop. A thread cannot be stopped: what its handler does no longer counts.
        """
        return self._crew.give_back()


if ASYNC:

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
        """Return whether this task is being cancelled; a handler may raise that by itself."""
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
