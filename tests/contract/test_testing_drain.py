"""Draining: all that is due is done in the caller's thread, and what happened is returned."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import headwater
from headwater import App, Message
from headwater.errors import InvalidInput, StoreUnreachable
from headwater.outbox import Consumer, Outbox, Streamer
from headwater.testing import Drained, DrainedPart, PrivateStore, async_drain, drain, store
from headwater.timed.runner import TimedRunner


@pytest.fixture
def hw() -> Iterator[PrivateStore]:
    with store() as hw:
        yield hw


def test_parts_feed_each_other_until_nothing_is_due(hw: PrivateStore, tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    outbox = Outbox(engine)
    outbox.create_all()
    with engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE totals (rides INTEGER)"))
        outbox.stage(conn, "booked", "ride-1", b"1")
        outbox.stage(conn, "booked", "ride-2", b"2")
    threads, mails = set(), hw.queue("mails")

    @hw.stream("booked").group("mailers").worker()
    def ask_for_mail(message: Message) -> None:
        threads.add(threading.current_thread())
        mails.push(message.value)

    sent: list[bytes] = []
    send = mails.worker()(lambda delivery: sent.append(delivery.value))

    def count(conn: sa.Connection, messages: list[Any]) -> None:
        conn.execute(sa.text("INSERT INTO totals VALUES (:n)"), {"n": len(messages)})

    consumer = Consumer("totals", "booked", outbox, hw, count)
    with Streamer(outbox, hw) as streamer:
        drained = drain(send, ask_for_mail, consumer, streamer)
    assert drained == Drained(
        (
            DrainedPart("mails", handled=2),
            DrainedPart("booked/mailers", handled=2),
            DrainedPart("totals", handled=2),
            DrainedPart("streamer", handled=2),
        )
    )
    assert sent == [b"1", b"2"]
    assert threads == {threading.current_thread()}
    assert drain(send, ask_for_mail, consumer).handled == 0
    engine.dispose()


def test_what_fails_is_returned_and_retried_when_the_clock_was_moved(hw: PrivateStore) -> None:
    mails = hw.queue("mails")
    mails.push_many([b"good", b"bad"])
    tries: list[tuple[bytes, int]] = []

    @mails.worker(max_attempts=2)
    def send(delivery: Any) -> None:
        tries.append((delivery.value, delivery.attempt))
        if delivery.value == b"bad":
            raise LookupError("no such address")

    first = drain(send)
    assert (first.handled, first.failed, first.buried) == (1, 1, 0)
    assert drain(send) == Drained((DrainedPart("mails"),))
    hw.clock.advance(60_000)
    second = drain(send)
    assert (second["mails"].failed, second["mails"].buried) == (1, 1)
    assert str(second.errors) == "[LookupError('no such address')]"
    with pytest.raises(ExceptionGroup, match="handlers failed"):
        second.raise_errors()
    first["mails"]
    with pytest.raises(KeyError):
        first["other"]
    assert tries == [(b"good", 1), (b"bad", 1), (b"bad", 2)]
    assert [letter.value for letter in mails.dead()] == [b"bad"]


def test_a_message_whose_ack_failed_is_redelivered_to_its_handler(hw: PrivateStore) -> None:
    rides = hw.stream("rides")
    rides.write("t", b"v")
    attempts: list[int | None] = []
    worker = rides.group("g").worker()(lambda message: attempts.append(message.attempt))
    hw.faults.fail("group.ack")
    assert drain(worker) == Drained((DrainedPart("rides/g", handled=1, unsettled=1),))
    hw.clock.advance(30_000)
    assert drain(worker) == Drained((DrainedPart("rides/g", handled=1),))
    assert attempts == [1, 2]
    hw.faults.fail("group.read")
    with pytest.raises(StoreUnreachable):
        drain(worker)


def test_what_waits_for_its_turn_is_not_due(hw: PrivateStore) -> None:
    rides = hw.stream("rides")
    rides.write_many([("ada", b"1"), ("ada", b"2"), ("bob", b"3")])
    seen: list[bytes] = []

    @rides.group("g", ordered=True).worker()
    def note(message: Message) -> None:
        seen.append(message.value)
        if message.value == b"1" and message.attempt == 1:
            raise LookupError("no such ride")

    assert (drain(note).handled, seen) == (1, [b"1", b"3"])
    hw.clock.advance(60_000)
    assert (drain(note).handled, seen) == (2, [b"1", b"3", b"1", b"2"])


def test_a_consumer_that_fails_ends_its_part_of_the_drain(hw: PrivateStore, tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    Outbox(engine).create_all()
    hw.stream("rides").write("t", b"v")

    def refuse(_: sa.Connection, __: list[Any]) -> None:
        raise LookupError("no such ride")

    drained = drain(Consumer("totals", "rides", engine, hw, refuse, attempts=1))
    assert (drained.handled, drained.failed) == (0, 1)
    assert isinstance(drained.errors[0].__cause__, LookupError)
    engine.dispose()


def test_a_handler_that_feeds_itself_ends_at_the_limit(hw: PrivateStore) -> None:
    echo = hw.queue("echo")
    echo.push(b"v")
    worker = echo.worker()(lambda delivery: echo.push(delivery.value))
    with pytest.raises(AssertionError, match="more than 50 messages"):
        drain(worker, limit=50)


def test_async_parts_are_drained_in_their_task(hw: PrivateStore) -> None:
    client = hw.async_client()
    tasks: set[Any] = set()

    async def test() -> tuple[Drained, bool]:
        mails, rides = client.queue("mails"), client.stream("rides")

        @rides.group("g").worker()
        async def ask_for_mail(message: Message) -> None:
            tasks.add(asyncio.current_task())
            await mails.push(message.value)

        @mails.worker()
        async def send(_: Any) -> None:
            raise LookupError("no such address")

        await rides.write("t", b"v")
        drained = await async_drain(send, ask_for_mail, hw.queue("other").worker()(repr))
        with pytest.raises(InvalidInput, match="async_drain"):
            drain(send)
        return drained, tasks == {asyncio.current_task()}

    drained, same_task = asyncio.run(test())
    assert (drained.handled, drained.failed, drained["mails"].failed) == (1, 1, 1)
    assert same_task
    with pytest.raises(InvalidInput, match="cannot be drained"):
        drain(hw)


# ── Applications ─────────────────────────────────────────────────────────────────────────────


def shop(store: str | None, db: str, *, is_async: bool) -> tuple[App, list[Any]]:
    app, seen = App(store, db), list[Any]()

    @app.worker(stream="booked", group="mailers")
    def ask_for_mail(message: Message) -> None:
        seen.append(message.value)
        with headwater.connect() as hw:
            hw.queue("mails").push(message.value)

    if is_async:

        @app.worker(queue="mails", max_attempts=1)
        async def send(_: Any) -> None:
            raise LookupError("no such address")

    @app.consumer("totals", stream="booked")
    def count(_: sa.Connection, messages: list[Any]) -> None:
        seen.append(len(messages))

    app.stream_outbox()
    app.keep()
    return app, seen


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_an_application_is_drained_part_by_part(
    hw: PrivateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    monkeypatch.setenv("HEADWATER_URL", hw.url)
    db = f"sqlite:///{tmp_path / 'app.db'}"
    engine = sa.create_engine(db)
    outbox = Outbox(engine)
    outbox.create_all()
    with engine.begin() as conn:
        outbox.stage(conn, "booked", "ride-1", b"1")
    # The application names another store, which a test must not reach.
    app, seen = shop("redis://nowhere.invalid", db, is_async=is_async)
    drained = drain(app, store=hw.url)
    assert {part.name: (part.handled, part.failed, part.buried) for part in drained.parts} == {
        "ask_for_mail": (1, 0, 0),
        "totals": (1, 0, 0),
        "outbox": (1, 0, 0),
    } | ({"send": (0, 1, 1)} if is_async else {})
    assert sorted(seen, key=str) == [1, b"1"]
    assert asyncio.run(async_drain(app, store=hw.url)).handled == 0
    if is_async:

        async def inside() -> None:
            with pytest.raises(InvalidInput, match="async_drain"):
                drain(app, store=hw.url)

        asyncio.run(inside())
    engine.dispose()


def test_timed_jobs_are_drained_when_the_clock_was_moved_to_their_time(hw: PrivateStore) -> None:
    runner, ran = TimedRunner(hw), list[str]()

    @runner.cron("0 3 * * *")
    def tidy() -> None:
        ran.append("tidy")
        raise LookupError("nothing to tidy")

    assert drain(runner) == Drained((DrainedPart("timedrunner"),))
    tomorrow = hw.clock.now() + dt.timedelta(days=1)
    hw.clock.move_to(tomorrow.replace(hour=3, minute=0, second=0))
    drained = drain(runner)
    assert (drained.handled, drained.failed, ran) == (0, 1, ["tidy"])
    assert drain(runner).failed == 0


# ── The pytest plugin, in a project of somebody else: found by itself, and no burden to others ───


USED = """
import asyncio
import sys
import headwater
import pytest

