"""Workers for asyncio: the same promises, with a task for each hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from headwater.log.aio_group import AsyncGroup
from headwater.log.types import Message
from headwater.workers.aio_crew import AsyncCrew
from headwater.workers.pace import Pace, Verdict
from headwater.workers.worker import Messages

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
        pace = Pace(concurrency, retry_ms, "retry_ms")
        source = _FromGroup(group, retry_ms, expire_ms, backoff_ms, longest_backoff_ms)
        self._crew = AsyncCrew(source, handler, pace)

    async def run(self) -> None:
        """See Worker.run. When it is cancelled, its handlers are, and all is given back.

        Raises InvalidInput when the handler turns out not to be async.
        """
        await self._crew.run()

    def stop(self) -> None:
        """See Worker.stop."""
        self._crew.stop()


class _FromGroup(Messages[AsyncGroup]):
    async def begin(self) -> None:
        pass

    async def take(self, count: int, wait_ms: int) -> list[Message]:
        return await self.group.read(
            count, block_ms=wait_ms, retry_ms=self.retry_ms, expire_ms=self.expire_ms
        )

    async def tell(self, verdict: Verdict[Message]) -> None:
        if verdict.done:
            await self.group.ack(*map(self.key_of, verdict.done))
        for rest_ms, messages in [(0, verdict.untried), *verdict.failed]:
            if messages:
                await self.group.nack(*map(self.key_of, messages), delay_ms=rest_ms)

    async def extend(self, messages: list[Message]) -> None:
        await self.group.extend(*map(self.key_of, messages), retry_ms=self.retry_ms)
