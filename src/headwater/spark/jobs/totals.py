"""The totals job: a stream or topic added up by structured streaming, with the sums in SQL.

Each micro-batch is folded by Spark to sums, which one transaction adds to those in SQL, together
with how far they go (see ledger.py). The position in SQL is the only one: a query begins there, and
its checkpoint directory is deleted with it. So there is no directory that could be lost, or be
older than the database; and a driver, a task, the store or the database may die at any moment, and
every record counts once.

    begun      the micro-batch is at hand
    folded     Spark has added it up; nothing is in SQL yet
    added      the transaction is committed

Errors of the store or the database that may pass are retried: as long as they last, or, in a run
that is to end by itself, for a minute, and only after both were reached once.
"""

from __future__ import annotations

import json
import logging
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
from pyspark.errors import PySparkException

from headwater.errors import (
    DatabaseUnreachable,
    HeadwaterError,
    JobNameTaken,
    SparkFailed,
    StoreError,
    StreamReplaced,
)
from headwater.kernel.failures import PATIENCE_S, Outage, store_may_recover
from headwater.kernel.inputs import Duration, check_ms, check_name
from headwater.kernel.stopping import StopSignal
from headwater.log.reading import Extent
from headwater.spark.engine.failures import translated
from headwater.spark.jobs.folding import ALL, READ, UNREADABLE, Shape, fold
from headwater.spark.jobs.ledger import Ledger, TotalsExtent, TotalsState
from headwater.spark.jobs.progress import JobReport, JobStep, Summary, counted, deed
from headwater.spark.log.target import StreamOrTopic, named_target
from headwater.sql.engines import open_engine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("headwater.spark")

OnGap: TypeAlias = Literal["stop", "skip"]

# A failure of Spark itself is retried so often, with no success between.
_TRIES = 5
_LOOK_S = 0.2
_PARTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Totaled(Summary):
    """How far the sums of a job go: ``next`` is the offset needed next of each stream."""

    job: str
    # What this run has added, and what is in the sums in all.
    added: int
    records: int
    # Messages that are no such records, in all; and the first of them in each stream.
    unreadable: int
    first_unreadable: Mapping[str, int]
    next: Mapping[str, int]

    def sentence(self) -> str:
        """See Summary."""
        verb = deed(self.dry_run, "add up", "added up")
        return f"{verb} {counted(self.added, 'record')}, {self.records:,} in all"


def totals(
    spark: SparkSession,
    stream: str | None = None,
    *,
    topic: str | None = None,
    db: str,
    shape: Shape,
    url: str | None = None,
    job: str = "totals",
    available_now: bool = False,
    every_ms: Duration = 1000,
    batch: int = 200_000,
    on_gap: OnGap = "stop",
    anew: bool = False,
    dry_run: bool = False,
    report: JobReport | None = None,
    stop: StopSignal | None = None,
    steps: Callable[[str], None] | None = None,
) -> Totaled:
    """Add up a stream or topic into the table ``headwater_totals`` of ``db``, each record once.

    ``shape`` names the field to add up, and the fields to add it up by. The job goes on where
    ``job`` stood, or begins at the first message; ``anew`` forgets what it had. It runs until
    ``stop`` is set, and looks for new messages every ``every_ms``; with ``available_now`` it ends
    when it has added up what is there now, or raises when the store or the database cannot be
    reached at first, or for a minute. A batch has at most ``batch`` messages. Retention waits for
    the job. ``on_gap`` says what happens when messages were evicted all the same: "stop" raises
    DataLost. ``dry_run`` counts the messages that wait to be added up, and changes nothing.
    ``steps`` is called with the name of every step, for tests that stop it there.

    Raises JobOvertaken when another process adds to the same job, JobNameTaken when the job adds up
    another stream, StreamReplaced, InvalidInput, and errors of the store or the database that do
    not pass by waiting.
    """
    wait_ms = check_ms(every_ms, "every_ms")
    target = named_target(url, stream, topic, "to add up")
    every = {"processingTime": f"{wait_ms} milliseconds"}
    with open_engine(db, new=True) as engine:
        query = TotalsQuery(
            spark,
            target,
            Ledger(engine, check_name(job, "job")),
            shape,
            {"maxOffsetsPerTrigger": str(batch), "failOnDataLoss": str(on_gap == "stop").lower()},
            {"availableNow": True} if available_now else every,
            report or JobReport(),
            stop or StopSignal(),
            steps or (lambda _: None),
        )
        return query.plan(anew=anew) if dry_run else query.run(anew=anew)


