"""Every message has its effect once, while consumers, database and store are killed."""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import signal
import sqlite3
import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from headwater import Headwater, LostFuture, Message
from headwater.outbox import write_reset
from headwater.sql.engines import open_engine
from tests.support.blocking import Loop
from tests.support.consumer_letters import noted
from tests.support.consumers import (
    ConsumerProcesses,
    Desk,
    applied,
    drain,
    effects,
    numbers,
    running,
    writes,
)
from tests.support.entries import entries, pairs
from tests.support.forwarder import Forwarder
from tests.support.postgres import Postgres
from tests.support.servers import Server, until
from tests.support.stores import Stores
from tests.support.streamers import logged

pytestmark = pytest.mark.fault

STEPS = ["read", "begun", "moved", "in the handler", "handled", "committed", "reported"]


@pytest.fixture
def store_url(stores: Stores) -> str:
    return stores.url("plain")


# ── Consumers ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.long)])
def test_a_consumer_may_die_at_any_step(
    consumers: ConsumerProcesses,
    manner: str,
    engine: sa.Engine,
    hw: Headwater,
    name: str,
    step: str,
    times: int,
) -> None:
    stream = hw.stream(name)
    stream.write_many(entries(60))
    # A position is reported once a second at most, and here there is only one.
    times = 1 if step == "reported" else times
    dying = consumers.start(manner=manner, batch=10, step=step, times=times)
    assert consumers.wait(dying) == -signal.SIGKILL
    assert effects(engine, "c") == numbers(1, len(effects(engine, "c")))
    stream.write_many(entries(5, 61))
    going_on = consumers.start(manner=manner, batch=10)
    until(applied(engine, 65))
    assert consumers.end(going_on) == 0
    assert effects(engine, "c") == numbers(1, 65)
    assert stream.info().readers == {"consumer:c": 66}


@pytest.mark.parametrize("step", ["moved", "restored", "in the handler", "handled", "committed"])
def test_a_reset_is_applied_once_wherever_its_consumer_dies(
    consumers: ConsumerProcesses,
    manner: str,
    engine: sa.Engine,
    hw: Headwater,
    name: str,
    step: str,
) -> None:
    stream = hw.stream(name)
    stream.write_many(entries(20))
    before = consumers.start(manner=manner)
    until(applied(engine, 20))
    assert consumers.end(before) == 0
    write_reset(stream, "c", 15, None)
    stream.write_many(entries(4, 22))
    assert consumers.run(manner=manner, step=step) == -signal.SIGKILL
    going_on = consumers.start(manner=manner)
    until(lambda: effects(engine, "c")[-1:] == [25])
    assert consumers.end(going_on) == 0
    # The state was set to "nothing", valid at 15; what came since was applied to it.
    assert effects(engine, "c") == [*numbers(16, 20), *numbers(22, 25)]


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_two_processes_of_one_name_may_die_at_any_moment(
    consumers: ConsumerProcesses, engine: sa.Engine, hw: Headwater, name: str, seed: int
) -> None:
    """Retention goes as far as it may meanwhile: a gap would end them with an error."""
    dice = random.Random(seed)
    stream = hw.stream(name)
    manners = ["sync", "async"]
    pids = [consumers.start(manner=manner, batch=dice.choice([3, 20, 100])) for manner in manners]
    until(lambda: stream.info().readers)
    last = 0
    for _ in range(12):
        for _ in range(dice.randint(1, 10)):
            size = dice.choice([1, 5, 40])
            stream.write_many(entries(size, last + 1))
            last += size
        stream.retain(max_count=dice.choice([0, 10]))
        dying = dice.randrange(2)
        assert consumers.end(pids[dying], signal.SIGKILL) == -signal.SIGKILL
        pids[dying] = consumers.start(manner=manners[dying], batch=dice.choice([3, 20, 100]))
    until(applied(engine, last))
    assert [consumers.end(pid) for pid in pids] == [0, 0]
    assert effects(engine, "c") == numbers(1, last)
    assert stream.retain(max_count=0).held == 0


# ── Database and store ───────────────────────────────────────────────────────────────────────


def desk_of(manner: str, store_url: str, database_url: str, loop: Loop) -> contextlib.closing[Desk]:
    used = loop if manner == "async" else None
    return contextlib.closing(Desk(manner, store_url, database_url, used))


