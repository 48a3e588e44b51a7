"""A consumer applies every message once, in order, and its position is part of its effects."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from headwater import Message
from headwater.outbox import Consumer
from headwater.outbox import consumer as make_consumer
from headwater.store.call import Call, Wait
from tests.support.consumers import Desk, drain, numbers, running, writes
from tests.support.entries import entries, pairs
from tests.support.servers import until

# ── One batch is one transaction ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_every_message_is_applied_once_and_in_order(desk: Desk, name: str, batch: int) -> None:
    stream = desk.hw.stream(name)
    for first in range(1, 50, 10):
        stream.write_many(entries(10, first))
    consumer = desk.consumer("c", name, batch=batch)
    counts = []
    while count := consumer.run_once():
        counts.append(count)
    assert counts == [batch] * (50 // batch) + ([50 % batch] if 50 % batch else [])
    assert desk.effects("c") == numbers(1, 50)
    assert consumer.positions() == {name: 51}
    assert consumer.stats.handled == 50


def test_the_handler_is_given_what_was_written(desk: Desk, name: str) -> None:
    seen: list[Message] = []
    stream = desk.hw.stream(name)
    stream.write_many(entries(3))
    consumer = desk.consumer("c", stream, lambda _, messages: seen.extend(messages))
    assert consumer.run_once() == 3
    assert pairs(seen) == entries(3)
    assert [message.offset for message in seen] == [1, 2, 3]


def test_effects_and_position_are_there_together_or_not_at_all(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(30))

    def fails_late(conn: sa.Connection, messages: list[Message]) -> None:
        writes("c")(conn, messages)
        if messages[-1].offset > 10:
            raise RuntimeError("after the effects")

    consumer = desk.consumer("c", name, fails_late, batch=10, attempts=1)
    assert consumer.run_once() == 10
    with pytest.raises(Exception, match="after the effects"):
        consumer.run_once()
    assert desk.effects("c") == numbers(1, 10)
    assert consumer.positions() == {name: 11}
    assert drain(desk.consumer("c", name)) == 20
    assert desk.effects("c") == numbers(1, 30)


def test_a_position_survives_its_consumer(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    for last in (20, 40, 60):
        stream.write_many(entries(20, last - 19))
        assert desk.consumer("c", name).run_once() == 20
    assert desk.effects("c") == numbers(1, 60)


def test_consumers_of_different_names_do_not_know_of_each_other(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(10))
    assert drain(desk.consumer("a", name, batch=3)) == 10
    assert drain(desk.consumer("b", name, batch=4)) == 10
    assert desk.effects("a") == desk.effects("b") == numbers(1, 10)


def test_a_business_id_plays_no_part(desk: Desk, name: str) -> None:
    """Duplicates and ids out of order are messages like any other: the position passes them."""
    stream = desk.hw.stream(name)
    stream.write_many([("ride-7", b"same")] * 2500)
    stream.write_many([("ride-3", b"late")])
    seen = set()

    def once_per_tag(conn: sa.Connection, messages: list[Message]) -> None:
        new = [m for m in messages if m.tag not in seen and not seen.add(m.tag)]  # type: ignore[func-returns-value]
        if new:
            writes("c")(conn, new)

    consumer = desk.consumer("c", name, once_per_tag)
    assert drain(consumer) == 2501
    assert consumer.positions() == {name: 2502}
    assert desk.effects("c") == [1, 2501]


def test_two_consumers_of_one_name_apply_everything_once(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    pair = [desk.consumer("c", name, batch=5), desk.consumer("c", name, batch=8)]
    with running(*pair):
        for first in range(1, 400, 20):
            stream.write_many(entries(20, first))
        until(lambda: len(desk.effects("c")) >= 400)
    assert desk.effects("c") == numbers(1, 400)
    assert sum(consumer.stats.handled for consumer in pair) == 400


def test_a_consumer_that_was_overtaken_goes_on_behind_the_other(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(10))
    slow, fast = desk.consumer("c", name, batch=4), desk.consumer("c", name, batch=4)
    assert slow.run_once() == 4
    assert fast.run_once() == 4
    assert slow.run_once() == 2
    assert slow.stats.overtaken == 1
    assert fast.run_once() == 0
    assert desk.effects("c") == numbers(1, 10)


def test_offsets_of_no_message_are_passed(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(500, tags=2))
    stream.compact()
    consumer = desk.consumer("c", name, batch=50)
    assert drain(consumer) == 2
    assert consumer.positions() == {name: 501}
    stream.write_many([("tag-0", b"gone"), ("tag-0", b"")])
    stream.compact()
    assert consumer.run_once() == 1
    assert consumer.positions() == {name: 503}
    assert consumer.stats.gaps == []


# ── The decorator ────────────────────────────────────────────────────────────────────────────


def test_a_decorated_handler_is_a_consumer(desk: Desk, name: str) -> None:
    @make_consumer("totals", stream=name, outbox=desk.engine, hw=desk.hw, batch=2)
    def totals(conn: sa.Connection, messages: list[Message]) -> None:
        writes("totals")(conn, messages)

    desk.hw.stream(name).write_many(entries(3))
    assert isinstance(totals, Consumer)
    assert (totals.run_once(), totals.run_once()) == (2, 1)
    assert desk.effects("totals") == [1, 2, 3]


# ── What it costs ────────────────────────────────────────────────────────────────────────────


def test_a_batch_costs_one_read_and_one_report_to_the_log(
    desk: Desk, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(30))
    consumer = Consumer("c", name, desk.engine, desk.hw, writes("c"), batch=10)
    consumer.run_once()
    calls: list[str] = []
    ask = desk.hw.store.ask

    def counted(request: Call | Wait, *more: Any) -> Any:
        calls.append(request.function if isinstance(request, Call) else "wait")
        return ask(request, *more)

    monkeypatch.setattr(desk.hw.store, "ask", counted)
    consumer.run_once()
    assert calls == ["hw_stream_read", "hw_stream_reader"]
