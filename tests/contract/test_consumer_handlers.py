"""A handler leaves its transaction alone, and what cannot be a handler or an option is refused."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import sqlite3
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from headwater import DatabaseRefused, Headwater, Message, aio
from headwater.errors import (
    GapError,
    InvalidInput,
    NotCreated,
    PoisonedBatch,
    PositionLost,
    TransactionEnded,
    Undecodable,
)
from headwater.outbox import AsyncConsumer, Consumer
from headwater.outbox.consumer_loop import Handler
from tests.support.blocking import Loop
from tests.support.consumers import EFFECTS, Desk, drain, numbers, running, writes
from tests.support.entries import entries, offsets, pairs
from tests.support.postgres import Postgres
from tests.support.servers import until
from tests.support.stores import Stores

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


def test_a_handler_that_hides_an_error_of_the_database_fails(desk: Desk, name: str) -> None:
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


# ── What a consumer does about a value that does not fit the codec: no retry changes that ────────


def reads_data(tries: list[int]) -> Handler:
    """Return a handler that writes its effects, and then reads the data of every message."""

    def handler(conn: sa.Connection, messages: list[Message]) -> None:
        tries.append(messages[0].offset)
        writes("c")(conn, messages)
        for message in messages:
            assert message.data

    return handler


def test_a_value_that_does_not_fit_stops_the_consumer_at_once_with_its_offset(
    desk: Desk, name: str
) -> None:
    desk.hw.stream(name).write_many([("t", b"[%d]" % n) for n in range(1, 9)])
    desk.hw.stream(name).write_many([("t", b"{"), ("t", b"[9]")])
    tries: list[int] = []
    typed = desk.hw.stream(name, codec="json")
    consumer = desk.consumer("c", typed, reads_data(tries), attempts=5, backoff_ms=60_000)
    with pytest.raises(PoisonedBatch, match=f"once on offset 9 of stream '{name}'") as caught:
        consumer.run()
    assert (caught.value.first, caught.value.last, caught.value.attempts) == (9, 9, 1)
    assert isinstance(caught.value.__cause__, Undecodable)
    assert (tries, desk.effects("c"), consumer.positions()) == ([1], [], {name: 1})


def test_a_value_that_does_not_fit_is_skipped_without_retries(
    desk: Desk, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    misfits = {3, 4, 90}
    desk.hw.stream(name).write_many(
        [("t", b"hunter2" if n in misfits else b"[%d]" % n) for n in range(1, 101)]
    )
    tries: list[int] = []
    consumer = desk.consumer(
        "c", desk.hw.stream(name, codec="json"), reads_data(tries), on_error="skip", attempts=9
    )
    with caplog.at_level(logging.WARNING, "headwater.outbox"):
        assert drain(consumer) == 97
    assert desk.effects("c") == numbers(1, 100, misfits)
    assert len(desk.hw.stream(f"{name}.c.sql-dead").read(1, 10)) == 3
    assert len(tries) < 40
    assert [f"offset {n}" in caplog.text for n in misfits] == [True] * 3
    assert "hunter2" not in caplog.text


# ── What a consumer does about messages it cannot handle, and about messages it cannot have ──────


def cannot_handle(guilty: Collection[int], tries: list[tuple[int, int]] | None = None) -> Handler:
    """Return a handler that fails on some offsets, after it wrote the effects of the batch."""

    def handler(conn: sa.Connection, messages: list[Message]) -> None:
        if tries is not None:
            tries.append((messages[0].offset, messages[-1].offset))
        writes("c")(conn, messages)
        for message in messages:
            if message.offset in guilty:
                raise ValueError(f"cannot handle {message.offset}")

    return handler


# ── Poison: stop ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("attempts", [1, 4])
def test_a_poisoned_batch_stops_the_consumer_with_the_facts(
    desk: Desk, name: str, attempts: int
) -> None:
    desk.hw.stream(name).write_many(entries(30))
    tries: list[tuple[int, int]] = []
    handler = cannot_handle({17}, tries)
    consumer = desk.consumer("c", name, handler, batch=10, attempts=attempts, backoff_ms=1)
    with pytest.raises(PoisonedBatch, match="cannot handle 17") as caught:
        consumer.run()
    error = caught.value
    assert (error.consumer, error.stream, error.attempts) == ("c", name, attempts)
    assert (error.first, error.last) == (11, 20)
    assert isinstance(error.__cause__, ValueError)
    assert tries == [(1, 10)] + [(11, 20)] * attempts
    assert desk.effects("c") == numbers(1, 10)
    assert consumer.positions() == {name: 11}
    assert desk.hw.stream(name).info().readers == {"consumer:c": 11}


def test_a_handler_that_fails_for_a_while_is_tried_again(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(5))
    tries = 0

    def handler(conn: sa.Connection, messages: list[Message]) -> None:
        nonlocal tries
        tries += 1
        writes("c")(conn, messages)
        if tries < 4:
            raise RuntimeError("not yet")

    consumer = desk.consumer("c", name, handler, attempts=4, backoff_ms=1)
    assert consumer.run_once() == 5
    assert (tries, desk.effects("c")) == (4, numbers(1, 5))


def test_failures_are_counted_anew_for_every_batch(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(40))
    failed: set[int] = set()

    def handler(conn: sa.Connection, messages: list[Message]) -> None:
        writes("c")(conn, messages)
        if messages[0].offset not in failed:
            failed.add(messages[0].offset)
            raise RuntimeError("the first time")

    consumer = desk.consumer("c", name, handler, batch=4, attempts=2, backoff_ms=1)
    assert drain(consumer) == 40
    assert desk.effects("c") == numbers(1, 40)


# ── Poison: skip ─────────────────────────────────────────────────────────────────────────────


SCATTERED = {1, 20, 21, 39, 40}


# Every choice of the guilty in batches that do not fit the log; in the other sizes, the hardest.
@pytest.mark.parametrize(
    ("guilty", "batch"),
    [
        pytest.param(
            guilty,
            batch,
            id=f"{len(guilty)}-from-{min(guilty)}-{batch}",
            marks=() if batch == 24 or guilty == SCATTERED else pytest.mark.long,
        )
        for guilty in ({1}, {40}, {17}, {17, 18}, SCATTERED, set(range(1, 41)))
        for batch in (1, 24, 1000)
    ],
)
def test_only_the_guilty_messages_are_given_up(
    desk: Desk, name: str, guilty: set[int], batch: int
) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(40))
    consumer = desk.consumer(
        "c", name, cannot_handle(guilty), batch=batch, on_error="skip", attempts=2, backoff_ms=0
    )
    assert drain(consumer) == 40 - len(guilty)
    assert desk.effects("c") == numbers(1, 40, guilty)
    assert consumer.positions() == {name: 41}
    letters = desk.hw.stream(f"{name}.c.sql-dead").read(1, 1000)
    assert pairs(letters) == [entries(1, offset)[0] for offset in sorted(guilty)]
    assert consumer.stats.dead == len(guilty)


def test_one_guilty_message_of_many_is_found_in_a_few_tries(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(1000))
    tries: list[tuple[int, int]] = []
    handler = cannot_handle({617}, tries)
    consumer = desk.consumer("c", name, handler, on_error="skip", attempts=3, backoff_ms=0)
    assert drain(consumer) == 999
    assert tries.count((617, 617)) == 3, "it had its chances, alone"
    assert len(tries) < 45


def test_the_next_batches_are_whole_again(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(300))
    tries: list[tuple[int, int]] = []
    handler = cannot_handle({3}, tries)
    consumer = desk.consumer(
        "c", name, handler, batch=100, on_error="skip", attempts=1, backoff_ms=0
    )
    drain(consumer)
    assert tries[-2:] == [(101, 200), (201, 300)]


def test_a_neighbour_that_fails_once_meanwhile_is_not_given_up(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(8))
    flaky: set[int] = set()

    def handler(conn: sa.Connection, messages: list[Message]) -> None:
        if len(messages) == 1 and messages[0].offset not in flaky:
            flaky.add(messages[0].offset)
            raise RuntimeError("the first time alone")
        cannot_handle({5})(conn, messages)

    consumer = desk.consumer("c", name, handler, on_error="skip", attempts=2, backoff_ms=0)
    drain(consumer)
    assert desk.effects("c") == numbers(1, 8, {5})
    assert len(desk.hw.stream(f"{name}.c.sql-dead").read(1, 10)) == 1


def test_dead_letters_can_be_consumed_like_any_stream(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(8))
    desk.hw.stream(name).write_many([(*entry, {"a": b"1"}) for entry in entries(12, 9)])
    consumer = desk.consumer(
        "c", name, cannot_handle({4, 9}), on_error="skip", attempts=1, backoff_ms=0
    )
    drain(consumer)
    seen: list[Message] = []
    redriven = desk.consumer("c", f"{name}.c.sql-dead", lambda _, messages: seen.extend(messages))
    assert drain(redriven) == 2
    assert pairs(seen) == [entries(1, 4)[0], entries(1, 9)[0]]
    own = [{key: message.headers[key] for key in message.headers if key == "a"} for message in seen]
    assert own == [{}, {"a": b"1"}]
    assert [message.headers["hw.dead-offset"] for message in seen] == [b"4", b"9"]
    assert drain(redriven) == 0


def test_no_letter_is_lost_when_a_consumer_was_sent_back(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(20))
    consumer = desk.consumer(
        "c", name, cannot_handle({4, 9}), on_error="skip", attempts=1, backoff_ms=0
    )
    drain(consumer)
    consumer.seek(2)
    drain(consumer)
    assert desk.effects("c") == numbers(1, 20, {4, 9}) + numbers(2, 20, {4, 9})
    assert {m.value for m in desk.hw.stream(f"{name}.c.sql-dead").read(1, 9) if m} == {
        b"value-4",
        b"value-9",
    }


def test_trouble_of_the_database_is_no_fault_of_the_messages(desk: Desk, name: str) -> None:
    """A deadlock, a lock, a lost connection in the handler is waited out, however often."""
    desk.hw.stream(name).write_many(entries(5))
    left = 4

    def handler(conn: sa.Connection, messages: list[Message]) -> None:
        nonlocal left
        writes("c")(conn, messages)
        if left:
            left -= 1
            raise_locked(conn)

    consumer = desk.consumer("c", name, handler, on_error="skip", attempts=1, backoff_ms=0)
    with running(consumer):
        until(lambda: desk.effects("c"))
    assert (left, desk.effects("c"), consumer.stats.dead) == (0, numbers(1, 5), 0)


def raise_locked(conn: sa.Connection) -> None:
    """Fail as a database fails that cannot do it now."""
    if conn.dialect.name == "sqlite":
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise sa.exc.OperationalError("UPDATE", None, error)
    conn.exec_driver_sql("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40P01'; END $$")


# ── Gaps ─────────────────────────────────────────────────────────────────────────────────────


def consumed_then_evicted(desk: Desk, name: str, upto: int) -> None:
    """Have consumer c apply 1 to 10 of 100 messages; then force an eviction."""
    stream = desk.hw.stream(name)
    stream.write_many(entries(100))
    desk.consumer("c", name, batch=10).run_once()
    stream.evict(upto)


@pytest.mark.parametrize("upto", [11, 50, 100])
def test_a_gap_stops_the_consumer_with_its_exact_range(desk: Desk, name: str, upto: int) -> None:
    consumed_then_evicted(desk, name, upto)
    consumer = desk.consumer("c", name)
    for act in (consumer.run_once, consumer.run):
        with pytest.raises(GapError, match=f"11 to {upto}") as caught:
            act()
        assert (caught.value.first, caught.value.last) == (11, upto)
        assert (caught.value.consumer, caught.value.stream) == ("c", name)
    assert consumer.positions() == {name: 11}
    consumer.seek(upto + 1)
    assert drain(consumer) == 100 - upto
    assert desk.effects("c") == numbers(1, 10) + numbers(upto + 1, 100)


@pytest.mark.parametrize("upto", [11, 50, 100])
def test_a_gap_may_be_skipped_and_is_counted(
    desk: Desk, name: str, upto: int, caplog: pytest.LogCaptureFixture
) -> None:
    consumed_then_evicted(desk, name, upto)
    consumer = desk.consumer("c", name, on_gap="skip")
    with caplog.at_level(logging.WARNING, "headwater.outbox"):
        assert drain(consumer) == 100 - upto
    assert consumer.stats.gaps == [(name, 11, upto)]
    assert consumer.stats.missed == upto - 10
    assert [f"11 to {upto}" in record.getMessage() for record in caplog.records] == [True]
    assert desk.effects("c") == numbers(1, 10) + numbers(upto + 1, 100)
    assert consumer.positions() == {name: 101}


def test_evicted_offsets_count_as_missed_and_empty_ones_do_not(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(100, tags=1))
    consumer = desk.consumer("c", name, on_gap="skip", start=5)
    stream.compact()
    stream.evict(60)
    assert drain(consumer) == 1
    assert consumer.stats.gaps == [(name, 5, 60)]
    assert desk.effects("c") == [100]


def test_what_was_evicted_before_there_was_a_consumer_is_no_gap(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(100))
    stream.evict(60)
    assert drain(desk.consumer("c", name)) == 40


def test_what_another_process_of_the_name_has_applied_is_no_gap(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(100))
    first, second = (desk.consumer("c", name, batch=10) for _ in range(2))
    first.run_once()
    drain(second)
    assert stream.retain(max_count=5).evicted == 95
    stream.write_many(entries(1, 101))
    assert drain(first) == 1
    assert first.stats.gaps == []
    assert desk.effects("c") == numbers(1, 101)


def test_a_log_that_ends_before_the_position_is_not_waited_for(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(50))
    consumer = desk.consumer("c", name)
    drain(consumer)
    stream.delete()
    stream.write_many(entries(20))
    acts: list[Callable[[], object]] = [consumer.run_once, consumer.run]
    for act in acts:
        with pytest.raises(PositionLost, match="ends at 20") as caught:
            act()
        assert (caught.value.position, caught.value.last) == (51, 20)
    consumer.seek("first")
    assert drain(consumer) == 20


def test_a_running_consumer_meets_a_gap_at_once(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(10))

    def evicts(conn: sa.Connection, messages: list[Message]) -> None:
        writes("c")(conn, messages)
        if messages[0].offset == 1:
            stream.evict(7)

    consumer = desk.consumer("c", name, evicts, batch=4)
    with pytest.raises(GapError, match="5 to 7"):
        consumer.run()
    assert offsets(stream.read(1, 20)) == [8, 9, 10]


# A consumer whose database user may do less than it needs: an error with a cure, nothing lost.


@contextlib.contextmanager
def reading_only(desk: Desk) -> Iterator[None]:
    """Take away the right to change our tables from all connections that are made meanwhile."""
    role = f"reader_{secrets.token_hex(4)}"
    limit = "PRAGMA query_only = 1"
    if desk.engine.dialect.name == "postgresql":
        with desk.engine.begin() as conn:
            conn.exec_driver_sql(f"CREATE ROLE {role}")
            conn.exec_driver_sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
            conn.exec_driver_sql(f"GRANT INSERT ON effects TO {role}")
        limit = f"SET ROLE {role}"

    def restrict(connection: Any, _: object) -> None:
        with contextlib.closing(connection.cursor()) as cursor:
            cursor.execute(limit)
        connection.commit()

    engine = desk.engine if desk.manner == "sync" else desk.async_engine.sync_engine
    desk.dispose()
    sa.event.listen(engine, "connect", restrict)
    try:
        yield
    finally:
        sa.event.remove(engine, "connect", restrict)
        desk.dispose()


def test_a_missing_right_is_named_and_nothing_is_lost_or_applied_twice(
    desk: Desk, name: str
) -> None:
    desk.hw.stream(name).write_many(entries(2))
    reader = desk.consumer("c", name)
    assert drain(reader) == 2
    desk.hw.stream(name).write_many(entries(2))
    with reading_only(desk), pytest.raises(DatabaseRefused, match="give the user the rights"):
        reader.run_once()
    assert desk.effects("c") == [1, 2]
    assert drain(reader) == 2
    assert desk.effects("c") == [1, 2, 3, 4]
