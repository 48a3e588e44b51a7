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
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from operator import add
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import Engine

from headwater.client import Headwater
from headwater.errors import InvalidInput, UnknownArchive
from headwater.outbox import write_reset
from headwater.outbox.schema import outbox_table
from headwater.spark.archives.place import safe_place
from headwater.spark.engine.failures import translating_errors
from headwater.spark.engine.options import SourceOptions
from headwater.spark.jobs.accounts import (
    Account,
    Keeping,
    Kind,
    Sum,
    read_accounts,
    total_of,
)
from headwater.spark.jobs.progress import JobReport, Summary, counted
from headwater.spark.jobs.row_matching import (
    Canon,
    MatchedRows,
    Seen,
    Sources,
    fold_rows,
    kept,
    some_keys,
)
from headwater.spark.log.target import StreamOrTopic, target_of
from headwater.spark.tables.database import chosen_columns, open_database
from headwater.sql.engines import open_engine
from headwater.sql.relations import Relation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.log.stream import Stream


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
    named = {"url": url, "stream": stream, "topic": topic, "archive": archive}
    said = {name: text for name, text in named.items() if text is not None}
    target = target_of(SourceOptions(said, named))
    streams = _streams(target)
    hw = target.hw
    said |= {"url": target.url, "columns": "stream,offset,tag,value"}
    sources = Sources(spark, said, db, streams, canon, partitions)
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
        manifests = [target.manifest(stream) for stream in target.streams().values()]
        if not any(manifests):
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
