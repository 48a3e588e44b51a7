"""What both kinds of worker have in common: their options, and how long a message rests."""

from __future__ import annotations

import logging
from typing import Generic, TypedDict, TypeVar

from headwater.outages import delay_s
from headwater.queue.types import Delivery, QueueSettings

AnyQueue = TypeVar("AnyQueue")

FIRST_REST_MS = 1000
LONGEST_REST_MS = 60_000


class WorkerOptions(TypedDict, total=False):
    """How a worker treats its messages; QueueWorker says what each means."""

    concurrency: int
    ack_ms: int


class Deliveries(Generic[AnyQueue]):
    """What is to be said of deliveries, by threads and tasks alike."""

    log = logging.getLogger("headwater.queue")

    def __init__(self, queue: AnyQueue, ack_ms: int) -> None:
        self.queue = queue
        self.ack_ms = ack_ms
        self.settings = QueueSettings()

    def __repr__(self) -> str:
        return repr(self.queue)

    def key_of(self, delivery: Delivery) -> str:
        """Name a delivery: each time a message comes, it has another receipt."""
        return delivery.receipt

    def rest_ms(self, attempt: int) -> int:
        """Say how long a message rests after it failed, if its queue does not say so itself."""
        if self.settings.backoff != "none":
            return 0
        return int(delay_s(attempt, FIRST_REST_MS, LONGEST_REST_MS))

    def failed(self, delivery: Delivery) -> int:
        """Log a failure; gives how long the message rests."""
        self.log.exception("message %s failed, attempt %d", delivery.id, delivery.attempt)
        return self.rest_ms(delivery.attempt)
