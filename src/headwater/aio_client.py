"""What ``headwater.aio.connect`` returns: a connected store for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from headwater.errors import StoreError, UnreadableNode
from headwater.ick.aio_ick import AsyncIck, AsyncIckChannel
from headwater.ick.channels import list_channels
from headwater.ick.types import KeptChannel
from headwater.kernel.codecs import AnyCodec, Value, ValueCodec
from headwater.kernel.failures import LetterFilter
from headwater.kernel.inputs import Duration
from headwater.kernel.profiles import store_of
from headwater.log.aio_stream import AsyncStream
from headwater.log.aio_topic import AsyncTopic
from headwater.log.keys import list_streams, list_topics
from headwater.log.replaying import Replayed, ReplayRequest, ReplayRun
from headwater.log.retention import Kept
from headwater.queue.aio_queue import AsyncQueue
from headwater.queue.handles import list_queues
from headwater.queue.types import KeptQueue
from headwater.store.aio_store import AsyncStore
from headwater.store.call import Pace
from headwater.store.faults import Refusal
from headwater.store.presence import ServerJob, all_jobs, stop_job
from headwater.store.scrubbing import Checks, ScrubProgress, ScrubReport, StoreKind
from headwater.whole_store.client_handles import ClientHandles, shown_store, wait_seconds
from headwater.whole_store.letters import LettersMoved, move_everywhere
from headwater.whole_store.scrubbing import RepairReport, ScrubRun


class AsyncHeadwater:
    """A connected store for one event loop; close it, or use it in ``async with``.

    Headwater says more about each method.
    """

    def __init__(self, store: AsyncStore) -> None:
        self.store = store
        self._handles = ClientHandles(store.kind, store.token)

    def __repr__(self) -> str:
        return f"AsyncHeadwater({shown_store(self)})"

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
        return AsyncStream(self.store, self._handles.stream(name, codec), self._handles.member)

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
        """Return the topic of that name; its first use decides how many partitions it has.

        For ``codec`` see ``stream``.
        """
        handle = self._handles.topic(name, partitions, codec)
        return AsyncTopic(self.store, handle, self._handles.member)

    @overload
    def queue(self, name: str, *, codec: None = None) -> AsyncQueue: ...
    @overload
    def queue(self, name: str, *, codec: Literal["json"]) -> AsyncQueue[Any]: ...
    @overload
    def queue(self, name: str, *, codec: ValueCodec[Value]) -> AsyncQueue[Value]: ...
    def queue(self, name: str, *, codec: AnyCodec[Any] | None = None) -> AsyncQueue[Any]:
        """Return the queue of that name; it need not exist yet. For ``codec`` see ``stream``."""
        return AsyncQueue(self.store, self._handles.queue(name, codec))

    def ick(self, name: str) -> AsyncIck:
        """Return the Ick under that key, which is the same for redis-ick; it need not exist yet."""
        return AsyncIck(self.store, self._handles.ick(name))

    def ick_channel(
        self,
        name: str,
        shards: int | None = None,
        *,
        consumer: str | None = None,
        ack_ms: Duration | None = None,
        lease_ms: Duration | None = None,
    ) -> AsyncIckChannel:
        """Return a consumer's view of the channel of that name; its first use creates it."""
        handle = self._handles.channel(name, shards, consumer, ack_ms, lease_ms)
        return AsyncIckChannel(self.store, handle)

    async def ick_channels(self) -> list[str]:
        """Return the names of all channels, sorted."""
        return await self.store.run(list_channels())

    async def streams(self) -> list[str]:
        """Return the names of all streams, sorted."""
        return await self.store.run(list_streams())

    async def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return await self.store.run(list_topics())

    async def queues(self) -> list[str]:
        """Return the names of all queues, sorted."""
        return await self.store.run(list_queues())

    async def keep(self, *streams: str) -> list[Kept]:
        """Do the housekeeping of the named streams, or of everything, once."""
        return await self.store.run(self._handles.keep(streams))

    async def keep_channels(self, *channels: str) -> list[KeptChannel]:
        """Continue changes of the number of shards, of the named channels or of all."""
        return await self.store.run(self._handles.keep_channels(channels))

    async def keep_queues(self, *queues: str) -> list[KeptQueue]:
        """Do the housekeeping of the named queues, or of all, once."""
        return await self.store.run(self._handles.keep_queues(queues))

    async def scrub(
        self,
        *names: str,
        kinds: Collection[StoreKind] = (),
        rate_mb_s: float | None = None,
        progress: Callable[[ScrubProgress], object] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> ScrubReport:
        """Read all of the store, or the named objects, and report what is damaged."""
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
        """Repair what a scrub reports; changes nothing unless ``dry_run=False``."""
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
        """Copy a range of a stream into another one, once, at a speed; see Headwater.replay."""
        asked = ReplayRequest(source, into, first, last, speed, group, producer)
        run = ReplayRun(asked, self._handles.stream, progress, stop, self.store.clock)
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
        """Have dead letters of all groups and queues redelivered; see Headwater."""
        move = move_everywhere("redrive", names, matching, Pace(rate_per_s))
        return await self.store.run(move)

    async def discard_everywhere(
        self,
        *names: str,
        matching: LetterFilter | None = None,
        rate_per_s: int | None = None,
    ) -> LettersMoved:
        """Forget dead letters of all groups and queues; see Headwater.redrive_everywhere."""
        move = move_everywhere("discard", names, matching, Pace(rate_per_s))
        return await self.store.run(move)

    async def jobs(self) -> list[ServerJob]:
        """Return the jobs of servers, those under way first; see Headwater.jobs."""
        return await self.store.run(all_jobs())

    async def stop_job(self, job: str) -> bool:
        """Have a job of a server stopped; see Headwater.stop_job."""
        return await self.store.run(stop_job(job))

    async def close(self) -> None:
        """Close the connections; an embedded server ends when its last user is gone."""
        await self.store.close()


_NOT_CONNECTED = (
    "headwater.aio.connect() is not connected yet; write `hw = await headwater.aio.connect()` or "
    "`async with headwater.aio.connect() as hw:`"
)


class _Connecting:
    """A connection in the making: await it, or use it in ``async with``."""

    def __init__(self, url: str | None, wait_ms: Duration | None) -> None:
        self._url = url
        self._wait_s = wait_seconds(wait_ms)
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
