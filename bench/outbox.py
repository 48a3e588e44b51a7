"""From a transaction to a consumer's transaction: the streamer and consumers against bare SQL."""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
import sqlalchemy as sa

import headwater
from bench.events import events
from bench.harness import Row, interleave, rate, server, socket_url
from headwater.outbox import Consumer, Outbox, Streamer
from tests.support.postgres import Postgres, postgres_folder

BATCH = 1000
ROWS = 30_000


@dataclass
class Place:
    """A database, a store beside it, and rows to move from one to the other."""

    name: str
    engine: sa.Engine
    native: redis.Redis
    rounds: int
    rows: int
    hw: headwater.Headwater = field(init=False)
    outbox: Outbox[sa.Engine] = field(init=False)
    pairs: list[tuple[str, bytes]] = field(init=False)

    def __post_init__(self) -> None:
        self.hw = headwater.connect(socket_url(self.native))
        self.outbox = Outbox(self.engine)
        self.outbox.create_all()
        self.pairs = events(self.rows)
        with self.engine.begin() as conn:
            conn.execute(sa.text("CREATE TABLE took (one int PRIMARY KEY, total bigint)"))
            conn.execute(sa.text("INSERT INTO took VALUES (1, 0)"))
            blob = "bytea" if self.engine.dialect.name == "postgresql" else "blob"
            key = "bigserial PRIMARY KEY" if blob == "bytea" else "integer PRIMARY KEY"
            columns = f"id {key}, stream text, tag text, value {blob}"
            conn.execute(sa.text(f"CREATE TABLE bare ({columns})"))

    def stage(self, rows: int, stream: str = "rides") -> None:
        for at in range(0, rows, self.rows):
            with self.engine.begin() as conn:
                self.outbox.stage_many(conn, stream, self.pairs[: min(self.rows, rows - at)])

    def fill_bare(self) -> None:
        with self.engine.begin() as conn:
            rows = [{"s": "rides", "t": tag, "v": value} for tag, value in self.pairs]
            conn.execute(sa.text("INSERT INTO bare (stream, tag, value) VALUES (:s, :t, :v)"), rows)


@contextmanager
def places(rounds: int, rows: int) -> Iterator[list[Place]]:
    """Open SQLite and Postgres, both synced to disk at every commit, each with a store."""
    folder = postgres_folder()
    if folder is None:
        raise RuntimeError("no Postgres to measure against: install what requirements.txt pins")
    with (
        tempfile.TemporaryDirectory(prefix="hw-bench-") as files,
        Postgres(folder, fsync="on", full_page_writes="on", shared_buffers="128MB") as postgres,
        server("always") as native,
    ):
        path = Path(files) / "app.db"
        yield [
            Place("SQLite", sa.create_engine(f"sqlite:///{path}"), native, rounds, rows),
            Place("Postgres", sa.create_engine(postgres.database()), native, rounds, rows),
        ]


def bare_loop(place: Place, each: Callable[[list[Any]], object]) -> Callable[[], float]:
    """Select and delete 1000 rows at a time, as a loop without any safety would."""
    newest = sa.text("SELECT id, tag, value FROM bare ORDER BY id LIMIT 1000")
    done = sa.text("DELETE FROM bare WHERE id <= :last")

    def run() -> float:
        place.fill_bare()

        def work() -> None:
            while True:
                with place.engine.begin() as conn:
                    rows = list(conn.execute(newest))
                    if not rows:
                        return
                    each(rows)
                    conn.execute(done, {"last": rows[-1].id})

        return rate(place.rows, work)

    return run


def streamer_rate(place: Place) -> list[Row]:
    """Measure rows/s through the streamer."""

    def ours() -> float:
        place.stage(place.rows)
        return stream_all(place, place.rows)[-1]

    def naive(rows: list[Any]) -> None:
        pipe = place.native.pipeline(transaction=True)
        for row in rows:
            pipe.xadd("naive", {"data": json.dumps(json.loads(row.value))}, maxlen=10_000)
        pipe.execute()

    a, bare = interleave(ours, bare_loop(place, len), place.rounds)
    c, plain = interleave(ours, bare_loop(place, naive), place.rounds)
    place.native.delete("naive")
    title = f"{place.name}: streamer, rows/s"
    return [
        Row(
            f"{title} / bare select + delete", "on", f"{a:,.0f}", f"{bare:,.0f}", a / bare, 0.5, 0.8
        ),
        Row(
            f"{title} / select, XADD each, delete",
            "on",
            f"{c:,.0f}",
            f"{plain:,.0f}",
            c / plain,
            3,
            5,
        ),
    ]


