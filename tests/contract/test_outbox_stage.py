"""What staging promises: in the caller's transaction, by any connection, and checked before."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from headwater.errors import InvalidInput, NotCreated
from headwater.outbox import Outbox
from tests.support.transactions import WAYS, async_url, transact

by_every_way = pytest.mark.parametrize(
    ("database_url", "way"),
    [(database, way) for database, ways in WAYS.items() for way in ways],
    indirect=["database_url"],
)


@pytest.fixture
def outbox(engine: sa.Engine) -> Outbox:
    outbox = Outbox(engine)
    outbox.create_all()
    return outbox


def staged(engine: sa.Engine) -> list[tuple[str, str, bytes]]:
    with engine.connect() as conn:
        rows = conn.exec_driver_sql("SELECT stream, tag, value FROM headwater_outbox ORDER BY id")
        return [(stream, tag, bytes(value)) for stream, tag, value in rows]


# ── The transaction is the caller's ──────────────────────────────────────────────────────────


@by_every_way
def test_what_is_committed_is_staged_in_order(engine: sa.Engine, outbox: Outbox, way: str) -> None:
    transact(
        way,
        engine,
        lambda conn: outbox.stage(conn, "a", "t1", b"one"),
        lambda conn: outbox.stage_many(conn, "b", [("t2", "two"), ("t3", {"n": 3})]),
        lambda conn: outbox.stage_many(conn, "c", []),
        lambda conn: outbox.stage(conn, "a", "ünï", bytes(range(256))),
    )
    assert staged(engine) == [
        ("a", "t1", b"one"),
        ("b", "t2", b"two"),
        ("b", "t3", b'{"n":3}'),
        ("a", "ünï", bytes(range(256))),
    ]


@by_every_way
def test_what_is_rolled_back_is_not_staged(engine: sa.Engine, outbox: Outbox, way: str) -> None:
    transact(
        way,
        engine,
        lambda conn: outbox.stage(conn, "a", "t", b"v"),
        lambda conn: outbox.stage_many(conn, "a", [("t", b"v")] * 3),
        commit=False,
    )
    assert staged(engine) == []


@by_every_way
def test_many_are_staged_in_order_however_many(engine: sa.Engine, outbox: Outbox, way: str) -> None:
    entries = [(f"t{n}", f"value {n}") for n in range(2345)]
    transact(way, engine, lambda conn: outbox.stage_many(conn, "s", iter(entries)))
    assert [(tag, value.decode()) for _, tag, value in staged(engine)] == entries


def test_large_values_are_staged(engine: sa.Engine, outbox: Outbox) -> None:
    large = bytes(16 * 1024 * 1024)
    with engine.begin() as conn:
        outbox.stage(conn, "s", "t", large)
        outbox.stage_many(conn, "s", [("t", large), ("t", b"small"), ("t", large)])
    assert [len(value) for _, _, value in staged(engine)] == [len(large), len(large), 5, len(large)]


def test_staging_shares_the_fate_of_the_application_s_own_rows(
    engine: sa.Engine, outbox: Outbox
) -> None:
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE rides (id INTEGER PRIMARY KEY)")

    def ride(conn: sa.Connection) -> None:
        conn.exec_driver_sql("INSERT INTO rides VALUES (1)")
        outbox.stage(conn, "rides", "ride-1", b"")
        conn.exec_driver_sql("INSERT INTO rides VALUES (1)")

    with pytest.raises(sa.exc.IntegrityError), engine.begin() as conn:
        ride(conn)
    assert staged(engine) == []


def test_a_savepoint_that_is_rolled_back_takes_its_rows_along(
    engine: sa.Engine, outbox: Outbox
) -> None:
    with engine.begin() as conn:
        outbox.stage(conn, "s", "kept", b"")
        inner = conn.begin_nested()
        outbox.stage(conn, "s", "gone", b"")
        inner.rollback()
        outbox.stage(conn, "s", "kept too", b"")
    assert [tag for _, tag, _ in staged(engine)] == ["kept", "kept too"]


# ── Values ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", b""),
        (b"\x00\xff", b"\x00\xff"),
        (bytearray(b"abc"), b"abc"),
        (memoryview(b"abc"), b"abc"),
        ("text ü", "text ü".encode()),
        ({"a": [1, 2.5, None, True]}, b'{"a":[1,2.5,null,true]}'),
        (None, b"null"),
        (12, b"12"),
        (Decimal("0.10"), b'"0.10"'),
        (dt.date(2017, 11, 8), b'"2017-11-08"'),
    ],
)
def test_a_value_is_bytes_or_text_or_becomes_json(
    engine: sa.Engine, outbox: Outbox, value: Any, expected: bytes
) -> None:
    with engine.begin() as conn:
        outbox.stage(conn, "s", "t", value)
    assert staged(engine) == [("s", "t", expected)]


def test_another_codec_may_take_the_place_of_json(engine: sa.Engine) -> None:
    other = Outbox(engine, encode=lambda value: f"<{value}>".encode())
    other.create_all()
    with engine.begin() as conn:
        other.stage(conn, "s", "t", 5)
        other.stage(conn, "s", "t", b"5")
        other.stage(conn, "s", "t", "5")
    assert [value for _, _, value in staged(engine)] == [b"<5>", b"5", b"5"]


# ── Refused before the insert ────────────────────────────────────────────────────────────────

BAD: dict[str, Callable[[Any, Any], Any]] = {
    "empty stream": lambda o, c: o.stage(c, "", "t", b""),
    "long stream": lambda o, c: o.stage(c, "x" * 201, "t", b""),
    "white space": lambda o, c: o.stage(c, "a b", "t", b""),
    "brace": lambda o, c: o.stage(c, "a{", "t", b""),
    "stream is no str": lambda o, c: o.stage(c, 5, "t", b""),
    "tag is no str": lambda o, c: o.stage(c, "s", b"t", b""),
    "tag is None": lambda o, c: o.stage(c, "s", None, b""),
    "long tag": lambda o, c: o.stage(c, "s", "ü" * 2049, b""),
    "NUL in tag": lambda o, c: o.stage(c, "s", "a\0b", b""),
    "half a sign": lambda o, c: o.stage(c, "s", "\ud800", b""),
    "half a sign as value": lambda o, c: o.stage(c, "s", "t", "\ud800"),
    "large value": lambda o, c: o.stage(c, "s", "t", b"x" * (16 * 1024 * 1024 + 1)),
    "not JSON": lambda o, c: o.stage(c, "s", "t", object()),
    "no pairs": lambda o, c: o.stage_many(c, "s", ["ab", "cd"]),
    "a dict": lambda o, c: o.stage_many(c, "s", {"ab": b""}),
    "triples": lambda o, c: o.stage_many(c, "s", [("t", b"", 1)]),
    "not many": lambda o, c: o.stage_many(c, "s", 5),
    "bad stream, no entries": lambda o, c: o.stage_many(c, "", []),
    "one of many": lambda o, c: o.stage_many(c, "s", [("t", b""), ("t\0", b"")]),
}


@pytest.mark.parametrize("bad", BAD)
def test_what_the_log_would_not_take_is_refused_and_the_transaction_lives_on(
    engine: sa.Engine, outbox: Outbox, bad: str
) -> None:
    with engine.begin() as conn:
        outbox.stage(conn, "s", "before", b"")
        with pytest.raises(InvalidInput):
            BAD[bad](outbox, conn)
        outbox.stage(conn, "s", "after", b"")
    assert [tag for _, tag, _ in staged(engine)] == ["before", "after"]


@pytest.mark.parametrize("tag", ["", "x" * 4096, "ü" * 2048, "tab\tand\nline", "🚀"])
def test_every_tag_of_the_log_but_nul_can_be_staged(
    engine: sa.Engine, outbox: Outbox, tag: str
) -> None:
    with engine.begin() as conn:
        outbox.stage(conn, "s", tag, b"")
    assert staged(engine) == [("s", tag, b"")]


@pytest.mark.parametrize("conn", [None, "sqlite://", object()])
def test_what_is_no_connection_is_refused(outbox: Outbox, conn: Any) -> None:
    with pytest.raises(InvalidInput, match="cannot stage with"):
        outbox.stage(conn, "s", "t", b"")


def test_an_engine_is_no_connection(outbox: Outbox) -> None:
    with pytest.raises(InvalidInput, match="your transaction"):
        outbox.stage(outbox.engine, "s", "t", b"")  # type: ignore[call-overload]


@pytest.mark.parametrize("engine", [None, "sqlite://", 5])
def test_an_outbox_needs_an_engine(engine: Any) -> None:
    with pytest.raises(InvalidInput, match="engine"):
        Outbox(engine)


# ── Creation ─────────────────────────────────────────────────────────────────────────────────


@by_every_way
def test_missing_tables_are_named_with_the_cure(engine: sa.Engine, way: str) -> None:
    outbox = Outbox(engine)
    with pytest.raises(NotCreated, match="create_all"):
        transact(way, engine, lambda conn: outbox.stage(conn, "s", "t", b"v"))


def test_creating_again_keeps_what_is_there(engine: sa.Engine, outbox: Outbox) -> None:
    with engine.begin() as conn:
        outbox.stage(conn, "s", "t", b"v")
    outbox.create_all()
    assert len(staged(engine)) == 1


def test_many_may_create_at_once(engine: sa.Engine) -> None:
    faults: list[Exception] = []
    ready = threading.Barrier(4)

    def create() -> None:
        ready.wait()
        try:
            Outbox(engine).create_all()
        except Exception as error:  # noqa: BLE001  told below
            faults.append(error)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert Outbox(engine).status().backlog == 0


def test_an_async_engine_creates_the_same(engine: sa.Engine) -> None:
    async def create() -> None:
        other = create_async_engine(async_url(engine.url))
        await Outbox(other).create_all()
        await Outbox(other).create_all()
        async with other.begin() as conn:
            await Outbox(other).stage(conn, "s", "t", b"v")
        assert Outbox(other).status().backlog == 1
        await other.dispose()

    asyncio.run(create())
    assert staged(engine) == [("s", "t", b"v")]


def test_a_file_is_set_to_wal_mode(tmp_path: Any) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/app.db")
    Outbox(engine).create_all()
    with engine.connect() as conn:
        assert conn.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    engine.dispose()
