"""Runners of timed jobs for asyncio: the same promises, with tasks in the place of threads.

Written twice because runs are threads or tasks, which end in other ways.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import TYPE_CHECKING

from headwater.errors import HandlerTimeout, StoreError
from headwater.kernel.failures import Outage, store_may_recover
from headwater.kernel.handlers import check_async, not_awaitable
from headwater.kernel.instrument import observe
from headwater.kernel.stopping import AsyncStopSignal
from headwater.store.presence import ReportedPart, reporting_async
from headwater.timed.engine import (
    FinishedRun,
    NowMs,
    RunCounts,
    TakenRun,
    TimedEngine,
    check_concurrency,
    log,
    log_end,
    runner_name,
)
from headwater.timed.jobs import JobTable, TimedJob

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater


class AsyncTimedRunner(JobTable):
    """Runs timed jobs in tasks; TimedRunner says what each option means.

    After ``timeout`` a handler is cancelled.
    """

    def __init__(
        self, hw: AsyncHeadwater, *, concurrency: int = 8, clock: NowMs | None = None
    ) -> None:
        super().__init__()
        self._store = hw.store
        self._concurrency = check_concurrency(concurrency)
        self._clock = clock
        self._stop = AsyncStopSignal()
        self._running: dict[asyncio.Task[FinishedRun], TakenRun] = {}
        self._unsettled: list[FinishedRun] = []
        self._engine: TimedEngine | None = None
        self.counts = RunCounts()

    def add(self, job: TimedJob) -> None:
        """Add a job; raises InvalidInput when there is one of its name, or when it is not async."""
        check_async(job.handler)
        super().add(job)

    async def run(self) -> None:
        """Run jobs until ``stop``; when the store is down, retry until it is back.

        When it is asked to stop, nothing more is begun; when it returns, running jobs have ended.
        When it is cancelled, its handlers are, and their runs are returned untried.
        """
        async with reporting_async(self._store, self._report):
            await self._run()

    def _report(self) -> ReportedPart:
        counts, held = self.counts, len(self._running)
        which = ", ".join(sorted(self.jobs))[:200]
        return ReportedPart(
            "timed jobs", "timed jobs", which, "running", counts.done, counts.failed, held=held
        )

    async def _run(self) -> None:
        outage = Outage("the runner of timed jobs", log)
        try:
            while not self._stop.is_set() or self._running or self._unsettled:
                try:
                    await self._turn()
                    outage.over()
                except StoreError as error:
                    if not store_may_recover(error):
                        raise
                    await self._wait(outage.meet(error))
        finally:
            await self._give_back()

    def stop(self) -> None:
        """Ask ``run`` to end; from any thread or signal handler. It stays stopped."""
        self._stop.set()

    def give_back(self) -> int:
        """Cancel runs in progress here, so that ``run`` returns them and ends; returns how many.

        To be called in the event loop. Another runner begins them again at once.
        """
        self.stop()
        for task in self._running:
            task.cancel()
        return len(self._running)

    async def run_due(self) -> list[FinishedRun]:
        """Run what is due now, one after the other, and return how each attempt ended.

        It returns when nothing is left that is due by then, or that could begin.
        """
        engine = self._engine = self._new_engine()
        await self._store.run(engine.begin())
        done: list[FinishedRun] = []
        while taken := await self._store.run(engine.turn(1)):
            for each in taken:
                finished = await self._do(each)
                await self._note([finished])
                done.append(finished)
        return done

    def _new_engine(self) -> TimedEngine:
        return TimedEngine(self.jobs.values(), runner_name(self._store.token()), self._clock)

    async def _turn(self) -> None:
        if self._engine is None:
            engine = self._new_engine()
            await self._store.run(engine.begin())
            self._engine = engine
        engine = self._engine
        if self._unsettled:
            await self._note(self._unsettled)
            self._unsettled = []
        free = self._concurrency - len(self._running)
        if self._stop.is_set():
            await self._store.run(engine.keep_in_touch())
        else:
            for taken in await self._store.run(engine.turn(free)):
                self._running[asyncio.create_task(self._do(taken))] = taken
                free -= 1
        await self._wait(engine.wait_ms(free) / 1000)

    async def _wait(self, seconds: float) -> None:
        """Wait for something to end, or for the request to stop, for that long; take what ended."""
        stop = asyncio.create_task(self._stop.wait(seconds))
        try:
            waiting = {*self._running, *([] if self._stop.is_set() else [stop])}
            if waiting:
                await asyncio.wait(waiting, timeout=seconds, return_when="FIRST_COMPLETED")
        finally:
            stop.cancel()
        for task in [task for task in self._running if task.done()]:
            del self._running[task]
            self._unsettled.append(task.result())

    async def _do(self, taken: TakenRun) -> FinishedRun:
        observation, began = observe("timed.run", taken.job.name), time.monotonic()
        failure: BaseException | None = None
        timeout_ms = taken.job.timeout_ms
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000) as limit:
                result = taken.job.call(taken.told)
                if not inspect.isawaitable(result):
                    raise not_awaitable(result)
                await result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                return FinishedRun(taken, begun=False)
            failure = error
        except BaseException as error:  # noqa: BLE001  whatever it was, the run is not done
            failure = error
            if timeout_ms is not None and limit.expired() and isinstance(error, TimeoutError):
                failure = HandlerTimeout(timeout_ms)
        if observation is not None:
            observation.end("ok" if failure is None else "failed", failure)
        return FinishedRun(taken, int((time.monotonic() - began) * 1000), failure)

    async def _give_back(self) -> None:
        """Cancel what still runs, and return it; there is nothing left after an end in order."""
        for task in self._running:
            task.cancel()
        ended = await asyncio.gather(*self._running)
        self._running.clear()
        if self._engine is not None:
            if ended or self._unsettled:
                await self._note([*self._unsettled, *ended])
            await self._store.run(self._engine.leave())

    async def _note(self, finished: list[FinishedRun]) -> None:
        assert self._engine is not None, "nothing runs before it has begun"
        stolen = await self._store.run(self._engine.settle(finished))
        for each in finished:
            self.counts.add(each)
            log_end(each, taken_over=each in stolen)
