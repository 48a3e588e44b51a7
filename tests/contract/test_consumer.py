"""A consumer applies every message once, in order, and its position is part of its effects."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import time
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from headwater import Headwater, Message, aio
from headwater.errors import (
    CheckpointRemoved,
    InvalidInput,
    NotCreated,
    PoisonedBatch,
    TransactionEnded,
)
from headwater.outbox import AsyncConsumer, Consumer, Outbox, Streamer
from headwater.outbox import consumer as make_consumer
from headwater.store.call import Call, Wait
from tests.support.blocking import Loop
from tests.support.consumers import EFFECTS, Desk, Running, drain, running, writes
from tests.support.entries import entries, pairs
from tests.support.postgres import Postgres
from tests.support.servers import until
from tests.support.stores import Stores
from tests.support.watch import blocked


def numbers(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


# ── One batch is one transaction ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_every_message_is_applied_once_and_in_order(desk: Desk, name: str, batch: int) -> None:
    stream = desk.hw.stream(name)
    for first in range(1, 50, 10):
        stream.write_many(entries(10, first))
    consumer = desk.consumer("c", name, batch=batch)
    counts = []
    while count := consumer.run_once():
        counts.append(count)
    assert counts == [batch] * (50 // batch) + ([50 % batch] if 50 % batch else [])
    assert desk.effects("c") == numbers(1, 50)
    assert consumer.positions() == {name: 51}
    assert consumer.stats.handled == 50


def test_the_handler_is_given_what_was_written(desk: Desk, name: str) -> None:
    seen: list[Message] = []
    stream = desk.hw.stream(name)
    stream.write_many(entries(3))
    consumer = desk.consumer("c", stream, lambda _, messages: seen.extend(messages))
    assert consumer.run_once() == 3
    assert pairs(seen) == entries(3)
    assert [message.offset for message in seen] == [1, 2, 3]


def test_effects_and_position_are_there_together_or_not_at_all(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(30))

    def fails_late(conn: sa.Connection, messages: list[Message]) -> None:
        writes("c")(conn, messages)
        if messages[-1].offset > 10:
            raise RuntimeError("after the effects")

    consumer = desk.consumer("c", name, fails_late, batch=10, attempts=1)
    assert consumer.run_once() == 10
    with pytest.raises(Exception, match="after the effects"):
        consumer.run_once()
    assert desk.effects("c") == numbers(1, 10)
    assert consumer.positions() == {name: 11}
    assert drain(desk.consumer("c", name)) == 20
    assert desk.effects("c") == numbers(1, 30)


def test_a_position_survives_its_consumer(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    for last in (20, 40, 60):
        stream.write_many(entries(20, last - 19))
        assert desk.consumer("c", name).run_once() == 20
    assert desk.effects("c") == numbers(1, 60)


def test_consumers_of_different_names_do_not_know_of_each_other(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(10))
    assert drain(desk.consumer("a", name, batch=3)) == 10
    assert drain(desk.consumer("b", name, batch=4)) == 10
    assert desk.effects("a") == desk.effects("b") == numbers(1, 10)


def test_a_business_id_plays_no_part(desk: Desk, name: str) -> None:
    """Duplicates and ids out of order are messages like any other: the position passes them."""
    stream = desk.hw.stream(name)
    stream.write_many([("ride-7", b"same")] * 2500)
    stream.write_many([("ride-3", b"late")])
    seen = set()

    def once_per_tag(conn: sa.Connection, messages: list[Message]) -> None:
        new = [m for m in messages if m.tag not in seen and not seen.add(m.tag)]  # type: ignore[func-returns-value]
        if new:
            writes("c")(conn, new)

    consumer = desk.consumer("c", name, once_per_tag)
    assert drain(consumer) == 2501
    assert consumer.positions() == {name: 2502}
    assert desk.effects("c") == [1, 2501]


def test_two_consumers_of_one_name_apply_everything_once(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    pair = [desk.consumer("c", name, batch=5), desk.consumer("c", name, batch=8)]
    with running(*pair):
        for first in range(1, 400, 20):
            stream.write_many(entries(20, first))
        until(lambda: len(desk.effects("c")) >= 400)
    assert desk.effects("c") == numbers(1, 400)
    assert sum(consumer.stats.handled for consumer in pair) == 400


def test_a_consumer_that_was_overtaken_goes_on_behind_the_other(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(10))
    slow, fast = desk.consumer("c", name, batch=4), desk.consumer("c", name, batch=4)
    assert slow.run_once() == 4
    assert fast.run_once() == 4
    assert slow.run_once() == 2
    assert slow.stats.overtaken == 1
    assert fast.run_once() == 0
    assert desk.effects("c") == numbers(1, 10)


def test_offsets_of_no_message_are_passed(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(500, tags=2))
    stream.compact()
    consumer = desk.consumer("c", name, batch=50)
    assert drain(consumer) == 2
    assert consumer.positions() == {name: 501}
    stream.write_many([("tag-0", b"gone"), ("tag-0", b"")])
    stream.compact()
    assert consumer.run_once() == 1
    assert consumer.positions() == {name: 503}
    assert consumer.stats.gaps == []


# ── A handler that does not leave the transaction alone ──────────────────────────────────────


@pytest.mark.parametrize("act", ["commit", "rollback", "raw commit"])
@pytest.mark.parametrize("raises", [False, True])
def test_a_handler_that_ends_the_transaction_is_stopped(
    desk: Desk, name: str, act: str, raises: bool
) -> None:
    desk.hw.stream(name).write_many(entries(3))

    def handler(conn: sa.Connection, messages: list[Message]) -> None:
        writes("c")(conn, messages[:1])
        if act == "raw commit":
            conn.exec_driver_sql("COMMIT")
        else:
            getattr(conn, act)()
        if raises:
            raise RuntimeError("and fails")

    with pytest.raises(TransactionEnded, match="ended the transaction"):
        desk.consumer("c", name, handler, on_error="skip").run_once()


def test_a_handler_that_hides_an_error_of_the_database_is_told(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(3))

    def handler(conn: sa.Connection, messages: list[Message]) -> None:
        writes("c")(conn, messages)
        with contextlib.suppress(sa.exc.IntegrityError):
            conn.execute(sa.insert(EFFECTS).values(consumer=None, place=1))

    consumer = desk.consumer("c", name, handler, attempts=2, backoff_ms=0)
    if desk.engine.dialect.name == "sqlite":  # only the statement is undone
        assert consumer.run_once() == 3
    else:
        with pytest.raises(Exception, match="begin_nested"):
            consumer.run_once()
        assert (desk.effects("c"), consumer.positions()) == ([], {name: 1})


def test_a_handler_may_catch_errors_in_a_savepoint(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(3))

    def handler(conn: sa.Connection, messages: list[Message]) -> None:
        with pytest.raises(sa.exc.IntegrityError), conn.begin_nested():
            conn.execute(sa.insert(EFFECTS).values(consumer=None, place=1))
        writes("c")(conn, messages)

    assert desk.consumer("c", name, handler).run_once() == 3
    assert desk.effects("c") == [1, 2, 3]


def test_an_engine_in_autocommit_is_found_out(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(3))
    engine = desk.engine.execution_options(isolation_level="AUTOCOMMIT")
    consumer = Consumer("c", name, engine, desk.hw, writes("c"))
    with pytest.raises(TransactionEnded):
        consumer.run_once()


def test_an_async_handler_is_no_handler_for_a_sync_consumer(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(3))

    async def handler(conn: Any, messages: list[Message]) -> None:
        pass

    consumer = Consumer("c", name, desk.engine, desk.hw, handler, attempts=1)
    with pytest.raises(Exception, match="which nobody awaits"):
        consumer.run_once()
    assert consumer.positions() == {name: 1}


def test_a_handler_may_ask_how_far_its_consumer_is(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(3))
    lags: list[int] = []
    consumer = Consumer("c", name, desk.engine, desk.hw, lambda *_: lags.append(consumer.lag()))
    assert consumer.run_once() == 3
    assert lags == [3], "what is not committed is still to come"


def test_a_cancelled_consumer_leaves_nothing_behind(desk: Desk, name: str, loop: Loop) -> None:
    desk.hw.stream(name).write_many(entries(3))

    async def cancel_in_the_handler(url: str, store: str) -> None:
        engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
        begun = asyncio.Event()

        async def hangs(conn: AsyncConnection, messages: list[Message]) -> None:
            await conn.run_sync(writes("c"), messages)
            begun.set()
            await asyncio.Event().wait()

        async with aio.connect(store) as hw:
            run = asyncio.create_task(AsyncConsumer("c", name, engine, hw, hangs).run())
            await begun.wait()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
        await engine.dispose()

    url = desk.engine.url.render_as_string(hide_password=False)
    loop.wait(cancel_in_the_handler(url, desk.hw.store.where))
    assert desk.effects("c") == []
    assert desk.consumer("c", name).run_once() == 3
    assert desk.effects("c") == [1, 2, 3]


def test_any_isolation_of_transactions_will_do(
    postgres: Postgres, stores: Stores, name: str
) -> None:
    url = postgres.database()
    desk = Desk("sync", stores.url("plain"), url, None)
    stream = desk.hw.stream(name)
    engines = [
        sa.create_engine(url, isolation_level=level)
        for level in ("SERIALIZABLE", "REPEATABLE READ", "READ COMMITTED")
    ]
    crew = [Consumer("c", name, engine, desk.hw, writes("c"), batch=7) for engine in engines]
    with running(*crew):
        for first in range(1, 300, 10):
            stream.write_many(entries(10, first))
        until(lambda: len(desk.effects("c")) >= 300)
    assert desk.effects("c") == numbers(1, 300)
    for engine in engines:
        engine.dispose()
    desk.close()


# ── Where it begins, and where it stands ─────────────────────────────────────────────────────


def test_a_new_consumer_begins_where_it_is_told(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(10))
    stream.evict(2)
    now = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    starts: dict[str, Any] = {"a": "first", "b": "last", "d": 7, "e": now, "f": 11}
    for who, start in starts.items():
        desk.consumer(who, name, start=start).run_once()
    stream.write_many(entries(1, 11))
    for who, start in starts.items():
        drain(desk.consumer(who, name, start=start))
    assert desk.effects("a") == numbers(3, 11)
    assert desk.effects("d") == numbers(7, 11)
    assert desk.effects("b") == desk.effects("e") == desk.effects("f") == [11]


def test_a_start_beyond_the_end_is_refused(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(3))
    consumer = desk.consumer("c", name, start=5)
    with pytest.raises(InvalidInput, match="beyond"):
        consumer.run_once()
    assert desk.hw.stream(name).info().readers == {}


def test_where_it_begins_counts_only_once(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(10))
    assert desk.consumer("c", name, start=8).run_once() == 3
    assert desk.consumer("c", name, start="first").run_once() == 0


def test_a_stream_that_was_never_written_is_waited_for(desk: Desk, name: str) -> None:
    consumer = desk.consumer("c", name)
    assert consumer.run_once() == 0
    assert consumer.lag() == 0
    desk.hw.stream(name).write_many(entries(2))
    assert consumer.run_once() == 2


def test_lag_counts_what_is_to_come(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(30))
    consumer = desk.consumer("c", name, batch=10)
    assert consumer.lag() == 30, "before its first run"
    assert desk.consumer("late", name, start="last").lag() == 0
    consumer.run_once()
    assert consumer.lag() == 20
    stream.evict(15)
    assert consumer.lag() == 15
    stream.evict(30)
    assert consumer.lag() == 0


def test_seek_goes_back_and_forth(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(10))
    consumer = desk.consumer("c", name)
    assert consumer.seek(9) == 9
    assert drain(consumer) == 2
    assert consumer.seek("first") == 1
    assert stream.info().readers == {"consumer:c": 1}
    assert drain(consumer) == 10
    assert consumer.seek("last") == 11
    with pytest.raises(InvalidInput, match="beyond"):
        consumer.seek(12)
    assert desk.effects("c") == [9, 10, *numbers(1, 10)]


def test_a_running_consumer_follows_a_seek(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(10))
    consumer = desk.consumer("c", name)
    with running(consumer):
        until(lambda: len(desk.effects("c")) == 10)
        desk.consumer("c", name).seek(6)
        desk.hw.stream(name).write_many(entries(1, 11))
        until(lambda: len(desk.effects("c")) == 16)
    assert desk.effects("c") == [*numbers(1, 10), *numbers(6, 11)]


def test_an_idle_consumer_follows_a_seek_too(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(10))
    with running(desk.consumer("c", name)):
        until(lambda: len(desk.effects("c")) == 10)
        until(lambda: blocked(desk.hw))
        desk.consumer("c", name).seek(6)
        until(lambda: len(desk.effects("c")) == 15)
        until(lambda: stream.info().readers == {"consumer:c": 11})
    assert desk.effects("c") == [*numbers(1, 10), *numbers(6, 10)]


def test_a_consumer_that_is_removed_while_it_runs_does_not_begin_anew(
    desk: Desk, name: str
) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(10))
    consumer = desk.consumer("c", name)
    run = Running(consumer.run)
    until(lambda: len(desk.effects("c")) == 10)
    desk.consumer("c", name).remove()
    with pytest.raises(CheckpointRemoved, match="see to its state"):
        run.result()
    with pytest.raises(CheckpointRemoved):
        consumer.run_once()
    assert desk.effects("c") == numbers(1, 10)


def test_a_removed_consumer_is_forgotten(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(10))
    consumer = desk.consumer("c", name)
    consumer.run_once()
    assert consumer.remove() is True
    assert stream.info().readers == {}
    assert consumer.positions() == {name: None}
    assert consumer.remove() is False
    assert consumer.run_once() == 10, "it begins anew"


# ── Retention knows it ───────────────────────────────────────────────────────────────────────


def test_retention_waits_for_a_stopped_consumer_and_passes_when_it_caught_up(
    desk: Desk, name: str
) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(100))
    consumer = desk.consumer("c", name, batch=30)
    consumer.run_once()
    assert stream.retain(max_count=10) == (30, 60, "consumer:c")
    stream.write_many(entries(100, 101))
    assert stream.retain(max_count=10).evicted == 0
    assert drain(desk.consumer("c", name)) == 170
    assert stream.retain(max_count=10) == (160, 0, None)
    assert desk.effects("c") == numbers(1, 200)


def test_retention_waits_from_the_very_start(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(50))
    consumer = desk.consumer("c", name, lambda *_: 1 / 0, attempts=1)
    with pytest.raises(Exception, match="division"):
        consumer.run_once()
    assert stream.retain(max_count=0) == (0, 50, "consumer:c")


def test_a_running_consumer_tells_the_log_while_it_waits(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    with running(desk.consumer("c", name)):
        stream.write_many(entries(20))
        until(lambda: stream.info().readers == {"consumer:c": 21})


def test_a_consumer_that_stops_tells_the_log(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(20))
    with running(desk.consumer("c", name, batch=3)):
        until(lambda: len(desk.effects("c")) == 20)
    assert stream.info().readers == {"consumer:c": 21}


# ── Running ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [1, 300])
def test_a_message_reaches_a_waiting_consumer_within_milliseconds(
    desk: Desk, name: str, size: int
) -> None:
    stream = desk.hw.stream(name)
    took: list[float] = []

    def handler(_: sa.Connection, messages: list[Message]) -> None:
        if messages[-1].offset % size == 0:
            took.append(time.perf_counter())

    with running(desk.consumer("c", name, handler)):
        quickest = 1e9
        for turn in range(5):
            until(lambda: blocked(desk.hw))
            written = time.perf_counter()
            stream.write_many(entries(size, turn * size + 1))
            until(lambda turn=turn: len(took) > turn)  # type: ignore[misc]
            quickest = min(quickest, took[turn] - written)
    assert quickest < 0.1, "in milliseconds; far below any poll"


def test_stop_ends_a_waiting_consumer_soon(desk: Desk, name: str) -> None:
    consumer = desk.consumer("c", name)
    with running(consumer) as (run,):
        until(lambda: blocked(desk.hw))
        asked = time.monotonic()
        consumer.stop()
        run.result()
        assert time.monotonic() - asked < 5
    assert desk.consumer("c", name).run_once() == 0


def test_what_was_staged_reaches_a_waiting_consumer_within_milliseconds(
    desk: Desk, name: str
) -> None:
    outbox = Outbox(desk.engine)
    outbox.create_all()
    took: list[float] = []
    with (
        Streamer(outbox, desk.hw) as streamer,
        running(desk.consumer("c", name, lambda *_: took.append(time.perf_counter()))),
    ):
        streaming = Running(streamer.run)
        quickest = 1e9
        for turn in range(5):
            until(lambda: blocked(desk.hw) and streamer.progress.leading)
            with desk.engine.begin() as conn:
                outbox.stage(conn, name, "t", {"turn": turn})
            committed = time.perf_counter()
            until(lambda turn=turn: len(took) > turn)  # type: ignore[misc]
            quickest = min(quickest, took[turn] - committed)
        streamer.stop()
        streaming.result()
    assert quickest < 0.2, "in milliseconds; far below any poll of seconds"


def test_stop_lets_the_batch_at_hand_end(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(30))

    def handler(conn: sa.Connection, messages: list[Message]) -> None:
        consumer.stop()
        writes("c")(conn, messages)

    consumer = desk.consumer("c", name, handler, batch=10)
    consumer.run()
    assert desk.effects("c") == numbers(1, 10)
    assert consumer.positions() == {name: 11}


def test_stop_cuts_a_retry_short_without_giving_up(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(3))
    tries: list[int] = []

    def handler(_: sa.Connection, messages: list[Message]) -> None:
        tries.append(len(messages))
        raise RuntimeError("not yet")

    consumer = desk.consumer("c", name, handler, backoff_ms=600_000, on_error="skip")
    with running(consumer):
        until(lambda: tries)
    assert len(tries) == 1
    assert (consumer.stats.dead, consumer.positions()) == (0, {name: 1})


def test_a_consumer_that_was_stopped_before_it_ran_does_not_run(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(3))
    consumer = desk.consumer("c", name)
    consumer.stop()
    consumer.run()
    assert desk.effects("c") == []


# ── Several streams ──────────────────────────────────────────────────────────────────────────


def test_each_stream_has_its_position_and_its_turn(desk: Desk, name: str) -> None:
    places = [f"{name}-{letter}" for letter in "abc"]
    for count, place in enumerate(places, 1):
        desk.hw.stream(place).write_many(entries(10 * count))
    consumer = desk.consumer("c", [desk.hw.stream(places[0]), *places[1:]], batch=10)
    assert [consumer.run_once() for _ in range(4)] == [30, 20, 10, 0]
    assert consumer.positions() == dict(zip(places, (11, 21, 31), strict=True))
    assert consumer.lag() == 0


def test_several_streams_are_all_waited_for_at_once(desk: Desk, name: str) -> None:
    places = [f"{name}-{letter}" for letter in "abc"]
    seen: dict[str, list[int]] = {place: [] for place in places}
    inside: list[str] = []

    def handler_of(place: str) -> Any:
        def handler(_: sa.Connection, messages: list[Message]) -> None:
            inside.append(place)
            assert inside == [place], "one at a time"
            seen[place] += [message.offset for message in messages]
            inside.remove(place)

        return handler

    consumer = desk.consumer("c", places, {place: handler_of(place) for place in places})
    with running(consumer):
        for first in range(1, 60, 20):
            for place in places:
                desk.hw.stream(place).write_many(entries(20, first))
        until(lambda: all(len(found) == 60 for found in seen.values()))
    assert all(found == numbers(1, 60) for found in seen.values())


def test_trouble_with_one_stream_ends_the_run_of_all(desk: Desk, name: str) -> None:
    good, bad = f"{name}-good", f"{name}-bad"

    def fails(*_: object) -> None:
        raise RuntimeError("always")

    handlers = {good: writes("c"), bad: fails}
    consumer = desk.consumer("c", [good, bad], handlers, attempts=1)
    run = Running(consumer.run)
    desk.hw.stream(good).write_many(entries(5))
    until(lambda: len(desk.effects("c")) == 5)
    desk.hw.stream(bad).write_many(entries(1))
    with pytest.raises(PoisonedBatch, match="always"):
        run.result()
    # It may run again, once somebody has seen to it; nobody has.
    with pytest.raises(PoisonedBatch, match="always"):
        Running(consumer.run).result()


# ── What is refused ──────────────────────────────────────────────────────────────────────────


def test_without_tables_it_says_how_to_make_them(
    connect: Callable[[str], Headwater], name: str, engine: sa.Engine
) -> None:
    hw = connect("plain-sync")
    consumer = Consumer("c", name, engine, hw, writes("c"))
    with pytest.raises(NotCreated, match="create_all"):
        consumer.run_once()
    with pytest.raises(NotCreated):
        consumer.run()


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("", "s"), {}),
        (("c" * 200, "s"), {}),
        (("c", []), {}),
        (("c", ["s", "s"]), {}),
        (("c", "s p"), {}),
        (("c", "s" * 198), {}),
        (("c", "s"), {"batch": 0}),
        (("c", "s"), {"attempts": 0}),
        (("c", "s"), {"start": 0}),
        (("c", "s"), {"on_error": "ignore"}),
        (("c", "s"), {"on_gap": "ignore"}),
        (("c", "s"), {"backoff_ms": -1}),
        (("c", "s"), {"on_reset": 7}),
    ],
)
def test_what_cannot_be_meant_is_refused(
    desk: Desk, arguments: tuple[Any, Any], options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        desk.consumer(*arguments, **options)


def test_a_handler_for_every_stream_is_needed(desk: Desk) -> None:
    with pytest.raises(InvalidInput, match="no handler for stream 'b'"):
        desk.consumer("c", ["a", "b"], {"a": writes("c")})
    with pytest.raises(InvalidInput, match="must be a function"):
        desk.consumer("c", "a", 5)
    with pytest.raises(InvalidInput, match="one of a, b"):
        desk.consumer("c", ["a", "b"]).seek("first")


def test_an_engine_of_the_other_manner_is_refused(connect: Callable[[str], Headwater]) -> None:
    hw: Any = connect("plain-sync")
    with pytest.raises(InvalidInput, match="use AsyncConsumer"):
        Consumer("c", "s", create_async_engine("sqlite+aiosqlite://"), hw, writes("c"))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="create_async_engine"):
        AsyncConsumer("c", "s", sa.create_engine("sqlite://"), hw, writes("c"))  # type: ignore[arg-type]


def test_a_plain_function_is_no_handler_for_an_async_consumer(
    connect: Callable[[str], Headwater],
) -> None:
    hw: Any = connect("plain-sync")
    with pytest.raises(InvalidInput, match="must be async here"):
        AsyncConsumer("c", "s", create_async_engine("sqlite+aiosqlite://"), hw, writes("c"))  # type: ignore[arg-type]


# ── The decorator ────────────────────────────────────────────────────────────────────────────


def test_a_decorated_handler_is_a_consumer(desk: Desk, name: str) -> None:
    @make_consumer("totals", stream=name, outbox=desk.engine, hw=desk.hw, batch=2)
    def totals(conn: sa.Connection, messages: list[Message]) -> None:
        writes("totals")(conn, messages)

    desk.hw.stream(name).write_many(entries(3))
    assert isinstance(totals, Consumer)
    assert (totals.run_once(), totals.run_once()) == (2, 1)
    assert desk.effects("totals") == [1, 2, 3]


# ── What it costs ────────────────────────────────────────────────────────────────────────────


def test_a_batch_costs_one_read_and_one_word_to_the_log(
    desk: Desk, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(30))
    consumer = Consumer("c", name, desk.engine, desk.hw, writes("c"), batch=10)
    consumer.run_once()
    calls: list[str] = []
    ask = desk.hw.store.ask

    def counted(request: Call | Wait, *more: Any) -> Any:
        calls.append(request.function if isinstance(request, Call) else "wait")
        return ask(request, *more)

    monkeypatch.setattr(desk.hw.store, "ask", counted)
    consumer.run_once()
    assert calls == ["hw_stream_read", "hw_stream_reader"]
