"""Reconcile finds every drift and nothing else, and its reset records bring consumers right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

import headwater
from examples.rocket_rides.sums import CANON, KEEPING
from headwater.errors import HeadwaterError, InvalidInput, UnknownStream
from headwater.spark import archive
from headwater.spark.jobs.reconcile import AccountVerdict, Reconciled, reconcile
from tests.support.spark.rides import Rides, ride, sums

Compare: TypeAlias = Callable[..., Reconciled]

TABLES = {"canon": CANON, "keeping": KEEPING}

# Where it does not matter which database there is.
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def rides(embedded_url: str, engine: sa.Engine, name: str) -> Iterator[Rides]:
    with headwater.connect(embedded_url) as hw:
        yield Rides(hw, engine, name)


@pytest.fixture
def compare(spark: SparkSession, embedded_url: str, database_url: str, rides: Rides) -> Compare:
    def compare(**options: Any) -> Reconciled:
        given: dict[str, Any] = {"db": database_url, "url": embedded_url, **TABLES}
        return reconcile(spark, rides.stream.name, **given | options)

    return compare


def drift_of(verdict: AccountVerdict) -> dict[str | None, tuple[int, int]]:
    """Return by how much too much an account has of each key."""
    return {
        each.name: (each.has.records - each.right.records, each.has.total - each.right.total)
        for each in verdict.drift
    }


def test_consumers_at_different_positions_are_each_held_to_their_own(
    rides: Rides, compare: Compare
) -> None:
    rides.make(range(1, 101))
    rides.send()
    rides.consume("behind", batches=2, batch=17)
    rides.consume("there")
    rides.make(range(101, 151))
    found = compare()
    assert [(each.name, each.next, each.drift, each.unjudged) for each in found.verdicts] == [
        ("behind", {rides.stream.name: 35}, (), None),
        ("there", {rides.stream.name: 101}, (), None),
    ]
    # What is staged is on its way, and not lost.
    assert (found.rows, found.records, found.lost, found.settled) == (150, 100, 0, True)
    assert (found.phantoms, found.doubles, found.unreadable, found.complete) == (0, 0, 0, True)


@on_sqlite
def test_a_millimetre_too_much_is_found_where_it_is_and_taken_away(
    rides: Rides, compare: Compare
) -> None:
    rides.make(range(1, 61))
    rides.send()
    for consumer in ("right", "wrong"):
        rides.consume(consumer)
    rides.spoil("wrong", "Yuri", 1)
    found = compare()
    assert {each.name: drift_of(each) for each in found.drifted} == {"wrong": {"Yuri": (0, 1)}}
    assert not found.settled

    mended = compare(fix=True)
    assert (mended.settled, [each.reset for each in mended.drifted]) == (True, [61])
    rides.make(range(61, 71))
    rides.send()
    for consumer in ("right", "wrong"):
        rides.consume(consumer)
        assert rides.kept(consumer) == sums(range(1, 71))
    assert compare().drifted == ()


@on_sqlite
@pytest.mark.long
def test_rows_without_a_record_are_named_and_brought_in(rides: Rides, compare: Compare) -> None:
    rides.make(range(1, 31))
    rides.make([31, 32], told=False)
    rides.make(range(33, 41))
    rides.send()
    rides.consume("c")
    found = compare(fix=True)
    assert (found.lost, found.lost_keys) == (2, ["31", "32"])
    expected = {ride(number).pilot: (-1, -ride(number).distance_mm) for number in (31, 32)} | {
        None: (-2, -sum(ride(number).distance_mm for number in (31, 32)))
    }
    assert drift_of(found.verdicts[0]) == expected
    rides.consume("c")
    assert rides.kept("c") == sums(range(1, 41))
    again = compare()
    assert (again.lost, again.drifted) == (2, ())


@on_sqlite
@pytest.mark.long
def test_records_without_a_row_and_records_that_stand_twice_are_named(
    rides: Rides, compare: Compare
) -> None:
    rides.make(range(1, 11))
    rides.make([11], row=False)
    rides.make([5], row=False)
    rides.send()
    rides.stream.write("noise", b"\xff not a ride")
    rides.stream.write("noise", b'{"distance_mm": 5}')
    rides.consume("c", batches=1, batch=12)
    found = compare()
    assert (found.phantoms, found.phantom_records) == (1, [("11", 11)])
    assert (found.doubles, found.double_records) == (1, [("5", 5, 12)])
    assert (found.unreadable, found.records) == (2, 14)
    extra = [ride(5), ride(11)]
    assert drift_of(found.verdicts[0]) == {None: (2, sum(each.distance_mm for each in extra))} | {
        each.pilot: (
            sum(1 for other in extra if other.pilot == each.pilot),
            sum(other.distance_mm for other in extra if other.pilot == each.pilot),
        )
        for each in extra
    }


@on_sqlite
@pytest.mark.long
def test_what_the_log_has_no_longer_is_said_and_the_rest_judged(
    rides: Rides, compare: Compare
) -> None:
    rides.make(range(1, 41))
    rides.send()
    rides.consume("there")
    rides.consume("behind", batches=1, batch=10)
    rides.consumer("behind").remove()
    rides.stream.evict(25)
    rides.consumer("behind", start=1).seek(11)
    found = compare()
    verdicts = {each.name: each for each in found.verdicts}
    assert (found.first, found.complete) == ({rides.stream.name: 26}, False)
    assert verdicts["there"].drift == ()
    assert "offset 11" in str(verdicts["behind"].unjudged)
    # A row whose record is gone cannot be told from one that nobody was told of.
    assert (found.records, found.lost) == (15, 25)


@on_sqlite
def test_an_archive_is_read_for_what_the_log_has_no_longer(
    spark: SparkSession, rides: Rides, compare: Compare, embedded_url: str, tmp_path: Path
) -> None:
    rides.make(range(1, 31))
    rides.make([31], told=False)
    rides.send()
    rides.consume("c")
    archive(spark, rides.stream.name, to=tmp_path / "archive", url=embedded_url, evict=True)
    assert rides.stream.info().first > 1
    found = compare(archive=str(tmp_path / "archive"))
    assert (found.complete, found.records, found.lost_keys) == (True, 30, ["31"])
    assert [each.name for each in found.verdicts[0].drift] == [ride(31).pilot, None]


@on_sqlite
@pytest.mark.long
def test_consumers_of_a_topic_are_held_to_their_positions_in_every_partition(
    spark: SparkSession, rides: Rides, embedded_url: str, database_url: str, name: str
) -> None:
    topic = rides.hw.topic(f"{name}-topic", 2)
    rides.make(range(1, 41), told=False)
    topic.write_many((f"ride-{n}", msgspec.json.encode(ride(n))) for n in range(1, 41))
    streams = [rides.hw.stream(f"{topic.name}/{part}") for part in range(2)]
    consumer = rides.consumer("c", streams=streams, batch=7)
    consumer.run_once()

    def compare(**options: Any) -> Reconciled:
        given: dict[str, Any] = {"db": database_url, "url": embedded_url, **TABLES}
        return reconcile(spark, topic=topic.name, **given | options)

    (verdict,) = compare().verdicts
    assert verdict.next == {each.name: 8 for each in streams}
    assert verdict.drift == ()
    rides.spoil("c", "Yuri", 5)
    assert [drift_of(each) for each in compare().drifted] == [{"Yuri": (0, 5)}]
    with pytest.raises(InvalidInput, match="topic"):
        compare(fix=True)


@on_sqlite
@pytest.mark.long
def test_whoever_stands_beyond_the_end_is_not_judged(rides: Rides, compare: Compare) -> None:
    rides.make(range(1, 11))
    rides.send()
    rides.consume("c")
    rides.stream.delete()
    rides.stream.write("ride-1", b'{"id": 1}')
    (verdict,) = compare().verdicts
    assert "which ends at 1" in str(verdict.unjudged)
    assert verdict.drift == ()


@on_sqlite
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"canon": replace(CANON, table="nowhere")}, "nowhere"),
        ({"canon": replace(CANON, key="nothing")}, "nothing"),
        ({"canon": replace(CANON, value="pilot")}, "whole numbers"),
        ({"keeping": replace(KEEPING, table="nowhere")}, "nowhere"),
        ({"keeping": replace(KEEPING, total="nothing")}, "nothing"),
        ({"consumers": ["nobody"]}, "nobody"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(
    rides: Rides, compare: Compare, options: Any, says: str
) -> None:
    rides.make([1])
    rides.send()
    rides.consume("c")
    with pytest.raises(HeadwaterError) as refused:
        compare(**options)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@on_sqlite
def test_a_stream_that_was_never_written_is_refused(
    spark: SparkSession, embedded_url: str, database_url: str, name: str
) -> None:
    with pytest.raises(UnknownStream):
        reconcile(spark, name, db=database_url, url=embedded_url, canon=CANON, keeping=KEEPING)
