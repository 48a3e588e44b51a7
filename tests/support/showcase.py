"""A store as an application leaves it, with something to see on every page of the console."""

from __future__ import annotations

import asyncio
import json
import math
import random
import threading
import time
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from headwater import Group, Headwater, QueueWorker
from headwater.kernel.packaging import __version__
from headwater.metrics.history import (
    OUTBOX,
    STORE,
    NewPoint,
    Point,
    Series,
    keep_series,
    write_points,
)
from headwater.outbox import Consumer, Outbox, Streamer
from headwater.spark.queries.notes import NotedQuery, note
from headwater.store.doctor import VerifyNote, note_verify
from headwater.timed.runner import TimedRunner
from headwater.timeline import AsyncFarm, Farm
from headwater.timeline.records import Repaired
from headwater.timeline.walker import Walker, WalkNotes
from tests.support.api import ApiClient

_PLACES = ("Harbour", "Old Town", "Airport", "Station", "Museum", "Stadium")


def _refuse_some(_conn: Any, messages: list[Any]) -> None:
    for one in messages:
        if one.offset in (23_993, 23_998):
            raise ValueError("fare 97.4 is above the limit of 90")


def _handle(group: Group, count: int) -> None:
    """Read so many messages as a member, and acknowledge them."""
    while count:
        messages = group.read(min(count, 5000), ack_ms=600_000)
        group.ack(*messages)
        count -= len(messages)


