"""Ranges of offsets, cut into tasks of about the same work.

Ranges are cut where a node ends, so that no node is fetched and opened twice. Work is counted in
nodes, not in offsets: compaction leaves many offsets empty, but packs what it leaves into full
nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from headwater.log.keys import NODE_MESSAGES
from headwater.log.reading import borders
from headwater.spark.log.noting import ReadNote
from headwater.spark.log.target import StreamOrTopic
from headwater.store.many import together

if TYPE_CHECKING:
    from headwater.spark.archives.manifest import File

# About a million messages: some tenths of a second, against milliseconds to start a task.
TASK_NODES = 1000


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """What one task reads: start..stop-1 of a stream, and which stream of that name it was."""

    stream: str
    partition: int
    start: int
    stop: int
    created: int
    # The files that hold it, when it is read from an archive.
    files: tuple[File, ...] = ()
    # What the first task of a micro-batch notes of its query.
    note: ReadNote | None = None

    @property
    def size(self) -> int:
        """How many offsets it spans."""
        return self.stop - self.start


def split(target: StreamOrTopic, ranges: Sequence[OffsetRange], least: int) -> list[OffsetRange]:
    """Cut ranges into tasks, at least so many when there are as many offsets.

    One round trip to each server; none when there is nothing to cut.
    """
    ranges = [span for span in ranges if span.size > 0]
    total = sum(span.size for span in ranges)
    shares = [-(-least * span.size // total) for span in ranges]
    archived = {
        span: _of_archive(target, span, share) for span, share in zip(ranges, shares, strict=True)
    }
    parts = {span: [live] if live.size else [] for span, (_, live) in archived.items()}
    large = [
        (span, live, share)
        for (span, (_, live)), share in zip(archived.items(), shares, strict=True)
        if live.size and (share > 1 or live.size > TASK_NODES * NODE_MESSAGES)
    ]
    found = target.hw.store.run(
        together(
            borders(live.stream, live.start, live.stop, TASK_NODES, share)
            for _, live, share in large
        )
    )
    for (span, live, share), between in zip(large, found, strict=True):
        ends = between if len(between) + 1 >= share else _even(live, share)
        cuts = [live.start, *(end + 1 for end in ends), live.stop]
        parts[span] = [
            replace(live, start=start, stop=stop) for start, stop in pairwise(cuts) if start < stop
        ]
    return [part for span in ranges for part in (*archived[span][0], *parts[span])]


def _of_archive(
    target: StreamOrTopic, span: OffsetRange, least: int
) -> tuple[list[OffsetRange], OffsetRange]:
    """Return the tasks that read from the archive, and the range that is left to the log."""
    manifest = target.manifest(span.stream)
    if manifest is None:
        return [], span
    from headwater.spark.archives.history import divide

    parts, goes_on = divide(manifest, span.start, span.stop, least)
    ranges = [replace(span, start=part.start, stop=part.stop, files=part.files) for part in parts]
    return ranges, replace(span, start=goes_on)


def _even(span: OffsetRange, parts: int) -> list[int]:
    """Return ends by offsets, for a range with too few nodes to cut between them."""
    return [span.start + span.size * part // parts - 1 for part in range(1, parts)]
