"""Groups for asyncio: the same names over the same operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Literal, Unpack, overload

from headwater.kernel.codecs import D
from headwater.kernel.failures import Failure, LetterFilter
from headwater.kernel.inputs import Duration, Limits, deadline, needed_deadline
from headwater.log import dead_letters, grouping, settling
from headwater.log.handles import GroupHandle, Start
from headwater.log.keys import MAX_LETTERS, MAX_READ
from headwater.log.settling import Letters, Offsets
from headwater.log.types import DeadLetter, GroupInfo, Message, Redriven, WithInfo
from headwater.store.call import Pace

if TYPE_CHECKING:
    from headwater.store.aio_store import AsyncStore
    from headwater.workers.aio_worker import AsyncWorker, AsyncWorkerHandler
    from headwater.workers.sources import GroupWorkerOptions


class AsyncGroup(Generic[D]):
    """One member's view of a consumer group, for asyncio; see Group."""

    def __init__(self, store: AsyncStore, handle: GroupHandle) -> None:
        self._store = store
        self._run = store.run
        self._handle = handle
        self.name = handle.name
        self.member = handle.member
        self.stream = handle.stream.name

    def __repr__(self) -> str:
        return f"AsyncGroup({self.name!r} of {self._handle.stream.name!r})"

    @overload
    async def read(
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
    async def read(
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
    async def read(
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
        """Take up to ``count`` messages that no other member has; see Group.read."""
        asked = self._handle, count, block_ms, deadline(ack_ms, retry_ms), expire_ms, max_bytes
        if with_info:
            known = await self._run(grouping.read_with_info(*asked))
            return WithInfo(self._handle.stream.decoded(known.messages), *known[1:])
        found = await self._run(grouping.read(*asked))
        return self._handle.stream.decoded(found)

    async def ack(self, *offsets: Offsets) -> int:
        """Acknowledge messages, offsets and ranges; returns how many were pending."""
        return await self._run(settling.ack(self._handle, offsets))

    async def nack(self, *offsets: Offsets, delay_ms: Duration = 0) -> int:
        """Reject messages: they are redelivered after ``delay_ms``. Returns how many."""
        return await self._run(settling.nack(self._handle, offsets, delay_ms))

    async def fail(self, *failures: Failure) -> int:
        """Report failed attempts, each with its error, and a delay or None to give up.

        Returns how many messages were still pending in the attempt that failed; the others do not
        change. Workers call this.
        """
        return await self._run(dead_letters.fail(self._handle, failures))

    async def release(self, *offsets: Offsets) -> int:
        """Return messages untried: they are redelivered at once; the attempt does not count."""
        return await self._run(dead_letters.release(self._handle, offsets))

    async def extend(
        self, *offsets: Offsets, ack_ms: Duration | None = None, retry_ms: Duration | None = None
    ) -> int:
        """Extend the deadline: messages are redelivered ``ack_ms`` from now; returns how many."""
        held_ms = needed_deadline(ack_ms, retry_ms)
        return await self._run(settling.extend(self._handle, offsets, held_ms))

    async def seek(self, offset: Start) -> int:
        """Set the position of the group and return it: all before is done, the rest is new."""
        return await self._run(grouping.seek(self._handle, offset))

    async def pause(self) -> bool:
        """Deliver nothing until ``resume``; acks continue. Returns whether that changed anything.

        Members that read get nothing, and blocked ones wait. What expires is still given up.
        """
        return await self._run(grouping.pause(self._handle, True))

    async def resume(self) -> bool:
        """Deliver messages again; returns whether the group was paused."""
        return await self._run(grouping.pause(self._handle, False))

    async def info(self) -> GroupInfo:
        """Return the state of the group; raises UnknownGroup before its first read."""
        return await self._run(grouping.info(self._handle))

    async def dead(
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
        return await self._run(dead_letters.dead(self._handle, count, matching, max_bytes))

    async def redrive(
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
        return await self._run(
            dead_letters.redrive(self._handle, letters, matching, count, Pace(rate_per_s))
        )

    async def discard(
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
        return await self._run(
            dead_letters.discard(self._handle, letters, matching, count, Pace(rate_per_s))
        )

    async def bury(self, *messages: Offsets, error: BaseException | str | None = None) -> int:
        """Make dead letters of messages or offsets; without any, of what has expired by now.

        ``error`` says why; its type and the first 1000 characters of its text are kept. Returns how
        many messages were given up. What expires is given up by reads and ``headwater keep``, too.
        Raises InvalidInput when the group keeps no dead letters.
        """
        return await self._run(dead_letters.bury(self._handle, messages, error))

    async def remove(self) -> bool:
        """Remove the group; retention no longer waits for it. Returns whether it existed."""
        return await self._run(grouping.remove(self._handle))

    async def limit(self, limits: Limits) -> Limits:
        """Set what the group may deliver, to all members; returns the limits before."""
        return await self._run(grouping.limit(self._handle, limits))

    def keep_order(self, owned: Callable[[], list[int]] | None = None) -> None:
        """Have the group keep the order of each tag from its next read on; workers call this.

        ``owned`` returns the offsets of messages that this member has and orders itself: then
        messages after them may be delivered to it, too.
        """
        self._handle.keep_order(owned)

    def worker(
        self, **options: Unpack[GroupWorkerOptions]
    ) -> Callable[[AsyncWorkerHandler[D]], AsyncWorker]:
        """Make a worker of the function below it, which gets one message at a time.

        See Group.worker.
        """
        from headwater.workers.aio_worker import AsyncWorker
        from headwater.workers.sources import check_options

        check_options(AsyncWorker, options)
        return lambda handler: AsyncWorker(self, handler, **options)
