"""A handler leaves its transaction alone, and what cannot be a handler or an option is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from headwater import Headwater, Message, aio
from headwater.errors import (
    InvalidInput,
    NotCreated,
    TransactionEnded,
)
from headwater.outbox import AsyncConsumer, Consumer
from tests.support.blocking import Loop
from tests.support.consumers import EFFECTS, Desk, numbers, running, writes
from tests.support.entries import entries
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
