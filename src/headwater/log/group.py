# Generated from aio_group.py by `make derived`, which renews it: change that file.
"""Groups for blocking code, of streams and of topics: thin shells over the operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack, overload

from headwater.kernel.codecs import D
from headwater.kernel.declaring import Scope, operation
from headwater.kernel.failures import Failure, GivenCause
from headwater.kernel.inputs import AckMs, DelayMs, Duration, Limits, check_ms
from headwater.log import dead_letters, grouping, settling
from headwater.log.dead_letters import GroupLetters
from headwater.log.handles import GroupHandle, Position, total
from headwater.log.settling import GivenLetters, GivenOffsets, failures_by_partition
from headwater.log.types import DeadLetter, GroupInfo, Message, Redriven, WithInfo
from headwater.store.call import Operation, Pace
from headwater.store.letters import (
    FittingLetters,
    LettersPerS,
    ListedBytes,
    ListedLetters,
    MovedLetters,
)

if TYPE_CHECKING:
    from headwater.log.topics import TopicGroupHandle
    from headwater.store.store import Store
    from headwater.workers.sources import GroupWorkerOptions
    from headwater.workers.worker import Worker, WorkerHandler

# A message, what a read returns with the bounds, and what names messages.
M = TypeVar("M")
Bounded = TypeVar("Bounded")
Given = TypeVar("Given")


class AnyGroup(Generic[M, Bounded, Given]):
    """What a group of a stream and a group over a topic have in common.

    An operation of a topic is done in one partition after the other, in those that it is about, and
    what it returns is merged. It may be repeated after a failure: the error names the partition.
    """

    _handle: GroupHandle | TopicGroupHandle
    _read: Callable[..., Operation[Any]]
    _decoded: Callable[[list[Any]], list[M]]
    _bounded: Callable[..., Bounded]

    def __init__(self, store: Store, handle: GroupHandle | TopicGroupHandle) -> None:
        self._store = store
        self._run = store.run
        self.name = handle.name
        self.member = handle.member

    @overload
    def read(
        self,
        count: int,
        *,
        block_ms: Duration | float | None = None,
        ack_ms: Duration | None = None,
        expire_ms: Duration | None = None,
        with_info: Literal[False] = False,
        max_bytes: int | None = None,
    ) -> list[M]: ...
    @overload
    def read(
        self,
        count: int,
        *,
        block_ms: Duration | float | None = None,
        ack_ms: Duration | None = None,
        expire_ms: Duration | None = None,
        with_info: Literal[True],
        max_bytes: int | None = None,
    ) -> Bounded: ...
    def read(
        self,
        count: int,
        *,
        block_ms: Duration | float | None = None,
        ack_ms: Duration | None = None,
        expire_ms: Duration | None = None,
        with_info: bool = False,
        max_bytes: int | None = None,
    ) -> list[M] | Bounded:
        """Take up to ``count`` messages that no other member has.

        With ``ack_ms`` each must be acknowledged within that time, or it is redelivered, to any
        member, with a higher ``attempt`` (at least once). ``expire_ms`` after its first delivery it
        is given up. Without ``ack_ms`` there is nothing to acknowledge (at most once). ``block_ms``
        waits; blocked members are served in turn. ``with_info`` returns
        also the first and last offset that the stream, or each partition, holds. The read takes no
        more once its messages have ``max_bytes``: it returns fewer, one at least.
        """
        taken = self._run(
            self._read(
                self._handle, count, block_ms, ack_ms, expire_ms, max_bytes, with_info=with_info
            )
        )
        messages = self._decoded(taken.messages)
        return self._bounded(messages, taken.first, taken.last) if with_info else messages

    @operation(Scope.WRITE, "acked", says="acknowledged {acked:pending message}")
    def ack(self, *offsets: Given) -> int:
        """Acknowledge messages: they are done. Returns how many were pending.

        They are given as such, by offset, or by range, which is a ``range`` or a pair (start, end)
        with both ends included; of a topic, as (partition, offset) pairs, or as {partition:
        offsets}. Iterables of them are taken, too. Raises UnknownGroup.
        """
        return self._run(self._handle.settle(offsets, settling.ack))

    @operation(Scope.WRITE, "nacked", says="returned {nacked:pending message}")
    def nack(self, *offsets: Given, delay_ms: DelayMs = 0) -> int:
        """Reject messages: they are redelivered after ``delay_ms``. Returns how many."""
        act = partial(settling.nack, delay_ms=check_ms(delay_ms, "delay_ms"))
        return self._run(self._handle.settle(offsets, act))

    def fail(self, *failures: Failure) -> int:
        """Report failed attempts, each with its error, and a delay or None to give up.

        Returns how many messages were still pending in the attempt that failed; the others do not
        change. Workers call this.
        """
        settled = self._handle.settle(failures, dead_letters.fail, failures_by_partition)
        return self._run(settled)

    @operation(Scope.WRITE, "released", says="released {released:pending message}")
    def release(self, *offsets: Given) -> int:
        """Return messages untried: they are redelivered at once; the attempt does not count."""
        return self._run(self._handle.settle(offsets, dead_letters.release))

    @operation(Scope.WRITE, "extended", says="extended {extended:pending message}")
    def extend(self, *offsets: Given, ack_ms: AckMs) -> int:
        """Extend the deadline: messages are redelivered ``ack_ms`` from now; returns how many."""
        act = partial(settling.extend, ack_ms=check_ms(ack_ms, "ack_ms", 1))
        return self._run(self._handle.settle(offsets, act))

    @operation(Scope.WRITE, "buried", says="gave up {buried:message}")
    def bury(self, *messages: Given, error: GivenCause = None) -> int:
        """Give messages up: they become dead letters. Returns how many.

        Without any, those are given up that have expired by now. ``error`` says why; its type and
        the first 1000 characters of its text are kept. What expires is given up by reads and
        ``headwater keep``, too. Raises InvalidInput when the group keeps no dead letters.
        """
        act = partial(dead_letters.bury, error=error)
        if messages:
            return self._run(self._handle.settle(messages, act))
        return self._run(self._handle.across(total, partial(act, offsets=())))

    @operation(Scope.ADMIN, "changed", says="paused", says_not="paused already")
    def pause(self) -> bool:
        """Deliver nothing until the group is resumed; returns whether that changed anything.

        Members that read get nothing, and blocked ones wait; acknowledgements continue. What
        expires is still given up.
        """
        return self._run(self._handle.across(any, partial(grouping.pause, on=True)))

    @operation(Scope.ADMIN, "changed", says="runs", says_not="runs already")
    def resume(self) -> bool:
        """Deliver messages again; returns whether the group was paused."""
        return self._run(self._handle.across(any, partial(grouping.pause, on=False)))

    @operation(
        Scope.ADMIN,
        "removed",
        says="removed {group}",
        asks="Remove {group}, its position and {info.pending} pending messages?",
        must=True,
        http="DELETE",
        command="remove-group",
    )
    def remove(self) -> bool:
        """Remove the group; retention no longer waits for it. Returns whether it existed."""
        return self._run(self._handle.across(any, grouping.remove))

    @operation(Scope.ADMIN, "before", known=True, http="PUT limits", override=("command line",))
    def limit(self, limits: Limits) -> Limits:
        """Set all limits of the group; one that is not given is removed. Returns those before.

        ``Limits`` says what each means. They apply to all members from now on, also to messages
        that members already have. Raises InvalidInput for limits in all of a group over a topic,
        which cannot be enforced: partitions may be on several servers.
        """
        self._handle.check_limits(limits)
        act = partial(grouping.limit, limits=limits)
        return self._run(self._handle.across(grouping.limits_of_all, act))

    def keep_order(self, owned: Callable[[], list[Any]] | None = None) -> None:
        """Have the group keep the order of each tag from its next read on; workers call this.

        ``owned`` returns the offsets of messages that this member has and orders itself, of a topic
        with their partitions: then messages after them may be delivered to it, too.
        """
        self._handle.keep_order(owned)


class Group(AnyGroup[Message[D], WithInfo[Message[D]], GivenOffsets], Generic[D]):
    """One member's view of a consumer group."""

    _handle: GroupHandle

    def __init__(self, store: Store, handle: GroupHandle) -> None:
        super().__init__(store, handle)
        self._handle = handle
        self._read = grouping.read
        self._decoded = handle.stream.decoded
        self._bounded = WithInfo
        self.stream = handle.stream.name

    def __repr__(self) -> str:
        return f"Group({self.name!r} of {self.stream!r})"

    @operation(Scope.ADMIN, "next", says="{group} reads on at {next}")
    def seek(self, offset: Position) -> int:
        """Set the position of the group and return it: all before is done, the rest is new."""
        return self._run(grouping.seek(self._handle, offset))

    def info(self) -> GroupInfo:
        """Return the state of the group; raises UnknownGroup before its first read."""
        return self._run(grouping.info(self._handle))

    @operation(Scope.READ, http="GET dead", override=("HTTP", "RESP"))
    def dead(
        self,
        count: ListedLetters = 100,
        *,
        matching: FittingLetters = None,
        max_bytes: ListedBytes = None,
    ) -> list[DeadLetter]:
        """Show the oldest dead letters, the messages that were given up; they stay where they are.

        Of those that fit ``matching``: a filter costs a look at every letter before the last one
        that is returned. There are no more once they have ``max_bytes``.
        """
        return self._run(dead_letters.dead(self._handle, count, matching, max_bytes))

    @operation(Scope.ADMIN, says="redriven: {record}")
    def redrive(
        self,
        count: MovedLetters = None,
        *,
        letters: GivenLetters = None,
        matching: FittingLetters = None,
        rate_per_s: LettersPerS = None,
    ) -> Redriven:
        """Redrive dead letters: they are redelivered, and their attempts are counted from 1 again.

        The oldest, a million at most, those that fit ``matching``, or ``letters`` as ``dead``
        returned them or by the offsets that the messages have. Those of messages that the stream no
        longer holds stay. ``rate_per_s`` limits how many per second.
        """
        box, pace = GroupLetters(self._handle), Pace(rate_per_s)
        return Redriven(*self._run(box.act("redrive", letters, matching, count, pace)))

    @operation(
        Scope.ADMIN,
        "discarded",
        says="discarded: {discarded}",
        asks="Discard all dead letters of {group} that fit, of {info.dead}?",
        unless=("offsets", "count"),
    )
    def discard(
        self,
        letters: GivenLetters = None,
        *,
        count: MovedLetters = None,
        matching: FittingLetters = None,
        rate_per_s: LettersPerS = None,
    ) -> int:
        """Discard dead letters: those named, those that fit, or all. Returns how many.

        They are given as ``dead`` returned them, or by the offsets that the messages had. What they
        hold stays in the stream of the dead letters, until its retention removes it.
        """
        box, pace = GroupLetters(self._handle), Pace(rate_per_s)
        return self._run(box.act("discard", letters, matching, count, pace)).done

    def worker(self, **options: Unpack[GroupWorkerOptions]) -> Callable[[WorkerHandler[D]], Worker]:
        """Make a worker of the function below it, which gets one message at a time.

        @hw.stream("jobs").group("mailers").worker(concurrency=8)
        def send(message): ...

        send.run()
        """
        from headwater.workers.sources import check_options
        from headwater.workers.worker import Worker

        check_options(Worker, options)
        return lambda handler: Worker(self, handler, **options)
