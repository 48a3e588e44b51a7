"""What the sync and the async worker of a queue have in common: options, names, delays, logging."""

from __future__ import annotations

import logging
from typing import Any, Generic, TypedDict, TypeVar

from headwater.outages import delay_s
from headwater.queue.types import Delivery, QueueSettings

AnyQueue = TypeVar("AnyQueue")

FIRST_DELAY_MS = 1000
LONGEST_DELAY_MS = 60_000


class WorkerOptions(TypedDict, total=False):
    """How a worker treats its messages; QueueWorker says what each means."""

    concurrency: int
    ack_ms: int


class QueueMessages(Generic[AnyQueue]):
    """A queue as a source of messages, as far as that needs no I/O."""

    log = logging.getLogger("headwater.queue")

    def __init__(self, queue: AnyQueue, name: str, ack_ms: int) -> None:
        self.queue = queue
        self.name = name
        self.ack_ms = ack_ms
        self.settings = QueueSettings()

    def __repr__(self) -> str:
        return repr(self.queue)

    def key_of(self, delivery: Delivery[Any]) -> str:
        """Return the key of a delivery: each redelivery has another receipt."""
        return delivery.receipt

    def delay_ms(self, attempt: int) -> int:
        """Return after how long a failed message is redelivered; 0 leaves it to its queue."""
        if self.settings.backoff != "none":
            return 0
        return int(delay_s(attempt, FIRST_DELAY_MS, LONGEST_DELAY_MS))

    def failed(self, delivery: Delivery[Any]) -> int:
        """Log a failure; returns after how long the message is redelivered."""
        self.log.exception("message %s failed, attempt %d", delivery.id, delivery.attempt)
        return self.delay_ms(delivery.attempt)
