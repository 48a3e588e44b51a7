"""Reset records set a consumer's state anew, in the log's order."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
import sqlalchemy as sa

import headwater
from headwater import Headwater, Message, ReusedSequence, Stream, aio
from headwater.errors import GapError, InvalidInput, PoisonedBatch
from headwater.outbox import Consumer, write_reset
from headwater.outbox.status import reset_tag
from tests.support.blocking import Loop
from tests.support.consumers import EFFECTS, Desk, drain
from tests.support.entries import entries, offsets
from tests.support.stores import Stores

TOTAL = sa.Table("total", sa.MetaData(), sa.Column("sum", sa.BigInteger, nullable=False))


@pytest.fixture
def total(desk: Desk) -> Any:
    """Read the sum that the consumer below keeps: of all numbers that were ever written."""
    with desk.engine.begin() as conn:
        TOTAL.create(conn)
        conn.execute(sa.insert(TOTAL).values(sum=0))

    def read() -> int:
        with desk.engine.connect() as conn:
            return int(conn.execute(sa.select(TOTAL.c.sum)).scalar_one())

    return read


def add(conn: sa.Connection, messages: list[Message]) -> None:
    by = sum(int(message.value) for message in messages)
    conn.execute(sa.update(TOTAL).values(sum=TOTAL.c.sum + by))
    rows = [{"consumer": "c", "place": message.offset} for message in messages]
    conn.execute(sa.insert(EFFECTS), rows)


def put(conn: sa.Connection, state: Any) -> None:
    conn.execute(sa.update(TOTAL).values(sum=state["sum"]))


def summing(desk: Desk, stream: str, **options: Any) -> Consumer:
    return desk.consumer("c", stream, add, **{"on_reset": put, "backoff_ms": 0, **options})


def values(first: int, last: int) -> list[tuple[str, bytes]]:
    return [("n", b"%d" % number) for number in range(first, last + 1)]


@pytest.mark.parametrize("batch", [1, 3, 1000])
def test_a_reset_sets_the_state_and_applies_again_what_came_since(
    desk: Desk, name: str, total: Any, batch: int
) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(values(1, 10))
    assert write_reset(stream, "c", 6, {"sum": 1000}) == 11
    stream.write_many(values(12, 14))
    consumer = summing(desk, name, batch=batch)
    drain(consumer)
    assert total() == 1000 + 7 + 8 + 9 + 10 + 12 + 13 + 14
    assert desk.effects("c") == [*range(1, 11), 7, 8, 9, 10, 12, 13, 14]
    assert consumer.positions() == {name: 15}
    assert consumer.stats.resets == 1


@pytest.mark.parametrize("position", [0, 10])
def test_a_state_may_hold_nothing_or_all(desk: Desk, name: str, total: Any, position: int) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(values(1, 10))
    write_reset(stream, "c", position, {"sum": 5})
    drain(summing(desk, name))
    assert total() == 5 + sum(range(position + 1, 11))


def test_a_reset_is_applied_once(desk: Desk, name: str, total: Any) -> None:
    stream = desk.hw.stream(name)
    write_reset(stream, "c", 0, {"sum": 5})
    stream.write_many(values(2, 4))
    for _ in range(3):
        drain(summing(desk, name, batch=1))
    assert total() == 5 + 9


def test_the_latest_of_several_resets_counts(desk: Desk, name: str, total: Any) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(values(1, 5))
    write_reset(stream, "c", 2, {"sum": 100})  # at 6
    stream.write_many(values(7, 8))
    write_reset(stream, "c", 4, {"sum": 500})  # at 9; what lies between holds the other
    stream.write_many(values(10, 10))
    drain(summing(desk, name))
    assert total() == 500 + 5 + 7 + 8 + 10


def test_resets_for_others_are_passed_silently(desk: Desk, name: str, total: Any) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(values(1, 3))
    for who in ("d", "cc", "c.d"):
        write_reset(stream, who, 1, {"sum": -1})
    stream.write_many(values(7, 8))
    consumer = summing(desk, name)
    assert drain(consumer) == 5
    assert total() == 1 + 2 + 3 + 7 + 8
    assert desk.effects("c") == [1, 2, 3, 7, 8]


def test_a_thousand_resets_for_others_do_not_hold_anyone_up(
    desk: Desk, name: str, total: Any
) -> None:
    stream = desk.hw.stream(name)
    record = (reset_tag("other"), b'{"position": 0, "state": 1}')
    stream.write_many([record] * 120)
    consumer = summing(desk, name, batch=50)
    assert consumer.run_once() == 0
    assert consumer.positions() == {name: 121}
    stream.write_many(values(1, 1))
    assert consumer.run_once() == 1
    assert total() == 1


def test_compaction_keeps_the_latest_reset_of_every_consumer(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    for position, who in enumerate(["a", "b", "a", "b"]):
        write_reset(stream, who, position, {})
    stream.compact()
    assert offsets(stream.read(1, 10)) == [3, 4]


def test_a_reset_rolls_back_as_a_whole(desk: Desk, name: str, total: Any) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(values(1, 10))
    write_reset(stream, "c", 2, {"sum": 1000})

    def fails_the_second_time(conn: sa.Connection, messages: list[Message]) -> None:
        add(conn, messages)
        if messages[0].offset == 9 and desk.effects("c").count(9):
            raise RuntimeError("in the middle of a reset")

    consumer = desk.consumer(
        "c", name, fails_the_second_time, on_reset=put, batch=2, attempts=2, backoff_ms=0
    )
    with pytest.raises(PoisonedBatch, match="middle of a reset") as caught:
        drain(consumer)
    assert (caught.value.first, caught.value.last) == (11, 11)
    assert total() == 55
    assert consumer.positions() == {name: 11}
    drain(summing(desk, name))
    assert total() == 1000 + sum(range(3, 11))


def test_a_consumer_that_cannot_be_reset_fails(desk: Desk, name: str, total: Any) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(values(1, 3))
    write_reset(stream, "c", 2, {"sum": 9})
    consumer = desk.consumer("c", name, add, attempts=1)
    with pytest.raises(PoisonedBatch, match="no on_reset"):
        drain(consumer)
    assert (total(), consumer.positions()) == (6, {name: 4})


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"not json", b'{"position": 4}', b'{"position": -1}']
)
def test_a_record_that_cannot_be_meant_is_poison(
    desk: Desk, name: str, total: Any, value: bytes
) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(values(1, 3))
    stream.write(reset_tag("c"), value)
    stream.write_many(values(5, 6))
    with pytest.raises(PoisonedBatch, match="reset record at offset 4"):
        drain(summing(desk, name, attempts=1))
    drain(summing(desk, name, attempts=1, on_error="skip"))
    assert total() == 1 + 2 + 3 + 5 + 6
    letters = [m.value for m in desk.hw.stream(f"{name}.c.sql-dead").read(1, 10) if m]
    assert letters == [value]


def test_a_gap_in_what_is_to_be_applied_again_is_found(desk: Desk, name: str, total: Any) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(values(1, 10))
    consumer = summing(desk, name)
    drain(consumer)
    stream.evict(7)
    write_reset(stream, "c", 4, {"sum": 100})
    with pytest.raises(GapError) as caught:
        consumer.run_once()
    assert (caught.value.first, caught.value.last) == (5, 7)
    assert (total(), consumer.positions()) == (55, {name: 11})
    drain(summing(desk, name, on_gap="skip"))
    assert total() == 100 + 8 + 9 + 10


def test_states_are_what_json_can_say(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    states: list[Any] = [None, 7, "seven", [1, {"a": None}], {"sum": 2**53}]
    seen: list[Any] = []
    for state in states:
        write_reset(stream, "c", 0, state)
    consumer = desk.consumer(
        "c", name, lambda *_: None, on_reset=lambda _, state: seen.append(state)
    )
    drain(consumer)
    assert seen == states
    with pytest.raises(InvalidInput, match="JSON"):
        write_reset(stream, "c", 0, object())
    with pytest.raises(InvalidInput):
        write_reset(stream, "c", -1, 0)
    with pytest.raises(InvalidInput):
        write_reset(stream, "a b", 0, 0)


def test_an_async_stream_takes_reset_records_too(loop: Loop, stores: Stores, name: str) -> None:
    async def write() -> int:
        async with aio.connect(stores.url("plain")) as hw:
            return await write_reset(hw.stream(name), "c", 0, {"sum": 1})

    assert loop.wait(write()) == 1
    with headwater.connect(stores.url("plain")) as hw:
        (record,) = hw.stream(name).read(1, 10)
    assert record is not None
    assert record.tag == "headwater.reset:c"
    assert msgspec.json.decode(record.value) == {"position": 0, "state": {"sum": 1}}


def test_a_repeat_is_known_to_every_client(client: Headwater, stream: Stream, name: str) -> None:
    first = stream.write_many(entries(3), producer="p", sequence=1)
    assert client.stream(name).write_many(entries(3), producer="p", sequence=1) == first


def test_a_repeat_evicts_nothing(stream: Stream) -> None:
    stream.write_many(entries(30), producer="p", sequence=1)
    assert stream.write_many(entries(30), producer="p", sequence=1, backlog=1) == range(1, 31)
    assert stream.info().first == 1


def test_producer_and_sequence_go_together(stream: Stream) -> None:
    with pytest.raises(InvalidInput, match="together"):
        stream.write_many(entries(1), producer="p")
    with pytest.raises(InvalidInput, match="together"):
        stream.write_many(entries(1), sequence=1)


def test_a_producer_that_starts_again_is_told_where_it_stands(stream: Stream) -> None:
    assert stream.newest_sequence("p") is None
    stream.write_many(entries(1), producer="p", sequence=0)
    assert stream.newest_sequence("p") == 0
    stream.write_many(entries(1), producer="p", sequence=2**53 - 1)
    assert stream.newest_sequence("p") == 2**53 - 1
    assert stream.newest_sequence("q") is None
    with pytest.raises(InvalidInput):
        stream.newest_sequence("")


def test_a_sequence_with_other_content_is_refused_and_writes_nothing(stream: Stream) -> None:
    first = stream.write_many(entries(5), producer="p", sequence=1)
    for other in (entries(4), entries(5, 2), [*entries(4), ("tag-5", b"value-6")], entries(600)):
        with pytest.raises(ReusedSequence) as caught:
            stream.write_many(other, producer="p", sequence=1)
        found = caught.value
        assert (found.stream, found.producer, found.sequence) == (stream.name, "p", 1)
        assert (found.first, found.last) == (first[0], first[-1])
    assert stream.write_many(entries(5), producer="p", sequence=1) == first
    assert stream.info().last == 5


def test_a_repeat_is_recognised_however_it_is_cut_and_packed(stream: Stream) -> None:
    tags, values = zip(*entries(3000), strict=True)
    rows = pa.table({"tag": tags, "value": values})
    offsets = stream.append(rows, producer="p", sequence=1)
    chunks = pa.concat_tables([rows.slice(0, 7), rows.slice(7, 1200), rows.slice(1207)])
    assert stream.append(chunks, producer="p", sequence=1) == offsets
    assert stream.write_many(entries(3000), producer="p", sequence=1) == offsets


def test_a_boundary_between_messages_is_content(stream: Stream) -> None:
    stream.write_many([("a", b"bc"), ("d", b"")], producer="p", sequence=1)
    for other in (
        [("ab", b"c"), ("d", b"")],
        [("a", b"b"), ("d", b"c")],
        [("a", b"bc"), ("", b"d")],
    ):
        with pytest.raises(ReusedSequence):
            stream.write_many(other, producer="p", sequence=1)


def test_one_write_may_be_repeated_as_a_batch_may(client: Headwater, name: str) -> None:
    stream, topic = client.stream(name), client.topic(f"{name}.t", partitions=2)
    headers = {"trace": b"1"}
    for _ in range(2):
        assert stream.write("t", b"v", producer="p", sequence=1) == 1
        assert stream.write("t", b"w", headers=headers, producer="p", sequence=2) == 2
        placed = topic.write("t", b"v", producer="p", sequence=1)
        assert placed.offset == 1
    assert stream.write_many([("t", b"v")], producer="p", sequence=1) == range(1, 2)
    message = stream.read(2, 1)[0]
    assert message is not None
    assert dict(message.headers) == headers
    with pytest.raises(ReusedSequence):
        stream.write("t", b"other", producer="p", sequence=1)
    with pytest.raises(InvalidInput, match="go together"):
        stream.write("t", b"v", sequence=3)
    assert (stream.info().last, topic.info()[placed.partition].last) == (2, 1)
