"""Filters spare what cannot match, and no row that Spark would keep; it applies all of them again.

So it is also when one DataFrame is used many times.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import BinaryType, StructField, StructType

import headwater
from headwater import Stream
from headwater.spark.log.batch_reader import FilteringReader
from headwater.spark.log.range_reader import CountedRange
from headwater.spark.log.source import HeadwaterSource
from tests.support.entries import entries
from tests.support.spark.times import write_at

# Times that go up and down: only a least time may spare offsets.
TIMES = [1_700_000_000_000 + 7 * ((i * 37) % 1000) for i in range(1500)]
MS = TIMES[20]
NOON = dt.datetime.fromtimestamp(MS / 1000, dt.UTC)
LATER = NOON + dt.timedelta(microseconds=500)
NAME = "filtered"
OFFSET, TAG, TIME = ("offset",), ("tag",), ("time",)

Test = Callable[[int, str, int], bool]
CASES: list[tuple[Filter, Test]] = [
    (GreaterThanOrEqual(OFFSET, 700), lambda o, _, __: o >= 700),
    (GreaterThan(OFFSET, 700), lambda o, _, __: o > 700),
    (LessThan(OFFSET, 720), lambda o, _, __: o < 720),
    (LessThanOrEqual(OFFSET, 3), lambda o, _, __: o <= 3),
    (EqualTo(OFFSET, 1500), lambda o, _, __: o == 1500),
    (In(OFFSET, (5, 900, 7000)), lambda o, _, __: o in (5, 900)),
    (Not(In(OFFSET, (5, 900))), lambda o, _, __: o not in (5, 900)),
    (Not(LessThan(OFFSET, 1400)), lambda o, _, __: o >= 1400),
    (GreaterThan(OFFSET, 5000), lambda _, __, ___: False),
    (EqualTo(OFFSET, -3), lambda _, __, ___: False),
    (EqualTo(TAG, "tag-3"), lambda _, tag, __: tag == "tag-3"),
    (EqualNullSafe(TAG, "tag-3"), lambda _, tag, __: tag == "tag-3"),
    (Not(EqualTo(TAG, "tag-3")), lambda _, tag, __: tag != "tag-3"),
    (In(TAG, ("tag-3", "tag-5")), lambda _, tag, __: tag in ("tag-3", "tag-5")),
    (StringStartsWith(TAG, "tag-3"), lambda _, tag, __: tag == "tag-3"),
    (StringEndsWith(TAG, "-6"), lambda _, tag, __: tag == "tag-6"),
    (StringContains(TAG, "g-1"), lambda _, tag, __: tag == "tag-1"),
    (GreaterThan(TAG, "tag-4"), lambda _, tag, __: tag > "tag-4"),
    (GreaterThanOrEqual(TIME, NOON), lambda _, __, ms: ms >= MS),
    (GreaterThanOrEqual(TIME, LATER), lambda _, __, ms: ms > MS),
    (LessThan(TIME, LATER), lambda _, __, ms: ms <= MS),
    (LessThan(TIME, NOON), lambda _, __, ms: ms < MS),
    (EqualTo(TIME, NOON), lambda _, __, ms: ms == MS),
    (EqualTo(TIME, LATER), lambda _, __, ___: False),
    (In(TIME, (NOON, NOON + dt.timedelta(milliseconds=7))), lambda _, __, ms: ms - MS in (0, 7)),
    (EqualTo(("partition",), 0), lambda _, __, ___: True),
    (EqualTo(("partition",), 1), lambda _, __, ___: False),
    (Not(EqualTo(("stream",), NAME)), lambda _, __, ___: False),
]
ROWS = [
    (offset, tag, ms)
    for offset, ((tag, _), ms) in enumerate(zip(entries(1500), TIMES, strict=True), 1)
]


@pytest.fixture(scope="module")
def url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("stores").url("embedded")
    with headwater.connect(url) as hw:
        write_at(hw.stream(NAME), TIMES)
    return url


def offsets_by(url: str, filters: list[Filter], **options: str) -> tuple[list[int], list[Filter]]:
    """Plan and read as Spark does; returns the offsets read and the filters given back."""
    source = HeadwaterSource({"url": url, "stream": NAME, "minPartitions": "3", **options})
    plain = source.reader(source.schema())
    reader = FilteringReader(**vars(plain))
    refused = list(reader.pushFilters(filters))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return sorted(o for batch in batches for o in batch.column("offset").to_pylist()), refused


@pytest.mark.parametrize(("found", "test"), CASES, ids=[str(case) for case, _ in CASES])
def test_a_filter_leaves_out_no_row_that_it_keeps(url: str, found: Filter, test: Test) -> None:
    offsets, refused = offsets_by(url, [found])
    wanted = [row[0] for row in ROWS if test(*row)]
    assert set(wanted) <= set(offsets)
    # Of tags only an archive knows what it can spare.
    assert refused == ([found] if column_of(found) == TAG else [])


def column_of(found: Filter) -> tuple[str, ...]:
    inner = found.child if isinstance(found, Not) else found
    column: tuple[str, ...] = inner.attribute  # type: ignore[attr-defined]
    return column


@pytest.mark.parametrize(
    ("found", "first", "last"),
    [
        (GreaterThanOrEqual(OFFSET, 700), 700, 1500),
        (GreaterThan(OFFSET, 700), 701, 1500),
        (LessThan(OFFSET, 720), 1, 719),
        (LessThanOrEqual(OFFSET, 3), 1, 3),
        (EqualTo(OFFSET, 1500), 1500, 1500),
        (In(OFFSET, (5, 900, 7)), 5, 900),
        (EqualTo(("partition",), 1), 1, 0),
        (Not(EqualTo(("stream",), NAME)), 1, 0),
        (EqualTo(TIME, dt.datetime(2100, 1, 1, tzinfo=dt.UTC)), 1, 0),
    ],
    ids=str,
)
def test_a_filter_spares_all_that_its_kind_can_spare(
    url: str, found: Filter, first: int, last: int
) -> None:
    assert offsets_by(url, [found]) == (list(range(first, last + 1)), [])


def test_filters_narrow_together(url: str) -> None:
    filters = [GreaterThan(TIME, NOON), LessThan(OFFSET, 800), GreaterThan(OFFSET, 790)]
    assert offsets_by(url, filters) == (list(range(791, 800)), [])


@pytest.mark.parametrize(
    "found",
    [
        EqualTo(("value",), b"value-77"),
        EqualTo(("tag", "length"), "x"),
        In(TAG, ("tag-1", None)),
        LessThan(TIME, dt.datetime(2026, 1, 1)),  # noqa: DTZ001  as Spark's type without a zone
        IsNotNull(TAG),
    ],
    ids=str,
)
def test_a_filter_that_is_not_understood_is_given_back(url: str, found: Filter) -> None:
    assert offsets_by(url, [found]) == ([row[0] for row in ROWS], [found])


def test_a_filter_spares_what_cannot_match(
    embedded_url: str, make_embedded_stream: Callable[[int], Stream]
) -> None:
    stream = make_embedded_stream(3000)
    stream.evict(1500)
    options = {"url": embedded_url, "stream": stream.name, "startingOffsets": "1"}
    source = HeadwaterSource(options)
    reader = FilteringReader(**vars(source.reader(source.schema())))
    assert list(reader.pushFilters([GreaterThan(OFFSET, 2990)])) == []
    # Offsets 1 to 1500 are lost, but nothing is lost that this query asks for.
    [part] = reader.partitions()
    assert [batch.num_rows for batch in reader.read(part)] == [10]


def test_a_dataframe_sees_what_came_since_its_last_use(
    spark: SparkSession, embedded_url: str, make_embedded_stream: Callable[[int], Stream]
) -> None:
    stream = make_embedded_stream(10)
    reader = spark.read.format("headwater").option("url", embedded_url)
    frame = reader.option("stream", stream.name).load()
    assert frame.count() == 10
    stream.write_many(entries(5, 11))
    assert frame.count() == 15


@pytest.mark.parametrize("columns", [(), ("offset",), ("stream", "partition")], ids=str)
def test_messages_are_counted_without_a_look_at_them(
    embedded_url: str,
    make_embedded_stream: Callable[[int], Stream],
    columns: tuple[str, ...],
) -> None:
    stream = make_embedded_stream(3000)
    stream.evict(10)

    def planned(least: int) -> tuple[DataSourceReader, Sequence[InputPartition]]:
        options = {"url": embedded_url, "stream": stream.name, "minPartitions": str(least)}
        source = HeadwaterSource(options)
        fields = [field for field in source.schema().fields if field.name in columns]
        reader = source.reader(StructType([*fields, StructField("__node", BinaryType())]))
        return reader, reader.partitions()

    _, parts = planned(2)
    facts = [part.facts for part in parts if isinstance(part, CountedRange)]
    name = stream.name.encode()
    assert len(facts) == len(parts) >= 2
    assert all(one.endswith(name) for one in facts)
    spans = [struct.unpack("<qqii", one.removesuffix(name)[-24:]) for one in facts]
    assert {(partition, size) for _, _, partition, size in spans} == {(0, len(name))}
    offsets = [offset for start, stop, _, _ in spans for offset in range(start, stop)]
    assert offsets == list(range(11, 3001))
    # Where offsets are missing, nodes tell how many messages there are.
    stream.compact()
    reader, parts = planned(1)
    batches: Any = [batch for part in parts for batch in reader.read(part)]
    nodes = [node for batch in batches for node in batch.column("__node").to_pylist()[1:]]
    counts = [int.from_bytes(node[4:8], "little") for node in nodes]
    assert sum(counts) == stream.info().length == 7