def test_the_store_may_be_killed_and_come_back(
    manner: str, database_url: str, name: str, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        Server(fsync="always") as server,
        desk_of(manner, server.url, database_url, loop) as desk,
        caplog.at_level(logging.INFO),
    ):
        stream = desk.hw.stream(name)
        with running(desk.consumer("c", name, batch=10)):
            for turn in range(2):
                stream.write_many(entries(50, turn * 50 + 1))
                until(applied(desk.engine, turn * 50 + 20))
                server.kill()
                until(lambda turn=turn: len(logged(caplog)) == 2 * turn + 1)  # type: ignore[misc]
                server.restart()
                until(applied(desk.engine, turn * 50 + 50))
                until(lambda turn=turn: len(logged(caplog)) == 2 * turn + 2)  # type: ignore[misc]
        assert desk.effects("c") == numbers(1, 100)
        assert stream.info().readers == {"consumer:c": 101}
    held, again = logged(caplog)[0::2], logged(caplog)[1::2]
    assert all("held up" in line for line in held)
    assert all("works again" in line for line in again)


def test_a_consumer_can_be_stopped_while_the_store_is_away(
    manner: str, database_url: str, name: str, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(fsync="always") as server, desk_of(manner, server.url, database_url, loop) as desk:
        with running(desk.consumer("c", name)):
            server.kill()
            until(lambda: logged(caplog))
            asked = time.monotonic()
        assert time.monotonic() - asked < 10
        server.restart()


@pytest.mark.filterwarnings("error::ResourceWarning")
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_postgres_may_be_killed_and_come_back(
    manner: str,
    own_postgres: Postgres,
    store_url: str,
    name: str,
    loop: Loop,
    caplog: pytest.LogCaptureFixture,
    end: str,
) -> None:
    url = own_postgres.database()
    # The connections of the consumer are its own matter: those that a test disposes of while they
    # are in use are never closed, and it has to get rid of broken ones by itself.
    watching = sa.create_engine(url, poolclass=sa.NullPool)
    with desk_of(manner, store_url, url, loop) as desk, caplog.at_level(logging.INFO):
        stream = desk.hw.stream(name)
        with running(desk.consumer("c", name, batch=10, attempts=1)):
            for turn in range(2):
                stream.write_many(entries(50, turn * 50 + 1))
                getattr(own_postgres, end)()
                stream.write_many(entries(50, turn * 50 + 51 + turn * 50))
                until(lambda turn=turn: len(logged(caplog)) == 2 * turn + 1)  # type: ignore[misc]
                own_postgres.start()
                until(applied(watching, stream.info().last))
                until(lambda turn=turn: len(logged(caplog)) == 2 * turn + 2)  # type: ignore[misc]
        assert effects(watching, "c") == numbers(1, stream.info().last)
    gc.collect()  # a connection that is not closed by now is a warning


def test_a_connection_that_is_cut_in_the_handler_or_before_the_commit_costs_nothing(
    manner: str, postgres: Postgres, store_url: str, name: str, loop: Loop
) -> None:
    with desk_of(manner, store_url, postgres.database(), loop) as desk:
        stream = desk.hw.stream(name)
        stream.write_many(entries(200))
        cut: set[int] = set()

        def handler(conn: sa.Connection, messages: list[Message]) -> None:
            writes("c")(conn, messages)
            if messages[0].offset not in cut:
                cut.add(messages[0].offset)
                pid = conn.exec_driver_sql("SELECT pg_backend_pid()").scalar()
                with desk.engine.begin() as other:
                    other.execute(sa.select(sa.func.pg_terminate_backend(pid)))
            writes("c2")(conn, messages)

        consumer = desk.consumer("c", name, handler, batch=20, attempts=1)
        with running(consumer):
            until(applied(desk.engine, 200))
        assert desk.effects("c") == desk.effects("c2") == numbers(1, 200)


def test_a_file_that_is_locked_for_long_is_waited_for(
    manner: str,
    store_url: str,
    name: str,
    tmp_path: Path,
    loop: Loop,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = f"sqlite:///{tmp_path / 'app.db'}?timeout=0.1"
    with desk_of(manner, store_url, url, loop) as desk, caplog.at_level(logging.INFO):
        desk.hw.stream(name).write_many(entries(20))
        blocker = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
        blocker.execute("BEGIN EXCLUSIVE")
        with running(desk.consumer("c", name)):
            until(lambda: logged(caplog))
            blocker.execute("ROLLBACK")
            # Not by the desk's own engine, which gives up as soon as the consumer writes.
            with open_engine(f"sqlite:///{tmp_path / 'app.db'}") as other:
                until(applied(other, 20))
        blocker.close()
        assert desk.effects("c") == numbers(1, 20)
        assert ["locked" in line for line in logged(caplog)] == [True, False]


def test_many_consumers_of_one_name_in_one_process_apply_everything_once(
    manner: str, store_url: str, database_url: str, name: str, loop: Loop
) -> None:
    with desk_of(manner, store_url, database_url, loop) as desk:
        stream = desk.hw.stream(name)
        crew = [desk.consumer("c", name, batch=size) for size in (1, 4, 9, 30)]

        def write() -> None:
            for first in range(1, 601, 6):
                stream.write_many(entries(6, first))

        writer = threading.Thread(target=write)
        with running(*crew):
            writer.start()
            until(applied(desk.engine, 600), 60)
        writer.join()
        assert desk.effects("c") == numbers(1, 600)


# ── Dead letters of consumers that are killed: each is written once, and has its effect once ─────


@pytest.mark.parametrize("step", ["given up", "buried", "begun", "moved", "in the handler"])
def test_a_letter_is_written_once_wherever_its_consumer_dies(
    consumers: ConsumerProcesses,
    manner: str,
    engine: sa.Engine,
    hw: Headwater,
    name: str,
    step: str,
) -> None:
    hw.stream(name).write_many(entries(12))
    order = {"manner": manner, "guilty": [4, 5, 9], "on_error": "skip", "attempts": 1}
    times = 2 if step in ("given up", "buried") else 5
    assert consumers.run(step=step, times=times, **order) == -signal.SIGKILL
    going_on = consumers.start(**order)
    until(applied(engine, 9))
    grave = hw.stream(f"{name}.c.sql-dead")
    until(lambda: grave.info().last == 3)
    assert consumers.end(going_on) == 0
    assert effects(engine, "c") == [1, 2, 3, 6, 7, 8, 10, 11, 12]
    assert pairs(grave.read(1, 100)) == [entries(1, offset)[0] for offset in (4, 5, 9)]


@pytest.mark.parametrize("step", ["given up", "buried"])
def test_a_message_whose_letter_was_written_before_a_kill_has_its_effect_once(
    consumers: ConsumerProcesses,
    manner: str,
    engine: sa.Engine,
    hw: Headwater,
    name: str,
    step: str,
) -> None:
    hw.stream(name).write_many(entries(12))
    order = {"manner": manner, "on_error": "skip", "attempts": 1}
    dying = consumers.start(step=step, times=2, guilty=[4, 5], **order)
    assert consumers.wait(dying) == -signal.SIGKILL
    # A redrive before the consumer has retried the message leaves it to that.
    assert consumers.run(act="redrive", **order) == 0
    assert effects(engine, "c") == [1, 2, 3, 4]
    going_on = consumers.start(**order)
    until(applied(engine, 12))
    assert consumers.end(going_on) == 0
    assert consumers.run(act="redrive", **order) == 0
    assert effects(engine, "c") == [1, 2, 3, 4, *numbers(5, 12)]
    assert hw.stream(f"{name}.c.sql-dead").info().length == 0


@pytest.mark.parametrize(
    "step",
    [
        *(pytest.param(one, marks=pytest.mark.long) for one in ("begun", "moved", "committed")),
        *("handled", "buried"),
    ],
)
@pytest.mark.parametrize("times", [1, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 3))])
def test_redrives_at_once_apply_each_letter_once_wherever_one_died(
    consumers: ConsumerProcesses,
    manner: str,
    engine: sa.Engine,
    hw: Headwater,
    name: str,
    step: str,
    times: int,
) -> None:
    hw.stream(name).write_many(entries(12))
    order = {"manner": manner, "on_error": "skip", "attempts": 1}
    letters = list(range(1, 12, 2))
    giving_up = consumers.start(guilty=letters, **order)
    until(lambda: hw.stream(name).info().readers == {"consumer:c": 13})
    assert consumers.end(giving_up) == 0
    # Alone, so that it comes to its step for certain; it fails on every other letter.
    failing = {"act": "redrive", "guilty": letters[::2], **order}
    assert consumers.run(step=step, times=times, **failing) == -signal.SIGKILL
    # One redrive fails on what another one applies at the same time.
    at_once = [consumers.start(**failing), consumers.start(act="redrive", **order)]
    assert [consumers.wait(pid) for pid in at_once] == [0, 0]
    grave = hw.stream(f"{name}.c.sql-dead")
    for _ in range(3):
        assert consumers.run(act="redrive", **order) == 0
    assert grave.info().length == 0
    assert sorted(effects(engine, "c")) == numbers(1, 12)


