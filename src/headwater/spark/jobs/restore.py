"""The job ``restore``: writes a range of an archive into a stream, in order and each message once.

Tag, value and time of a message stay as they were. The target assigns the offsets: they stay the
same when it is empty, the range begins at 1 and nothing is missing in it; else the summary says
which offsets became which. After a crash at any moment, running it again goes on with it.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass, field, replace
from functools import partial

from pyspark.sql import SparkSession

from headwater.client import Headwater
from headwater.errors import InvalidInput, PartitionMismatch, TargetNotEmpty, UnknownArchive
from headwater.kernel.inputs import check_name
from headwater.log.keys import check_offset
from headwater.log.reading import partitions_of
from headwater.spark.archives.reading import archived_partitions
from headwater.spark.archives.table import (
    Archive,
    Contents,
    absolute_place,
    archived_streams,
    safe_place,
)
from headwater.spark.archives.writing import ArchivePiece, MovedRange, joined, restore_piece
from headwater.spark.engine.connections import absolute_url, client
from headwater.spark.jobs.progress import JobReport, Summary, counted, deed
from headwater.spark.jobs.tasks import in_tasks

# So many offsets of each stream make a round, after which the job reports its progress.
ROUND_OFFSETS = 2_000_000
_MOVES_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored(Summary):
    """What this run restored into a stream or topic; not what earlier runs did."""

    name: str
    into: str
    place: str
    offsets: int
    messages: int = 0
    resumed: bool = False
    # Offsets of the archive that were evicted before they could be archived, by stream.
    gaps: tuple[tuple[str, int, int], ...] = ()
    moved: tuple[MovedRange, ...] = ()

    @property
    def same_offsets(self) -> bool:
        """Whether every message has the offset that it had."""
        return all((move.first, move.last) == (move.to_first, move.to_last) for move in self.moved)

    def sentence(self) -> str:
        """See Summary."""
        verb = deed(self.dry_run, "restore", "restored")
        of = counted(self.offsets, "offset") if self.dry_run else counted(self.messages, "message")
        where = "" if self.same_offsets else ", at other offsets"
        return f"{verb} {of} of {self.name!r} into {self.into!r}{where}"

    def facts(self) -> list[tuple[str, object]]:
        """See Summary."""
        more = len(self.moved) - _MOVES_SHOWN
        return [
            ("place", self.place),
            *((f"gap in {stream}", f"{first}-{last}") for stream, first, last in self.gaps),
            *(
                (f"{move.first}-{move.last} to", f"{move.to_first}-{move.to_last} of {move.stream}")
                for move in self.moved[:_MOVES_SHOWN]
            ),
            *([("and", f"{more} ranges more; --json names them all")] if more > 0 else []),
        ]


def restore(
    spark: SparkSession,
    stream: str | None = None,
    *,
    topic: str | None = None,
    archive: str | os.PathLike[str],
    into: str,
    first: int | None = None,
    last: int | None = None,
    url: str | None = None,
    append: bool = False,
    dry_run: bool = False,
    report: JobReport | None = None,
) -> Restored:
    """Write offsets ``first`` to ``last`` of a stream's archive, or all of it, to ``into``.

    A topic is restored as a whole, each partition into the partition of its number. A target that
    holds messages is refused unless ``append``, or unless an earlier run of this restore wrote
    them: then it goes on from there. Raises UnknownArchive, TargetNotEmpty, PartitionMismatch.
    """
    began = time.monotonic()
    place, store = absolute_place(archive), absolute_url(url)
    hw = client(store)
    if stream is not None and topic is None:
        into_streams = {check_name(stream, "stream"): check_name(into, "stream")}
        partitions = 0
    elif topic is not None and stream is None:
        if (first, last) != (None, None):
            raise InvalidInput("a range is about one stream; restore the stream 'topic/partition'")
        into_streams, partitions = _of_topic(hw, place, check_name(topic, "topic"), into)
    else:
        raise InvalidInput("name either a stream or a topic to restore")
    ways = [
        _way(hw, Archive(place, name), target, first, last, append=append)
        for name, target in into_streams.items()
    ]
    found = Restored(
        name=stream or topic or "",
        into=into,
        place=safe_place(place),
        dry_run=dry_run,
        offsets=sum(way.last - way.at + 1 for way in ways),
        resumed=any(way.at > way.first for way in ways),
        gaps=tuple((way.archive.stream, *gap) for way in ways for gap in way.gaps),
    )
    if not dry_run:
        if partitions:
            hw.topic(into, partitions)
        found = _run(spark, store, found, ways, report or JobReport())
    return replace(found, seconds=time.monotonic() - began)


@dataclass(slots=True)
class _Way:
    """One stream of a restore: its archive, its target, what is wanted, and how far it is."""

    archive: Archive
    contents: Contents
    target: str
    first: int
    last: int
    at: int
    moved: list[MovedRange] = field(default_factory=list)

    @property
    def producer(self) -> str:
        """The name by which the target recognises this restore."""
        words = (self.archive.place, self.archive.stream, self.contents.created, self.first)
        return f"restore:{hashlib.blake2b(repr(words).encode(), digest_size=8).hexdigest()}"

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """What was evicted before it could be archived."""
        return self.contents.gaps_between(self.first, self.last)

    def piece(self) -> ArchivePiece:
        """Return what the next round restores; rounds begin at the same offsets in every run."""
        start = self.at - (self.at - self.first) % ROUND_OFFSETS
        end = min(start + ROUND_OFFSETS - 1, self.last)
        files = self.contents.between(start, end)
        return ArchivePiece(self.archive, files, start, end, self.target, self.producer)


def _of_topic(hw: Headwater, place: str, topic: str, into: str) -> tuple[dict[str, str], int]:
    """Return the target of each archived stream of a topic, and the number of partitions."""
    partitions = archived_partitions(place, topic)
    if not partitions:
        raise UnknownArchive(safe_place(place), topic)
    there = hw.store.run(partitions_of(check_name(into, "topic")))
    if there not in (0, partitions):
        raise PartitionMismatch(into, partitions, there)
    archived = set(archived_streams(place))
    pairs = {f"{topic}/{n}": f"{into}/{n}" for n in range(partitions)}
    return {name: target for name, target in pairs.items() if name in archived}, partitions


def _way(
    hw: Headwater,
    archive: Archive,
    target: str,
    first: int | None,
    last: int | None,
    *,
    append: bool,
) -> _Way:
    """Find out what is to be done for one stream, and how much of it is done already."""
    contents = archive.require()
    first = contents.first if first is None else check_offset(first, "first")
    last = contents.last if last is None else check_offset(last, "last")
    if not first <= last + 1 <= contents.last + 1:
        raise InvalidInput(
            f"offsets {first} to {last} are not in the archive of {archive.stream!r}, which holds "
            f"{contents.first} to {contents.last}; name a range within"
        )
    way = _Way(archive, contents, target, first, last, first)
    stream = hw.stream(target)
    done = stream.newest_sequence(way.producer)
    if done is not None:
        way.at = min(max(done + 1, first), last + 1)
    elif (there := stream.info().last) and not append:
        raise TargetNotEmpty(target, there)
    return way


def _run(
    spark: SparkSession, store: str, found: Restored, ways: list[_Way], report: JobReport
) -> Restored:
    work = partial(_restore, store)
    with report.step(f"restoring {found.name}", found.offsets, "offset") as step:
        while going := [way for way in ways if way.at <= way.last]:
            pieces = [way.piece() for way in going]
            done = in_tasks(spark, work, pieces, list[MovedRange])
            for way, piece, moved in zip(going, pieces, done, strict=True):
                step.advance(piece.last - way.at + 1)
                way.at = piece.last + 1
                way.moved += moved
    moved = joined([move for way in ways for move in way.moved])
    messages = sum(move.to_last - move.to_first + 1 for move in moved)
    return replace(found, messages=messages, moved=tuple(moved))


def _restore(store: str, piece: ArchivePiece) -> list[MovedRange]:
    """Do what a task does."""
    return restore_piece(client(store), piece)
