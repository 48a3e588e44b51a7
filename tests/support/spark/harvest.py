"""A streaming query that writes what it reads to Parquet files, run in pieces, and what came of it.

Spark's file sink is exactly-once by itself: whatever is missing or double is the source's fault.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery


class Harvest:
    """One query with its checkpoint and its files; a ``run`` goes on where the last one ended."""

    def __init__(self, spark: SparkSession, folder: Path, url: str, **options: object) -> None:
        self.spark = spark
        self.folder = folder
        self.url = url
        self.options = options

    def frame(self, **more: object) -> DataFrame:
        """Return the source."""
        reader = self.spark.readStream.format("headwater").option("url", self.url)
        for name, value in {**self.options, **more}.items():
            reader = reader.option(name, str(value))
        return reader.load()

    def start(self, trigger: dict[str, Any] | None = None, **more: object) -> StreamingQuery:
        """Start the query; without a trigger it goes on and on."""
        return (
            self.frame(**more)
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(**(trigger or {"processingTime": "0 seconds"}))
            .start(str(self.folder / "rows"))
        )

    def run(self, **more: object) -> StreamingQuery:
        """Read what is there now, and end; raises what the query fails with."""
        query = self.start({"availableNow": True}, **more)
        query.awaitTermination()
        return query

    def rows(self) -> list[Row]:
        """Return all that was written, by partition and offset."""
        if not (self.folder / "rows").exists():
            return []
        schema = self.frame().schema
        found = self.spark.read.schema(schema).parquet(str(self.folder / "rows"))
        return found.orderBy("partition", "offset").collect()

    def offsets(self) -> list[int]:
        """Return the offsets that were written."""
        return [row.offset for row in self.rows()]
