"""The processes of an application, as its supervisor sees them: messages, places, totals."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from headwater.app.parts import (
    FIRST_REST_S,
    LONGEST_REST_S,
    WELL_S,
    Fault,
    PartCounts,
    PartState,
)
from headwater.kernel.failures import delay_s

T = TypeVar("T")

_PIECE = 65536


class Begin(msgspec.Struct, tag=True, frozen=True):
    """To a process: import the application, check it if asked to, and answer with Checked.

    ``memory`` is the most bytes that it may use; 0 is no limit. With ``served``, the application
    is a server of that.
    """

    target: str
    store: str | None
    db: str | None
    only: list[str]
    without: list[str]
    log: str
    number: int
    check: bool
    memory: int
    served: Any = None


class Assign(msgspec.Struct, tag=True, frozen=True):
    """To a process: run these parts, and report.

    When it is ``watched``, it looks whether the store answers, and at the lag of the ``lags``.
    ``counts`` is the file in which all processes count for metrics, of this many processes.
    """

    parts: list[str]
    number: int
    drain_ms: int
    watched: bool
    lags: list[str]
    counts: int | None = None
    processes: int = 0


class Stop(msgspec.Struct, tag=True, frozen=True):
    """To a process: finish what is begun, return the rest, and end."""


class Hurry(msgspec.Struct, tag=True, frozen=True):
    """To a process that stops: return what is not done now, and end."""


class PartPlan(msgspec.Struct, frozen=True):
    """What a supervisor knows of a part before it runs."""

    name: str
    kind: str
    object: str
    spread: bool
    processes: int | None


class Checked(msgspec.Struct, tag=True, frozen=True):
    """From a process: what the application has, what is wrong with it, and its files."""

    parts: list[PartPlan]
    faults: list[Fault]
    files: list[str]


class Report(msgspec.Struct, tag=True, frozen=True):
    """From a process, every second and soon after a change: its parts, and its bytes of memory.

    ``lags`` says how much waits for some of the parts. ``trouble`` is why the store cannot be used,
    if the process looks for that.
    """

    parts: list[PartState]
    memory: int
    lags: dict[str, int | None] = {}
    trouble: str | None = None


Command: TypeAlias = Begin | Assign | Stop | Hurry
News: TypeAlias = Checked | Report


class Lines(Generic[T]):
    """Reads documents of JSON from a pipe, one a line; ``read`` never waits for a whole one."""

    def __init__(self, pipe: int, kind: object) -> None:
        self.pipe = pipe
        self.ended = False
        self._decode = msgspec.json.Decoder(kind).decode
        self._rest = b""

    def fileno(self) -> int:
        """Return the file descriptor, for a poll."""
        return self.pipe

    def read(self) -> Iterator[T]:
        """Yield the documents that are there, after waiting for some bytes; none at the end."""
        data = os.read(self.pipe, _PIECE)
        self.ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield self._decode(line)


def send(pipe: int, document: Command | News) -> None:
    """Write a document to a pipe; raises OSError when nobody reads it."""
    data = msgspec.json.encode(document) + b"\n"
    while data:
        data = data[os.write(pipe, data) :]


class ProcessPlan(NamedTuple):
    """A process that should exist: its number, and the names of its parts."""

    number: int
    parts: tuple[str, ...]


def plan_processes(parts: Sequence[PartPlan], workers: int) -> list[ProcessPlan]:
    """Return the processes for parts: so many workers, and those that parts ask for themselves.

    A part that is spread runs in each worker, any other in the first one; a part that asks for
    processes runs in that many of its own, and in no worker.
    """
    shared = [part for part in parts if part.processes is None]
    found: list[tuple[str, ...]] = []
    for number in range(workers):
        names = tuple(part.name for part in shared if part.spread or number == 0)
        if names:
            found.append(names)
    for part in parts:
        found += [(part.name,)] * (part.processes or 0)
    return [ProcessPlan(number, names) for number, names in enumerate(found)]


# What a process that was asked to end has left after its drain, until it is killed.
GRACE_S: Final = 8.0


class ChildProcess:
    """A running process; ``lines`` is called with what it prints, unless that is inherited."""

    def __init__(self, share: tuple[int, ...], lines: Callable[[str], None] | None) -> None:
        for_child, self._commands = os.pipe()
        news, from_child = os.pipe()
        os.set_blocking(self._commands, False)
        captured = None if lines is None else subprocess.PIPE
        try:
            # A session of its own: Ctrl-C in a terminal is for the supervisor alone.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headwater.app.child", str(for_child), str(from_child)],
                pass_fds=(for_child, from_child, *share),
                stdin=subprocess.DEVNULL,
                stdout=captured,
                stderr=subprocess.STDOUT if captured else None,
                start_new_session=True,
            )
        finally:
            os.close(for_child)
            os.close(from_child)
        self._news: Lines[News] = Lines(news, News)
        self._lines = lines
        self._printed = b""
        self.checked: Checked | None = None
        self.parts: dict[str, PartState] = {}
        self.lags: Mapping[str, int | None] = {}
        self.memory = 0
        self.trouble: str | None = None
        self.started = time.monotonic()
        self.kill_at: float | None = None

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """Whether it runs all parts that it was given."""
        return bool(self.parts) and all(part.status == "running" for part in self.parts.values())

    @property
    def code(self) -> int | None:
        """How it ended: an exit code, or a signal as a negative number; None while it lives."""
        return self._process.poll()

    def pipes(self) -> Iterator[int]:
        """Yield the file descriptors by which it is heard."""
        if not self._news.ended:
            yield self._news.pipe
        if self._process.stdout is not None:
            yield self._process.stdout.fileno()

    def hear(self, pipe: int) -> None:
        """Take what it says by one of its pipes, which has something, or is at its end."""
        if pipe == self._news.pipe:
            for news in self._news.read():
                if isinstance(news, Report):
                    self.memory, self.lags, self.trouble = news.memory, news.lags, news.trouble
                    self.parts = {part.name: part for part in news.parts}
                else:
                    self.checked = news
        elif self._process.stdout is not None and self._lines is not None:
            data = os.read(pipe, 65536)
            *lines, self._printed = (self._printed + data).split(b"\n")
            if not data:
                self._process.stdout.close()
                self._process.stdout = None
                lines = [self._printed] if self._printed else []
            for line in lines:
                self._lines(line.decode("utf-8", "backslashreplace"))

    def tell(self, command: Command) -> None:
        """Send a command; a process that is gone, or does not listen, is noticed elsewhere."""
        with contextlib.suppress(OSError):
            send(self._commands, command)

    def kill_after(self, seconds: float) -> None:
        """Let it be killed if it still lives then; the first of several times counts."""
        at = time.monotonic() + seconds
        self.kill_at = at if self.kill_at is None else min(at, self.kill_at)

    def kill_if_due(self) -> bool:
        """Kill it when its time has come; returns whether it was."""
        if self.kill_at is None or time.monotonic() < self.kill_at or self.code is not None:
            return False
        self._process.kill()
        return True

    def close(self) -> None:
        """Take what it said last, and close its pipes; after its end."""
        for pipe in list(self.pipes()):
            # A grandchild may hold the pipe open: read what is there, and no more.
            os.set_blocking(pipe, False)
            with contextlib.suppress(BlockingIOError):
                while pipe in self.pipes():
                    self.hear(pipe)
        if self._process.stdout is not None:
            self._process.stdout.close()
        os.close(self._news.pipe)
        os.close(self._commands)
        self._process.wait()


def how_it_ended(code: int) -> str:
    """Return the words for an exit code, or for the signal that a negative one is."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"was killed by signal {-code} ({name})"


