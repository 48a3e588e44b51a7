"""What ``connect`` returns: one connected store, and the objects that live in it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, Self, overload

from headwater.errors import BrokenObject, StoreError, UnreadableNode
from headwater.kernel.codecs import AnyCodec, Value, ValueCodec, coder_of
from headwater.kernel.inputs import Duration, check_ms
from headwater.kernel.profiles import store_of
from headwater.log.keys import list_deleted, list_streams, list_topics
from headwater.store.aio_store import AsyncStore
from headwater.store.call import Pace
from headwater.store.faults import Refusal, fault_of_one
from headwater.whole_store.members import member_name

# Each data type is imported with its first use: a process that only reads a stream, such as those
# that Spark starts, imports no other, and a command on queues does without Arrow.
if TYPE_CHECKING:
    from headwater.ick.aio_ick import AsyncIck, AsyncIckChannel
    from headwater.ick.types import KeptChannel
    from headwater.kernel.failures import LetterFilter
    from headwater.log.aio_stream import AsyncStream
    from headwater.log.aio_topic import AsyncTopic
    from headwater.log.handles import StreamHandle
    from headwater.log.replaying import Replayed
    from headwater.log.retention import Kept
    from headwater.queue.aio_queue import AsyncQueue
    from headwater.queue.types import KeptQueue
    from headwater.store.letters import LetterAction
    from headwater.store.presence import ServerJob
    from headwater.store.scrubbing import Checks, ScrubProgress, ScrubReport, StoreKind
    from headwater.whole_store.letters import LettersMoved
    from headwater.whole_store.scrubbing import RepairReport, ScrubRun

ASYNC: Final = True  # the twin has what is under else

log = logging.getLogger("headwater.client")


class AsyncHeadwater:
    """A connected store; close it, or use it in ``async with``.

    An async one belongs to one event loop; one for blocking code may be shared between threads.
    """

    if ASYNC:

        def __init__(self, store: AsyncStore) -> None:
            self._use(store)

    else:

        def __init__(self, url: str | None = None, *, wait_ms: Duration | None = None) -> None:
            self._use(AsyncStore.open(url, wait_s=_seconds(wait_ms)))

    def _use(self, store: AsyncStore) -> None:
        self.store = store
        self._member = member_name(store.token())
        # What was told the registry of names; the handles of all objects share it.
        self._registered: set[str] = set()

    def __repr__(self) -> str:
        # It may have failed to connect.
        store = getattr(self, "store", None)
        return f"AsyncHeadwater({'not connected' if store is None else repr(store.where)})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @overload
    def stream(self, name: str, *, codec: None = None) -> AsyncStream: ...
    @overload
    def stream(self, name: str, *, codec: Literal["json"]) -> AsyncStream[Any]: ...
    @overload
    def stream(self, name: str, *, codec: ValueCodec[Value]) -> AsyncStream[Value]: ...
    def stream(self, name: str, *, codec: AnyCodec[Any] | None = None) -> AsyncStream[Any]:
        """Return the stream of that name; it need not exist yet.

        ``codec`` says what its values are: "json", a type such as a dataclass, a Struct or a
        Pydantic model, or a pair of functions (encode, decode). Writes then take such values, and
        ``data`` of a message is one. Without a codec, values are bytes.
        """
        from headwater.log.aio_stream import AsyncStream

        return AsyncStream(self.store, self._handle_of(name, codec), self._member)

    def _handle_of(self, stream: str, codec: AnyCodec[Any] | None = None) -> StreamHandle:
        from headwater.log.handles import StreamHandle

        return StreamHandle(stream, self._registered, coder_of(codec))

    @overload
    def topic(
        self, name: str, partitions: int | None = None, *, codec: None = None
    ) -> AsyncTopic: ...
    @overload
    def topic(
        self, name: str, partitions: int | None = None, *, codec: Literal["json"]
    ) -> AsyncTopic[Any]: ...
    @overload
    def topic(
        self, name: str, partitions: int | None = None, *, codec: ValueCodec[Value]
    ) -> AsyncTopic[Value]: ...
    def topic(
        self, name: str, partitions: int | None = None, *, codec: AnyCodec[Any] | None = None
    ) -> AsyncTopic[Any]:
        """Return the topic of that name; the first to open it decides how many partitions it has.

        Without ``partitions``: what the topic has, or 8 for a new one. An async client opens it
        with its first use. Raises PartitionMismatch. For ``codec`` see ``stream``.
        """
        from headwater.log.aio_topic import AsyncTopic
        from headwater.log.topics import TopicHandle

        handle = TopicHandle(name, partitions, self._registered, coder_of(codec))
        if not ASYNC:
            self.store.run(handle.open())
        return AsyncTopic(self.store, handle, self._member)

    @overload
    def queue(self, name: str, *, codec: None = None) -> AsyncQueue: ...
    @overload
    def queue(self, name: str, *, codec: Literal["json"]) -> AsyncQueue[Any]: ...
    @overload
    def queue(self, name: str, *, codec: ValueCodec[Value]) -> AsyncQueue[Value]: ...
    def queue(self, name: str, *, codec: AnyCodec[Any] | None = None) -> AsyncQueue[Any]:
        """Return the queue of that name; it need not exist yet. For ``codec`` see ``stream``."""
        from headwater.queue.aio_queue import AsyncQueue
        from headwater.queue.handles import QueueHandle

        handle = QueueHandle(name, self._registered, self._member, coder_of(codec))
        return AsyncQueue(self.store, handle)

    def ick(self, name: str) -> AsyncIck:
        """Return the Ick under that key, which is the same for redis-ick; it need not exist yet."""
        from headwater.ick.aio_ick import AsyncIck
        from headwater.ick.single import IckHandle

        return AsyncIck(self.store, IckHandle(name, self.store.kind != "cluster"))

    def ick_channel(
        self,
        name: str,
        shards: int | None = None,
        *,
        consumer: str | None = None,
        ack_ms: Duration | None = None,
    ) -> AsyncIckChannel:
        """Return a consumer's view of the channel of that name; its first use creates the channel.

        ``shards`` is for a new channel, 8 without it; an existing channel keeps its own number.
        ``consumer`` names who reserves by this object; without it each has a name of its own.
        ``ack_ms`` is how long a shard stays leased to a consumer that sends nothing, 30 s without
        it.
        """
        from headwater.ick.aio_ick import AsyncIckChannel
        from headwater.ick.channels import LEASE_MS, ChannelHandle

        if consumer is None:
            consumer = f"{self._member}.{self.store.token()}"
        held_ms = LEASE_MS if ack_ms is None else ack_ms
        handle = ChannelHandle(name, shards, consumer, held_ms, self._registered)
        return AsyncIckChannel(self.store, handle)

    async def ick_channels(self) -> list[str]:
        """Return the names of all channels, sorted."""
        from headwater.ick.channels import list_channels

        return await self.store.run(list_channels())

    async def streams(self) -> list[str]:
        """Return the names of all streams, sorted."""
        return await self.store.run(list_streams())

    async def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return await self.store.run(list_topics())

    async def queues(self) -> list[str]:
        """Return the names of all queues, sorted."""
        from headwater.queue.handles import list_queues

        return await self.store.run(list_queues())

    async def keep(self, *streams: str) -> list[Kept]:
        """Do the housekeeping of the named streams, or of all, once; returns what was done to each.

        Seals, expires messages, applies retention, compacts where asked for, and forgets producers
        and members that are gone. Any number of clients may do it at once. Without names, it keeps
        queues and channels as well, as ``keep_queues`` and ``keep_channels`` do.
        """
        from headwater.log import retention

        if not streams:
            others: list[Kept | KeptQueue | KeptChannel] = [*await self.keep_queues()]
            others += await self.keep_channels()
            for name in await self.store.run(list_deleted()):
                others.append(await self._free(name))
            for fault in filter(None, [kept.fault for kept in others]):
                log.error("%s", fault)
        names = streams or await self.streams()
        return [await self.store.run(retention.keep(self._handle_of(name))) for name in names]

    async def _free(self, deleted: str) -> Kept:
        """Free a part of what a deleted stream leaves."""
        from headwater.log.retention import Kept, free

        try:
            await self.store.run(free(self._handle_of(deleted)))
        except Exception as error:  # noqa: BLE001  whatever it is, other streams can be kept
            return Kept(deleted, fault=fault_of_one(error))
        return Kept(deleted)

    async def keep_channels(self, *channels: str) -> list[KeptChannel]:
        """Continue changes of the number of shards, of the named channels or of all.

        Returns the state of each change that is under way; consumers continue it as they reserve.
        """
        from headwater.ick.channels import LEASE_MS, ChannelHandle, finish_change
        from headwater.ick.types import KeptChannel

        kept = []
        for name in channels or await self.ick_channels():
            handle = ChannelHandle(name, None, self._member, LEASE_MS, self._registered)
            try:
                layout = await self.store.run(finish_change(handle))
            except Exception as error:  # noqa: BLE001  whatever it is, the others can be kept
                kept.append(KeptChannel(name, False, 0, fault_of_one(error)))
                continue
            if layout is not None:
                kept.append(KeptChannel(name, layout.settled, layout.leases))
        return kept

    async def keep_queues(self, *queues: str) -> list[KeptQueue]:
        """Do the housekeeping of the named queues, or of all, once; returns what was done to each.

        Messages that were not acknowledged in time are redelivered or become dead letters, and
        those past their time to live are dropped. A pop does the same; this is for queues that
        nobody pops.
        """
        from headwater.queue import upkeep
        from headwater.queue.handles import QueueHandle

        handles = [
            QueueHandle(name, self._registered, self._member)
            for name in queues or await self.queues()
        ]
        return [await self.store.run(upkeep.keep(handle)) for handle in handles]

    async def scrub(
        self,
        *names: str,
        kinds: Collection[StoreKind] = (),
        rate_mb_s: float | None = None,
        progress: Callable[[ScrubProgress], object] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> ScrubReport:
        """Read all of the store, or the named objects, and report what is damaged or contradictory.

        It changes nothing, and works while the store is in use. ``kinds`` chooses kinds of
        objects; ``rate_mb_s`` bounds how much is read in a second; ``progress`` is called before
        each object; once ``stop`` returns True it ends, with what it has seen.
        """
        from headwater.whole_store.scrubbing import ScrubRun

        run = ScrubRun(names, kinds, rate_mb_s, progress, stop, self.store.clock)
        await self._run_checks(run, run.checks())
        return run.scrub_report()

    async def repair(
        self,
        *names: str,
        kinds: Collection[StoreKind] = (),
        dry_run: bool = True,
        progress: Callable[[ScrubProgress], object] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> RepairReport:
        """Repair what a scrub reports, as far as it can be, unless it is a dry run.

        Each repair is one step on the condition that the object still is as it was seen, so that
        the store may be in use. Damaged bytes cannot be repaired; each defect names the way out.
        """
        from headwater.whole_store.scrubbing import ScrubRun

        run = ScrubRun(names, kinds, None, progress, stop, self.store.clock)
        await self._run_checks(run, run.repairs(dry_run))
        return run.repair_report()

    async def _run_checks(self, run: ScrubRun, checks: Checks[None]) -> None:
        with suppress(StopIteration):
            operation = next(checks)
            while not run.pace.stopped:
                for pause_s in run.pace.pauses():
                    await asyncio.sleep(pause_s)
                try:
                    reply = await self.store.run(operation)
                except (Refusal, StoreError, UnreadableNode) as error:
                    operation = checks.throw(run.explained(error, self.store.where))
                else:
                    operation = checks.send(reply)

    async def replay(
        self,
        source: str,
        into: str | None = None,
        *,
        first: int | None = None,
        last: int | None = None,
        speed: float | None = None,
        group: str | None = None,
        producer: str | None = None,
        progress: Callable[[Replayed], object] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Replayed:
        """Copy first..last of a stream into another one, as fast as can be or at a speed.

        ``speed`` 1 keeps the distances in time, 10 is ten times as fast. ``group`` creates a
        sandbox group that begins with the first copy; without ``into``, in a stream that is named
        after the source. A replay that is ended in any way continues where it was when it is
        repeated, and writes nothing twice: by ``producer``, which is the same for the same range
        and speed unless it is given. ``progress`` is called with each part; once ``stop`` returns
        True it ends. Raises UnknownStream and InvalidInput.
        """
        from headwater.log.replaying import ReplayRequest, ReplayRun

        asked = ReplayRequest(source, into, first, last, speed, group, producer)
        run = ReplayRun(asked, self._handle_of, progress, stop, self.store.clock)
        while not run.over:
            for pause_s in run.pauses():
                await asyncio.sleep(pause_s)
            if not run.over:
                await self.store.run(run.step())
        return run.report()

    async def redrive_everywhere(
        self,
        *names: str,
        matching: LetterFilter | None = None,
        rate_per_s: int | None = None,
    ) -> LettersMoved:
        """Have the dead letters of all groups and queues redelivered, as if never tried.

        ``names`` are those of streams and queues, in which ``*`` stands for any text; without them
        all are meant. ``matching`` chooses letters. With ``rate_per_s`` it lasts: so many a second
        at most. Letters of messages that a stream no longer holds stay.
        """
        return await self._move_letters("redrive", names, matching, rate_per_s)

    async def discard_everywhere(
        self,
        *names: str,
        matching: LetterFilter | None = None,
        rate_per_s: int | None = None,
    ) -> LettersMoved:
        """Discard the dead letters of all groups and queues; see ``redrive_everywhere``."""
        return await self._move_letters("discard", names, matching, rate_per_s)

    async def _move_letters(
        self,
        action: LetterAction,
        names: tuple[str, ...],
        matching: LetterFilter | None,
        rate_per_s: int | None,
    ) -> LettersMoved:
        from headwater.whole_store.letters import move_everywhere

        return await self.store.run(move_everywhere(action, names, matching, Pace(rate_per_s)))

    async def jobs(self) -> list[ServerJob]:
        """Return the jobs of servers: redrives, replays, scrubs; those under way come first.

        A store knows those under way and the last hundred that have ended.
        """
        from headwater.store.presence import all_jobs

        return await self.store.run(all_jobs())

    async def stop_job(self, job: str) -> bool:
        """Have a job of a server stopped; False when it has ended, or there is none of that id.

        One that waits is taken back whole, one that runs leaves the rest. The server that has it
        ends it within about a second; one that no server has is ended by the next.
        """
        from headwater.store.presence import stop_job

        return await self.store.run(stop_job(job))

    async def close(self) -> None:
        """Close the connections; an embedded server ends when its last user is gone."""
        await self.store.close()


def _seconds(wait_ms: Duration | None) -> float | None:
    """Return the seconds to wait for a store that does not answer; None: as calls do."""
    return None if wait_ms is None else check_ms(wait_ms, "wait_ms") / 1000


if ASYNC:
    _NOT_CONNECTED = (
        "headwater.aio.connect() is not connected yet; write `hw = await headwater.aio.connect()` "
        "or `async with headwater.aio.connect() as hw:`"
    )

    class _Connecting:
        """A connection in the making: await it, or use it in ``async with``."""

        def __init__(self, url: str | None, wait_ms: Duration | None) -> None:
            self._url = url
            self._wait_s = _seconds(wait_ms)
            self._made: AsyncHeadwater | None = None

        async def _connect(self) -> AsyncHeadwater:
            return AsyncHeadwater(await AsyncStore.open(self._url, wait_s=self._wait_s))

        def __await__(self) -> Generator[Any, None, AsyncHeadwater]:
            return self._connect().__await__()

        async def __aenter__(self) -> AsyncHeadwater:
            self._made = await self._connect()
            return self._made

        async def __aexit__(self, *_: object) -> None:
            if self._made is not None:
                await self._made.close()

        if not TYPE_CHECKING:  # type checkers find these mistakes by themselves

            def __getattr__(self, name: str) -> Any:
                raise AttributeError(f"{_NOT_CONNECTED}, before you use its {name!r}")

            def __enter__(self) -> Any:
                raise TypeError(_NOT_CONNECTED)

            def __exit__(self, *_: object) -> None:
                """Be there, so that ``with`` comes as far as ``__enter__``."""

    def connect(
        url: str | None = None, *, profile: str | None = None, wait_ms: Duration | None = None
    ) -> _Connecting:
        """Connect as headwater.connect does; await the result, or use it in ``async with``."""
        return _Connecting(store_of(url, profile), wait_ms)

else:

    def keep_each(
        hw: AsyncHeadwater,
        streams: Collection[str] = (),
        queues: Collection[str] = (),
        *,
        tell_fault: Callable[[str], object],
        stop: Callable[[], bool],
    ) -> Iterator[Kept | KeptQueue | KeptChannel]:
        """Do one round of housekeeping, of named objects or of all; yields what was done to each.

        An object that cannot be kept is told, and the round continues with the next one. It ends
        early once ``stop`` returns True. Raises StoreError when the store itself cannot serve.
        """

        def free(name: str) -> list[Kept]:
            return [hw._free(name)]

        chores: dict[str, tuple[Callable[[], Collection[str]], Callable[[str], list[Any]]]]
        if streams or queues:
            chores = {
                "stream": (lambda: streams, hw.keep),
                "queue": (lambda: queues, hw.keep_queues),
            }
        else:
            chores = {
                "stream": (hw.streams, hw.keep),
                "queue": (hw.queues, hw.keep_queues),
                "channel": (hw.ick_channels, hw.keep_channels),
                "deleted stream": (lambda: hw.store.run(list_deleted()), free),
            }
        for kind, (list_names, keep) in chores.items():
            try:
                names = list_names()
            except BrokenObject as error:
                tell_fault(f"the list of {kind}s: {error}")
                continue
            for name in names:
                if stop():
                    return
                for kept in keep(name):
                    if kept.fault is not None:
                        place = f"{kind} {name!r}"
                        named = kept.fault.startswith(place)
                        tell_fault(kept.fault if named else f"{place}: {kept.fault}")
                    yield kept

    def connect(
        url: str | None = None, *, profile: str | None = None, wait_ms: Duration | None = None
    ) -> AsyncHeadwater:
        """Connect to a store: ``url``, else ``$HEADWATER_URL``, else an embedded server.

        ``profile`` names a profile of ``headwater.toml`` instead, whose store is used when
        ``$HEADWATER_URL`` is not set; without it, that file is not used.

        URLs: ``redis://``, ``unix://``, ``redis+cluster://``, ``redis+sentinel://``, the same over
        TLS by ``rediss``, and ``embedded:///directory``. A store where nobody listens is an error
        at once, unless ``wait_ms`` says how long to wait for its first answer. A failover, or a
        server that loads its data, is waited for as long as calls wait, 30 seconds; so is a server
        that restarts, once it has answered. Raises StoreUnreachable, TooManyClients, AccessDenied,
        StoreTooOld, FormatTooNew, EmbeddedServerFailed or InvalidInput.
        """
        return AsyncHeadwater(store_of(url, profile), wait_ms=wait_ms)