def stage_cost(place: Place) -> Row:
    """Measure one staged row in a transaction of 100, against a bare insert of the same columns."""
    insert = sa.text("INSERT INTO bare (stream, tag, value) VALUES (:s, :t, :v)")
    some = place.pairs[:100]

    def ours() -> float:
        began = time.perf_counter()
        with place.engine.begin() as conn:
            for tag, value in some:
                place.outbox.stage(conn, "rides", tag, value)
        took = time.perf_counter() - began
        with place.engine.begin() as conn:
            conn.execute(sa.text("DELETE FROM headwater_outbox"))
        return took / len(some) * 1e6

    def bare() -> float:
        began = time.perf_counter()
        with place.engine.begin() as conn:
            for tag, value in some:
                conn.execute(insert, {"s": "rides", "t": tag, "v": value})
        took = time.perf_counter() - began
        with place.engine.begin() as conn:
            conn.execute(sa.text("DELETE FROM bare"))
        return took / len(some) * 1e6

    a, b = interleave(ours, bare, place.rounds * 3)
    name = f"{place.name}: stage one row / bare INSERT, us"
    return Row.of(name, "on", a, b, 1.3, 1, False)


def add_up(conn: sa.Connection, messages: list[headwater.Message]) -> None:
    """Do a consumer's work: one update for the whole batch."""
    size = sum(len(message.value) for message in messages)
    conn.execute(sa.text("UPDATE took SET total = total + :n WHERE one = 1"), {"n": size})


def consumer_rate(place: Place) -> Row:
    """Measure batches of 1000 through a consumer, against the transaction it cannot do without."""
    stream = place.hw.stream(f"consumed-{place.name}")
    for at in range(0, place.rows, BATCH):
        stream.write_many(place.pairs[at : at + BATCH])
    names = itertools.count()

    def ours() -> float:
        consumer = Consumer(f"c{next(names)}", stream.name, place.outbox, place.hw, add_up)
        consumer.run_once()

        def work() -> None:
            while consumer.run_once():
                pass

        return rate(place.rows // BATCH - 1, work)

    def bare() -> float:
        def work() -> None:
            for at in range(1 + BATCH, place.rows, BATCH):
                messages = [m for m in stream.read(at, BATCH) if m is not None]
                with place.engine.begin() as conn:
                    add_up(conn, messages)

        return rate(place.rows // BATCH - 1, work)

    a, b = interleave(ours, bare, place.rounds)
    name = f"{place.name}: consumer / read + bare transaction, batches of 1000 per s"
    return Row.of(name, "on", a, b, 0.5, 0.8)


def trickle_latency(place: Place, samples: int) -> Row:
    """Measure the way from a commit to a consumer's commit, one row at a time, all else idle."""
    name = f"trickle-{place.name}"
    seen = threading.Semaphore(0)
    at: list[float] = []

    def steps(step: str) -> None:
        if step == "committed":
            at.append(time.perf_counter())
            seen.release()

    streamer = Streamer(place.outbox, place.hw)
    consumer = Consumer("trickle", name, place.outbox, place.hw, add_up, steps=steps)
    threads = [threading.Thread(target=work.run) for work in (streamer, consumer)]
    for thread in threads:
        thread.start()
    took = []
    for _ in range(samples + 5):
        time.sleep(0.02)
        with place.engine.begin() as conn:
            place.outbox.stage(conn, name, *place.pairs[0])
        began = time.perf_counter()
        seen.acquire()
        took.append((at[-1] - began) * 1000)
    streamer.stop()
    consumer.stop()
    for thread in threads:
        thread.join()
    took = took[5:]
    p50, p99 = statistics.median(took), statistics.quantiles(took, n=100)[98]
    title = f"{place.name}: commit to consumer's commit, p50 ms (p99 {p99:.1f}) / 10 ms"
    return Row(title, "on", f"{p50:.1f}", "10.0", p50 / 10, 5, 1, False)


def stream_all(place: Place, rows: int, parts: int = 1) -> list[float]:
    """Let a streamer run until it has streamed so many rows; returns the rate of each part."""
    marks: list[float] = []

    def mark(step: str) -> None:
        if step.startswith("appended"):
            marks.append(time.perf_counter())

    streamer = Streamer(place.outbox, place.hw, steps=mark)
    began = time.perf_counter()
    thread = threading.Thread(target=streamer.run)
    thread.start()
    while streamer.progress.rows < rows:
        time.sleep(0.001)
    streamer.stop()
    thread.join()
    marks[-1] = time.perf_counter()
    ends = [began, *(marks[len(marks) * part // parts - 1] for part in range(1, parts + 1))]
    return [rows / parts / (b - a) for a, b in itertools.pairwise(ends)]


def drain(place: Place, rows: int) -> Row:
    """Drain a large backlog: the last fifth must go as quickly as the first."""
    place.stage(rows)
    rates = stream_all(place, rows, parts=5)
    title = f"{place.name}: backlog of {rows:,}, rows/s of the last fifth / the first"
    a, b = rates[-1], rates[0]
    return Row.of(title, "on", a, b, 0.7, 0.9)


def run(rounds: int, backlog: int) -> list[Row]:
    """Measure every row on SQLite and on Postgres."""
    rows: list[Row] = []
    with places(rounds, min(ROWS, backlog)) as found:
        for place in found:
            rows += streamer_rate(place)
            rows.append(stage_cost(place))
            rows.append(consumer_rate(place))
            rows.append(trickle_latency(place, min(200, backlog // 250)))
            rows.append(drain(place, backlog))
            place.hw.close()
            place.engine.dispose()
    return rows
