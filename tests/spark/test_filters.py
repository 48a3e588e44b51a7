"""Filters give the rows that Spark would have kept, also when one DataFrame is used many times."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import reduce

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody who uses Spark calls it
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

import headwater
from headwater import Stream
from headwater.spark.log.batch_reader import FilteringReader
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
def test_a_filter_that_is_taken_is_applied_exactly(url: str, found: Filter, test: Test) -> None:
    assert offsets_by(url, [found]) == ([row[0] for row in ROWS if test(*row)], [])


def test_filters_narrow_together(url: str) -> None:
    filters = [GreaterThan(TIME, NOON), EqualTo(TAG, "tag-2"), LessThan(OFFSET, 800)]
    expected = [o for o, tag, ms in ROWS if ms > MS and tag == "tag-2" and o < 800]
    assert expected
    assert offsets_by(url, filters) == (expected, [])


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


def test_branches_of_a_query_do_not_disturb_each_other(spark: SparkSession, url: str) -> None:
    frame = spark.read.format("headwater").option("url", url).option("stream", NAME).load()
    conditions = {
        "offset <= 10": 10,
        f"time > timestamp_millis({MS}) AND tag = 'tag-2'": len(
            [0 for _, tag, ms in ROWS if ms > MS and tag == "tag-2"]
        ),
        "tag LIKE 'tag-3%' OR offset = 7": len([0 for _, tag, _ in ROWS if tag == "tag-3"]) + 1,
        "true": 1500,
    }
    branches = [frame.where(each).select(F.lit(each).alias("where")) for each in conditions]
    found = reduce(DataFrame.union, branches).groupBy("where").count().collect()
    assert {row["where"]: row["count"] for row in found} == conditions


def test_queries_of_one_dataframe_do_not_disturb_each_other(spark: SparkSession, url: str) -> None:
    frame = spark.read.format("headwater").option("url", url).option("stream", NAME).load()
    low, high = frame.where("offset <= 10"), frame.where("offset > 1490")
    assert (low.count(), high.count(), frame.count()) == (10, 10, 1500)
    assert "Filter (" not in low._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in high._jdf.queryExecution().executedPlan().toString()
    assert sorted(row.offset for row in low.collect()) == list(range(1, 11))


def test_a_dataframe_sees_what_came_since_its_last_use(
    spark: SparkSession, embedded_url: str, make_embedded_stream: Callable[[int], Stream]
) -> None:
    stream = make_embedded_stream(10)
    reader = spark.read.format("headwater").option("url", embedded_url)
    frame = reader.option("stream", stream.name).load()
    assert frame.count() == 10
    stream.write_many(entries(5, 11))
    assert frame.count() == 15
