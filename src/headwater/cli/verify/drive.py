"""The schedule: start workers, kill them and the server at random moments, then check the notes.

Everything random follows from one seed. What the processes do between two kills does not: a run
with the same seed kills the same things at the same times, and no more can be promised.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import headwater
from headwater.check.history import (
    AckBegun,
    Anomaly,
    HistoryEvent,
    ReadBegun,
    ReadDone,
    WriteBegun,
    WriteDone,
    check_group,
    check_log,
)
from headwater.cli.verify.workers import (
    ONCE,
    RETRYING,
    STREAM,
    Job,
    Notes,
    noted,
    now_ms,
    roles,
    settle,
    take_once,
)
from headwater.errors import StoreError
from headwater.kernel.stopping import STOP_SIGNALS
from headwater.store import embedded

RETRY_MS = 1500
# What is left when all have stopped must arrive within this time, or it counts as lost.
DRAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class KillPlan:
    """How long a run takes, how many processes work, how many kills there are, and the seed."""

    seconds: float
    writers: int
    members: int
    kills: int
    seed: int


@dataclass(slots=True)
class VerifyReport:
    """What happened, in numbers, and every rule that was broken."""

    killed: dict[str, int] = field(default_factory=dict)
    written: int = 0
    unknown: int = 0
    messages: int = 0
    delivered: int = 0
    again: int = 0
    acked: int = 0
    anomalies: list[Anomaly] = field(default_factory=list)


def run_plan(plan: KillPlan, directory: Path) -> VerifyReport:
    """Run a plan on an embedded store in the directory; its notes are left there, too."""
    run = _Run(plan, directory)
    report = VerifyReport()
    with headwater.connect(run.url) as hw:
        run.work(report)
        with contextlib.closing(Notes(directory / "drain.notes")) as notes:
            drained = drain(hw, run.job("drain"), notes)
        log = [
            (offset, value.decode())
            for batch in hw.stream(STREAM).scan()
            for offset, value in zip(
                batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True
            )
        ]
    if not drained:
        report.anomalies.append(Anomaly("stuck", f"the group was not drained in {DRAIN_S:.0f} s"))
    events = [event for path in directory.glob("*.notes") for event in noted(path)]
    report.anomalies += check_log(events, log)
    report.anomalies += check_group(events, log, RETRYING, drained=drained)
    # Without retry, what a killed member had taken is gone; without kills, nothing is.
    report.anomalies += check_group(events, log, ONCE, drained=drained and not plan.kills)
    _count(report, events, log)
    return report


def drain(hw: headwater.Headwater, job: Job, notes: Notes) -> bool:
    """Read and acknowledge all that is left; returns whether that came to an end.

    When the last kill was of the server, and no worker is left to notice it, the drain does.
    """
    chance = job.chance()
    number = 0
    deadline = time.monotonic() + DRAIN_S
    for name in (RETRYING, ONCE):
        group = hw.stream(STREAM).group(name, member=job.name)
        left = True
        while left:
            if time.monotonic() > deadline:
                return False
            number += 1
            call = f"drain.{number}"
            with suppress(StoreError):
                # Takes nothing, but makes the group if nobody has read through it.
                group.read(0)
                offsets = take_once(job, group, notes, call, chance)
                if offsets and name == RETRYING:
                    settle(group, notes, call, offsets, 1.0)
                facts = group.info()
                left = bool(facts.pending or facts.lag)
    return True


def _count(report: VerifyReport, events: list[HistoryEvent], log: list[tuple[int, str]]) -> None:
    begun = sum(isinstance(event, WriteBegun) for event in events)
    retrying = {e.call for e in events if isinstance(e, ReadBegun) and e.group == RETRYING}
    attempts = [
        attempt
        for event in events
        if isinstance(event, ReadDone) and event.call in retrying
        for _, _, attempt in event.messages
    ]
    report.written = sum(isinstance(event, WriteDone) for event in events)
    report.unknown = begun - report.written
    report.messages = len(log)
    report.delivered = len(attempts)
    report.again = sum(attempt > 1 for attempt in attempts)
    report.acked = sum(len(event.offsets) for event in events if isinstance(event, AckBegun))


class _Run:
    """The processes of one run."""

    def __init__(self, plan: KillPlan, directory: Path) -> None:
        self._plan = plan
        self._directory = directory
        self._store = directory / "store"
        self.url = f"embedded://{self._store}"
        self._until_ms = now_ms() + plan.seconds * 1000
        self._roles = roles(plan.writers, plan.members)
        self._lives = dict.fromkeys(self._roles, 0)
        self._pids: dict[str, int] = {}

    def job(self, name: str) -> Job:
        """Describe the next life of a worker."""
        return Job(
            name=name,
            life=self._lives.get(name, 0),
            url=self.url,
            notes=self._directory / f"{name}.notes",
            seed=self._plan.seed,
            until_ms=self._until_ms,
            ack_ms=RETRY_MS,
        )

    def work(self, report: VerifyReport) -> None:
        """Let all work until the time is up, and kill what the plan says meanwhile."""
        try:
            for name in self._roles:
                self._start(name)
            self._kill_by_chance(report)
            self._await_workers(report)
        finally:
            # None is left but after an error or a signal.
            for pid in self._pids.values():
                with suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)

    def _kill_by_chance(self, report: VerifyReport) -> None:
        chance = random.Random(self._plan.seed)
        begun = time.monotonic()
        moments = sorted(
            chance.uniform(0.05, 0.95) * self._plan.seconds for _ in range(self._plan.kills)
        )
        for moment in moments:
            time.sleep(max(0.0, begun + moment - time.monotonic()))
            victim = "server" if chance.random() < 0.4 else chance.choice(list(self._roles))
            if self._kill(victim):
                kind = victim.partition("-")[0]
                report.killed[kind] = report.killed.get(kind, 0) + 1

    def _await_workers(self, report: VerifyReport) -> None:
        while self._pids:
            name, pid = next(iter(self._pids.items()))
            _, status = os.waitpid(pid, 0)
            del self._pids[name]
            if status:
                said = self._directory / f"{name}.trace"
                words = said.read_text() if said.exists() else f"wait status {status}"
                report.anomalies.append(Anomaly("failed", f"{name}: {words}"))

    def _start(self, name: str) -> None:
        self._lives[name] += 1
        job, work = self.job(name), self._roles[name]
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal that comes between the two would leave a process that nobody ends.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            pid = os.fork()
            if pid:
                self._pids[name] = pid
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if not pid:
            _live(work, job, self._directory / f"{name}.trace")

    def _kill(self, victim: str) -> bool:
        if victim == "server":
            pid = embedded.status(self._store).pid
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
            return pid is not None
        os.kill(self._pids[victim], signal.SIGKILL)
        os.waitpid(self._pids.pop(victim), 0)
        self._start(victim)
        return True


def _live(work: Callable[[Job], None], job: Job, trace: Path) -> None:
    """Work in a process of its own, and end it without running what the parent would run."""
    status = 1
    try:
        work(job)
        status = 0
    except BaseException:  # noqa: BLE001  it is in the report
        trace.write_text(traceback.format_exc())
    finally:
        os._exit(status)
