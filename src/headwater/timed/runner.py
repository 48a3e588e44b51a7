# Generated from aio_runner.py by `make derived`, which renews it: change that file.
"""Runners of timed jobs: each due run happens once among all of them, in threads of one of them.

    runner = TimedRunner(hw)

    @runner.cron("0 3 * * *", tz="Europe/Berlin", missed="once")
    def tidy() -> None: ...

    runner.run()

The time is that of the store. A test gives a clock of its own, ``TimedRunner(hw, clock=now_ms)``,
any function that returns milliseconds since 1970, and calls ``run_due``, which runs what is due
by then and returns.

How runs begin and end is written for tasks and for threads, which end in other ways.
"""

from __future__ import annotations

import threading
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from headwater.errors import HandlerTimeout, StoreError
from headwater.kernel.failures import Outage, store_may_recover
from headwater.kernel.handlers import check_done, check_sync
from headwater.kernel.instrument import observe
from headwater.kernel.stopping import StopSignal
from headwater.store.presence import ReportedPart, reporting
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
    from headwater.client import Headwater


class TimedRunner(JobTable):
    """Runs timed jobs in threads; start any number of runners, anywhere.

    ``concurrency`` runs are in progress at once in this runner. Each job has a ``name``, that of
    its function unless it is given, by which all runners know it. Options of a job:

    ``missed`` says what happens to what was due while no runner lived: "skip", "once", which makes
    up for all of it by one run, or "all". ``overlap`` says what happens to a run that is due while
    the one before it is still running, in whatever runner: "skip", "queue", or "allow" it. A run
    that failed, or whose runner died, is retried until it was begun ``max_attempts`` times. After
    ``timeout`` an attempt fails: an async handler is cancelled; a thread cannot be stopped, and is
    left behind. With ``jitter`` each run starts up to this much later.
    """

    def __init__(self, hw: Headwater, *, concurrency: int = 8, clock: NowMs | None = None) -> None:
        super().__init__()
        self._store = hw.store
        self._concurrency = check_concurrency(concurrency)
        self._clock = clock
        self._stop = StopSignal()
        # What ended, by the thread that ran it; None wakes the loop.
        self._ended: SimpleQueue[FinishedRun | None] = SimpleQueue()
        self._running: dict[TakenRun, float] = {}
        self._unsettled: list[FinishedRun] = []
        self._engine: TimedEngine | None = None
        self.counts = RunCounts()

    def add(self, job: TimedJob) -> None:
        """Add a job; raises InvalidInput for a second one of its name, and for the other kind.

        Jobs of asyncio are async, and others are not.
        """
        check_sync(job.handler)
        super().add(job)

    def run(self) -> None:
        """Run jobs until ``stop``; when the store is down, retry until it is back.

        When it is asked to stop, nothing more is begun; when it returns, running jobs have ended.
        When a task that runs it is cancelled, its handlers are, and their runs are returned
        untried.
        """
        with reporting(self._store, self._report):
            self._run()
            if self._engine is not None:
                self._store.run(self._engine.leave())

    def _report(self) -> ReportedPart:
        counts, held = self.counts, len(self._running)
        which = ", ".join(sorted(self.jobs))[:200]
        return ReportedPart(
            "timed jobs", "timed jobs", which, "running", counts.done, counts.failed, held=held
        )

    def _run(self) -> None:
        outage = Outage("the runner of timed jobs", log)
        while not self._stop.is_set() or self._running or self._unsettled:
            try:
                self._turn()
                outage.over()
            except StoreError as error:
                if not store_may_recover(error):
                    raise
                self._wait(outage.meet(error))

    def stop(self) -> None:
        """Ask ``run`` to end; from any thread or signal handler. It stays stopped."""
        self._stop.set()
        self._ended.put(None)

    def give_back(self) -> int:
        """Return the runs in progress here before the process ends; returns how many.

        Another runner begins them again at once. An async handler is cancelled, so that ``run``
        ends: call this in the event loop.
        """
        self.stop()
        running, given = list(self._running), 0
        if self._engine is not None:
            given = self._store.run(self._engine.give_back(running))
        return given

    def run_due(self) -> list[FinishedRun]:
        """Run what is due now, here and one after the other, and return how each attempt ended.

        It returns when nothing is left that is due by then, or that could begin.
        """
        engine = self._engine = self._new_engine()
        self._store.run(engine.begin())
        done: list[FinishedRun] = []
        while taken := self._store.run(engine.turn(1)):
            for each in taken:
                finished = self._do(each)
                self._note([finished])
                done.append(finished)
        return done

    def _new_engine(self) -> TimedEngine:
        return TimedEngine(self.jobs.values(), runner_name(self._store.token()), self._clock)

    def _turn(self) -> None:
        if self._engine is None:
            engine = self._new_engine()
            self._store.run(engine.begin())
            self._engine = engine
        engine = self._engine
        if self._unsettled:
            self._note(self._unsettled)
            self._unsettled = []
        free = self._concurrency - len(self._running)
        if self._stop.is_set():
            self._store.run(engine.keep_in_touch())
        else:
            for taken in self._store.run(engine.turn(free)):
                self._start(taken)
                free -= 1
        self._wait(engine.wait_ms(free) / 1000)

    def _note(self, finished: list[FinishedRun]) -> None:
        assert self._engine is not None, "nothing runs before it has begun"
        stolen = self._store.run(self._engine.settle(finished))
        for each in finished:
            self.counts.add(each)
            log_end(each, taken_over=each in stolen)

    def _start(self, taken: TakenRun) -> None:
        self._running[taken] = time.monotonic()
        thread = threading.Thread(
            target=lambda: self._ended.put(self._do(taken)),
            name=f"headwater-timed-{taken.job.name}",
            daemon=True,
        )
        thread.start()

    def _wait(self, seconds: float) -> None:
        """Wait for something to end; take what has ended, or took too long."""
        ends = [
            began + taken.job.timeout_ms / 1000
            for taken, began in self._running.items()
            if taken.job.timeout_ms is not None
        ]
        seconds = max(min([seconds, *(end - time.monotonic() for end in ends)]), 0)
        try:
            ended = self._ended.get(timeout=seconds) if seconds else self._ended.get_nowait()
            while True:
                # One that took too long was given up before.
                if ended is not None and self._running.pop(ended.taken, None) is not None:
                    self._unsettled.append(ended)
                ended = self._ended.get_nowait()
        except Empty:
            pass
        now = time.monotonic()
        for taken, began in list(self._running.items()):
            timeout_ms = taken.job.timeout_ms
            if timeout_ms is not None and now - began >= timeout_ms / 1000:
                del self._running[taken]
                error = HandlerTimeout(timeout_ms)
                self._unsettled.append(FinishedRun(taken, int((now - began) * 1000), error))

    def _do(self, taken: TakenRun) -> FinishedRun:
        observation, began = observe("timed.run", taken.job.name), time.monotonic()
        failure: BaseException | None = None
        try:
            check_done(taken.job.call(taken.told))
        except BaseException as error:  # noqa: BLE001  whatever it was, the run is not done
            failure = error
        if observation is not None:
            observation.end("ok" if failure is None else "failed", failure)
        return FinishedRun(taken, int((time.monotonic() - began) * 1000), failure)
