"""Running the parts of an application in one process: the check before, threads, tasks, the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from headwater.app.part_kinds import WorkerPart
from headwater.app.parts import Fault, Part, PartRun, PartState, Places, Resources, chosen
from headwater.errors import AppRefused, HeadwaterError, InvalidInput
from headwater.kernel.failures import START_MS
from headwater.kernel.inputs import Limits, Span, check_span
from headwater.kernel.stopping import AsyncStopSignal, StopSignal, stop_on_signals, wait_for_any
from headwater.serve.listening import loop_factory
from headwater.store.presence import (
    BEAT_S,
    FIRST_S,
    Presence,
    ReportedPart,
    program_name,
    reported_together,
)

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater
    from headwater.client import Headwater
    from headwater.store.call import Operation


def check_parts(parts: Sequence[Part], resources: Resources) -> list[Fault]:
    """Return one list of all that is wrong with parts, and what they should know; changes nothing.

    A store or a database that cannot be used is named once, and its parts are not asked.
    """
    faults: list[Fault] = []
    if not parts:
        faults.append(Fault("application", "it has no parts; declare one, as with @app.worker"))
    broken = set[str]()
    for need, use in (("store", lambda: resources.hw), ("db", lambda: resources.engine)):
        needing = [part for part in parts if need in part.needs]
        # The engine of an async handler may have no twin for threads.
        if needing and not (need == "db" and all(part.is_async for part in needing)):
            try:
                use()
            except HeadwaterError as error:
                broken.add(need)
                faults.append(Fault(need, str(error)))
    for part in parts:
        if not broken & part.needs:
            try:
                faults += part.check(resources)
            except HeadwaterError as error:
                faults.append(Fault(part.name, str(error)))
    faults += _conflicting_limits(parts)
    return list(dict.fromkeys(faults))


def _conflicting_limits(parts: Sequence[Part]) -> Iterator[Fault]:
    """Name workers that declare different limits of one group or queue, which has only one."""
    declared: dict[tuple[str, str], tuple[str, Limits]] = {}
    for part in parts:
        limits = part.options.get("limits") if isinstance(part, WorkerPart) else None
        if not isinstance(part, WorkerPart) or limits is None:
            continue
        other, theirs = declared.setdefault((part.source.kind, part.object), (part.name, limits))
        if theirs != limits:
            yield Fault(
                part.name,
                f"it declares the limits {limits} of {part.source.kind} {part.object}, and {other} "
                f"declares {theirs}; all workers of a group or queue share its limits: give both "
                "the same",
            )


def refuse_faults(faults: Sequence[Fault]) -> None:
    """Raise AppRefused when one of the faults is fatal."""
    fatal = [str(fault) for fault in faults if fault.fatal]
    if fatal:
        raise AppRefused(fatal)


log = logging.getLogger("headwater.app")

# How long cancelled handlers and the store have, at the end of a drain.
_LAST_S = 6.0
# How long a report waits for a store that is down.
_BEAT_PATIENCE_S = 1.0


class Runner:
    """Runs parts in one process: sync ones in threads, async ones as tasks of one event loop.

    A part that dies is started again, later each time. When they are asked to stop, parts finish
    running work; what is not done in time is returned, so that nothing waits for its deadline.
    It runs once.
    """

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
                await self._tell_async(self._presence.leave())
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

    def _reports(self) -> list[ReportedPart]:
        return [
            ReportedPart(*part[:4], *part.counts[:2], part.restarts, why=part.why or "")
            for part in self.states()
        ]

    def _beat(self) -> None:
        rest_s = FIRST_S
        while not self._stop.wait(rest_s):
            rest_s = BEAT_S
            self._tell(self._presence.beat(self._reports()))
        self._tell(self._presence.leave())

    def _tell(self, note: Operation[None]) -> None:
        if (hw := self._resources.open_hw) is not None:
            with contextlib.suppress(HeadwaterError):
                hw.store.run(note, _BEAT_PATIENCE_S)

    async def _beat_async(self) -> None:
        await asyncio.sleep(FIRST_S)
        while True:
            await self._tell_async(self._presence.beat(self._reports()))
            await asyncio.sleep(BEAT_S)

    async def _tell_async(self, note: Operation[None]) -> None:
        if (hw := self._resources.open_async_hw) is not None:
            with contextlib.suppress(HeadwaterError):
                await hw.store.run(note, _BEAT_PATIENCE_S)

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
                if "store" in run.part.needs:
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


class RunningApp:
    """What an application does to run its parts; ``App`` declares them."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._parts: dict[str, Part] = {}
        self._runner: Runner | None = None
        # What the parts share while they run in this process.
        self.resources: Resources | None = None

    @property
    def parts(self) -> Mapping[str, Part]:
        """The parts by their names, in the order of their declaration."""
        return self._parts

    def run(
        self, *, drain: Span = "30s", only: Iterable[str] = (), without: Iterable[str] = ()
    ) -> None:
        """Run the parts in this process until SIGTERM or Ctrl-C; call it in the main thread.

        First all are checked. Then sync handlers run in threads, async ones in an event loop of
        their own, and a part that dies is started again. The signal lets handlers that have begun
        end within ``drain``; what is not done is returned to the store at once. A second signal
        ends that wait. Raises AppRefused, with all that is wrong, before anything runs.
        """
        drain_s = check_span(drain, "drain") / 1000
        stop, hurry = StopSignal(), StopSignal()

        def signalled() -> None:
            (hurry if stop.is_set() else stop).set()

        with stop_on_signals(signalled):
            runner = self._begin(only, without)
            try:
                runner.start()
                wait_for_any([stop], None)
                runner.drain(drain_s, hurry)
            except KeyboardInterrupt:
                runner.stop()
                runner.give_back()
            finally:
                self._over(runner)

    def start(self, *, only: Iterable[str] = (), without: Iterable[str] = ()) -> None:
        """Run the parts in threads of this process, and return; ``stop`` ends them.

        Raises AppRefused, with all that is wrong, before anything runs.
        """
        self._begin(only, without).start()

    def stop(self, *, drain: Span = "30s") -> int:
        """End what ``start`` began; returns how many messages were not done, and are returned."""
        runner = self._runner
        if runner is None:
            return 0
        try:
            return runner.drain(check_span(drain, "drain") / 1000)
        finally:
            self._over(runner)

    async def run_async(
        self, *, drain: Span = "30s", only: Iterable[str] = (), without: Iterable[str] = ()
    ) -> None:
        """Run the parts until this is cancelled: async handlers in this event loop.

        Sync handlers run in threads. Raises AppRefused, with all that is wrong, before anything
        runs.
        """
        async with self._in_loop(drain, only, without):
            await asyncio.get_running_loop().create_future()

    @asynccontextmanager
    async def lifespan(self, _of: object = None, *, drain: Span = "30s") -> AsyncIterator[None]:
        """Run the parts while the block runs: ``FastAPI(lifespan=app.lifespan)``.

        Async handlers run in this event loop, sync ones in threads. At the end, handlers that have
        begun end within ``drain``. Raises AppRefused, with all that is wrong, before anything runs.
        """
        async with self._in_loop(drain, (), ()):
            yield

    @property
    def hw(self) -> Headwater:
        """The client of the store that the parts of this process share, for their handlers.

        Safe for threads. Raises InvalidInput while the application does not run in this process.
        """
        return self._shared().hw

    @property
    def async_hw(self) -> AsyncHeadwater:
        """The same for async handlers: the client of their event loop."""
        return self._shared().async_hw

    def _shared(self) -> Resources:
        if self.resources is None:
            raise InvalidInput(
                "the application does not run in this process; use its clients in handlers only, "
                "and headwater.connect() elsewhere"
            )
        return self.resources

    @property
    def is_stopping(self) -> bool:
        """Whether the parts that run in this process were asked to end."""
        return self._runner is not None and self._runner.is_stopping

    def states(self) -> list[PartState]:
        """Return what is known of each part that runs in this process."""
        return [] if self._runner is None else self._runner.states()

    def _begin(self, only: Iterable[str], without: Iterable[str]) -> Runner:
        """Check the chosen parts, and return what runs them."""
        if self._runner is not None:
            raise InvalidInput("the application runs already; stop it first")
        parts = chosen(self.parts.values(), only, without)
        resources = Resources(self.places, wait_ms=START_MS)
        try:
            faults = check_parts(parts, resources)
            refuse_faults(faults)
        except BaseException:
            resources.close()
            raise
        for fault in faults:
            log.warning("%s", fault)
        self._runner, self.resources = Runner(parts, resources), resources
        return self._runner

    def _over(self, runner: Runner) -> None:
        self._runner = self.resources = None
        runner.close()

    @asynccontextmanager
    async def _in_loop(
        self, drain: Span, only: Iterable[str], without: Iterable[str]
    ) -> AsyncIterator[None]:
        drain_s = check_span(drain, "drain") / 1000
        runner = await asyncio.to_thread(self._begin, only, without)
        tasks = asyncio.create_task(runner.run_tasks())
        runner.start_threads()
        try:
            yield
        finally:
            runner.stop()
            # A second cancellation ends the wait.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([tasks], timeout=drain_s)
            tasks.cancel()
            await asyncio.wait([tasks])
            await asyncio.to_thread(runner.drain, drain_s)
            self._over(runner)
