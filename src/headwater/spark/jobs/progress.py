"""What all jobs share: progress while they run, and a summary at the end.

On a terminal, progress is one line that moves; elsewhere it is a plain line now and then, so that a
log file stays readable; by default a job shows nothing. All of it goes to standard error: standard
output is for the summary. A job is a function that takes a ``JobReport`` and returns a
``Summary``; it prints nothing itself.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAIN_SECONDS = 5.0
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a job did, or, with ``dry_run``, what it would do; each job adds its own fields."""

    dry_run: bool = False
    seconds: float = 0.0

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do, or to be looked at; else a command ends with 1."""
        return True

    def sentence(self) -> str:
        """Return one sentence, without the full stop."""
        raise NotImplementedError

    def headline(self) -> str:
        """Return the line that ends the job on a terminal."""
        if self.dry_run:
            return f"dry run: {self.sentence()}; nothing was changed"
        return f"{self.sentence()} in {self.seconds:.1f} s"

    def facts(self) -> list[tuple[str, object]]:
        """Return all fields but those of the headline, for people."""
        own = [field.name for field in fields(self) if field.name not in _IN_HEADLINE]
        return [(name.replace("_", " "), _readable(getattr(self, name))) for name in own]


_IN_HEADLINE = {"dry_run", "seconds"}


def deed(dry_run: bool, would: str, done: str) -> str:
    """Choose the verb: what would be done in a dry run, what was done otherwise."""
    return f"would {would}" if dry_run else done


def counted(count: int, what: str) -> str:
    """Return a number of things, as in 1 row, 12,345 rows; ``what`` is the singular."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


class Manner(Enum):
    """How a job shows its progress."""

    LINE = "a line that moves"
    PLAIN = "a line now and then"
    QUIET = "not at all"


class JobStep(Protocol):
    """One part of a job, while it runs."""

    def advance(self, count: int) -> None:
        """Add to what is done."""

    def expect(self, total: int) -> None:
        """Set how much there is to do in all, once it is known."""


class JobReport:
    """Where a job reports its progress; by default it shows nothing."""

    def __init__(
        self, manner: Manner = Manner.QUIET, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.manner = manner
        self.clock = clock

    @classmethod
    def of_command(cls, *, quiet: bool) -> JobReport:
        """Return the report that fits the standard error of a command."""
        if quiet:
            return cls(Manner.QUIET)
        return cls(Manner.LINE if sys.stderr.isatty() else Manner.PLAIN)

    def note(self, text: str) -> None:
        """Show a line of text."""
        if self.manner is not Manner.QUIET:
            _write(text)

    @contextmanager
    def step(self, what: str, total: int | None = None, unit: str = "row") -> Iterator[JobStep]:
        """Show a part of the job while it runs; ``unit`` is the singular of what is counted."""
        if self.manner is Manner.LINE:
            with _line(what, total, unit) as step:
                yield step
            return
        counting = _Counting(self, what, total, unit)
        yield counting
        counting.end()

    @contextmanager
    def tasks(self, spark: SparkSession, what: str) -> Iterator[None]:
        """Show the tasks of all that Spark runs for this thread meanwhile."""
        if self.manner is Manner.QUIET or not hasattr(spark, "_jsc"):
            # Spark Connect does not report single tasks.
            with self.step(what, unit="task"):
                yield
            return
        ended = threading.Event()
        context = spark.sparkContext
        group = f"headwater-{threading.get_ident()}-{self.clock()}"
        context.setJobGroup(group, what)
        with self.step(what, unit="task") as step:
            watcher = threading.Thread(
                target=_watch, args=(context.statusTracker(), group, step, ended), daemon=True
            )
            watcher.start()
            try:
                yield
            finally:
                ended.set()
                watcher.join()
                context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
                context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


def _watch(tracker: Any, group: str, step: JobStep, ended: threading.Event) -> None:
    """Follow the stages of a group of Spark's jobs until the work has ended."""
    done = 0
    last_look = False
    while not last_look:
        last_look = ended.wait(_POLL_SECONDS)
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        stages = {stage for job in jobs if job is not None for stage in job.stageIds}
        infos = [info for stage in sorted(stages) if (info := tracker.getStageInfo(stage))]
        finished = sum(info.numCompletedTasks for info in infos)
        step.expect(max(sum(info.numTasks for info in infos), finished))
        step.advance(max(finished - done, 0))
        done = max(done, finished)


class _Counting:
    """A step that writes a plain line now and then, or none."""

    def __init__(self, report: JobReport, what: str, total: int | None, unit: str) -> None:
        self._report = report
        self._what, self._total, self._unit = what, total, unit
        self._done = 0
        self._began = self._told = report.clock()
        self._last = ""

    def advance(self, count: int) -> None:
        """See JobStep."""
        self._done += count
        now = self._report.clock()
        if now - self._told >= PLAIN_SECONDS:
            self._told = now
            if (line := f"{self._what}: {self._so_far()}") != self._last:
                self._last = line
                self._report.note(line)

    def expect(self, total: int) -> None:
        """See JobStep."""
        self._total = total

    def end(self) -> None:
        """Show how much it was in the end."""
        seconds = self._report.clock() - self._began
        self._report.note(
            f"{self._what}: {counted(self._done, self._unit)}, done in {seconds:.1f} s"
        )

    def _so_far(self) -> str:
        if not self._total:
            return counted(self._done, self._unit)
        share = 100 * self._done // self._total
        return f"{self._done:,} of {counted(self._total, self._unit)}, {share} %"


@contextmanager
def _line(what: str, total: int | None, unit: str) -> Iterator[JobStep]:
    """Show a step as a line that moves, with a bar when its end is known."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[shown]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True, highlight=False)) as progress:
        task = progress.add_task(what.replace("[", "\\["), total=total, shown=f"0 {unit}s")

        class _MovingLine:
            def advance(self, count: int) -> None:
                progress.update(task, advance=count)
                done = int(progress.tasks[task].completed)
                progress.update(task, shown=counted(done, unit))

            def expect(self, total: int) -> None:
                progress.update(task, total=total)

        yield _MovingLine()


def _write(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _readable(fact: object) -> object:
    """Return numbers with separated thousands, maps as "name number" pairs; others as they are."""
    if isinstance(fact, int) and not isinstance(fact, bool):
        return f"{fact:,}"
    if isinstance(fact, dict):
        return ", ".join(f"{name} {_readable(value)}" for name, value in fact.items())
    return fact
