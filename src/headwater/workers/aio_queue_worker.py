"""Workers for asyncio: the same promises, with a task for each hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from headwater.queue.aio_queue import AsyncQueue
from headwater.queue.types import Delivery
from headwater.workers.aio_crew import AsyncCrew
from headwater.workers.deliveries import Deliveries, WorkerOptions
from headwater.workers.pace import Pace, Verdict

__all__ = ["AsyncHandler", "AsyncQueueWorker", "WorkerOptions"]

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
        pace = Pace(concurrency, ack_ms, "ack_ms")
        self._crew = AsyncCrew(_FromQueue(queue, ack_ms), handler, pace)

    async def run(self) -> None:
        """See QueueWorker.run. When it is cancelled, its handlers are, and all is given back.

        Raises InvalidInput when the handler turns out not to be async.
        """
        await self._crew.run()

    def stop(self) -> None:
        """See QueueWorker.stop."""
        self._crew.stop()


class _FromQueue(Deliveries[AsyncQueue]):
    async def begin(self) -> None:
        self.settings = (await self.queue.stats()).settings

    async def take(self, count: int, wait_ms: int) -> list[Delivery]:
        return await self.queue.pop(count, ack_ms=self.ack_ms, block_ms=wait_ms)

    async def tell(self, verdict: Verdict[Delivery]) -> None:
        if verdict.done:
            await self.queue.ack(*verdict.done)
        if verdict.untried:
            await self.queue.release(*verdict.untried)
        for rest_ms, deliveries in verdict.failed:
            await self.queue.nack(*deliveries, delay_ms=rest_ms)

    async def extend(self, deliveries: list[Delivery]) -> None:
        await self.queue.extend(*deliveries, ack_ms=self.ack_ms)
