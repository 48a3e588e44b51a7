"""What some work takes: its time, and the processor time of every process that it keeps busy.

On a machine that is shared, time says little about a program, and processor time still says much.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.harness import Row

Work = Callable[[], object]
_TICKS = os.sysconf("SC_CLK_TCK")


class Effort(NamedTuple):
    """Seconds by the clock, and seconds of all processors."""

    seconds: float
    processor: float


class Planned(NamedTuple):
    """A row that can be measured."""

    name: str
    measure: Callable[[], Row]


@dataclass(frozen=True)
class Goals:
    """What a ratio is held to; without a least it is shown, not judged."""

    least: float = 0
    aim: float = 0


SHOWN = Goals()


def processor_seconds(program: str = "") -> float:
    """Return the processor time of this process and of all that it started, their own included.

    With a program, only what such processes and those that they started have used.
    """
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    names: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            name, _, facts = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            words = facts.split()
            pid = int(folder.name)
            parents[pid] = int(words[1])
            # Its own, and that of its children that have ended.
            used[pid] = sum(map(int, words[11:15])) / _TICKS
            names[pid] = name
    ours = {pid for pid in parents if os.getpid() in _above(pid, parents)}
    if program:
        ours = {pid for pid in ours if any(names[one] == program for one in _above(pid, parents))}
    return sum(used[pid] for pid in ours)


def _above(pid: int, parents: dict[int, int]) -> list[int]:
    """Return a process and those above it that are known."""
    found = []
    while pid in parents:
        found.append(pid)
        pid = parents[pid]
    return found


def effort(work: Work) -> Effort:
    """Run some work and return what it took."""
    used, began = processor_seconds(), time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    return Effort(seconds, processor_seconds() - used)


def interleave_efforts(
    ours: Callable[[], Effort], peer: Callable[[], Effort], rounds: int
) -> tuple[Effort, Effort]:
    """Run both in turn, swapping who begins, and return the medians of each."""
    figures: tuple[list[Effort], list[Effort]] = ([], [])
    for turn in range(rounds):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            figures[which].append((ours, peer)[which]())
    return medians(figures[0]), medians(figures[1])


def medians(found: list[Effort]) -> Effort:
    """Return the median of both figures."""
    return Effort(*map(statistics.median, zip(*found, strict=True)))


def compare_rates(
    name: str, count: int, ours: Work, peer: Work, rounds: int, goals: Goals = SHOWN
) -> Row:
    """Compare two ways to the same ``count`` rows by how many each does in a second."""
    a, b = interleave_efforts(lambda: effort(ours), lambda: effort(peer), rounds)
    return row_of_rates(name, count, a, count, b, goals)


def row_of_rates(
    name: str, count: int, ours: Effort, peer_count: int, peer: Effort, goals: Goals = SHOWN
) -> Row:
    """Return the row of two rates, each by its own number of rows."""
    a, b = count / ours.seconds, peer_count / peer.seconds
    by_processor = (count / ours.processor) / (peer_count / peer.processor)
    shown = f"{a:,.0f}/s", f"{b:,.0f}/s"
    return Row(name, "off", *shown, a / b, goals.least, goals.aim, True, by_processor)


def compare_times(
    name: str,
    ours: Callable[[], Effort],
    peer: Callable[[], Effort],
    rounds: int,
    goals: Goals = SHOWN,
) -> Row:
    """Compare how long two pieces of work take."""
    a, b = interleave_efforts(ours, peer, rounds)
    shown = f"{a.seconds * 1000:,.0f} ms", f"{b.seconds * 1000:,.0f} ms"
    ratios = a.seconds / b.seconds, a.processor / b.processor
    return Row(name, "off", *shown, ratios[0], goals.least, goals.aim, False, ratios[1])
