"""A consumer whose position lies in what a failover lost is told which messages, also when new."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import pytest
import sqlalchemy as sa

from headwater import Headwater, LostFuture
from headwater.errors import PositionLost
from tests.support.blocking import Loop
from tests.support.consumers import Desk, Running, drain, numbers
from tests.support.entries import entries
from tests.support.forwarder import Forwarder
from tests.support.servers import Server, until
from tests.support.watch import blocked

pytestmark = pytest.mark.fault

KEPT, APPLIED = 500, 510


class Failover(NamedTuple):
    """A desk behind a door that can be switched to a server that lost the end of the stream."""

    desk: Desk
    door: Forwarder
    new: Headwater
    port: int
    name: str

    def happen(self) -> None:
        self.door.switch(self.port)
        self.door.cut()


@pytest.fixture(params=["sync", "async"])
def manner(request: pytest.FixtureRequest) -> tuple[str, Loop | None]:
    manner = request.param
    return manner, request.getfixturevalue("loop") if manner == "async" else None


@pytest.fixture
def failover(manner: tuple[str, Loop | None], database_url: str) -> Iterator[Failover]:
    """A consumer has applied up to 510 on the old server; the new one has 1 to 500."""
    way, loop = manner
    with Server(tcp=True) as old, Server(tcp=True) as new, Forwarder(old.port) as door:
        url = f"redis://127.0.0.1:{door.port}"
        with contextlib.closing(Desk(way, url, database_url, loop)) as desk:
            name = secrets.token_hex(4)
            stream = desk.hw.stream(name)
            stream.write_many(entries(KEPT))
            with new.client() as raw:
                raw.replicaof("127.0.0.1", str(old.port))
                until(lambda: raw.hget(f"hw:s:{{{name}}}", "last") == b"%d" % KEPT)
                raw.replicaof("NO", "ONE")
            stream.write_many(entries(APPLIED - KEPT, KEPT + 1))
            with Headwater(new.url) as hw:
                yield Failover(desk, door, hw, new.port, name)


@pytest.mark.parametrize(
    "others", [0, 10, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 20))]
)
def test_a_new_consumer_is_told_what_is_lost_of_what_was_applied(
    failover: Failover, others: int
) -> None:
    desk, name = failover.desk, failover.name
    assert drain(desk.consumer("c", name)) == APPLIED
    failover.happen()
    if others:
        failover.new.stream(name).write_many(entries(others, KEPT + 1))
    consumer = desk.consumer("c", name)
    for act in (consumer.run_once, consumer.run, desk.consumer("c", name).run_once):
        with pytest.raises(LostFuture) as caught:
            act()
        found = caught.value
        assert (found.stream, found.first, found.last) == (name, KEPT + 1, APPLIED)
    assert consumer.positions() == {name: APPLIED + 1}
    assert desk.effects("c") == numbers(1, APPLIED)
    assert consumer.seek(KEPT + 1) == KEPT + 1
    assert drain(desk.consumer("c", name)) == others
    assert drain(consumer) == 0
    assert desk.effects("c") == numbers(1, APPLIED) + numbers(KEPT + 1, KEPT + others)


def test_a_seek_forward_accepts_what_is_lost(failover: Failover) -> None:
    desk, name = failover.desk, failover.name
    consumer = desk.consumer("c", name)
    drain(consumer)
    failover.happen()
    failover.new.stream(name).write_many(entries(20, KEPT + 1))
    with pytest.raises(LostFuture):
        consumer.run_once()
    assert consumer.seek("last") == 521
    failover.new.stream(name).write_many(entries(1, 521))
    assert drain(consumer) == 1
    assert desk.effects("c")[-1] == 521


def test_only_what_was_applied_can_be_lost(failover: Failover) -> None:
    desk, name = failover.desk, failover.name
    assert desk.consumer("c", name, batch=KEPT).run_once() == KEPT
    failing = desk.consumer("c", name, lambda *_: 1 / 0, attempts=3, backoff_ms=0)
    with pytest.raises(Exception, match="division"):
        failing.run_once()
    failover.happen()
    failover.new.stream(name).write_many(entries(20, KEPT + 1))
    with pytest.raises(Exception, match="division"):
        failing.run_once()
    assert drain(desk.consumer("c", name)) == 20
    assert desk.effects("c") == numbers(1, 520)


def test_a_consumer_that_only_waits_is_told_as_well(failover: Failover) -> None:
    desk, name = failover.desk, failover.name
    assert desk.consumer("c", name, start="last").run_once() == 0
    failover.happen()
    failover.new.stream(name).write_many(entries(20, KEPT + 1))
    with pytest.raises(LostFuture) as caught:
        desk.consumer("c", name).run_once()
    assert (caught.value.first, caught.value.last) == (KEPT + 1, APPLIED)


def test_a_position_without_a_history_continues(failover: Failover) -> None:
    desk, name = failover.desk, failover.name
    drain(desk.consumer("c", name))
    with desk.engine.begin() as conn:
        conn.exec_driver_sql("UPDATE headwater_checkpoints SET history = NULL")
    failover.happen()
    with pytest.raises(PositionLost):
        desk.consumer("c", name).run_once()
    failover.new.stream(name).write_many(entries(20, KEPT + 1))
    assert drain(desk.consumer("c", name)) == 10


def test_restarts_that_lose_nothing_are_no_loss(
    manner: tuple[str, Loop | None], database_url: str
) -> None:
    way, loop = manner
    with (
        Server(tcp=True, fsync="always") as server,
        contextlib.closing(Desk(way, server.url, database_url, loop)) as desk,
    ):
        stream = desk.hw.stream("s")

        def applied(count: int) -> bool:
            return len(desk.effects("c")) == count

        for n in range(3):
            stream.write_many(entries(5, 10 * n + 1))
            assert drain(desk.consumer("c", "s")) == 5
            with desk.engine.connect() as conn:
                kept = conn.execute(sa.text("SELECT history FROM headwater_checkpoints")).scalars()
                assert [len(text.split()) for text in kept] == [1 + n]
            consumer = desk.consumer("c", "s")
            run = Running(consumer.run)
            until(lambda: blocked(desk.hw))
            server.kill()
            server.start()
            until(lambda: blocked(desk.hw))
            stream.write_many(entries(5, 10 * n + 6))
            until(partial(applied, 10 * n + 10))
            consumer.stop()
            run.result()
        assert desk.effects("c") == numbers(1, 30)


def test_a_gap_behind_a_restart_is_no_loss(
    manner: tuple[str, Loop | None], database_url: str
) -> None:
    way, loop = manner
    with (
        Server(tcp=True, fsync="always") as server,
        contextlib.closing(Desk(way, server.url, database_url, loop)) as desk,
    ):
        stream = desk.hw.stream("s")
        stream.write_many(entries(5))
        drain(desk.consumer("c", "s"))
        server.kill()
        server.start()
        stream.write_many(entries(5, 6))
        stream.evict(7)
        assert drain(desk.consumer("c", "s", on_gap="skip")) == 3
        assert desk.consumer("c", "s").run_once() == 0
