"""What totals jobs have added up, in SQL: sums, and how far they go, always of one transaction.

A batch is added by one transaction, which first moves the job's row from the batch before to this
one: a process that finds that row elsewhere adds nothing. So a batch counts once, whatever dies
when, and a snapshot of sums and row shows what belongs together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Connection, Engine, Table, Text
from sqlalchemy.dialects import postgresql, sqlite

from headwater.errors import JobOvertaken
from headwater.sql.driver_errors import translating_errors
from headwater.sql.engines import sqlite_file
from headwater.sql.schemas import Schema

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
