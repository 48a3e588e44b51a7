"""The benchmark of Spark runs: short, so that it cannot rot; its figures are not judged here."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from bench.spark import measure


@pytest.mark.long
@pytest.mark.timeout(300)
def test_every_row_is_measured_against_its_peer(spark: SparkSession) -> None:
    rows = measure(spark, rounds=1, rows=100_000, long=200_000, trickle_s=1, warm=1)
    assert [row.name.partition(" / ")[0] for row in rows] == [
        "Spark: read the columns of scan, one task",
        "Spark: read, two tasks",
        "Spark: read",
        "Spark: read",
        "Spark: cost of a row, 100,000 to 200,000",
        "Spark: read all columns of 100,000",
        "Spark: count(*) of 100,000",
        "Spark: filter 100,000 by tag",
        "Spark: the last 10,000 of 100,000 by offset",
        "Spark: the last 10,000 of 100,000 by time",
        "Spark: session() to the first row of a range",
        "Spark: session() to the first row of a stream",
        "Spark: catch up 100,000",
        "Spark: the same, 100,000 at a time",
        "Spark: micro-batch at a trickle",
        "Spark: the same",
        "Spark: write 100,000",
        "Spark: write 100,000",
    ]
    assert all(row.ratio > 0 and row.by_processor > 0 for row in rows)


@pytest.mark.long
def test_one_row_is_measured_by_its_name(spark: SparkSession) -> None:
    rows = measure(
        spark, rounds=1, rows=100_000, long=100_000, trickle_s=1, warm=1, only="COUNT(*)"
    )
    assert [row.name for row in rows] == ["Spark: count(*) of 100,000 / zstd Parquet"]
