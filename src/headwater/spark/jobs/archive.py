"""The job ``archive``: writes what is new in a stream to Parquet, so that the log may evict it.

Tasks write the files; how the archiver keeps its promises is in ``archiver``.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TypeAlias

from pyspark.sql import SparkSession

from headwater.client import Headwater
from headwater.errors import HeadwaterError
from headwater.log.reading import Extent
from headwater.spark.archives.table import Archive, Contents, absolute_place, safe_place
from headwater.spark.archives.writing import WrittenRange, write_range
from headwater.spark.engine.connections import client
from headwater.spark.jobs.progress import JobReport, Summary, counted, deed
from headwater.spark.jobs.tasks import in_tasks, tasks_at_once
from headwater.spark.log.range_reader import OffsetRange, split
from headwater.spark.log.target import StreamOrTopic, named_target
from headwater.store.presence import ARCHIVES, keep_notes

# ── Archiver ──────────────────────────────────────────────────────────────────────────────────────
# The archiver: it finds what is new in streams, has it written, and commits it to their tables.
#
# Files come first, then a commit to the table that names them; only then does anything count
# as archived, and only then may the log evict it. An archiver that dies at any moment has archived
# what its last commit says, and the next one goes on from there: files that no commit names are
# written again, or lie unread. It is a registered reader of its streams, so retention waits for
# it; what was evicted all the same is recorded as an exact gap.


WriteRange: TypeAlias = "Callable[[OffsetRange], WrittenRange]"
# Calls a function for each range, perhaps for many at once, and returns the results in their order.
Do: TypeAlias = "Callable[[WriteRange, Sequence[OffsetRange]], list[WrittenRange]]"


log = logging.getLogger("headwater.spark")

# So many places of archives are noted in a store.
_PLACES = 1000


def reader_name(place: str) -> str:
    """Return the name of the archiver of a place among the readers of a stream."""
    return f"archive:{hashlib.blake2b(place.encode(), digest_size=4).hexdigest()}"


@dataclass(slots=True)
class StreamArchiver:
    """One stream: its archive, the version of the beginning and the newest, the log's extent."""

    archive: Archive
    before: Contents
    contents: Contents
    extent: Extent
    partition: int

    @property
    def reader(self) -> str:
        """The name by which the log knows this archiver."""
        return reader_name(self.archive.place)

    def missing(self) -> list[tuple[int, int]]:
        """Return what was evicted before it could be archived."""
        first, last = self.contents.last + 1, self.extent.first - 1
        return [(first, last)] if first <= last else []

    def range(self) -> OffsetRange:
        """Return what is to be archived."""
        start = max(self.contents.last + 1, self.extent.first)
        stop = max(self.extent.last + 1, start)
        return OffsetRange(self.archive.stream, self.partition, start, stop, self.extent.created)

    def register(self, hw: Headwater) -> None:
        """Register what this archiver needs next with the log, which may evict what is before."""
        self.archive.flush()
        hw.stream(self.archive.stream).register_reader(self.reader, self.contents.last + 1)
        # By this a message is traced to its file; a place is noted without its secrets. No archive
        # depends on it, and what is archived by now must not be told as failed.
        where = {self.reader: safe_place(self.archive.place)}
        try:
            hw.store.run(keep_notes(ARCHIVES, where, most=_PLACES, replace=True))
        except HeadwaterError as error:
            log.warning("the place of %s is not noted in the store: %s", self.reader, error)

    def commit(self, hw: Headwater, written: Sequence[WrittenRange]) -> None:
        """Commit what is new, and what was missing before it."""
        gaps = [*self.missing(), *(gap for part in written for gap in part.gaps)]
        files = [file for part in written for file in part.files]
        last = written[-1].last if written else self.extent.first - 1
        self.contents = self.archive.commit(self.contents, last, files, gaps)
        self.register(hw)

    def evict(self, hw: Headwater) -> int:
        """Evict what is archived and needed by nobody; returns how many messages."""
        return hw.stream(self.archive.stream).evict(self.contents.last, past_readers=False)

    def would_evict(self, hw: Headwater) -> int:
        """Return how many offsets could be evicted once everything is archived."""
        stream = hw.stream(self.archive.stream)
        facts = stream.info()
        needed = [at for reader, at in facts.readers.items() if reader != self.reader]
        needed += [stream.group(group).info().ack_offset for group in facts.groups]
        return max(min([facts.last + 1, *needed]) - facts.first, 0)


class Archiver:
    """Archives what a stream or topic holds at this moment beyond its archive at a place.

    Raises UnknownStream, UnknownTopic, ArchiveMismatch, ArchiveDamaged.
    """

    def __init__(self, target: StreamOrTopic, place: str) -> None:
        self.target = target
        self.place = place
        self.streams = self._look()

    def _look(self) -> list[StreamArchiver]:
        names = self.target.streams()
        archives = [Archive(self.place, name) for name in names.values()]
        # The tables first: since then, the log may only have grown.
        known = [archive.load() for archive in archives]
        extents = self.target.extents(names.values())
        if not any(extent.created for extent in extents):
            raise self.target.unknown()
        topic = (self.target.name, len(names)) if self.target.is_topic else (None, None)
        found = []
        for place, archive, newest, extent in zip(names, archives, known, extents, strict=True):
            if newest is not None:
                newest.check_stream(archive.directory.shown, extent.created, extent.last)
            contents = newest or Contents(
                stream=archive.stream, created=extent.created, topic=topic[0], partitions=topic[1]
            )
            if extent.created:
                found.append(StreamArchiver(archive, contents, contents, extent, place))
        return found

    def run(self, do: Do, tasks_of_a_round: int) -> Iterator[int]:
        """Archive it all, in rounds that each end with a commit; yields offsets done so far.

        Raises ArchiveTaken when another archiver of the same place was faster.
        """
        hw = self.target.hw
        for stream in self.streams:
            # Whatever happens, retention waits from now on.
            stream.register(hw)
        by_name = {stream.archive.stream: stream for stream in self.streams}
        parts = split(self.target, [stream.range() for stream in self.streams], 1)
        work = partial(_write, self.target.url, self.place)
        for start in range(0, len(parts), tasks_of_a_round):
            some = parts[start : start + tasks_of_a_round]
            written = do(work, some)
            for name, group in groupby(
                zip(some, written, strict=True), lambda each: each[0].stream
            ):
                by_name[name].commit(hw, [one for _, one in group])
            yield sum(part.size for part in some)
        for stream in self.streams:
            if stream.missing():
                stream.commit(hw, [])


def _write(url: str, place: str, part: OffsetRange) -> WrittenRange:
    """Do what a task does."""
    archive = Archive(place, part.stream)
    return write_range(client(url), archive, part.created, part.start, part.stop - 1)


# ── Archive ───────────────────────────────────────────────────────────────────────────────────────


# So many tasks for each that runs at a time make a round, which ends with a commit.
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
        archived_up_to={each.archive.stream: each.contents.last for each in streams},
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
    new = [file for each in streams for file in {*each.contents.files} - {*each.before.files}]
    return replace(
        found,
        messages=sum(file.rows for file in new),
        files=len(new),
        bytes=sum(file.bytes for file in new),
        gaps=tuple(
            (each.archive.stream, *gap)
            for each in streams
            for gap in each.contents.gaps_between(each.before.last + 1, each.contents.last)
        ),
        archived_up_to={each.archive.stream: each.contents.last for each in streams},
    )
