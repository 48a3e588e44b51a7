"""What a runner of timed jobs does, without I/O: operations for both kinds of runners.

One heap says which job is to be looked at when. A turn looks at all jobs whose time has come, and
writes what it decides about them together: a thousand jobs that are due at once cost a handful of
round trips. A runner remembers the state of each job, and reads it again only when another runner
was quicker.

A runner reports every ``BEAT_MS`` that it is alive, in the stream ``hw.timed``, which all runners
read. One that was silent for ``LEASE_MS`` is lost: its runs are retried.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Final, NamedTuple

from headwater.kernel.failures import spelled
from headwater.kernel.inputs import check_int
from headwater.log import reading
from headwater.store.call import Operation
from headwater.store.many import sound
from headwater.timed import operating, states
from headwater.timed.jobs import DueRun, TimedJob
from headwater.timed.operating import KnownJob, Notice
from headwater.timed.states import ActiveRun, JobState, TimedStep
from headwater.whole_store.members import member_name

# ── Clocks ────────────────────────────────────────────────────────────────────────────────────────
# Which time it is for timed jobs: that of the store. No clock of a runner decides anything.
#
# A runner gets the time of the store with each beat, and continues with its own monotonic clock.
# What it takes for the time is never ahead of the store: a reply is older when it arrives.
#
# A test gives a runner a clock of its own, ``clock=``: any function that returns milliseconds
# since 1970. Then all that the runner decides and writes goes by that clock, also which runner is
# lost.


# A clock as tests give it: milliseconds since 1970.
NowMs = Callable[[], int]


class HeardClock:
    """The time of the store, as it was heard last, and the time that has passed here since."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._heard_ms = 0
        self._heard_at = monotonic()

    def __call__(self) -> int:
        """Return the milliseconds since 1970."""
        return self._heard_ms + int((self._monotonic() - self._heard_at) * 1000)

    def heard(self, time_ms: int) -> None:
        """Take over the time of the store, which a reply has just brought."""
        self._heard_ms, self._heard_at = time_ms, self._monotonic()


# ── Engine ────────────────────────────────────────────────────────────────────────────────────────


BEAT_MS: Final = 10_000
LEASE_MS: Final = 30_000
# How often a runner asks what the others and the command line have to say.
HEAR_MS: Final = 1000


class TakenRun(NamedTuple):
    """A run that this runner has to do."""

    job: TimedJob
    run: ActiveRun

    @property
    def told(self) -> DueRun:
        """What the handler is told."""
        return DueRun(self.job.name, self.run.due_ms, self.run.attempt, self.run.by_hand)


class FinishedRun(NamedTuple):
    """A run that was done here: how long it took, and why it failed, if it did.

    ``begun`` is not set for one that is returned untried.
    """

    taken: TakenRun
    took_ms: int = 0
    error: BaseException | None = None
    begun: bool = True


class _Entry:
    """A job of this runner, its stream, and its state as it was seen last."""

    __slots__ = ("job", "known", "look_ms", "stream")

    def __init__(self, job: TimedJob, registered: set[str]) -> None:
        self.job = job
        self.stream = operating.job_stream(job.name, registered)
        self.known: KnownJob = KnownJob(None, 0)
        self.look_ms = 0

    @property
    def busy(self) -> bool:
        """Whether a run of it waits or runs somewhere, as far as is known here."""
        return self.known.state is not None and bool(self.known.state.runs)


