"""What workers of a group and of a queue know of their source: options, names, retries, checks."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from difflib import get_close_matches
from operator import attrgetter
from typing import Any, Final, Generic, TypeAlias, TypedDict, TypeVar

from headwater.errors import InvalidInput
from headwater.kernel.failures import Failure
from headwater.kernel.inputs import (
    Duration,
    Limits,
    check_for_queue,
    check_for_topic,
    check_ms,
)
from headwater.log.dead_letters import no_letters
from headwater.log.types import GroupInfo, Message, TopicMessage
from headwater.queue.types import Delivery, QueueSettings
from headwater.workers.attempts import Retries, log
from headwater.workers.holding import TagOrder

# ── Checks ────────────────────────────────────────────────────────────────────────────────────────
# Checks of a worker's arguments, when it is made and before any handler runs.


_CURES = {
    "Stream": "open a group of it, stream.group(name)",
    "AsyncStream": "open a group of it, stream.group(name)",
    "Topic": "open a group of it, topic.group(name)",
    "AsyncTopic": "open a group of it, topic.group(name)",
    "Group": "use Worker",
    "TopicGroup": "use Worker",
    "Queue": "use QueueWorker",
    "AsyncGroup": "use AsyncWorker",
    "AsyncTopicGroup": "use AsyncWorker",
    "AsyncQueue": "use AsyncQueueWorker",
}


def check_object(found: object, *kinds: type) -> None:
    """Refuse an object that this worker cannot take messages from."""
    if isinstance(found, kinds):
        return
    names = " or ".join(kind.__name__ for kind in kinds)
    name = type(found).__name__
    cure = f"; {_CURES[name]}" if name in _CURES else ""
    raise InvalidInput(f"this worker takes messages from a {names}, not from a {name}{cure}")


def check_options(worker: type, options: Iterable[str]) -> None:
    """Raise TypeError for an option that a worker does not take, before there is a handler."""
    known = inspect.signature(worker).parameters
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"worker() got an unexpected keyword argument {name!r}{hint}")


# ── Declared limits ───────────────────────────────────────────────────────────────────────────────
# Limits that a worker declares: those of its group or queue, which count for all workers.


def check_limits(limits: Limits | None, *, topic: bool = False, queue: bool = False) -> None:
    """Refuse limits that the source of a worker cannot keep."""
    if limits is None:
        return
    if not isinstance(limits, Limits):
        raise InvalidInput(
            f"limits must be a Limits, as Limits(rate='100/s'), not a {type(limits).__name__}"
        )
    if topic:
        check_for_topic(limits)
    if queue:
        check_for_queue(limits)


def log_replaced(log: logging.Logger, where: str, limits: Limits | None, before: Limits) -> None:
    """Log that limits replaced others, which another worker or an operator had set."""
    if before and before != limits:
        log.warning(
            "%s: its limits were %s; this worker declares %s, which now apply to all workers",
            where,
            before,
            limits,
        )


# ── Group messages ────────────────────────────────────────────────────────────────────────────────
# What the sync and the async worker of a group share: names, retries, checks.


AnyGroup = TypeVar("AnyGroup")
AnyMessage: TypeAlias = "Message[Any] | TopicMessage[Any]"
HELD_MS: Final = 30_000


class GroupWorkerOptions(TypedDict, total=False):
    """How a worker treats its messages; Worker says what each means."""

    concurrency: int
    ack_ms: Duration | None
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


def held_ms_of(ack_ms: Duration | None) -> int:
    """Return how long a worker holds a message that it does not extend."""
    return HELD_MS if ack_ms is None else check_ms(ack_ms, "ack_ms", 1)


# ── Queue messages ────────────────────────────────────────────────────────────────────────────────
# What the sync and the async worker of a queue share: options, names, retries.


AnyQueue = TypeVar("AnyQueue")


class WorkerOptions(TypedDict, total=False):
    """How a worker treats its messages; QueueWorker says what each means."""

    concurrency: int
    ack_ms: Duration
    max_attempts: int | None
    backoff_ms: Duration
    longest_backoff_ms: Duration
    timeout_ms: Duration | None
    limits: Limits | None


class QueueMessages(Generic[AnyQueue]):
    """A queue as a source of messages, as far as that needs no I/O."""

    log: logging.Logger = log

    def __init__(
        self,
        queue: AnyQueue,
        name: str,
        ack_ms: Duration,
        retries: Retries,
        limits: Limits | None = None,
    ) -> None:
        check_limits(limits, queue=True)
        self.queue = queue
        self.name = name
        self.ack_ms = check_ms(ack_ms, "ack_ms", 1)
        self.retries = retries
        retries.object = self.name
        self.settings = QueueSettings()
        self.limits = limits

    def __repr__(self) -> str:
        return repr(self.queue)

    def replaced(self, before: Limits) -> None:
        """Log that the limits of this worker replaced others."""
        log_replaced(self.log, f"queue {self.name}", self.limits, before)

    def key_of(self, delivery: Delivery[Any]) -> str:
        """Return the key of a delivery: each redelivery has another receipt."""
        return delivery.receipt

    def failed(self, delivery: Delivery[Any], error: BaseException, began: float) -> Failure:
        """Log a failed attempt; returns what to report of it."""
        # A queue with a back-off of its own delays by itself.
        rest_ms = None if self.settings.backoff == "none" else 0
        where = f"message {delivery.id} of queue {self.name}"
        return self.retries.failure(
            delivery, error, began, where, rest_ms=rest_ms, settled=self._settled
        )

    def buries(self, failure: Failure) -> bool:
        """Return whether a message is given up by this failure, of the worker or of the queue."""
        delay_ms = failure.delay_ms
        return delay_ms is None or self._settled(failure.item.attempt, delay_ms) is None

    def _settled(self, attempt: int, delay_ms: int) -> tuple[int, int] | None:
        """Return after how long the queue redelivers a failed message, at least and at most.

        None when the queue buries it.
        """
        own = self.settings
        if own.max_attempts is not None and attempt >= own.max_attempts:
            return None
        if own.backoff == "none":
            return delay_ms, delay_ms
        if own.backoff == "fixed":
            fixed = max(delay_ms, own.backoff_ms)
            return fixed, fixed
        whole = min(own.backoff_ms << min(max(attempt, 1) - 1, 49), own.longest_backoff_ms)
        return max(delay_ms, -(-whole // 2)), max(delay_ms, whole)
