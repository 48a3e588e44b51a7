"""Workers: messages of a queue, several at a time, each until its handler has succeeded.

A message is acknowledged after its handler returned, and comes again when the handler failed or
the worker died. A handler may take as long as it likes: while it runs, its message is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from headwater.queue.queue import Queue
from headwater.queue.types import Delivery
from headwater.workers.crew import Crew
from headwater.workers.deliveries import Deliveries, WorkerOptions
from headwater.workers.pace import Pace, Verdict

__all__ = ["Handler", "QueueWorker", "WorkerOptions"]

Handler: TypeAlias = "Callable[[Delivery], object]"


class QueueWorker:
    """Handles the messages of a queue in threads; run any number of them, anywhere.

    ``concurrency`` handlers run at once. ``ack_ms`` after a worker died, its messages go to another
    one; as long as it lives, it extends what it holds. A message whose handler raised rests as the
    queue's back-off says, or, when it has none, for a second, doubled each time up to a minute.
    """

    def __init__(
        self, queue: Queue, handler: Handler, *, concurrency: int = 4, ack_ms: int = 30_000
    ) -> None:
        pace = Pace(concurrency, ack_ms, "ack_ms")
        self._crew = Crew(_FromQueue(queue, ack_ms), handler, pace)

    def run(self) -> None:
        """Work until ``stop``; an outage of the store is waited out.

        When it is asked to stop, what was not begun is given back at once; when it returns, running
        handlers have ended.
        """
        self._crew.run()

    def stop(self) -> None:
        """Ask ``run`` to end; from any thread or signal handler. It stays stopped."""
        self._crew.stop()


class _FromQueue(Deliveries[Queue]):
    def begin(self) -> None:
        self.settings = self.queue.stats().settings

    def take(self, count: int, wait_ms: int) -> list[Delivery]:
        return self.queue.pop(count, ack_ms=self.ack_ms, block_ms=wait_ms)

    def tell(self, verdict: Verdict[Delivery]) -> None:
        if verdict.done:
            self.queue.ack(*verdict.done)
        if verdict.untried:
            self.queue.release(*verdict.untried)
        for rest_ms, deliveries in verdict.failed:
            self.queue.nack(*deliveries, delay_ms=rest_ms)

    def extend(self, deliveries: list[Delivery]) -> None:
        self.queue.extend(*deliveries, ack_ms=self.ack_ms)
