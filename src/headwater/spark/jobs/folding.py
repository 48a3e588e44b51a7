"""Folding records of the log into sums, by Spark: a count and a total for each of several keys.

A record is a JSON object with a whole number and some names, as ``{"id": 7, "shop": "Oslo",
"cents": 1200}``. Sums are of 64-bit integers, so they do not depend on order, and a sum that would
not fit is an error. Reset records are skipped. Messages that cannot be read are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headwater.errors import InvalidInput
from headwater.outbox.status import reset_tag

ALL, WINDOW = "all", "window"
# Beside the sums: how far each stream was read, and what in it could not be read.
READ, UNREADABLE = " read", " unreadable"
SECOND_MS = 1000


@dataclass(frozen=True, slots=True)
class Shape:
    """What is in a record: the field to add up, and the fields to add it up by.

    ``per`` maps what a sum is called to the field that says whose it is. ``window_ms`` adds sums
    for each window of the message's time; 0 for none. There is always a sum of all records.
    """

    value: str
    per: Mapping[str, str] = field(default_factory=dict)
    window_ms: int = 60_000

    def __post_init__(self) -> None:
        if taken := {ALL, WINDOW} & set(self.per):
            raise InvalidInput(f"sums per {taken.pop()!r} are made already; choose another name")
        if not all((self.value, *self.per, *self.per.values())):
            raise InvalidInput("a field needs a name; write each as in shop=shop_name")
        if self.window_ms < 0 or self.window_ms % SECOND_MS:
            raise InvalidInput(f"a window must be of whole seconds, not {self.window_ms} ms")

    def parse(self, json: Column) -> Column:
        """Read a record; a field that is missing, or of another type, is null."""
        names = {*self.per.values()} - {self.value}
        return F.from_json(
            json,
            StructType(
                [
                    StructField(self.value, LongType()),
                    *(StructField(name, StringType()) for name in sorted(names)),
                ]
            ),
        )


def is_reset(tag: Column) -> Column:
    """Return whether a message is a reset record, for whichever consumer it is."""
    return tag.startswith(reset_tag(""))


def fold(messages: DataFrame, shape: Shape) -> DataFrame:
    """Fold messages (stream, offset, tag, value, time) to per, name, records, total, first, last.

    Rows with ``per`` READ and UNREADABLE are about streams: ``last`` is the last offset that was
    read, ``first`` the first of those that could not be read.
    """
    record = shape.parse(F.col("value").cast("string")).alias("record")
    read = messages.select(
        "stream", "offset", "time", is_reset(F.col("tag")).alias("reset"), record
    )
    number = F.col("record").getField(shape.value)
    names = {per: F.col("record").getField(name).cast("string") for per, name in shape.per.items()}
    unreadable = number.isNull()
    for name in names.values():
        unreadable = unreadable | name.isNull()
    if shape.window_ms:
        moment = F.unix_millis(F.col("time"))
        names[WINDOW] = (moment - F.pmod(moment, F.lit(shape.window_ms))).cast("string")
    stream = F.col("stream")
    sums = F.array(_of(ALL, F.lit("")), *(_of(per, name) for per, name in names.items()))
    of_record = (
        F.when(F.col("reset"), F.array(_of(READ, stream)))
        .when(unreadable, F.array(_of(READ, stream), _of(UNREADABLE, stream)))
        .otherwise(F.concat(F.array(_of(READ, stream)), sums))
    )
    each = read.select("offset", number.alias("number"), F.explode(of_record).alias("of"))
    folded = each.groupBy("of.per", "of.name").agg(
        F.count(F.lit(1)).alias("records"),
        F.sum("number").alias("total"),
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
    )
    # Once for each window, not for each record.
    name = F.when(F.col("per") == WINDOW, _begin(F.col("name"))).otherwise(F.col("name"))
    return folded.withColumn("name", name)


def _of(per: str, name: Column) -> Column:
    return F.struct(F.lit(per).alias("per"), name.alias("name"))


def _begin(window: Column) -> Column:
    """Return the beginning of a window in UTC, as 2030-01-31T12:00:00Z."""
    # Whatever the zone of the session is.
    in_utc = F.to_utc_timestamp(F.timestamp_millis(window.cast("bigint")), F.current_timezone())
    return F.date_format(in_utc, "yyyy-MM-dd'T'HH:mm:ss'Z'")
