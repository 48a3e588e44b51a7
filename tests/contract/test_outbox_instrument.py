"""Streamers and consumers report every batch: how many messages, how many bytes, its outcome."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

import headwater
from headwater import Message
from headwater.errors import PoisonedBatch, RowRefused, StoreError
from headwater.kernel.instrument import installed
from headwater.outbox import Outbox, Streamer, write_reset
from tests.support.consumer_letters import Killed, die_at
from tests.support.consumers import Desk, drain, running, writes
from tests.support.entries import entries
from tests.support.instruments import Recorder
from tests.support.servers import Server, until
from tests.support.stores import Stores
from tests.support.streamers import MakeStreamer, streaming


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
    engine: sa.Engine,
    outbox: Outbox,
    make_streamer: MakeStreamer,
    name: str,
    recorder: Recorder,
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
