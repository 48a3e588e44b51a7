"""Processes that use the log while things are killed: each notes what it does before and after.

A note is one line of a file that only its worker appends to. It is given to the system before the
call that it announces, so that it outlives a kill -9 of the worker. A worker that is started again
continues from its own notes.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
import redis

import headwater
from headwater.check.history import (
    AckBegun,
    AckDone,
    Anomaly,
    HistoryEvent,
    ReadBegun,
    ReadDone,
    ReturnBegun,
    WriteBegun,
    WriteDone,
    check_group,
    check_log,
)
from headwater.errors import StoreError
from headwater.kernel.stopping import STOP_SIGNALS
from headwater.store import embedded

STREAM = "verify"
RETRYING = "retrying"
ONCE = "once"

Style = Literal["one", "many", "numbered"]


def now_ms() -> float:
    """Read the clock that all processes of this machine share."""
    return time.monotonic() * 1000


class Notes:
    """The events of one worker, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a+b", buffering=0)
        if size := self._file.seek(0, os.SEEK_END):
            self._file.seek(size - 1)
            if self._file.read(1) != b"\n":
                # The process before this one was killed in the middle of a line.
                self._file.write(b"\n")

    def note(self, event: HistoryEvent) -> None:
        """Write an event down; it stays when this process is killed."""
        self._file.write(msgspec.json.encode(event) + b"\n")

    def events(self) -> list[HistoryEvent]:
        """Return all events so far."""
        return noted(self._path)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def noted(path: Path) -> list[HistoryEvent]:
    """Return all events of a file of notes; a line that a kill cut off counts as not written."""
    events = []
    for line in path.read_bytes().split(b"\n"):
        with suppress(msgspec.DecodeError):
            events.append(msgspec.json.decode(line, type=HistoryEvent))
    return events


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker has to do, and until when."""

    name: str
    life: int
    url: str
    notes: Path
    seed: int
    until_ms: float
    ack_ms: int

    def chance(self) -> random.Random:
        """Return random numbers that are the same in each run of this life."""
        return random.Random(f"{self.seed} {self.name} {self.life}")

    def calls(self) -> Iterator[str]:
        """Yield a new name for each call until the time is up."""
        number = 0
        while now_ms() < self.until_ms:
            number += 1
            yield f"{self.name}.{self.life}.{number}"


def write(job: Job, style: Style) -> None:
    """Write until time is up: single messages, batches, or batches with a sequence."""
    notes, chance = Notes(job.notes), job.chance()
    acked = sum(isinstance(event, WriteDone) for event in notes.events())
    with headwater.connect(job.url) as hw:
        stream = hw.stream(STREAM)
        for call in job.calls():
            sequence = acked + 1
            if style == "numbered":
                # The same batch until it is acknowledged, in this life or another.
                size = _size(random.Random(f"{job.seed} {job.name} {sequence}"))
                values = [f"{job.name}#{sequence}.{place}" for place in range(size)]
            else:
                size = 1 if style == "one" else _size(chance)
                values = [f"{call}.{place}" for place in range(size)]
            notes.note(WriteBegun(call, now_ms(), values))
            try:
                offsets = _write(stream, style, values, job.name, sequence)
            except StoreError:
                continue
            notes.note(WriteDone(call, now_ms(), offsets.start, offsets.stop - 1))
            acked += 1
            # Many moments to be killed in matter more than many messages.
            time.sleep(chance.random() * 0.02)


def _size(chance: random.Random) -> int:
    """Return the size of a batch: plain, packed, and sometimes a whole node."""
    return chance.randint(1, chance.choice([1, 8, 50, 1200]))


def _write(
    stream: headwater.Stream, style: Style, values: list[str], producer: str, sequence: int
) -> range:
    if style == "one":
        offset = stream.write(values[0], values[0])
        return range(offset, offset + 1)
    entries = [(value, value) for value in values]
    if style == "many":
        return stream.write_many(entries)
    return stream.write_many(entries, producer=producer, sequence=sequence)


def take(job: Job, retrying: bool) -> None:
    """Read through a group until time is up; with retry, acknowledge most of it."""
    notes, chance = Notes(job.notes), job.chance()
    with headwater.connect(job.url) as hw:
        group = hw.stream(STREAM).group(RETRYING if retrying else ONCE, member=job.name)
        for call in job.calls():
            try:
                offsets = take_once(job, group, notes, call, chance)
                if offsets and retrying:
                    settle(group, notes, call, offsets, chance.random())
            except StoreError:
                continue


def take_once(
    job: Job, group: headwater.Group, notes: Notes, call: str, chance: random.Random
) -> list[int]:
    """Read once, and return the offsets that were delivered."""
    ack_ms = job.ack_ms if group.name == RETRYING else None
    notes.note(ReadBegun(call, now_ms(), group.name, ack_ms))
    messages = group.read(
        chance.randint(1, 300), block_ms=chance.choice([0, 50, 400]), ack_ms=ack_ms
    )
    if messages:
        facts = [(m.offset, m.value.decode(), m.attempt) for m in messages]
        notes.note(ReadDone(call, now_ms(), facts))
    return [message.offset for message in messages]


def settle(
    group: headwater.Group, notes: Notes, call: str, offsets: list[int], luck: float
) -> None:
    """Acknowledge what was read; but sometimes drop it, or nack it."""
    if luck < 0.05:
        return
    if luck < 0.1:
        notes.note(ReturnBegun(call, now_ms(), group.name, offsets))
        group.nack(*offsets)
        return
    notes.note(AckBegun(call, now_ms(), group.name, offsets))
    group.ack(*offsets)
    notes.note(AckDone(call, now_ms()))


def keep_house(job: Job) -> None:
    """Seal, tidy and rewrite all the time, as any number of housekeepers may."""
    chance = job.chance()
    with headwater.connect(job.url) as hw:
        stream = hw.stream(STREAM)
        for _ in job.calls():
            try:
                luck = chance.random()
                if luck < 0.05:
                    # The server then rewrites its whole file, and may be killed at that.
                    hw.store.command("BGREWRITEAOF")
                elif luck < 0.5:
                    stream.seal()
                else:
                    hw.keep(STREAM)
            except (StoreError, redis.RedisError):
                continue
            time.sleep(0.02)


def roles(writers: int, members: int) -> dict[str, Callable[[Job], None]]:
    """Return the workers by name: every style of writing, both kinds of group, a housekeeper."""
    styles: tuple[Style, ...] = ("numbered", "many", "one")
    found: dict[str, Callable[[Job], None]] = {"keeper": keep_house}
    for place in range(writers):
        style = styles[place % len(styles)]
        found[f"writer-{place}"] = lambda job, style=style: write(job, style)  # type: ignore[misc]
    for place in range(members):
        retrying = place % 3 != 2
        found[f"member-{place}"] = lambda job, on=retrying: take(job, on)  # type: ignore[misc]
    return found


RETRY_MS = 1500
# What is left when all have stopped must arrive within this time, or it counts as lost.
DRAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class KillPlan:
    """How long a run takes, how many processes work, how many kills there are, and the seed.

    Everything random follows from the seed. What the processes do between two kills does not: a run
    with the same seed kills the same things at the same times, and no more can be promised.
    """

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
