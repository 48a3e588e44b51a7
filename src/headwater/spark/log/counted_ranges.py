"""Ranges of which only offsets are wanted: the JVM counts them itself, without a task in Python.

Offsets are dense where compaction left no holes, and a stream counts its messages. So the plan of a
batch read knows all rows of such a range, as they are at that moment (``jvm/CountedReader.java``).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from headwater.log import reading
from headwater.log.handles import StreamHandle
from headwater.spark.log import columns
from headwater.spark.log.target import StreamOrTopic
from headwater.spark.log.task_ranges import OffsetRange
from headwater.store.many import together

# By this the JVM finds the facts in a pickled task; no text has these bytes.
_MARK = b"\xffheadwater:counted\xff"
_FACTS = struct.Struct("<qqii")
# The JVM counts so many in a tenth of a second.
TASK_OFFSETS = 10_000_000


@dataclass(frozen=True)
class CountedRange(InputPartition):
    """A task for the JVM: a mark, start, stop, partition and the name of the stream."""

    facts: bytes

    @classmethod
    def of(cls, span: OffsetRange) -> CountedRange:
        """Return the task for a range."""
        name = span.stream.encode()
        facts = _FACTS.pack(span.start, span.stop, span.partition, len(name))
        return cls(_MARK + facts + name)


def are_enough(names: Collection[str]) -> bool:
    """Return whether the JVM asks for no column that lies in messages."""
    return columns.NODE.name in names and columns.COUNTED.issuperset(names)


def dense_spans(target: StreamOrTopic, streams: Sequence[str]) -> list[range]:
    """Return the offsets of each stream; an empty range when some are missing between them.

    One round trip to each server.
    """
    handles = (StreamHandle(name, set()) for name in streams)
    found = target.hw.store.run(together(map(reading.info, handles)))
    return [
        range(one.first, one.last + 1)
        if one.length == one.last - one.first + 1 and not one.missing
        else range(0)
        for one in found
    ]


def covers(dense: range, span: OffsetRange) -> bool:
    """Return whether no offset of a span is missing."""
    return dense.start <= span.start and span.stop <= dense.stop


def cut(span: OffsetRange, least: int) -> Iterator[OffsetRange]:
    """Cut a range into tasks of which only the number of rows is wanted, ``least`` at least."""
    parts = min(span.size, max(least, -(-span.size // TASK_OFFSETS)))
    for part in range(parts):
        start, stop = (span.start + span.size * place // parts for place in (part, part + 1))
        yield replace(span, start=start, stop=stop)
