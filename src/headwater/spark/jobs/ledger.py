"""Sums in SQL: what totals jobs and consumers have added up, and how far they go.

A batch is added by one transaction, which first moves the job's row from the batch before to this
one: a process that finds that row elsewhere adds nothing. So a batch counts once, whatever dies
when, and a snapshot of sums and row shows what belongs together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Connection, Engine, Table, Text
from sqlalchemy.dialects import postgresql, sqlite

from headwater.errors import InvalidInput, JobOvertaken
from headwater.outbox.schema import checkpoints_table
from headwater.spark.jobs.folding import ALL
from headwater.sql.driver_errors import translating_errors
from headwater.sql.engines import sqlite_file
from headwater.sql.schemas import Relation, Schema

# ── Ledger ────────────────────────────────────────────────────────────────────────────────────────


_CHUNK = 10_000

SCHEMA = Schema(__package__)
metadata = sa.MetaData()

totals_table = Table(
    "headwater_totals",
    metadata,
    Column("job", Text, primary_key=True),
    Column("per", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("records", BigInteger, nullable=False),
    Column("total", BigInteger, nullable=False),
)

jobs_table = Table(
    "headwater_totals_jobs",
    metadata,
    Column("job", Text, primary_key=True),
    Column("batch", BigInteger, nullable=False),
    # How far the sums go; see TotalsExtent.
    Column("extent", Text, nullable=False),
)


class TotalsExtent(msgspec.Struct, frozen=True):
    """How far the sums of a job go. Mappings are by stream."""

    # The offset needed next, and when the stream was made: one of the same name may follow it.
    next: dict[str, int]
    created: dict[str, int]
    records: int = 0
    unreadable: int = 0
    first_unreadable: dict[str, int] = {}
    # Tells processes of one name apart.
    run: str = ""


class TotalsState(msgspec.Struct, frozen=True):
    """The last batch that is in the sums of a job; batch 0 is none."""

    batch: int
    extent: TotalsExtent


class Ledger:
    """The sums of one job. Raises DatabaseUnreachable, which may pass, and DatabaseRefused."""

    def __init__(self, engine: Engine, job: str) -> None:
        self.job = job
        self._engine = engine

    def is_new(self) -> bool:
        """Return whether the database is a file that a first use will make."""
        file = sqlite_file(self._engine.url)
        return file is not None and not file.exists()

    def create(self) -> None:
        """Create the tables unless they exist."""
        with translating_errors(self._engine):
            SCHEMA.ensure(self._engine)

    def load(self) -> TotalsState | None:
        """Return the last batch and how far the sums go; None for a job that has none."""
        with translating_errors(self._engine), self._engine.connect() as conn:
            return totals_states(conn).get(self.job)

    def remove(self) -> None:
        """Delete the job and all its sums."""
        with translating_errors(self._engine), self._engine.begin() as conn:
            for table in (jobs_table, totals_table):
                conn.execute(sa.delete(table).where(table.c.job == self.job))

    def begin(self, extent: TotalsExtent) -> TotalsState:
        """Write the first position of a job, unless it has one; returns the one it has then."""
        row = {"job": self.job, "batch": 0, "extent": _spell(extent)}
        with translating_errors(self._engine), self._engine.begin() as conn:
            insert = _INSERT[conn.dialect.name]
            conn.execute(insert(jobs_table).on_conflict_do_nothing(), row)
        found = self.load()
        assert found is not None
        return found

    def add(
        self, before: TotalsState, extent: TotalsExtent, sums: Iterable[Mapping[str, Any]]
    ) -> TotalsState:
        """Add sums (per, name, records, total) and move on, or raise JobOvertaken."""
        after = TotalsState(before.batch + 1, extent)
        move = (
            sa.update(jobs_table)
            .where(jobs_table.c.job == self.job, jobs_table.c.batch == before.batch)
            .where(jobs_table.c.extent == _spell(before.extent))
            .values(batch=after.batch, extent=_spell(extent))
        )
        rows = [{"job": self.job, **each} for each in sums]
        with translating_errors(self._engine), self._engine.begin() as conn:
            # First, because it locks out whoever would add the same.
            if not conn.execute(move).rowcount:
                raise JobOvertaken(self.job)
            statement = _ADD[conn.dialect.name]
            for at in range(0, len(rows), _CHUNK):
                conn.execute(statement, rows[at : at + _CHUNK])
        return after


def totals_states(conn: Connection) -> dict[str, TotalsState]:
    """Return the last batch of every job of a database, and how far its sums go."""
    if not sa.inspect(conn).has_table(jobs_table.name):
        return {}
    return {
        row.job: TotalsState(row.batch, msgspec.json.decode(row.extent, type=TotalsExtent))
        for row in conn.execute(sa.select(jobs_table))
    }


def _spell(extent: TotalsExtent) -> str:
    return msgspec.json.encode(extent, order="deterministic").decode()


_INSERT: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def _adding(dialect: str) -> Any:
    insert = _INSERT[dialect](totals_table)
    own = totals_table.c
    return insert.on_conflict_do_update(
        index_elements=[own.job, own.per, own.name],
        set_={
            "records": own.records + insert.excluded.records,
            "total": own.total + insert.excluded.total,
        },
    )


_ADD = {dialect: _adding(dialect) for dialect in _INSERT}


# ── Accounts ──────────────────────────────────────────────────────────────────────────────────────
# What consumers have added up, and at which position: read together, from one snapshot.
#
# An account is a set of sums over a stream: those of a SQL consumer with its checkpoint, or of a
# totals job.


Kind: TypeAlias = Literal["consumer", "totals job"]


class Sum(NamedTuple):
    """A number of records, and their sum."""

    records: int = 0
    total: int = 0


def total_of(sums: Mapping[str, Sum]) -> Sum:
    """Add up the sums of all keys."""
    return Sum(
        sum(each.records for each in sums.values()), sum(each.total for each in sums.values())
    )


@dataclass(frozen=True, slots=True)
class Keeping:
    """Where consumers keep their sums: ``table`` has a row for each consumer and key.

    ``whole`` is a table with the sum of all, a row for each consumer; None where there is none.
    The others are columns: the consumer's name, the key, the number of records, and their sum.
    """

    table: str
    whole: str | None = None
    _: KW_ONLY
    consumer: str = "consumer"
    per: str
    records: str = "records"
    total: str

    def spell(self, sums: Mapping[str, Sum]) -> dict[str, object]:
        """Return sums as a reset record holds them: by the names of these columns."""
        return {
            ALL: self._spell(total_of(sums)),
            self.per: {name: self._spell(each) for name, each in sorted(sums.items())},
        }

    def _spell(self, each: Sum) -> dict[str, int]:
        return {self.records: each.records, self.total: each.total}


@dataclass(frozen=True, slots=True)
class Account:
    """The sums of one consumer or job; ``next`` is the offset needed next of each stream."""

    name: str
    kind: Kind
    next: Mapping[str, int]
    sums: Mapping[str, Sum] = field(default_factory=dict)
    whole: Sum | None = None


def read_accounts(
    engine: Engine, streams: Collection[str], keeping: Keeping, only: Collection[str]
) -> list[Account]:
    """Read every account of these streams, or ``only`` those of these names, at one moment.

    Raises InvalidInput for a table or column that is missing, and for an unknown name.
    """
    with translating_errors(engine), _snapshot(engine) as conn:
        found = [*_consumers(conn, streams, keeping), *_jobs(conn, streams, keeping.per)]
    if strangers := sorted(set(only) - {account.name for account in found}):
        raise InvalidInput(
            f"no consumer or job {strangers[0]!r} reads {', '.join(sorted(streams))} and keeps its "
            "position in this database; `headwater outbox status` lists those that do"
        )
    return [account for account in found if not only or account.name in only]


@contextmanager
def _snapshot(engine: Engine) -> Iterator[Connection]:
    """Return a connection on which all reads see the same moment."""
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="REPEATABLE READ") as conn:
            yield conn
        return
    with engine.connect() as conn:
        # Python's driver opens no transaction for reads by itself.
        conn.exec_driver_sql("BEGIN")
        yield conn
        conn.rollback()


def _consumers(conn: Connection, streams: Collection[str], keeping: Keeping) -> Iterator[Account]:
    if not sa.inspect(conn).has_table(checkpoints_table.name):
        return
    there = checkpoints_table.c
    rows = conn.execute(
        sa.select(there.consumer, there.stream, there.next_offset).where(there.stream.in_(streams))
    )
    positions: dict[str, dict[str, int]] = defaultdict(dict)
    for consumer, stream, position in rows:
        positions[consumer][stream] = position
    if not positions:
        return
    each = _sums(conn, keeping.table, keeping, keeping.per)
    whole = _sums(conn, keeping.whole, keeping, None) if keeping.whole else None
    for name, at in sorted(positions.items()):
        yield Account(
            *(name, "consumer", at, each.get(name, {})),
            None if whole is None else whole.get(name, {}).get("", Sum()),
        )


def _jobs(conn: Connection, streams: Collection[str], per: str) -> Iterator[Account]:
    there = totals_table.c
    for job, state in sorted(totals_states(conn).items()):
        at = {s: n for s, n in state.extent.next.items() if s in streams}
        if not at:
            continue
        rows = conn.execute(
            sa.select(there.per, there.name, there.records, there.total).where(
                there.job == job, there.per.in_((ALL, per))
            )
        ).all()
        sums = {name: Sum(records, total) for kind, name, records, total in rows if kind == per}
        whole = next((Sum(r, t) for kind, _, r, t in rows if kind == ALL), Sum())
        yield Account(job, "totals job", at, sums, whole)


def _sums(
    conn: Connection, table: str, keeping: Keeping, per: str | None
) -> dict[str, dict[str, Sum]]:
    """Read the sums of every consumer from a table, by key; by "" where there is none."""
    found = _table(conn, table, [keeping.consumer, per, keeping.records, keeping.total])
    key = found.c[per] if per else sa.literal("")
    columns = found.c[keeping.consumer], key, found.c[keeping.records], found.c[keeping.total]
    sums: dict[str, dict[str, Sum]] = defaultdict(dict)
    for consumer, name, records, total in conn.execute(sa.select(*columns)):
        sums[str(consumer)][str(name)] = Sum(int(records), int(total))
    return sums


def _table(conn: Connection, name: str, columns: list[str | None]) -> sa.Table:
    bare, *schema = reversed(Relation.of(name).parts)
    try:
        found = sa.Table(bare, sa.MetaData(), schema=next(iter(schema), None), autoload_with=conn)
    except sa.exc.NoSuchTableError:
        raise InvalidInput(f"the database has no table {name!r}; check the name") from None
    for column in columns:
        if column and column not in found.c:
            raise InvalidInput(
                f"table {name!r} has no column {column!r}; it has {', '.join(found.c.keys())}"
            )
    return found
