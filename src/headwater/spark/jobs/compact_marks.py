"""The last messages of tags, as tasks find them: what the job ``compact`` aggregates.

A source of its own, because only these columns are wanted: values, which are most of a log, stay in
the process that reads them. Of each hundred thousand messages only the last of a tag is passed on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headwater.errors import InvalidInput
from headwater.log.retention import Survey
from headwater.spark.engine.connections import client

_GATHERED_ROWS = 100_000
_SCHEMA = pa.schema(
    [
        ("stream", pa.int32()),
        ("part", pa.int32()),
        ("tag", pa.string()),
        ("mark", pa.int64()),
        ("n", pa.int64()),
    ]
)


class CompactPart(NamedTuple):
    """The nodes of a stream that lie in first..last; ``place`` numbers the streams of a topic."""

    place: int
    stream: str
    rule: Survey
    first: int
    last: int


class _Marks(NamedTuple):
    """What the source is told by its option: Spark redacts one of this name in its plans."""

    url: str
    parts: list[CompactPart]


def read_marks(spark: SparkSession, url: str, parts: Sequence[CompactPart]) -> DataFrame:
    """Return rows of stream, part, tag, mark, n: the last of ``n`` messages of a tag in a part.

    ``mark`` is twice its offset, and one more when it is a marker that may go.
    """
    spark.dataSource.register(MarksSource)
    words = msgspec.json.encode(_Marks(url, list(parts))).decode()
    return spark.read.format(MarksSource.name()).option("url", words).load()


class MarksSource(DataSource):
    """The marks of parts of a log; ``url`` holds the store and the parts, as JSON."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "headwater_marks"

    def schema(self) -> str:
        """Return the columns."""
        return "stream int, part int, tag string, mark long, n long"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  Spark's signature
        """Plan a task for each part."""
        try:
            marks = msgspec.json.decode(self.options.get("url", ""), type=_Marks)
        except msgspec.DecodeError as error:
            raise InvalidInput(
                f"format {self.name()!r} is for the job compact alone, which sets its options "
                f"({error}); run headwater.spark.compact"
            ) from None
        return MarksReader(marks.url, marks.parts)


class _Place(InputPartition):
    """The place of a part in the list."""


class MarksReader(DataSourceReader):
    """One reading of all parts."""

    def __init__(self, url: str, parts: list[CompactPart]) -> None:
        self._url = url
        self._parts = parts

    def partitions(self) -> list[InputPartition]:
        """Return a task for each part."""
        return [_Place(number) for number in range(len(self._parts))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part."""
        number: int = partition.value
        part = self._parts[number]
        gathered: list[pa.RecordBatch] = []
        rows = 0
        for batch in client(self._url).stream(part.stream).scan(part.first, part.last + 1):
            twice = pc.multiply(batch.column("offset"), 2)
            mark = pc.add(twice, part.rule.spent(batch).cast(pa.int64()))
            gathered.append(
                pa.RecordBatch.from_arrays([batch.column("tag"), mark], ["tag", "mark"])
            )
            rows += batch.num_rows
            if rows >= _GATHERED_ROWS:
                yield _last(gathered, part.place, number)
                gathered, rows = [], 0
        if gathered:
            yield _last(gathered, part.place, number)


def _last(gathered: list[pa.RecordBatch], place: int, number: int) -> pa.RecordBatch:
    table = pa.Table.from_batches(gathered).group_by("tag")
    found = table.aggregate([("mark", "max"), ("mark", "count")]).combine_chunks()
    columns = [found.column(name).chunk(0) for name in ("tag", "mark_max", "mark_count")]
    same = [pa.repeat(pa.scalar(one, pa.int32()), found.num_rows) for one in (place, number)]
    return pa.RecordBatch.from_arrays([*same, *columns], schema=_SCHEMA)
