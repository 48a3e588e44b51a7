"""The consumer for asyncio: the same work, on an AsyncEngine and with an async handler."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from headwater.aio import AsyncHeadwater
from headwater.kernel.handlers import check_async
from headwater.kernel.inputs import Duration
from headwater.kernel.stopping import AsyncStopSignal
from headwater.log.handles import Start
from headwater.log.topics import TopicStart
from headwater.outbox import plan
from headwater.outbox.consumer_letters import ConsumerLetter, ConsumerRedriven
from headwater.outbox.consumer_shell import ConsumerShell
from headwater.outbox.consuming import PATIENCE_S
from headwater.outbox.plan import ConsumerPlan, OnError, OnGap, Streams, TimeSource, engine_of
from headwater.sql.driver_errors import naming_missing_rights
from headwater.store.presence import reporting_async

if TYPE_CHECKING:
    from headwater.outbox.outbox import Outbox

T = TypeVar("T")

AsyncHandler: TypeAlias = "Callable[[AsyncConnection, list[Any]], Awaitable[object]]"
AsyncOnReset: TypeAlias = "Callable[[AsyncConnection, Any], Awaitable[object]]"


class AsyncConsumer(ConsumerShell[AsyncHandler, AsyncOnReset]):
    """A consumer for asyncio; Consumer documents each argument and the promises of each method.

    A method that is cancelled rolls back the current transaction.
    """

    def __init__(
        self,
        name: str,
        stream: Streams,
        outbox: Outbox[AsyncEngine] | AsyncEngine,
        hw: AsyncHeadwater,
        handler: AsyncHandler | Mapping[str, AsyncHandler],
        *,
        batch: int = 1000,
        start: Start = "first",
        on_error: OnError = "stop",
        attempts: int = 5,
        backoff_ms: Duration = 100,
        on_gap: OnGap = "stop",
        on_reset: AsyncOnReset | Mapping[str, AsyncOnReset] | None = None,
        steps: Callable[[str], None] | None = None,
        time_source: TimeSource | None = None,
    ) -> None:
        self._engine = engine_of(
            outbox, AsyncEngine, "an AsyncConsumer", "make one with create_async_engine"
        )
        plan = ConsumerPlan(
            *(name, self._engine, batch, start, on_error, attempts, backoff_ms),
            *(on_gap, on_reset is not None, time_source or time),
        )
        one_server = hw.store.kind != "cluster"
        super().__init__(plan, stream, handler, on_reset, steps, one_server=one_server)
        for each in self._handlers.values():
            check_async(each)
        self._store = hw.store
        self._stop = AsyncStopSignal()
        self._alone = asyncio.Lock()

    async def run_once(self) -> int:
        """Apply the next batch of each stream; returns how many messages were handled."""
        return sum([await self._do(turn.run_once()) for turn in self._turns.values()])

    async def run(self) -> None:
        """Apply what is there and what comes, until ``stop``."""
        async with reporting_async(self._store, self._report):
            await self._run()

    async def _run(self) -> None:
        # The consumer retries by itself; a call of the store must end soon enough to stop.
        self._patience_s = PATIENCE_S
        first, *others = self._turns.values()
        if not others:
            return await self._do(first.run())
        runs = [asyncio.ensure_future(self._do(turn.run())) for turn in (first, *others)]
        try:
            await asyncio.gather(*runs)
        finally:
            for run in runs:
                run.cancel()
            await asyncio.gather(*runs, return_exceptions=True)
        return None

    def stop(self) -> None:
        """Ask ``run`` to return after the current batch."""
        self._stop.set()

    async def lag(self) -> int:
        """Count the offsets from the position to the end of the stream."""
        return sum([await self._do(turn.lag()) for turn in self._turns.values()])

    async def positions(self) -> dict[str, int | None]:
        """Return the offset needed next of each stream, as committed; None before the first run."""
        found = [await self._do(turn.positions()) for turn in self._turns.values()]
        return {name: at for positions in found for name, at in positions.items()}

    async def seek(
        self, position: TopicStart, *, stream: str | None = None
    ) -> int | dict[int, int]:
        """Set where to continue, whatever it was; returns the offset."""
        return await self._do(self._seek(position, stream))

    async def dead(self, count: int = 100, *, max_bytes: int | None = None) -> list[ConsumerLetter]:
        """Return the oldest dead letters of all its streams, with their causes; they stay there."""
        return await self._do(self._dead(count, max_bytes))

    async def redrive(self) -> ConsumerRedriven:
        """Handle the dead letters that there are now again, in order, each exactly once."""
        return await self._do(self._redrive())

    async def discard(self, up_to: int | None = None, *, stream: str | None = None) -> int:
        """Drop the dead letters that there are now for good; returns how many."""
        return await self._do(self._discard(up_to, stream))

    async def remove(self) -> bool:
        """Forget the consumer, so that retention waits no longer; returns whether it existed."""
        return sum([await self._do(turn.remove()) for turn in self._turns.values()]) > 0

    # ── Doing what the work asks for ─────────────────────────────────────────────────────────

    async def _do(self, job: plan.Work[T], conn: AsyncConnection | None = None) -> T:
        """Do all that work asks for; returns its result."""
        try:
            request = job.send(None)
            while True:
                try:
                    reply = await self._perform(request, conn)
                except Exception as error:  # noqa: BLE001  the work decides
                    request = job.throw(error)
                else:
                    request = job.send(reply)
        except StopIteration as done:
            result: T = done.value
            return result

    async def _perform(self, request: plan.Request, conn: AsyncConnection | None) -> Any:
        match request:
            case plan.Step(name):
                return self._steps and self._steps(name)
            case plan.Ask(operation):
                return await self._store.run(operation, self._patience_s)
            case plan.Pause(seconds):
                return await self._stop.wait(seconds)
            case plan.Transact(inner, alone):
                # One at a time: a handler need not care how many streams there are.
                async with self._alone if alone else nullcontext(), self._engine.begin() as conn:
                    return await self._do(inner, conn)
        assert conn is not None
        match request:
            case plan.Fetch(statement, values):
                with naming_missing_rights(self._engine):
                    return (await conn.execute(statement, values)).scalar()
            case plan.Execute(statement, values):
                with naming_missing_rights(self._engine):
                    return (await conn.execute(statement, values)).rowcount
            case plan.Handle(stream, messages):
                return await self._handlers[stream](conn, messages)
            case plan.Restore(stream, state):
                return await self._resetters[stream](conn, state)
            case plan.InspectTransaction():
                return plan.transaction_state(conn.sync_connection)