class TotalsQuery:
    """One run of a job: one query after the other, each from the position in SQL on."""

    def __init__(
        self,
        spark: SparkSession,
        target: StreamOrTopic,
        ledger: Ledger,
        shape: Shape,
        options: Mapping[str, str],
        trigger: Mapping[str, Any],
        report: JobReport,
        stop: StopSignal,
        steps: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._target = target
        self._ledger = ledger
        self._shape = shape
        self._options = {
            **target.options,
            "columns": "stream,offset,tag,value,time",
            "groupId": f"totals:{ledger.job}",
            **options,
        }
        self._trigger = trigger
        self._reached = False
        self._report = report
        self._stop = stop
        self._steps = steps
        self._outage = Outage(f"job {ledger.job!r}", log)
        self._run = secrets.token_hex(8)
        self._state = TotalsState(0, TotalsExtent({}, {}))
        self._added = 0
        self._error: Exception | None = None

    def run(self, *, anew: bool) -> Totaled:
        """Add up until the end, or until asked to stop."""
        began = time.monotonic()
        with self._report.step(f"adding up {self._target.name}", unit="record") as progress:
            tries, ended, batch = 0, False, 0
            while not ended and not self._stop.is_set():
                try:
                    self._open(anew=anew)
                    anew = False
                    self._follow(progress)
                    ended = True
                except (HeadwaterError, PySparkException) as error:
                    tries = 1 if self._state.batch > batch else tries + 1
                    batch = self._state.batch
                    why = translated(error)
                    if not _may_pass(why, tries) or self._gives_up(why):
                        raise why from error
                    self._stop.wait(self._outage.meet(why))
        return self._totaled(self._state.extent, self._added, time.monotonic() - began)

    def plan(self, *, anew: bool) -> Totaled:
        """Return what a run would do; ``added`` counts the offsets that wait."""
        extents = self._extents()
        state = None if anew or self._ledger.is_new() else self._ledger.load()
        state = state or _beginning(extents)
        self._check(state, extents)
        next_ = state.extent.next
        waiting = (
            extent.last + 1 - max(next_.get(name, 1), extent.first)
            for name, extent in extents.items()
        )
        added = sum(max(count, 0) for count in waiting)
        done = self._totaled(state.extent, added, 0.0)
        return replace(done, records=done.records + added, dry_run=True)

    def _totaled(self, extent: TotalsExtent, added: int, seconds: float) -> Totaled:
        return Totaled(
            job=self._ledger.job,
            added=added,
            records=extent.records,
            unreadable=extent.unreadable,
            first_unreadable=extent.first_unreadable,
            next=extent.next,
            seconds=seconds,
        )

    def _open(self, *, anew: bool) -> None:
        """Find out where to go on."""
        self._ledger.create()
        if anew:
            self._ledger.remove()
        state = self._ledger.load()
        extents = self._extents()
        if state is None:
            state = self._ledger.begin(_beginning(extents).extent)
        self._check(state, extents)
        self._state = state
        self._reached = True

    def _extents(self) -> dict[str, Extent]:
        streams = list(self._target.streams().values())
        return dict(zip(streams, self._target.extents(streams), strict=True))

    def _check(self, state: TotalsState, extents: Mapping[str, Extent]) -> None:
        """Raise JobNameTaken or StreamReplaced when the sums are those of other streams."""
        if extents and state.extent.next and not extents.keys() & state.extent.next.keys():
            raise JobNameTaken(self._ledger.job, sorted(state.extent.next))
        for name, created in state.extent.created.items():
            if name not in extents or extents[name].created != created:
                raise StreamReplaced(name)

    def _gives_up(self, why: HeadwaterError) -> bool:
        """Return whether a run that is to end by itself waits no longer for an outage to pass."""
        if "availableNow" not in self._trigger:
            return False
        there = self._reached or getattr(why, "answered", False)
        return not there or self._outage.lasts_s > PATIENCE_S

    def _follow(self, progress: JobStep) -> None:
        """Run one query, until it ends, fails, or is asked to stop."""
        self._error = None
        shown = self._added
        with tempfile.TemporaryDirectory("", "headwater-totals-", ignore_cleanup_errors=True) as at:
            query = self._start(f"file://{at}")
            try:
                # A query that failed need not end: see _add.
                while query.isActive and not self._error and not self._stop.wait(_LOOK_S):
                    progress.advance(self._added - shown)
                    shown = self._added
                if failure := self._error or query.exception():
                    raise failure
            finally:
                query.stop()
                progress.advance(self._added - shown)

    def _start(self, notes: str) -> StreamingQuery:
        places = {name: str(place) for place, name in self._target.streams().items()}
        next_ = self._state.extent.next
        begin = {place: next_.get(name, 1) for name, place in places.items()}
        reader = self._spark.readStream.format("headwater").options(**self._options)
        if begin:
            reader = reader.option("startingOffsets", json.dumps(begin))
        query = (
            reader.load()
            .writeStream.queryName(f"totals {self._ledger.job} {secrets.token_hex(4)}")
            .option("checkpointLocation", notes)
            .trigger(**self._trigger)
            .foreachBatch(self._add)
            .start()
        )
        self._report.note(f"job {self._ledger.job!r} follows {self._target.name!r}")
        return query

    def _add(self, messages: DataFrame, _: int) -> None:
        """Add a micro-batch to the sums."""
        try:
            self._steps("begun")
            # The query has a session of its own. A batch is small, and so is the number of parts.
            messages.sparkSession.conf.set("spark.sql.shuffle.partitions", _PARTS)
            rows = fold(messages, self._shape).toArrow().to_pylist()
            self._steps("folded")
            sums = [
                {key: row[key] for key in ("per", "name", "records", "total")}
                for row in rows
                if row["per"] not in (READ, UNREADABLE)
            ]
            before = self._state.extent.records
            self._state = self._ledger.add(self._state, self._extent(rows), sums)
            self._added += self._state.extent.records - before
            self._outage.over()
            self._steps("added")
        except Exception as error:  # noqa: BLE001  whoever follows the query raises it
            self._error = error
            # Spark takes the text of an error apart by a regular expression, which needs more stack
            # than there is when the text holds that of another error, stacks of Java and all.
            raise RuntimeError("the batch failed") from None

    def _extent(self, rows: list[dict[str, Any]]) -> TotalsExtent:
        """Return how far the sums go with a batch that was folded."""
        before = self._state.extent
        read = {row["name"]: row for row in rows if row["per"] == READ}
        bad = {row["name"]: row for row in rows if row["per"] == UNREADABLE}
        for name, row in bad.items():
            log.warning(
                "job %r cannot read %d messages of %r, the first at offset %d; they are counted",
                *(self._ledger.job, row["records"], name, row["first"]),
            )
        made = dict(zip(read, self._target.extents(read), strict=True))
        return msgspec.structs.replace(
            before,
            next={**before.next, **{name: row["last"] + 1 for name, row in read.items()}},
            created={**{name: made[name].created for name in read}, **before.created},
            records=before.records + sum(row["records"] for row in rows if row["per"] == ALL),
            unreadable=before.unreadable + sum(row["records"] for row in bad.values()),
            first_unreadable={
                **{name: row["first"] for name, row in bad.items()},
                **before.first_unreadable,
            },
            run=self._run,
        )


def _beginning(extents: Mapping[str, Extent]) -> TotalsState:
    """Return the state of a job that has added up nothing yet."""
    return TotalsState(0, TotalsExtent({name: one.first for name, one in extents.items()}, {}))


def _may_pass(error: HeadwaterError, tries: int) -> bool:
    if isinstance(error, SparkFailed):
        return tries < _TRIES
    if isinstance(error, StoreError):
        return store_may_recover(error)
    return isinstance(error, DatabaseUnreachable)
