"""A desk at which consumers work: one store, one database, and a table that shows every effect.

A test body makes sync consumers only. On an async desk each of them is an AsyncConsumer on an
event loop, behind the manners of the sync one, so that one body proves both.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

import headwater
from headwater import aio
from headwater.outbox import AsyncConsumer, Consumer
from headwater.outbox.schema import SCHEMA
from tests.support.blocking import Blocking, Loop
from tests.support.servers import until
from tests.support.zygote import Zygote

EFFECTS = sa.Table(
    "effects",
    sa.MetaData(),
    sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
    sa.Column("consumer", sa.Text, nullable=False),
    sa.Column("place", sa.BigInteger, nullable=False),
)


def create_tables(engine: sa.Engine) -> None:
    """Create the tables of the outbox, and the one that shows effects."""
    SCHEMA.create(engine)
    EFFECTS.create(engine)


def writes(consumer: str) -> Callable[[sa.Connection, list[Any]], None]:
    """Return a handler that leaves a row for every message it is given.

    Effects of a partition are those of the consumer "<name>/<partition>".
    """

    def handler(conn: sa.Connection, messages: list[Any]) -> None:
        partition = getattr(messages[0], "partition", None)
        whose = consumer if partition is None else f"{consumer}/{partition}"
        rows = [{"consumer": whose, "place": message.offset} for message in messages]
        conn.execute(sa.insert(EFFECTS), rows)

    return handler


def effects(engine: sa.Engine, consumer: str) -> list[int]:
    """Name the offsets that a consumer applied, in the order in which it did."""
    query = sa.select(EFFECTS.c.place).where(EFFECTS.c.consumer == consumer)
    with engine.connect() as conn:
        return list(conn.execute(query.order_by(EFFECTS.c.number)).scalars())


def applied(engine: sa.Engine, count: int) -> Callable[[], bool]:
    """Return whether the consumer "c" has applied that many messages, as a condition."""
    return lambda: len(effects(engine, "c")) >= count


def numbers(first: int, last: int, without: Collection[int] = ()) -> list[int]:
    """Return the offsets from one to another, both included, without some."""
    return [number for number in range(first, last + 1) if number not in without]


class Desk:
    """Makes consumers of one manner, "sync" or "async", on one store and one database."""

    def __init__(self, manner: str, store_url: str, database_url: str, loop: Loop | None) -> None:
        self.manner = manner
        self._end = contextlib.ExitStack()
        self.engine = sa.create_engine(database_url)
        self._end.callback(self.engine.dispose)
        self.hw = self._end.enter_context(headwater.connect(store_url))
        create_tables(self.engine)
        if loop is not None:
            self._loop = loop
            self.async_hw: aio.AsyncHeadwater = loop.wait(aio.connect(store_url))
            self._end.callback(lambda: loop.wait(self.async_hw.close()))
            url = database_url.replace("sqlite:", "sqlite+aiosqlite:")
            self.async_engine = create_async_engine(url)
            self._end.callback(lambda: loop.wait(self.async_engine.dispose()))

    def consumer(self, name: str, stream: Any, handler: Any = None, **options: Any) -> Consumer:
        """Make a consumer; without a handler of its own it shows its effects."""
        handler = handler or writes(name)
        if self.manner == "sync":
            return Consumer(name, stream, self.engine, self.hw, handler, **options)
        if options.get("on_reset"):
            options["on_reset"] = self._awaited(options["on_reset"])
        made: Any = AsyncConsumer(
            name, stream, self.async_engine, self.async_hw, self._awaited(handler), **options
        )
        return cast("Consumer", Blocking(self._loop, made))

    def _awaited(self, function: Any) -> Any:
        if isinstance(function, dict):
            return {place: self._awaited(one) for place, one in function.items()}

        async def awaited(conn: AsyncConnection, given: Any) -> None:
            await conn.run_sync(function, given)

        return awaited if callable(function) else function

    def effects(self, consumer: str) -> list[int]:
        """See effects."""
        return effects(self.engine, consumer)

    def dispose(self) -> None:
        """Close the connections to the database; new ones are made when they are needed."""
        self.engine.dispose()
        if self.manner == "async":
            self._loop.wait(self.async_engine.dispose())

    def close(self) -> None:
        """Close what was opened."""
        self._end.close()


def drain(consumer: Consumer) -> int:
    """Run a consumer until there is nothing left; returns how many messages it handled."""
    handled = 0
    while count := consumer.run_once():
        handled += count
    return handled


class Running:
    """A consumer that runs in a thread; its error comes out when it is asked for."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self._error: BaseException | None = None
        self._run = run
        self.thread = threading.Thread(target=self._guard, daemon=True)
        self.thread.start()

    def _guard(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001  told by result
            self._error = error

    @property
    def ended(self) -> bool:
        return not self.thread.is_alive()

    def result(self) -> None:
        """Wait for its end; raises what it raised."""
        until(lambda: self.ended)
        if self._error is not None:
            raise self._error


@contextlib.contextmanager
def running(*consumers: Consumer) -> Iterator[list[Running]]:
    """Let consumers run for a while; they must end by themselves when asked to."""
    runs = [Running(consumer.run) for consumer in consumers]
    try:
        yield runs
    finally:
        for consumer in consumers:
            consumer.stop()
    for run in runs:
        run.result()


# ── Consumers "c" of one stream as processes of their own, which may be killed: see members.py ───


class ConsumerProcesses:
    """Starts consumers of one name, on one database, one store and one stream or topic."""

    def __init__(self, members: Zygote, database_url: str, store_url: str, stream: str) -> None:
        self._members = members
        self._places = (database_url, store_url)
        self._stream = stream

    def start(self, **order: Any) -> int:
        """Start a consumer; members.py tells what can be ordered. Returns its pid."""
        return self._members.start(*self._places, name="c", stream=self._stream, **order)

    def run(self, **order: Any) -> int:
        """Start a consumer that ends by itself, and wait for that; returns its exit code."""
        return self.wait(self.start(**order))

    def wait(self, pid: int) -> int:
        """Wait for the end of a process; returns its exit code, -9 for kill -9."""
        return self._members.wait(pid)

    def end(self, pid: int, number: int = signal.SIGTERM) -> int:
        """Send a process a signal, and wait for its end."""
        return self._members.end(pid, number)
