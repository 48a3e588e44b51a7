"""A queue is looked at without being touched, and each row is pushed once, whoever dies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import headwater
from headwater import Headwater, InvalidInput, UnknownQueue
from headwater.spark import queues as queue_intake
from headwater.spark.engine import writes
from headwater.spark.engine.failures import translated
from headwater.spark.engine.writes import BatchWriter, QueryWriter
from headwater.spark.jobs.backfill import backfill
from headwater.spark.queries.status import query_statuses
from headwater.spark.queues import QueueAddress, QueueWrite
from headwater.store.store import Store
from tests.support.servers import Server, until
from tests.support.spark.dying_sinks import FORMATS, PUBLISHED, Death, sink_that_dies
from tests.support.spark.queries import finish, following
from tests.support.spark.queues import intakes, look, numbers, popped, save
from tests.support.spark.tables import small_table
from tests.support.watch import meanwhile


@pytest.fixture(autouse=True)
def without_intakes(request: pytest.FixtureRequest, name: str) -> Iterator[None]:
    """Delete the intakes of the queue of a test that has the store ``embedded``."""
    used = "embedded" in request.fixturenames
    hw: Headwater | None = request.getfixturevalue("embedded") if used else None
    yield
    if hw is not None:
        for intake in intakes(hw, name):
            hw.stream(intake).delete()


# ── Writing and looking ──────────────────────────────────────────────────────────────────────


def test_rows_are_pushed_in_order_and_seen_as_they_lie(
    spark: SparkSession, store_url: str, hw: Headwater, name: str
) -> None:
    save(numbers(spark, 12_000), store_url, name)
    assert intakes(hw, name) == [], "nothing is left of a write that nobody can repeat"
    found = look(spark, store_url, name, minPartitions=4)
    assert found.rdd.getNumPartitions() >= 4
    rows = found.collect()
    assert sorted(int(row.value) for row in rows) == list(range(12_000))
    assert len({row.id for row in rows}) == 12_000
    assert {(row.state, row.priority, row.attempt, row.due) for row in rows} == {
        ("ready", 0, 0, None)
    }
    assert popped(hw.queue(name)) == list(range(12_000)), "nothing was taken by looking"


def test_priority_delay_and_life_go_by_the_row(
    spark: SparkSession, embedded_url: str, embedded: Headwater, name: str
) -> None:
    rows = spark.sql(
        "SELECT CAST(id AS string) AS value, CAST(IF(id % 3 = 0, NULL, id % 3) AS int) AS priority,"
        " IF(id < 30, NULL, 600000L) AS delay_ms, IF(id % 2 = 0, NULL, 900000L) AS ttl_ms"
        " FROM range(0, 60, 1, 2)"
    )
    save(rows, embedded_url, name)
    items = {int(item.value): item for item in embedded.queue(name).scan()}
    assert sorted(items) == list(range(60))
    for number, item in items.items():
        assert item.priority == number % 3
        assert item.state == ("ready" if number < 30 else "delayed")
        assert (item.expires_ms is not None) == (number % 2 == 1)
    wanted = sorted((n for n in range(30)), key=lambda n: (-(n % 3), n % 2 == 0, n))
    assert sorted(popped(embedded.queue(name))) == sorted(wanted)


def test_headers_are_written_and_are_a_column_when_asked_for(
    spark: SparkSession, embedded_url: str, embedded: Headwater, name: str
) -> None:
    rows = spark.sql(
        "SELECT CAST(id AS string) AS value, CAST(id % 2 AS int) AS priority,"
        " IF(id % 3 = 0, NULL, array(named_struct('key', 'n', 'value', CAST(CAST(id AS string)"
        " AS binary)))) AS headers"
        " FROM range(0, 30, 1, 2)"
    )
    save(rows, embedded_url, name)
    wanted = {n: {"n": b"%d" % n} if n % 3 else {} for n in range(30)}
    assert {int(i.value): dict(i.headers) for i in embedded.queue(name).scan()} == wanted
    assert "headers" not in look(spark, embedded_url, name).columns
    found = look(spark, embedded_url, name, includeHeaders=True)
    kind = found.schema["headers"].dataType.simpleString()
    assert kind == "array<struct<key:string,value:binary>>"
    assert {
        int(row.value): {one.key: bytes(one.value) for one in row.headers}
        for row in found.collect()
    } == wanted


def test_every_state_can_be_looked_at(
    spark: SparkSession, embedded_url: str, embedded: Headwater, name: str
) -> None:
    queue = embedded.queue(name)
    queue.configure(max_attempts=1)
    queue.push("dead", priority=9)
    queue.nack(*queue.pop(ack_ms=60_000))
    queue.push("held", priority=9)
    queue.pop(ack_ms=60_000)
    queue.push_many([b"ready-1", b"\xff"], priority=2, ttl_ms=60_000)
    queue.push("late", delay_ms=60_000)
    rows = {bytes(row.value): row for row in look(spark, embedded_url, name).collect()}
    states = {value: row.state for value, row in rows.items()}
    assert states == {
        b"dead": "dead",
        b"held": "unacked",
        b"ready-1": "ready",
        b"\xff": "ready",
        b"late": "delayed",
    }
    item = next(queue.scan("unacked"))
    row = rows[b"held"]
    assert (row.id, row.priority, row.attempt) == (item.id, 9, 1)
    assert row.due.timestamp() * 1000 == item.due_ms
    assert row.pushed.timestamp() * 1000 == pytest.approx(item.pushed_ms)
    assert rows[b"ready-1"].expires > rows[b"ready-1"].pushed
    some = look(spark, embedded_url, name, state="unacked, Dead").collect()
    assert {bytes(row.value) for row in some} == {b"held", b"dead"}
    stats = queue.stats()
    assert (stats.ready, stats.unacked, stats.dead, stats.delayed) == (2, 1, 1, 1)


def test_a_repeated_write_changes_nothing_and_one_with_other_rows_is_refused(
    spark: SparkSession, embedded_url: str, embedded: Headwater, name: str
) -> None:
    for tasks in (3, 2):
        save(numbers(spark, 50, tasks), embedded_url, name, producer="nightly", sequence=7)
    with pytest.raises(PySparkException, match="give new content a new sequence"):
        save(numbers(spark, 70), embedded_url, name, producer="nightly", sequence=7)
    save(numbers(spark, 3), embedded_url, name, producer="nightly", sequence=8)
    assert popped(embedded.queue(name)) == [*range(50), 0, 1, 2]
    (intake,) = intakes(embedded, name)
    assert embedded.stream(intake).info().length == 0


def test_what_is_wrong_is_told_in_one_line_on_the_driver(
    spark: SparkSession, embedded_url: str, embedded: Headwater, name: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        look(spark, embedded_url, name).collect()
    assert isinstance(translated(caught.value), UnknownQueue)
    with pytest.raises(PySparkException) as caught:
        look(spark, embedded_url, name, state="readdy").collect()
    assert "must name some of ready, delayed" in str(translated(caught.value))
    rows = spark.range(1).selectExpr("'a' AS value", "CAST(101 AS int) AS priority")
    with pytest.raises(PySparkException) as caught:
        save(rows, embedded_url, name)
    assert "priority must be from -100 to 100, not 101" in str(translated(caught.value))
    assert not embedded.queue(name).stats().exists


# ── Backfill ─────────────────────────────────────────────────────────────────────────────────


def test_a_backfill_fills_a_queue_once(
    spark: SparkSession, embedded_url: str, embedded: Headwater, name: str, tmp_path: Path
) -> None:
    db = small_table(tmp_path, 20)
    settings: dict[str, Any] = {"db": db, "table": "t", "queue": name, "url": embedded_url}
    done = backfill(spark, name, value="id", chunk_rows=10, **settings)
    assert done.headline().startswith(f"wrote 20 rows of table t to queue '{name}'")
    assert backfill(spark, name, value="id", chunk_rows=10, **settings).rows == 0
    assert popped(embedded.queue(name)) == list(range(20))
    with pytest.raises(InvalidInput, match="a queue has no tags"):
        backfill(spark, f"{name}-2", tag="id", **settings)


# After which call of its kind a commit of 300 rows dies, and how many rows are pushed by then when
# 300 were before: the second push of the one that goes on is the third of the epoch.
STEPS_OF_A_COMMIT = {
    PUBLISHED: 300,
    "hw_queue_push 1": 400,
    "hw_queue_push 2": 600,
    "committed": 600,
}


# ── Each row is pushed into a queue once, whoever dies in between ────────────────────────────────


def run_query(
    spark: SparkSession,
    url: str,
    stream: str,
    queue: str,
    place: Path,
    form: str = FORMATS["queue"],
) -> None:
    rows = following(spark, url, stream).select("value")
    finish(rows, form, place / "checkpoint", url=url, queue=queue)


def test_a_query_that_fills_a_queue_is_known_with_what_it_has_staged(
    spark: SparkSession, embedded_url: str, embedded: Headwater, name: str, tmp_path: Path
) -> None:
    embedded.stream(name).write_many([("t", b"v")] * 10)
    run_query(spark, embedded_url, name, name, tmp_path, "headwater_queue")
    known = embedded.store.run(query_statuses())
    (status,) = [one for one in known if one.writes == (f"queue {name}",)]
    assert (status.epoch, status.staged_bytes) == (0, 0)
    assert status.checkpoint.endswith("checkpoint")
    query = f"spark-{status.query}"
    intake = embedded.stream(queue_intake.intake_name(name, query))
    rows = pa.table({"tag": ["::"], "value": [b"x" * 1000]})
    intake.stage(rows, f"{query}-0-attempt")
    (status,) = [one for one in embedded.store.run(query_statuses()) if one.query == status.query]
    assert status.staged_bytes > 0


@pytest.mark.long
@pytest.mark.fault
def test_a_query_may_die_at_any_step(
    spark: SparkSession, embedded_url: str, embedded: Headwater, name: str, tmp_path: Path
) -> None:
    stream, queue = embedded.stream(name), embedded.queue(name)

    def die_at(step: str) -> None:
        marker = tmp_path / step.replace(" ", "-")
        spark.dataSource.register(sink_that_dies("queue", Death(step, str(marker))))
        # A worker's task is tried again; a commit that fails ends the query.
        outcome = contextlib.nullcontext() if step == "writing" else pytest.raises(PySparkException)
        with outcome:
            run_query(spark, embedded_url, name, name, tmp_path, FORMATS["queue"])
        assert marker.exists(), f"{step} was not reached"

    stream.write_many([("", b"%d" % n) for n in range(300)])
    die_at("writing")
    stream.write_many([("", b"%d" % n) for n in range(300, 600)])
    # Each goes on with the epoch in which the one before has died.
    for step, pushed in STEPS_OF_A_COMMIT.items():
        die_at(step)
        assert queue.stats().pushed == pushed, step
    stream.write_many([("", b"%d" % n) for n in range(600, 610)])
    run_query(spark, embedded_url, name, name, tmp_path, FORMATS["queue"])
    assert popped(queue) == list(range(610))


class Died(Exception):
    """A process that ended between two calls."""


def batches(numbers: range, tasks: int) -> list[pa.RecordBatch]:
    return [
        pa.record_batch({"value": [str(n) for n in numbers[task::tasks]]}) for task in range(tasks)
    ]


@pytest.mark.fault
def test_a_commit_may_end_between_any_two_calls_and_be_repeated_with_other_attempts(
    embedded_url: str, embedded: Headwater, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_intake, "PUSH_ROWS", 7)
    monkeypatch.setattr(writes, "query_of_task", lambda: "spark-query")
    writer, queue = QueryWriter(QueueWrite(QueueAddress(embedded_url, name))), embedded.queue(name)
    epoch = calls = 0
    finished = False
    while not finished:
        rows = range(epoch * 40, epoch * 40 + 40)
        ask, left = Store.ask, iter(range(calls))

        def dying(store: Store, request: Any, patience_s: float | None = None) -> Any:
            if next(left, None) is None:  # noqa: B023  this round's
                raise Died
            return ask(store, request, patience_s)  # noqa: B023  this round's

        first = [writer.write(iter([batch])) for batch in batches(rows, 3)]
        with mock.patch.object(Store, "ask", dying), contextlib.suppress(Died):
            writer.commit([*first], epoch)
            finished = True
        # The same rows, in other tasks and another order.
        again = [writer.write(iter([batch])) for batch in batches(rows[::-1], 2)]
        writer.commit([*again], epoch)
        epoch, calls = epoch + 1, calls + 1
        assert queue.stats().pushed == epoch * 40, f"after {calls - 1} calls"
    assert calls > 10
    assert sorted(popped(queue)) == list(range(epoch * 40))


@pytest.mark.fault
def test_what_a_commit_has_left_comes_with_the_next_one(
    embedded_url: str, embedded: Headwater, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_intake, "PUSH_ROWS", 7)
    write = QueueWrite(QueueAddress(embedded_url, name))
    writers = [BatchWriter(write, ("p", sequence)) for sequence in (1, 2)]
    first = [writers[0].write(iter(batches(range(40), 1)))]
    push_many, left = headwater.Queue.push_many, iter(range(3))

    def dying(queue: headwater.Queue, *values: Any, **options: Any) -> list[str]:
        if next(left, None) is None:
            raise Died
        return push_many(queue, *values, **options)

    with mock.patch.object(headwater.Queue, "push_many", dying), pytest.raises(Died):
        writers[0].commit([*first])
    assert embedded.queue(name).stats().pushed == 21
    writers[1].commit([writers[1].write(iter(batches(range(40, 50), 1)))])
    assert popped(embedded.queue(name)) == list(range(50))
    # An intake that was removed begins anew, and its rows are not taken for old ones.
    (intake,) = intakes(embedded, name)
    embedded.stream(intake).delete()
    writers[1].commit([writers[1].write(iter(batches(range(5), 1)))])
    assert popped(embedded.queue(name)) == list(range(5))


@pytest.mark.fault
def test_a_driver_that_is_not_as_dead_as_was_thought_pushes_nothing_twice(
    embedded_url: str, embedded: Headwater, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_intake, "PUSH_ROWS", 7)
    write = QueueWrite(QueueAddress(embedded_url, name))
    writers = [BatchWriter(write, ("p", sequence)) for sequence in (1, 2)]
    first, second = (
        [writer.write(iter(batches(rows, 1)))]
        for writer, rows in zip(writers, (range(40), range(40, 50)), strict=True)
    )
    push_many, calls = headwater.Queue.push_many, []

    def counted(queue: headwater.Queue, *values: Any, **options: Any) -> list[str]:
        calls.append(options["sequence"])
        if len(calls) == 6:
            raise Died
        if len(calls) == 7:
            # The next one is about to push what the first has left; so is the first.
            writers[0].commit([*first])
        return push_many(queue, *values, **options)

    monkeypatch.setattr(headwater.Queue, "push_many", counted)
    with pytest.raises(Died):
        writers[0].commit([*first])
    writers[1].commit([*second])
    assert len(calls) == 10
    assert popped(embedded.queue(name)) == list(range(50))


@pytest.mark.fault
def test_a_store_may_die_in_the_middle_of_a_commit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_intake, "PUSH_ROWS", 20)
    with Server(fsync="always") as server, headwater.connect(server.url) as hw:
        queue = hw.queue(name)
        queue.push("0")

        def kill_twice() -> None:
            for goal in (200, 2000):
                until(lambda: queue.stats().pushed > goal, 200)  # noqa: B023  this round's
                assert queue.stats().pushed < 4001, "the commit is at work"
                server.kill()
                server.restart()

        writer = BatchWriter(QueueWrite(QueueAddress(server.url, name)))
        with meanwhile(kill_twice):
            writer.commit([writer.write(iter([batch])) for batch in batches(range(1, 4001), 2)])
        assert sorted(popped(queue)) == list(range(4001))


def test_of_two_attempts_one_counts_and_a_failed_write_leaves_nothing(
    embedded_url: str, embedded: Headwater, name: str
) -> None:
    writer = BatchWriter(QueueWrite(QueueAddress(embedded_url, name)))
    attempts = [writer.write(iter(batches(range(10), 1))) for _ in range(2)]
    writer.commit([attempts[1]])
    assert popped(embedded.queue(name)) == list(range(10))
    writer = BatchWriter(QueueWrite(QueueAddress(embedded_url, name)))
    writer.abort([writer.write(iter(batches(range(10), 1))), None])
    assert embedded.queue(name).pop() == []
    assert intakes(embedded, name) == []
