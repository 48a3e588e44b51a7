"""The job ``backfill``: writes a table, a query or files to the log or another data type, once.

The input is cut into chunks, and the plan is kept in a journal before anything is written. Each
chunk is one write with the backfill as its producer and its number as the sequence: all of it
arrives or nothing, and a repeat is deduplicated. After a crash at any moment, the next run of that
name goes on; when the input has changed by then, it is refused.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from pyspark.sql import types as t

from headwater.client import Headwater
from headwater.errors import FormatTooNew, InputChanged, InvalidInput, JobForgotten, ReusedSequence
from headwater.kernel.inputs import MAX_EXACT, check_int, check_name
from headwater.log.retention import PRODUCER_MS
from headwater.spark import icks, timelines
from headwater.spark.engine.columns import AcceptedColumns
from headwater.spark.engine.connections import absolute_url, client
from headwater.spark.engine.failures import translating_errors
from headwater.spark.jobs.backfill_inputs import (
    BackfillInput,
    Chunk,
    FilesInput,
    TableInput,
    key_and_columns,
    quoted,
)
from headwater.spark.jobs.progress import JobReport, Summary, counted, deed
from headwater.spark.timelines import FarmPlan, absolute_farm
from headwater.timeline.layout import safe_farm
from headwater.timeline.records import DEFAULT_SIZE

# ── Backfill targets ──────────────────────────────────────────────────────────────────────────────
# Where a backfill goes: the log, a queue, a dirty list, timelines; what each takes of a row.


_NESTED = (t.StructType, t.ArrayType, t.MapType)
_DIRTY = ("ick", "channel")
_FORMATS = {
    "stream": "headwater",
    "topic": "headwater",
    "queue": "headwater_queue",
    "ick": "headwater_ick",
    "channel": "headwater_ick",
    "timelines": "headwater_timeline",
}
# To write there again what was written changes nothing, whoever does it.
_IDEMPOTENT = ("headwater_ick", "headwater_timeline")


@dataclass(frozen=True, slots=True)
class BackfillTarget:
    """A place to write to, by a sink with these options; of timelines the name is the farm.

    ``tag``, ``value`` and ``score`` name the columns of the input that are written.
    """

    kind: str
    name: str
    options: Mapping[str, str] = field(repr=False)
    tag: str | None = None
    value: str | None = None
    score: str | None = None

    def facts(self) -> dict[str, Any]:
        """Return what must be the same when a backfill goes on."""
        facts = {self.kind: self.name, "tag": self.tag, "value": self.value}
        return facts | ({"score": self.score} if _FORMATS[self.kind] in _IDEMPOTENT else {})

    def shape(self, rows: DataFrame) -> DataFrame:
        """Bring rows of the input into the columns that the sink takes."""
        columns: dict[str, Column] = {}
        if self.kind == "timelines":
            assert self.tag
            assert self.value
            assert self.score
            columns["key"] = _bytes(rows, self.tag)
            columns["score"] = _score(rows, self.score, timelines.ACCEPTED)
            columns["member"] = _bytes(rows, self.value)
        elif self.kind in _DIRTY:
            assert self.tag
            columns["member"] = _bytes(rows, self.tag)
            columns["score"] = _score(rows, self.score, icks.ACCEPTED) if self.score else F.lit(0.0)
        else:
            if self.kind != "queue":
                columns["tag"] = _column(rows, self.tag).cast("string") if self.tag else F.lit("")
            columns["value"] = _value(rows, self.value)
        return rows.select(*(column.alias(name) for name, column in columns.items()))

    def write(self, rows: DataFrame, producer: str, sequence: int) -> None:
        """Write all rows, in order; a repeat of a sequence changes nothing."""
        format = _FORMATS[self.kind]
        options = dict(self.options)
        if format not in _IDEMPOTENT:
            options |= {"producer": producer, "sequence": str(sequence)}
        rows.write.format(format).options(**options).mode("append").save()


def _column(rows: DataFrame, name: str) -> Column:
    return rows[quoted(name)]


def _score(rows: DataFrame, name: str, accepted: AcceptedColumns) -> Column:
    """Return a score uncast where the sink accepts its type: it refuses what would be rounded."""
    as_it_is = isinstance(rows.schema[name].dataType, accepted.types["score"])
    return _column(rows, name) if as_it_is else _column(rows, name).cast("double")


def _value(rows: DataFrame, name: str | None) -> Column:
    """Return the value of a message: the bytes of a column, or the whole row as JSON."""
    if name is None:
        whole = F.struct(*(_column(rows, each) for each in rows.columns))
        return F.to_json(whole, {"ignoreNullFields": "false"}).cast("binary")
    return F.coalesce(_bytes(rows, name), F.lit(b""))


def _bytes(rows: DataFrame, name: str) -> Column:
    column, kind = _column(rows, name), rows.schema[name].dataType
    if isinstance(kind, _NESTED):
        column = F.to_json(column, {"ignoreNullFields": "false"})
    elif not isinstance(kind, t.BinaryType):
        column = column.cast("string")
    return column.cast("binary")


def backfill_target(
    url: str | None,
    named: Mapping[str, str | None],
    columns: Mapping[str, str | None],
    max_size: int | None,
    keep: int | None,
) -> BackfillTarget:
    """Return where rows go; refuses arguments that mean nothing there."""
    given = {kind: name for kind, name in named.items() if name is not None}
    if "timelines" not in given and (max_size is not None or keep is not None):
        raise InvalidInput("max_size and keep are for timelines; leave them out")
    if len(given) != 1:
        raise InvalidInput(f"name one place to write to: {', '.join(named)}")
    ((kind, name),) = given.items()
    tag, value, score = columns["tag"], columns["value"], columns["score"]
    if kind == "timelines":
        if tag is None or value is None or score is None:
            raise InvalidInput(
                "timelines have keys, scores and members; name the columns by tag, score and value"
            )
        size = DEFAULT_SIZE if max_size is None else max_size
        plan = FarmPlan(absolute_farm(name), size, keep=keep)
        plan.require()
        options = {"instances": plan.instances, "maxSize": str(plan.max_size)}
        options |= {} if keep is None else {"keep": str(keep)}
        return BackfillTarget(kind, safe_farm(plan.instances), options, tag, value, score)
    if kind in _DIRTY and (tag is None or value is not None):
        raise InvalidInput(
            "a dirty list has members, by the column that is the tag, and no values; "
            "name a tag and leave the value out"
        )
    if kind not in _DIRTY and score is not None:
        raise InvalidInput("a score is for members of an Ick, a channel or timelines; leave it out")
    if kind == "queue" and tag is not None:
        raise InvalidInput("a queue has no tags; leave it out, or put it into the value")
    if kind not in _DIRTY:
        check_name(name, kind)
    return BackfillTarget(kind, name, {"url": absolute_url(url), kind: name}, tag, value, score)


# ── Backfill journal ──────────────────────────────────────────────────────────────────────────────
# The journal of a backfill: its plan, and which chunks are done; a stream of its own.
#
# The plan is the first message, and only one process can write it. A chunk is recorded as done
# when it is in the log; a run that dies between the two writes it again with the same sequence,
# and the log deduplicates it.


_PLAN, _BEGUN, _DONE = "plan", "begun", "done"
# Housekeepers may forget a producer after this time; a little earlier is safe.
FORGOTTEN_MS = PRODUCER_MS - 3600 * 1000
# How a plan is written, and the journal with it.
PLAN_FORMAT = 1


class _Written(msgspec.Struct, frozen=True):
    """What every release can read of a plan; without a format it is of the first."""

    format: int = PLAN_FORMAT


class BackfillPlan(msgspec.Struct, frozen=True):
    """What a backfill set out to do: what must stay the same, and the chunks."""

    facts: dict[str, Any]
    chunks: list[Chunk]
    format: int = PLAN_FORMAT

    @property
    def rows(self) -> int:
        """How many rows there are in all."""
        return sum(chunk.rows for chunk in self.chunks)


class Journal:
    """The journal of the backfill of that name, in the store that it writes to."""

    def __init__(self, hw: Headwater, name: str) -> None:
        self._job = f"backfill {name!r}"
        self.stream = hw.stream(f"backfill.{name}")
        self.producer = f"backfill:{name}"
        self.done: set[int] = set()
        self._begun: set[int] = set()

    def read(self) -> BackfillPlan | None:
        """Return the plan if there is one, and read what is done. Raises FormatTooNew."""
        plan = None
        for batch in self.stream.scan():
            for row in batch.to_pylist():
                if row["tag"] == _PLAN:
                    written = msgspec.json.decode(row["value"], type=_Written).format
                    if written > PLAN_FORMAT:
                        raise FormatTooNew(f"the plan of {self._job}", written, PLAN_FORMAT)
                    plan = msgspec.json.decode(row["value"], type=BackfillPlan)
                else:
                    (self.done if row["tag"] == _DONE else self._begun).add(int(row["value"]))
        return plan

    def begin(self, plan: BackfillPlan) -> BackfillPlan:
        """Record a plan; returns the one that counts, which is another's if that was faster."""
        entry = (_PLAN, msgspec.json.encode(plan))
        with contextlib.suppress(ReusedSequence):
            self.stream.write_many([entry], producer=_PLAN, sequence=1)
        kept = self.read()
        assert kept is not None
        return kept

    def check(self, plan: BackfillPlan, facts: dict[str, Any], now_ms: float) -> None:
        """Check that a plan can go on. Raises InputChanged, JobForgotten.

        A chunk that was begun long ago may be in the log, and the log may not know it any more.
        """
        for name, fact in facts.items():
            began = plan.facts.get(name)
            if began != fact:
                why = f"{name} is {fact!r}, and was {began!r} when it began"
                raise InputChanged(self._job, why)
        silent_ms = now_ms - self.stream.info().last_time_ms
        if self._begun - self.done and silent_ms > FORGOTTEN_MS:
            raise JobForgotten(self._job, self.stream.name)

    def begin_chunk(self, place: int) -> None:
        """Record that a chunk is about to be written."""
        self.stream.write(_BEGUN, str(place))

    def end_chunk(self, place: int) -> None:
        """Record that a chunk is in the log."""
        self.stream.write(_DONE, str(place))
        self.done.add(place)


