# Generated from aio_queue.py by `make derived`, which renews it: change that file.
"""Queues for blocking code: a thin shell over the operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, Unpack

from headwater.kernel.codecs import D
from headwater.kernel.failures import Failure, LetterFilter
from headwater.kernel.headers import GivenHeaders
from headwater.kernel.inputs import Duration, Limits, deadline, needed_deadline
from headwater.queue import dead_letters, inspecting, moving, settling, upkeep
from headwater.queue.dead_letters import OneQueueLetter
from headwater.queue.handles import QueueHandle
from headwater.queue.keys import DEDUPE_MS, MAX_LETTERS
from headwater.queue.moving import HeadersOfMany
from headwater.queue.settling import Deliveries
from headwater.queue.types import (
    Backoff,
    Delivery,
    QueueItem,
    QueueSettings,
    QueueStats,
    State,
)
from headwater.store.call import Pace

if TYPE_CHECKING:
    from headwater.store.store import Store
    from headwater.workers.queue_worker import Handler, QueueWorker, WorkerOptions


class Queue(Generic[D]):
    """A queue of messages, each for one consumer. It is created by its first push."""

    def __init__(self, store: Store, handle: QueueHandle) -> None:
        self._store = store
        self._run = store.run
        self._handle = handle
        self.name = handle.name

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    def push(
        self,
        value: D | str,
        *,
        delay_ms: Duration = 0,
        priority: int = 0,
        ttl_ms: Duration | None = None,
        dedupe: str | bytes | None = None,
        dedupe_ms: Duration = DEDUPE_MS,
        headers: GivenHeaders | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> str:
        """Put one message into the queue and return its id.

        It is delivered ``delay_ms`` from now at the earliest, higher ``priority`` first, and not
        at all after ``ttl_ms``. A ``dedupe`` key that was pushed within the last ``dedupe_ms`` adds
        nothing and returns the first id. ``headers`` are a small map beside the value, of names to
        bytes or str. Raises OutcomeUnknown when the connection broke in between; with a key, or
        with ``producer`` and ``sequence`` as push_many takes them, the client repeats the push
        instead. One round trip.
        """
        return self._run(
            moving.push(
                self._handle,
                self._handle.encoded(value),
                delay_ms,
                priority,
                ttl_ms,
                dedupe,
                dedupe_ms,
                headers,
                producer,
                sequence,
            )
        )

    def push_many(
        self,
        values: Iterable[D | str],
        *,
        delay_ms: Duration = 0,
        priority: int = 0,
        ttl_ms: Duration | None = None,
        dedupe: Sequence[str | bytes] | None = None,
        dedupe_ms: Duration = DEDUPE_MS,
        producer: str | None = None,
        sequence: int | None = None,
        headers: HeadersOfMany | None = None,
    ) -> list[str]:
        """Put messages into the queue, all or none, and return their ids.

        ``dedupe`` names a key for each value, ``headers`` is a map for all of them or one for each.
        With ``producer`` and ``sequence`` (increasing per producer) a repeat changes nothing and
        returns the ids of the first time; the last 128 sequences of a producer are remembered.
        Raises StaleSequence for an older one, and ReusedSequence for one with other content. One
        round trip.
        """
        return self._run(
            moving.push_many(
                self._handle,
                self._handle.encoded_values(values),
                delay_ms,
                priority,
                ttl_ms,
                dedupe,
                dedupe_ms,
                producer,
                sequence,
                headers,
            )
        )

    def pop(
        self,
        count: int = 1,
        *,
        ack_ms: Duration | None = None,
        block_ms: Duration | float | None = None,
        retry_ms: Duration | None = None,
        max_bytes: int | None = None,
    ) -> list[Delivery[D]]:
        """Take up to ``count`` messages.

        With ``ack_ms`` each must be acknowledged within that time, or it is redelivered, with a
        higher ``attempt`` (at least once). Without, it is gone when it is delivered (at most once).
        ``block_ms`` waits for a first message; the consumer that has waited longest is served
        first. ``retry_ms`` is another name of ``ack_ms``. No more are taken once they have
        ``max_bytes``, headers included. One round trip for up to 1000 messages or 4 MiB.
        """
        ack_ms = deadline(ack_ms, retry_ms)
        found = self._run(moving.pop(self._handle, count, ack_ms, block_ms, max_bytes))
        return self._handle.decoded(found)

    def ack(self, *deliveries: Deliveries) -> int:
        """Acknowledge deliveries, or receipts, or iterables of them.

        Returns how many messages were still this consumer's. A delivery whose deadline is over, or
        that was acknowledged or returned before, counts 0 and changes nothing, even if another
        consumer has the message by now.
        """
        return self._run(settling.ack(self._handle, deliveries))

    def nack(self, *deliveries: Deliveries, delay_ms: Duration = 0) -> int:
        """Return messages as failed; returns how many were still this consumer's.

        They are redelivered after ``delay_ms`` or the queue's back-off, whichever is longer; or
        become dead letters, when that was their last attempt.
        """
        return self._run(settling.nack(self._handle, deliveries, delay_ms))

    def fail(self, *failures: Failure) -> int:
        """Report failed attempts, each with its error, and a delay or None to give up.

        Returns how many messages were still this consumer's. Workers call this.
        """
        return self._run(settling.fail(self._handle, failures))

    def bury(self, *deliveries: Deliveries, error: BaseException | str | None = None) -> int:
        """Make dead letters of messages at once, whatever their attempts; returns how many.

        ``error`` says why; its type and the first 1000 characters of its text are kept.
        """
        return self._run(settling.bury(self._handle, deliveries, error))

    def release(self, *deliveries: Deliveries) -> int:
        """Return messages untried: they are redelivered at once; the attempt does not count."""
        return self._run(settling.release(self._handle, deliveries))

    def extend(
        self,
        *deliveries: Deliveries,
        ack_ms: Duration | None = None,
        retry_ms: Duration | None = None,
    ) -> int:
        """Set the deadline to ``ack_ms`` from now; returns for how many messages."""
        held_ms = needed_deadline(ack_ms, retry_ms)
        return self._run(settling.extend(self._handle, deliveries, held_ms))

    def stats(self) -> QueueStats:
        """Return the state of the queue: counts, rates, settings."""
        return self._run(inspecting.stats(self._handle))

    def peek(
        self, count: int = 10, *, state: State = "ready", max_bytes: int | None = None
    ) -> list[QueueItem]:
        """Return the messages of a state that come first, without taking them.

        Ready ones are in the order in which ``pop`` takes them, delayed and unacked ones are by
        priority and then by time, dead letters by the time at which they were given up. There are
        no more once they have ``max_bytes``.
        """
        return self._run(inspecting.peek(self._handle, count, state, max_bytes))

    def scan(self, *states: State) -> Iterator[QueueItem]:
        """Yield all messages, or those of some states, without taking them, in bounded pages.

        A message that stays where it is meanwhile is seen once. One that moves may be seen twice,
        or not at all.
        """
        rest = self._run(inspecting.spots_of(self._handle, states))
        while rest:
            items, rest = self._run(inspecting.page(self._handle, rest))
            for item in items:
                if not states or item.state in states:
                    yield item

    def configure(
        self,
        *,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        backoff_ms: Duration | None = None,
        longest_backoff_ms: Duration | None = None,
    ) -> QueueSettings:
        """Set how often messages are tried and the delay in between; None leaves it.

        After ``max_attempts`` deliveries without an ack (0: no limit) a message becomes a dead
        letter. ``backoff`` is "none", "fixed" or "exponential"; each message is delayed for a
        random part of it, between half and all. This applies to every consumer, from now on.
        """
        return self._run(
            upkeep.configure(self._handle, max_attempts, backoff, backoff_ms, longest_backoff_ms)
        )

    def limit(self, limits: Limits) -> Limits:
        """Set what the queue may deliver, to all consumers; returns the limits before.

        ``Limits`` says what each means; what it does not limit is not limited any more. Messages of
        a queue have no key: raises InvalidInput for limits per key.
        """
        return self._run(upkeep.limit(self._handle, limits))

    def pause(self) -> bool:
        """Deliver nothing until ``resume``; pushes and acks work. Returns whether it changed."""
        return self._run(upkeep.pause(self._handle, True))

    def resume(self) -> bool:
        """Deliver messages again; returns whether the queue was paused."""
        return self._run(upkeep.pause(self._handle, False))

    def promote(self, messages: Iterable[QueueItem | str]) -> int:
        """Deliver delayed messages now, also those that are delayed after a failed attempt.

        They are given as ``peek`` returned them, by their places or by their ids; an id costs a
        look at what is delayed before it. Returns how many were still delayed.
        """
        return self._run(settling.promote(self._handle, messages))

    def dead(
        self,
        count: int = 100,
        *,
        matching: LetterFilter | None = None,
        max_bytes: int | None = None,
    ) -> list[QueueItem]:
        """Return the messages that were given up, of those that fit, the oldest first.

        A filter costs a look at every letter before the last one that is returned. There are no
        more once they have ``max_bytes``.
        """
        return self._run(dead_letters.dead(self._handle, count, matching, max_bytes))

    def redrive(
        self,
        letters: Iterable[OneQueueLetter] | None = None,
        *,
        count: int = MAX_LETTERS,
        matching: LetterFilter | None = None,
        rate_per_s: int | None = None,
    ) -> int:
        """Redrive dead letters: all, those that match, or those given; attempts start from 1 again.

        They are given as ``dead`` returned them, by their places or by their ids; an id costs a
        look at the letters before it. ``rate_per_s`` of them at most. Returns how many.
        """
        return self._run(
            dead_letters.redrive(self._handle, letters, matching, count, Pace(rate_per_s))
        )

    def discard(
        self,
        letters: Iterable[OneQueueLetter] | None = None,
        *,
        count: int = MAX_LETTERS,
        matching: LetterFilter | None = None,
        rate_per_s: int | None = None,
    ) -> int:
        """Forget dead letters: all, those that fit, or those given; returns how many."""
        return self._run(
            dead_letters.discard(self._handle, letters, matching, count, Pace(rate_per_s))
        )

    def purge(self) -> int:
        """Forget all messages, dead letters too; returns how many. Settings stay."""
        return self._run(upkeep.purge(self._handle))

    def delete(self) -> bool:
        """Remove the queue with all that belongs to it; returns whether it existed."""
        return self._run(upkeep.delete(self._handle))

    def worker(self, **options: Unpack[WorkerOptions]) -> Callable[[Handler[D]], QueueWorker]:
        """Make a worker of the function below it, which gets one Delivery at a time.

        @hw.queue("mail").worker(concurrency=8)
        def send(delivery): ...

        send.run()
        """
        from headwater.workers.queue_worker import QueueWorker
        from headwater.workers.sources import check_options

        check_options(QueueWorker, options)
        return lambda handler: QueueWorker(self, handler, **options)
