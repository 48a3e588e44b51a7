"""Workers: messages of a group, several at a time, each until its handler has succeeded.

For handlers that may run twice without harm. A message is acknowledged after its handler returned,
and comes again when the handler failed, after a pause that doubles each time; or when the worker
died, after ``retry_ms``. A handler may take longer than that: while it runs, its message is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

from headwater.errors import InvalidInput, StoreError
from headwater.log.aio_stream import AsyncGroup
from headwater.log.limits import check_count, check_ms
from headwater.log.stream import Group
from headwater.log.types import Message
from headwater.outbox.outages import Outage, delay_s, is_passing
from headwater.outbox.stopping import AsyncStopSignal, StopSignal

log = logging.getLogger("headwater.worker")

Handler: TypeAlias = "Callable[[Message], object]"
AsyncHandler: TypeAlias = "Callable[[Message], Awaitable[object]]"

_MOST_AT_ONCE = 10_000
# A read that waits comes back this often, to look whether the worker shall stop.
_LOOK_MS = 500


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
        handler: Handler,
        *,
        concurrency: int = 4,
        retry_ms: int = 30_000,
        expire_ms: int | None = None,
        backoff_ms: int = 1000,
        longest_backoff_ms: int = 60_000,
    ) -> None:
        self._group = group
        self._handler = handler
        self._terms = Terms(concurrency, retry_ms, expire_ms, backoff_ms, longest_backoff_ms)
        self._stop = StopSignal()
        self._held: dict[int, Future[None]] = {}
        self._changed = threading.Condition()
        self._ended = threading.Event()

    def run(self) -> None:
        """Work until ``stop``; an outage of the store is waited out.

        When it returns, running handlers have ended, and what was not begun is given back.
        """
        outage = Outage("the worker", log)
        heart = threading.Thread(target=self._beat, daemon=True)
        heart.start()
        try:
            with ThreadPoolExecutor(self._terms.concurrency) as pool:
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
            self._ended.set()
            heart.join()

    def stop(self) -> None:
        """Ask ``run`` to end; from any thread or signal handler."""
        self._stop.set()

    def _take(self, pool: ThreadPoolExecutor) -> None:
        with self._changed:
            free = self._terms.room - len(self._held)
            if free <= 0:
                self._changed.wait(_LOOK_MS / 1000)
                return
        messages = self._group.read(
            free, block_ms=_LOOK_MS, retry_ms=self._terms.retry_ms, expire_ms=self._terms.expire_ms
        )
        with self._changed:
            for message in messages:
                self._held[message.offset] = pool.submit(self._handle, message)

    def _handle(self, message: Message) -> None:
        try:
            self._handler(message)
        except Exception:
            pause_ms = self._terms.pause_ms(message.attempt)
            log.exception("offset %d failed; it comes again in %d ms", message.offset, pause_ms)
            self._tell(lambda: self._group.nack(message.offset, delay_ms=pause_ms))
        else:
            self._tell(lambda: self._group.ack(message.offset))
        with self._changed:
            self._held.pop(message.offset, None)
            self._changed.notify_all()

    def _tell(self, say: Callable[[], object]) -> None:
        """Tell the store how it went; if it cannot be told, the message comes again."""
        try:
            say()
        except StoreError as error:
            log.warning("the store was not told how a message went, it comes again: %s", error)

    def _beat(self) -> None:
        while not self._ended.wait(self._terms.beat_s):
            with self._changed:
                held = list(self._held)
            if held:
                self._tell(partial(self._group.extend, *held, retry_ms=self._terms.retry_ms))

    def _give_back(self) -> None:
        with self._changed:
            unbegun = [offset for offset, future in self._held.items() if future.cancel()]
        if unbegun:
            self._tell(lambda: self._group.nack(*unbegun))


class AsyncWorker:
    """Handles the messages of a group in tasks; see Worker."""

    def __init__(
        self,
        group: AsyncGroup,
        handler: AsyncHandler,
        *,
        concurrency: int = 4,
        retry_ms: int = 30_000,
        expire_ms: int | None = None,
        backoff_ms: int = 1000,
        longest_backoff_ms: int = 60_000,
    ) -> None:
        self._group = group
        self._handler = handler
        self._terms = Terms(concurrency, retry_ms, expire_ms, backoff_ms, longest_backoff_ms)
        self._stop = AsyncStopSignal()
        self._held: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """See Worker.run; a cancelled worker lets its handlers be cancelled, too."""
        outage = Outage("the worker", log)
        heart = asyncio.create_task(self._beat())
        try:
            while not self._stop.is_set():
                try:
                    await self._take()
                    outage.over()
                except StoreError as error:
                    if not is_passing(error):
                        raise
                    await self._stop.wait(outage.meet(error))
        except asyncio.CancelledError:
            for task in self._held.values():
                task.cancel()
            raise
        finally:
            await asyncio.gather(*self._held.values(), return_exceptions=True)
            heart.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await heart

    def stop(self) -> None:
        """See Worker.stop."""
        self._stop.set()

    async def _take(self) -> None:
        # Tasks begin at once, so nothing is taken that would have to wait for a free hand.
        free = self._terms.concurrency - len(self._held)
        if free <= 0:
            await asyncio.wait(self._held.values(), return_when=asyncio.FIRST_COMPLETED)
            return
        messages = await self._group.read(
            free, block_ms=_LOOK_MS, retry_ms=self._terms.retry_ms, expire_ms=self._terms.expire_ms
        )
        for message in messages:
            self._held[message.offset] = asyncio.create_task(self._handle(message))

    async def _handle(self, message: Message) -> None:
        try:
            await self._handler(message)
        except Exception:
            pause_ms = self._terms.pause_ms(message.attempt)
            log.exception("offset %d failed; it comes again in %d ms", message.offset, pause_ms)
            await self._tell(self._group.nack(message.offset, delay_ms=pause_ms))
        else:
            await self._tell(self._group.ack(message.offset))
        finally:
            self._held.pop(message.offset, None)

    async def _tell(self, saying: Awaitable[object]) -> None:
        try:
            await saying
        except StoreError as error:
            log.warning("the store was not told how a message went, it comes again: %s", error)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._terms.beat_s)
            if self._held:
                await self._tell(self._group.extend(*self._held, retry_ms=self._terms.retry_ms))
