"""Each row is pushed into a queue once, whoever dies in between."""

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
from headwater import Headwater
from headwater.spark import queues
from headwater.spark import queues as queue_intake
from headwater.spark.queries.status import query_statuses
from headwater.spark.queues import QueueAddress, QueueStreamWriter, QueueWriter
from headwater.store.store import Store
from tests.support.meanwhile import meanwhile
from tests.support.servers import Server, until
from tests.support.spark.dying_queue import FORMAT, STEPS_OF_A_COMMIT, queue_sink_that_dies
from tests.support.spark.queues import intakes, popped


@pytest.fixture
def embedded(embedded_url: str) -> Iterator[Headwater]:
    with headwater.connect(embedded_url) as hw:
        yield hw


def run_query(
    spark: SparkSession, url: str, stream: str, queue: str, place: Path, form: str = FORMAT
) -> None:
    rows = spark.readStream.format("headwater").options(url=url, stream=stream).load()
    query = (
        rows.select("value")
        .writeStream.format(form)
        .options(url=url, queue=queue, checkpointLocation=str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240)


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
        spark.dataSource.register(queue_sink_that_dies(step, str(marker)))
        # A worker's task is tried again; a commit that fails ends the query.
        outcome = contextlib.nullcontext() if step == "writing" else pytest.raises(PySparkException)
        with outcome:
            run_query(spark, embedded_url, name, name, tmp_path)
        assert marker.exists(), f"{step} was not reached"

    stream.write_many([("", b"%d" % n) for n in range(300)])
    die_at("writing")
    stream.write_many([("", b"%d" % n) for n in range(300, 600)])
    # Each goes on with the epoch in which the one before has died.
    for step, pushed in STEPS_OF_A_COMMIT.items():
        die_at(step)
        assert queue.stats().pushed == pushed, step
    stream.write_many([("", b"%d" % n) for n in range(600, 610)])
    run_query(spark, embedded_url, name, name, tmp_path)
    assert popped(queue) == list(range(610))
    for intake in intakes(embedded, name):
        assert embedded.stream(intake).delete()


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
    monkeypatch.setattr(queues, "query_of_task", lambda: "spark-query")
    writer, queue = QueueStreamWriter(QueueAddress(embedded_url, name)), embedded.queue(name)
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
    for intake in intakes(embedded, name):
        embedded.stream(intake).delete()


@pytest.mark.fault
def test_what_a_commit_has_left_comes_with_the_next_one(
    embedded_url: str, embedded: Headwater, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_intake, "PUSH_ROWS", 7)
    writers = [
        QueueWriter(QueueAddress(embedded_url, name), ("p", sequence)) for sequence in (1, 2)
    ]
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
    embedded.stream(intake).delete()


@pytest.mark.fault
def test_a_driver_that_is_not_as_dead_as_was_thought_pushes_nothing_twice(
    embedded_url: str, embedded: Headwater, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_intake, "PUSH_ROWS", 7)
    writers = [
        QueueWriter(QueueAddress(embedded_url, name), ("p", sequence)) for sequence in (1, 2)
    ]
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
    for intake in intakes(embedded, name):
        embedded.stream(intake).delete()


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

        writer = QueueWriter(QueueAddress(server.url, name), None)
        with meanwhile(kill_twice):
            writer.commit([writer.write(iter([batch])) for batch in batches(range(1, 4001), 2)])
        assert sorted(popped(queue)) == list(range(4001))


def test_of_two_attempts_one_counts_and_a_failed_write_leaves_nothing(
    embedded_url: str, embedded: Headwater, name: str
) -> None:
    writer = QueueWriter(QueueAddress(embedded_url, name), None)
    attempts = [writer.write(iter(batches(range(10), 1))) for _ in range(2)]
    writer.commit([attempts[1]])
    assert popped(embedded.queue(name)) == list(range(10))
    writer = QueueWriter(QueueAddress(embedded_url, name), None)
    writer.abort([writer.write(iter(batches(range(10), 1))), None])
    assert embedded.queue(name).pop() == []
    assert intakes(embedded, name) == []
