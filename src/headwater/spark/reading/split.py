"""Ranges of offsets, cut into tasks of about the same work.

A cut lies where a node ends, so that no node is fetched and opened twice, and what is counted is
nodes: compaction makes many offsets empty, and a node of what it leaves is as full as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from headwater.log.extents import borders_call, borders_of
from headwater.log.limits import NODE_MESSAGES
from headwater.spark.target import Target

# About half a million messages: some tenths of a second, against milliseconds to start a task.
TASK_NODES = 500


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """What one task reads: start..stop-1 of a stream, and which stream of that name it was."""

    stream: str
    partition: int
    start: int
    stop: int
    created: int

    @property
    def size(self) -> int:
        """How many offsets it spans."""
        return self.stop - self.start


def split(target: Target, ranges: Sequence[OffsetRange], least: int) -> list[OffsetRange]:
    """Cut ranges into tasks, at least so many when there are as many offsets.

    One round trip to each server; none when there is nothing to cut.
    """
    ranges = [span for span in ranges if span.size > 0]
    total = sum(span.size for span in ranges)
    shares = [-(-least * span.size // total) for span in ranges]
    large = [
        (span, share)
        for span, share in zip(ranges, shares, strict=True)
        if share > 1 or span.size > TASK_NODES * NODE_MESSAGES
    ]
    replies = target.hw.store.ask_all(
        [
            borders_call(span.stream, span.start, span.stop, TASK_NODES, share)
            for span, share in large
        ]
    )
    parts = {span: [span] for span in ranges}
    for (span, share), reply in zip(large, replies, strict=True):
        _, borders = borders_of(reply)
        if len(borders) + 1 < share:
            borders = _even(span, share)
        cuts = [span.start, *(border + 1 for border in borders), span.stop]
        parts[span] = [
            replace(span, start=start, stop=stop) for start, stop in pairwise(cuts) if start < stop
        ]
    return [part for span in ranges for part in parts[span]]


def _even(span: OffsetRange, parts: int) -> list[int]:
    """Cut by offsets: there are too few nodes to cut between them."""
    return [span.start + span.size * part // parts - 1 for part in range(1, parts)]
