"""When a process of an application has to go, and when the next one takes its place."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from headwater.app.parts import WELL_S
from headwater.app.processes import PartReport, ProcessPlace, ProcessPlan, Stop

MB = 1_000_000
NOW = 1000.0


@dataclass
class Process:
    """What a place knows of its process; no program runs."""

    started: float = NOW
    memory: int = 0
    parts: dict[str, PartReport] = field(default_factory=dict)
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
    part = PartReport("mail", "running", 1, 0, 0, stuck=1)
    process: Any = Process(parts={"mail": part})
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
