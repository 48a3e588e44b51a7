"""What the sync and the async worker of a group share: names, retries, checks."""

from __future__ import annotations

import logging
from operator import attrgetter
from typing import Any, Final, Generic, TypeAlias, TypedDict, TypeVar

from headwater.kernel.failures import Failure
from headwater.kernel.inputs import Duration, Limits, deadline
from headwater.log.dead_letters import no_letters
from headwater.log.keys import check_ms
from headwater.log.types import GroupInfo, Message, TopicMessage
from headwater.workers.declared_limits import log_replaced
from headwater.workers.retries import Retries, log
from headwater.workers.tag_order import TagOrder

AnyGroup = TypeVar("AnyGroup")
AnyMessage: TypeAlias = "Message[Any] | TopicMessage[Any]"
HELD_MS: Final = 30_000


class GroupWorkerOptions(TypedDict, total=False):
    """How a worker treats its messages; Worker says what each means."""

    concurrency: int
    ack_ms: Duration | None
    retry_ms: Duration | None
    expire_ms: Duration | None
    max_attempts: int | None
    backoff_ms: Duration
    longest_backoff_ms: Duration
    timeout_ms: Duration | None
    ordered: bool
    limits: Limits | None


class GroupMessages(Generic[AnyGroup]):
    """A group as a source of messages, as far as that needs no I/O."""

    log: logging.Logger = log

    def __init__(
        self,
        group: AnyGroup,
        where: tuple[str, str],
        held_ms: int,
        expire_ms: Duration | None,
        retries: Retries,
        limits: Limits | None = None,
    ) -> None:
        self.group = group
        self.name = "/".join(where)
        self.held_ms = held_ms
        self.expire_ms = None if expire_ms is None else check_ms(expire_ms, "expire_ms", 1)
        self.retries = retries
        retries.object = self.name
        self._where = where
        self.limits = limits

    def __repr__(self) -> str:
        return repr(self.group)

    def begun(self, *infos: GroupInfo) -> None:
        """Note whether the group keeps dead letters; raises InvalidInput if they are missing."""
        self.retries.buries = all(info.dead_letters is not None for info in infos)
        if self.retries.max_attempts is not None and not self.retries.buries:
            raise no_letters(*self._where)

    def replaced(self, before: Limits) -> None:
        """Log that the limits of this worker replaced others."""
        log_replaced(self.log, self.name, self.limits, before)

    def key_of(self, message: AnyMessage) -> int | tuple[int, int]:
        """Return the key of a message."""
        return key_of(message)

    def buries(self, failure: Failure) -> bool:
        """Return whether a message is given up by this failure."""
        return failure.delay_ms is None

    def failed(self, message: AnyMessage, error: BaseException, began: float) -> Failure:
        """Log a failed attempt; returns what to report of it."""
        where = f"offset {message.offset} of {self.name}"
        if isinstance(message, TopicMessage):
            where = f"partition {message.partition} {where}"
        return self.retries.failure(message, error, began, where)


def key_of(message: AnyMessage) -> int | tuple[int, int]:
    """Return the key of a message: where it is, however often it is redelivered."""
    if isinstance(message, TopicMessage):
        return message.partition, message.offset
    return message.offset


def tag_order_of(*, topic: bool) -> TagOrder[Any]:
    """Return the order by tag for messages of a stream, or of the partitions of a topic."""
    if topic:
        return TagOrder(_tag_in_topic, attrgetter("partition", "offset"))
    return TagOrder(attrgetter("tag"), attrgetter("offset"))


def _tag_in_topic(message: TopicMessage[Any]) -> tuple[int, str] | None:
    return (message.partition, message.tag) if message.tag else None


def held_ms_of(ack_ms: Duration | None, retry_ms: Duration | None) -> int:
    """Return how long a worker holds a message that it does not extend."""
    given = deadline(ack_ms, retry_ms)
    return HELD_MS if given is None else check_ms(given, "ack_ms", 1)
