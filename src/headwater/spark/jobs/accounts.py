"""What consumers have added up, and at which position: read together, from one snapshot.

An account is a set of sums over a stream: those of a SQL consumer with its checkpoint, or of a
totals job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from headwater.errors import InvalidInput
from headwater.outbox.schema import checkpoints_table
from headwater.spark.jobs.folding import ALL
from headwater.spark.jobs.ledger import totals_states, totals_table
from headwater.sql.driver_errors import translating_errors
from headwater.sql.relations import Relation

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
