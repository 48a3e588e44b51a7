"""What tests of ``format("headwater_queue")`` share."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

import headwater
from headwater import Headwater


def numbers(spark: SparkSession, count: int, tasks: int = 3) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("CAST(id AS string) AS value")


def save(rows: DataFrame, url: str, queue: str, **options: object) -> None:
    writer = rows.write.format("headwater_queue").mode("append").options(url=url, queue=queue)
    writer.options(**{name: str(value) for name, value in options.items()}).save()


def look(spark: SparkSession, url: str, queue: str, **options: object) -> DataFrame:
    reader = spark.read.format("headwater_queue").options(url=url, queue=queue)
    return reader.options(**{name: str(value) for name, value in options.items()}).load()


def popped(queue: headwater.Queue) -> list[int]:
    return [int(message.value) for message in queue.pop(100_000)]


def intakes(hw: Headwater, queue: str) -> list[str]:
    return [name for name in hw.streams() if name.startswith("intake:") and f":{queue}:" in name]
