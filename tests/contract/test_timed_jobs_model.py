"""Timed jobs against their rules: runners that start, die and are cut off, clocks that jump."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as try_machine

import headwater
from headwater.timed import operating, states
from headwater.timed.engine import FinishedRun, TakenRun, TimedEngine
from headwater.timed.jobs import TimedJob, every_plan
from headwater.timed.states import JobState, Missed, Overlap, TimedStep, decode_record
from tests.support.examples import MODEL_SETTINGS, patient
from tests.support.stores import Stores
from tests.support.timed import START_MS, HistoryChecker, Note

LEASE_MS = 30_000
INTERVAL_MS = 20_000


def moments(after_ms: int, until_ms: int) -> list[int]:
    """Return the multiples of the interval after a time and up to another, one by one."""
    first = after_ms - after_ms % INTERVAL_MS + INTERVAL_MS
    return list(range(first, until_ms + 1, INTERVAL_MS))


class Runner:
    """A runner, and the runs that its handlers do; ``heard_ms`` is when it said that it lives."""

    def __init__(self, engine: TimedEngine) -> None:
        self.engine = engine
        self.taken: list[TakenRun] = []
        self.heard_ms = engine.now_ms()


class TimedModel(RuleBasedStateMachine):
    """Any number of runners of one job, over one store, by a clock that a test moves."""

    hw: headwater.Headwater

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = START_MS
        self.runners: list[Runner] = []
        self.notes: list[Note] = []
        self.read = 1

    @initialize(
        missed=st.sampled_from(["skip", "once", "all"]),
        overlap=st.sampled_from(["skip", "queue", "allow"]),
        max_attempts=st.integers(1, 3),
        jitter=st.sampled_from([0, 0, 15_000]),
    )
    def declare(self, missed: Missed, overlap: Overlap, max_attempts: int, jitter: int) -> None:
        self.name = f"m-{secrets.token_hex(6)}"
        plan = every_plan(
            INTERVAL_MS, name=self.name, missed=missed, overlap=overlap,
            max_attempts=max_attempts, jitter=jitter,
        )  # fmt: skip
        self.job: TimedJob = plan.job(print)
        self.checker = HistoryChecker(self.job.spec, moments)
        self.stream = operating.job_stream(self.name)
        self.start()

    @rule()
    def start(self) -> None:
        if len(self.runners) < 4:
            name = f"runner-{secrets.token_hex(4)}"
            runner = Runner(TimedEngine([self.job], name, lambda: self.now_ms))
            self.hw.store.run(runner.engine.begin())
            self.runners.append(runner)

    @rule(
        ms=st.sampled_from([0, 1, 999, 5_000, 10_000, 20_000, 31_000, 61_000, 300_000, -5_000]),
        which=st.integers(0, 3),
        free=st.integers(0, 2),
    )
    def pass_time_and_look(self, ms: int, which: int, free: int) -> None:
        self.now_ms += ms
        self.look(which, free)

    @rule(which=st.integers(0, 3), free=st.integers(1, 2))
    def look_when_it_is_due(self, which: int, free: int) -> None:
        self.now_ms += INTERVAL_MS - self.now_ms % INTERVAL_MS
        self.look(which, free)

    def look(self, which: int, free: int) -> None:
        if not self.runners:
            return
        runner = self.runners[which % len(self.runners)]
        runner.heard_ms = self.now_ms
        for taken in self.hw.store.run(runner.engine.turn(free)):
            self._check_not_stolen(runner, taken)
            runner.taken.append(taken)
            self.notes.append(self._note(taken, ended=False))

    @rule(which=st.integers(0, 3), fails=st.booleans())
    def finish(self, which: int, fails: bool) -> None:
        busy = [runner for runner in self.runners if runner.taken]
        if busy:
            runner = busy[which % len(busy)]
            taken = runner.taken.pop(0)
            error = ValueError("no luck") if fails else None
            if not fails:
                self.notes.append(self._note(taken, ended=True))
            self.hw.store.run(runner.engine.settle([FinishedRun(taken, 1, error)]))

    @rule(which=st.integers(0, 3), in_order=st.booleans())
    def end(self, which: int, in_order: bool) -> None:
        if not self.runners:
            return
        runner = self.runners.pop(which % len(self.runners))
        if in_order:
            self.hw.store.run(runner.engine.give_back(runner.taken))
            for taken in runner.taken:
                # Its handler is cut off: somebody else begins the same attempt.
                self.notes.remove(self._note(taken, ended=False))

    @rule(step=st.sampled_from([states.pause, states.resume, states.ask]))
    def operate(self, step: Callable[[JobState, int, str], TimedStep | None]) -> None:
        def decide(state: JobState | None) -> TimedStep | None:
            assert state is not None
            return step(state, self.now_ms, "operator")

        self.hw.store.run(operating.change(self.stream, decide))
        notice = operating.Notice("operator", self.now_ms, job=self.name)
        self.hw.store.run(operating.post(operating.board_stream(), notice))

    def _check_not_stolen(self, by: Runner, taken: TakenRun) -> None:
        """Check that the runner that had it before was silent for long enough."""
        for other in self.runners:
            if other is not by and self.now_ms <= other.heard_ms + LEASE_MS:
                assert taken.run.due_ms not in [
                    held.run.due_ms for held in other.taken if held.run.by_hand == taken.run.by_hand
                ], "a run was taken from a runner that lives"

    def _note(self, taken: TakenRun, *, ended: bool) -> Note:
        return Note(taken.run.due_ms, taken.run.attempt, taken.run.by_hand, ended)

    def _follow(self) -> None:
        passage = self.hw.stream(self.stream.name).read_from(self.read, 1000)
        assert passage.gap is None
        self.read = passage.next
        for message in passage.messages:
            record = decode_record(message.value, message.offset)
            assert record is not None, "a message is void"
            self.checker.follow(record.events)

    @precondition(lambda self: hasattr(self, "checker"))
    @rule()
    def check(self) -> None:
        self._follow()

    def teardown(self) -> None:
        if not hasattr(self, "checker"):
            return
        self._follow()
        if self.checker.paused:
            self.operate(states.resume)
        # One runner is left, and has time: all that was due comes to its end.
        self.runners.clear()
        self.now_ms += 2 * LEASE_MS
        self.start()
        (last,) = self.runners
        for _ in range(2000):
            self.look(0, 2)
            while last.taken:
                self.finish(0, False)
            self._follow()
            if not self.checker.active and not moments(self.checker.cursor or 0, self.now_ms):
                break
            if self.checker.active:
                self.now_ms += 1000
        self.checker.check_end(self.now_ms)
        self.checker.check_notes(self.notes)


@pytest.fixture
def machine(stores: Stores) -> Iterator[type[TimedModel]]:
    with headwater.connect(stores.url("plain")) as hw:
        # A runner with a clock of its own reads all of it: up to 5,000 notices of other tests.
        hw.stream(operating.board_stream().name).delete()
        yield type("Machine", (TimedModel,), {"hw": hw})


@patient
def test_any_order_of_starts_deaths_jumps_and_commands_keeps_the_policies(
    machine: type[TimedModel],
) -> None:
    try_machine(machine, settings=MODEL_SETTINGS)