log = logging.getLogger("headwater.app")

_MB: Final = 1_000_000


@dataclass(slots=True)
class ProcessPlace:
    """A process that should exist, and the one that there is.

    One that dies, or uses too much memory, soon after its start is started again later each time.
    """

    plan: ProcessPlan
    process: ChildProcess | None = None
    start_at: float = 0.0
    clock: Callable[[], float] = time.monotonic
    _replaced_for: Literal["memory", "stuck"] | None = None
    _replaced_at: float = 0.0
    _short_lives: int = 0

    def __str__(self) -> str:
        return f"process {self.plan.number} ({', '.join(self.plan.parts)})"

    def replace_if_unfit(self, process: ChildProcess, memory: int, drain_ms: int) -> None:
        """Drain a process that has grown past its memory, or whose threads run past their time."""
        stuck = [part.name for part in process.parts.values() if part.counts.stuck]
        if self._replaced_for is not None or not (stuck or 0 < memory < process.memory):
            return
        self._replaced_for = "stuck" if stuck else "memory"
        self._replaced_at = self.clock()
        why = f"uses {process.memory // _MB} MB, and --max-memory allows {memory // _MB} MB"
        if stuck:
            why = f"has a handler of {stuck[0]} that runs past its time"
        log.warning("%s %s: it is drained and replaced", self, why)
        process.tell(Stop())
        process.kill_after(drain_ms / 1000 + GRACE_S)

    def bury(self, process: ChildProcess, code: int) -> bool:
        """Note that the process has ended, and when the next is started; returns whether it died.

        It did not die when it was replaced.
        """
        replaced_for, self._replaced_for = self._replaced_for, None
        # Its drain is no part of its life: it may take long.
        lived_s = (self._replaced_at if replaced_for else self.clock()) - process.started
        self.process = None
        self.start_at = 0.0
        if lived_s >= WELL_S:
            self._short_lives = 0
        if replaced_for == "stuck" or (replaced_for and lived_s >= WELL_S):
            return False
        self._short_lives += 1
        rest_s = delay_s(self._short_lives, FIRST_REST_S, LONGEST_REST_S)
        self.start_at = self.clock() + rest_s
        if replaced_for is None:
            log.error("%s %s, and is started again in %g s", self, how_it_ended(code), rest_s)
            return True
        words = (
            "%s exceeded its memory within %.0f s, and is started again in %g s; "
            "raise --max-memory, or let its handlers hold less"
        )
        log.warning(words, self, lived_s, rest_s)
        return False


