"""Streaming queries over the log that read what is there, and end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery


def following(spark: SparkSession, url: str, stream: str, **options: object) -> DataFrame:
    """Begin a query over a stream."""
    given: Any = {name: str(value) for name, value in options.items()}
    return spark.readStream.format("headwater").options(url=url, stream=stream, **given).load()


def finish(
    rows: DataFrame, form: str, checkpoint: Path, mode: str = "append", /, **options: object
) -> StreamingQuery:
    """Write all that a query finds now; raises what it fails with."""
    given: Any = {name: str(value) for name, value in options.items()}
    writer = rows.writeStream.format(form).outputMode(mode).trigger(availableNow=True)
    query = writer.options(checkpointLocation=str(checkpoint), **given).start()
    assert query.awaitTermination(240)
    return query
