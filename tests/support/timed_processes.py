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
from headwater import DueRun, TimedRunner, aio
from headwater.aio import AsyncTimedRunner
from headwater.store.call import Operation
from headwater.timed import job_streams
from headwater.timed.steps import TimedStep
from tests.support.timed_checker import Note
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
    die, write = dying(order), job_streams.write

    def write_or_die(*words: Any) -> Operation[Any]:
        step: TimedStep = words[2]
        die(f"before {step.events[-1].what}")
        written = yield from write(*words)
        die(f"after {step.events[-1].what}")
        return written

    vars(job_streams)["write"] = write_or_die
    if order.get("manner") == "async":
        asyncio.run(_run_async(order))
        return
    with headwater.connect(order["store"]) as hw:
        runner = noting(Path(order["page"]), TimedRunner(hw), order)
        signal.signal(signal.SIGTERM, lambda *_: runner.stop())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        runner.run()


async def _run_async(order: dict[str, Any]) -> None:
    async with aio.connect(order["store"]) as hw:
        runner = noting(Path(order["page"]), AsyncTimedRunner(hw), order)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, runner.stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        await runner.run()


if __name__ == "__main__":
    import headwater.client

    serve(_run)
