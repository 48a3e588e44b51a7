"""The job ``compact``: the last message of every tag stays, with more tags than fit in memory.

Tasks read the log and Spark finds the last offset of every tag, on disk if need be; then tasks
rewrite the log in place, each a part of it, by the operations that ``Stream.compact`` uses: the
same messages stay. Others may write, read, evict and compact the log meanwhile. Where somebody else
changed a node at the same moment, the part is retried, and then left. A run that dies at any moment
has done part of the work; the next run does the rest.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

from headwater.kernel.inputs import Duration
from headwater.log import retention
from headwater.log.handles import StreamHandle
from headwater.log.reading import borders
from headwater.log.retention import MARKER_MS, AmongOffsets, Survey
from headwater.spark.engine.connections import client
from headwater.spark.engine.failures import translating_errors
from headwater.spark.jobs.compact_marks import CompactPart, read_marks
from headwater.spark.jobs.progress import JobReport, Summary, counted, deed
from headwater.spark.jobs.tasks import tasks_at_once
from headwater.spark.log.range_reader import TASK_NODES
from headwater.spark.log.target import StreamOrTopic, named_target

_ATTEMPTS = 3
_REWRITTEN = "part int, removed long, lost boolean, markers array<long>"
_Row: TypeAlias = tuple[int, int, bool, list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted(Summary):
    """What a compaction did; of a topic, in all partitions together.

    ``markers`` are those of the ``removed`` messages that marked a tag as deleted. ``left`` parts
    of the log were changed by somebody else at the same moment: run it again.
    """

    name: str
    parts: int
    removed: int = 0
    markers: int = 0
    left: int = 0

    @property
    def settled(self) -> bool:
        """See Summary."""
        return not self.left

    def sentence(self) -> str:
        """See Summary."""
        verb = deed(self.dry_run, "remove", "removed")
        some = f", {counted(self.left, 'part')} left to others" if self.left else ""
        return f"{verb} {counted(self.removed, 'message')} of {self.name!r}{some}"


def compact(
    spark: SparkSession,
    stream: str | None = None,
    *,
    topic: str | None = None,
    url: str | None = None,
    marker_ms: Duration = MARKER_MS,
    dry_run: bool = False,
    report: JobReport | None = None,
) -> Compacted:
    """Keep the last message of every tag of a stream, or of each partition of a topic.

    Offsets stay, as does the unsealed end while somebody writes on. An empty value marks a tag as
    deleted; the marker goes too once it is older than ``marker_ms`` and every registered reader is
    past it. May be repeated after a crash at any moment. Raises UnknownStream, UnknownTopic.
    """
    began = time.monotonic()
    target = named_target(url, stream, topic, "to compact")
    surveyed = _survey(target, marker_ms, sealing=not dry_run)
    parts = _parts(target, surveyed, tasks_at_once(spark)) if surveyed else []
    report = report or JobReport()
    found = Compacted(name=target.name, parts=len(parts), dry_run=dry_run)
    if parts:
        with translating_errors():
            last = _last_of_tags(spark, target.url, parts)
            if dry_run:
                with report.tasks(spark, f"reading {target.name!r}"):
                    found = _counted(found, last)
            else:
                found = _rewrite(spark, target, found, parts, last, report)
    return replace(found, seconds=time.monotonic() - began)


def _survey(
    target: StreamOrTopic, marker_ms: Duration, *, sealing: bool
) -> list[tuple[int, str, Survey]]:
    """Return what can be compacted of every stream. Raises UnknownStream, UnknownTopic."""
    run = target.hw.store.run
    streams = target.streams()
    found = [
        (place, stream, run(retention.survey(_handle(stream), marker_ms, sealing=sealing)))
        for place, stream in streams.items()
    ]
    known = any(rule.created != b"0" for _, _, rule in found)
    if not known and not (target.is_topic and streams):
        raise target.unknown()
    return [one for one in found if one[2].first <= one[2].last]


def _parts(
    target: StreamOrTopic, surveyed: list[tuple[int, str, Survey]], least: int
) -> list[CompactPart]:
    """Cut every stream where nodes end."""
    parts: list[CompactPart] = []
    for place, stream, rule in surveyed:
        ends = target.hw.store.run(borders(stream, rule.first, rule.last + 1, TASK_NODES, least))
        cuts = [rule.first - 1, *(end for end in ends if rule.first <= end < rule.last), rule.last]
        parts += [CompactPart(place, stream, rule, low + 1, high) for low, high in pairwise(cuts)]
    return parts


def _handle(stream: str) -> StreamHandle:
    return StreamHandle(stream, set())


def _last_of_tags(spark: SparkSession, url: str, parts: Sequence[CompactPart]) -> DataFrame:
    """Return a row for every tag of every stream: the mark of its last message, part, count."""
    found = read_marks(spark, url, parts).groupBy("stream", "tag")
    # Parts are numbered in the order of their offsets, so the last message is in the last of them.
    # Each is a maximum of numbers, which Spark finds by hashing; of a struct it sorts all tags.
    kept = (F.max("mark").alias("mark"), F.max("part").alias("part"), F.sum("n").alias("n"))
    return found.agg(*kept).select("mark", "part", "n")


def _counted(found: Compacted, last: DataFrame) -> Compacted:
    """Return what would be removed."""
    spent = F.sum(F.col("mark") % 2)
    (row,) = last.agg(
        F.sum("n").alias("n"), F.count("mark").alias("tags"), spent.alias("spent")
    ).collect()
    markers = row.spent or 0
    return replace(found, removed=(row.n or 0) - row.tags + markers, markers=markers)


def _rewrite(
    spark: SparkSession,
    target: StreamOrTopic,
    found: Compacted,
    parts: Sequence[CompactPart],
    last: DataFrame,
    report: JobReport,
) -> Compacted:
    """Rewrite all parts, then, if nobody interfered, remove the markers that may go."""
    rewritten = _without_older(spark, target.url, parts, last).persist(StorageLevel.DISK_ONLY)
    try:
        with report.tasks(spark, f"compacting {found.name!r}"):
            rows = rewritten.select("removed", "lost", F.size("markers").alias("spent")).collect()
        removed, left = sum(row.removed for row in rows), sum(row.lost for row in rows)
        markers = 0
        if not left and any(row.spent for row in rows):
            with report.tasks(spark, f"removing markers of {found.name!r}"):
                gone = _without_markers(target.url, parts, rewritten).collect()
            markers, left = sum(row.removed for row in gone), sum(row.lost for row in gone)
    finally:
        rewritten.unpersist()
    if not left:
        for stream, rule in {part.stream: part.rule for part in parts}.items():
            handle = _handle(stream)
            target.hw.store.run(retention.note_compacted(handle, rule.created, rule.last))
    return replace(found, removed=removed + markers, markers=markers, left=left)


def _without_older(
    spark: SparkSession, url: str, parts: Sequence[CompactPart], last: DataFrame
) -> DataFrame:
    """Remove what is not the last of its tag; returns a row for each part, with its markers."""

    def rewrite(number: int, marks: list[int]) -> _Row:
        part = parts[number]
        is_last = AmongOffsets(mark // 2 for mark in marks)
        work = (
            retention.rewrite(_handle(part.stream), part.rule, is_last, part.first, part.last)
            for _ in range(_ATTEMPTS)
        )
        return number, *_tried(url, work), [mark // 2 for mark in marks if mark % 2]

    # A part in which nothing is the last of its tag has to be rewritten too: it gets no mark.
    every = spark.range(len(parts)).selectExpr(
        "cast(null AS long) AS mark", "cast(id AS int) AS part"
    )
    # With a number, Spark makes as many tasks, however few bytes there are.
    spread = last.select("mark", "part").union(every).repartition(len(parts), "part")
    marks = spread.groupBy("part").agg(F.collect_list("mark").alias("marks"))
    work = F.udf(rewrite, _REWRITTEN, useArrow=False).asNondeterministic()
    return marks.select(work("part", "marks").alias("done")).select("done.*")


def _without_markers(url: str, parts: Sequence[CompactPart], rewritten: DataFrame) -> DataFrame:
    """Remove the markers that may go, part by part."""

    def remove(number: int, markers: list[int]) -> _Row:
        part = parts[number]
        handle = _handle(part.stream)
        work = (
            retention.remove_markers(handle, part.rule, markers, part.first, part.last)
            for _ in range(_ATTEMPTS)
        )
        return number, *_tried(url, work), []

    work = F.udf(remove, _REWRITTEN, useArrow=False).asNondeterministic()
    found = rewritten.where(F.size("markers") > 0)
    return found.select(work("part", "markers").alias("done")).select("done.*")


def _tried(url: str, work: Iterator[Any]) -> tuple[int, bool]:
    """Retry until nobody else interferes, a few times at most; what is done stays done."""
    removed, lost = 0, True
    for operation in work:
        done = client(url).store.run(operation)
        removed, lost = removed + done.removed, done.lost_race
        if not lost:
            break
    return removed, lost
