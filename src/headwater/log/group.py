# Generated from aio_group.py by `make derived`, which renews it: change that file.
"""Groups for blocking code: thin shells over the operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Literal, Unpack, overload

from headwater.kernel.codecs import D
from headwater.kernel.declaring import Scope, operation
from headwater.kernel.failures import Failure, GivenCause, LetterFilter
from headwater.kernel.inputs import AckMs, DelayMs, Duration, Limits, deadline
from headwater.log import dead_letters, grouping, settling
from headwater.log.handles import GroupHandle, Position
from headwater.log.keys import MAX_LETTERS, MAX_READ
from headwater.log.settling import GivenOffsets, Letters
from headwater.log.types import DeadLetter, GroupInfo, Message, Redriven, WithInfo
from headwater.store.call import Pace

if TYPE_CHECKING:
    from headwater.store.store import Store
    from headwater.workers.sources import GroupWorkerOptions
    from headwater.workers.worker import Worker, WorkerHandler


class Group(Generic[D]):
    """One member's view of a consumer group."""

    def __init__(self, store: Store, handle: GroupHandle) -> None:
        self._store = store
        self._run = store.run
        self._handle = handle
        self.name = handle.name
        self.member = handle.member
        self.stream = handle.stream.name

    def __repr__(self) -> str:
        return f"Group({self.name!r} of {self._handle.stream.name!r})"

    @overload
    def read(
        self,
        count: int,
        *,
        block_ms: Duration | float | None = None,
        ack_ms: Duration | None = None,
        retry_ms: Duration | None = None,
        expire_ms: Duration | None = None,
        with_info: Literal[False] = False,
        max_bytes: int | None = None,
    ) -> list[Message[D]]: ...
    @overload
    def read(
        self,
        count: int,
        *,
        block_ms: Duration | float | None = None,
        ack_ms: Duration | None = None,
        retry_ms: Duration | None = None,
        expire_ms: Duration | None = None,
        with_info: Literal[True],
        max_bytes: int | None = None,
    ) -> WithInfo[Message[D]]: ...
    def read(
        self,
        count: int,
        *,
        block_ms: Duration | float | None = None,
        ack_ms: Duration | None = None,
        retry_ms: Duration | None = None,
        expire_ms: Duration | None = None,
        with_info: bool = False,
        max_bytes: int | None = None,
    ) -> list[Message[D]] | WithInfo[Message[D]]:
        """Take up to ``count`` messages that no other member has.

        With ``ack_ms`` each must be acknowledged within that time, or it is redelivered, to any
        member, with a higher ``attempt`` (at least once). ``expire_ms`` after its first delivery it
        is given up. Without ``ack_ms`` there is nothing to acknowledge (at most once). ``block_ms``
        waits; blocked members are served in turn. ``retry_ms`` is another name of ``ack_ms``.
        ``with_info`` returns also the first and last offset that the stream holds. The read takes
        no more once its messages have ``max_bytes``: it returns fewer, one at least.
        """
        asked = self._handle, count, block_ms, deadline(ack_ms, retry_ms), expire_ms, max_bytes
        if with_info:
            known = self._run(grouping.read_with_info(*asked))
            return WithInfo(self._handle.stream.decoded(known.messages), *known[1:])
        found = self._run(grouping.read(*asked))
        return self._handle.stream.decoded(found)

    @operation(Scope.WRITE, "acked", says="acknowledged {acked:pending message}")
    def ack(self, *offsets: GivenOffsets) -> int:
        """Acknowledge messages: they are done. Returns how many were pending.

        They are given as such, by offset, or by range, which is a ``range`` or a pair (start, end)
        with both ends included; iterables of them are taken, too. Raises UnknownGroup.
        """
        return self._run(settling.ack(self._handle, offsets))

    @operation(Scope.WRITE, "nacked", says="returned {nacked:pending message}")
    def nack(self, *offsets: GivenOffsets, delay_ms: DelayMs = 0) -> int:
        """Reject messages: they are redelivered after ``delay_ms``. Returns how many."""
        return self._run(settling.nack(self._handle, offsets, delay_ms))

    def fail(self, *failures: Failure) -> int:
        """Report failed attempts, each with its error, and a delay or None to give up.

        Returns how many messages were still pending in the attempt that failed; the others do not
        change. Workers call this.
        """
        return self._run(dead_letters.fail(self._handle, failures))

    @operation(Scope.WRITE, "released", says="released {released:pending message}")
    def release(self, *offsets: GivenOffsets) -> int:
        """Return messages untried: they are redelivered at once; the attempt does not count."""
        return self._run(dead_letters.release(self._handle, offsets))

    @operation(Scope.WRITE, "extended", says="extended {extended:pending message}")
    def extend(self, *offsets: GivenOffsets, ack_ms: AckMs) -> int:
        """Extend the deadline: messages are redelivered ``ack_ms`` from now; returns how many."""
        return self._run(settling.extend(self._handle, offsets, ack_ms))

    @operation(Scope.ADMIN, "next", says="{group} reads on at {next}")
    def seek(self, offset: Position) -> int:
        """Set the position of the group and return it: all before is done, the rest is new."""
        return self._run(grouping.seek(self._handle, offset))

    @operation(Scope.ADMIN, "changed", says="paused", says_not="paused already")
    def pause(self) -> bool:
        """Deliver nothing until the group is resumed; returns whether that changed anything.

        Members that read get nothing, and blocked ones wait; acknowledgements continue. What
        expires is still given up.
        """
        return self._run(grouping.pause(self._handle, True))

    @operation(Scope.ADMIN, "changed", says="runs", says_not="runs already")
    def resume(self) -> bool:
        """Deliver messages again; returns whether the group was paused."""
        return self._run(grouping.pause(self._handle, False))

    def info(self) -> GroupInfo:
        """Return the state of the group; raises UnknownGroup before its first read."""
        return self._run(grouping.info(self._handle))

    def dead(
        self,
        count: int = 100,
        *,
        matching: LetterFilter | None = None,
        max_bytes: int | None = None,
    ) -> list[DeadLetter]:
        """Return the oldest dead letters, of those that fit ``matching``; they stay where they are.

        A filter costs a look at every letter before the last one that is returned. There are no
        more once they have ``max_bytes``.
        """
        return self._run(dead_letters.dead(self._handle, count, matching, max_bytes))

    def redrive(
        self,
        count: int = MAX_READ,
        *,
        letters: Letters | None = None,
        matching: LetterFilter | None = None,
        rate_per_s: int | None = None,
    ) -> Redriven:
        """Have dead letters redelivered, at once and as if they had never been tried.

        The oldest, those that fit ``matching``, or ``letters`` as ``dead`` returned them or by the
        offsets that the messages have. Those of messages that the stream no longer holds stay.
        ``rate_per_s`` limits how many per second.
        """
        return self._run(
            dead_letters.redrive(self._handle, letters, matching, count, Pace(rate_per_s))
        )

    def discard(
        self,
        letters: Letters | None = None,
        *,
        count: int = MAX_LETTERS,
        matching: LetterFilter | None = None,
        rate_per_s: int | None = None,
    ) -> int:
        """Forget dead letters: these, the oldest, or those that fit; returns how many.

        They are given as ``dead`` returned them, or by the offsets that the messages had. What they
        hold stays in the stream of the dead letters, until its retention removes it.
        """
        return self._run(
            dead_letters.discard(self._handle, letters, matching, count, Pace(rate_per_s))
        )

    @operation(Scope.WRITE, "buried", says="gave up {buried:message}")
    def bury(self, *messages: GivenOffsets, error: GivenCause = None) -> int:
        """Give messages up: they become dead letters. Returns how many.

        Without any, those are given up that have expired by now. ``error`` says why; its type and
        the first 1000 characters of its text are kept. What expires is given up by reads and
        ``headwater keep``, too. Raises InvalidInput when the group keeps no dead letters.
        """
        return self._run(dead_letters.bury(self._handle, messages, error))

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
        return self._run(grouping.remove(self._handle))

    @operation(
        Scope.ADMIN, "before", known=True, http="PUT limits", override=("command line", "RESP")
    )
    def limit(self, limits: Limits) -> Limits:
        """Set what the group may deliver, to all members; returns the limits before.

        ``Limits`` says what each means; what it does not limit is not limited any more. They apply
        from now on, also to messages that members already have.
        """
        return self._run(grouping.limit(self._handle, limits))

    def keep_order(self, owned: Callable[[], list[int]] | None = None) -> None:
        """Have the group keep the order of each tag from its next read on; workers call this.

        ``owned`` returns the offsets of messages that this member has and orders itself: then
        messages after them may be delivered to it, too.
        """
        self._handle.keep_order(owned)

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
