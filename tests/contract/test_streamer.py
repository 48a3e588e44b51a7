"""Every committed row is in its stream once, and what is there is deleted, no more and no less."""

from __future__ import annotations

import random
from typing import Any

import pytest
import sqlalchemy as sa

from headwater import Headwater
from headwater.errors import (
    InvalidInput,
)
from headwater.outbox import Outbox, Streamer
from tests.support.books import Books, Transaction
from tests.support.stores import Stores
from tests.support.streamers import MakeStreamer, drain

on_postgres = pytest.mark.parametrize("database_url", ["postgres"], indirect=True)


@pytest.fixture
def store_url(stores: Stores) -> str:
    return stores.url("plain")


# ── From the table to the log ────────────────────────────────────────────────────────────────


def test_rows_go_to_their_streams_and_leave_the_outbox(
    engine: sa.Engine, outbox: Outbox, streamer: Streamer, hw: Headwater, name: str
) -> None:
    with engine.begin() as conn:
        outbox.stage(conn, name, "t1", b"\x00\xff")
        outbox.stage_many(conn, name, [("t2", "two"), ("ünï", {"n": 3})])
    assert streamer.run_once() == 3
    found = [(m.tag, m.value) for m in hw.stream(name).read(1, 10) if m]
    assert found == [("t1", b"\x00\xff"), ("t2", b"two"), ("ünï", b'{"n":3}')]
    assert outbox.status().backlog == 0
    assert streamer.run_once() == 0


def test_what_is_not_committed_is_never_seen(
    engine: sa.Engine, outbox: Outbox, streamer: Streamer, hw: Headwater, name: str
) -> None:
    conn = engine.connect()
    outbox.stage(conn, name, "t", b"")
    assert streamer.run_once() == 0
    conn.rollback()
    conn.close()
    assert streamer.run_once() == 0
    assert hw.stream(name).info().last == 0


@pytest.mark.parametrize("count", [0, 1, 2, 999, 1000, 1001, 2500, 20_000, 43_210])
def test_any_backlog_goes_through(
    engine: sa.Engine, outbox: Outbox, streamer: Streamer, hw: Headwater, name: str, count: int
) -> None:
    with engine.begin() as conn:
        outbox.stage_many(conn, name, [(str(n), b"") for n in range(1, count + 1)])
    assert drain(streamer) == count
    assert outbox.status().backlog == 0
    offsets = 0
    for batch in hw.stream(name).scan():
        assert batch.column("offset").to_pylist() == [int(t.as_py()) for t in batch.column("tag")]
        offsets += batch.num_rows
    assert offsets == count


@pytest.mark.parametrize("batch", [1, 7, 100, 10_000])
def test_batches_may_have_any_size(
    engine: sa.Engine,
    books: Books,
    make_streamer: MakeStreamer,
    hw: Headwater,
    batch: int,
) -> None:
    for _ in range(10):
        books.commit_one(engine, "a", "b", "a")
    streamer = make_streamer(batch=batch)
    assert streamer.run_once() == min(batch, 30)
    drain(streamer)
    assert books.anomalies(hw) == []


@pytest.mark.parametrize("batch", [0, -1, 10_001, 1.5, None])
def test_a_batch_is_a_number_of_rows(outbox: Outbox, hw: Headwater, batch: Any) -> None:
    with pytest.raises(InvalidInput, match="batch"):
        Streamer(outbox, hw, batch=batch)


def test_many_streams_share_a_batch(
    engine: sa.Engine, books: Books, streamer: Streamer, hw: Headwater
) -> None:
    streams = [f"s{n}" for n in range(150)]
    for seed in range(5):
        books.commit_one(engine, *random.Random(seed).sample(streams, len(streams)))
    assert streamer.run_once() == 750
    assert books.anomalies(hw) == []
    assert streamer.progress.batches == 1


def test_large_values_go_in_several_batches(
    engine: sa.Engine, outbox: Outbox, streamer: Streamer, hw: Headwater, name: str
) -> None:
    sizes = [12_000_000, 16 * 1024 * 1024, 5, 16 * 1024 * 1024, 16 * 1024 * 1024, 7]
    with engine.begin() as conn:
        outbox.stage_many(conn, name, [(str(n), bytes(size)) for n, size in enumerate(sizes)])
    assert [streamer.run_once() for _ in range(4)] == [3, 1, 2, 0]
    found = hw.stream(name).read(1, 10)
    assert [(m.tag, len(m.value)) for m in found if m] == [
        (str(n), size) for n, size in enumerate(sizes)
    ]


