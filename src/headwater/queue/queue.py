# Generated from aio_queue.py by `make derived`, which renews it: change that file.
"""Queues for blocking code: a thin shell over the operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Generic, Unpack

from headwater.kernel.codecs import D
from headwater.kernel.declaring import Scope, operation
from headwater.kernel.failures import Failure, GivenCause
from headwater.kernel.headers import GivenHeaders
from headwater.kernel.inputs import AckMs, DelayMs, Duration, Limits
from headwater.queue import dead_letters, inspecting, moving, settling, upkeep
from headwater.queue.dead_letters import FittingQueueLetters, GivenQueueLetters, QueueLetters
from headwater.queue.handles import QueueHandle
from headwater.queue.keys import DEDUPE_MS
from headwater.queue.moving import HeadersOfMany
from headwater.queue.settling import GivenDeliveries, GivenMessages
from headwater.queue.types import (
    Delivery,
    GivenAttempts,
    GivenBackoff,
    GivenBackoffMs,
    LongestBackoffMs,
    QueueItem,
    QueueSettings,
    QueueStats,
    State,
)
from headwater.store.call import Pace
from headwater.store.letters import LettersPerS, ListedBytes, ListedLetters, MovedLetters

if TYPE_CHECKING:
    from headwater.store.store import Store
    from headwater.workers.queue_worker import Handler, QueueWorker, WorkerOptions


# Their shape differs from door to door.
_BY_HAND: Final = ("command line", "HTTP", "RESP")


class Queue(Generic[D]):
    """A queue of messages, each for one consumer. It is created by its first push."""

    def __init__(self, store: Store, handle: QueueHandle) -> None:
        self._store = store
        self._run = store.run
        self._handle = handle
        self.name = handle.name

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    @operation(Scope.WRITE, "id", http="POST messages", override=_BY_HAND)
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

    @operation(Scope.WRITE, "deliveries", override=_BY_HAND)
    def pop(
        self,
        count: int = 1,
        *,
        ack_ms: Duration | None = None,
        block_ms: Duration | float | None = None,
        max_bytes: int | None = None,
    ) -> list[Delivery[D]]:
        """Take up to ``count`` messages.

        With ``ack_ms`` each must be acknowledged within that time, or it is redelivered, with a
        higher ``attempt`` (at least once). Without, it is gone when it is delivered (at most once).
        ``block_ms`` waits for a first message; the consumer that has waited longest is served
        first. No more are taken once they have ``max_bytes``, headers included. One round trip
        for up to 1000 messages or 4 MiB.
        """
        found = self._run(moving.pop(self._handle, count, ack_ms, block_ms, max_bytes))
        return self._handle.decoded(found)

    @operation(Scope.WRITE, "acked", says="acknowledged {acked:message}")
    def ack(self, *deliveries: GivenDeliveries) -> int:
        """Acknowledge messages: they are done. Returns how many were still this consumer's.

        They are given as deliveries, or receipts, or iterables of them. A delivery whose deadline
        is over, or that was acknowledged or returned before, counts 0 and changes nothing, even if
        another consumer has the message by now.
        """
        return self._run(settling.ack(self._handle, deliveries))

    @operation(Scope.WRITE, "nacked", says="returned {nacked:message}")
    def nack(self, *deliveries: GivenDeliveries, delay_ms: DelayMs = 0) -> int:
        """Reject messages: they are redelivered after ``delay_ms`` or the back-off, or given up.

        Whichever is longer counts. They become dead letters when that was their last attempt.
        Returns how many were still this consumer's.
        """
        return self._run(settling.nack(self._handle, deliveries, delay_ms))

    def fail(self, *failures: Failure) -> int:
        """Report failed attempts, each with its error, and a delay or None to give up.

        Returns how many messages were still this consumer's. Workers call this.
        """
        return self._run(settling.fail(self._handle, failures))

    @operation(Scope.WRITE, "buried", says="gave up {buried:message}")
    def bury(self, *deliveries: GivenDeliveries, error: GivenCause = None) -> int:
        """Make dead letters of messages at once, whatever their attempts; returns how many.

        ``error`` says why; its type and the first 1000 characters of its text are kept.
        """
        return self._run(settling.bury(self._handle, deliveries, error))

    @operation(Scope.ADMIN, "released", says="released {released:message}")
    def release(self, *deliveries: GivenDeliveries) -> int:
        """Return messages untried: they are redelivered at once; the attempt does not count.

        A consumer that works on one continues with it: its ack then changes nothing. Returns how
        many messages were still held.
        """
        return self._run(settling.release(self._handle, deliveries))

    @operation(Scope.WRITE, "extended", says="extended {extended:message}")
    def extend(self, *deliveries: GivenDeliveries, ack_ms: AckMs) -> int:
        """Extend the deadline: messages are redelivered ``ack_ms`` from now; returns how many."""
        return self._run(settling.extend(self._handle, deliveries, ack_ms))

    @operation(Scope.READ, http="GET", override=("command line",))
    def stats(self) -> QueueStats:
        """Return the state of the queue: counts, rates, settings."""
        return self._run(inspecting.stats(self._handle))

    @operation(Scope.READ, "messages", http="GET messages", override=_BY_HAND)
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

    @operation(Scope.ADMIN, says="{record}", creates=True)
    def configure(
        self,
        *,
        max_attempts: GivenAttempts = None,
        backoff: GivenBackoff = None,
        backoff_ms: GivenBackoffMs = None,
        longest_backoff_ms: LongestBackoffMs = None,
    ) -> QueueSettings:
        """Set how often messages are tried and the delay in between; returns what is in force.

        What is not given stays as it is. After ``max_attempts`` deliveries without an ack (0: no
        limit) a message becomes a dead letter. ``backoff`` is "none", "fixed" or "exponential";
        each message is delayed for a random part of it, between half and all. This applies to
        every consumer, from now on.
        """
        return self._run(
            upkeep.configure(self._handle, max_attempts, backoff, backoff_ms, longest_backoff_ms)
        )

    @operation(Scope.ADMIN, "before", http="PUT limits", creates=True, override=("command line",))
    def limit(self, limits: Limits) -> Limits:
        """Set all limits of the queue; one that is not given is removed. Returns those before.

        ``Limits`` says what each means; they apply to all consumers. Messages of a queue have no
        key: raises InvalidInput for limits per key.
        """
        return self._run(upkeep.limit(self._handle, limits))

    @operation(Scope.ADMIN, "changed", says="paused", says_not="paused already")
    def pause(self) -> bool:
        """Deliver nothing until the queue is resumed; returns whether that changed anything.

        Pushes and acks work.
        """
        return self._run(upkeep.pause(self._handle, True))

    @operation(Scope.ADMIN, "changed", says="runs", says_not="runs already")
    def resume(self) -> bool:
        """Deliver messages again; returns whether the queue was paused."""
        return self._run(upkeep.pause(self._handle, False))

    @operation(Scope.ADMIN, "promoted", says="promoted {promoted:message}")
    def promote(self, messages: GivenMessages) -> int:
        """Deliver delayed messages now, also those that are delayed after a failed attempt.

        They are given as ``peek`` returned them, by their places or by their ids; an id costs a
        look at what is delayed before it. Returns how many were still delayed.
        """
        return self._run(settling.promote(self._handle, messages))

    @operation(Scope.READ, http="GET dead", override=("HTTP", "RESP"))
    def dead(
        self,
        count: ListedLetters = 100,
        *,
        matching: FittingQueueLetters = None,
        max_bytes: ListedBytes = None,
    ) -> list[QueueItem]:
        """Show the oldest dead letters, the messages that were given up; they stay where they are.

        Of those that fit ``matching``: a filter costs a look at every letter before the last one
        that is returned. There are no more once they have ``max_bytes``.
        """
        return self._run(dead_letters.dead(self._handle, count, matching, max_bytes))

    @operation(Scope.ADMIN, "redriven", says="redriven: {redriven}")
    def redrive(
        self,
        letters: GivenQueueLetters = None,
        *,
        count: MovedLetters = None,
        matching: FittingQueueLetters = None,
        rate_per_s: LettersPerS = None,
    ) -> int:
        """Redrive dead letters: they are redelivered, and their attempts are counted from 1 again.

        All, those that fit, or those given as ``dead`` returned them, by their places or by their
        ids; an id costs a look at the letters before it. ``rate_per_s`` of them at most. Returns
        how many.
        """
        box, pace = QueueLetters(self._handle), Pace(rate_per_s)
        return self._run(box.act("redrive", letters, matching, count, pace)).done

    @operation(
        Scope.ADMIN,
        "discarded",
        says="discarded: {discarded}",
        asks="Discard all dead letters of {queue} that fit, of {info.dead}?",
        unless=("ids", "count"),
    )
    def discard(
        self,
        letters: GivenQueueLetters = None,
        *,
        count: MovedLetters = None,
        matching: FittingQueueLetters = None,
        rate_per_s: LettersPerS = None,
    ) -> int:
        """Discard dead letters: those named, those that fit, or all. Returns how many."""
        box, pace = QueueLetters(self._handle), Pace(rate_per_s)
        return self._run(box.act("discard", letters, matching, count, pace)).done

    @operation(
        Scope.ADMIN,
        "purged",
        says="purged {purged:message}",
        asks="Remove all messages of {queue}: {info.ready} ready, {info.delayed} delayed, "
        "{info.unacked} unacked and {info.dead} dead?",
    )
    def purge(self) -> int:
        """Forget all messages, dead letters too; returns how many. Settings stay."""
        return self._run(upkeep.purge(self._handle))

    @operation(
        Scope.ADMIN,
        "deleted",
        says="deleted {queue}",
        asks="Delete {queue} with all messages: {info.ready} ready, {info.delayed} delayed, "
        "{info.unacked} unacked and {info.dead} dead?",
        must=True,
        http="DELETE",
    )
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