class TimedEngine:
    """Decides what one runner does; everything that asks the store is an operation."""

    def __init__(self, jobs: Iterable[TimedJob], me: str, clock: NowMs | None = None) -> None:
        self.me = me
        registered: set[str] = set()
        self._entries = {job.name: _Entry(job, registered) for job in jobs}
        self._board = operating.board_stream(registered)
        self._heard_clock = HeardClock() if clock is None else None
        self.now_ms: NowMs = clock or self._heard_clock or HeardClock()
        self._heap: list[tuple[int, str]] = []
        # Jobs with a run that could begin if there were a free place here.
        self._ready: dict[str, None] = {}
        self._held: set[tuple[str, ActiveRun]] = set()
        # Runs that were taken, and not returned yet.
        self._taken: list[TakenRun] = []
        self._seen: dict[str, int] = {}
        self._left: set[str] = set()
        self._board_at = 1
        self._heard_ms = 0
        self._beaten_ms = 0
        self._patient_ms = 0

    def begin(self) -> Operation[None]:
        """Get the time and which runners are alive, and declare all jobs."""
        yield from self.beat()
        since = max(self.now_ms() - 2 * LEASE_MS, 0)
        if self._heard_clock is not None:
            self._board_at = yield from reading.offset_at(self._board, since)
        yield from self._hear()
        defined = yield from sound(map(self._define, self._entries.values()))
        for entry, known in zip(self._entries.values(), defined, strict=True):
            if known is None:
                self._leave_for_now(entry)
                continue
            entry.known = known
            self._look_at(entry, self.now_ms())

    def turn(self, free: int) -> Operation[list[TakenRun]]:
        """Look at all jobs whose time has come; returns the runs to begin, ``free`` at most."""
        yield from self.keep_in_touch()
        todo = self._due(free - len(self._taken))
        try:
            while todo:
                todo = yield from self._decide(todo, free)
        except BaseException:
            # What is not decided yet is looked at again, and what was taken is returned then.
            for entry in todo:
                self._look_at(entry, self.now_ms())
            raise
        taken, self._taken = self._taken, []
        return taken

    def _decide(self, todo: list[_Entry], free: int) -> Operation[list[_Entry]]:
        """Take one step with each job for which there is one; returns those jobs."""
        planned: list[tuple[_Entry, TimedStep]] = []
        left = free - len(self._taken)
        for entry in todo:
            step = self._step(entry, left > 0)
            if step is None:
                self._plan(entry)
                continue
            left -= step.taken is not None
            planned.append((entry, step))
        written = yield from sound(
            operating.write(entry.stream, entry.known, step) for entry, step in planned
        )
        late = []
        for (entry, step), known in zip(planned, written, strict=True):
            if known is None:
                late.append(entry)
                continue
            entry.known = known
            if step.taken is not None:
                self._held.add((entry.job.name, step.taken))
                self._taken.append(TakenRun(entry.job, step.taken))
        broken = yield from self._refresh(late)
        return [entry for entry, _ in planned if entry not in broken]

    def settle(self, finished: Iterable[FinishedRun]) -> Operation[list[FinishedRun]]:
        """Write how runs ended; returns those that another runner had taken over meanwhile."""
        ended = list(finished)
        changed = yield from sound(map(self._settle, ended))
        stolen = []
        for done, after in zip(ended, changed, strict=True):
            entry = self._entries[done.taken.job.name]
            self._held.discard((entry.job.name, done.taken.run))
            if after is None:
                self._leave_for_now(entry)
                continue
            known, step = after
            # Two runs of one job may end together.
            if known.offset >= entry.known.offset:
                entry.known = known
            self._look_at(entry, self.now_ms())
            if step is None:
                stolen.append(done)
        return stolen

    def leave(self) -> Operation[None]:
        """Tell the others that this runner has ended, so that they need not wait for it."""
        yield from operating.post(self._board, Notice(self.me, self.now_ms(), left=True))

    def give_back(self, taken: Iterable[TakenRun]) -> Operation[int]:
        """Return runs that are in progress here as the process ends; returns how many.

        It may be called beside anything else that this runner does.
        """
        given = 0
        for each in taken:
            stream = operating.job_stream(each.job.name)
            decide = self._end_of(FinishedRun(each, begun=False))
            _, step = yield from operating.change(stream, decide)
            given += step is not None
        yield from self.leave()
        return given

    def wait_ms(self, free: int) -> int:
        """Return how long there is nothing to do, unless a command comes."""
        if self._ready and free:
            return 0
        now = self.now_ms()
        next_ms = min(self._heard_ms + HEAR_MS, self._beaten_ms + BEAT_MS)
        if self._heap:
            next_ms = min(next_ms, self._heap[0][0])
        return min(max(next_ms - now, 0), HEAR_MS)

    def _define(self, entry: _Entry) -> Operation[KnownJob]:
        def decide(state: JobState | None) -> TimedStep | None:
            return states.define(state, entry.job.spec, self.now_ms(), self.me)

        known, _ = yield from operating.change(entry.stream, decide)
        return known

    def _settle(self, done: FinishedRun) -> Operation[tuple[KnownJob, TimedStep | None]]:
        entry = self._entries[done.taken.job.name]
        return (yield from operating.change(entry.stream, self._end_of(done), entry.known))

    def _end_of(self, run: FinishedRun) -> Callable[[JobState | None], TimedStep | None]:
        """Return what decides about the end of a run."""
        taken = run.taken.run
        error = None if run.error is None else spelled(run.error).replace("\n", ": ", 1)

        def decide(state: JobState | None) -> TimedStep | None:
            if state is None:
                return None
            if not run.begun:
                return states.release(state, taken, self.now_ms())
            return states.end(state, taken, self.now_ms(), run.took_ms, error)

        return decide

    def _step(self, entry: _Entry, free: bool) -> TimedStep | None:
        state, now, name = entry.known.state, self.now_ms(), entry.job.name
        if state is None:
            # Somebody removed the job while it runs.
            return states.define(None, entry.job.spec, now, self.me)

        def lost(run: ActiveRun) -> bool:
            if run.by == self.me:
                return (name, run) not in self._held
            if run.by in self._left:
                return True
            return now > max(self._silent_ms(run), self._patient_ms)

        return states.look(state, name, now, self.me, free, lost)

    def _silent_ms(self, run: ActiveRun) -> int:
        """Return until when the runner of a run counts as alive."""
        return max(run.began_ms, self._seen.get(run.by, 0)) + LEASE_MS

    def _refresh(self, entries: list[_Entry]) -> Operation[list[_Entry]]:
        """Read the states of jobs again; returns those that cannot be read, which are left."""
        found = yield from sound(operating.refresh(entry.stream, entry.known) for entry in entries)
        broken = []
        for entry, known in zip(entries, found, strict=True):
            if known is None:
                self._leave_for_now(entry)
                broken.append(entry)
            else:
                entry.known = known
        return broken

    # ── When to look at a job again ───────────────────────────────────────────────────────────

    def _due(self, free: int) -> list[_Entry]:
        """Return the jobs whose time has come, and some that wait for a free place."""
        now, found = self.now_ms(), dict.fromkeys(list(self._ready)[:free])
        while self._heap and self._heap[0][0] <= now:
            at, name = heappop(self._heap)
            if self._entries[name].look_ms == at:
                self._entries[name].look_ms = 0
                found[name] = None
        for name in found:
            self._ready.pop(name, None)
        return [self._entries[name] for name in found]

    def _look_at(self, entry: _Entry, at_ms: int) -> None:
        if not entry.look_ms or at_ms < entry.look_ms:
            entry.look_ms = at_ms
            heappush(self._heap, (at_ms, entry.job.name))

    def _leave_for_now(self, entry: _Entry) -> None:
        """Look at a job whose stream is broken later: it may be repaired, and others can run."""
        self._look_at(entry, self.now_ms() + LEASE_MS)

    def _plan(self, entry: _Entry) -> None:
        """Plan the next look at a job about which there is nothing to do now."""
        state, now = entry.known.state, self.now_ms()
        if state is None:
            return
        times = []
        if not state.paused:
            due = states.table_of(*state.spec.when).next_after(state.upto_ms)
            times += [] if due is None else [due]
        for run in state.runs:
            if run.by and run.by != self.me:
                times.append(max(self._silent_ms(run), self._patient_ms) + 1)
            elif not run.by:
                times.append(run.at_ms)
        if states.is_ready(state, now):
            self._ready[entry.job.name] = None
        # What is due and was left waits for a run in progress; its end has the job looked at.
        later = [at for at in times if at > now]
        if len(later) < len(times):
            later.append(now + LEASE_MS)
        if later:
            self._look_at(entry, min(later))

    # ── Who lives ─────────────────────────────────────────────────────────────────────────────

    def keep_in_touch(self) -> Operation[None]:
        """Report that this runner is alive, and read the reports of the others, when it is time."""
        now = self.now_ms()
        if now >= self._beaten_ms + BEAT_MS or now < self._beaten_ms:
            yield from self.beat()
        if now >= self._heard_ms + HEAR_MS or now < self._heard_ms:
            yield from self._hear()

    def beat(self) -> Operation[None]:
        """Report that this runner is alive, and get the time."""
        at_ms = 0 if self._heard_clock is not None else self.now_ms()
        time_ms = yield from operating.post(self._board, Notice(self.me, at_ms))
        if self._heard_clock is not None:
            self._heard_clock.heard(time_ms)
        now, before = self.now_ms(), self._beaten_ms
        if before and now > before + 2 * BEAT_MS:
            # The store was down, or its clock was set: no runner could report in time that it is
            # alive.
            self._patient_ms = now + LEASE_MS
        self._beaten_ms = now

    def _hear(self) -> Operation[None]:
        heard, board_at = yield from operating.hear(self._board, self._board_at)
        named: list[_Entry] = []
        for notice in heard:
            self._seen[notice.by] = max(self._seen.get(notice.by, 0), notice.at_ms)
            if notice.job in self._entries:
                named.append(self._entries[notice.job])
            if notice.left:
                self._left.add(notice.by)
                named += [entry for entry in self._entries.values() if entry.busy]
        old = self.now_ms() - 2 * LEASE_MS
        self._seen = {by: at for by, at in self._seen.items() if at >= old}
        self._left &= self._seen.keys()
        named = list(dict.fromkeys(named))
        broken = yield from self._refresh(named)
        # When that failed, it is heard once more.
        self._board_at, self._heard_ms = board_at, self.now_ms()
        for entry in named:
            if entry not in broken:
                self._look_at(entry, self._heard_ms)


