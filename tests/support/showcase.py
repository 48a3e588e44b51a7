"""A store as an application leaves it, with something to see on every page of the console."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Self

import sqlalchemy as sa

from headwater import Headwater
from headwater.outbox import Consumer, Outbox
from headwater.spark.queries.notes import NotedQuery, note
from headwater.timed.runner import TimedRunner

_PLACES = ("Harbour", "Old Town", "Airport", "Station", "Museum", "Stadium")


class Showcase:
    """Rides, and who works on them; ``names`` is what paths of pages are made of."""

    def __init__(self, hw: Headwater, home: Path) -> None:
        self._hw = hw
        self._dice = random.Random(18)
        self.database_url = f"sqlite:///{home / 'rides.db'}"
        self._engine = sa.create_engine(self.database_url)
        self.names = {
            "stream": "rides",
            "offset": "22613",
            "group": "mail",
            "queue": "emails",
            "job": "tidy-up",
        }

    def __enter__(self) -> Self:
        self._fill_stream()
        self._fill_queues()
        self._fill_outbox()
        channel = self._hw.ick_channel("search", shards=4)
        channel.add({f"ride-{n}": n for n in range(1200)})
        channel.reserve(50)
        runner = TimedRunner(self._hw)
        runner.every("5m", name="tidy-up")(lambda: None)
        runner.cron("0 3 * * *", tz="Europe/Lisbon", name="nightly-totals")(lambda: None)
        runner.run_due()
        query = NotedQuery(name="daily", epoch=88, next={"rides": 23_100}, run="r")
        self._hw.store.run(note("4f1d0a6e-daily", "read", "rides", query))
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.dispose()

    def _ride(self, number: int) -> tuple[str, bytes]:
        a, b = self._dice.sample(_PLACES, 2)
        fare = self._dice.randrange(600, 9800) / 100
        ride = {"ride": number, "from": a, "to": b, "fare": fare, "currency": "EUR"}
        return f"ride-{number % 4000}", json.dumps(ride).encode()

    def _fill_stream(self) -> None:
        hw = self._hw
        rides = hw.stream("rides")
        for start in range(1, 24_001, 2000):
            rides.write_many([self._ride(n) for n in range(start, start + 2000)])
        rides.evict(3000)
        mail = rides.group("mail", dead_letters=True)
        mail.read(1, ack_ms=1000)  # the first read makes a group
        mail.seek(22_000)
        held = mail.read(1500, ack_ms=600_000)
        mail.ack(held[:600], held[640:900], held[930:])
        for one in held[610:613]:
            mail.bury(one, error=ConnectionError("mail.example: 451 try again later"))
        mail.nack(*held[613:625])
        mail.read(300, ack_ms=600_000)
        totals = rides.group("totals")
        totals.read(1, ack_ms=1000)
        totals.seek(24_001)
        invoices = rides.group("invoices")
        invoices.read(1, ack_ms=1000)
        invoices.seek(18_500)
        invoices.read(400, ack_ms=600_000)
        for n in range(24_001, 24_041):
            tag, value = self._ride(n)
            rides.write(tag, value, headers={"trace": b"00-4bf92f", "source": b"api"})
        for name in ("payments", "drivers", "refunds"):
            stream = hw.stream(name)
            stream.write_many([self._ride(n) for n in range(900)])
            stream.group("ledger").read(850)

    def _fill_queues(self) -> None:
        emails = self._hw.queue("emails")
        emails.push_many([json.dumps({"to": f"rider{n}@example.org"}) for n in range(240)])
        emails.push_many([b"later"] * 12, delay_ms=3_600_000)
        taken = emails.pop(30, ack_ms=600_000)
        emails.bury(*taken[:2], error=TimeoutError("no answer in 30 s"))
        emails.ack(*taken[2:22])
        reports = self._hw.queue("reports")
        reports.push_many([b"monthly", b"weekly"])
        reports.pause()

    def _fill_outbox(self) -> None:
        outbox = Outbox(self._engine)
        outbox.create_all()
        consumer = Consumer(
            "ledger-view", ["rides"], self._engine, self._hw, lambda *_: None, start=20_000
        )
        consumer.run_once()
        with self._engine.begin() as conn:
            for n in range(37):
                tag, value = self._ride(n)
                outbox.stage(conn, "rides", tag, value)