def test_the_order_of_every_stream_is_that_of_the_transaction(
    engine: sa.Engine, books: Books, make_streamer: MakeStreamer, hw: Headwater
) -> None:
    for seed in range(20):
        books.commit_one(engine, *random.Random(seed).choices("abc", k=17))
    drain(make_streamer(batch=10))
    assert books.anomalies(hw) == []


# ── Exactly what was appended is deleted ─────────────────────────────────────────────────────


def test_rows_that_come_while_a_batch_is_on_its_way_stay_for_the_next(
    engine: sa.Engine,
    outbox: Outbox,
    books: Books,
    make_streamer: MakeStreamer,
    hw: Headwater,
) -> None:
    def interfere(step: str) -> None:
        if step.startswith(("claimed", "appended")) and len(books.transactions) < 5:
            books.commit_one(engine, "a", "b")

    streamer = make_streamer(steps=interfere, batch=2)
    books.commit_one(engine, "a", "a")
    assert streamer.run_once() == 2
    assert outbox.status().backlog == books.count() - 2 > 0
    drain(streamer)
    assert books.anomalies(hw) == []


def test_a_row_with_a_lower_id_that_comes_later_is_not_skipped(
    engine: sa.Engine, streamer: Streamer, hw: Headwater, name: str
) -> None:
    insert = sa.text(
        "INSERT INTO headwater_outbox (id, stream, tag, value) "
        f"{'OVERRIDING SYSTEM VALUE' if engine.dialect.name == 'postgresql' else ''} "
        "VALUES (:id, :stream, :tag, :value)"
    )
    for order, number in enumerate([1000, 5, 999, 1, 1001, 2], start=1):
        with engine.begin() as conn:
            conn.execute(insert, {"id": number, "stream": name, "tag": str(number), "value": b"v"})
        assert streamer.run_once() == 1
        assert hw.stream(name).info().last == order


@on_postgres
def test_a_slow_transaction_is_neither_skipped_nor_waited_for(
    engine: sa.Engine, books: Books, make_streamer: MakeStreamer, hw: Headwater
) -> None:
    streamer = make_streamer(batch=3)
    slow, conn = books.begin(), engine.connect()
    books.stage(conn, slow, "a", "b")
    for _ in range(4):
        books.commit_one(engine, "a", "b")
    assert drain(streamer) == 8
    books.stage(conn, slow, "a")
    books.commit_one(engine, "a", "b")
    conn.commit()
    slow.committed = True
    conn.close()
    assert drain(streamer) == 5
    assert books.anomalies(hw) == []


@on_postgres
@pytest.mark.parametrize("seed", range(25))
def test_any_schedule_of_commits_is_streamed_once_and_in_order(
    engine: sa.Engine,
    books: Books,
    make_streamer: MakeStreamer,
    hw: Headwater,
    seed: int,
) -> None:
    dice = random.Random(seed)
    streamers = [make_streamer(batch=dice.choice([1, 2, 3, 5])) for _ in range(2)]
    opened: list[tuple[Transaction, sa.Connection]] = []
    for _ in range(120):
        what = dice.choice(["begin", "stage", "stage", "stage", "commit", "abort", "stream"])
        if what == "begin" and len(opened) < 4:
            opened.append((books.begin(), engine.connect()))
        elif what == "stream":
            dice.choice(streamers).run_once()
        elif opened and what == "stage":
            transaction, conn = dice.choice(opened)
            books.stage(conn, transaction, *dice.choices("ab", k=dice.randint(1, 3)))
        elif opened and what in ("commit", "abort"):
            transaction, conn = opened.pop(dice.randrange(len(opened)))
            (conn.commit if what == "commit" else conn.rollback)()
            transaction.committed = what == "commit"
            conn.close()
    for _, conn in opened:
        conn.close()
    drain(streamers[0])
    assert books.anomalies(hw) == []
