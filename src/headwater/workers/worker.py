"""Workers: messages of a group, several at a time, each until its handler has succeeded.

For handlers that may run twice without harm. A message is acknowledged after its handler returned.
It is redelivered when the handler failed, after a delay that doubles each time; or when the worker
died, after ``retry_ms``. A handler may take longer than that: while it runs, its message is
extended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from headwater.codecs import Value
from headwater.log.group import Group
from headwater.log.types import Message
from headwater.workers.checks import check_object
from headwater.workers.crew import Crew
from headwater.workers.group_messages import GroupMessages
from headwater.workers.handled import HandledBatch
from headwater.workers.prefetch import Prefetch
from headwater.workers.retries import FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS, Retries

WorkerHandler: TypeAlias = "Callable[[Message[Value]], object]"


class Worker:
    """Handles the messages of a group in threads; run any number of them, anywhere.

    ``concurrency`` handlers run at once. ``retry_ms`` after a worker died, its messages are
    redelivered to another one. A failed message is retried after ``backoff_ms``, doubled with each
    failure up to ``longest_backoff_ms``, of which a random part from half to all is waited. After
    ``max_attempts`` deliveries without success (None: without end), and ``expire_ms`` after its
    first one, it becomes a dead letter; at once, when its value does not fit the codec. Raises
    InvalidInput for anything that is no group or no handler of one message.
    """

    def __init__(
        self,
        group: Group[Value],
        handler: WorkerHandler[Value],
        *,
        concurrency: int = 4,
        retry_ms: int = 30_000,
        expire_ms: int | None = None,
        max_attempts: int | None = None,
        backoff_ms: int = FIRST_BACKOFF_MS,
        longest_backoff_ms: int = LONGEST_BACKOFF_MS,
    ) -> None:
        check_object(group, Group)
        prefetch = Prefetch(concurrency, retry_ms, "retry_ms")
        retries = Retries(max_attempts, backoff_ms, longest_backoff_ms)
        name = f"{group.stream}/{group.name}"
        source = _Group(group, name, retry_ms, expire_ms, retries)
        self._crew = Crew(source, handler, prefetch)

    def run(self) -> None:
        """Work until ``stop``; when the store is away, retry until it is back.

        When it returns, running handlers have ended, and messages that were not begun are returned.
        """
        self._crew.run()

    def stop(self) -> None:
        """Ask ``run`` to end; from any thread or signal handler. It stays stopped."""
        self._crew.stop()


class _Group(GroupMessages[Group[Any]]):
    def begin(self) -> None:
        self.group.read(0)
        self.begun(self.group.info())

    def take(self, count: int, wait_ms: int) -> list[Message[Any]]:
        return self.group.read(
            count, block_ms=wait_ms, retry_ms=self.retry_ms, expire_ms=self.expire_ms
        )

    def settle(self, batch: HandledBatch[Message[Any]]) -> None:
        if batch.done:
            self.group.ack(*map(self.key_of, batch.done))
        if batch.not_begun:
            self.group.release(*map(self.key_of, batch.not_begun))
        if batch.failed:
            self.group.fail(*batch.failed)

    def extend(self, messages: list[Message[Any]]) -> None:
        self.group.extend(*map(self.key_of, messages), retry_ms=self.retry_ms)
