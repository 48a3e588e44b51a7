"""What an application decides without a server: processes, restarts, totals, log lines."""

from __future__ import annotations

import io
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headwater import Headers, Message
from headwater.app.log_lines import LineFormatter, LogForm, with_log_context
from headwater.app.part_kinds import worker_options
from headwater.app.parts import Fault, Part, PartCounts, PartRun
from headwater.app.processes import (
    PartPlan,
    PartReport,
    PartTotal,
    Totals,
    WatchedFiles,
    how_it_ended,
    plan_processes,
)
from headwater.cli.run_view import RunView
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


def test_what_processes_did_counts_after_their_end() -> None:
    totals = Totals()
    totals.plans([plan("a"), plan("b")])
    dead = {"a": PartReport("a", "stopped", 5, 1, 2), "b": PartReport("b", "running", 1, 0, 0)}
    totals.bury(dead)
    totals.restarted(["a", "b"])
    alive = {"a": PartReport("a", "running", 10, 0, 0, lag=7)}
    rests = {"a": PartReport("a", "resting", 1, 1, 1, why="LookupError: x")}
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
