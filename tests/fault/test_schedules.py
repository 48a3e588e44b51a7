"""Seeded schedules of the whole pipeline: commits in any order, crashes at any step, any restart.

One schedule opens transactions, stages in them, commits and aborts them in any order, and lets
streamers and consumers run in between, most of which die at a step drawn by lot. At the end all
that is committed must be in the log once and applied once. HEADWATER_SEED repeats a run,
HEADWATER_LONG multiplies how many there are.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable

import pytest
import sqlalchemy as sa

import headwater
from headwater.check.history import Anomaly
from headwater.check.pipeline import Transaction, check_effects, check_streamed
from headwater.outbox import Consumer, Outbox, Streamer

pytestmark = pytest.mark.fault

SEED = int(os.environ.get("HEADWATER_SEED") or 1)
SCHEDULES = 20 * int(os.environ.get("HEADWATER_LONG") or 1)
STREAMER_STEPS = ("deleted", "marked", "committing", "claimed", "appended", "cleared")
CONSUMER_STEPS = ("read", "begun", "moved", "handled", "committed")


class Crash(BaseException):
    """A process ends here: nothing of it runs on, and its connections break."""


def dies_at(step: str | None) -> Callable[[str], None]:
    def steps(name: str) -> None:
        if step is not None and name.startswith(step):
            raise Crash

    return steps


class Schedule:
    """One run of the pipeline, drawn by a seed."""

    def __init__(self, seed: int, engine: sa.Engine, hw: headwater.Headwater) -> None:
        self.rng = random.Random(seed)
        self.engine = engine
        self.outbox = Outbox(engine)
        self.hw = hw
        self.streams = [f"sched-{seed}-{engine.dialect.name}-{place}" for place in range(2)]
        # SQLite has one writer at a time: a second open transaction would wait for the first.
        self.most_open = 4 if engine.dialect.name == "postgresql" else 1
        self.open: list[tuple[sa.Connection, list[tuple[str, str]]]] = []
        self.ended: list[Transaction] = []
        self.values = itertools.count()
        self.applied = sa.Table(
            f"applied_{seed}",
            sa.MetaData(),
            sa.Column("place", sa.Integer, primary_key=True, autoincrement=True),
            sa.Column("stream", sa.Text),
            sa.Column("value", sa.Text),
        )
        self.applied.create(engine)

    def run(self) -> None:
        moves: list[Callable[[], object]] = [self.stage, self.end, self.stream, self.consume]
        for _ in range(self.rng.randrange(20, 60)):
            self.rng.choices(moves, weights=[2, 1, 1, 1])[0]()
        while self.open:
            self.end()
        while self.stream(dying=False):
            pass
        for stream in self.streams:
            while self.consume(stream, dying=False):
                pass

    def stage(self) -> None:
        if len(self.open) < self.most_open:
            conn = self.engine.connect()
            conn.begin()
            self.open.append((conn, []))
        conn, staged = self.rng.choice(self.open)
        for _ in range(self.rng.randrange(1, 4)):
            row = (self.rng.choice(self.streams), f"v{next(self.values)}")
            self.outbox.stage(conn, row[0], "tag", row[1])
            staged.append(row)

    def end(self) -> None:
        if not self.open:
            return
        conn, staged = self.open.pop(self.rng.randrange(len(self.open)))
        if self.rng.random() < 0.8:
            conn.commit()
            self.ended.append(Transaction(staged, "committed"))
        else:
            conn.rollback()
            self.ended.append(Transaction(staged, "aborted"))
        conn.close()

    def stream(self, *, dying: bool = True) -> int:
        if self.open and self.most_open == 1:
            return 0
        step = self.rng.choice((None, *STREAMER_STEPS)) if dying else None
        batch = self.rng.choice((1, 3, 1000))
        streamer = Streamer(self.outbox, self.hw, batch=batch, steps=dies_at(step))
        try:
            return streamer.run_once()
        except Crash:
            return 0
        finally:
            streamer.close()

    def consume(self, stream: str | None = None, *, dying: bool = True) -> int:
        if self.open and self.most_open == 1:
            return 0
        stream = stream or self.rng.choice(self.streams)
        step = self.rng.choice((None, *CONSUMER_STEPS)) if dying else None

        def apply(conn: sa.Connection, messages: list[headwater.Message]) -> None:
            rows = [{"stream": stream, "value": message.value.decode()} for message in messages]
            conn.execute(self.applied.insert(), rows)

        batch = self.rng.choice((1, 5, 1000))
        consumer = Consumer(
            "applier", stream, self.outbox, self.hw, apply, batch=batch, steps=dies_at(step)
        )
        try:
            return consumer.run_once()
        except Crash:
            return 0

    def anomalies(self) -> list[Anomaly]:
        logs = {
            stream: [m.value.decode() for m in self.hw.stream(stream).read(1, 10_000) if m]
            for stream in self.streams
        }
        found = check_streamed(self.ended, logs)
        with self.engine.connect() as conn:
            for stream in self.streams:
                query = sa.select(self.applied.c.value).where(self.applied.c.stream == stream)
                applied = conn.execute(query.order_by(self.applied.c.place)).scalars().all()
                found += check_effects(logs[stream], applied)
        return found


@pytest.mark.parametrize("store_url", ["plain"], indirect=True)
def test_any_order_of_commits_and_crashes_gives_every_effect_once(
    engine: sa.Engine, hw: headwater.Headwater
) -> None:
    Outbox(engine).create_all()
    committed = 0
    for seed in range(SEED, SEED + SCHEDULES):
        schedule = Schedule(seed, engine, hw)
        schedule.run()
        assert schedule.anomalies() == [], f"HEADWATER_SEED={seed}"
        committed += sum(len(t.staged) for t in schedule.ended if t.outcome == "committed")
        for stream in schedule.streams:
            hw.stream(stream).delete()
    assert committed > 10 * SCHEDULES
