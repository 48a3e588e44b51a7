"""An application declares its parts, and runs them together: workers, consumers, outbox, keep."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

import headwater
from headwater import App, Delivery, Message, TopicMessage
from headwater.errors import AppRefused, InvalidInput
from headwater.outbox import Outbox
from tests.support.servers import until
from tests.support.stores import Stores


@dataclass
class Order:
    number: int


@pytest.fixture
def url(stores: Stores) -> str:
    return stores.url("plain")


@pytest.fixture
def hw(url: str) -> Iterator[headwater.Headwater]:
    with headwater.connect(url) as connected:
        yield connected


@pytest.fixture
def db(tmp_path: Path) -> str:
    path = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = create_engine(path)
    Outbox(engine).create_all()
    with engine.begin() as conn:
        conn.execute(text("CREATE TABLE seen (number INTEGER)"))
    engine.dispose()
    return path


def test_every_kind_of_part_runs_sync_and_async(
    url: str, hw: headwater.Headwater, db: str, name: str
) -> None:
    app = App(url, db)
    seen: Counter[str] = Counter()

    @app.worker(stream=name, group="mail", codec=Order, max_attempts=5)
    def send_mail(message: Message[Order]) -> None:
        seen[f"stream {message.data.number}"] += 1

    @app.worker(stream=name, group="mail-async", codec=Order, concurrency=8)
    async def send_later(message: Message[Order]) -> None:
        await asyncio.sleep(0)
        seen[f"async stream {message.data.number}"] += 1

    @app.worker(topic=f"{name}-t", group="g", partitions=2, codec="json", ordered=True)
    def on_topic(message: TopicMessage[Any]) -> None:
        seen[f"topic {message.data}"] += 1

    @app.worker(topic=f"{name}-t", group="h", partitions=2, codec="json")
    async def on_topic_async(message: TopicMessage[Any]) -> None:
        seen[f"async topic {message.data}"] += 1

    @app.worker(queue=name, backoff="fixed", ack_ms="30s", timeout="30s")
    def shrink(job: Delivery) -> None:
        seen[f"queue {job.value.decode()}"] += 1

    @app.worker(queue=f"{name}-a", backoff="none")
    async def shrink_async(job: Delivery) -> None:
        seen[f"async queue {job.value.decode()}"] += 1

    @app.consumer(f"{name}-read", stream=name, codec=Order)
    def project(conn: Any, messages: list[Message[Order]]) -> None:
        rows = [{"n": message.data.number} for message in messages]
        conn.execute(text("INSERT INTO seen VALUES (:n)"), rows)

    @app.consumer(f"{name}-count", stream=name, codec=Order)
    async def project_async(conn: Any, messages: list[Message[Order]]) -> None:
        rows = [{"n": -message.data.number} for message in messages]
        await conn.execute(text("INSERT INTO seen VALUES (:n)"), rows)

    app.stream_outbox()
    app.keep(every="10ms")

    engine = create_engine(db)
    with engine.begin() as conn:
        Outbox(engine).stage(conn, name, "a", {"number": 1})
    hw.stream(name, codec=Order).write("b", Order(2))
    hw.topic(f"{name}-t", 2, codec="json").write_many([("a", 1), ("b", 2)])
    for queue in (name, f"{name}-a"):
        hw.queue(queue).push_many([b"1", b"2"])
    expected = {f"{way}{what} {n}" for way in ("", "async ") for n in (1, 2)
                for what in ("stream", "topic", "queue")}  # fmt: skip

    def numbers() -> list[int]:
        with engine.connect() as conn:
            return sorted(conn.execute(text("SELECT number FROM seen")).scalars())

    app.start()
    try:
        until(lambda: set(seen) == expected and numbers() == [-2, -1, 1, 2])
        until(lambda: {state.status for state in app.states()} == {"running"})
        until(lambda: all(state.counts.done for state in app.states()))
    finally:
        assert app.stop() == 0
    engine.dispose()
    assert set(seen.values()) == {1}
    assert app.states() == []
    # A decorated function is what it was.
    assert send_mail.__name__ == "send_mail"
    assert asyncio.iscoroutinefunction(shrink_async)


def test_what_is_wrong_is_listed_as_a_whole_before_anything_runs(
    url: str, hw: headwater.Headwater, tmp_path: Path, name: str
) -> None:
    hw.queue(f"{name}-q").push(b"x")
    ran = threading.Event()
    app = App(url, f"sqlite:///{tmp_path / 'none.db'}")

    @app.worker(stream=name, group="g")
    def good(_: Message) -> None:
        ran.set()

    hw.stream(name).write("t", b"v")
    app.worker(stream="a b", group="c d", codec=("x", "y"), name="names")(lambda _: None)  # type: ignore[arg-type]
    app.worker(stream=f"{name}-q", group="g", name="other-kind")(lambda _: None)
    app.worker(queue=f"{name}-q", concurrency=0, name="numbers")(lambda _: None)
    app.worker(queue=f"{name}-q", name="takes-two")(lambda _, __: None)  # type: ignore[arg-type, misc]
    app.worker(queue=f"{name}-p", name="not-there")(lambda _: None)
    app.stream_outbox()

    found = [str(fault) for fault in app.check() if fault.fatal]
    with pytest.raises(AppRefused) as refused:
        app.run()
    assert not ran.is_set()
    assert list(refused.value.faults) == found
    for part, words in (
        ("db", "there is no such file"),
        ("names", "the name of a stream must not contain ' '"),
        ("names", "the name of a group must not contain ' '"),
        ("names", "a codec of functions is a pair"),
        ("other-kind", f"is a queue, not a stream; write queue='{name}-q'"),
        ("numbers", "concurrency must be from 1"),
        ("takes-two", "must take one argument"),
    ):
        assert any(one.startswith(f"{part}: ") and words in one for one in found), (part, found)
    notes = [fault for fault in app.check() if not fault.fatal]
    assert [note.part for note in notes] == ["not-there"]
    assert f"did you mean '{name}-q'?" in notes[0].what


def test_a_check_changes_nothing(url: str, hw: headwater.Headwater, name: str) -> None:
    app = App(url)
    app.worker(topic=f"{name}-t", group="g", name="topic")(lambda _: None)
    app.worker(stream=name, group="g", max_attempts=3, name="stream")(lambda _: None)
    app.worker(queue=name, name="queue")(lambda _: None)
    assert not [fault for fault in app.check() if fault.fatal]
    assert name not in (*hw.streams(), *hw.queues())
    assert f"{name}-t" not in hw.topics()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ({}, "one source"),
        ({"stream": "a", "queue": "b", "group": "g"}, "one source"),
        ({"stream": "a"}, "give group="),
        ({"queue": "a", "group": "g"}, "no groups"),
        ({"queue": "a", "partitions": 2}, "only a topic"),
        ({"queue": "a", "concurency": 2}, "did you mean 'concurrency'"),
        ({"queue": "a", "expire_ms": 2}, "expire_ms"),
        ({"queue": "a", "processes": 0}, "processes must be from 1"),
        ({"queue": "a", "ack_ms": "soon"}, "ack_ms: 'soon' is not a span of time"),
        ({"queue": "a", "timeout": "soon"}, "timeout: 'soon' is not a span of time"),
        ({"queue": "a", "backoff": "often"}, "backoff: 'often' is not a span of time"),
    ],
)
def test_a_declaration_that_cannot_be_meant_is_refused_where_it_is_written(
    words: dict[str, Any], error: str
) -> None:
    with pytest.raises((InvalidInput, TypeError), match=error):
        App().worker(**words)(print)


def test_two_parts_need_two_names() -> None:
    app = App()
    app.keep()
    with pytest.raises(InvalidInput, match="has a part 'keep' already"):
        app.keep()
    app.keep(name="keep-2")
    assert list(app.parts) == ["keep", "keep-2"]


def test_parts_are_chosen_by_name(url: str, name: str) -> None:
    app = App(url)
    for part in "abc":
        app.worker(queue=name, name=part)(lambda _: None)
    app.start(only=["a", "b"], without=["b"])
    try:
        assert [state.name for state in app.states()] == ["a"]
        with pytest.raises(InvalidInput, match="runs already"):
            app.start()
    finally:
        app.stop()
    with pytest.raises(InvalidInput, match="no part 'd'; it has a, b, c"):
        app.check(only=["d"])


def test_a_part_that_dies_is_started_again_and_its_counts_go_on(
    url: str, hw: headwater.Headwater, name: str
) -> None:
    app = App(url)
    seen: list[bytes] = []
    part = app.worker(queue=name, name="w", concurrency=1)
    part(lambda job: seen.append(job.value))
    opened, opens = app.parts["w"].open, iter(range(100))

    def dies_first(resources: Any) -> Any:
        if next(opens) == 0:
            raise LookupError("not yet")
        return opened(resources)

    app.parts["w"].open = dies_first  # type: ignore[method-assign]
    hw.queue(name).push(b"1")
    app.start()
    try:
        until(lambda: app.states()[0].status == "resting")
        assert app.states()[0].why == "LookupError: not yet"
        until(lambda: seen == [b"1"])
        state = until(lambda: next((s for s in app.states() if s.counts.done), None))
        assert (state.restarts, state.status, state.why) == (1, "running", None)
    finally:
        app.stop()


def test_what_is_not_done_at_the_end_of_a_drain_is_returned_at_once(
    url: str, hw: headwater.Headwater, name: str
) -> None:
    app, begun, release = App(url), threading.Semaphore(0), threading.Event()

    @app.worker(queue=name, concurrency=2, ack_ms="10m")
    def stuck(_: Delivery) -> None:
        begun.release()
        release.wait(60)

    @app.worker(queue=f"{name}-a", concurrency=2, ack_ms="10m")
    async def stuck_async(_: Delivery) -> None:
        begun.release()
        await asyncio.get_running_loop().create_future()

    @app.worker(stream=name, group="g", concurrency=2, ack_ms="10m")
    def stuck_in_group(_: Message) -> None:
        begun.release()
        release.wait(60)

    @app.worker(stream=f"{name}-o", group="g", concurrency=2, ack_ms="10m", ordered=True)
    def stuck_in_order(_: Message) -> None:
        begun.release()
        release.wait(60)

    queues = hw.queue(name), hw.queue(f"{name}-a")
    for queue in queues:
        queue.push_many([b"%d" % n for n in range(5)])
    hw.stream(name).write_many([("t", b"%d" % n) for n in range(5)])
    hw.stream(f"{name}-o").write_many([(f"t{n % 2}", b"%d" % n) for n in range(5)])
    app.start()
    for _ in range(8):
        assert begun.acquire(timeout=60)
    assert app.stop(drain=0) > 0
    try:
        for queue in queues:
            assert (queue.stats().ready, queue.stats().unacked) == (5, 0)
        again = hw.stream(name).group("g").read(10, ack_ms=1000)
        assert sorted(message.offset for message in again) == [1, 2, 3, 4, 5]
        assert {message.attempt for message in again} == {1}
        # Here the first of each tag can be had at once, and the others as these are done.
        group, had = hw.stream(f"{name}-o").group("g", ordered=True), list[int]()
        while in_order := group.read(10, ack_ms=60_000):
            had += [message.offset for message in in_order]
            group.ack(in_order)
        assert sorted(had) == [1, 2, 3, 4, 5]
    finally:
        release.set()
