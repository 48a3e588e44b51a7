"""Runners of timed jobs as processes of their own: see zygote.py.

An order names the store, the job, the page on which its handler notes each attempt, and where the
runner is to die: before or after it writes an event, as "before started", or "in the handler".
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any, TypeVar

import headwater
from headwater import DueRun, Headwater, TimedRunner, aio
from headwater.aio import AsyncTimedRunner
from headwater.kernel.failures import START_MS
from headwater.store.call import Operation
from headwater.timed import operating
from headwater.timed.states import JobRecord, TimedStep, decode_record
from tests.support.timed import HistoryChecker, Moments, Note
from tests.support.zygote import dying, serve

Runner = TypeVar("Runner", TimedRunner, AsyncTimedRunner)


def noting(page: Path, runner: Runner, order: dict[str, Any]) -> Runner:
    """Give a runner the job of an order; its handler notes when it begins and when it ends."""
    die = dying(order)

    def handle(run: DueRun) -> None:
        _write(page, f"{run.due_ms} {run.attempt} {int(run.by_hand)} 0\n")
        die("in the handler")
        _write(page, f"{run.due_ms} {run.attempt} {int(run.by_hand)} 1\n")

    async def handle_in_loop(run: DueRun) -> None:
        handle(run)

    handler = handle if isinstance(runner, TimedRunner) else handle_in_loop
    runner.every(order["every"], name=order["job"], **order.get("options", {}))(handler)
    return runner


class JobHistory:
    """What happened to a job, followed by a checker from its first event on."""

    def __init__(self, hw: Headwater, job: str, checker: HistoryChecker) -> None:
        self._stream = hw.stream(operating.job_stream(job).name)
        self._checker = checker
        self._read = 1

    def follow(self) -> list[JobRecord]:
        """Check what happened since the last time; returns it."""
        records = []
        while True:
            passage = self._stream.read_from(self._read, 1000)
            assert passage.gap is None, "more happened than the history keeps"
            for message in passage.messages:
                record = decode_record(message.value, message.offset)
                assert record is not None, "a message is void"
                self._checker.follow(record.events)
                records.append(record)
            if not passage.messages:
                break
            self._read = passage.next
        # All is kept that was not looked at yet.
        self._stream.register_reader("checker", self._read)
        return records


def every_moment(every_ms: int) -> Moments:
    """Return the function that lists the moments of an interval."""

    def moments(after_ms: int, until_ms: int) -> list[int]:
        first = after_ms - after_ms % every_ms + every_ms
        return list(range(first, until_ms + 1, every_ms))

    return moments


def read_notes(page: Path) -> list[Note]:
    """Return what handlers noted on a page."""
    lines = page.read_text().splitlines() if page.exists() else []
    words = [[int(word) for word in line.split()] for line in lines]
    return [Note(due, attempt, bool(hand), bool(ended)) for due, attempt, hand, ended in words]


def _write(page: Path, line: str) -> None:
    file = os.open(page, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)


def _run(order: dict[str, Any]) -> None:
    die, write = dying(order), operating.write

    def write_or_die(*words: Any) -> Operation[Any]:
        step: TimedStep = words[2]
        die(f"before {step.events[-1].what}")
        written = yield from write(*words)
        die(f"after {step.events[-1].what}")
        return written

    vars(operating)["write"] = write_or_die
    if order.get("manner") == "async":
        asyncio.run(_run_async(order))
        return
    with headwater.connect(order["store"], wait_ms=START_MS) as hw:
        runner = noting(Path(order["page"]), TimedRunner(hw), order)
        signal.signal(signal.SIGTERM, lambda *_: runner.stop())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        runner.run()


async def _run_async(order: dict[str, Any]) -> None:
    async with aio.connect(order["store"], wait_ms=START_MS) as hw:
        runner = noting(Path(order["page"]), AsyncTimedRunner(hw), order)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, runner.stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        await runner.run()


if __name__ == "__main__":
    import headwater.client

    serve(_run)
