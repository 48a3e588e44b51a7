"""Topics over HTTP: all partitions as one, and nothing lost between them."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

import headwater
import headwater.aio
from headwater.serve.api import tails
from headwater.serve.batching import StreamWrites, TopicWrites
from tests.support.api import ApiClient, ApiServer
from tests.support.stores import Stores

NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
TAGS = [f"ride-{n}" for n in range(12)]


@pytest.fixture(scope="module")
def api(stores: Stores) -> Iterator[ApiServer]:
    with ApiServer(stores.url("plain")) as server:
        yield server


@pytest.fixture
def client(api: ApiServer) -> Iterator[ApiClient]:
    client = api.client()
    yield client
    client.close()


@pytest.fixture
def path(client: ApiClient) -> str:
    """The path of a new topic of three partitions."""
    path = f"/v1/topics/t-{secrets.token_hex(4)}"
    assert client.ask("PUT", path, {"partitions": 3}).body["partitions"] == 3
    return path


def write(client: ApiClient, path: str, value: str = "v") -> dict[str, Any]:
    answer = client.post(f"{path}/messages", [{"tag": tag, "value": value} for tag in TAGS])
    assert answer.status == 201
    found: dict[str, Any] = answer.body
    return found


def seen(messages: list[dict[str, Any]]) -> set[tuple[int, int]]:
    return {(message["partition"], message["offset"]) for message in messages}


def test_a_topic_is_created_once_and_for_all(client: ApiClient, path: str) -> None:
    name = path.rpartition("/")[2]
    assert client.ask("PUT", path, {"partitions": 3}).status == 200
    assert client.ask("PUT", path, {"partitions": 4}).body["title"] == "PartitionMismatch"
    assert client.get(path).body["partitions"][2]["name"] == f"{name}/2"
    listed = client.get(f"/v1/topics?prefix={name}").body
    assert [topic["name"] for topic in listed["topics"]] == [name]
    assert client.ask("DELETE", path).body["deleted"]
    assert client.get(path).body["title"] == "UnknownTopic"


@pytest.mark.parametrize("what", ["", "/messages", "/tail", "/groups", "/groups/g"])
def test_a_look_at_a_topic_that_is_not_there_does_not_create_it(
    client: ApiClient, stores: Stores, what: str
) -> None:
    assert client.get(f"/v1/topics/nowhere{what}").body["title"] == "UnknownTopic"
    with headwater.connect(stores.url("plain")) as hw:
        assert "nowhere" not in hw.topics()


def test_a_topic_is_written_and_read_as_lines_and_as_arrow_as_it_is_as_json(
    client: ApiClient, path: str
) -> None:
    given = [{"tag": tag, "value": "v", "headers": {"k": tag}} for tag in TAGS]
    lines = b"".join(json.dumps(line).encode() + b"\n" for line in given)
    assert client.post(f"{path}/messages", lines, media=NDJSON).body["written"] == len(TAGS)
    page = client.get(f"{path}/messages?count=1000").body["messages"]
    as_lines = client.get(f"{path}/messages", accept=NDJSON).body.splitlines()
    assert [json.loads(line) for line in as_lines] == page
    assert len(client.get(f"{path}/messages?count=5", accept=NDJSON).body.splitlines()) == 5
    body = client.get(f"{path}/messages?headers=true", accept=ARROW).body
    found = pa.ipc.open_stream(body).read_all()
    assert [
        (row["partition"], row["offset"], row["tag"], row["value"], dict(row["headers"]))
        for row in found.to_pylist()
    ] == [
        (one["partition"], one["offset"], one["tag"], b"v", {"k": one["tag"].encode()})
        for one in page
    ]
    part = pa.ipc.open_stream(client.get(f"{path}/messages?count=5", accept=ARROW).body).read_all()
    assert part.num_rows == 5
    assert part.schema.names == ["partition", "offset", "tag", "value", "time"]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, found.select(["tag", "value", "headers"]).schema) as writer:
        writer.write_table(found.select(["tag", "value", "headers"]))
    assert client.post(f"{path}/messages", bytes(sink.getvalue()), media=ARROW).status == 201
    copied = client.get(f"{path}/messages?count=1000").body["messages"]
    assert sorted((one["tag"], one["headers"]["k"]) for one in copied) == sorted(
        (tag, tag) for tag in 2 * TAGS
    )


def test_lines_name_what_was_evicted_from_a_partition(client: ApiClient, path: str) -> None:
    write(client, path)
    stream = f"/v1/streams/{path.rpartition('/')[2]}%2F0"
    assert client.post(f"{stream}/evict", {"up_to": 1}).status == 200
    first = client.get(f"{path}/messages?from=1.1.1", accept=NDJSON).body.splitlines()[0]
    assert json.loads(first) == {"partition": 0, "gone": {"first": 1, "last": 1}}


def test_small_writes_of_one_moment_are_few_calls_and_each_has_its_own_offsets(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with headwater.aio.connect(stores.url("plain")) as hw:
            name = f"t-{secrets.token_hex(4)}"
            await hw.topic(name, 3).partitions()
            calls: list[str] = []
            send = hw.store.connections.send

            async def counting(key: Any, command: tuple[Any, ...], **words: Any) -> Any:
                calls.append(command[1])
                return await send(key, command, **words)

            monkeypatch.setattr(hw.store.connections, "send", counting)
            writes = TopicWrites(hw, StreamWrites(hw))
            batches = [
                [(tag, f"{number}.{tag}") for tag in TAGS[: 1 + number % 3]] for number in range(60)
            ]
            refused = asyncio.ensure_future(writes.write(name, [("t" * 5000, "x")], 5000))
            told = await asyncio.gather(*(writes.write(name, batch, 10) for batch in batches))
            with pytest.raises(headwater.InvalidInput, match="in partition"):
                await refused
            written = [call for call in calls if "stream_write" in call]
            assert len(written) < 10, "60 requests in 3 partitions"
            monkeypatch.undo()
            streams = [await hw.topic(name).partition(place) for place in range(3)]
            held = [await stream.read(1, 1000) for stream in streams]
            for batch, offsets in zip(batches, told, strict=True):
                found = [held[place][offset - 1] for place in offsets for offset in offsets[place]]
                values = sorted(one.value.decode() for one in found if one is not None)
                assert values == sorted(value for _, value in batch)

    asyncio.run(main())


def test_a_topic_that_was_made_anew_is_written_as_it_is_now(client: ApiClient, path: str) -> None:
    write(client, path)
    assert client.ask("DELETE", path).status == 200
    assert client.ask("PUT", path, {"partitions": 1}).status == 200
    assert write(client, path)["partitions"] == {"0": {"first": 1, "last": len(TAGS)}}


def test_a_reader_goes_on_from_place_to_place_and_has_everything_once(
    client: ApiClient, path: str
) -> None:
    for _ in range(3):
        write(client, path)
    place, found = "first", []
    while True:
        read = client.get(f"{path}/messages?from={place}&count=6").body
        assert len(read["messages"]) <= 6
        if not read["messages"]:
            break
        found += read["messages"]
        place = read["next"]
    assert len(seen(found)) == len(found) == 3 * len(TAGS)
    for wrong in ("1.1", "1.1.1.1", "0.1.1", "x", "1..1"):
        assert client.get(f"{path}/messages?from={wrong}").status == 400


def test_a_long_poll_waits_for_any_partition(api: ApiServer, client: ApiClient, path: str) -> None:
    place = client.get(f"{path}/messages").body["next"]
    empty = client.get(f"{path}/messages?from={place}&block_ms=1").body
    assert (empty["messages"], empty["next"]) == ([], place)
    with socket.create_connection(("127.0.0.1", api.port)) as poll:
        poll.settimeout(30)
        target = f"{path}/messages?from={place}&block_ms=60000"
        poll.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        # The answer to a second request shows that the first was taken up.
        assert client.get("/healthz").status == 200
        client.post(f"{path}/messages", {"tag": "ride-9", "value": "x"})
        assert b'"tag":"ride-9"' in poll.recv(65536)


def test_a_long_poll_waits_as_long_as_it_is_asked_to(
    client: ApiClient, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "KEEP_ALIVE_MS", 50)
    began = time.monotonic()
    answer = client.get(f"{path}/messages?from=last&block_ms=600").body
    assert answer["messages"] == []
    assert time.monotonic() - began >= 0.6


def test_a_tail_that_reconnects_anywhere_misses_nothing(
    api: ApiServer, client: ApiClient, path: str
) -> None:
    write(client, path, "1")
    tail = api.client()
    events = list(islice(tail.events(f"{path}/tail?from=first"), 5))
    tail.close()
    write(client, path, "2")
    again = api.client()
    following = again.events(f"{path}/tail", last=events[-1]["id"])
    events += islice(following, 2 * len(TAGS) - 5)
    write(client, path, "3")
    events += islice(following, len(TAGS))
    again.close()
    messages = [json.loads(event["data"]) for event in events]
    assert len(seen(messages)) == len(messages) == 3 * len(TAGS)


def test_what_was_evicted_is_named_by_partition(
    api: ApiServer, client: ApiClient, path: str
) -> None:
    write(client, path)
    last = client.get(f"{path}/messages").body["last"]
    place = next(place for place, end in enumerate(last) if end > 1)
    stream = f"/v1/streams/{path.rpartition('/')[2]}%2F{place}"
    assert client.post(f"{stream}/evict", {"up_to": 1}).status == 200
    gaps = client.get(f"{path}/messages?from=1.1.1").body["gaps"]
    assert gaps == [{"partition": place, "gone": {"first": 1, "last": 1}}]
    tail = api.client()
    events = list(islice(tail.events(f"{path}/tail", last="1.1.1"), len(TAGS)))
    skipped = [json.loads(event["data"]) for event in events if event.get("event") == "skipped"]
    assert skipped == gaps
    tail.close()


def test_a_group_over_a_topic_is_shown_and_listed(client: ApiClient, path: str) -> None:
    write(client, path)
    group = f"{path}/groups/g"
    body = {"count": 100, "ack_ms": 60_000, "dead_letters": True}
    taken = client.post(f"{group}/read", body).body["messages"]
    assert len(seen(taken)) == len(TAGS)
    facts = client.get(group).body["groups"]
    assert [(one["partition"], one["topic"]) for one in facts] == [
        (place, path.rpartition("/")[2]) for place in range(3)
    ]
    assert client.get(f"{path}/groups").body["groups"] == facts
    assert client.post(f"{group}/ack", {"offsets": {"99": [1]}}).status == 400
    assert client.get(f"{path}/groups/none").body["title"] == "UnknownGroup"


def test_dead_letters_of_a_topic_are_shown_redriven_and_forgotten(
    client: ApiClient, path: str, stores: Stores
) -> None:
    write(client, path)
    with headwater.connect(stores.url("plain")) as hw:
        group = hw.topic(path.rpartition("/")[2]).group("g", dead_letters=True)
        assert group.bury(*group.read(100, ack_ms=60_000)) == len(TAGS)
    dead = client.get(f"{path}/groups/g/dead").body["letters"]
    assert {letter["tag"] for letter in dead} == set(TAGS)
    redriven = client.post(f"{path}/groups/g/redrive", {"count": 5}).body["redriven"]
    returned = sum(part["redriven"] for part in redriven.values())
    assert returned
    forgotten = client.post(f"{path}/groups/g/discard", {"count": 1000}).body["discarded"]
    assert forgotten == len(TAGS) - returned
    assert client.get(f"{path}/groups/g/dead").body["letters"] == []
