"""Spark's part: adds up the rides live, like a consumer, and at the end compares all totals.

The totals job is a thread of the run's own process, with Spark's JVM beside it; the store is killed
under it as under everybody else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

import sqlalchemy as sa

from examples.rocket_rides.model import pilot_totals
from examples.rocket_rides.processes import Place, consumer_of
from headwater.errors import HeadwaterError
from headwater.kernel.stopping import StopSignal
from headwater.spark.jobs.ledger import Ledger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.spark.jobs.reconcile import Reconciled

JOB = "spark"
SPOILED, BY_MM = "consumer0", 1
_READY_S = 120.0
_SETTINGS = {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "2"}


class Spark:
    """The totals job, from when it is entered until ``stop``; ``wrong`` says what went wrong."""

    def __init__(self, place: Place, engine: sa.Engine) -> None:
        self._place = place
        self._ledger = Ledger(engine, JOB)
        self._session: SparkSession | None = None
        self._stop = StopSignal()
        self._thread = threading.Thread(target=self._add_up, name="spark")
        self.wrong: list[str] = []

    def __enter__(self) -> Self:
        # Of another run in the same database.
        self._ledger.create()
        self._ledger.remove()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._session is not None:
            self._session.stop()

    def wait(self) -> None:
        """Wait until the job follows the log."""
        deadline = time.monotonic() + _READY_S
        while self._ledger.load() is None and self._thread.is_alive():
            if time.monotonic() > deadline:
                self.wrong.append(f"Spark was not ready after {_READY_S:.0f} s")
                return
            time.sleep(0.05)

    def stop(self) -> None:
        """Let the job end; may be called again."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def reconcile(self, *, fix: bool = False) -> Reconciled:
        """Compare the consumers, and the job, with the table of rides."""
        from examples.rocket_rides import sums
        from headwater.spark.jobs.reconcile import reconcile

        assert self._session is not None
        place = self._place
        return reconcile(
            self._session,
            place.stream,
            db=place.database,
            canon=sums.CANON,
            keeping=sums.KEEPING,
            url=place.store,
            fix=fix,
        )

    def _add_up(self) -> None:
        # Imported here: without Spark, the rest of the example runs all the same.
        from examples.rocket_rides import sums
        from headwater.spark import session
        from headwater.spark.jobs.totals import totals

        place = self._place
        try:
            self._session = session("local[2]", app_name="Rocket Rides", **_SETTINGS)
            totals(
                self._session,
                place.stream,
                db=place.database,
                shape=sums.SHAPE,
                url=place.store,
                job=JOB,
                every_ms=200,
                stop=self._stop,
            )
        except HeadwaterError as error:
            self.wrong.append(f"Spark: {error}")


def repair(spark: Spark, place: Place, engine: sa.Engine, say: Callable[[str], None]) -> list[str]:
    """Spoil one total by a millimetre, and let it be found and corrected; returns what failed."""
    table = pilot_totals
    with engine.begin() as conn:
        pilot = conn.execute(
            sa.select(table.c.pilot).where(table.c.consumer == SPOILED).order_by(table.c.pilot)
        ).scalar()
        whose = (table.c.consumer == SPOILED) & (table.c.pilot == pilot)
        conn.execute(sa.update(table).where(whose).values(distance_mm=table.c.distance_mm + BY_MM))
    say(f"a millimetre is added to what {SPOILED} has of {pilot}, behind everybody's back")
    found = spark.reconcile(fix=True)
    drift = [
        (each.name, one.name, one.has.records - one.right.records, one.has.total - one.right.total)
        for each in found.drifted
        for one in each.drift
    ]
    if drift != [(SPOILED, pilot, 0, BY_MM)]:
        return [f"one millimetre was to be found with {SPOILED} and {pilot}, and not {drift}"]
    offset = found.drifted[0].reset
    say(f"reconcile: {SPOILED} has {BY_MM} mm too much of {pilot}; reset record at offset {offset}")
    with consumer_of(SPOILED, place) as consumer:
        consumer.run_once()
    again = spark.reconcile()
    if again.drifted or consumer.stats.resets != 1:
        return [f"after its reset, {SPOILED} is still not right"]
    say(f"{SPOILED} has applied it; reconcile: no drift")
    return []
