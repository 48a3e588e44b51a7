"""Streams over HTTP keep the promises of the library: dense offsets, all or none, once."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

import headwater
from tests.support.api import ApiClient, ApiServer, messages_of
from tests.support.stores import Stores

NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"


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
def name() -> str:
    return f"s-{secrets.token_hex(4)}"


def values(answer: Any) -> list[str]:
    return [message["value"] for message in answer.body["messages"]]


def arrow(tags: list[str], values: list[bytes], **options: Any) -> bytes:
    columns = {"tag": pa.array(tags, pa.string()), "value": pa.array(values, pa.binary())}
    batch = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, **options) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def test_a_message_is_written_once_and_read_by_its_offset(client: ApiClient, name: str) -> None:
    written = client.post(messages_of(name), {"tag": "a", "value": "hello", "headers": {"k": "v"}})
    assert written.status == 201
    assert written.body == {"stream": name, "written": 1, "first": 1, "last": 1}
    read = client.get(messages_of(name, "?from=1")).body
    assert read["messages"][0] | {"time_ms": 0} == {
        "offset": 1,
        "tag": "a",
        "value": "hello",
        "headers": {"k": "v"},
        "time_ms": 0,
    }
    assert (read["next"], read["gap"], read["last"]) == (2, None, 1)


def test_json_lines_and_arrow_write_and_read_the_same(client: ApiClient, name: str) -> None:
    batch = [{"tag": "t", "data": {"n": 1}}, {"value": "/w==", "encoding": "base64"}]
    assert client.post(messages_of(name), batch).body["last"] == 2
    lines = b"".join(json.dumps(line).encode() + b"\n" for line in batch)
    assert client.post(messages_of(name), lines, media=NDJSON).body["first"] == 3
    body = arrow(["t", ""], [b'{"n": 1}', b"\xff"])
    assert client.post(messages_of(name), body, media=ARROW).body["last"] == 6
    page = client.get(messages_of(name, "?from=1")).body["messages"]
    assert [(m["tag"], m["value"], m.get("encoding")) for m in page[:2]] == [
        ("t", '{"n": 1}', None),
        ("", "/w==", "base64"),
    ]
    own = [{k: v for k, v in m.items() if k not in ("offset", "time_ms")} for m in page]
    assert own[:2] == own[2:4] == own[4:]
    as_lines = client.get(messages_of(name, "?from=1"), accept=NDJSON)
    assert [json.loads(line) for line in as_lines.body.splitlines()] == page
    table = pa.ipc.open_stream(client.get(messages_of(name, "?count=5"), accept=ARROW).body)
    found = table.read_all()
    assert found.column("offset").to_pylist() == [1, 2, 3, 4, 5]
    assert found.column("value").to_pylist()[1] == b"\xff"


def test_a_stream_without_a_message_is_an_arrow_stream_without_a_row(
    client: ApiClient, name: str
) -> None:
    found = pa.ipc.open_stream(client.get(messages_of(name), accept=ARROW).body).read_all()
    assert found.num_rows == 0
    assert found.schema.names == ["offset", "tag", "value", "time"]


def test_writers_of_one_moment_get_offsets_of_their_own(api: ApiServer, name: str) -> None:
    def write(number: int) -> list[tuple[int, int, int]]:
        client = api.client()
        found = []
        for turn in range(20):
            batch = [{"value": f"{number}.{turn}.{i}"} for i in range(1 + turn % 3)]
            body = client.post(messages_of(name), batch).body
            assert body["last"] - body["first"] + 1 == len(batch)
            found.append((number, turn, body["first"]))
        client.close()
        return found

    with ThreadPoolExecutor(8) as pool:
        told = [one for some in pool.map(write, range(8)) for one in some]
    client = api.client()
    page = client.get(messages_of(name, "?count=10000")).body["messages"]
    assert [message["offset"] for message in page] == list(range(1, len(page) + 1))
    at = {message["value"]: message["offset"] for message in page}
    assert len(at) == len(page)
    for number, turn, first in told:
        for place in range(1 + turn % 3):
            assert at[f"{number}.{turn}.{place}"] == first + place
    client.close()


def test_a_request_that_is_refused_takes_no_other_of_its_batch_with_it(
    api: ApiServer, name: str
) -> None:
    def write(number: int) -> int:
        client = api.client()
        tag = "t" * 5000 if number % 2 else "t"
        status = client.post(messages_of(name), {"tag": tag, "value": str(number)}).status
        client.close()
        return status

    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(write, range(16)))
    assert statuses == [201, 400] * 8


def test_a_long_poll_is_answered_by_the_next_write(
    api: ApiServer, client: ApiClient, name: str
) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, messages_of(name, "?from=1&block_ms=20000"))
        other = api.client()
        other.post(messages_of(name), {"value": "now"})
        assert values(waiting.result(60)) == ["now"]
        other.close()
    assert client.get(messages_of(name, "?from=2&block_ms=1")).body["messages"] == []


def test_evicted_offsets_are_a_gap_and_the_first_is_found(client: ApiClient, name: str) -> None:
    client.post(messages_of(name), [{"value": str(n)} for n in range(1, 6)])
    evicted = client.post(f"/v1/streams/{name}/evict", {"up_to": 2}).body
    assert evicted == {"stream": name, "evicted": 2}
    read = client.get(messages_of(name, "?from=1")).body
    assert read["gap"] == {"first": 1, "last": 2}
    assert client.get(messages_of(name, "?from=first")).body["gap"] is None
    lines = client.get(messages_of(name, "?from=1"), accept=NDJSON).body.splitlines()
    assert json.loads(lines[0]) == {"gone": {"first": 1, "last": 2}}
    assert [json.loads(line)["offset"] for line in lines[1:]] == [3, 4, 5]


def test_a_stream_is_shown_and_listed(client: ApiClient, name: str) -> None:
    path = f"/v1/streams/{name}"
    assert client.get(path).body["title"] == "UnknownStream"
    client.post(messages_of(name), [{"value": "x"}] * 5)
    shown = client.get(path)
    assert (shown.body["first"], shown.body["last"]) == (1, 5)
    again = client.get(path, if_none_match=shown.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    listed = client.get(f"/v1/streams?prefix={name}").body
    assert [stream["name"] for stream in listed["streams"]] == [name]


def test_a_list_is_read_page_by_page(client: ApiClient, name: str) -> None:
    for number in range(5):
        client.post(messages_of(f"{name}-{number}"), {"value": "x"})
    found, after = [], ""
    while True:
        page = client.get(f"/v1/streams?prefix={name}-&limit=2&after={after}").body
        found += [stream["name"] for stream in page["streams"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert found == [f"{name}-{number}" for number in range(5)]


def test_a_name_with_a_slash_is_one_name(client: ApiClient, stores: Stores, name: str) -> None:
    with headwater.connect(stores.url("plain")) as hw:
        hw.topic(name, partitions=1).write("t", b"v")
    assert values(client.get(messages_of(f"{name}/0"))) == ["v"]
    assert client.get(f"/v1/streams/{name}/0/messages").status == 404
