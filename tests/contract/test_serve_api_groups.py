"""Groups and queues over HTTP: each message to one consumer, again if it dies, never lost."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import headwater
from tests.support.api import ApiClient, ApiServer, messages_of
from tests.support.servers import until
from tests.support.stores import Stores


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


class Group:
    """A group of a stream, by its requests."""

    def __init__(self, client: ApiClient, stream: str, group: str = "g") -> None:
        self._client = client
        self.path = f"/v1/streams/{stream}/groups/{group}"

    def read(self, count: int = 10, **words: Any) -> list[tuple[int, int]]:
        answer = self._client.post(f"{self.path}/read", {"count": count, **words})
        assert answer.status == 200, answer.body
        return [(message["offset"], message["attempt"]) for message in answer.body["messages"]]

    def info(self) -> Any:
        return self._client.get(self.path).body


def write(client: ApiClient, name: str, count: int) -> None:
    batch = [{"value": str(n)} for n in range(count)]
    assert client.post(messages_of(name), batch).status == 201


def test_a_group_is_shown_and_listed(client: ApiClient, name: str) -> None:
    write(client, name, 6)
    group = Group(client, name)
    assert client.get(group.path).body["title"] == "UnknownGroup"
    assert group.read(4, member="me") == [(1, 1), (2, 1), (3, 1), (4, 1)]
    shown = group.info()
    assert (shown["group"], shown["next"], shown["pending"], shown["lag"]) == ("g", 5, 4, 2)
    assert "me" in shown["members"]
    listed = client.get(f"/v1/streams/{name}/groups").body["groups"]
    assert [one["group"] for one in listed] == ["g"]


def test_a_member_that_waits_is_woken_and_one_that_goes_takes_nothing(
    api: ApiServer, client: ApiClient, name: str
) -> None:
    group = Group(client, name)
    gone = socket.create_connection(("127.0.0.1", api.port))
    body = b'{"block_ms": 60000}'
    head = f"POST {group.path}/read HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
    gone.sendall(f"{head}\r\n\r\n".encode() + body)
    until(lambda: group.info().get("waiting") == 1)
    gone.close()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(group.read, 1, block_ms=30_000)
        other = api.client()
        write(other, name, 1)
        assert [offset for offset, _ in waiting.result(60)] == [1]
        other.close()


def test_what_expires_is_a_dead_letter_and_comes_back_when_asked(
    client: ApiClient, name: str
) -> None:
    write(client, name, 1)
    group = Group(client, name)
    group.read(1, ack_ms=1, expire_ms=1, dead_letters=True)
    until(lambda: not group.read(1) and group.info()["dead"] == 1)
    letters = client.get(f"{group.path}/dead").body["letters"]
    assert [(letter["origin"], letter["value"]) for letter in letters] == [(1, "0")]
    assert client.post(f"{group.path}/redrive", {}).body["redriven"] == 1
    assert group.read(1) == [(1, 1)]
    assert client.post(f"{group.path}/discard", {}).body["discarded"] == 0


@pytest.mark.parametrize("kind", ["streams", "topics"])
def test_a_group_that_keeps_order_hands_out_a_tag_when_its_message_is_done(
    stores: Stores, client: ApiClient, name: str, kind: str
) -> None:
    with headwater.connect(stores.url("plain")) as hw:
        log = hw.stream(name) if kind == "streams" else hw.topic(name, partitions=1)
        log.write_many([("x", b"1"), ("x", b"2"), ("y", b"3")])
    group = Group(client, name)
    group.path = f"/v1/{kind}/{name}/groups/g"
    assert group.read(1, ordered=True) == [(1, 1)]
    assert group.read(5, ordered=True) == [(3, 1)]
    found = group.info()
    assert [one["ordered"] for one in found.get("groups", [found])] == [True]
    body = {"ordered": True, "ack_ms": None}
    assert client.post(f"/v1/{kind}/{name}/groups/h/read", body).status == 400


def test_a_queue_hands_each_message_to_one_consumer(client: ApiClient, name: str) -> None:
    path = f"/v1/queues/{name}"
    pushed = client.post(
        f"{path}/messages",
        [
            {"value": "a", "headers": {"k": "v"}},
            {"data": [1]},
            {"value": "/w==", "encoding": "base64"},
        ],
    )
    assert (pushed.status, len(pushed.body["ids"])) == (201, 3)
    found = client.post(f"{path}/pop", {"count": 3}).body["deliveries"]
    assert [(one["value"], one["attempt"]) for one in found] == [("a", 1), ("[1]", 1), ("/w==", 1)]
    assert found[0]["headers"] == {"k": "v"}
    first, second, third = (one["receipt"] for one in found)
    assert client.post(f"{path}/pop", {}).body["deliveries"] == []
    assert client.post(f"{path}/ack", {"receipts": [first]}).body["acked"] == 1
    assert client.post(f"{path}/nack", {"receipts": [second]}).body["nacked"] == 1
    longer = {"receipts": [third], "ack_ms": 60_000}
    assert client.post(f"{path}/extend", longer).body["extended"] == 1
    again = client.post(f"{path}/pop", {"ack_ms": 1}).body["deliveries"]
    assert [(one["value"], one["attempt"]) for one in again] == [("[1]", 2)]
    later = client.post(f"{path}/pop", {"block_ms": 20_000}).body["deliveries"]
    assert [one["attempt"] for one in later] == [3], "its consumer is dead"
    assert client.get(path).body["unacked"] == 2
    listed = client.get(f"/v1/queues?prefix={name}").body["queues"]
    assert [one["name"] for one in listed] == [name]


def test_a_pop_of_large_messages_loses_none_of_them(client: ApiClient, name: str) -> None:
    path = f"/v1/queues/{name}"
    for number in range(8):
        # Written as JSON, each of these characters has six times its size.
        client.post(f"{path}/messages", {"value": str(number) + "\x01" * (3 << 19)})
    seen = []
    while found := client.post(f"{path}/pop", {"count": 8, "ack_ms": None}).body["deliveries"]:
        seen += [one["value"][:1] for one in found]
    assert seen == list("01234567")


def test_a_push_is_repeated_without_harm(client: ApiClient, name: str) -> None:
    path = f"/v1/queues/{name}/messages?producer=p&sequence=1"
    first = client.post(path, {"value": "once"}).body
    assert client.post(path, {"value": "once"}).body == first
    keyed = [{"value": "x", "dedupe": "k"}]
    once = client.post(f"/v1/queues/{name}/messages", keyed).body
    assert client.post(f"/v1/queues/{name}/messages", keyed).body == once
    mixed = client.post(f"/v1/queues/{name}/messages", [*keyed, {"value": "y"}])
    assert mixed.status == 400
    shown = client.get(f"/v1/queues/{name}/messages").body["messages"]
    assert [one["value"] for one in shown] == ["once", "x"]


def test_dead_letters_are_chosen_by_name_and_by_filter(
    client: ApiClient, stores: Stores, name: str
) -> None:
    write(client, name, 4)
    hw = headwater.connect(stores.url("plain"))
    group = hw.stream(name).group("g", dead_letters=True)
    group.read(4, ack_ms=60_000)
    group.bury(1, 2, error="no such ride")
    group.bury(3, 4, error=TimeoutError("late"))
    path = f"/v1/streams/{name}/groups/g"
    late = client.get(f"{path}/dead?error=late&min_attempts=1&after_ms=1700000000000").body
    assert [letter["origin"] for letter in late["letters"]] == [3, 4]
    assert client.post(f"{path}/redrive", {"offsets": [2, 9]}).body["redriven"] == 1
    assert client.post(f"{path}/discard", {"error": "LATE"}).body["discarded"] == 2
    both = client.post(f"{path}/redrive", {"offsets": [1], "error": "no"})
    assert (both.status, "not both" in both.body["detail"]) == (400, True)
    queue = hw.queue(name)
    queue.push_many([b"a", b"b", b"c"])
    queue.bury(*queue.pop(3, ack_ms=60_000), error="no")
    path = f"/v1/queues/{name}"
    first, second, _ = client.get(f"{path}/dead?error=NO").body["messages"]
    assert client.post(f"{path}/redrive", {"ids": [first["id"]]}).body["redriven"] == 1
    assert client.post(f"{path}/discard", {"ids": [second["id"]]}).body["discarded"] == 1
    assert client.post(f"{path}/redrive", {"tag": "t"}).status == 400, "messages have no tags"
    assert client.post(f"{path}/redrive", {"ids": ["letter"]}).status == 400
    hw.close()


def test_a_group_is_paused_and_what_is_pending_is_settled_by_an_administrator(
    client: ApiClient, name: str
) -> None:
    write(client, name, 3)
    group = Group(client, name)
    group.read(2)
    assert client.post(f"{group.path}/pause", {}).body["changed"] is True
    skip = client.post(f"{group.path}/pending", {"action": "skip", "offsets": [1, 3]})
    assert skip.body["settled"] == 1
    back = client.post(f"{group.path}/pending", {"action": "return", "offsets": [2]})
    assert back.body["settled"] == 1
    assert group.read(3) == []
    assert client.post(f"{group.path}/resume", {}).body["changed"] is True
    assert group.read(3) == [(2, 2), (3, 1)]
