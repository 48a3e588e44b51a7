"""A small Rocket Rides: its tables, its outbox, its log and its consumers, a step at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from examples.rocket_rides import model
from headwater import Headwater, Message, Stream
from headwater.outbox import Consumer, Outbox, Streamer

PILOTS = model.PILOTS


class Rides:
    """Rides that are made, told of, and added up; each step by itself, and without the others."""

    def __init__(self, hw: Headwater, engine: sa.Engine, stream: str) -> None:
        self.hw = hw
        self.engine = engine
        self.outbox = Outbox(engine)
        self.stream: Stream = hw.stream(stream)
        model.create_tables(engine)

    def make(self, numbers: Iterable[int], *, row: bool = True, told: bool = True) -> None:
        """Make rides, in the table and in the outbox, or in only one of them."""
        rides = [ride(number) for number in numbers]
        with self.engine.begin() as conn:
            if row:
                conn.execute(sa.insert(model.rides), [msgspec.to_builtins(each) for each in rides])
            if told:
                self.outbox.stage_many(
                    conn, self.stream.name, [(f"ride-{each.id}", each) for each in rides]
                )

    def send(self) -> None:
        """Bring all that is staged to the log."""
        with Streamer(self.outbox, self.hw) as streamer:
            while streamer.run_once():
                pass

    def consumer(
        self, name: str, *, streams: Sequence[Stream] | None = None, **options: Any
    ) -> Consumer:
        """Return a consumer that adds up the stream, or others."""

        def handle(conn: sa.Connection, messages: list[Message]) -> None:
            model.add_up(conn, name, messages)

        def reset(conn: sa.Connection, state: dict[str, Any]) -> None:
            model.set_totals(conn, name, state)

        return Consumer(
            name, streams or self.stream, self.engine, self.hw, handle, on_reset=reset, **options
        )

    def consume(self, name: str, batches: int | None = None, batch: int = 1000) -> None:
        """Let a consumer take so many batches; all there are if not said."""
        consumer = self.consumer(name, batch=batch)
        while batches != 0 and consumer.run_once():
            batches = None if batches is None else batches - 1

    def spoil(self, consumer: str, pilot: str, by_mm: int) -> None:
        """Let a consumer have another sum than it added up."""
        table = model.pilot_totals
        whose = (table.c.consumer == consumer) & (table.c.pilot == pilot)
        with self.engine.begin() as conn:
            conn.execute(
                sa.update(table).where(whose).values(distance_mm=table.c.distance_mm + by_mm)
            )

    def kept(self, consumer: str) -> dict[str, tuple[int, int]]:
        """Return what a consumer has: rides and millimetres of each pilot, and of "all"."""
        each, whole = model.pilot_totals, model.totals
        with self.engine.connect() as conn:
            rows = conn.execute(sa.select(each).where(each.c.consumer == consumer)).all()
            found = {row.pilot: (row.rides, row.distance_mm) for row in rows}
            for row in conn.execute(sa.select(whole).where(whole.c.consumer == consumer)):
                found["all"] = (row.rides, row.distance_mm)
        return found


def ride(number: int) -> model.Ride:
    """Return the ride of a number."""
    return model.Ride(number, PILOTS[number % len(PILOTS)], 1000 * number + 7)


def sums(numbers: Sequence[int]) -> dict[str, tuple[int, int]]:
    """Add up rides as consumers do."""
    found: dict[str, tuple[int, int]] = {}
    for each in map(ride, numbers):
        for name in (each.pilot, "all"):
            records, total = found.get(name, (0, 0))
            found[name] = (records + 1, total + each.distance_mm)
    return found