# ── Backfill ──────────────────────────────────────────────────────────────────────────────────────


CHUNK_ROWS = 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfilled(Summary):
    """What a backfill did; ``rows`` and ``chunks`` are those of this run, ``before`` of others."""

    name: str
    source: str
    target: str
    rows: int = 0
    chunks: int = 0
    before: int = 0
    journal: str

    def sentence(self) -> str:
        """See Summary."""
        verb = deed(self.dry_run, "write", "wrote")
        before = f" ({self.before:,} were there already)" if self.before else ""
        return f"{verb} {counted(self.rows, 'row')} of {self.source} to {self.target}{before}"


def backfill(
    spark: SparkSession,
    name: str,
    *,
    db: str | None = None,
    table: str | None = None,
    query: str | None = None,
    files: str | Sequence[str] = (),
    format: str = "parquet",
    schema: str | None = None,
    options: Mapping[str, str] | None = None,
    stream: str | None = None,
    topic: str | None = None,
    queue: str | None = None,
    ick: str | None = None,
    channel: str | None = None,
    timelines: str | None = None,
    max_size: int | None = None,
    keep: int | None = None,
    url: str | None = None,
    tag: str | None = None,
    value: str | None = None,
    score: str | None = None,
    order_by: str | None = None,
    chunk_rows: int = CHUNK_ROWS,
    dry_run: bool = False,
    report: JobReport | None = None,
) -> Backfilled:
    """Write every row of a table, a query or files to one place, once.

    ``db`` with ``table`` or ``query`` names a table; ``files`` with ``format`` (and ``schema`` and
    ``options`` of Spark's reader) files. ``tag`` and ``value`` name columns; without a tag it is
    empty, without a value it is the whole row as JSON, and a value that is null is empty, which
    marks its tag as deleted. Rows come in the order of ``order_by``, a table's by default in that
    of its primary key; files without it in no order. Chunks have about ``chunk_rows`` rows; a file
    is not cut unless there is an order.

    The place is a ``stream``, a ``topic``, a ``queue``, whose messages have a value only, or a
    dirty list, ``ick`` or ``channel``: there the tag is the member, and ``score`` names the column
    of its score, which is 0 without one. ``timelines`` names a farm: the tag is the key, the value
    the member, and the score must be named; ``max_size`` and ``keep`` are those of the farm.

    A run of the same ``name`` goes on after a crash; a name that is done writes nothing more.
    Raises InputChanged when the input is not the one that it began with, InvalidInput,
    JobForgotten.
    """
    began = time.monotonic()
    check_name(name, "backfill")
    check_int(chunk_rows, "chunk_rows", 1, MAX_EXACT)
    named = {"stream": stream, "topic": topic, "queue": queue, "ick": ick, "channel": channel}
    columns = {"tag": tag, "value": value, "score": score}
    target = backfill_target(url, named | {"timelines": timelines}, columns, max_size, keep)
    paths = [files] if isinstance(files, str) else list(files)
    if (table is not None or query is not None) == bool(paths):
        raise InvalidInput("name what to read: a table or a query of a database, or files")
    if db is None and not paths:
        raise InvalidInput("name the database of the table by db, as sqlite:///file")
    if db is not None and not paths:
        # Before Spark is asked for anything, which may have to start first.
        _check_columns(key_and_columns(db, table, query, order_by)[1], columns)
    hw = client(absolute_url(url))
    report = report or JobReport()
    job = f"backfill {name!r}"
    with translating_errors():
        intake: BackfillInput = (
            FilesInput(spark, job, format, paths, order_by, schema, options or {})
            if paths
            else TableInput(spark, job, db or "", table, query, order_by)
        )
        _check_columns(intake.columns(), columns)
        journal = Journal(hw, name)
        facts = intake.facts() | target.facts()
        plan = journal.read()
        if plan is None:
            with report.tasks(spark, f"cutting {intake.describe()} into chunks"):
                plan = BackfillPlan(facts, intake.cut(chunk_rows))
            plan = plan if dry_run else journal.begin(plan)
        journal.check(plan, facts, now_ms=time.time() * 1000)
        to_do = [place for place in range(len(plan.chunks)) if place not in journal.done]
        done = Backfilled(
            name=name,
            source=intake.describe(),
            target=f"{target.kind} {target.name!r}",
            journal=journal.stream.name,
            dry_run=dry_run,
            before=sum(plan.chunks[place].rows for place in journal.done),
            rows=sum(plan.chunks[place].rows for place in to_do),
            chunks=len(to_do),
        )
        if not dry_run:
            with report.step(f"backfilling {done.target}", plan.rows) as step:
                step.advance(done.before)
                for place in to_do:
                    _write_chunk(job, plan.chunks[place], place, journal, intake, target)
                    step.advance(plan.chunks[place].rows)
    return replace(done, seconds=time.monotonic() - began)


def _write_chunk(
    job: str,
    chunk: Chunk,
    place: int,
    journal: Journal,
    intake: BackfillInput,
    target: BackfillTarget,
) -> None:
    """Write a chunk, between two entries of the journal."""
    shaped = target.shape(intake.read(chunk))
    journal.begin_chunk(place)
    try:
        with translating_errors():
            target.write(shaped, journal.producer, place + 1)
    except ReusedSequence:
        # A part of a topic may have them, and another one not yet.
        why = f"rows of chunk {place + 1} arrived before, and are others by now"
        raise InputChanged(job, why) from None
    journal.end_chunk(place)


def _check_columns(names: list[str], wanted: Mapping[str, str | None]) -> None:
    for what, name in wanted.items():
        if name is not None and name not in names:
            raise InvalidInput(
                f"there is no column {name!r} for the {what}; there are {', '.join(names)}"
            )
