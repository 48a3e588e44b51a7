"""A process of an application: runs the parts that its supervisor assigns, and reports on them.

It ends when its supervisor asks it to, by SIGTERM, and when its supervisor is gone, by whatever
means; each time it finishes running work within the time of the drain, and returns the rest.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import mmap
import os
import resource
import select
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

from headwater.app import log_lines
from headwater.app.application import App, load_app
from headwater.app.parts import Fault, Part, Places, Resources, SharedFile, chosen
from headwater.app.processes import (
    Assign,
    Begin,
    Checked,
    Command,
    Hurry,
    Lines,
    PartPlan,
    Report,
    Stop,
    send,
)
from headwater.app.running import Runner, check_parts
from headwater.errors import HeadwaterError, InvalidInput
from headwater.kernel.failures import START_MS
from headwater.kernel.instrument import also_installed
from headwater.kernel.stopping import StopSignal, stop_on_signals
from headwater.log.handles import StreamHandle
from headwater.log.reading import info

log = logging.getLogger("headwater.app")

REPORT_S: Final = 1.0
# What was done is reported after so long: a process that is killed has not reported that much.
COUNT_S: Final = 0.1
# How long a check waits for a store of which no server answers.
WAIT_MS: Final = 10_000
# A store that has not answered by then is down.
STORE_S: Final = 1.0
BAD_APP: Final = 2


class Child:
    """One process, between the pipe of its commands and that of its reports."""

    def __init__(self, commands: int, reports: int) -> None:
        self._commands: Lines[Command] = Lines(commands, Command)
        self._reports = reports
        self._stop = StopSignal()
        self._hurry = StopSignal()
        self._waiting: list[Command] = []
        self._lags: dict[str, int | None] = {}
        self._trouble: str | None = None
        self._target = ""

    def run(self) -> int:
        """Do what the supervisor says; returns the exit code."""
        with stop_on_signals(self._signalled):
            begin = self._next()
            if not isinstance(begin, Begin):
                return 0
            parts_of: dict[str, str] = {}
            form: Any = begin.log
            log_lines.configure(form, begin.number, parts_of)
            try:
                app, parts = self._load(begin)
            except Exception as error:  # noqa: BLE001  it may be no mistake of the application
                at = traceback.extract_tb(error.__traceback__)[-1]
                what = f"{type(error).__name__}: {error} ({at.filename}, line {at.lineno})"
                log.error("the application could not be checked: %s", what)
                return 1
            parts_of.update((part.object, part.name) for part in parts)
            if app is None:
                return BAD_APP
            assigned = self._next()
            if not isinstance(assigned, Assign):
                return 0
            return self._work(app, parts, assigned)

    def _load(self, begin: Begin) -> tuple[App | None, list[Part]]:
        """Import and check the application, and answer; without it when it cannot run."""
        faults: list[Fault] = []
        parts: list[Part] = []
        app: App | None = None
        try:
            self._target = begin.target
            app = _app_of(begin)
            given = app.places
            app.places = Places(begin.store or given.store, begin.db or given.db, given.profile)
            parts = chosen(app.parts.values(), begin.only, begin.without)
            if begin.check:
                faults = [*_check(parts, app.places), *_check_memory(begin.memory)]
        except InvalidInput as error:
            if error.__cause__ is not None:
                log.error("the application cannot be imported", exc_info=error.__cause__)
            faults.append(Fault("application", str(error)))
        plans = [PartPlan(p.name, p.kind, p.object, p.spread, p.processes) for p in parts]
        self._tell(Checked(plans, faults, _files(begin.target)))
        return (None if any(fault.fatal for fault in faults) else app), parts

    def _work(self, app: App, parts: list[Part], assigned: Assign) -> int:
        mine = [part for part in parts if part.name in assigned.parts]
        file = -1 if assigned.counts is None else assigned.counts
        shared = SharedFile(assigned.number, assigned.processes, file)
        resources = app.resources = Resources(app.places, wait_ms=START_MS, shared=shared)
        runner = Runner(mine, resources, self._target)
        lagging = [part for part in mine if part.name in assigned.lags]
        with _counted(mine, shared):
            runner.start()
            if assigned.watched:
                threading.Thread(
                    target=self._look_at_store, args=(lagging, resources), daemon=True
                ).start()
            self._report_until(runner, [self._stop.fileno()], None)
            runner.stop()
            ends = [runner.ended.fileno(), self._hurry.fileno()]
            self._report_until(runner, ends, time.monotonic() + assigned.drain_ms / 1000)
            stuck = not runner.ended.is_set()
            runner.give_back()
            self._report(runner)
        if stuck:
            _end_now()
        runner.close()
        return 0

    def _report_until(self, runner: Runner, ends: list[int], until: float | None) -> None:
        """Report and obey until one of the ends is readable, or a time has come."""
        said = None
        at = 0.0
        while True:
            now = time.monotonic()
            states = [(state.status, state.restarts, state.counts) for state in runner.states()]
            if states != said or now >= at:
                self._report(runner)
                said, at = states, now + REPORT_S
            wait_s = COUNT_S
            if until is not None:
                wait_s = min(wait_s, until - now)
                if wait_s <= 0:
                    return
            if self._obey(ends, wait_s):
                return

    def _obey(self, ends: list[int], wait_s: float) -> bool:
        """Wait for commands, so long; returns whether one of the ends became readable."""
        poll = select.poll()
        for end in ends:
            poll.register(end, select.POLLIN)
        if not self._commands.ended:
            poll.register(self._commands.pipe, select.POLLIN | select.POLLHUP)
        ready = {number for number, _ in poll.poll(wait_s * 1000)}
        if self._commands.pipe in ready:
            for command in self._commands.read():
                if isinstance(command, Stop):
                    self._stop.set()
                elif isinstance(command, Hurry):
                    self._stop.set()
                    self._hurry.set()
                else:
                    self._waiting.append(command)
            if self._commands.ended:
                # The supervisor is gone, however that came.
                self._stop.set()
        return bool(ready & set(ends))

    def _next(self) -> Command | None:
        """Wait for the next command; returns None when it is to stop."""
        while not self._waiting:
            if self._stop.is_set() or self._obey([self._stop.fileno()], REPORT_S):
                return None
        return self._waiting.pop(0)

    def _report(self, runner: Runner) -> None:
        self._tell(Report(runner.states(), memory_bytes(), self._lags, self._trouble))

    def _tell(self, news: Checked | Report) -> None:
        with contextlib.suppress(OSError):  # a supervisor that is gone is noticed elsewhere
            send(self._reports, news)

    def _signalled(self) -> None:
        (self._hurry if self._stop.is_set() else self._stop).set()

    def _look_at_store(self, parts: list[Part], resources: Resources) -> None:
        """Look from time to time whether the store answers, and how much waits for parts."""
        while not self._stop.wait(REPORT_S):
            try:
                resources.hw.store.run(info(StreamHandle("headwater", set())), STORE_S)
                self._trouble = None
                for part in parts:
                    self._lags[part.name] = part.lag(resources)
            except HeadwaterError as error:
                self._trouble = str(error)
                self._lags.clear()


def memory_bytes() -> int:
    """Return the memory that this process uses: now on Linux, elsewhere at its height so far."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
        return pages * mmap.PAGESIZE
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _app_of(begin: Begin) -> App:
    if begin.served is None:
        return load_app(begin.target)
    from headwater.app.serving import app_of

    return app_of(begin.served)


