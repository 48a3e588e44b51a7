"""The ways to run an application in this process: alone, beside a program, or in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from headwater.app.checking import check_parts, refuse_faults
from headwater.app.part_run import PartState
from headwater.app.parts import Part, chosen
from headwater.app.resources import Places, Resources
from headwater.app.runner import Runner
from headwater.errors import InvalidInput
from headwater.kernel.failures import START_MS
from headwater.kernel.inputs import Span, check_span
from headwater.kernel.stopping import StopSignal, stop_on_signals, wait_for_any

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater
    from headwater.client import Headwater

log = logging.getLogger("headwater.app")


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
