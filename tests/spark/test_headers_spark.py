"""Headers in Spark: a column when asked for, both ways, and kept by archives and restores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import exists, lit, map_from_entries

import headwater
from headwater import Headwater, Stream
from headwater.errors import InvalidInput
from headwater.spark.archives.manifest import Archive
from headwater.spark.archives.scrubbing import scrub_archives
from headwater.spark.archives.writing import ArchivePiece, restore_piece
from headwater.spark.log.source import HeadwaterSource
from tests.support.entries import entries
from tests.support.spark.archiving import run_archiver

Given = list[tuple[str, bytes, dict[str, bytes]]]


def given(count: int) -> Given:
    """Make rows of which every third has no headers."""
    return [
        (tag, value, {"n": b"%d" % i, "kind": b"test"} if i % 3 else {})
        for i, (tag, value) in enumerate(entries(count))
    ]


@pytest.fixture
def hw(embedded_url: str) -> Iterator[Headwater]:
    with headwater.connect(embedded_url) as hw:
        yield hw


@pytest.fixture
def stream(hw: Headwater, name: str) -> Stream:
    """A stream of nodes with headers, nodes without, and a tail."""
    stream = hw.stream(name)
    stream.write_many(given(1500))
    stream.write_many(entries(1000))
    stream.write_many(given(5))
    return stream


@pytest.fixture
def expected() -> Given:
    return [*given(1500), *((tag, value, {}) for tag, value in entries(1000)), *given(5)]


def found_in(stream: Stream) -> list[Any]:
    return [(m.tag, m.value, m.headers) for m in stream.read(1, 9000) if m]


def maps(rows: list[Any]) -> Given:
    """Return rows of Spark in order of offset, with their headers as maps."""
    return [
        (row.tag, bytes(row.value), {one.key: bytes(one.value) for one in row.headers})
        for row in sorted(rows, key=lambda row: row.offset)
    ]


def test_headers_are_a_column_when_asked_for_and_can_be_written_back(
    spark: SparkSession, embedded_url: str, hw: Headwater, stream: Stream, expected: Given
) -> None:
    log = spark.read.format("headwater").option("url", embedded_url).option("stream", stream.name)
    assert "headers" not in log.load().columns
    assert log.load().count() == 2505
    rows = log.option("includeHeaders", "true").load()
    kind = rows.schema["headers"].dataType.simpleString()
    assert kind == "array<struct<key:string,value:binary>>"
    assert maps(rows.collect()) == expected
    found = rows.where(exists("headers", lambda one: one["value"] == lit(b"7"))).collect()
    assert [row.offset for row in found] == [8]
    copy = hw.stream(f"{stream.name}-copy")
    sink = {"url": embedded_url, "stream": copy.name}
    ordered = rows.coalesce(1).select("tag", "value", "headers")
    ordered.write.format("headwater").options(**sink).mode("append").save()
    as_map = ordered.limit(5).withColumn("headers", map_from_entries("headers"))
    as_map.write.format("headwater").options(**sink).mode("append").save()
    written = found_in(copy)
    assert sorted(written, key=str) == sorted([*expected, *expected[:5]], key=str)


@pytest.mark.skipif("HEADWATER_LONG" not in os.environ, reason="a query takes long to start")
def test_a_streaming_query_has_headers(
    spark: SparkSession, embedded_url: str, stream: Stream, expected: Given, tmp_path: Path
) -> None:
    options = {"url": embedded_url, "stream": stream.name, "includeHeaders": "true"}
    rows = spark.readStream.format("headwater").options(**options).load()
    place = str(tmp_path / "rows")
    rows.writeStream.format("parquet").option("path", place).option(
        "checkpointLocation", str(tmp_path / "checkpoint")
    ).trigger(availableNow=True).start().awaitTermination()
    assert maps(spark.read.parquet(place).collect()) == expected


def test_an_archive_keeps_headers_and_gives_them_back(
    embedded_url: str, hw: Headwater, stream: Stream, expected: Given, tmp_path: Path
) -> None:
    place = str(tmp_path / "archive")
    run_archiver(embedded_url, stream.name, place, evict=True)
    archive = Archive(place, stream.name)
    manifest = archive.load()
    assert manifest is not None
    assert manifest.format == 2
    assert not scrub_archives(place).defects
    source = HeadwaterSource(
        {"url": embedded_url, "stream": stream.name, "archive": place, "includeHeaders": "true"}
    )
    reader = source.reader(source.schema())
    batches: list[Any] = [one for part in reader.partitions() for one in reader.read(part)]
    found = [row for batch in batches for row in batch.to_pylist()]
    assert [dict(one.values() for one in row["headers"]) for row in found] == [
        headers for _, _, headers in expected
    ]
    copy = hw.stream(f"{stream.name}-restored")
    piece = ArchivePiece(archive, [*manifest.files], 1, manifest.last, copy.name, "restore")
    restore_piece(hw, piece)
    assert found_in(copy) == expected


def test_an_archive_without_headers_is_what_it_was(
    embedded_url: str, hw: Headwater, name: str, tmp_path: Path
) -> None:
    hw.stream(name).write_many(entries(1200))
    place = str(tmp_path / "archive")
    run_archiver(embedded_url, name, place)
    manifest = Archive(place, name).load()
    assert manifest is not None
    assert manifest.format == 1


def test_a_column_of_headers_that_fits_nothing_is_refused(
    spark: SparkSession, embedded_url: str, name: str
) -> None:
    rows = spark.createDataFrame([(b"1", "x")], ["value", "headers"])
    with pytest.raises(InvalidInput, match="column 'headers' must be array or map"):
        HeadwaterSource({"url": embedded_url, "stream": name}).writer(rows.schema, overwrite=False)
