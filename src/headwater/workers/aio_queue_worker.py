"""Workers: messages of a queue, several at a time, each until its handler has succeeded.

A message is acknowledged after its handler returned, and redelivered when the handler failed or
the worker died. A handler may take as long as it likes: while it runs, its message is extended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from headwater.kernel.codecs import Value
from headwater.kernel.inputs import Duration, Limits
from headwater.queue.aio_queue import AsyncQueue
from headwater.queue.types import Delivery
from headwater.store.aio_store import AsyncStore
from headwater.workers.aio_crew import AsyncCrew, AsyncCrewOwner
from headwater.workers.attempts import (
    FIRST_BACKOFF_MS,
    LONGEST_BACKOFF_MS,
    HandledBatch,
    Retries,
)
from headwater.workers.holding import Prefetch, check_timeout
from headwater.workers.sources import QueueMessages, WorkerOptions, check_object

__all__ = ["AsyncHandler", "AsyncQueueWorker", "WorkerOptions"]

AsyncHandler: TypeAlias = "Callable[[Delivery[Value]], Awaitable[object]]"


class AsyncQueueWorker(AsyncCrewOwner):
    """Handles the messages of a queue in tasks; run any number of them, anywhere.

    ``concurrency`` handlers run at once. ``ack_ms`` after a worker died, its messages are
    redelivered to another one; as long as it lives, it extends what it holds. A message whose
    handler raised is redelivered as the queue's own back-off says, or, when it has none, after
    ``backoff_ms``, doubled each time up to ``longest_backoff_ms``; the delay is a random part of
    that, from half to all. After ``max_attempts`` deliveries without success, those of the worker
    or of the queue, whichever are fewer, it becomes a dead letter; at once, when its value does not
    fit the codec. A handler that runs longer than ``timeout_ms`` has failed with HandlerTimeout: an
    async one is cancelled; a thread cannot be stopped, so it is replaced, and what it returns later
    counts for nothing. ``limits`` are set for the queue when the worker begins. Raises InvalidInput
    for what is not a queue, or not a handler of one delivery.
    """

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
