"""Each row has its effect once, in order, while workers, drivers and servers are killed.

A query copies a stream to a topic or a stream, or adds it up in a table. It is killed at every
named step, started again from its checkpoint, and what came out is compared with what went in.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import headwater
from headwater.spark.engine.writes import BatchWriter
from headwater.spark.log.sink import LogWrite
from headwater.spark.log.staging import LogSink
from headwater.spark.log.target import StreamOrTopic
from headwater.spark.sql_sink.source import SqlSink
from tests.support.postgres import Postgres, postgres_folder
from tests.support.servers import Server, until
from tests.support.spark.dying_sinks import (
    LOG_STEPS,
    PUBLISHED,
    SQL_STEPS,
    Death,
    run_query,
    sink_that_dies,
)
from tests.support.spark.sql_sinks import RIDES
from tests.support.stores import Stores
from tests.support.watch import meanwhile

pytestmark = pytest.mark.fault
ROOT = Path(__file__).parents[2]
TAGS = 7
# Of the query that Postgres dies under: each has 2000 rows.
EPOCHS = 5
# All steps in ``make test-long``; each takes a query that dies and another that goes on.
LONG = "HEADWATER_LONG" in os.environ


class Pipeline:
    """A stream, what is made of it by queries, and what should have been."""

    def __init__(self, store: str, db: str, place: Path, name: str) -> None:
        self.hw = headwater.connect(store)
        self.engine = sa.create_engine(db, poolclass=sa.NullPool)
        self.source = self.hw.stream(name)
        self.topic = self.hw.topic(f"{name}-out", 2)
        self.copy = self.hw.stream(f"{name}-copy")
        self.order = {
            "store": store,
            "db": db,
            "stream": name,
            "topic": self.topic.name,
            "copy": self.copy.name,
            "place": str(place),
        }
        self.count = 0
        with self.engine.begin() as conn:
            conn.exec_driver_sql("CREATE TABLE totals (ride text PRIMARY KEY, distance bigint)")

    def feed(self, rows: int) -> None:
        numbers = range(self.count, self.count + rows)
        self.source.write_many([(f"t{n % TAGS}", b"%d" % n) for n in numbers])
        self.count += rows

    def check_topic(self) -> None:
        found: list[tuple[str, int]] = []
        for place in range(2):
            messages = [m for m in self.topic.partition(place).read(1, 1_000_000) if m]
            rows = [(m.tag, int(m.value)) for m in messages]
            for tag in {tag for tag, _ in rows}:
                numbers = [number for name, number in rows if name == tag]
                assert numbers == sorted(numbers), "the order within a partition is kept"
            found += rows
        assert sorted(n for _, n in found) == list(range(self.count))

    def check_copy(self) -> None:
        found = [(m.tag, int(m.value)) for m in self.copy.read(1, 1_000_000) if m]
        assert found == [(f"t{n % TAGS}", n) for n in range(self.count)]

    def check_table(self) -> None:
        wanted: dict[str, int] = {}
        for n in range(self.count):
            wanted[f"t{n % TAGS}"] = wanted.get(f"t{n % TAGS}", 0) + n
        with self.engine.connect() as conn:
            rows = conn.exec_driver_sql("SELECT ride, distance FROM totals").all()
        assert {row[0]: row[1] for row in rows} == wanted

    def close(self) -> None:
        self.engine.dispose()
        self.source.delete()
        self.topic.delete()
        self.copy.delete()
        self.hw.close()


@pytest.fixture
def pipeline(stores: Stores, database_url: str, tmp_path: Path, name: str) -> Iterator[Pipeline]:
    with contextlib.closing(
        Pipeline(stores.url("embedded"), database_url, tmp_path, name)
    ) as pipeline:
        yield pipeline


# ── Workers and committers ───────────────────────────────────────────────────────────────────


def die_at_every_step(
    spark: SparkSession, pipeline: Pipeline, sink: str, steps: list[str], place: Path
) -> None:
    for step in steps:
        pipeline.feed(1500)
        marker = place / f"{sink}-{step}"
        spark.dataSource.register(sink_that_dies(sink, Death(step, str(marker))))
        # A worker's task is tried again; a commit that fails ends the query.
        outcome = contextlib.nullcontext() if step == "writing" else pytest.raises(PySparkException)
        with outcome:
            run_query(spark, sink, pipeline.order)
        assert marker.exists(), f"{step} was not reached"
        run_query(spark, sink, pipeline.order)
        if sink == "log":
            pipeline.check_topic()
        else:
            pipeline.check_table()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_log_sink_may_die_at_any_step(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path
) -> None:
    steps = LOG_STEPS if LONG else ["writing", PUBLISHED]
    die_at_every_step(spark, pipeline, "log", steps, tmp_path)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("database_url", "steps"),
    [
        ("sqlite", SQL_STEPS if LONG else ["applied"]),
        pytest.param("postgres", SQL_STEPS, marks=pytest.mark.long),
    ],
    indirect=["database_url"],
)
def test_an_sql_sink_may_die_at_any_step(
    spark: SparkSession, pipeline: Pipeline, steps: list[str], tmp_path: Path
) -> None:
    die_at_every_step(spark, pipeline, "sql", steps, tmp_path)


def test_of_two_attempts_of_a_task_one_counts(stores: Stores, name: str) -> None:
    sink = LogSink(StreamOrTopic(stores.url("embedded"), name, False), 0)
    writer = BatchWriter(LogWrite(sink))
    values = [[str(n) for n in range(task, 3000, 2)] for task in (0, 1)]
    batches = [pa.record_batch({"value": some}) for some in values]
    attempts = [[writer.write(iter([batch])) for _ in range(2)] for batch in batches]
    writer.commit([attempts[0][1], attempts[1][0]])
    with headwater.connect(stores.url("embedded")) as hw:
        found = [int(m.value) for m in hw.stream(name).read(1, 10_000) if m]
        assert found == [*range(0, 3000, 2), *range(1, 3000, 2)]
        hw.stream(name).delete()


def test_of_two_attempts_of_an_sql_task_one_counts(database_url: str, engine: sa.Engine) -> None:
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE totals (ride text PRIMARY KEY, distance bigint)")
    engine.dispose()
    given = {"url": database_url, "table": "totals", "mode": "add"}
    writer = SqlSink(given).writer(RIDES, overwrite=False)
    assert isinstance(writer, BatchWriter)
    batch = pa.record_batch({"ride": ["a"], "distance": [1]})
    attempts = [writer.write(iter([batch])) for _ in range(2)]
    writer.commit([attempts[1]])
    with engine.connect() as conn:
        assert conn.exec_driver_sql("SELECT * FROM totals").all() == [("a", 1)]


# ── Drivers ──────────────────────────────────────────────────────────────────────────────────


def drive(pipeline: Pipeline, sink: str, step: str, marker: Path) -> int:
    """Run the queries in a process of their own; returns how it ended."""
    order = {**pipeline.order, "sink": sink, "step": step, "marker": str(marker)}
    said = marker.with_suffix(".log")
    with said.open("w") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.support.spark.dying_sinks", json.dumps(order)],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        code = driver.wait(300)
    finally:
        # What it started does not outlive it, whoever was killed first.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
    if code > 0:
        print(said.read_text())
    return code


@pytest.mark.timeout(600)
@pytest.mark.long
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_driver_may_die_in_the_middle_of_a_commit(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path
) -> None:
    pipeline.feed(1500)
    assert drive(pipeline, "log", PUBLISHED, tmp_path / "first") == -signal.SIGKILL
    pipeline.feed(500)
    assert drive(pipeline, "nodes", PUBLISHED, tmp_path / "second") == -signal.SIGKILL
    pipeline.check_topic()
    pipeline.feed(500)
    assert drive(pipeline, "sql", "applied", tmp_path / "third") == -signal.SIGKILL
    pipeline.check_topic()
    pipeline.check_copy()
    for sink in ("log", "sql"):
        spark.dataSource.register(sink_that_dies(sink, Death("never", "")))
        run_query(spark, sink, pipeline.order)
    pipeline.check_topic()
    pipeline.check_table()


# ── Servers ──────────────────────────────────────────────────────────────────────────────────


def test_the_store_may_die_in_the_middle_of_a_commit(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    spark.dataSource.register(sink_that_dies("log", Death("never", "")))
    with (
        Server(fsync="always") as server,
        contextlib.closing(
            Pipeline(server.url, f"sqlite:///{tmp_path / 'app.db'}", tmp_path, name)
        ) as pipeline,
    ):
        pipeline.feed(10_000)
        watcher = headwater.connect(server.url)

        def published() -> int:
            return sum(info.last for info in watcher.topic(pipeline.topic.name).info())

        def kill_twice() -> None:
            for goal in (500, 5000):
                until(lambda: published() > goal, 200)  # noqa: B023  this round's
                assert published() < pipeline.count, "the query is at work"
                server.kill()
                server.restart()

        with meanwhile(kill_twice):
            run_query(spark, "log", pipeline.order)
        watcher.close()
        pipeline.check_topic()


@pytest.mark.long
def test_postgres_may_die_in_the_middle_of_a_commit(
    spark: SparkSession, stores: Stores, tmp_path: Path, name: str
) -> None:
    spark.dataSource.register(sink_that_dies("sql", Death("never", "")))
    with (
        Postgres(postgres_folder(), fsync="on") as server,
        contextlib.closing(
            Pipeline(stores.url("embedded"), server.database(), tmp_path, name)
        ) as pipeline,
    ):
        pipeline.feed(2000 * EPOCHS)
        url = pipeline.order["db"]
        watcher = sa.create_engine(url, poolclass=sa.NullPool)

        def kill_once() -> None:
            def epochs() -> int:
                with contextlib.suppress(sa.exc.ProgrammingError), watcher.connect() as conn:
                    found = conn.exec_driver_sql("SELECT count(*) FROM headwater_epochs")
                    return int(found.scalar_one())
                return 0

            until(lambda: epochs() > 1, 200)
            assert epochs() < EPOCHS, "the query is at work"
            server.kill()
            server.start()

        with meanwhile(kill_once), contextlib.suppress(PySparkException):
            run_query(spark, "sql", pipeline.order)
        run_query(spark, "sql", pipeline.order)
        pipeline.check_table()
