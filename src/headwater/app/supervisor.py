"""The supervisor: starts the processes of an application, keeps their number, and ends them.

It runs no code of the application itself, so the application cannot harm it. One process checks the
application first; only when nothing is wrong are parts assigned. A process that dies is started
again, later each time. When the supervisor dies, by whatever means, its processes end.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headwater.app.parts import FIRST_REST_S, LONGEST_REST_S, Fault
from headwater.app.processes import (
    GRACE_S,
    Assign,
    Begin,
    Checked,
    ChildProcess,
    Hurry,
    PartPlan,
    PartTotal,
    ProcessPlace,
    Stop,
    Totals,
    WatchedFiles,
    how_it_ended,
    plan_processes,
)
from headwater.errors import AppRefused
from headwater.kernel.failures import delay_s
from headwater.kernel.stopping import StopSignal, stop_on_signals

log = logging.getLogger("headwater.app")

# How often it looks at what no pipe tells: files that changed, restarts and kills that are due.
_LOOK_S: Final = 0.25
# What processes have left after a second signal.
_HURRY_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class RunPlan:
    """How an application is run. ``memory`` is the most bytes of a process; 0 is no limit.

    With ``served``, it is a server of that, instead of the App that ``target`` names.
    """

    target: str
    store: str | None = None
    db: str | None = None
    only: Sequence[str] = ()
    without: Sequence[str] = ()
    workers: int = 1
    drain_ms: int = 30_000
    memory: int = 0
    log: str = "text"
    reload: bool = False
    watched: bool = False
    served: Any = None


class Supervisor:
    """Runs an application by a plan until it is told to stop.

    ``show_faults`` is called with what a check found; ``lines`` with each line that processes
    print, which is inherited without it. ``counts`` is a file for the counts of all processes.
    ``ready`` is called once all parts run in all processes.
    """

    def __init__(
        self,
        plan: RunPlan,
        show_faults: Callable[[Checked], None] = lambda _: None,
        lines: Callable[[str], None] | None = None,
        counts: int | None = None,
        ready: Callable[[], None] | None = None,
    ) -> None:
        self._plan = plan
        self._show_faults = show_faults
        self._lines = lines
        self._counts = counts
        self._ready = ready
        self._places: list[ProcessPlace] = []
        self._files = WatchedFiles()
        self._totals = Totals()
        self._stop = StopSignal()
        self._signals = 0
        self._dead_checks = 0
        self.draining = False

    @property
    def processes(self) -> int:
        """How many processes there should be."""
        return len(self._places)

    def parts(self) -> list[PartTotal]:
        """Return what all processes together say of each part; from any thread."""
        return self._totals.parts(
            [place.process for place in list(self._places) if place.process is not None]
        )

    def missing(self) -> str | None:
        """Return why not all parts run in all processes, or None; from any thread."""
        if self.draining:
            return "the application is stopping"
        if not self._places:
            return "the application is starting"
        for place in list(self._places):
            process = place.process
            if process is None:
                return f"process {place.plan.number} is not running"
            for part in process.parts.values():
                if part.status != "running":
                    return f"part {part.name} is {part.status}{f': {part.why}' if part.why else ''}"
            if process.trouble is not None:
                return f"process {place.plan.number}: {process.trouble}"
            if not process.is_ready:
                return f"process {place.plan.number} is starting"
        return None

    def run(self) -> None:
        """Run until a signal; raises AppRefused when the application cannot run."""
        with stop_on_signals(self._signalled):
            try:
                while True:
                    self._start_all()
                    self._watch()
                    if self._stop.is_set():
                        return
            finally:
                self._end_all()

    def check(self) -> Checked:
        """Let a process check the application, and return what it found."""
        with stop_on_signals(self._signalled):
            process = self._spawn(0, check=True)
            try:
                checked = self._wait_for_check(process)
            finally:
                self._end(process)
        if checked is None and process.code:
            died = f"the process that checks it {how_it_ended(process.code)}"
            return Checked([], [Fault("application", f"{died}; its output says why")], [])
        return checked or Checked([], [], [])

    def stop(self) -> None:
        """Ask for the end, as SIGTERM does; once more, to hurry. From any thread."""
        self._signalled()

    def _start_all(self) -> None:
        """Check the application by a first process, and then start the others."""
        since_ns = time.time_ns()
        first = self._spawn(0, check=True)
        checked = self._wait_for_check(first)
        while checked is None:
            code = first.code
            self._end(first)
            if code is None or not self._rest_after_death(code):
                return
            first = self._spawn(0, check=True)
            checked = self._wait_for_check(first)
        self._dead_checks = 0
        self._files.watch(checked.files, since_ns)
        if checked.faults:
            self._show_faults(checked)
        if fatal := [str(fault) for fault in checked.faults if fault.fatal]:
            self._end(first)
            if not self._plan.reload:
                raise AppRefused(fatal)
            log.info("waiting for a change of the application's files")
            return
        self._totals.plans(checked.parts)
        plans = plan_processes(checked.parts, self._plan.workers)
        self._places = [ProcessPlace(plan) for plan in plans]
        self._places[0].process = first
        self._assign(self._places[0], first, checked.parts)
        for place in self._places[1:]:
            self._start(place)

    def _wait_for_check(self, process: ChildProcess) -> Checked | None:
        """Return what a process found; None when it died first, or when this is to stop."""
        while process.checked is None and not self._stop.is_set():
            self._hear([process], _LOOK_S)
            if process.code is not None and process.checked is None:
                with suppress(BlockingIOError):
                    self._hear([process], 0)
                break
        return None if self._stop.is_set() else process.checked

    def _rest_after_death(self, code: int) -> bool:
        """Wait before the application is checked again, as its process died; longer each time.

        Returns False when this is to stop instead.
        """
        self._dead_checks += 1
        rest_s = delay_s(self._dead_checks, FIRST_REST_S, LONGEST_REST_S)
        words = "the process that checks the application %s, and is started again in %g s"
        log.error(words, how_it_ended(code), rest_s)
        return not self._stop.wait(rest_s)

    def _watch(self) -> None:
        """Keep the processes running, until the end or until files of the application changed."""
        while not self._stop.is_set():
            self._hear([p.process for p in self._places if p.process is not None], _LOOK_S)
            if self._ready is not None and self.missing() is None:
                self._ready()
                self._ready = None
            for place in self._places:
                self._look_at(place)
            if self._plan.reload and (changed := self._files.changed()):
                log.info("%s changed: the application is started again", changed)
                self._end_all()
                self._places = []
                return

    def _look_at(self, place: ProcessPlace) -> None:
        process = place.process
        if process is None:
            if time.monotonic() >= place.start_at:
                self._start(place)
        elif process.code is not None:
            self._bury(place, process, process.code)
        else:
            process.kill_if_due()
            place.replace_if_unfit(process, self._plan.memory, self._plan.drain_ms)

    def _bury(self, place: ProcessPlace, process: ChildProcess, code: int) -> None:
        process.close()
        self._totals.bury(process.parts)
        if place.bury(process, code):
            self._totals.restarted(place.plan.parts)

    def _spawn(self, number: int, *, check: bool) -> ChildProcess:
        plan = self._plan
        share = () if self._counts is None else (self._counts,)
        begin = Begin(
            *(plan.target, plan.store, plan.db, list(plan.only), list(plan.without)),
            *(plan.log, number, check, plan.memory, plan.served),
        )
        # Raises for words that are not UTF-8, before a process is started that nobody would end.
        msgspec.json.encode(begin)
        process = ChildProcess(share, self._lines)
        process.tell(begin)
        return process

    def _start(self, place: ProcessPlace) -> None:
        place.process = self._spawn(place.plan.number, check=False)
        self._assign(place, place.process, self._totals.known)

    def _assign(
        self, place: ProcessPlace, process: ChildProcess, parts: Sequence[PartPlan]
    ) -> None:
        # One process looks up the lag of each part.
        first = {
            part.name: next(p.plan.number for p in self._places if part.name in p.plan.parts)
            for part in parts
        }
        lags = [name for name, number in first.items() if number == place.plan.number]
        drain_ms, watched, count = self._plan.drain_ms, self._plan.watched, len(self._places)
        process.tell(
            Assign(
                *(list(place.plan.parts), place.plan.number, drain_ms),
                watched=watched,
                lags=lags if watched else [],
                counts=self._counts,
                processes=count,
            )
        )

    def _hear(self, processes: Sequence[ChildProcess], wait_s: float) -> None:
        """Take what processes say, waiting this long for it, or for a signal to stop."""
        poll = select.poll()
        speakers = {pipe: process for process in processes for pipe in process.pipes()}
        for pipe in speakers:
            poll.register(pipe, select.POLLIN | select.POLLHUP)
        if not self._stop.is_set():
            # Once it is set, a poll of it returns at once.
            poll.register(self._stop, select.POLLIN)
        elif not speakers:
            wait_s /= 10
        try:
            for pipe, _ in poll.poll(wait_s * 1000):
                if pipe in speakers:
                    speakers[pipe].hear(pipe)
        except KeyboardInterrupt:
            self._signalled()

    def _signalled(self) -> None:
        self._signals += 1
        self._stop.set()

    def _end_all(self) -> None:
        """Drain all processes; a second signal hurries them, a third one kills them."""
        self.draining = self._stop.is_set()
        left = [place.process for place in self._places if place.process is not None]
        for process in left:
            process.tell(Stop())
            process.kill_after(self._plan.drain_ms / 1000 + GRACE_S)
        if left and self.draining:
            seconds = self._plan.drain_ms / 1000
            words = "stopping: what has begun may take %g s; a second signal ends that"
            log.info(words, seconds)
        told = 1
        while left:
            if self._signals > told:
                told = self._signals
                for process in left:
                    process.tell(Hurry())
                    process.kill_after(_HURRY_S if told == 2 else 0)
            self._hear(left, _LOOK_S)
            for process in [one for one in left if one.code is not None]:
                process.close()
                self._totals.bury(process.parts)
                left.remove(process)
            for process in left:
                if process.kill_if_due():
                    log.warning("a process did not end in time, and was killed")
        for place in self._places:
            place.process = None

    def _end(self, process: ChildProcess) -> None:
        """End a process that has no parts yet."""
        process.tell(Stop())
        process.kill_after(GRACE_S)
        while process.code is None:
            self._hear([process], _LOOK_S)
            process.kill_if_due()
        process.close()
