"""The totals job counts every record once, whatever dies, and says what it cannot read."""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

import headwater
from examples.rocket_rides.sums import SHAPE
from headwater.errors import (
    DatabaseRefused,
    DatabaseUnreachable,
    DataLost,
    HeadwaterError,
    InvalidInput,
    JobNameTaken,
    JobOvertaken,
    StoreUnreachable,
    StreamReplaced,
)
from headwater.kernel.stopping import StopSignal
from headwater.outbox import write_reset
from headwater.spark.jobs.folding import Shape
from headwater.spark.jobs.ledger import Ledger, TotalsExtent, TotalsState, totals_table
from headwater.spark.jobs.totals import Totaled, totals
from headwater.spark.queries.status import query_statuses
from headwater.store import faults
from tests.support.postgres import Postgres
from tests.support.servers import Server, free_ports, until
from tests.support.spark.rides import PILOTS, ride, sums

Add: TypeAlias = Callable[..., Totaled]

# Where it does not matter which database there is.
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def add(spark: SparkSession, embedded_url: str, database_url: str, name: str) -> Add:
    """Add up what is there."""

    def add(**options: Any) -> Totaled:
        named: dict[str, Any] = {} if "topic" in options else {"stream": name}
        given: dict[str, Any] = {"available_now": True, "db": database_url, "url": embedded_url}
        given["shape"] = SHAPE
        return totals(spark, **named | given | options)

    return add


def write(stream: headwater.Stream | headwater.Topic, numbers: range) -> None:
    stream.write_many((f"ride-{n}", json.dumps(_record(n)).encode()) for n in numbers)


def _record(number: int) -> dict[str, Any]:
    one = ride(number)
    return {"id": one.id, "pilot": one.pilot, "distance_mm": one.distance_mm}


def told(engine: sa.Engine, per: str, job: str = "totals") -> dict[str, tuple[int, int]]:
    """Return the sums of a job."""
    there = totals_table.c
    with engine.connect() as conn:
        rows = conn.execute(
            sa.select(there.name, there.records, there.total).where(
                there.job == job, there.per == per
            )
        )
        return {row.name: (row.records, row.total) for row in rows}


@dataclass(frozen=True)
class Job:
    """A job over a stream of the embedded store, with its sums in a database."""

    hw: headwater.Headwater
    engine: sa.Engine
    name: str
    add: Add

    @property
    def stream(self) -> headwater.Stream:
        return self.hw.stream(self.name)

    def told(self, per: str, job: str = "totals") -> dict[str, tuple[int, int]]:
        return told(self.engine, per, job)


@pytest.fixture
def job(embedded: headwater.Headwater, engine: sa.Engine, name: str, add: Add) -> Job:
    return Job(embedded, engine, name, add)


def by_pilot(numbers: Sequence[int]) -> dict[str, tuple[int, int]]:
    return {pilot: each for pilot, each in sums(numbers).items() if pilot != "all"}


def test_sums_are_kept_per_ride_pilot_window_and_of_all_and_go_on_where_they_were(job: Job) -> None:
    write(job.stream, range(1, 701))
    first = job.add(batch=300)
    assert (first.added, first.records, first.next) == (700, 700, {job.name: 701})
    write(job.stream, range(701, 901))
    second = job.add()
    assert (second.added, second.records, second.unreadable) == (200, 900, 0)
    assert job.told("all") == {"": sums(range(1, 901))["all"]}
    assert job.told("pilot") == by_pilot(range(1, 901))
    assert job.told("ride") == {str(n): (1, ride(n).distance_mm) for n in range(1, 901)}
    minutes = {
        f"{_utc(message.time_ms)}:00Z" for message in job.stream.read(1, 900) if message is not None
    }
    windows = job.told("window")
    assert set(windows) == minutes
    assert sum(records for records, _ in windows.values()) == 900
    assert job.stream.info().readers == {"totals:totals": 901}, "retention waits for the job"

    def queries() -> list[tuple[str, str, int]]:
        found = job.hw.store.run(query_statuses())
        return [
            (one.name, one.state, one.lag)
            for one in found
            if job.name in {read.stream for read in one.reads}
        ]

    until(lambda: queries() == [("totals totals", "ended", 0)])


def _utc(time_ms: int) -> str:
    return dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC).strftime("%Y-%m-%dT%H:%M")


@on_sqlite
def test_what_is_no_such_record_is_counted_and_resets_are_passed_over(job: Job) -> None:
    write(job.stream, range(1, 4))
    bad = [
        b"",
        b"nonsense",
        b"\xff\xfe",
        b"[1]",
        b'{"id": 1, "pilot": "Ada"}',
        b'{"id": 1, "pilot": "Ada", "distance_mm": 1.5}',
        b'{"id": 1, "pilot": "Ada", "distance_mm": "15"}',
        b'{"id": 1, "pilot": null, "distance_mm": 1}',
        b'{"id": 1, "pilot": "Ada", "distance_mm": 9223372036854775808}',
    ]
    job.stream.write_many(("bad", value) for value in bad)
    write_reset(job.stream, "somebody", 3, {"id": 1, "pilot": "Ada", "distance_mm": 5})
    write(job.stream, range(4, 6))
    found = job.add()
    assert (found.unreadable, found.first_unreadable) == (len(bad), {job.name: 4})
    assert found.records == found.added == job.told("all")[""][0] == 5
    assert job.told("pilot") == by_pilot(range(1, 6))