@pytest.mark.parametrize(("step", "left"), [("dropped", 3), ("discarded", 0)])
def test_letters_are_discarded_all_or_not_wherever_a_discard_dies(
    consumers: ConsumerProcesses,
    manner: str,
    engine: sa.Engine,
    hw: Headwater,
    name: str,
    step: str,
    left: int,
) -> None:
    hw.stream(name).write_many(entries(12))
    order = {"manner": manner, "on_error": "skip", "attempts": 1}
    giving_up = consumers.start(guilty=[4, 5, 9], **order)
    until(lambda: hw.stream(name).info().readers == {"consumer:c": 13})
    assert consumers.end(giving_up) == 0
    assert consumers.run(act="discard", step=step, **order) == -signal.SIGKILL
    grave = hw.stream(f"{name}.c.sql-dead")
    assert grave.info().length == 3, "they are evicted last"
    assert len(noted(engine, name)) == left
    # What is discarded has no effect any more; a letter that was to be, and is not, still has.
    assert consumers.run(act="redrive", **order) == 0
    assert grave.info().length == 0
    assert noted(engine, name) == []
    again = [4, 5, 9] if left else []
    assert effects(engine, "c") == [*numbers(1, 12, [4, 5, 9]), *again]


def test_a_discard_that_died_is_completed_by_the_next(
    consumers: ConsumerProcesses, manner: str, engine: sa.Engine, hw: Headwater, name: str
) -> None:
    hw.stream(name).write_many(entries(6))
    order = {"manner": manner, "on_error": "skip", "attempts": 1}
    giving_up = consumers.start(guilty=[2, 4], **order)
    until(lambda: hw.stream(name).info().readers == {"consumer:c": 7})
    assert consumers.end(giving_up) == 0
    assert consumers.run(act="discard", step="discarded", **order) == -signal.SIGKILL
    assert consumers.run(act="discard", **order) == 0
    assert hw.stream(f"{name}.c.sql-dead").info().length == 0
    assert noted(engine, name) == []
    assert effects(engine, "c") == [1, 3, 5, 6]


