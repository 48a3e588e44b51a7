"""Workers of a group: each message until its handler succeeded, several at once, whoever dies."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import threading
from typing import Any

import pytest

import headwater
from headwater import Group, Message, Stream, Worker, aio
from headwater.aio import AsyncWorker
from headwater.kernel.instrument import installed
from tests.support.blocking import Loop
from tests.support.entries import entries
from tests.support.instruments import Recorder
from tests.support.servers import Server, until
from tests.support.stores import Stores
from tests.support.workers import Crew, Gate, all_done, at_work
from tests.support.zygote import Zygote


@pytest.fixture
def stream(crew: Crew, name: str) -> Stream:
    return crew.hw.stream(name)


@pytest.fixture
def group(stream: Stream) -> Group:
    """Look at the group that the workers are members of."""
    return stream.group("g")


# ── Handling ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("concurrency", [1, 7])
def test_every_message_is_handled_once_and_acknowledged(
    crew: Crew, stream: Stream, group: Group, concurrency: int
) -> None:
    stream.write_many(entries(300))
    seen: list[int] = []
    worker = crew.worker(stream, lambda m: seen.append(m.offset), concurrency=concurrency)
    with at_work(worker):
        until(all_done(group, 300))
    assert sorted(seen) == list(range(1, 301))
    assert group.info().pending == 0


def test_several_workers_share_the_work(crew: Crew, stream: Stream, group: Group) -> None:
    seen: list[tuple[int, int]] = []
    workers = [
        crew.worker(stream, lambda m, who=who: seen.append((who, m.offset)))  # type: ignore[misc]
        for who in range(3)
    ]
    with at_work(*workers):
        for first in range(1, 300, 10):
            stream.write_many(entries(10, first))
        until(all_done(group, 300))
    assert sorted(offset for _, offset in seen) == list(range(1, 301))


def test_as_many_handlers_run_at_once_as_asked_for(
    crew: Crew, stream: Stream, group: Group
) -> None:
    stream.write_many(entries(12))
    together = threading.Barrier(3, timeout=60)
    running: set[int] = set()
    most: list[int] = []

    def handler(message: Message) -> None:
        running.add(message.offset)
        most.append(len(running))
        together.wait()
        running.discard(message.offset)

    with at_work(crew.worker(stream, handler, concurrency=3)):
        until(all_done(group, 12))
    assert max(most) <= 3


def test_a_worker_takes_no_more_than_it_can_soon_handle(
    crew: Crew, stream: Stream, group: Group
) -> None:
    stream.write_many(entries(50))
    gate = Gate()
    with at_work(crew.worker(stream, gate, concurrency=3)):
        until(lambda: len(gate.begun) == 3)
        until(lambda: group.info().pending == 6)
        assert group.read(1, block_ms=50, ack_ms=60_000)[0].offset == 7, "others have the rest"
        gate.open()
        group.ack(7)
        until(all_done(group, 50))


def test_what_is_done_is_acknowledged_in_few_calls(stores: Stores, name: str) -> None:
    with headwater.connect(stores.url("plain")) as hw:
        hw.stream(name).write_many(entries(400))
        group = hw.stream(name).group("g")
        worker = Worker(group, lambda _: None, concurrency=50)
        with installed(recorder := Recorder()), at_work(worker):
            until(all_done(group, 400))
        assert len(recorder.named("group.ack")) < 200


# ── Failing ──────────────────────────────────────────────────────────────────────────────────


def test_a_failed_message_comes_again_after_a_pause(
    crew: Crew, stream: Stream, group: Group
) -> None:
    stream.write("t", b"v")
    attempts: list[int] = []

    def fails_twice(message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt < 3:
            raise RuntimeError("not yet")

    with at_work(crew.worker(stream, fails_twice, backoff_ms=5)):
        until(all_done(group, 1))
    assert attempts == [1, 2, 3]


def test_a_message_that_rests_holds_nobody_up(crew: Crew, stream: Stream, group: Group) -> None:
    stream.write_many(entries(20))
    seen: list[int] = []

    def handler(message: Message) -> None:
        if message.offset == 1:
            raise RuntimeError("later")
        seen.append(message.offset)

    later: Any = {"backoff_ms": 600_000, "longest_backoff_ms": 600_000}
    with at_work(crew.worker(stream, handler, concurrency=1, **later)):
        until(lambda: len(seen) == 19)
    assert group.info().pending == 1


def test_what_never_succeeds_becomes_a_dead_letter(
    crew: Crew, stream: Stream, group: Group
) -> None:
    stream.write_many([("good", b"1"), ("bad", b"2"), ("good", b"3")])

    def refuses(message: Message) -> None:
        if message.tag == "bad":
            raise RuntimeError("never")

    worker = crew.worker(stream, refuses, backoff_ms=5, expire_ms=1500, dead_letters=True)
    with at_work(worker):
        until(all_done(group, 3))
        until(group.dead)
    assert [(letter.origin, letter.value) for letter in group.dead()] == [(2, b"2")]


def test_a_handler_that_wants_to_end_the_program_only_failed(stores: Stores, name: str) -> None:
    with headwater.connect(stores.url("plain")) as hw:
        hw.stream(name).write("t", b"v")
        group = hw.stream(name).group("g")

        def exits(message: Message) -> None:
            if message.attempt == 1:
                raise SystemExit(3)

        with at_work(Worker(group, exits, backoff_ms=1)):
            until(all_done(group, 1))


# ── Keeping what is in hand ──────────────────────────────────────────────────────────────────


def test_a_message_is_kept_while_its_handler_takes_longer_than_its_retry_time(
    crew: Crew, stream: Stream, group: Group
) -> None:
    stream.write("t", b"v")
    gate = Gate()
    with at_work(crew.worker(stream, gate, ack_ms=1500)):
        until(lambda: gate.begun)
        # Another member waits for longer than the retry time, and is given nothing.
        assert group.read(1, block_ms=2000, ack_ms=1500) == []
        gate.open()
        until(all_done(group, 1))
    assert [message.attempt for message in gate.begun] == [1]


def test_what_comes_again_while_it_is_in_hand_is_not_handled_twice_at_once(
    crew: Crew, stream: Stream, group: Group
) -> None:
    stream.write("t", b"v")
    gate = Gate()
    with at_work(crew.worker(stream, gate, ack_ms=60_000)):
        until(lambda: gate.begun)
        group.nack(1)  # as if the worker had been unable to say that it still has it
        stream.write("t", b"w")
        until(lambda: len(gate.begun) == 2)
        gate.open()
        until(all_done(group, 2))
    assert [message.offset for message in gate.begun] == [1, 2]


# ── Stopping ─────────────────────────────────────────────────────────────────────────────────


def test_a_worker_that_stops_ends_what_it_began_and_returns_the_rest(
    crew: Crew, stream: Stream, group: Group
) -> None:
    stream.write_many(entries(2))
    gate = Gate()
    worker = crew.worker(stream, gate, concurrency=1, ack_ms=1500)
    with at_work(worker):
        until(lambda: gate.begun and group.info().next == 3)
        worker.stop()
        # Back with the group at once, and not kept from others, while the first is in hand.
        (again,) = group.read(1, block_ms=20_000, ack_ms=60_000)
        assert (again.offset, again.attempt) == (2, 1), "it was not tried"
        assert group.read(1, block_ms=2000, ack_ms=60_000) == []
        gate.open()
    assert [message.offset for message in gate.begun] == [1]
    assert group.ack(1) == 0
    assert group.ack(2) == 1


def test_a_waiting_worker_stops_soon(crew: Crew, stream: Stream, group: Group) -> None:
    worker = crew.worker(stream, lambda _: None)
    with at_work(worker) as (run,):
        until(lambda: "g" in stream.info().groups and group.info().waiting)
        worker.stop()
        run.result()


def test_a_cancelled_worker_gives_everything_back(stores: Stores, name: str, loop: Loop) -> None:
    async def work() -> list[tuple[int, int]]:
        async with aio.connect(stores.url("plain")) as hw:
            stream = hw.stream(name)
            await stream.write_many(entries(5))
            group = stream.group("g")
            begun = asyncio.Event()

            async def hangs(_: Message) -> None:
                begun.set()
                await asyncio.Event().wait()

            running = asyncio.create_task(AsyncWorker(group, hangs, concurrency=2).run())
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            messages = await group.read(10, block_ms=20_000, ack_ms=60_000)
            return sorted((message.offset, message.attempt) for message in messages)

    found = loop.wait(work())
    assert [offset for offset, _ in found] == [1, 2, 3, 4, 5]
    assert {attempt for _, attempt in found} == {1}, "none was tried to its end"


# ── Trouble ──────────────────────────────────────────────────────────────────────────────────


def test_a_group_that_somebody_removes_is_started_again(
    crew: Crew, stream: Stream, group: Group
) -> None:
    stream.write_many(entries(3))
    gate = Gate()
    with at_work(crew.worker(stream, gate, concurrency=5)):
        until(lambda: len(gate.begun) == 3)
        group.remove()
        gate.open()
        until(all_done(group, 3))


@pytest.mark.parametrize("manner", ["sync", "async"])
def test_the_store_may_be_killed_and_come_back(
    manner: str, name: str, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(fsync="always") as server:
        crew = Crew(manner, server.url, loop)
        stream = crew.hw.stream(name)
        group = stream.group("g")
        seen: set[int] = set()
        worker = crew.worker(stream, lambda m: seen.add(m.offset), ack_ms=500, backoff_ms=1)
        with at_work(worker), caplog.at_level(logging.WARNING):
            for turn in range(2):
                stream.write_many(entries(50, turn * 50 + 1))
                server.kill()
                server.restart()
                until(all_done(group, turn * 50 + 50))
        assert seen == set(range(1, 101))
        crew.close()


@pytest.mark.fault
def test_workers_may_be_killed_at_any_moment(stores: Stores, name: str, tmp_path: Any) -> None:
    dice = random.Random(5)
    with headwater.connect(stores.url("plain")) as hw, Zygote("tests.support.members") as zygote:
        stream, group = hw.stream(name), hw.stream(name).group("g")
        page = tmp_path / "handled"
        manners = ["sync", "async"]

        def start(manner: str) -> int:
            order = {"role": "worker", "manner": manner, "stream": name, "page": str(page)}
            return zygote.start("", stores.url("plain"), **order)

        pids = [start(manner) for manner in manners]
        last = 0
        for _ in range(10):
            size = dice.choice([1, 20, 200])
            stream.write_many(entries(size, last + 1))
            last += size
            until(lambda: "g" in stream.info().groups and group.info().next > last - 100)  # noqa: B023
            dying = dice.randrange(2)
            os.kill(pids[dying], signal.SIGKILL)
            assert zygote.wait(pids[dying]) == -signal.SIGKILL
            pids[dying] = start(manners[dying])
        until(all_done(group, last))
        assert [zygote.end(pid) for pid in pids] == [0, 0]
        handled = [int(line) for line in page.read_text().split()]
    assert set(handled) == set(range(1, last + 1)), "nothing is lost"