@on_sqlite
def test_other_fields_are_added_up_by_their_names(job: Job) -> None:
    job.stream.write_many(
        ("t", json.dumps({"shop": n % 2, "cents": -n}).encode()) for n in range(10)
    )
    job.add(shape=Shape("cents", {"branch": "shop"}, 0), job="money")
    assert job.told("branch", "money") == {"0": (5, -20), "1": (5, -25)}
    assert job.told("window", "money") == {}
    wrongs: list[dict[str, Any]] = [{"value": ""}, {"per": {"all": "id"}}, {"window_ms": 1500}]
    for wrong in wrongs:
        with pytest.raises(InvalidInput):
            Shape(**{"value": "cents"} | wrong)


@on_sqlite
def test_a_topic_is_added_up_over_all_its_partitions(job: Job) -> None:
    topic = job.hw.topic(job.name, 3)
    for numbers in (range(1, 301), range(301, 401)):
        write(topic, numbers)
        found = job.add(topic=job.name)
    assert job.told("pilot") == by_pilot(range(1, 401))
    assert sum(found.next.values()) == 400 + 3
    assert set(found.next) == {f"{job.name}/{part}" for part in range(3)}


@on_sqlite
def test_a_batch_that_ends_at_any_step_counts_once(job: Job) -> None:
    write(job.stream, range(1, 401))
    for step in ("begun", "folded", "added"):

        def die(at: str, step: str = step) -> None:
            if at == step:
                raise InvalidInput("it ends here")

        with pytest.raises(InvalidInput, match="it ends here"):
            job.add(batch=100, steps=die)
    assert job.add().records == 400
    assert job.told("pilot") == by_pilot(range(1, 401))


@on_sqlite
def test_two_processes_of_one_name_do_not_both_count(job: Job) -> None:
    write(job.stream, range(1, 301))
    others: list[Totaled] = []

    def let_another_pass(step: str) -> None:
        if step == "folded" and not others:
            others.append(job.add())

    with pytest.raises(JobOvertaken):
        job.add(batch=100, steps=let_another_pass)
    assert others[0].added == 300
    assert job.told("pilot") == by_pilot(range(1, 301))


@on_sqlite
def test_it_runs_until_it_is_stopped_and_takes_up_what_comes(job: Job) -> None:
    stop = StopSignal()
    done: list[Totaled] = []
    worker = threading.Thread(
        target=lambda: done.append(job.add(available_now=False, every_ms=50, stop=stop))
    )
    worker.start()
    try:
        # The stream comes into being after the job.
        for numbers in (range(1, 51), range(51, 101)):
            write(job.stream, numbers)
            whole = {"": sums(range(1, numbers.stop))["all"]}
            until(lambda: sa.inspect(job.engine).has_table(totals_table.name), 200)
            until(lambda whole=whole: job.told("all") == whole, 200)  # type: ignore[misc]
    finally:
        stop.set()
        worker.join()
    assert done[0].added == 100


@on_sqlite
def test_evicted_messages_are_an_error_unless_they_may_be_skipped(job: Job) -> None:
    write(job.stream, range(1, 11))
    job.add()
    write(job.stream, range(11, 41))
    job.stream.forget_reader("totals:totals")
    job.stream.evict(20)
    with pytest.raises(DataLost, match="11 to 20"):
        job.add()
    assert job.add(on_gap="skip").next == {job.name: 41}
    expected = [*range(1, 11), *range(21, 41)]
    assert job.told("pilot") == by_pilot(expected)


@on_sqlite
def test_a_stream_made_anew_is_not_mistaken_and_a_job_can_begin_anew(job: Job) -> None:
    write(job.stream, range(1, 11))
    job.add()
    job.stream.delete()
    write(job.stream, range(11, 31))
    with pytest.raises(StreamReplaced):
        job.add()
    assert job.add(anew=True).records == 20
    assert job.told("pilot") == by_pilot(range(11, 31))


@on_sqlite
def test_a_job_of_another_stream_is_named_and_left_alone(job: Job) -> None:
    write(job.stream, range(1, 4))
    job.add()
    other = f"{job.name}-2"
    write(job.hw.stream(other), range(4, 6))
    with pytest.raises(JobNameTaken, match=f"job 'totals' of this database adds up {job.name};"):
        job.add(stream=other)
    assert job.told("pilot") == by_pilot(range(1, 4))


