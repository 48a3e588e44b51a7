"""The consumer for asyncio: the same work, on an AsyncEngine and with an async handler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from headwater.aio import AsyncHeadwater
from headwater.handlers import check_async
from headwater.log.handles import Start, StreamHandle
from headwater.log.types import Message
from headwater.outbox.consuming import PATIENCE_S, Turn
from headwater.outbox.plan import (
    ConsumerPlan,
    ConsumerStats,
    OnError,
    OnGap,
    Streams,
    async_engine_of,
    for_each,
    names_of,
    one_of,
)
from headwater.outbox.work import (
    Ask,
    Execute,
    Fetch,
    Handle,
    InspectTransaction,
    Pause,
    Request,
    Restore,
    Step,
    Transact,
    Work,
    transaction_state,
)
from headwater.stopping import AsyncStopSignal

if TYPE_CHECKING:
    from headwater.outbox.outbox import Outbox

T = TypeVar("T")

AsyncHandler: TypeAlias = "Callable[[AsyncConnection, list[Message]], Awaitable[object]]"
AsyncOnReset: TypeAlias = "Callable[[AsyncConnection, Any], Awaitable[object]]"


class AsyncConsumer:
    """A consumer for asyncio; Consumer says what each argument and method promises.

    Cancelling a method rolls back the transaction at hand.
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
        backoff_ms: int = 100,
        on_gap: OnGap = "stop",
        on_reset: AsyncOnReset | Mapping[str, AsyncOnReset] | None = None,
        steps: Callable[[str], None] | None = None,
    ) -> None:
        self.name = name
        self.streams = names_of(stream)
        self._engine = async_engine_of(outbox)
        self._store = hw.store
        self._handlers = for_each(self.streams, handler, "handler")
        for each in self._handlers.values():
            check_async(each)
        self._resetters = for_each(self.streams, on_reset, "on_reset") if on_reset else {}
        self._steps = steps
        self._patience_s: float | None = None
        self._stop = AsyncStopSignal()
        self._alone = asyncio.Lock()
        plan = ConsumerPlan(
            *(name, self._engine, batch, start, on_error, attempts, backoff_ms),
            *(on_gap, on_reset is not None),
        )
        known: set[str] = set()
        self._turns = {
            place: Turn(plan, StreamHandle(place, known), StreamHandle(plan.grave(place), known))
            for place in self.streams
        }

    def __repr__(self) -> str:
        return f"AsyncConsumer({self.name!r} of {', '.join(self.streams)})"

    @property
    def stats(self) -> ConsumerStats:
        """See Consumer.stats."""
        return reduce(add, [turn.stats for turn in self._turns.values()], ConsumerStats())

    async def run_once(self) -> int:
        """See Consumer.run_once."""
        return sum([await self._do(turn.run_once()) for turn in self._turns.values()])

    async def run(self) -> None:
        """See Consumer.run."""
        # It has patience of its own, and must be able to stop.
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
        """See Consumer.stop."""
        self._stop.set()

    async def lag(self) -> int:
        """See Consumer.lag."""
        return sum([await self._do(turn.position.lag()) for turn in self._turns.values()])

    async def positions(self) -> dict[str, int | None]:
        """See Consumer.positions."""
        return {place: await self._do(turn.position.load()) for place, turn in self._turns.items()}

    async def seek(self, position: Start, *, stream: str | None = None) -> int:
        """See Consumer.seek."""
        return await self._do(self._turns[one_of(self.streams, stream)].seek(position))

    async def remove(self) -> bool:
        """See Consumer.remove."""
        return sum([await self._do(turn.position.remove()) for turn in self._turns.values()]) > 0

    # ── Doing what the work asks for ─────────────────────────────────────────────────────────

    async def _do(self, work: Work[T], conn: AsyncConnection | None = None) -> T:
        """Drive work to its end."""
        try:
            request = work.send(None)
            while True:
                try:
                    reply = await self._perform(request, conn)
                except Exception as error:  # noqa: BLE001  it goes where the request came from
                    request = work.throw(error)
                else:
                    request = work.send(reply)
        except StopIteration as done:
            result: T = done.value
            return result

    async def _perform(self, request: Request, conn: AsyncConnection | None) -> Any:
        match request:
            case Step(name):
                return self._steps and self._steps(name)
            case Ask(operation):
                return await self._store.run(operation, self._patience_s)
            case Pause(seconds):
                return await self._stop.wait(seconds)
            case Transact(work, alone):
                # One at a time: a handler need not care how many streams there are.
                async with self._alone if alone else nullcontext(), self._engine.begin() as conn:
                    return await self._do(work, conn)
        assert conn is not None
        match request:
            case Fetch(statement, values):
                return (await conn.execute(statement, values)).scalar()
            case Execute(statement, values):
                return (await conn.execute(statement, values)).rowcount
            case Handle(stream, messages):
                return await self._handlers[stream](conn, messages)
            case Restore(stream, state):
                return await self._resetters[stream](conn, state)
            case InspectTransaction():
                return transaction_state(conn.sync_connection) if conn.sync_connection else "ended"
