"""Processes that use a store report themselves, and are seen while they run."""

from __future__ import annotations

import asyncio
import html
import os
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import headwater
import headwater.aio
from headwater import App, Delivery, Headwater, QueueWorker, TimedRunner, Worker
from headwater.outbox import Consumer, Outbox, Streamer
from headwater.serve.console.service import Console
from headwater.store.presence import (
    FORGOTTEN_MS,
    PROCESSES_KEY,
    SILENT_MS,
    SWITCH,
    Presence,
    ReportedPart,
    SeenProcess,
    all_processes,
)
from tests.support.api import ApiServer
from tests.support.console import EVIL
from tests.support.servers import Server, until


@pytest.fixture(scope="module")
def hw(server: Server) -> Iterator[Headwater]:
    with headwater.connect(server.url) as hw:
        yield hw


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.app.running.FIRST_S", 0.01)
    monkeypatch.setattr("headwater.app.running.BEAT_S", 0.05)
    monkeypatch.setattr("headwater.store.presence.FIRST_S", 0.01)
    monkeypatch.setattr("headwater.store.presence.BEAT_S", 0.05)


def seen(hw: Headwater, kind: str = "app") -> list[SeenProcess]:
    return [one for one in hw.store.run(all_processes()) if one.note.kind == kind]


def test_an_application_reports_its_parts_while_it_runs(server: Server, hw: Headwater) -> None:
    name = f"rides-{secrets.token_hex(4)}"
    app = App(store=server.url)

    @app.worker(queue=name)
    def mail(job: Delivery) -> None: ...

    hw.queue(name).push_many([b"v"] * 20)
    app.start()
    try:
        (process,) = until(
            lambda: [one for one in seen(hw) if one.note.parts and one.note.parts[0].done == 20]
        )
        (part,) = process.note.parts
        assert (part.name, part.status, part.failed) == ("mail", "running", 0)
        assert name in part.object
        assert not process.is_silent
    finally:
        app.stop()
    assert seen(hw) == []


def test_an_application_of_async_parts_reports_by_its_loop(server: Server, hw: Headwater) -> None:
    name = f"rides-{secrets.token_hex(4)}"
    app = App(store=server.url)

    @app.worker(queue=name)
    async def mail(job: Delivery) -> None: ...

    hw.queue(name).push(b"v")

    async def live() -> None:
        async with app.lifespan():
            while not await asyncio.to_thread(seen, hw):
                pass

    asyncio.run(asyncio.wait_for(live(), 60))
    assert seen(hw) == []


def parts(hw: Headwater) -> dict[str, ReportedPart]:
    return {one.name: one for process in seen(hw, "worker") for one in process.note.parts}


def test_whatever_works_outside_an_application_reports_itself(
    hw: Headwater, tmp_path: Path
) -> None:
    name = f"alone-{secrets.token_hex(4)}"
    hw.stream(name).write_many([("t", b"v")] * 20)
    hw.queue(name).push_many([b"v"] * 20)
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    outbox = Outbox(engine)
    outbox.create_all()
    timed = TimedRunner(hw)
    timed.every("1h", name=name)(lambda: None)
    works: list[Any] = [
        Worker(hw.stream(name).group("g"), lambda _: None),
        QueueWorker(hw.queue(name), lambda _: None),
        Streamer(outbox, hw),
        Consumer("view", [name], engine, hw, lambda *_: None),
        timed,
    ]
    with ThreadPoolExecutor(len(works)) as pool:
        runs = [pool.submit(work.run) for work in works]
        try:
            done = {f"{name}/g": 20, name: 20, "view": 20, "streamer": 0, "timed jobs": 0}
            until(lambda: {key: one.done for key, one in parts(hw).items()} == done)
            (process, *_) = seen(hw, "worker")
            assert process.note.pid == os.getpid()
            assert {one.kind for one in parts(hw).values()} == {
                "worker",
                "streamer",
                "consumer",
                "timed jobs",
            }
        finally:
            for work in works:
                work.stop()
            for run in runs:
                run.result(60)
    assert seen(hw, "worker") == []
    engine.dispose()


def test_an_async_worker_reports_itself_by_its_loop(server: Server, hw: Headwater) -> None:
    name = f"alone-{secrets.token_hex(4)}"
    hw.queue(name).push(b"v")

    async def handle(_: object) -> None: ...

    async def live() -> None:
        async with headwater.aio.connect(server.url) as client:
            worker = headwater.aio.AsyncQueueWorker(client.queue(name), handle)
            task = asyncio.create_task(worker.run())
            while name not in await asyncio.to_thread(parts, hw):
                pass
            worker.stop()
            await task

    asyncio.run(asyncio.wait_for(live(), 60))
    assert parts(hw) == {}


def test_a_process_that_is_told_to_reports_nothing(
    hw: Headwater, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "off")
    presence = Presence("worker", "hidden")
    hw.store.run(presence.beat())
    assert seen(hw, "worker") == []
    hw.store.run(presence.leave())


def test_a_server_reports_itself_and_shows_who_does(server: Server, hw: Headwater) -> None:
    other = Presence("app", f"shop:app{EVIL}")
    hw.store.run(other.beat([ReportedPart("mail", "worker", EVIL, "resting", 5, 2, why=EVIL)]))
    with ApiServer(server.url, front=Console) as api:
        assert len(seen(hw, "server")) == 1
        page = api.client().get("/console/processes").body.decode()
        assert "<script>alert" not in page
        assert f"shop:app{EVIL}" in html.unescape(page)
        alarms = html.unescape(api.client().get("/console").body.decode())
        assert "Part mail of app shop:app" in alarms
    assert seen(hw, "server") == []
    hw.store.run(other.leave())


def test_a_read_only_server_reports_nothing(server: Server, hw: Headwater) -> None:
    with ApiServer(server.url, front=Console, read_only=True) as api:
        for _ in range(20):
            assert api.client().get("/console/processes").status == 200
        assert seen(hw, "server") == []


def test_a_process_that_was_killed_is_silent_and_then_forgotten(
    server: Server, hw: Headwater
) -> None:
    killed, living = Presence("app", "killed"), Presence("app", "living")
    hw.store.run(killed.beat())
    (process,) = seen(hw)
    assert not process.is_silent
    assert process._replace(now_ms=process.seen_ms + SILENT_MS + 1).is_silent
    with server.client() as raw:
        raw.zadd(f"{PROCESSES_KEY}:seen", {process.id: process.seen_ms - FORGOTTEN_MS - 1})
    hw.store.run(living.beat())
    assert [one.note.name for one in seen(hw)] == ["living"]
    hw.store.run(living.leave())


def test_rates_are_those_between_two_reports(hw: Headwater) -> None:
    times = iter((0.0, 5.0))
    presence = Presence("app", "rated", lambda: next(times))
    hw.store.run(presence.beat([ReportedPart("mail", done=100)]))
    hw.store.run(presence.beat([ReportedPart("mail", done=150)]))
    (process,) = seen(hw)
    assert process.note.parts[0].per_s == 10.0
    hw.store.run(presence.leave())
    hw.store.run(presence.leave())
    assert seen(hw) == []


def test_a_scrub_knows_the_record_of_processes(hw: Headwater) -> None:
    presence = Presence("server", "scrubbed")
    hw.store.run(presence.beat())
    assert hw.scrub(kinds=["store"]).defects == ()
    hw.store.run(presence.leave())