def test_a_sum_that_does_not_fit_is_refused_and_nothing_of_it_is_added(job: Job) -> None:
    most = json.dumps({"id": 1, "pilot": PILOTS[0], "distance_mm": 2**63 - 1}).encode()
    job.stream.write("ride-1", most)
    job.add()
    job.stream.write("ride-2", most)
    with pytest.raises(HeadwaterError):
        job.add()
    assert job.told("all") == {"": (1, 2**63 - 1)}


def test_a_ledger_moves_only_from_where_it_was(job: Job) -> None:
    ledger = Ledger(job.engine, "job")
    ledger.create()
    ledger.create()
    begin = ledger.begin(TotalsExtent({"s": 1}, {}))
    assert ledger.begin(TotalsExtent({"s": 7}, {})) == begin
    row = {"per": "all", "name": "", "records": 1, "total": 5}
    after = ledger.add(begin, TotalsExtent({"s": 2}, {}), [row])
    for stale in (begin, TotalsState(1, TotalsExtent({"s": 9}, {}))):
        with pytest.raises(JobOvertaken):
            ledger.add(stale, TotalsExtent({"s": 3}, {}), [row])
    assert (ledger.load(), job.told("all", "job")) == (after, {"": (1, 5)})
    ledger.remove()
    assert (ledger.load(), job.told("all", "job")) == (None, {})


@on_sqlite
def test_a_dry_run_counts_what_waits_and_changes_nothing(job: Job, tmp_path: Path) -> None:
    write(job.stream, range(30))
    fresh = tmp_path / "fresh.db"
    planned = job.add(dry_run=True, db=f"sqlite:///{fresh}")
    assert (planned.added, planned.records, planned.next) == (30, 30, {job.name: 1})
    assert not fresh.exists()
    assert job.stream.info().readers == {}
    job.add()
    write(job.stream, range(30, 37))
    before = job.told("all")
    planned = job.add(dry_run=True)
    assert (planned.added, planned.records, planned.next) == (7, 37, {job.name: 31})
    assert planned.headline().startswith("dry run: would add up 7 records, 37 in all")
    assert job.told("all") == before
    assert job.add(dry_run=True, anew=True).added == 37
    with pytest.raises(JobNameTaken):
        job.add(dry_run=True, stream="another")


# A totals job that cannot have what it needs ends with one clear error, before it needs Spark.


NO_SPARK: Any = None


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls wait for a store for a moment only."""
    monkeypatch.setattr(faults, "PATIENCE_S", 0.5)


def add_up(url: str, db: str, *, available_now: bool = True) -> None:
    begun = time.monotonic()
    try:
        totals(NO_SPARK, "rides", url=url, db=db, shape=SHAPE, available_now=available_now)
    finally:
        assert time.monotonic() - begun < 20


@pytest.mark.usefixtures("brief")
def test_a_store_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreUnreachable):
        add_up(f"redis://127.0.0.1:{free_ports(1)[0]}", f"sqlite:///{tmp_path / 'app.db'}")


@pytest.mark.parametrize("available_now", [True, False])
def test_a_database_that_does_not_exist_is_an_error(
    available_now: bool, embedded_url: str, postgres: Postgres
) -> None:
    with pytest.raises(DatabaseRefused, match="does not exist"):
        add_up(
            embedded_url,
            f"postgresql://postgres@/nope?host={postgres.directory}",
            available_now=available_now,
        )


@pytest.mark.parametrize("place", ["127.0.0.1:1/app", "/app?host=/nowhere"])
def test_a_database_that_is_not_there_is_an_error(place: str, embedded_url: str) -> None:
    with pytest.raises(DatabaseUnreachable):
        add_up(embedded_url, f"postgresql://u:hush-hush@{place}")


def test_a_folder_that_is_not_there_is_an_error_whatever_is_asked_for(
    embedded_url: str, tmp_path: Path
) -> None:
    for available_now in (True, False):
        with pytest.raises(DatabaseUnreachable, match="no folder"):
            add_up(
                embedded_url,
                f"sqlite:///{tmp_path / 'none' / 'app.db'}",
                available_now=available_now,
            )


def test_an_outage_of_a_run_that_ends_by_itself_is_waited_out_for_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "PATIENCE_S", 0.2)
    monkeypatch.setattr("headwater.spark.jobs.totals.PATIENCE_S", 1.0)
    with Server(tcp=True) as server:
        with headwater.connect(server.url) as hw:
            hw.stream("rides").write("t", b"{}")

        class Dying:
            """Stands where a session stands, and takes the store away with its first use."""

            @property
            def readStream(self) -> Any:  # noqa: N802  as Spark calls it
                server.kill()
                raise StoreUnreachable(server.url, "it died")

        spark: Any = Dying()
        begun = time.monotonic()
        with pytest.raises(StoreUnreachable):
            totals(
                spark,
                "rides",
                url=server.url,
                db=f"sqlite:///{tmp_path / 'app.db'}",
                shape=SHAPE,
                available_now=True,
            )
        assert 1.0 <= time.monotonic() - begun < 20
