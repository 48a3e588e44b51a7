"""Reads database, log and consumers from outside, and compares every total with the log.

While all is running: what a consumer has added up must be the sum of the log up to the consumer's
own position, whenever one looks. In the end: clients, database, log and consumers have the same
rides, pilot by pilot.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from examples.rocket_rides.model import Ride, Sum, pilot_totals, rides, totals
from examples.rocket_rides.processes import CONSUMERS
from headwater import Stream
from headwater.outbox.schema import checkpoints_table, outbox_table

_PAGE = 5000


class Standing(NamedTuple):
    """Where a consumer is, and what it has: read by one statement, so both belong together."""

    position: int
    sum: Sum


@dataclass(frozen=True, slots=True)
class Look:
    """What was there at one moment."""

    made: int = 0
    waiting: int = 0
    streamed: int = 0
    consumers: dict[str, Standing] = field(default_factory=dict)

    @property
    def drained(self) -> bool:
        """Whether all rides have arrived everywhere."""
        return self.waiting == 0 and all(
            standing.position == self.streamed for standing in self.consumers.values()
        )

    @property
    def started(self) -> bool:
        """Whether anybody has looked yet."""
        return bool(self.consumers)


class Account(NamedTuple):
    """Somebody's view of all rides; ``position`` for those who read the log."""

    who: str
    position: int | None
    sum: Sum
    pilots: dict[str, Sum] | None

    def agrees(self, other: Account) -> bool:
        """Return whether two have the same, as far as both know."""
        return (
            self.sum == other.sum
            and (None in (self.position, other.position) or self.position == other.position)
            and (self.pilots is None or other.pilots is None or self.pilots == other.pilots)
        )


class Audit:
    """Reads the log from its beginning, once, and compares."""

    def __init__(self, engine: sa.Engine, stream: Stream, job: str | None = None) -> None:
        """``job`` is the name of Spark's totals job, if there is one."""
        self._engine = engine
        self._stream = stream
        self._job = job
        self._sums = [Sum()]  # of the log up to each offset
        self._pilots: dict[str, Sum] = defaultdict(Sum)
        self._ids: set[int] = set()
        self._newest = 0
        self.overtaken = 0
        self.comparisons = 0
        self.wrong: list[str] = []

    def look(self) -> Look:
        """Look at everything, and compare each consumer with the log at its position."""
        with self._engine.connect() as conn:
            consumers = {name: self._standing(conn, name) for name in CONSUMERS}
            if self._job:
                consumers[self._job] = self._standing_of_job(conn, self._job)
            waiting = _count(conn, outbox_table)
        # The log after those who read it and after what is not in it yet; rides after the log.
        self._read_on()
        with self._engine.connect() as conn:
            made = _count(conn, rides)
        for name, standing in consumers.items():
            self._compare(name, standing)
        return Look(made, waiting, len(self._sums) - 1, consumers)

    def accounts(self) -> list[Account]:
        """Return everybody's view of all rides; for when no process works any more."""
        look = self.look()
        with self._engine.connect() as conn:
            table = conn.execute(
                sa.select(
                    rides.c.pilot, sa.func.count(), sa.func.sum(rides.c.distance_mm)
                ).group_by(rides.c.pilot)
            )
            database = {pilot: Sum(count, int(distance)) for pilot, count, distance in table}
            found = {name: self._pilots_of(conn, name) for name in CONSUMERS}
            if self._job:
                found[self._job] = self._pilots_of_job(conn, self._job)
        together = Sum(
            sum(each.rides for each in database.values()),
            sum(each.distance_mm for each in database.values()),
        )
        return [
            Account("database", None, together, database),
            Account("log", look.streamed, self._sums[-1], dict(self._pilots)),
            *(
                Account(name, standing.position, standing.sum, found[name])
                for name, standing in look.consumers.items()
            ),
        ]

    def _standing(self, conn: sa.Connection, name: str) -> Standing:
        row = conn.execute(
            sa.select(
                checkpoints_table.c.next_offset,
                sa.func.coalesce(totals.c.rides, 0),
                sa.func.coalesce(totals.c.distance_mm, 0),
            )
            .select_from(
                checkpoints_table.outerjoin(
                    totals, totals.c.consumer == checkpoints_table.c.consumer
                )
            )
            .where(
                checkpoints_table.c.consumer == name,
                checkpoints_table.c.stream == self._stream.name,
            )
        ).first()
        return Standing(0, Sum()) if row is None else Standing(row[0] - 1, Sum(row[1], row[2]))

    def _standing_of_job(self, conn: sa.Connection, job: str) -> Standing:
        row = conn.execute(
            sa.text("""
                SELECT jobs.extent, coalesce(sums.records, 0), coalesce(sums.total, 0)
                FROM headwater_totals_jobs AS jobs
                LEFT JOIN headwater_totals AS sums ON sums.job = jobs.job AND sums.per = 'all'
                WHERE jobs.job = :job
            """),
            {"job": job},
        ).first()
        if row is None:
            return Standing(0, Sum())
        return Standing(json.loads(row[0])["next"][self._stream.name] - 1, Sum(row[1], row[2]))

    def _pilots_of_job(self, conn: sa.Connection, job: str) -> dict[str, Sum]:
        table = conn.execute(
            sa.text("""
                SELECT name, records, total FROM headwater_totals
                WHERE job = :job AND per = 'pilot'
            """),
            {"job": job},
        )
        return {pilot: Sum(count, distance) for pilot, count, distance in table}

    def _pilots_of(self, conn: sa.Connection, name: str) -> dict[str, Sum]:
        table = conn.execute(
            sa.select(pilot_totals.c.pilot, pilot_totals.c.rides, pilot_totals.c.distance_mm).where(
                pilot_totals.c.consumer == name
            )
        )
        return {pilot: Sum(count, distance) for pilot, count, distance in table}

    def _read_on(self) -> None:
        while messages := self._stream.read(len(self._sums), _PAGE):
            for message in messages:
                assert message is not None, "nothing is ever evicted here"
                ride = msgspec.json.decode(message.value, type=Ride)
                self._sums.append(self._sums[-1].plus(ride.distance_mm))
                self._pilots[ride.pilot] = self._pilots[ride.pilot].plus(ride.distance_mm)
                if ride.id in self._ids:
                    self.wrong.append(f"ride {ride.id} is in the log twice")
                self._ids.add(ride.id)
                self.overtaken += ride.id < self._newest
                self._newest = max(self._newest, ride.id)

    def _compare(self, name: str, standing: Standing) -> None:
        self.comparisons += 1
        if standing.position >= len(self._sums):
            self.wrong.append(f"{name} is at {standing.position}, behind the end of the log")
        elif standing.sum != self._sums[standing.position]:
            self.wrong.append(
                f"{name} has {standing.sum} at {standing.position}, "
                f"where the log has {self._sums[standing.position]}"
            )


def _count(conn: sa.Connection, table: sa.Table) -> int:
    return conn.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
