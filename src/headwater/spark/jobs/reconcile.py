"""The reconcile job: compares consumers with the table that is right, at the same position.

The log shows which rows a consumer can have seen: a consumer that has applied everything up to an
offset should have all rows but those whose records it will still read, later in the log or staged
in the outbox. Rows without a record count as well: the table is right, so a consumer that lacks
them has drifted. Everything is read in such an order that work which goes on meanwhile is not
mistaken for drift:

    accounts   position and sums of every consumer, in one snapshot
    end        the end of the log: nothing beyond it is judged
    rows       the table and the log up to there; every record up to there had its row by then
    staged     for rows without a record only: the outbox, and then what the log has got since

With ``fix``, a reset record brings each consumer that has drifted to what is right at the end.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from pyspark.sql.types import StringType, StructField, StructType
from sqlalchemy import Engine

from headwater.client import Headwater
from headwater.errors import InvalidInput, UnknownArchive
from headwater.outbox import write_reset
from headwater.outbox.schema import outbox_table
from headwater.spark.archives.table import safe_place
from headwater.spark.engine.failures import translating_errors
from headwater.spark.jobs.folding import is_reset
from headwater.spark.jobs.ledger import Account, Keeping, Kind, Sum, read_accounts, total_of
from headwater.spark.jobs.progress import JobReport, Summary, counted
from headwater.spark.log.target import StreamOrTopic, named_target
from headwater.spark.tables.database import chosen_columns, open_database
from headwater.sql.engines import open_engine
from headwater.sql.schemas import Relation

if TYPE_CHECKING:
    from headwater.log.stream import Stream


# ── Row matching ──────────────────────────────────────────────────────────────────────────────────
# Where the rows of a table are in the log, by Spark: which record belongs to which row.
#
# A row and its record share a key. From the two it follows what a consumer at a position should
# have, which rows have no record, which records have no row, and which rows have several records.


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


# ── Reconcile ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Drift:
    """A key whose sum is wrong in an account; None is the sum of all."""

    name: str | None
    has: Sum
    right: Sum


@dataclass(frozen=True, slots=True)
class AccountVerdict:
    """What was found of an account; ``unjudged`` is why it cannot be compared, if so."""

    name: str
    kind: Kind
    next: Mapping[str, int]
    drift: tuple[Drift, ...] = ()
    unjudged: str | None = None
    # The offset of the record that resets it; and the state in that record, also in a dry run.
    reset: int | None = None
    state: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled(Summary):
    """What was found of a table, a log and those who follow it."""

    end: Mapping[str, int]
    rows: int
    records: int
    # Rows without a record; samples are keys.
    lost: int
    lost_keys: list[str]
    # Records without a row, as (key, offset); rows with several, as (key, first, last).
    phantoms: int
    phantom_records: list[tuple[str, int]]
    doubles: int
    double_records: list[tuple[str, int, int]]
    unreadable: int
    # The first offset of each stream that is left; what came before cannot be looked at.
    first: Mapping[str, int]
    verdicts: tuple[AccountVerdict, ...]

    @property
    def drifted(self) -> tuple[AccountVerdict, ...]:
        """Those who have drifted."""
        return tuple(verdict for verdict in self.verdicts if verdict.drift)

    @property
    def settled(self) -> bool:
        """Whether nobody has drifted, or a reset is on its way to everyone who has."""
        return all(verdict.reset is not None for verdict in self.drifted)

    @property
    def complete(self) -> bool:
        """Whether the log goes back to its first message, so that a row without a record is lost.

        Else such a row may as well be one whose record is gone.
        """
        return all(first == 1 for first in self.first.values())

    def sentence(self) -> str:
        """See Summary."""
        accounts = counted(len(self.verdicts), "account")
        found = f"{len(self.drifted)} of {accounts} drifted" if self.drifted else "no drift"
        return f"compared {accounts} with {counted(self.rows, 'row')}: {found}"


def reconcile(
    spark: SparkSession,
    stream: str | None = None,
    *,
    topic: str | None = None,
    db: str,
    canon: Canon,
    keeping: Keeping,
    url: str | None = None,
    consumers: Collection[str] = (),
    consumers_db: str | None = None,
    archive: str | None = None,
    partitions: int = 1,
    fix: bool = False,
    dry_run: bool = False,
    report: JobReport | None = None,
) -> Reconciled:
    """Compare ``consumers``, or all there are, with the table; ``fix`` writes reset records.

    ``db`` is the URL of the database with the outbox and the table, which ``canon`` names;
    ``consumers_db`` that of the consumers' sums, which ``keeping`` names, if it is another.
    ``archive`` names an archive of the stream, for what the log itself has no longer. ``dry_run``
    returns what ``fix`` would write. Consumers need an ``on_reset``; a
    totals job that has drifted is compared as well, but begun anew by its owner. Raises
    InvalidInput for tables, columns and names that are missing, UnknownStream, and errors of the
    store or the database. Reads table and log once.
    """
    began = time.monotonic()
    if fix and topic is not None:
        raise InvalidInput("a reset is about one stream, not a topic; reconcile without fix")
    target = named_target(url, stream, topic, "to compare", archive)
    streams = _streams(target)
    hw = target.hw
    log = target.options | {"columns": "stream,offset,tag,value"}
    sources = Sources(spark, log, db, streams, canon, partitions)
    with (
        open_engine(db) as engine,
        open_engine(consumers_db) if consumers_db else nullcontext(engine) as of_consumers,
    ):
        comparison = Reconciliation(hw, sources, engine, report or JobReport())
        _require(target, db, canon)
        with translating_errors():
            accounts = read_accounts(of_consumers, streams, keeping, consumers)
            found = comparison.of(accounts)
    if fix or dry_run:
        found = _fixed(found, hw.stream(streams[0]), keeping, comparison.right, write=not dry_run)
    return replace(found, dry_run=dry_run, seconds=time.monotonic() - began)


def _require(target: StreamOrTopic, db: str, canon: Canon) -> None:
    """Raise what is wrong with the archive and the table, which Spark would find out later."""
    if target.archive is not None:
        contents = [target.history(stream) for stream in target.streams().values()]
        if not any(contents):
            raise UnknownArchive(safe_place(target.archive), target.name)
    relation = Relation.of(canon.table)
    columns = open_database(db).columns(relation)
    chosen_columns(columns, [canon.key, canon.per, canon.value], relation)


def _streams(target: StreamOrTopic) -> tuple[str, ...]:
    """Name the streams that are compared; raises UnknownStream, UnknownTopic."""
    names = tuple(target.streams().values())
    if not any(extent.created for extent in target.extents(names)):
        raise target.unknown()
    return names


class Reconciliation:
    """One reading of table, log and outbox; ``right`` is what is right at the end of the log."""

    def __init__(
        self, hw: Headwater, sources: Sources, database: Engine, report: JobReport
    ) -> None:
        self.database = database
        self.right: dict[str, Sum] = {}
        self._hw = hw
        self._sources = sources
        self._report = report

    def of(self, accounts: list[Account]) -> Reconciled:
        """Compare accounts that were read just before with what is there now."""
        end = self._ends()
        matched = MatchedRows(self._sources, end)
        positions = {str(n): account.next for n, account in enumerate(accounts)}
        positions["end"] = {stream: last + 1 for stream, last in end.items()}
        with kept(matched.joined), self._report.tasks(self._sources.spark, "reading table and log"):
            counts = matched.counts(positions)
            seen = matched.seen()
            lost, lost_keys = self._lost(matched, end) if counts.untold else ({}, [])
            phantoms = matched.phantoms() if counts.phantoms else []
            doubles = matched.doubles() if counts.doubles else []
        self.right = _plus(counts.sums["end"], lost)
        return Reconciled(
            end=end,
            rows=counts.rows,
            records=seen.records,
            lost=sum(each.records for each in lost.values()),
            lost_keys=lost_keys,
            phantoms=counts.phantoms,
            phantom_records=phantoms,
            doubles=counts.doubles,
            double_records=doubles,
            unreadable=seen.unreadable,
            first=seen.first,
            verdicts=tuple(
                _judge(account, _plus(counts.sums[str(n)], lost), seen, end)
                for n, account in enumerate(accounts)
            ),
        )

    def _lost(
        self, matched: MatchedRows, end: Mapping[str, int]
    ) -> tuple[dict[str, Sum], list[str]]:
        """Fold the rows that have no record and will have none: not staged, not written since."""
        with kept(matched.untold()) as untold:
            untold.count()
            # In this order: what is no longer staged by then is in the log by then.
            with kept(self._staged()) as staged:
                staged.count()
                since = self._sources.messages(
                    {s: last + 1 for s, last in end.items()}, self._ends()
                )
                on_their_way = staged.union(since.select("key")).distinct()
                lost = untold.join(on_their_way, "key", "left_anti")
                return fold_rows(lost), some_keys(lost)

    def _staged(self) -> DataFrame:
        if sa.inspect(self.database).has_table(outbox_table.name):
            return self._sources.staged()
        return self._sources.spark.createDataFrame([], "key string")

    def _ends(self) -> dict[str, int]:
        return {name: self._hw.stream(name).info().last for name in self._sources.streams}


def _plus(some: Mapping[str, Sum], more: Mapping[str, Sum]) -> dict[str, Sum]:
    nothing = Sum()
    return {
        name: Sum(*map(add, some.get(name, nothing), more.get(name, nothing)))
        for name in {*some, *more}
    }


def _judge(
    account: Account, right: Mapping[str, Sum], seen: Seen, end: Mapping[str, int]
) -> AccountVerdict:
    """Compare an account with what is right at its own position."""
    for stream, next_ in account.next.items():
        why = None
        if next_ > end[stream] + 1:
            why = f"it needs offset {next_} of {stream!r}, which ends at {end[stream]}"
        elif next_ < seen.first[stream]:
            first = seen.first[stream]
            why = f"it needs offset {next_} of {stream!r}, of which {first} is the first left"
        if why:
            return AccountVerdict(account.name, account.kind, account.next, unjudged=why)
    nothing = Sum()
    drift = [
        Drift(name, account.sums.get(name, nothing), right.get(name, nothing))
        for name in sorted({*account.sums, *right})
    ]
    if account.whole is not None:
        drift.append(Drift(None, account.whole, total_of(right)))
    return AccountVerdict(
        account.name,
        account.kind,
        account.next,
        tuple(each for each in drift if each.has != each.right),
    )


def _fixed(
    found: Reconciled, stream: Stream, keeping: Keeping, right: Mapping[str, Sum], *, write: bool
) -> Reconciled:
    """Write a reset record for each consumer that has drifted, or only show its state."""
    state = keeping.spell(right)

    def fixed(verdict: AccountVerdict) -> AccountVerdict:
        if not verdict.drift or verdict.kind != "consumer":
            return verdict
        end = found.end[stream.name]
        offset = write_reset(stream, verdict.name, end, state) if write else None
        return replace(verdict, reset=offset, state=state)

    return replace(found, verdicts=tuple(map(fixed, found.verdicts)))
