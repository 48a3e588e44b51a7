"""A query that has read what a failover lost is told the exact range, and can go back."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from headwater import Headwater, LostFuture, OffsetOutOfRange
from tests.support.forwarder import ServerPair, rows
from tests.support.spark.engine import Engine
from tests.support.spark.harvest import Harvest

pytestmark = pytest.mark.fault

KEPT, LOST = 500, 100
READ = KEPT + LOST


class Failing:
    """A stream of which the second server has KEPT messages, the first one LOST more."""

    def __init__(self, servers: ServerPair, name: str) -> None:
        self.servers = servers
        self.name = name
        with Headwater(servers.old.url) as hw:
            hw.stream(name).write_many(rows("X", 1, KEPT))
            servers.copy()
            hw.stream(name).write_many(rows("X", KEPT + 1, LOST))

    def query(self, **options: object) -> Engine:
        return Engine(url=self.servers.url, stream=self.name, **options)

    def fail_over(self, written: int) -> None:
        """Lose the newest messages, and let others have that many of their offsets."""
        self.servers.fail_over()
        self.write(KEPT + 1, written)

    def write(self, first: int, count: int) -> None:
        with Headwater(self.servers.new.url) as hw:
            if count:
                assert hw.stream(self.name).write_many(rows("Y", first, count)).start == first


@pytest.fixture
def failing(name: str) -> Iterator[Failing]:
    with ServerPair() as servers:
        yield Failing(servers, name)


def told(call: Callable[[], Any]) -> tuple[int, int]:
    with pytest.raises(LostFuture) as caught:
        call()
    return caught.value.first, caught.value.last


def taken(query: Engine) -> list[tuple[str, bytes]]:
    return [(tag, value) for _, _, tag, value in query.rows]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("written", [0, 1, LOST, 3 * LOST])
def test_a_query_is_told_the_exact_range_again_and_again(
    failing: Failing, written: int, restarts: bool
) -> None:
    query = failing.query()
    assert query.run() == [READ]
    failing.fail_over(written)
    for _ in range(2):
        if restarts:
            query.restart()
        assert told(query.plan) == (KEPT + 1, READ)


@pytest.mark.parametrize("written", [0, 1, LOST, 3 * LOST])
def test_a_query_that_accepts_losses_goes_back_and_reads_what_is_there_now(
    failing: Failing, written: int, caplog: pytest.LogCaptureFixture
) -> None:
    query = failing.query(groupId="g")
    query.run()
    failing.fail_over(written)
    query.restart(failOnDataLoss=False, maxOffsetsPerTrigger=70)
    with caplog.at_level(logging.WARNING, "headwater.spark"):
        query.run()
    assert caplog.text.count(f"offsets {KEPT + 1} to {READ} of") == 1
    failing.write(KEPT + 1 + written, 10)
    query.restart(failOnDataLoss=True)
    query.run()
    assert taken(query) == rows("X", 1, READ) + rows("Y", KEPT + 1, written + 10)
    with Headwater(failing.servers.new.url) as hw:
        assert hw.stream(failing.name).info().readers == {"g": KEPT + written + 11}


@pytest.mark.parametrize("written", [0, LOST, 3 * LOST])
def test_a_micro_batch_that_was_planned_before_the_failover_is_not_read_in_another_history(
    failing: Failing, written: int
) -> None:
    query = failing.query(maxOffsetsPerTrigger=400)
    assert query.plan()
    query.finish()
    assert query.plan()
    failing.fail_over(written)
    query.restart()
    assert told(query.read) == (KEPT + 1, READ)
    query.restart(failOnDataLoss=False)
    query.run()
    assert taken(query) == rows("X", 1, KEPT) + rows("Y", KEPT + 1, written)


def test_a_query_that_had_not_come_so_far_is_told_nothing(failing: Failing) -> None:
    query = failing.query(maxOffsetsPerTrigger=KEPT)
    assert query.plan()
    query.finish()
    failing.fail_over(3 * LOST)
    query.restart()
    query.run()
    assert taken(query) == rows("X", 1, KEPT) + rows("Y", KEPT + 1, 3 * LOST)


def test_a_checkpoint_without_a_history_is_accepted_and_gets_one(failing: Failing) -> None:
    query = failing.query()
    query.run()
    places = json.loads(query.done or "")
    del places["0"]["history"]
    query.done = json.dumps(places)
    failing.fail_over(LOST // 2)
    query.restart()
    with pytest.raises(OffsetOutOfRange):
        query.plan()
    failing.write(KEPT + 1 + LOST // 2, LOST)
    assert query.run() == [LOST // 2]
    assert json.loads(query.done)["0"]["history"].endswith(f":{KEPT + 1}")


def test_a_position_that_does_not_move_is_no_new_micro_batch(failing: Failing) -> None:
    query = failing.query()
    query.run()
    for older in ({}, {"history": ""}, {"history": "", "of a later release": 1}):
        place = json.loads(query.done or "")["0"]
        known = {"next": place["next"], "created": place["created"]}
        query.restart()
        end = query.reader.latestOffset({"0": known | older}, query.reader.getDefaultReadLimit())
        older.pop("of a later release", None)
        assert end == {"0": known | older}


def test_spark_stops_a_query_that_restarts_in_a_lost_future_and_lets_it_go_back(
    spark: SparkSession, failing: Failing, tmp_path: Path
) -> None:
    harvest = Harvest(spark, tmp_path, failing.servers.url, stream=failing.name)
    harvest.run()
    failing.fail_over(2 * LOST)
    words = f"LostFuture.*has lost the messages {KEPT + 1} to {READ},"
    with pytest.raises(StreamingQueryException, match=words):
        harvest.run()
    harvest.run(failOnDataLoss=False)
    failing.write(KEPT + 2 * LOST + 1, 5)
    harvest.run()
    found = sorted((row.tag, row.offset) for row in harvest.rows())
    assert found == [("X", n) for n in range(1, READ + 1)] + [
        ("Y", n) for n in range(KEPT + 1, KEPT + 2 * LOST + 6)
    ]
