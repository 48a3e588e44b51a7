"""What a process of an application tells its supervisor, and when."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from headwater.app import child
from headwater.app.child import Child
from headwater.app.parts import Fault, Part, PartCounts, Places, Resources
from headwater.app.processes import Lines, News, Report
from headwater.app.running import Runner


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
                if isinstance(report, Report) and report.parts[0].done == done:
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
