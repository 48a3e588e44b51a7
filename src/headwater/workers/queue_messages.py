"""What the sync and the async worker of a queue share: options, names, retries."""

from __future__ import annotations

import logging
from typing import Any, Generic, TypedDict, TypeVar

from headwater.kernel.failures import Failure
from headwater.kernel.inputs import Duration, Limits, check_ms
from headwater.queue.types import Delivery, QueueSettings
from headwater.workers.declared_limits import check_limits, log_replaced
from headwater.workers.retries import Retries, log

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
