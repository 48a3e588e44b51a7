"""Calls of a function of ours in Spark's tasks, one for each item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.types import BinaryType

from headwater.spark.engine.failures import translating_errors

T = TypeVar("T")
R = TypeVar("R")


def in_tasks(
    spark: SparkSession, work: Callable[[T], R], items: Sequence[T], result: type[R]
) -> list[R]:
    """Call ``work`` for each item in a task of its own; returns the results in order.

    ``result`` is the type of what ``work`` returns, which travels as data and never as code. Spark
    may call it more than once for an item: when a task fails, or seems to be slow. Raises the error
    of ours that ended a task, else SparkFailed.
    """
    if not items:
        return []
    encode = msgspec.msgpack.encode
    function = udf(lambda place: encode(work(items[place])), BinaryType(), useArrow=False)
    places = spark.range(0, len(items), 1, len(items))
    with translating_errors():
        rows = places.select("id", function.asNondeterministic()("id").alias("result")).collect()
    decode = msgspec.msgpack.Decoder(result).decode
    return [decode(row.result) for row in sorted(rows, key=lambda row: row.id)]


def tasks_at_once(spark: SparkSession) -> int:
    """Return how many tasks Spark runs at the same time; a guess with Connect, which hides it."""
    return spark.sparkContext.defaultParallelism if hasattr(spark, "_jsc") else 8
