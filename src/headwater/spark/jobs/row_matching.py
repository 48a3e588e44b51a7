"""Where the rows of a table are in the log, by Spark: which record belongs to which row.

A row and its record share a key. From the two it follows what a consumer at a position should have,
which rows have no record, which records have no row, and which rows have several records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from pyspark.sql.types import StringType, StructField, StructType

from headwater.errors import InvalidInput
from headwater.outbox.schema import outbox_table
from headwater.spark.jobs.accounts import Sum
from headwater.spark.jobs.folding import is_reset

SAMPLES = 20
_WHOLE_NUMBERS = ("tinyint", "smallint", "int", "bigint")


@dataclass(frozen=True, slots=True)
class Canon:
    """The table that is right: a row for each event, which is never changed or deleted.

    ``record_key`` is the field of a record that holds the key of its row; None for one that is
    called as the column is.
    """

    table: str
    _: KW_ONLY
    key: str = "id"
    per: str
    value: str
    record_key: str | None = None


@dataclass(frozen=True, slots=True)
class Sources:
    """What is compared: the log, by the options of its source, and the database of the table."""

    spark: SparkSession
    log: Mapping[str, str] = field(repr=False)
    database: str = field(repr=False)
    streams: tuple[str, ...]
    canon: Canon
    # In so many tasks the table is read, cut by its key.
    partitions: int = 1

    def rows(self) -> DataFrame:
        """Return the rows of the table as key, per, value; raises InvalidInput without them."""
        canon = self.canon
        names = list(dict.fromkeys([canon.key, canon.per, canon.value]))
        cut = {"partitionColumn": canon.key, "numPartitions": str(self.partitions)}
        table = self._table(canon.table, names, cut if self.partitions > 1 else {})
        kind = dict(table.dtypes)[canon.value]
        if kind not in _WHOLE_NUMBERS and not (kind.startswith("decimal") and ",0)" in kind):
            raise InvalidInput(
                f"column {canon.value!r} of {canon.table!r} is {kind}; sums are compared exactly, "
                "so it must hold whole numbers"
            )
        return table.select(
            F.col(canon.key).cast("string").alias("key"),
            F.coalesce(F.col(canon.per).cast("string"), F.lit("")).alias("per"),
            F.col(canon.value).cast("bigint").alias("value"),
        )

    def messages(self, first: Mapping[str, int], last: Mapping[str, int]) -> DataFrame:
        """Return the log between offsets of each stream, both included, as stream, offset, key.

        ``key`` is null for what cannot be read. Reset records are left out.
        """
        reader = self.spark.read.format("headwater").options(**self.log)
        within = F.lit(False)
        for stream in self.streams:
            offset = F.col("offset").between(first[stream], last[stream])
            within = within | ((F.col("stream") == stream) & offset)
        lowest, highest = min(first.values()), max(last.values())
        # The first condition follows from the second, but is of a kind that the source understands.
        found = reader.load().where(F.col("offset").between(lowest, highest)).where(within)
        return found.where(~is_reset(F.col("tag"))).select("stream", "offset", self._key())

    def staged(self) -> DataFrame:
        """Return the keys of what waits in the outbox of the same database."""
        rows = self._table(outbox_table.name, ["stream", "value"], {})
        return rows.where(F.col("stream").isin(*self.streams)).select(self._key())

    def _key(self) -> Column:
        name = self.canon.record_key or self.canon.key
        shape = StructType([StructField(name, StringType())])
        return F.from_json(F.col("value").cast("string"), shape).getField(name).alias("key")

    def _table(self, name: str, columns: list[str], cut: Mapping[str, str]) -> DataFrame:
        said = {"url": self.database, "table": name, "columns": ",".join(columns), **cut}
        return self.spark.read.format("headwater_table").options(**said).load()


@dataclass(frozen=True, slots=True)
class Seen:
    """What was read of the log; ``first`` is the first offset left of each stream."""

    records: int
    unreadable: int
    first: Mapping[str, int]


class MatchCounts(NamedTuple):
    """How many rows and records of each kind there are, and the sums at several positions."""

    rows: int
    phantoms: int
    doubles: int
    untold: int
    sums: dict[str, dict[str, Sum]]


class MatchedRows:
    """Rows and records side by side: key, per, value, place (offset, stream), again, copies.

    ``place`` is where the first record of a row is, ``again`` where the last is.
    """

    def __init__(self, sources: Sources, last: Mapping[str, int]) -> None:
        self._last = last
        self._watch = Observation()
        log = sources.messages(dict.fromkeys(last, 1), last)
        log = log.observe(
            self._watch,
            F.count(F.lit(1)).alias("records"),
            F.count(F.when(F.col("key").isNull(), 1)).alias("unreadable"),
            *(
                F.min(F.when(F.col("stream") == stream, F.col("offset"))).alias(f"first {stream}")
                for stream in sources.streams
            ),
        )
        place = F.struct("offset", "stream")
        places = (
            log.where(F.col("key").isNotNull())
            .groupBy("key")
            .agg(
                F.min(place).alias("place"),
                F.max(place).alias("again"),
                F.count(F.lit(1)).alias("copies"),
            )
        )
        rows = sources.rows().withColumn("row", F.lit(True))
        self.joined = rows.join(places, "key", "full_outer")

    def seen(self) -> Seen:
        """Return what the log held, once something was computed."""
        facts = self._watch.get
        return Seen(
            facts["records"],
            facts["unreadable"],
            {
                stream: last + 1 if (least := facts[f"first {stream}"]) is None else least
                for stream, last in self._last.items()
            },
        )

    def counts(self, positions: Mapping[str, Mapping[str, int]]) -> MatchCounts:
        """Count, and fold the rows whose records are before each of several positions."""
        row = F.col("row").isNotNull()
        columns = [
            F.count(F.when(row, 1)).alias("rows"),
            F.count(F.when(~row, 1)).alias("phantoms"),
            F.count(F.when(row & self._twice(), 1)).alias("doubles"),
            F.count(F.when(row & F.col("place").isNull(), 1)).alias("untold"),
        ]
        for name, next_ in positions.items():
            before = F.lit(False)
            for stream, offset in next_.items():
                lies = (F.col("place.stream") == stream) & (F.col("place.offset") < offset)
                before = before | lies
            columns += [
                F.count(F.when(row & before, 1)).alias(f"records {name}"),
                F.sum(F.when(row & before, F.col("value"))).alias(f"total {name}"),
            ]
        found = self.joined.groupBy("per").agg(*columns).collect()
        return MatchCounts(
            sum(each["rows"] for each in found),
            sum(each["phantoms"] for each in found),
            sum(each["doubles"] for each in found),
            sum(each["untold"] for each in found),
            {
                name: {
                    each["per"]: Sum(each[f"records {name}"], each[f"total {name}"])
                    for each in found
                    if each[f"records {name}"]
                }
                for name in positions
            },
        )

    def phantoms(self) -> list[tuple[str, int]]:
        """Return some records without a row: key and offset."""
        return _some(self.joined.where(F.col("row").isNull()).select("key", "place.offset"))

    def doubles(self) -> list[tuple[str, int, int]]:
        """Return some rows with several records: key, and the first and last offset."""
        return _some(self.joined.where(self._twice()).select("key", "place.offset", "again.offset"))

    def untold(self) -> DataFrame:
        """Return the rows without a record: key, per, value."""
        missing = F.col("row").isNotNull() & F.col("place").isNull()
        return self.joined.where(missing).select("key", "per", "value")

    def _twice(self) -> Column:
        return F.col("copies") > 1


@contextmanager
def kept(rows: DataFrame) -> Iterator[DataFrame]:
    """Cache rows, so that they are computed once."""
    rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield rows
    finally:
        rows.unpersist()


def fold_rows(rows: DataFrame) -> dict[str, Sum]:
    """Fold rows of key, per, value."""
    sums = rows.groupBy("per").agg(
        F.count(F.lit(1)).alias("records"), F.sum("value").alias("total")
    )
    return {row["per"]: Sum(row["records"], row["total"]) for row in sums.collect()}


def some_keys(rows: DataFrame) -> list[str]:
    """Return some of the keys of rows."""
    return [key for (key,) in _some(rows.select("key"))]


def _some(rows: DataFrame) -> list[Any]:
    return sorted(tuple(row) for row in rows.limit(SAMPLES).collect())