@pytest.mark.parametrize("turn", range(4))
def test_each_test_has_an_empty_store(hw, headwater_store, turn):
    assert hw is headwater_store
    assert hw.streams() == []
    with headwater.connect() as mine:
        mine.stream("rides").write("t", b"v")
    assert hw.stream("rides").info().last == 1

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
async def test_an_async_client_works_in_the_loop_of_a_plugin(async_hw, hw):
    await async_hw.queue("mail").push(b"v", delay_ms=60_000)
    hw.clock.advance(60_000)
    assert len(await async_hw.queue("mail").pop()) == 1

def test_and_without_a_plugin(async_hw, hw):
    async def write():
        return await async_hw.stream("rides").write("t", b"v")
    assert [asyncio.run(write()), asyncio.run(write())] == [1, 2]
    assert hw.stream("rides").info().last == 2

def test_a_fixture_of_the_project_takes_the_place_of_ours(async_hw):
    with pytest.raises(AssertionError, match="assert 1 == 2"):
        one = 1
        assert one == 2
"""

UNUSED = """
import sys

def test_the_plugin_imports_nothing_of_headwater():
    assert "pytest_headwater" in sys.modules
    assert not [name for name in sys.modules if name.partition(".")[0] in ("headwater", "redis")]
"""


# Other plugins of this environment, which take longer to load than all of these tests.
OTHERS = ("xdist", "hypothesispytest", "timeout", "faulthandler", "cacheprovider", "looponfail")


def run(project: Path, source: str, *words: str) -> str:
    (project / "test_project.py").write_text(source)
    words += tuple(word for name in OTHERS for word in ("-p", f"no:{name}"))
    environment = {name: text for name, text in os.environ.items() if "PYTEST" not in name}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", *words],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    return done.stdout + done.stderr


def test_a_project_has_stores_by_naming_a_fixture(tmp_path: Path) -> None:
    said = run(tmp_path, USED)
    assert "7 passed" in said, said


def test_who_uses_no_fixture_pays_nothing(tmp_path: Path) -> None:
    said = run(tmp_path, UNUSED, "-p", "no:anyio")
    assert "1 passed" in said, said


def test_a_project_may_leave_the_plugin_out(tmp_path: Path) -> None:
    said = run(tmp_path, "def test_it(hw): ...", "-p", "no:anyio", "-p", "no:headwater")
    assert "fixture 'hw' not found" in said, said