# ── Running ───────────────────────────────────────────────────────────────────────────────────────
# What both kinds of runners of timed jobs do alike: names, counts, and what is logged.


MOST_AT_ONCE = 1000

log = logging.getLogger("headwater.timed")


class RunCounts:
    """How many attempts a runner has brought to an end, and how many of them failed."""

    def __init__(self) -> None:
        self.done = 0
        self.failed = 0

    def add(self, finished: FinishedRun) -> None:
        """Count an attempt."""
        if finished.error is not None:
            self.failed += 1
        elif finished.begun:
            self.done += 1


def check_concurrency(concurrency: int) -> int:
    """Accept how many runs are in progress at once."""
    return check_int(concurrency, "concurrency", 1, MOST_AT_ONCE)


def runner_name(token: str) -> str:
    """Return the name of a runner among all: where it runs, and which."""
    return member_name(token)


def log_end(finished: FinishedRun, *, taken_over: bool) -> None:
    """Log a run that failed, or whose end came too late."""
    job, run = finished.taken.job, finished.taken.run
    where = f"timed job {job.name}, due at {run.due_ms}, attempt {run.attempt}"
    if finished.error is not None:
        last = run.attempt >= job.spec.max_attempts
        then = "it is given up" if last else "it is retried"
        log.error("%s failed; %s", where, then, exc_info=finished.error)
    if taken_over:
        log.warning("%s ended after another runner had taken it over", where)
