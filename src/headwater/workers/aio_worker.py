"""Workers of a group for asyncio: the same promises, with tasks in the place of threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, Unpack, overload

from headwater.kernel.codecs import Value
from headwater.kernel.inputs import Duration, Limits
from headwater.log.aio_group import AsyncGroup
from headwater.log.aio_topic import AsyncTopicGroup
from headwater.log.types import Message, TopicMessage
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
from headwater.workers.sources import (
    GroupMessages,
    GroupWorkerOptions,
    check_limits,
    check_object,
    held_ms_of,
    tag_order_of,
)

AsyncWorkerHandler: TypeAlias = "Callable[[Message[Value]], Awaitable[object]]"
AsyncTopicHandler: TypeAlias = "Callable[[TopicMessage[Value]], Awaitable[object]]"


class AsyncWorker:
    """Handles the messages of a group in tasks; Worker says what each argument means."""

    @overload
    def __init__(
        self,
        group: AsyncGroup[Value],
        handler: AsyncWorkerHandler[Value],
        **options: Unpack[GroupWorkerOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        group: AsyncTopicGroup[Value],
        handler: AsyncTopicHandler[Value],
        **options: Unpack[GroupWorkerOptions],
    ) -> None: ...
    def __init__(
        self,
        group: AsyncGroup[Any] | AsyncTopicGroup[Any],
        handler: Callable[[Any], Awaitable[object]],
        *,
        concurrency: int = 4,
        ack_ms: Duration | None = None,
        retry_ms: Duration | None = None,
        expire_ms: Duration | None = None,
        max_attempts: int | None = None,
        backoff_ms: Duration = FIRST_BACKOFF_MS,
        longest_backoff_ms: Duration = LONGEST_BACKOFF_MS,
        timeout_ms: Duration | None = None,
        ordered: bool = False,
        limits: Limits | None = None,
    ) -> None:
        check_object(group, AsyncGroup, AsyncTopicGroup)
        check_limits(limits, topic=isinstance(group, AsyncTopicGroup))
        tag_order = tag_order_of(topic=isinstance(group, AsyncTopicGroup)) if ordered else None
        if tag_order is not None:
            group.keep_order(tag_order.owned)
        held_ms = held_ms_of(ack_ms, retry_ms)
        prefetch = Prefetch(concurrency, held_ms, "ack_ms", limited=bool(limits))
        retries = Retries(max_attempts, backoff_ms, longest_backoff_ms)
        # A worker of a topic has the partitions beside it.
        where = (group.topic if isinstance(group, AsyncTopicGroup) else group.stream, group.name)
        source = _Group(group, where, held_ms, expire_ms, retries, limits)
        self.name = source.name
        self._crew = AsyncCrew(source, handler, prefetch, check_timeout(timeout_ms), tag_order)

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


class _Group(GroupMessages[AsyncGroup[Any] | AsyncTopicGroup[Any]]):
    @property
    def store(self) -> AsyncStore:
        store: AsyncStore = self.group._store
        return store

    async def begin(self) -> None:
        await self.group.read(0)
        if self.limits is not None:
            self.replaced(await self.group.limit(self.limits))
        infos = await self.group.info()
        self.begun(*infos if isinstance(infos, list) else [infos])

    async def take(self, count: int, wait_ms: int) -> list[Any]:
        found: list[Any] = await self.group.read(
            count, block_ms=wait_ms, ack_ms=self.held_ms, expire_ms=self.expire_ms
        )
        return found

    async def settle(self, batch: HandledBatch[Any]) -> None:
        if batch.done:
            await self.group.ack(batch.done)
        if batch.not_begun:
            await self.group.release(batch.not_begun)
        if batch.failed:
            await self.group.fail(*batch.failed)

    async def extend(self, messages: list[Any]) -> None:
        await self.group.extend(messages, ack_ms=self.held_ms)
