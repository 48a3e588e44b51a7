"""The job ``archive``: writes what is new in a stream to Parquet, so that the log may evict it.

Tasks write the files; how the archiver keeps its promises is in ``archiver``.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import SparkSession

from headwater.spark.archives.place import absolute_place, safe_place
from headwater.spark.archives.writing import WrittenRange
from headwater.spark.jobs.archiver import Archiver
from headwater.spark.jobs.progress import JobReport, Summary, counted, deed
from headwater.spark.jobs.tasks import in_tasks, tasks_at_once
from headwater.spark.log.target import named_target

# So many tasks for each that runs at a time make a round, which ends with a new version.
_TASKS_OF_A_ROUND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived(Summary):
    """What an archiver did; of a topic, in all partitions together."""

    name: str
    place: str
    offsets: int = 0
    messages: int = 0
    files: int = 0
    bytes: int = 0
    gaps: tuple[tuple[str, int, int], ...] = ()
    evicted: int = 0
    # Offset up to which everything is archived now, by stream.
    archived_up_to: dict[str, int]

    def sentence(self) -> str:
        """See Summary."""
        verb = deed(self.dry_run, "archive", "archived")
        of = counted(self.offsets, "offset") if self.dry_run else counted(self.messages, "message")
        verb_too = deed(self.dry_run, "evict", "evicted")
        evicted = f", {verb_too} {counted(self.evicted, 'message')}" if self.evicted else ""
        lost = sum(last - first + 1 for _, first, last in self.gaps)
        gone = f", {counted(lost, 'offset')} evicted too early" if lost else ""
        return f"{verb} {of} of {self.name!r}{gone}{evicted}"

    def facts(self) -> list[tuple[str, object]]:
        """See Summary."""
        return [
            ("place", self.place),
            ("files", f"{self.files:,}, {self.bytes:,} bytes"),
            *((f"gap in {stream}", f"{first}-{last}") for stream, first, last in self.gaps),
            *((f"{stream} up to", last) for stream, last in self.archived_up_to.items()),
        ]


def archive(
    spark: SparkSession,
    stream: str | None = None,
    *,
    topic: str | None = None,
    to: str | os.PathLike[str],
    url: str | None = None,
    evict: bool = False,
    dry_run: bool = False,
    report: JobReport | None = None,
) -> Archived:
    """Archive all that a stream, or each partition of a topic, holds beyond its archive.

    ``to`` is the place of the archive: a directory, or a URI that pyarrow.fs opens; it may hold
    archives of many streams. ``evict`` evicts what is archived from the log, as far as no group
    and no other reader needs it. May be repeated after a crash at any moment, and as often as you
    like. Raises UnknownStream, UnknownTopic, ArchiveMismatch, ArchiveTaken, ArchiveDamaged, and
    InvalidInput for a place that cannot be written.
    """
    began = time.monotonic()
    target, place = named_target(url, stream, topic, "to archive"), absolute_place(to)
    archiver = Archiver(target, place)
    streams = archiver.streams
    found = Archived(
        name=target.name,
        place=safe_place(place),
        dry_run=dry_run,
        offsets=sum(each.range().size for each in streams),
        gaps=tuple((each.archive.stream, *gap) for each in streams for gap in each.missing()),
        archived_up_to={each.archive.stream: each.manifest.last for each in streams},
    )
    if dry_run:
        evicted = sum(each.would_evict(target.hw) for each in streams) if evict else 0
    else:
        for each in streams:
            each.archive.directory.prepare()
        found = _run(spark, archiver, found, report or JobReport())
        evicted = sum(each.evict(target.hw) for each in streams) if evict else 0
    return replace(found, evicted=evicted, seconds=time.monotonic() - began)


def _run(spark: SparkSession, archiver: Archiver, found: Archived, report: JobReport) -> Archived:
    tasks = _TASKS_OF_A_ROUND * tasks_at_once(spark)
    with report.step(f"archiving {found.name}", found.offsets, "offset") as step:
        for offsets in archiver.run(partial(in_tasks, spark, result=WrittenRange), tasks):
            step.advance(offsets)
    streams = archiver.streams
    new = [file for each in streams for file in each.manifest.files[len(each.before.files) :]]
    return replace(
        found,
        messages=sum(file.rows for file in new),
        files=len(new),
        bytes=sum(file.bytes for file in new),
        gaps=tuple(
            (each.archive.stream, *gap)
            for each in streams
            for gap in each.manifest.gaps_between(each.before.last + 1, each.manifest.last)
        ),
        archived_up_to={each.archive.stream: each.manifest.last for each in streams},
    )
