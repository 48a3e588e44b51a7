"""What codecs promise: values in, values out, and a message that does not fit is one of its own."""

from __future__ import annotations

import json
import pickle
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
import sqlalchemy as sa

import headwater
from headwater.errors import InvalidInput, Undecodable
from headwater.outbox import Consumer, Outbox, Streamer
from tests.support.servers import until
from tests.support.stores import Stores
from tests.support.workers import at_work


class OrderStruct(msgspec.Struct):
    number: int
    items: list[str] = []


@dataclass
class OrderClass:
    number: int
    items: list[str]


class OrderModel(pydantic.BaseModel):
    number: int
    items: list[str]


class OrderDict(TypedDict):
    number: int


class Upper:
    """An object with the two methods."""

    def encode(self, value: str) -> bytes:
        return value.upper().encode()

    def decode(self, data: bytes) -> str:
        return data.decode().lower()


CODECS: list[tuple[Any, Any]] = [
    ("json", {"number": 1, "items": ["a", None, 1.5, True]}),
    ("json", [1, 2]),
    ("json", "text"),
    ("json", None),
    (OrderStruct, OrderStruct(1, ["a"])),
    (OrderClass, OrderClass(1, ["a"])),
    (OrderModel, OrderModel(number=1, items=["a"])),
    (OrderDict, {"number": 1}),
    (list[int], [1, 2, 3]),
    (int, 7),
    ((pickle.dumps, pickle.loads), {1, 2}),
    (Upper(), "text"),
]
by_every_codec = pytest.mark.parametrize(
    ("codec", "value"), CODECS, ids=lambda v: getattr(v, "__name__", type(v).__name__)
)


@by_every_codec
def test_a_stream_takes_and_returns_values(
    client: headwater.Headwater, codec: Any, value: Any
) -> None:
    stream = client.stream(f"s-{secrets.token_hex(4)}", codec=codec)
    stream.write("one", value)
    stream.write_many([("many", value)] * 20)
    read = [message.data for message in stream.read(1, 100) if message]
    assert read == [value] * 21
    assert [message.data for message in stream.read_from(1, 5).messages] == [value] * 5
    group = stream.group("g")
    assert [message.data for message in group.read(30)] == [value] * 21


@by_every_codec
def test_a_topic_and_a_queue_take_and_return_values(
    client: headwater.Headwater, codec: Any, value: Any
) -> None:
    name = f"t-{secrets.token_hex(4)}"
    topic = client.topic(name, 2, codec=codec)
    topic.write("one", value)
    topic.write_many([(f"tag-{n}", value) for n in range(10)])
    assert [message.data for message in topic.group("g").read(30)] == [value] * 11
    partition = topic.partition(topic.partition_of("one"))
    assert partition.group("h").read(1)[0].data == value
    queue = client.queue(name, codec=codec)
    queue.push(value)
    queue.push_many([value] * 3)
    taken = queue.pop(9, ack_ms=10_000)
    assert [delivery.data for delivery in taken] == [value] * 4
    assert queue.ack(*taken) == 4


def test_without_a_codec_data_is_the_bytes(client: headwater.Headwater) -> None:
    stream = client.stream(f"s-{secrets.token_hex(4)}")
    stream.write("t", b"value")
    (message,) = stream.read(1, 1)
    assert message is not None
    assert message.data == message.value == b"value"


def test_a_value_that_does_not_fit_stops_nothing_but_itself(client: headwater.Headwater) -> None:
    name = f"s-{secrets.token_hex(4)}"
    client.stream(name).write_many(
        [("a", b'{"number": 1}'), ("b", b'{"number": "one"}'), ("c", b'{"number": 3}')]
    )
    first, second, third = client.stream(name, codec=OrderStruct).group("g").read(10)
    assert (first.data.number, third.data.number) == (1, 3)
    with pytest.raises(
        Undecodable, match=f"message 2 of stream {name}.*OrderStruct.*Expected `int"
    ):
        second.data  # noqa: B018
    assert second.value == b'{"number": "one"}'


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (OrderStruct, {"number": "one"}),
        (OrderStruct, OrderStruct("one")),  # type: ignore[arg-type]
        (OrderStruct, b"bytes"),
        (OrderModel, {"number": 1}),
        (OrderModel, OrderModel.model_construct(number="one")),
        (list[int], ["one"]),
        ("json", object()),
        ("json", b"bytes"),
        ((str, str), "no bytes"),
    ],
    ids=lambda v: getattr(v, "__name__", type(v).__name__),
)
def test_what_does_not_fit_is_not_written(
    client: headwater.Headwater, codec: Any, value: Any
) -> None:
    name = f"s-{secrets.token_hex(4)}"
    with pytest.raises(InvalidInput, match="codec"):
        client.stream(name, codec=codec).write("t", value)
    with pytest.raises(InvalidInput, match="codec"):
        client.queue(name, codec=codec).push_many([value])
    assert client.stream(name).info().last == 0


@pytest.mark.parametrize("codec", ["xml", (1, 2), (str,), 5, lambda: None, object])
def test_what_is_no_codec_is_refused_at_once(client: headwater.Headwater, codec: Any) -> None:
    with pytest.raises(InvalidInput, match="codec"):
        client.stream("s", codec=codec)


def test_bytes_for_a_codec_are_named_as_such(client: headwater.Headwater) -> None:
    with pytest.raises(InvalidInput, match="cannot encode this bytes: they are no OrderStruct"):
        client.stream("s", codec=OrderStruct).write("t", b"bytes")  # type: ignore[arg-type]


@pytest.fixture
def hw(stores: Stores) -> Iterator[headwater.Headwater]:
    with headwater.connect(stores.url("plain")) as hw:
        yield hw


def test_a_worker_hands_values_to_its_handler(hw: headwater.Headwater) -> None:
    name = f"s-{secrets.token_hex(4)}"
    orders = hw.stream(name, codec=OrderStruct)
    orders.write("t", OrderStruct(7))
    seen: list[int] = []

    def handle(message: headwater.Message[OrderStruct]) -> None:
        seen.append(message.data.number)

    with at_work(headwater.Worker(orders.group("g"), handle)):
        until(lambda: seen == [7])
    jobs = hw.queue(name, codec=OrderStruct)
    jobs.push(OrderStruct(8))

    @jobs.worker()
    def work(delivery: headwater.Delivery[OrderStruct]) -> None:
        seen.append(delivery.data.number)

    with at_work(work):
        until(lambda: seen == [7, 8])


def test_outbox_and_consumer_take_a_stream_with_its_codec(
    hw: headwater.Headwater, engine: sa.Engine
) -> None:
    orders = hw.stream(f"s-{secrets.token_hex(4)}", codec=OrderModel)
    outbox = Outbox(engine)
    outbox.create_all()
    with engine.begin() as conn:
        outbox.stage(conn, orders, "t", OrderModel(number=1, items=[]))
        outbox.stage_many(conn, orders, [("t", OrderModel(number=2, items=["a"]))])
        with pytest.raises(InvalidInput, match="OrderModel"):
            outbox.stage(conn, orders, "t", {"number": 3})
    with Streamer(outbox, hw) as streamer:
        assert streamer.run_once() == 2
    assert json.loads(hw.stream(orders.name).read(1, 1)[0].value) == {"number": 1, "items": []}  # type: ignore[union-attr]
    seen: list[int] = []

    def apply(_: sa.Connection, messages: list[headwater.Message[OrderModel]]) -> None:
        seen.extend(message.data.number for message in messages)

    assert Consumer("c", orders, outbox, hw, apply).run_once() == 2
    assert seen == [1, 2]
