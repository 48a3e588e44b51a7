"""What an instrument learns of every operation: what, on what, how much, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest
import sqlalchemy as sa

import headwater
from headwater import Message, Worker, aio
from headwater.aio import AsyncWorker
from headwater.errors import (
    OutcomeUnknown,
    PoisonedBatch,
    RowRefused,
    StoreError,
    StoreUnreachable,
    UnknownGroup,
)
from headwater.kernel.instrument import Event, installed
from headwater.log.reading import extent
from headwater.outbox import Outbox, Streamer, write_reset
from headwater.store import faults
from headwater.store.aio_pipe import PackedCommands
from headwater.store.aio_store import AsyncStore
from headwater.store.call import Call
from headwater.store.many import together
from headwater.timeline import AsyncFarm, Farm
from tests.support.blocking import Loop
from tests.support.consumer_letters import Killed, die_at
from tests.support.consumers import Desk, drain, running, writes
from tests.support.entries import entries, offsets
from tests.support.forwarder import Forwarder
from tests.support.instruments import Recorder
from tests.support.servers import Server, until
from tests.support.stagings import table
from tests.support.stores import Stores
from tests.support.streamers import MakeStreamer, streaming
from tests.support.waking import wait_for_members
from tests.support.watch import blocked, let_pass
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


# ── What an instrument learns of streams and groups: how many messages each request moved ────────


LONG = 60_000


def test_a_stream_tells_what_is_written_and_read(
    client: headwater.Headwater, name: str, told: Recorder
) -> None:
    stream = client.stream(name)
    stream.write("t", bytes(1000))
    assert facts(told.last("stream.write")) == (name, "ok", 1)
    assert 1000 < told.last("stream.write").bytes < 1200
    assert told.last("stream.write").seconds > 0
    stream.write_many(entries(500, 2))
    assert facts(told.last("stream.write")) == (name, "ok", 500)
    assert len(stream.read(3, 10)) == 10
    assert facts(told.last("stream.read")) == (name, "ok", 10)
    stream.read(600, 1, block_ms=30)
    assert facts(told.last("stream.wait")) == (name, "ok", 0)


def test_a_reader_that_continues_tells_of_its_looks(
    client: headwater.Headwater, name: str, told: Recorder
) -> None:
    stream = client.stream(name)
    for start in range(1, 4001, 1000):
        stream.write_many(entries(1000, start))
    stream.seal()
    for start in range(1, 4001, 1000):
        stream.read(start, 1000)
    assert {facts(event) for event in told.named("stream.look")} == {(name, "ok", 1000)}


def test_a_group_is_named_with_its_stream(
    client: headwater.Headwater, name: str, told: Recorder
) -> None:
    stream = client.stream(name)
    stream.write_many(entries(10))
    group = stream.group("a/b:1")
    group.read(10, ack_ms=60_000)
    group.ack((1, 10))
    group.read(1, block_ms=30)
    names = {event.name: event.object for event in told.events if event.name.startswith("group.")}
    assert names == dict.fromkeys(["group.read", "group.ack", "group.wait"], f"{name}/a/b:1")


def test_a_group_tells_what_is_delivered_and_acknowledged(
    client: headwater.Headwater, name: str, told: Recorder
) -> None:
    stream = client.stream(name)
    stream.write_many(entries(10))
    group = stream.group("g")
    group.read(7, ack_ms=LONG)
    assert facts(told.last("group.read")) == (f"{name}/g", "ok", 7)
    group.ack((1, 5), 9)
    assert facts(told.last("group.ack")) == (f"{name}/g", "ok", 5)
    group.nack(6, 7, delay_ms=LONG)
    assert facts(told.last("group.postpone")) == (f"{name}/g", "ok", 2)
    group.read(10)
    assert facts(told.last("group.read")) == (f"{name}/g", "ok", 3)


def test_a_blocked_member_tells_what_woke_it(
    client: headwater.Headwater, name: str, told: Recorder, pool: ThreadPoolExecutor
) -> None:
    stream = client.stream(name)
    group = stream.group("g")
    member = pool.submit(group.read, 5, ack_ms=LONG, block_ms=LONG)
    until(lambda: told.named("group.read"))
    wait_for_members(group, 1)
    stream.write_many(entries(3))
    assert offsets(member.result(60)) == [1, 2, 3]
    assert sum(event.messages for event in told.named("group.wait")) == 3
    assert sum(event.messages for event in told.named("group.read")) == 0


def test_a_blocked_reader_tells_what_woke_it(
    client: headwater.Headwater, name: str, told: Recorder, pool: ThreadPoolExecutor
) -> None:
    stream = client.stream(name)
    reader = pool.submit(stream.read, 1, 5, block_ms=LONG)
    until(lambda: blocked(client))
    stream.write_many(entries(3))
    assert len(reader.result(60)) == 3
    moved = [*told.named("stream.wait"), *told.named("stream.read")]
    assert sum(event.messages for event in moved) == 3


def test_staging_and_publishing_tell_how_much(
    client: headwater.Headwater, name: str, told: Recorder
) -> None:
    stream = client.stream(name)
    for number in range(2):
        stream.stage(table(entries(700)), f"t{number}")
        assert facts(told.last("stream.stage")) == (name, "ok", 700)
    for _ in range(2):
        stream.publish("t0", "t1", producer="p", sequence=1)
    assert sum(event.messages for event in told.named("stream.publish")) == 1400


def test_what_leaves_a_stream_is_counted(
    client: headwater.Headwater, name: str, told: Recorder
) -> None:
    stream = client.stream(name)
    stream.write_many(entries(1000))
    stream.seal()
    stream.evict(100)
    assert facts(told.last("stream.evict")) == (name, "ok", 100)
    stream.write_many(entries(10))
    stream.seal()
    assert facts(told.last("stream.seal")) == (name, "ok", 10)
    stream.retain(max_count=50)
    assert sum(event.messages for event in told.named("stream.retain")) == 860


def test_what_a_group_gives_up_and_gets_back_is_counted(
    client: headwater.Headwater, name: str, told: Recorder
) -> None:
    stream = client.stream(name)
    stream.write_many(entries(4))
    dropping = stream.group("dropping")
    dropping.read(3, ack_ms=1, expire_ms=1)
    burying = stream.group("burying", dead_letters=True)
    burying.read(4, ack_ms=1, expire_ms=1)
    let_pass(client, 5)
    dropping.bury()
    assert sum(event.messages for event in told.named("group.expire")) == 3
    burying.bury()
    assert sum(event.messages for event in told.named("group.bury")) == 4
    burying.redrive(2)
    assert facts(told.last("group.redrive")) == (f"{name}/burying", "ok", 2)
    burying.discard()
    assert facts(told.last("group.discard")) == (f"{name}/burying", "ok", 2)


# ── Streamers and consumers report every batch: how many messages, how many bytes, its outcome ───


@pytest.fixture
def store_url(stores: Stores) -> str:
    return stores.url("plain")


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    with installed(recorder):
        yield recorder
    assert not +recorder.open, "whatever begins ends"


def seen(recorder: Recorder, name: str) -> list[tuple[object, ...]]:
    """Return what was reported, but for the time that it took."""
    events = recorder.named(name)
    assert all(event.seconds >= 0 for event in events)
    return [(e.object, e.outcome, e.messages, e.bytes, e.error) for e in events]


# ── The streamer ─────────────────────────────────────────────────────────────────────────────


def test_a_streamed_batch_is_reported_for_each_of_its_streams(
    engine: sa.Engine, outbox: Outbox, make_streamer: MakeStreamer, name: str, recorder: Recorder
) -> None:
    with engine.begin() as conn:
        outbox.stage_many(conn, name, [("t", b"123"), ("t", b"4567")])
        outbox.stage(conn, f"{name}-other", "t", b"")
    streamer = make_streamer()
    assert streamer.run_once() == 3
    assert seen(recorder, "streamer.batch") == [
        (name, "ok", 2, 7, ""),
        (f"{name}-other", "ok", 1, 0, ""),
    ]
    assert streamer.run_once() == 0
    assert len(recorder.named("streamer.batch")) == 2, "nothing is reported of nothing"


def test_a_row_that_the_log_refuses_is_reported_as_refused(
    engine: sa.Engine, make_streamer: MakeStreamer, name: str, recorder: Recorder
) -> None:
    streamer = make_streamer()
    with engine.begin() as conn:
        insert = sa.text("INSERT INTO headwater_outbox (stream, tag, value) VALUES (:s, :t, :v)")
        conn.execute(insert, {"s": name, "t": "t" * 100_000, "v": b""})
    with pytest.raises(RowRefused):
        streamer.run_once()
    assert seen(recorder, "streamer.batch") == [(name, "refused", 0, 0, "RowRefused")]


def test_a_batch_that_is_repeated_after_an_outage_is_reported_each_time(
    engine: sa.Engine, outbox: Outbox, name: str, recorder: Recorder
) -> None:
    with Server(fsync="always") as server, headwater.connect(server.url) as hw:
        streamer = Streamer(outbox, hw)
        with streaming(streamer):
            until(lambda: streamer.progress.leading)
            server.kill()
            with engine.begin() as conn:
                outbox.stage(conn, name, "t", b"1")
            until(lambda: streamer.progress.trouble)
            server.restart()
            until(lambda: streamer.progress.rows == 1)
        *failed, last = recorder.named("streamer.batch")
        assert failed
        assert {event.outcome for event in failed} <= {"retried", "unknown"}
        assert (last.outcome, last.messages, last.bytes) == ("ok", 1, 1)


def test_a_batch_that_is_not_retried_is_reported_as_failed(
    engine: sa.Engine, outbox: Outbox, name: str, recorder: Recorder
) -> None:
    with engine.begin() as conn:
        outbox.stage(conn, name, "t", b"1")
    with Server(fsync="always") as server, headwater.connect(server.url) as hw:
        server.kill()
        with Streamer(outbox, hw) as streamer, pytest.raises(StoreError) as caught:
            streamer.run_once()
    outcome = recorder.last("streamer.batch")
    assert (outcome.outcome, outcome.error) == ("failed", type(caught.value).__name__)


# ── Consumers ────────────────────────────────────────────────────────────────────────────────


def test_a_batch_of_a_consumer_is_reported_with_its_size(
    desk: Desk, name: str, recorder: Recorder
) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(5))
    size = [len(value) for _, value in entries(5)]
    consumer = desk.consumer("c", name, batch=3, on_reset=lambda *_: None)
    assert drain(consumer) == 5
    assert seen(recorder, "consumer.batch") == [
        ("c", "ok", 3, sum(size[:3]), ""),
        ("c", "ok", 2, sum(size[3:]), ""),
    ]
    write_reset(stream, "c", 5, None)
    assert drain(consumer) == 1
    assert recorder.last("consumer.batch").messages == 1
    assert len(recorder.named("consumer.batch")) == 3


def test_every_attempt_of_a_handler_is_reported(desk: Desk, name: str, recorder: Recorder) -> None:
    desk.hw.stream(name).write_many(entries(2))

    def fail(*_: object) -> None:
        raise ValueError

    with pytest.raises(PoisonedBatch):
        desk.consumer("c", name, fail, attempts=3, backoff_ms=1).run_once()
    assert seen(recorder, "consumer.batch") == [
        ("c", "retried", 0, 0, "ValueError"),
        ("c", "retried", 0, 0, "ValueError"),
        ("c", "failed", 0, 0, "ValueError"),
    ]


def test_a_message_that_becomes_a_dead_letter_is_the_one_that_failed(
    desk: Desk, name: str, recorder: Recorder
) -> None:
    desk.hw.stream(name).write_many(entries(4))

    def fail(conn: sa.Connection, messages: list[Message]) -> None:
        if any(message.offset == 3 for message in messages):
            raise ValueError
        writes("c")(conn, messages)

    consumer = desk.consumer("c", name, fail, attempts=1, backoff_ms=1, on_error="skip")
    drain(consumer)
    assert desk.effects("c") == [1, 2, 4]
    outcomes = [(event.outcome, event.messages) for event in recorder.named("consumer.batch")]
    assert outcomes.count(("failed", 0)) == 1
    assert sum(count for outcome, count in outcomes if outcome == "ok") == 3
    assert {outcome for outcome, _ in outcomes} == {"ok", "retried", "failed"}


def test_a_batch_that_another_process_applied_first_is_reported_as_refused(
    desk: Desk, name: str, recorder: Recorder
) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(2))
    first, second = desk.consumer("c", name, batch=1), desk.consumer("c", name, batch=1)
    assert first.run_once() == second.run_once() == 1
    stream.write_many(entries(2, 3))
    drain(first)
    # It believes that it is where it was, is refused, and finds out that nothing is left.
    assert second.run_once() == 0
    assert [event.outcome for event in recorder.named("consumer.batch")][-1] == "refused"
    assert desk.effects("c") == [1, 2, 3, 4]


def test_a_letter_that_waits_for_its_message_is_reported_as_refused(
    desk: Desk, name: str, recorder: Recorder
) -> None:
    desk.hw.stream(name).write_many(entries(2))

    def fail(_conn: sa.Connection, _messages: list[Message]) -> None:
        raise ValueError("cannot handle it")

    skips: dict[str, Any] = {"batch": 1, "attempts": 1, "on_error": "skip"}
    with pytest.raises(Killed):
        desk.consumer("c", name, fail, steps=die_at("buried"), **skips).run_once()
    recorder.events.clear()
    waiting = desk.consumer("c", name, **skips)
    assert waiting.redrive() == (0, 0)
    assert seen(recorder, "consumer.batch") == [("c", "refused", 0, 0, "")]
    assert drain(waiting) == 2
    assert waiting.redrive() == (0, 0)
    assert desk.effects("c") == [1, 2]


def test_trouble_with_the_database_is_reported_as_retried(
    desk: Desk, name: str, recorder: Recorder
) -> None:
    desk.hw.stream(name).write_many(entries(1))
    failures = iter([sa.exc.OperationalError("SELECT 1", None, ValueError("away"))])

    def fail(conn: sa.Connection, messages: list[Message]) -> None:
        for failure in failures:
            raise failure
        writes("c")(conn, messages)

    with running(desk.consumer("c", name, fail, attempts=1)):
        until(lambda: desk.effects("c") == [1])
    assert seen(recorder, "consumer.batch")[:2] == [
        ("c", "retried", 0, 0, "OperationalError"),
        ("c", "ok", 1, len(entries(1)[0][1]), ""),
    ]


def test_a_commit_whose_outcome_is_unknown_is_reported_as_such(
    desk: Desk, name: str, recorder: Recorder
) -> None:
    desk.hw.stream(name).write_many(entries(1))
    failures = iter([sa.exc.OperationalError("COMMIT", None, ValueError("away"))])
    engine = desk.engine if desk.manner == "sync" else desk.async_engine.sync_engine

    @sa.event.listens_for(engine, "commit")
    def fail(_: sa.Connection) -> None:
        if recorder.open["consumer.batch", "c"] > 0:
            for failure in failures:
                raise failure

    with running(desk.consumer("c", name)):
        until(lambda: desk.effects("c") == [1])
    assert [event[1] for event in seen(recorder, "consumer.batch")] == ["unknown", "ok"]
