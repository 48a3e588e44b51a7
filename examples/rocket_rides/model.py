"""What the database holds: rides, and what each consumer has added up; distances in millimetres.

Integers, because sums of floats depend on the order of the summands, and two consumers that batch
differently would disagree about rides they both saw.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from headwater import Message
from headwater.errors import InvalidInput
from headwater.outbox import Outbox
from headwater.outbox.schema import outbox_table

# What the names of all streams of the example begin with.
STREAM = "rocket-rides"

PILOTS = ("Ada", "Bessie", "Chuck", "Jacqueline", "Valentina", "Yuri")

_DRIVERS = {
    "sqlite": "sqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
}

metadata = sa.MetaData()

rides = sa.Table(
    "rocket_rides",
    metadata,
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    # What a client sends again when it got no answer: the same key, the same ride.
    sa.Column("request_key", sa.Text, unique=True),
    sa.Column("pilot", sa.Text, nullable=False),
    sa.Column("distance_mm", sa.BigInteger, nullable=False),
)

totals = sa.Table(
    "rocket_totals",
    metadata,
    sa.Column("consumer", sa.Text, primary_key=True),
    sa.Column("rides", sa.BigInteger, nullable=False),
    sa.Column("distance_mm", sa.BigInteger, nullable=False),
)

pilot_totals = sa.Table(
    "rocket_pilot_totals",
    metadata,
    sa.Column("consumer", sa.Text, primary_key=True),
    sa.Column("pilot", sa.Text, primary_key=True),
    sa.Column("rides", sa.BigInteger, nullable=False),
    sa.Column("distance_mm", sa.BigInteger, nullable=False),
)

_ADD = sa.text("""
    INSERT INTO rocket_totals (consumer, rides, distance_mm)
    VALUES (:consumer, :rides, :distance_mm)
    ON CONFLICT (consumer) DO UPDATE SET
        rides = rocket_totals.rides + excluded.rides,
        distance_mm = rocket_totals.distance_mm + excluded.distance_mm
""")

_ADD_TO_PILOT = sa.text("""
    INSERT INTO rocket_pilot_totals (consumer, pilot, rides, distance_mm)
    VALUES (:consumer, :pilot, :rides, :distance_mm)
    ON CONFLICT (consumer, pilot) DO UPDATE SET
        rides = rocket_pilot_totals.rides + excluded.rides,
        distance_mm = rocket_pilot_totals.distance_mm + excluded.distance_mm
""")


class Ride(msgspec.Struct, frozen=True):
    """One ride, as the log has it."""

    id: int
    pilot: str
    distance_mm: int


class Sum(NamedTuple):
    """So many rides, so far together."""

    rides: int = 0
    distance_mm: int = 0

    def plus(self, distance_mm: int) -> Sum:
        return Sum(self.rides + 1, self.distance_mm + distance_mm)


class RideNumbers:
    """Gives rides their ids, in the order in which requests come in: microseconds since 1970.

    As with any sequence, that is not the order in which they are committed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def next(self) -> int:
        with self._lock:
            self._last = max(self._last + 1, time.time_ns() // 1000)
            return self._last


def open_database(url: str) -> sa.Engine:
    """Connect to SQLite or Postgres; raises InvalidInput for a URL that cannot be used."""
    try:
        parsed = sa.make_url(url)
        driver = _DRIVERS[parsed.get_backend_name()]
    except (sa.exc.ArgumentError, KeyError):
        raise InvalidInput(
            "this is not the URL of a database for Rocket Rides; write sqlite:///file.db or "
            "postgresql://user@host/name"
        ) from None
    parsed = parsed.set(drivername=driver)
    if driver != "sqlite":
        return sa.create_engine(parsed)
    if parsed.database in (None, "", ":memory:"):
        raise InvalidInput("several processes share the database; give SQLite a file for it")
    # One process at a time writes; the others wait for it rather than give up.
    engine = sa.create_engine(parsed, connect_args={"timeout": 30})
    sa.event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _: object) -> None:
    # Readers do not wait for writers. A killed process loses nothing that it committed.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")


def refuse_strangers(engine: sa.Engine) -> None:
    """Refuse a database in which another application has staged something.

    The example's streamer would carry that off to the example's store.
    """
    if not sa.inspect(engine).has_table(outbox_table.name):
        return
    strange = sa.not_(outbox_table.c.stream.startswith(f"{STREAM}-"))
    with engine.connect() as conn:
        if conn.execute(sa.select(outbox_table.c.id).where(strange).limit(1)).first():
            raise InvalidInput(
                "the outbox of this database holds rows of another application; give the example "
                "a database of its own"
            )


def create_tables(engine: sa.Engine) -> None:
    """Make the tables of the application, empty, and those of the outbox, if they are missing."""
    metadata.drop_all(engine)
    metadata.create_all(engine)
    Outbox(engine).create_all()


def add_up(conn: sa.Connection, consumer: str, messages: Iterable[Message]) -> None:
    """Add the rides of a batch to what a consumer has, in the transaction of its checkpoint."""
    whole = Sum()
    pilots: dict[str, Sum] = defaultdict(Sum)
    for message in messages:
        ride = msgspec.json.decode(message.value, type=Ride)
        whole = whole.plus(ride.distance_mm)
        pilots[ride.pilot] = pilots[ride.pilot].plus(ride.distance_mm)
    conn.execute(_ADD, {"consumer": consumer, **whole._asdict()})
    conn.execute(
        _ADD_TO_PILOT,
        [{"consumer": consumer, "pilot": name, **sums._asdict()} for name, sums in pilots.items()],
    )


def set_totals(conn: sa.Connection, consumer: str, state: dict[str, Any]) -> None:
    """Replace what a consumer has by the state of a reset record, in one transaction."""
    for table in (totals, pilot_totals):
        conn.execute(sa.delete(table).where(table.c.consumer == consumer))
    conn.execute(sa.insert(totals).values(consumer=consumer, **state["all"]))
    rows = [{"consumer": consumer, "pilot": name, **sums} for name, sums in state["pilot"].items()]
    if rows:
        conn.execute(sa.insert(pilot_totals), rows)
