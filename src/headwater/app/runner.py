"""Runs parts in one process: sync ones in threads, async ones as tasks of one event loop.

A part that dies is started again, later each time. When they are asked to stop, parts finish
running work; what is not done in time is returned, so that nothing waits for its deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable

from headwater.app.part_run import PartRun, PartState
from headwater.app.parts import Part
from headwater.app.resources import Resources
from headwater.errors import HeadwaterError
from headwater.kernel.stopping import AsyncStopSignal, StopSignal, wait_for_any
from headwater.serve.processes import loop_factory
from headwater.store.presence import (
    BEAT_S,
    FIRST_S,
    Presence,
    ReportedPart,
    program_name,
    reported_together,
)

log = logging.getLogger("headwater.app")

# How long cancelled handlers and the store have, at the end of a drain.
_LAST_S = 6.0
# How long a report waits for a store that is down.
_BEAT_PATIENCE_S = 1.0


class Runner:
    """The parts of one process, from ``start`` to ``finish``; it runs once."""

    def __init__(self, parts: Iterable[Part], resources: Resources, name: str = "") -> None:
        self._resources = resources
        self._runs = [PartRun(part) for part in parts]
        self._stop = StopSignal()
        self._async_stop = AsyncStopSignal()
        self._threads: list[threading.Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left = 0
        self._lock = threading.Lock()
        self._tasks_ended = StopSignal()
        # Set when nothing runs any more.
        self.ended = StopSignal()
        self._presence = Presence("app", name or program_name())
        self._beater: threading.Thread | None = None

    def start(self) -> None:
        """Run all parts in threads of this process, and return."""
        tasks = [run for run in self._runs if run.part.is_async]
        self.start_threads(also=1 if tasks else 0)
        if tasks:
            self._start_thread("headwater-loop", lambda: _run_loop(self.run_tasks))

    def start_threads(self, *, also: int = 0) -> None:
        """Run the sync parts, each in a thread; ``also`` counts other threads that will end."""
        runs = [run for run in self._runs if not run.part.is_async]
        self._left = len(runs) + also
        if not self._left:
            self.ended.set()
        if runs:
            self._beater = threading.Thread(target=self._beat, name="headwater-beat", daemon=True)
            self._beater.start()
        for run in runs:
            self._start_thread(f"headwater-{run.part.name}", lambda run=run: self._run_thread(run))  # type: ignore[misc]

    async def run_tasks(self) -> None:
        """Run the async parts in this event loop until they are stopped, or this is cancelled."""
        self._loop = asyncio.get_running_loop()
        tasks = [
            asyncio.create_task(self._run_task(run), name=f"headwater-{run.part.name}")
            for run in self._runs
            if run.part.is_async
        ]
        beat = None if self._beater else asyncio.create_task(self._beat_async())
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if beat is not None:
                beat.cancel()
                await asyncio.gather(beat, return_exceptions=True)
                await self._leave_async()
            await self._resources.close_async()
            self._tasks_ended.set()

    def stop(self) -> None:
        """Ask all parts to end when what is begun is done; from any thread."""
        self._stop.set()
        self._async_stop.set()
        for run in self._runs:
            run.stop()

    @property
    def is_stopping(self) -> bool:
        """Whether the parts were asked to end."""
        return self._stop.is_set()

    def drain(self, seconds: float, hurry: StopSignal | None = None) -> int:
        """Stop, wait this long for what is begun, and return the rest to the store.

        Setting ``hurry`` ends the wait. Returns how many messages were not done.
        """
        self.stop()
        wait_for_any([self.ended, *([hurry] if hurry is not None else [])], seconds)
        return self.give_back()

    def give_back(self) -> int:
        """Return what is still in hand to the store; returns how many messages."""
        if self.ended.is_set():
            return 0
        given = 0
        for run in self._runs:
            if run.status == "stopped":
                continue
            if run.part.is_async:
                given += self._in_loop(run.give_back)
            else:
                given += run.give_back()
        if self._loop is not None:
            self._tasks_ended.wait(_LAST_S)
        if given:
            log.warning("%d messages were not done in time, and are returned", given)
        return given

    def close(self) -> None:
        """Close what the threads of the process share."""
        if self._beater is not None:
            self._stop.set()
            self._beater.join(_LAST_S)
        self._resources.close()

    def states(self) -> list[PartState]:
        """Return what is known of each part."""
        return [run.state() for run in self._runs]

    # ── Reports for those who watch: over connections that are there, or not at all ──────────

    def _reports(self) -> list[ReportedPart]:
        return [
            ReportedPart(
                one.name,
                one.kind,
                one.object,
                one.status,
                one.counts.done,
                one.counts.failed,
                one.restarts,
                why=one.why or "",
            )
            for one in self.states()
        ]

    def _beat(self) -> None:
        rest_s = FIRST_S
        while not self._stop.wait(rest_s):
            rest_s = BEAT_S
            if (hw := self._resources.open_hw) is not None:
                with contextlib.suppress(HeadwaterError):
                    hw.store.run(self._presence.beat(self._reports()), _BEAT_PATIENCE_S)
        if (hw := self._resources.open_hw) is not None:
            with contextlib.suppress(HeadwaterError):
                hw.store.run(self._presence.leave(), _BEAT_PATIENCE_S)

    async def _beat_async(self) -> None:
        await asyncio.sleep(FIRST_S)
        while True:
            if (hw := self._resources.open_async_hw) is not None:
                with contextlib.suppress(HeadwaterError):
                    await hw.store.run(self._presence.beat(self._reports()), _BEAT_PATIENCE_S)
            await asyncio.sleep(BEAT_S)

    async def _leave_async(self) -> None:
        if (hw := self._resources.open_async_hw) is not None:
            with contextlib.suppress(HeadwaterError):
                await hw.store.run(self._presence.leave(), _BEAT_PATIENCE_S)

    # ── One part ─────────────────────────────────────────────────────────────────────────────

    def _run_thread(self, run: PartRun) -> None:
        while not self._stop.is_set():
            error: BaseException | None = None
            try:
                work = run.part.open(self._resources)
                if run.begin(work):
                    with reported_together():
                        work.run()
            except BaseException as caught:  # noqa: BLE001  it is logged, and the part restarted
                error = caught
            rest_s = run.over(error)
            if rest_s is None or self._stop.wait(rest_s):
                break
        run.ended()

    async def _run_task(self, run: PartRun) -> None:
        while not self._async_stop.is_set():
            error: BaseException | None = None
            try:
                await self._resources.open_async()
                work = run.part.open(self._resources)
                if run.begin(work):
                    with reported_together():
                        await work.run()
            except asyncio.CancelledError:
                run.ended()
                raise
            except BaseException as caught:  # noqa: BLE001  it is logged, and the part restarted
                error = caught
            rest_s = run.over(error)
            if rest_s is None or await self._async_stop.wait(rest_s):
                break
        run.ended()

    def _start_thread(self, name: str, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            finally:
                with self._lock:
                    self._left -= 1
                    if not self._left:
                        self.ended.set()

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _in_loop(self, call: Callable[[], int]) -> int:
        """Call something in the event loop of the async parts, from another thread or from it."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return 0
        try:
            if asyncio.get_running_loop() is loop:
                return call()
        except RuntimeError:
            pass  # this thread has no loop

        async def there() -> int:
            return call()

        return asyncio.run_coroutine_threadsafe(there(), loop).result(_LAST_S)


def _run_loop(run: Callable[[], object]) -> None:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(run())  # type: ignore[arg-type]