# ── Every message of a topic has its effect once, while its consumers and its store fail ─────────


PARTITIONS = 3


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_two_processes_that_share_a_topic_may_die_at_any_moment(
    consumers: ConsumerProcesses, engine: sa.Engine, hw: Headwater, name: str, seed: int
) -> None:
    """Retention goes as far as it may meanwhile: a gap would end them with an error."""
    dice = random.Random(seed)
    topic = hw.topic(name, partitions=PARTITIONS)

    def start(manner: str) -> int:
        order = {"manner": manner, "partitions": PARTITIONS, "batch": dice.choice([3, 20, 100])}
        return consumers.start(**order)

    def applied() -> list[list[int]]:
        return [effects(engine, f"c/{place}") for place in range(PARTITIONS)]

    manners = ["sync", "async"]
    pids = [start(manner) for manner in manners]
    until(lambda: all(info.readers for info in topic.info()))
    last = 0
    for _ in range(3):
        for _ in range(dice.randint(1, 6)):
            size = dice.choice([1, 5, 40])
            topic.write_many(entries(size, last + 1, tags=30))
            last += size
        for place in range(PARTITIONS):
            topic.partition(place).retain(max_count=dice.choice([0, 10]))
        dying = dice.randrange(2)
        assert consumers.end(pids[dying], signal.SIGKILL) == -signal.SIGKILL
        pids[dying] = start(manners[dying])
    until(lambda: sum(map(len, applied())) >= last)
    assert [consumers.end(pid) for pid in pids] == [0, 0]
    assert applied() == [numbers(1, info.last) for info in topic.info()]
    assert [topic.partition(place).retain(max_count=0).held for place in range(3)] == [0, 0, 0]


def test_a_consumer_of_a_topic_is_told_in_which_partition_messages_were_lost(
    tmp_path: Path, name: str
) -> None:
    database = f"sqlite:///{tmp_path / 'app.db'}"
    with Server(tcp=True) as old, Server(tcp=True) as new, Forwarder(old.port) as door:
        url = f"redis://127.0.0.1:{door.port}"
        with contextlib.closing(Desk("sync", url, database, None)) as desk:
            topic = desk.hw.topic(name, partitions=PARTITIONS)
            topic.write_many(entries(60, tags=30))
            kept = [info.last for info in topic.info()]
            lost = topic.partition_of("lost")
            with new.client() as raw:
                raw.replicaof("127.0.0.1", str(old.port))
                for place, last in enumerate(kept):
                    key = f"hw:s:{{{name}/{place}}}"
                    until(lambda key=key, last=last: raw.hget(key, "last") == b"%d" % last)  # type: ignore[misc]
                raw.replicaof("NO", "ONE")
            topic.write_many([("lost", b"1"), ("lost", b"2")])
            reader = desk.consumer("c", topic)
            assert drain(reader) == 62
            door.switch(new.port)
            door.cut()
            for one in (reader, desk.consumer("c", topic)):
                with pytest.raises(LostFuture) as caught:
                    drain(one)
                assert caught.value.partition == lost
                assert (caught.value.stream, caught.value.first, caught.value.last) == (
                    *(f"{name}/{lost}", kept[lost] + 1, kept[lost] + 2),
                )
            assert reader.seek({lost: kept[lost] + 1}) == {lost: kept[lost] + 1}
            topic.write_many([("lost", b"1"), ("other", b"3")])
            assert drain(reader) == 2
