"""Workers of a queue for asyncio: the same promises, with tasks in the place of threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from headwater.kernel.codecs import Value
from headwater.kernel.inputs import Duration, Limits
from headwater.queue.aio_queue import AsyncQueue
from headwater.queue.types import Delivery
from headwater.store.aio_store import AsyncStore
from headwater.workers.aio_crew import AsyncCrew
from headwater.workers.attempts import (
    FIRST_BACKOFF_MS,
    LONGEST_BACKOFF_MS,
    Attempt,
    HandledBatch,
    HandledCounts,
    Retries,
)
from headwater.workers.holding import Prefetch, check_timeout
from headwater.workers.sources import QueueMessages, WorkerOptions, check_object

__all__ = ["AsyncHandler", "AsyncQueueWorker", "WorkerOptions"]

AsyncHandler: TypeAlias = "Callable[[Delivery[Value]], Awaitable[object]]"


class AsyncQueueWorker:
    """Handles the messages of a queue in tasks; QueueWorker says what each argument means."""

    def __init__(
        self,
        queue: AsyncQueue[Value],
        handler: AsyncHandler[Value],
        *,
        concurrency: int = 4,
        ack_ms: Duration = 30_000,
        max_attempts: int | None = None,
        backoff_ms: Duration = FIRST_BACKOFF_MS,
        longest_backoff_ms: Duration = LONGEST_BACKOFF_MS,
        timeout_ms: Duration | None = None,
        limits: Limits | None = None,
    ) -> None:
        check_object(queue, AsyncQueue)
        prefetch = Prefetch(concurrency, ack_ms, "ack_ms", limited=bool(limits))
        retries = Retries(max_attempts, backoff_ms, longest_backoff_ms)
        source = _Queue(queue, queue.name, ack_ms, retries, limits)
        self.name = source.name
        self._crew = AsyncCrew(source, handler, prefetch, check_timeout(timeout_ms))

    async def run(self) -> None:
        """Work until ``stop``; when the store is down, retry until it is back.

        When it is cancelled, its handlers are, and all messages are returned. Raises InvalidInput
        when the handler turns out not to be async.
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
        """Cancel running handlers, so that ``run`` returns all messages in hand, and ends.

        To be called in the event loop. Returns how many messages were in hand.
        """
        return self._crew.give_back()


class _Queue(QueueMessages[AsyncQueue[Any]]):
    @property
    def store(self) -> AsyncStore:
        store: AsyncStore = self.queue._store
        return store

    async def begin(self) -> None:
        if self.limits is not None:
            self.replaced(await self.queue.limit(self.limits))
        self.settings = (await self.queue.stats()).settings

    async def take(self, count: int, wait_ms: int) -> list[Delivery[Any]]:
        return await self.queue.pop(count, ack_ms=self.ack_ms, block_ms=wait_ms)

    async def settle(self, batch: HandledBatch[Delivery[Any]]) -> None:
        if batch.done:
            await self.queue.ack(*batch.done)
        if batch.not_begun:
            await self.queue.release(*batch.not_begun)
        if batch.failed:
            await self.queue.fail(*batch.failed)

    async def extend(self, deliveries: list[Delivery[Any]]) -> None:
        await self.queue.extend(*deliveries, ack_ms=self.ack_ms)