class PartTotal(NamedTuple):
    """A part in all processes: how many there are, how many of them run it, and what it has done.

    ``lag`` is None when it is not known; ``why`` is what it died of, where it rests.
    """

    name: str
    kind: str
    object: str
    processes: int
    running: int
    done: int
    failed: int
    restarts: int
    lag: int | None
    why: str | None


class Totals:
    """Adds up reports; safe to share between threads."""

    def __init__(self) -> None:
        self.known: Sequence[PartPlan] = ()
        self._lock = threading.Lock()
        self._counts: defaultdict[str, PartCounts] = defaultdict(PartCounts)
        self._restarts: Counter[str] = Counter()

    def plans(self, parts: Sequence[PartPlan]) -> None:
        """Learn which parts there are."""
        self.known = parts

    def bury(self, parts: Mapping[str, PartState]) -> None:
        """Keep what a process that has ended had done."""
        with self._lock:
            for name, part in parts.items():
                self._counts[name] = self._counts[name].plus(part.counts)
                self._restarts[name] += part.restarts

    def restarted(self, names: Iterable[str]) -> None:
        """Count that a process of these parts died."""
        with self._lock:
            self._restarts.update(names)

    def parts(self, processes: Sequence[ChildProcess]) -> list[PartTotal]:
        """Return the totals, with what living processes report."""
        with self._lock:
            return [self._total(plan, processes) for plan in self.known]

    def _total(self, plan: PartPlan, processes: Sequence[ChildProcess]) -> PartTotal:
        name = plan.name
        states = [process.parts[name] for process in processes if name in process.parts]
        lags = [lag for process in processes if (lag := process.lags.get(name)) is not None]
        counts = self._counts[name]
        for state in states:
            counts = counts.plus(state.counts)
        return PartTotal(
            name,
            plan.kind,
            plan.object,
            len(states),
            sum(state.status == "running" for state in states),
            counts.done,
            counts.failed,
            self._restarts[name] + sum(state.restarts for state in states),
            max(lags, default=None),
            next((state.why for state in states if state.why), None),
        )


class WatchedFiles:
    """Files of an application, and when each was changed last."""

    def __init__(self) -> None:
        self._times: dict[str, int | None] = {}

    def watch(self, files: Iterable[str], since_ns: int) -> None:
        """Watch these, too, which a process that began at that time has read since.

        What was changed meanwhile is noticed next: the process may have read it as it was before.
        """
        now_ns = time.time_ns()
        for file in files:
            at = _changed_at(file)
            self._times[file] = None if at is not None and since_ns <= at <= now_ns else at

    def changed(self) -> str | None:
        """Return a file that was changed since it was looked at last, or None."""
        found = None
        for file, before in self._times.items():
            now = _changed_at(file)
            if now != before:
                self._times[file] = now
                found = found or file
        return found


def _changed_at(file: str) -> int | None:
    try:
        return Path(file).stat().st_mtime_ns
    except OSError:
        return None  # an editor may be about to replace it