class Showcase:
    """Rides, and who works on them; ``names`` is what paths of pages are made of."""

    def __init__(self, hw: Headwater, home: Path) -> None:
        self._hw = hw
        self._dice = random.Random(18)
        self.database_url = f"sqlite:///{home / 'rides.db'}"
        self._engine = sa.create_engine(self.database_url)
        self.farm = "embedded://east;embedded://west"
        self.names = {
            "stream": "rides",
            "offset": "24046",
            "row": "37",
            "group": "mail",
            "queue": "emails",
            "consumer": "invoice-lines",
            "channel": "search",
            "job": "tidy-up",
            "topic": "clicks",
        }

    def __enter__(self) -> Self:
        self._fill_stream()
        self._fill_queues()
        self._fill_outbox()
        channel = self._hw.ick_channel("search", shards=4, consumer="indexer-1")
        for start in (0, 200, 500, 900):
            channel.add({f"ride-{n}": n for n in range(start, 1200)})
        channel.reserve(50)
        self._hw.ick_channel("search", consumer="indexer-2").reserve(80)
        self._hw.ick_channel("thumbnails", shards=2).add({"ride-7": 1}, not_before=2**41)
        runner = TimedRunner(self._hw)
        runner.every("5m", name="tidy-up")(lambda: None)
        runner.cron("0 3 * * *", tz="Europe/Lisbon", name="nightly-totals")(lambda: None)
        runner.run_due()
        killed = {"server": 9, "writer": 6, "member": 5}
        verified = VerifyNote(81204, 20.0, killed, 41_230, 0, __version__, "build-1")
        self._hw.store.run(note_verify(verified))
        query = NotedQuery(name="daily", epoch=88, next={"rides": 23_100}, run="r")
        self._hw.store.run(note("4f1d0a6e-daily", "read", "rides", query))
        self._fill_farm()
        self._work()
        self._fill_history()
        return self

    def act(self, client: ApiClient) -> None:
        """Change something as an operator does, for the audit."""
        client.ask("POST", "/v1/queues/reports/pause", {})
        client.post("/v1/streams/payments/groups/ledger/seek", {"to": 851})
        client.post("/v1/streams/rides/evict", {"up_to": 3000})
        client.ask("PUT", "/v1/streams/rides/retention", {"max_age_ms": 7 * 86_400_000})

    def _work(self) -> None:
        """Let some work go on while the pictures are taken."""
        receipts = self._hw.queue("receipts")
        receipts.push_many([b"receipt"] * 5000)
        runner = TimedRunner(self._hw)
        runner.every("5m", name="tidy-up")(lambda: None)
        self._works: list[Any] = [QueueWorker(receipts, lambda _: time.sleep(0.05)), runner]
        self._threads = [threading.Thread(target=work.run) for work in self._works]
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        for work in self._works:
            work.stop()
        for thread in self._threads:
            thread.join()
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
        mail = rides.group("mail", member="mailer-1", dead_letters=True)
        _handle(mail, 21_999)
        held = mail.read(1500, ack_ms=600_000)
        mail.ack(held[:600], held[640:900], held[930:])
        for one in held[610:613]:
            mail.bury(one, error=ConnectionError("mail.example: 451 try again later"))
        mail.nack(*held[613:625])
        rides.group("mail", member="mailer-2").read(300, ack_ms=600_000)
        totals = rides.group("totals", member="totals-1")
        totals.read(24_000)
        invoices = rides.group("invoices", member="billing-1")
        _handle(invoices, 18_499)
        invoices.read(400, ack_ms=600_000)
        for n in range(24_001, 24_041):
            tag, value = self._ride(n)
            rides.write(tag, value, headers={"trace": b"00-4bf92f", "source": b"api"})
        for name in ("payments", "drivers", "refunds"):
            stream = hw.stream(name)
            stream.write_many([self._ride(n) for n in range(900)])
            stream.group("ledger", member="ledger-1").read(850)

        clicks = hw.topic("clicks", 4)
        clicks.write_many([self._ride(n) for n in range(2000)])
        clicks.group("ads", member="ads-1").read(700, ack_ms=600_000)

    def _fill_queues(self) -> None:
        emails = self._hw.queue("emails")
        emails.push_many([json.dumps({"to": f"rider{n}@example.org"}) for n in range(240)])
        emails.push_many([b"later"] * 12, delay_ms=3_600_000)
        taken = emails.pop(30, ack_ms=600_000)
        emails.bury(*taken[:2], error=TimeoutError("no answer in 30 s"))
        emails.ack(*taken[2:22])
        self._hw.queue("reports").push_many([b"monthly", b"weekly"])

    def _fill_farm(self) -> None:
        """Walk a farm whose copies of some timelines differ."""
        rows = [(f"city-{n % 40}", float(n), f"ride-{n}") for n in range(2000)]
        east, _ = self.farm.split(";")
        with Farm.open(self.farm) as whole, Farm.open(east) as half:
            whole.insert(rows)
            half.insert([("city-1", 5000.0, "ride-5000"), ("city-2", 5001.0, "ride-5001")])
        asyncio.run(self._walk())
        with Farm.open(east) as half:
            half.insert([("city-7", 6000.0, "ride-6000")])

    async def _walk(self) -> None:
        async with AsyncFarm.open(self.farm) as farm:
            walked = await Walker(farm, rate=10_000).walk()
            assert walked is not None
            # As another machine would have noted it.
            last = WalkNotes(farm.clusters, "walk", "walker-1", lambda: time.time() - 5000)
            await last.write("done", 80, 80, walked.repaired)
            times = iter([time.time() - 9, *[time.time()] * 9])
            runs = WalkNotes(farm.clusters, "walk", "walker-2", lambda: next(times))
            await runs.note(31, 82, Repaired(16, 812))

    def _fill_history(self) -> None:
        """Write the last five minutes as a process that samples would have."""
        now = int(time.time())
        series: dict[Series, float] = {
            STORE: 1.0,
            OUTBOX: 0.02,
            ("stream", "rides"): 0.9,
            ("group", "rides", "mail"): 0.6,
            ("group", "rides", "invoices"): 0.8,
            ("queue", "emails"): 0.1,
        }
        points = []
        for second in range(now - 290, now + 1):
            wave = 1 + 0.3 * math.sin(second / 37) + self._dice.random() * 0.15
            # Somebody restarts the members two minutes ago, and they catch up.
            away = max(0.0, 45 - abs(second - (now - 130)))
            for one, share in series.items():
                rate, done = 1180 * wave * share, 1180 * wave * share * (1 - away / 60)
                lag_s = 0.4 * wave + away * share
                held = 320 * wave * share
                point = Point(rate, done, rate * lag_s, lag_s, held, 1.5 * wave + away / 9)
                points.append(NewPoint(one, 1, second, point))
        run = self._hw.store.run
        run(keep_series(dict.fromkeys(series, now * 1000), []))
        for start in range(0, len(points), 300):
            run(write_points("showcase", points[start : start + 300], 0))

    def _fill_outbox(self) -> None:
        outbox = Outbox(self._engine)
        outbox.create_all()
        consumer = Consumer(
            "ledger-view", ["rides"], self._engine, self._hw, lambda *_: None, start=20_000
        )
        consumer.run_once()
        lines = Consumer(
            "invoice-lines",
            ["rides"],
            self._engine,
            self._hw,
            _refuse_some,
            start=23_990,
            batch=20,
            on_error="skip",
            attempts=1,
        )
        while (lines.positions()["rides"] or 0) < 24_005:
            lines.run_once()
        with self._engine.begin() as conn:
            for n in range(24_041, 24_053):
                outbox.stage(conn, "rides", *self._ride(n))
        with Streamer(
            outbox, self._hw, id_header=True, new_producer=lambda: "outbox:streamer-1"
        ) as streamer:
            streamer.run_once()
        with self._engine.begin() as conn:
            for n in range(37):
                tag, value = self._ride(n)
                outbox.stage(conn, "rides", tag, value)
