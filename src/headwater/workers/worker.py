"""Workers: messages of a group, several at a time, each until its handler has succeeded.

For handlers that may run twice without harm. A message is acknowledged after its handler returned,
and comes again when the handler failed, after a pause that doubles each time; or when the worker
died, after ``retry_ms``. A handler may take longer than that: while it runs, its message is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from headwater.log.group import Group
from headwater.log.limits import check_ms
from headwater.log.types import Message
from headwater.outages import delay_s
from headwater.workers.crew import Crew
from headwater.workers.pace import Pace, Verdict

AnyGroup = TypeVar("AnyGroup")
WorkerHandler: TypeAlias = "Callable[[Message], object]"


class Messages(Generic[AnyGroup]):
    """What is to be said of a group's messages, by threads and tasks alike."""

    log = logging.getLogger("headwater.outbox")

    def __init__(
        self,
        group: AnyGroup,
        retry_ms: int,
        expire_ms: int | None,
        backoff_ms: int,
        longest_backoff_ms: int,
    ) -> None:
        self.group = group
        self.retry_ms = retry_ms
        self.expire_ms = None if expire_ms is None else check_ms(expire_ms, "expire_ms", 1)
        self._backoff_ms = check_ms(backoff_ms, "backoff_ms")
        self._longest_ms = check_ms(longest_backoff_ms, "longest_backoff_ms")

    def __repr__(self) -> str:
        return repr(self.group)

    def key_of(self, message: Message) -> int:
        """Name a message: by its offset, however often it comes."""
        return message.offset

    def pause_ms(self, attempt: int) -> int:
        """Say how long a message rests after its handler failed for the ``attempt``-th time."""
        return int(delay_s(attempt, self._backoff_ms, self._longest_ms))

    def failed(self, message: Message) -> int:
        """Log a failure; gives how long the message rests."""
        pause_ms = self.pause_ms(message.attempt)
        self.log.exception("offset %d failed; it comes again in %d ms", message.offset, pause_ms)
        return pause_ms


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
        handler: WorkerHandler,
        *,
        concurrency: int = 4,
        retry_ms: int = 30_000,
        expire_ms: int | None = None,
        backoff_ms: int = 1000,
        longest_backoff_ms: int = 60_000,
    ) -> None:
        pace = Pace(concurrency, retry_ms, "retry_ms")
        source = _FromGroup(group, retry_ms, expire_ms, backoff_ms, longest_backoff_ms)
        self._crew = Crew(source, handler, pace)

    def run(self) -> None:
        """Work until ``stop``; an outage of the store is waited out.

        When it returns, running handlers have ended, and what was not begun is given back.
        """
        self._crew.run()

    def stop(self) -> None:
        """Ask ``run`` to end; from any thread or signal handler. It stays stopped."""
        self._crew.stop()


class _FromGroup(Messages[Group]):
    def begin(self) -> None:
        pass

    def take(self, count: int, wait_ms: int) -> list[Message]:
        return self.group.read(
            count, block_ms=wait_ms, retry_ms=self.retry_ms, expire_ms=self.expire_ms
        )

    def tell(self, verdict: Verdict[Message]) -> None:
        if verdict.done:
            self.group.ack(*map(self.key_of, verdict.done))
        for rest_ms, messages in [(0, verdict.untried), *verdict.failed]:
            if messages:
                self.group.nack(*map(self.key_of, messages), delay_ms=rest_ms)

    def extend(self, messages: list[Message]) -> None:
        self.group.extend(*map(self.key_of, messages), retry_ms=self.retry_ms)
