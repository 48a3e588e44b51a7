"""What an application decides without a server: processes, restarts, totals, log lines."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import select
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headwater import Headers, Message
from headwater.app import child
from headwater.app.child import Child
from headwater.app.log_lines import LineFormatter, LogForm, with_log_context
from headwater.app.part_kinds import worker_options
from headwater.app.parts import (
    WELL_S,
    Fault,
    Part,
    PartCounts,
    PartRun,
    PartState,
    Places,
    Resources,
)
from headwater.app.processes import (
    Lines,
    News,
    PartPlan,
    PartTotal,
    ProcessPlace,
    ProcessPlan,
    Report,
    Stop,
    Totals,
    WatchedFiles,
    how_it_ended,
    plan_processes,
)
from headwater.app.running import Runner
from headwater.cli.screens import RunView
from headwater.log.types import HeadedMessage


def plan(name: str, *, spread: bool = True, processes: int | None = None) -> PartPlan:
    return PartPlan(name, "worker", "queue", spread, processes)


@pytest.mark.parametrize(
    ("parts", "workers", "expected"),
    [
        ([plan("a"), plan("b")], 1, [("a", "b")]),
        ([plan("a"), plan("keep", spread=False)], 3, [("a", "keep"), ("a",), ("a",)]),
        ([plan("keep", spread=False)], 2, [("keep",)]),
        ([plan("a"), plan("b", processes=2)], 2, [("a",), ("a",), ("b",), ("b",)]),
        ([plan("b", processes=1)], 2, [("b",)]),
    ],
)
def test_parts_are_spread_over_processes(
    parts: list[PartPlan], workers: int, expected: list[tuple[str, ...]]
) -> None:
    found = plan_processes(parts, workers)
    assert [one.parts for one in found] == expected
    assert [one.number for one in found] == list(range(len(expected)))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"backoff": "exponential"}, {}),
        ({"backoff": "fixed"}, {"backoff_ms": 1000, "longest_backoff_ms": 1000}),
        (
            {"backoff": "fixed", "backoff_ms": "5s"},
            {"backoff_ms": 5000, "longest_backoff_ms": 5000},
        ),
        ({"backoff": "none"}, {"backoff_ms": 0, "longest_backoff_ms": 0}),
        ({"backoff": "2m"}, {"backoff_ms": 120_000, "longest_backoff_ms": 120_000}),
        ({"backoff": 10}, {"backoff_ms": 10, "longest_backoff_ms": 60_000}),
        ({"timeout": "30s", "ack_ms": "1m"}, {"timeout_ms": 30_000, "ack_ms": 60_000}),
    ],
)
def test_options_in_words_are_those_of_workers(
    given: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert worker_options(given) == expected


class Idle(Part):
    """A part that does nothing."""

    kind = "idle"

    def check(self, resources: Any) -> list[Fault]:  # noqa: ARG002
        return []

    def open(self, resources: Any) -> Any:  # noqa: ARG002
        return None

    def counts(self, work: Any) -> PartCounts:
        return PartCounts(work.done)


class Work:
    done = 3
    stopped = False

    def run(self) -> None: ...

    def stop(self) -> None:
        self.stopped = True


def test_who_dies_rests_twice_as_long_each_time_and_less_after_it_was_well() -> None:
    now = 0.0
    run = PartRun(Idle("a", "x"), lambda: now)
    rests = []
    for _ in range(8):
        assert run.begin(Work())
        rests.append(run.over(LookupError("why")))
    assert rests == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert (run.state().status, run.state().why) == ("resting", "LookupError: why")
    run.begin(Work())
    now = 61.0
    assert run.over(None) == 0.5
    # What it did before it died still counts.
    assert (run.state().counts.done, run.state().restarts) == (27, 9)


def test_who_is_asked_to_stop_is_not_started_again() -> None:
    run, work = PartRun(Idle("a", "x")), Work()
    assert run.begin(work)
    run.stop()
    assert work.stopped
    assert run.over(None) is None
    assert not run.begin(Work())


def state(status: Any, *counts: int, restarts: int = 0, stuck: int = 0, why: str = "") -> PartState:
    done, failed, *_ = (*counts, 0, 0)
    return PartState("", "", "", status, PartCounts(done, failed, stuck), restarts, why or None)


def test_what_processes_did_counts_after_their_end() -> None:
    totals = Totals()
    totals.plans([plan("a"), plan("b")])
    totals.bury({"a": state("stopped", 5, 1, restarts=2), "b": state("running", 1)})
    totals.restarted(["a", "b"])
    alive: Any = Process(parts={"a": state("running", 10)}, lags={"a": 7})
    rests: Any = Process(parts={"a": state("resting", 1, 1, restarts=1, why="LookupError: x")})
    a, b = totals.parts([alive, rests])
    assert (a.done, a.failed, a.restarts, a.processes, a.running) == (16, 2, 4, 2, 1)
    assert (a.lag, a.why) == (7, "LookupError: x")
    assert (b.done, b.restarts, b.processes, b.lag) == (1, 1, 0, None)


def test_a_changed_file_is_noticed_once(tmp_path: Path) -> None:
    files = WatchedFiles()
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.touch()
    other.touch()
    files.watch([str(one), str(other)], time.time_ns())
    assert files.changed() is None
    os.utime(other, ns=(1, 1))
    assert files.changed() == str(other)
    assert files.changed() is None
    one.unlink()
    assert files.changed() == str(one)


def test_a_file_that_changed_while_it_was_read_is_noticed(tmp_path: Path) -> None:
    files, since_ns, one = WatchedFiles(), time.time_ns(), tmp_path / "one.py"
    one.touch()
    os.utime(one, ns=(since_ns, since_ns))
    files.watch([str(one)], since_ns)
    assert files.changed() == str(one)
    assert files.changed() is None


def test_the_end_of_a_process_is_told_in_words() -> None:
    assert how_it_ended(3) == "ended with exit code 3"
    assert how_it_ended(-9) == "was killed by signal 9 (SIGKILL)"


def logged(form: LogForm, handler: Any, message: Any) -> list[str]:
    lines: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    collect = Collect()
    collect.setFormatter(LineFormatter(form, 2, {"orders/mail": "send"}))
    logger = logging.getLogger("test.app")
    logger.addHandler(collect)
    try:
        with_log_context("send", "orders/mail", handler)(message)
        logger.error("after", extra={"handled": ("orders/mail", message)})
        logger.error("outside")
    finally:
        logger.removeHandler(collect)
    return lines


def test_a_line_of_json_names_part_object_offset_attempt_and_trace() -> None:
    message: Message = HeadedMessage(
        7,
        "tag",
        b"secret",
        0,
        2,
        Headers({"traceparent": b"00-0af7651916cd43dd8448eb211c80319c-b7-01"}),
    )
    inside, after, outside = (
        json.loads(line)
        for line in logged("json", lambda _: logging.getLogger("test.app").error("hi"), message)
    )
    known = {
        "part": "send",
        "object": "orders/mail",
        "offset": 7,
        "attempt": 2,
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "process": 2,
    }
    assert known.items() <= inside.items()
    assert known.items() <= after.items()
    assert inside["message"] == "hi"
    assert (inside["level"], inside["logger"]) == ("error", "test.app")
    assert outside.keys() & known.keys() == {"process"}
    assert "secret" not in str((inside, after))


def test_a_line_of_text_says_the_same_and_shows_tracebacks() -> None:
    def fails(_: Any) -> None:
        try:
            raise LookupError("no address")
        except LookupError:
            logging.getLogger("test.app").exception("hi")

    inside = logged("text", fails, Message(7, "tag", b"v", 0, 1))[0]
    first, *rest = inside.splitlines()
    known = "process=2 part=send object=orders/mail offset=7 attempt=1"
    assert first.endswith(f"ERROR   test.app: hi  [{known}]")
    assert rest[-1] == "LookupError: no address"


def test_the_view_shows_rates_failures_lag_and_what_died() -> None:
    now, stopping, done = 0.0, False, 0

    def parts() -> list[PartTotal]:
        dead = PartTotal("b", "outbox", "outbox", 1, 0, 0, 0, 3, None, f"LookupError: {'x' * 200}")
        return [PartTotal("a", "worker", "orders/mail", 2, 2, done, 7, 0, 1200, None), dead]

    view = RunView("headwater run shop:app", parts, lambda: stopping, lambda: now)
    view.picture()
    now, done = 2.0, 3000
    console = Console(width=130, record=True, file=io.StringIO())
    console.print(view.picture())
    stopping = True
    console.print(view.picture())
    shown = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert shown[:4] == [
        "headwater run shop:app",
        "part object runs in done per s failed lag restarts state",
        "a worker orders/mail 2/2 3,000 1,500 7 1,200 0 runs",
        f"b outbox 0/1 0 0 0 - 3 died: LookupError: {'x' * 27}…",
    ]
    assert shown[6].endswith(" stops")


# ── When a process of an application has to go, and when the next one takes its place ────────────


MB = 1_000_000
NOW = 1000.0


@dataclass
class Process:
    """What a place knows of its process; no program runs."""

    started: float = NOW
    memory: int = 0
    parts: dict[str, PartState] = field(default_factory=dict)
    lags: dict[str, int] = field(default_factory=dict)
    told: list[object] = field(default_factory=list)

    def tell(self, command: object) -> None:
        self.told.append(command)

    def kill_after(self, seconds: float) -> None:
        pass


def rest_s(place: ProcessPlace) -> float:
    return max(place.start_at - NOW, 0)


def outgrown(place: ProcessPlace, lived_s: float = 0.0) -> bool:
    process: Any = Process(NOW - lived_s, memory=300 * MB)
    place.replace_if_unfit(process, 250 * MB, 1000)
    assert process.told == [Stop()]
    return place.bury(process, 0)


@pytest.fixture
def place() -> ProcessPlace:
    return ProcessPlace(ProcessPlan(3, ("mail", "keep")), clock=lambda: NOW)


def test_a_process_that_soon_exceeds_its_memory_is_replaced_later_each_time(
    place: ProcessPlace, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert not outgrown(place), "it did not die"
    rests = [rest_s(place)]
    for _ in range(7):
        outgrown(place)
        rests.append(rest_s(place))
    assert rests == [0.5, 1, 2, 4, 8, 16, 30, 30]
    first, second = caplog.messages[:2]
    assert first == (
        "process 3 (mail, keep) uses 300 MB, and --max-memory allows 250 MB: "
        "it is drained and replaced"
    )
    assert second == (
        "process 3 (mail, keep) exceeded its memory within 0 s, and is started again in 0.5 s; "
        "raise --max-memory, or let its handlers hold less"
    )


def test_one_that_worked_well_before_is_replaced_at_once(place: ProcessPlace) -> None:
    outgrown(place)
    outgrown(place, WELL_S)
    assert rest_s(place) == 0
    outgrown(place)
    assert rest_s(place) == 0.5, "what was before it is forgotten"


def test_a_long_drain_does_not_count_as_having_worked_well() -> None:
    now = NOW
    place = ProcessPlace(ProcessPlan(3, ("mail", "keep")), clock=lambda: now)
    process: Any = Process(NOW, memory=300 * MB)
    place.replace_if_unfit(process, 250 * MB, 1000)
    now += WELL_S
    place.bury(process, 0)
    assert place.start_at == now + 0.5


def test_one_with_a_stuck_handler_is_replaced_at_once(place: ProcessPlace) -> None:
    process: Any = Process(parts={"mail": state("running", 1, stuck=1)})
    place.replace_if_unfit(process, 0, 1000)
    place.replace_if_unfit(process, 0, 1000)
    assert process.told == [Stop()], "it is told once"
    assert not place.bury(process, 0)
    assert rest_s(place) == 0


def test_one_that_dies_is_started_again_later_each_time(
    place: ProcessPlace, caplog: pytest.LogCaptureFixture
) -> None:
    process: Any = Process()
    assert place.bury(process, -9)
    assert rest_s(place) == 0.5
    place.bury(process, 1)
    assert rest_s(place) == 1
    assert re.search(r"\(mail, keep\) was killed by signal 9.*again in 0\.5 s", caplog.messages[0])


def test_one_within_its_memory_stays(place: ProcessPlace) -> None:
    for process, memory in ((Process(memory=200 * MB), 250 * MB), (Process(memory=10**12), 0)):
        fit: Any = process
        place.replace_if_unfit(fit, memory, 1000)
        assert process.told == []


# ── What a process of an application tells its supervisor, and when ──────────────────────────────


class Steps:
    """Work that is done step by step, as the test says."""

    def __init__(self) -> None:
        self.done = 0
        self.step = threading.Semaphore(0)
        self.over = False

    def run(self) -> None:
        while True:
            self.step.acquire()
            if self.over:
                return
            self.done += 1

    def stop(self) -> None:
        self.over = True
        self.step.release()


class StepsPart(Part):
    kind = "worker"

    def __init__(self) -> None:
        super().__init__("steps", "steps")
        self.work = Steps()

    def check(self, resources: Resources) -> Iterable[Fault]:  # noqa: ARG002
        return ()

    def open(self, resources: Resources) -> Steps:  # noqa: ARG002
        return self.work

    def counts(self, work: Any) -> PartCounts:
        return PartCounts(work.done)


def test_what_is_done_is_reported_soon_and_not_by_the_second(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(child, "REPORT_S", 3600.0)
    commands, supervisor = os.pipe()
    read, write = os.pipe()
    part = StepsPart()
    resources = Resources(Places(store=f"embedded:{tmp_path}"))
    runner = Runner([part], resources)
    one = Child(commands, write)
    reporting = threading.Thread(target=one._report_until, args=(runner, [commands], None))
    news: Lines[News] = Lines(read, News)

    def reported(done: int) -> bool:
        """Wait for a report of so much, as long as reports come."""
        while select.select([read], [], [], 30)[0]:
            for report in news.read():
                if isinstance(report, Report) and report.parts[0].counts.done == done:
                    return True
        return False

    runner.start()
    reporting.start()
    try:
        for done in range(1, 4):
            part.work.step.release()
            assert reported(done)
    finally:
        runner.stop()
        one._stop.set()
        os.close(supervisor)
        reporting.join(60)
        runner.close()
        for pipe in (commands, read, write):
            os.close(pipe)
