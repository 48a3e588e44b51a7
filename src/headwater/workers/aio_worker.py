"""Workers: messages of a group, several at a time, each until its handler has succeeded.

For handlers that may run twice without harm. A message is acknowledged after its handler returned.
It is redelivered when the handler failed, after a delay that doubles each time; or when the worker
died, after ``ack_ms``. A handler may take longer than that: while it runs, its message is
extended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, Unpack, overload

from headwater.kernel.codecs import Value
from headwater.kernel.inputs import Duration, Limits
from headwater.log.aio_group import AsyncGroup
from headwater.log.aio_topic import AsyncTopicGroup
from headwater.log.types import Message, TopicMessage
from headwater.store.aio_store import AsyncStore
from headwater.workers.aio_crew import AsyncCrew, AsyncCrewOwner
from headwater.workers.attempts import (
    FIRST_BACKOFF_MS,
    LONGEST_BACKOFF_MS,
    HandledBatch,
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


class AsyncWorker(AsyncCrewOwner):
    """Handles the messages of a group, of a stream or a topic, in tasks; run any number of them.

    ``concurrency`` handlers run at once. ``ack_ms`` after a worker died, 30 seconds by default, its
    messages are redelivered to another one. A failed message is retried after ``backoff_ms``,
    doubled with each failure up to ``longest_backoff_ms``; the delay is a random part of that, from
    half to all. After ``max_attempts`` deliveries without success (None: without end), and
    ``expire_ms`` after its first one, it becomes a dead letter; at once, when its value does not
    fit the codec. A handler that runs longer than ``timeout_ms`` has failed with HandlerTimeout: an
    async one is cancelled; a thread cannot be stopped, so it is replaced, and what it returns later
    counts for nothing. With ``ordered`` the messages of one tag are handled one after the other, in
    all workers of the group, even when one is retried; other tags continue meanwhile. ``limits``
    are set for the group when the worker begins; of a topic, per key only. Raises InvalidInput for
    what is not a group, or not a handler of one message.
    """

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
        held_ms = held_ms_of(ack_ms)
        prefetch = Prefetch(concurrency, held_ms, "ack_ms", limited=bool(limits))
        retries = Retries(max_attempts, backoff_ms, longest_backoff_ms)
        # A worker of a topic has the partitions beside it.
        where = (group.topic if isinstance(group, AsyncTopicGroup) else group.stream, group.name)
        source = _Group(group, where, held_ms, expire_ms, retries, limits)
        self.name = source.name
        self._crew = AsyncCrew(source, handler, prefetch, check_timeout(timeout_ms), tag_order)


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
