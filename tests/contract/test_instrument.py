"""What an instrument learns of every operation: what, on what, how much, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

import headwater
from headwater import Message, Worker, aio
from headwater.aio import AsyncWorker
from headwater.errors import OutcomeUnknown, StoreUnreachable, UnknownGroup
from headwater.kernel.instrument import Event, installed
from headwater.log.reading import extent
from headwater.store import faults
from headwater.store.aio_pipe import PackedCommands
from headwater.store.aio_store import AsyncStore
from headwater.store.call import Call
from headwater.store.many import together
from headwater.timeline import AsyncFarm, Farm
from tests.support.blocking import Loop
from tests.support.entries import entries
from tests.support.forwarder import Forwarder
from tests.support.instruments import Recorder
from tests.support.servers import Server, until
from tests.support.stores import Stores
from tests.support.workers import Crew, all_done, at_work

Dial = Callable[[str | None], headwater.Headwater]


@pytest.fixture
def door() -> Iterator[Forwarder]:
    with Server(tcp=True) as server, Forwarder(server.port) as door:
        yield door


def facts(event: Event) -> tuple[str, str, int]:
    return event.object, event.outcome, event.messages


def test_a_queue_tells_what_is_pushed_and_popped(
    client: headwater.Headwater, name: str, told: Recorder
) -> None:
    queue = client.queue(name)
    queue.push_many([b"a", b"b", b"c"])
    assert facts(told.last("queue.push")) == (name, "ok", 3)
    queue.ack(*queue.pop(10, ack_ms=60_000))
    assert [facts(event) for event in told.named("queue.pop")] == [(name, "ok", 3)]
    assert facts(told.last("queue.settle")) == (name, "ok", 3)
    queue.push_many([b"%d" % i for i in range(100)])
    assert len(queue.pop(64)) == 64
    assert facts(told.last("queue.pop")) == (name, "ok", 64)
    assert len(list(queue.scan("ready"))) == 36
    assert sum(event.messages for event in told.named("queue.page")) == 36
    queue.nack(*queue.pop(10, ack_ms=60_000))
    assert len(queue.peek(100)) == 36
    assert sum(event.messages for event in told.named("queue.page")) == 72
    queue.purge()
    assert facts(told.last("queue.purge")) == (name, "ok", 36)
    queue.pop(1, block_ms=30)
    assert facts(told.last("queue.wait")) == (name, "ok", 0)


def test_dirty_lists_are_named_without_their_shards_and_members(
    client: headwater.Headwater, name: str, told: Recorder
) -> None:
    client.ick(name).add({"member": 1.0})
    client.ick_channel(f"{name}-c", 4).add({"member": 1.0})
    assert told.last("ick.add").object == name
    assert {event.object for event in told.events if event.name.startswith("channel.")} == {
        f"{name}-c"
    }
    assert "member" not in repr(told.events)


def test_dirty_lists_tell_how_many_members_move(
    client: headwater.Headwater, name: str, told: Recorder
) -> None:
    ick, channel = client.ick(name), client.ick_channel(f"{name}-c", 1)
    scores = {f"m{i}": float(i) for i in range(10)}
    ick.add(scores)
    assert told.last("ick.add").messages == 10
    assert len(ick.reserve(4)) == 4
    assert told.last("ick.exchange").messages == 4
    ick.exchange(2, "m0", "m1")
    assert told.last("ick.exchange").messages == 4, "two are committed, two reserved"
    assert len(list(ick.scan())) == sum(event.messages for event in told.named("ick.scan")) == 8
    channel.add(scores)
    batch = channel.reserve(6)
    channel.commit(batch, "m0")
    channel.release(batch)
    events = [told.last(f"channel.{verb}") for verb in ("add", "reserve", "commit", "release")]
    assert [event.messages for event in events] == [10, 6, 1, 5]
    channel.reshard(3)
    assert sum(event.messages for event in told.named("channel.put")) == 9


def test_timelines_are_named_by_the_address_of_their_server(told: Recorder) -> None:
    with Server(tcp=True) as server:
        with server.client() as admin:
            admin.execute_command("CONFIG", "SET", "requirepass", "secret")
        address = f"redis://:secret@127.0.0.1:{server.port}"
        with Farm.open(address) as farm:
            for _ in range(3):  # by the store, then by the pipe
                farm.insert([("the key", 1.0, "the member")])
                assert farm.select(["the key"])
    assert {event.object for event in told.named("timeline.write")} == {
        f"redis://127.0.0.1:{server.port}"
    }
    assert {event.outcome for event in told.named("timeline.select")} == {"ok"}
    shown = repr(told.events)
    assert "secret" not in shown
    assert "the key" not in shown
    assert "the member" not in shown


def test_many_calls_are_one_operation(
    client: headwater.Headwater, name: str, told: Recorder
) -> None:
    client.store.run(together(extent(f"{name}-{place}") for place in range(100)))
    (event,) = told.named("store.many")
    assert facts(event) == (client.store.where, "ok", 0)
    assert event.bytes == 100, "what tells that a stream was never written"


def test_a_shared_pipe_tells_of_each_call(told: Recorder, loop: Loop) -> None:
    async def work(url: str) -> None:
        store = await AsyncStore.open(url)
        pipe = await store.pipe(20)
        look = PackedCommands.of(Call("hw_stream_info", "hw:s:{a}", read_only=True))
        for _ in range(3):
            await pipe.send(look)
        dropped = pipe.send(look)
        dropped.cancel()
        await pipe.send(look)
        pipe.abort(ConnectionError("over"))
        await store.close()

    with Server() as server:
        loop.wait(work(server.url))
    outcomes = [(event.outcome, event.error) for event in told.named("stream.info")]
    assert sorted(outcomes) == [("failed", "CancelledError")] + [("ok", "")] * 4


# ── How it ended ─────────────────────────────────────────────────────────────────────────────


def test_a_refusal_is_told_as_one(client: headwater.Headwater, name: str, told: Recorder) -> None:
    with pytest.raises(UnknownGroup):
        client.stream(name).group("g").info()
    event = told.last("group.info")
    assert (event.object, event.outcome, event.error) == (f"{name}/g", "refused", "Refusal")


def test_an_unknown_outcome_is_told_as_one(
    door: Forwarder, dial: Dial, name: str, told: Recorder
) -> None:
    stream = dial(f"redis://127.0.0.1:{door.port}").stream(name)
    door.lose("reply", b"_stream_write")
    with pytest.raises(OutcomeUnknown):
        stream.write("t", b"v")
    event = told.last("stream.write")
    assert (event.outcome, event.error, event.messages) == ("unknown", "OutcomeUnknown", 0)


def test_a_retry_is_counted_with_its_reason(
    door: Forwarder, dial: Dial, name: str, told: Recorder
) -> None:
    hw = dial(f"redis://127.0.0.1:{door.port}")
    stream = hw.stream(name)
    door.lose("reply", b"_stream_write")
    stream.write_many([("t", b"v")] * 3, producer="p", sequence=1)
    assert facts(told.last("stream.write")) == (name, "retried", 3)
    assert told.counts["store.retry", "disconnected"] == 1
    hw.store.command("FUNCTION", "FLUSH")
    stream.write("t", b"v")
    assert facts(told.last("stream.write")) == (name, "retried", 1)
    assert told.counts["store.retry", "library missing"] == 1
    stream.write("t", b"v")
    assert facts(told.last("stream.write")) == (name, "ok", 1)


def test_a_server_that_stays_away_is_a_failure(
    door: Forwarder, dial: Dial, name: str, told: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "PATIENCE_S", 0.1)
    hw = dial(f"redis://127.0.0.1:{door.port}")
    door.close()
    with pytest.raises(StoreUnreachable):
        hw.stream(name).info()
    event = told.last("stream.info")
    assert (event.outcome, event.error) == ("failed", "StoreUnreachable")
    assert told.counts["store.retry", "unreachable"] > 0


# ── Workers ──────────────────────────────────────────────────────────────────────────────────


def test_a_worker_tells_of_each_handler_and_how_it_ended(
    crew: Crew, name: str, told: Recorder
) -> None:
    stream, queue = crew.hw.stream(name), crew.hw.queue(name)

    def fails_once(item: Any) -> None:
        if item.attempt == 1:
            raise RuntimeError("not yet")

    stream.write_many(entries(3))
    with at_work(crew.worker(stream, fails_once, backoff_ms=1)):
        until(all_done(stream.group("g"), 3))
    queue.configure(backoff="fixed", backoff_ms=1)
    queue.push_many([b"1", b"2"])
    with at_work(crew.queue_worker(queue, fails_once)):
        until(lambda: queue.stats().acked == 2)
    handled = [(e.object, e.outcome, e.error) for e in told.named("worker.handle")]
    assert sorted(handled) == sorted(
        [
            *[(f"{name}/g", "failed", "RuntimeError"), (f"{name}/g", "ok", "")] * 3,
            *[(name, "failed", "RuntimeError"), (name, "ok", "")] * 2,
        ]
    )


CURRENT: ContextVar[str] = ContextVar("span", default="")


class Tracer(Recorder):
    """Makes a span current while an operation is under way."""

    def begin(self, name: str, object: str) -> Any:
        return super().begin(name, object), CURRENT.set(f"{CURRENT.get()}>{name}")

    def end(self, token: Any, event: Event) -> None:
        CURRENT.reset(token[1])
        super().end(token[0], event)


def test_a_tracer_can_make_its_span_current_for_a_handler(
    stores: Stores, name: str, loop: Loop
) -> None:
    seen: list[str] = []
    tracer = Tracer()
    with headwater.connect(stores.url("plain")) as hw, installed(tracer):
        group = hw.stream(name).group("g")

        def handler(_: Message) -> None:
            seen.append(CURRENT.get())
            group.info()

        hw.stream(name).write("t", b"v")
        with at_work(Worker(group, handler)):
            until(all_done(group, 1))

        async def work() -> None:
            async with aio.connect(stores.url("plain")) as other:

                async def awaited(_: Message) -> None:
                    seen.append(CURRENT.get())
                    await other.stream(name).info()
                    seen.append(CURRENT.get())
                    worker.stop()

                worker = AsyncWorker(other.stream(name).group("h"), awaited)
                await worker.run()

        loop.wait(work())
    assert seen == [">worker.handle"] * 3
    assert CURRENT.get() == ""


def test_a_cancelled_handler_is_told_as_one_that_is_retried(
    stores: Stores, name: str, loop: Loop, told: Recorder
) -> None:
    async def work() -> None:
        async with aio.connect(stores.url("plain")) as hw:
            await hw.stream(name).write("t", b"v")
            begun = asyncio.Event()

            async def hangs(_: Message) -> None:
                begun.set()
                await asyncio.Event().wait()

            running = asyncio.create_task(AsyncWorker(hw.stream(name).group("g"), hangs).run())
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    loop.wait(work())
    (event,) = told.named("worker.handle")
    assert (event.outcome, event.error) == ("retried", "CancelledError")


def test_calls_that_share_a_connection_begin_and_end_in_one_context(
    stores: Stores, name: str, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    tracer = Tracer()

    async def work() -> None:
        async with AsyncFarm.open(stores.url("plain")) as farm:
            await asyncio.gather(*(farm.insert([(name, n, f"m{n}")]) for n in range(20)))
            await farm.select([name])
            assert CURRENT.get() == ""

    with installed(tracer):
        loop.wait(work())
    assert {event.outcome for event in tracer.events} == {"ok"}
    assert tracer.named("farm.insert")
    assert "different Context" not in caplog.text


class Failing:
    """An instrument that raises whatever it is told."""

    def begin(self, name: str, object: str) -> Any:
        raise RuntimeError(name, object)

    def end(self, token: Any, event: Event) -> None:
        raise RuntimeError(token, event)

    def count(self, name: str, object: str, n: int = 1) -> None:
        raise RuntimeError(name, object, n)


def test_an_instrument_that_fails_changes_nothing_of_the_work(
    stores: Stores, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with headwater.connect(stores.url("plain")) as hw, installed(Failing()):
        stream = hw.stream(name)
        assert stream.write("t", b"v") == 1
        group = stream.group("g")
        with at_work(Worker(group, lambda _: None)):
            until(all_done(group, 1))
    assert "the instrument" in caplog.text
