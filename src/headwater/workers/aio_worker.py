"""Workers of a group for asyncio: the same promises, with tasks in the place of threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from headwater.codecs import Value
from headwater.log.aio_group import AsyncGroup
from headwater.log.types import Message
from headwater.workers.aio_crew import AsyncCrew
from headwater.workers.checks import check_object
from headwater.workers.group_messages import GroupMessages
from headwater.workers.handled import HandledBatch
from headwater.workers.prefetch import Prefetch
from headwater.workers.retries import FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS, Retries

AsyncWorkerHandler: TypeAlias = "Callable[[Message[Value]], Awaitable[object]]"


class AsyncWorker:
    """Handles the messages of a group in tasks; Worker says what each argument means."""

    def __init__(
        self,
        group: AsyncGroup[Value],
        handler: AsyncWorkerHandler[Value],
        *,
        concurrency: int = 4,
        retry_ms: int = 30_000,
        expire_ms: int | None = None,
        max_attempts: int | None = None,
        backoff_ms: int = FIRST_BACKOFF_MS,
        longest_backoff_ms: int = LONGEST_BACKOFF_MS,
    ) -> None:
        check_object(group, AsyncGroup)
        prefetch = Prefetch(concurrency, retry_ms, "retry_ms")
        retries = Retries(max_attempts, backoff_ms, longest_backoff_ms)
        name = f"{group.stream}/{group.name}"
        source = _Group(group, name, retry_ms, expire_ms, retries)
        self._crew = AsyncCrew(source, handler, prefetch)

    async def run(self) -> None:
        """Work until ``stop``; when the store is away, retry until it is back.

        When it is cancelled, its handlers are, and all messages are returned. Raises InvalidInput
        when the handler turns out not to be async.
        """
        await self._crew.run()

    def stop(self) -> None:
        """Ask ``run`` to end; from any thread or signal handler. It stays stopped."""
        self._crew.stop()


class _Group(GroupMessages[AsyncGroup[Any]]):
    async def begin(self) -> None:
        await self.group.read(0)
        self.begun(await self.group.info())

    async def take(self, count: int, wait_ms: int) -> list[Message[Any]]:
        return await self.group.read(
            count, block_ms=wait_ms, retry_ms=self.retry_ms, expire_ms=self.expire_ms
        )

    async def settle(self, batch: HandledBatch[Message[Any]]) -> None:
        if batch.done:
            await self.group.ack(*map(self.key_of, batch.done))
        if batch.not_begun:
            await self.group.release(*map(self.key_of, batch.not_begun))
        if batch.failed:
            await self.group.fail(*batch.failed)

    async def extend(self, messages: list[Message[Any]]) -> None:
        await self.group.extend(*map(self.key_of, messages), retry_ms=self.retry_ms)
