"""Over HTTP, too: a list ends at 4 MiB, and says where the next one goes on; nothing is lost."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa

import headwater
from headwater.outbox import Consumer
from headwater.serve.console.service import Console
from tests.support.api import ApiClient, ApiServer, messages_of
from tests.support.consumers import create_tables
from tests.support.groups import FAR
from tests.support.stores import Stores
from tests.support.watch import let_pass

MB = 1 << 20
# Packed, these have a few hundred bytes.
LARGE = [(f"t-{n}", b"%02d" % n + b"z" * MB) for n in range(12)]
# Of these messages, so many have 4 MiB.
MOST = 4


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
def hw(stores: Stores) -> Iterator[headwater.Headwater]:
    with headwater.connect(stores.url("plain")) as hw:
        yield hw


def numbers(messages: list[dict[str, Any]]) -> list[int]:
    return [int(one["value"][:2]) for one in messages]


def pages(client: ApiClient, path: str, field: str) -> Iterator[list[dict[str, Any]]]:
    """Yield the parts of a list, each from where the one before ended."""
    following = ""
    while following is not None:
        answer = client.get(f"{path}&from={quote(following)}" if following else path)
        assert answer.status == 200, answer.body
        yield answer.body[field]
        following = answer.body["next"]


def check_pages(client: ApiClient, path: str, field: str) -> list[int]:
    """Return the numbers of all messages of a list, none of whose parts is larger than 4 MiB."""
    found = []
    for part in pages(client, path, field):
        assert len(part) <= MOST
        found += numbers(part)
    return found


# ── Queues ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("state", ["ready", "delayed", "unacked", "dead"])
def test_a_look_at_a_queue_ends_at_4_mib(
    client: ApiClient, hw: headwater.Headwater, name: str, state: str
) -> None:
    queue = hw.queue(name)
    values = [value for _, value in LARGE]
    queue.push_many(values, delay_ms=FAR if state == "delayed" else 0)
    if state in ("unacked", "dead"):
        held = queue.pop(12, ack_ms=FAR)
        if state == "dead":
            queue.bury(*held)
    path = f"/v1/queues/{name}/messages?state={state}&count=100"
    assert check_pages(client, path, "messages") == list(range(12))
    if state == "dead":
        assert check_pages(client, f"/v1/queues/{name}/dead?count=100", "messages") == list(
            range(12)
        )
        assert check_pages(client, f"/v1/queues/{name}/dead?count=3", "messages") == list(range(12))
    refused = client.get(f"{path}&from=nonsense")
    assert (refused.status, "no place" in refused.body["detail"]) == (400, True)


# ── Streams, groups and topics ───────────────────────────────────────────────────────────────


def test_a_read_ends_at_4_mib(client: ApiClient, hw: headwater.Headwater, name: str) -> None:
    hw.stream(name).write_many(LARGE)
    at, found = 1, []
    while part := (body := client.get(f"{messages_of(name)}?from={at}&count=100").body)["messages"]:
        assert len(part) <= MOST + 1
        found += numbers(part)
        at = body["next"]
    assert found == list(range(12))
    lines = client.get(f"{messages_of(name)}?count=100", accept="application/x-ndjson").body
    assert numbers([json.loads(line) for line in lines.splitlines()]) == list(range(12))


def test_a_search_ends_at_4_mib(client: ApiClient, hw: headwater.Headwater, name: str) -> None:
    hw.stream(name).write_many(LARGE)
    at: int | None = 1
    found: list[int] = []
    while at is not None:
        body = client.get(f"/v1/streams/{name}/search?tag=t-*&from={at}").body
        assert len(body["messages"]) <= MOST
        found += numbers(body["messages"])
        at = body["next"]
    assert found == list(range(12))


def test_a_tail_sends_large_messages_in_parts(
    client: ApiClient, hw: headwater.Headwater, name: str
) -> None:
    hw.stream(name).write_many(LARGE)
    events = client.events(f"/v1/streams/{name}/tail?from=first")
    assert numbers([json.loads(next(events)["data"]) for _ in LARGE]) == list(range(12))


def test_a_group_read_without_acks_loses_nothing(
    client: ApiClient, hw: headwater.Headwater, name: str
) -> None:
    hw.stream(name).write_many(LARGE)
    path, found = f"/v1/streams/{name}/groups/g/read", []
    while part := client.post(path, {"count": 1000, "ack_ms": None}).body["messages"]:
        assert len(part) <= MOST + 1
        found += numbers(part)
    assert found == list(range(12))


@pytest.mark.parametrize("kind", ["group", "topic", "queue"])
def test_a_value_of_control_characters_is_returned_as_base64(
    client: ApiClient, hw: headwater.Headwater, name: str, kind: str
) -> None:
    # As text in JSON it would have six times as many bytes, and be more than a reply may have.
    value = b"\x01" * (15 * MB)
    if kind == "queue":
        hw.queue(name).push(value)
        answer = client.post(f"/v1/queues/{name}/pop", {"ack_ms": None})
        found = answer.body["deliveries"]
    elif kind == "topic":
        hw.topic(name).write("t", value)
        path = f"/v1/topics/{name}/groups/g/read"
        found = client.post(path, {"ack_ms": None}).body["messages"]
    else:
        hw.stream(name).write("t", value)
        path = f"/v1/streams/{name}/groups/g/read"
        found = client.post(path, {"ack_ms": None}).body["messages"]
    assert [one["encoding"] for one in found] == ["base64"]
    assert base64.b64decode(found[0]["value"]) == value


def test_dead_letters_of_a_group_end_at_4_mib(
    client: ApiClient, hw: headwater.Headwater, name: str
) -> None:
    hw.stream(name).write_many(LARGE)
    group = hw.stream(name).group("g", dead_letters=True)
    group.read(100, ack_ms=FAR, expire_ms=1)
    let_pass(hw, 1)
    assert group.bury() == 12
    path = f"/v1/streams/{name}/groups/g/dead?count=100"
    assert check_pages(client, path, "letters") == list(range(12))
    assert check_pages(client, f"{path}&tag=t-7", "letters") == [7]
    for wrong in ("nonsense", "1.2", "9" * 40):
        assert client.get(f"{path}&from={wrong}").status == 400


def test_a_topic_is_read_in_parts_of_4_mib(
    client: ApiClient, hw: headwater.Headwater, name: str
) -> None:
    topic = hw.topic(name, 12)
    topic.write_many([(f"t-{n}", b"%02d" % n + b"z" * MB) for n in range(40)])
    place, found = "first", []
    while part := (body := client.get(f"/v1/topics/{name}/messages?from={place}").body)["messages"]:
        assert len(part) <= MOST + 1
        found += numbers(part)
        place = body["next"]
    assert sorted(found) == list(range(40))
    taken: list[int] = []
    path = f"/v1/topics/{name}/groups/g/read"
    while part := client.post(path, {"count": 100, "ack_ms": None}).body["messages"]:
        assert len(part) <= MOST + 1
        taken += numbers(part)
    assert sorted(taken) == list(range(40))


def test_dead_letters_of_a_topic_end_at_4_mib(
    client: ApiClient, hw: headwater.Headwater, name: str
) -> None:
    topic = hw.topic(name, 3)
    topic.write_many(LARGE)
    group = topic.group("g", dead_letters=True)
    while group.read(100, ack_ms=FAR, expire_ms=1):
        let_pass(hw, 1)
    group.bury()
    path = f"/v1/topics/{name}/groups/g/dead?count=100"
    assert sorted(check_pages(client, path, "letters")) == list(range(12))
    assert client.get(f"{path}&from=1.2").status == 400


# ── Dirty lists ──────────────────────────────────────────────────────────────────────────────


def test_members_of_dirty_lists_end_at_4_mib(
    client: ApiClient, hw: headwater.Headwater, name: str
) -> None:
    members = {b"%02d" % n + b"z" * MB: float(n) for n in range(10)}
    hw.ick(name).add(members)
    listed = client.get(f"/v1/icks/{name}/members?count=100").body["members"]
    assert len(listed) == MOST
    scores: list[float] = []
    while rows := client.post(f"/v1/icks/{name}/reserve", {"count": 100}).body["members"]:
        assert len(rows) <= MOST
        scores += [row["score"] for row in rows]
        hw.ick(name).commit(*(row["member"] for row in rows))
    assert scores == list(range(10))
    hw.ick_channel(name, 1).add(members)
    body = {"count": 100, "consumer": "me"}
    batch = client.post(f"/v1/channels/{name}/reserve", body).body
    assert len(batch["reserved"]) <= MOST


# ── SQL consumers ────────────────────────────────────────────────────────────────────────────


def test_dead_letters_of_a_consumer_end_at_4_mib(
    hw: headwater.Headwater, stores: Stores, name: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'app.db'}"
    engine = sa.create_engine(url)
    create_tables(engine)

    def fails(*_: Any) -> None:
        raise ValueError("cannot handle it")

    hw.stream(name).write_many(LARGE)
    consumer = Consumer(name, name, engine, hw, fails, on_error="skip", attempts=1, backoff_ms=0)
    while consumer.run_once():
        pass
    assert numbers_of(consumer.dead(max_bytes=2 * MB)) == [0, 1]
    with ApiServer(stores.url("plain"), db=url) as api:
        found = api.client().get(f"/v1/consumers/{name}/dead").body["letters"]
    assert numbers(found) == [0, 1, 2, 3]
    engine.dispose()


def numbers_of(messages: Any) -> list[int]:
    return [int(one.value[:2]) for one in messages]


# ── The console ──────────────────────────────────────────────────────────────────────────────


def test_pages_of_the_console_show_large_values_by_their_beginning(
    hw: headwater.Headwater, stores: Stores, name: str
) -> None:
    hw.stream(name).write_many(LARGE)
    group = hw.stream(name).group("g", dead_letters=True)
    group.read(100, ack_ms=FAR, expire_ms=1)
    let_pass(hw, 1)
    assert group.bury() == 12
    hw.queue(name).push_many([value for _, value in LARGE])
    with ApiServer(stores.url("plain"), front=Console) as api:
        client = api.client()
        stream = client.get(f"/console/streams/{name}").body
        assert stream.count(b">1,048,578<") == 12, "each by its whole size"
        assert len(stream) < MB
        letters = client.get(f"/console/dead?place={quote('g:' + name + '/g')}").body
        assert letters.count(b"1,044,482 more bytes") == 12
        assert len(letters) < MB
        tail = client.get(f"/console/streams/{name}/tail").body
        assert tail.count(b"zzzz\xe2\x80\xa6") == 10
        queue = client.get(f"/console/queues/{name}").body
        assert queue.count(b"1,044,482 more bytes") == MOST
        more = re.search(rb'href="[^"]*(\?state=[^"]*from[^"]*)"', queue)
        assert more is not None
        following = client.get(f"/console/queues/{name}{html.unescape(more[1].decode())}").body
        assert following.count(b"1,044,482 more bytes") == MOST