def _check(parts: list[Part], places: Places) -> list[Fault]:
    resources = Resources(places, wait_ms=WAIT_MS)
    try:
        return check_parts(parts, resources)
    finally:
        resources.close()


def _check_memory(most: int) -> Iterator[Fault]:
    """Refuse a limit that a process exceeds before its first message: it would not work at all."""
    used = memory_bytes()
    if 0 < most < used:
        enough = -(-2 * used // 10_000_000) * 10
        yield Fault(
            "--max-memory",
            f"a process of this application uses {used // 1_000_000} MB before its first message, "
            f"and {most // 1_000_000} MB are allowed; give room to work, as {enough}MB",
        )


def _files(target: str) -> list[str]:
    """Return the files of modules that are the application's: those under the working directory."""
    here = Path.cwd()
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    with contextlib.suppress(ImportError, ValueError):
        # It has none of its own when its import failed.
        spec = importlib.util.find_spec(target.partition(":")[0])
        files.add(None if spec is None else spec.origin)
    return sorted(
        file
        for file in files
        if file and Path(file).is_relative_to(here) and "site-packages" not in file
    )


@contextlib.contextmanager
def _counted(parts: list[Part], shared: SharedFile) -> Iterator[None]:
    """Count operations in the memory that all processes share, if the supervisor shows it."""
    if shared.file < 0 or any(part.counts_itself for part in parts):
        yield
        return
    from headwater.metrics.operations import OperationMetrics, shared_counts

    memory = shared_counts(shared.processes, shared.file)
    with also_installed(OperationMetrics(memory, shared.number)):
        yield


def _end_now() -> NoReturn:
    """End although handlers still run: their messages are returned."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(Child(int(sys.argv[1]), int(sys.argv[2])).run())
