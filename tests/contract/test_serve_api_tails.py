"""Tails by server-sent events lose nothing: from any offset, behind a reconnect, when slow."""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.kernel.declaring import Scope
from headwater.serve.api.tails import KEEP_ALIVE_MS
from headwater.serve.limits import HttpLimits
from headwater.serve.tokens import TokenFile, add_token, remove_token
from tests.support.api import ApiClient, ApiServer, messages_of, serving
from tests.support.servers import until
from tests.support.stores import Stores


@pytest.fixture(scope="module")
def api(stores: Stores) -> Iterator[ApiServer]:
    with ApiServer(stores.url("plain")) as server:
        yield server


@pytest.fixture
def name() -> str:
    return f"s-{secrets.token_hex(4)}"


def write(api: ApiServer, name: str, first: int, last: int, size: int = 1) -> None:
    client = api.client()
    batch = [{"tag": "x" * size, "value": str(n)} for n in range(first, last + 1)]
    assert client.post(messages_of(name), batch).body["last"] == last
    client.close()


def test_a_tail_has_what_was_there_and_what_comes(api: ApiServer, name: str) -> None:
    write(api, name, 1, 3)
    client = api.client()
    events = client.events(f"/v1/streams/{name}/tail?from=2")
    assert [event["id"] for event in islice(events, 2)] == ["2", "3"]
    write(api, name, 4, 4)
    event = next(events)
    assert (event["id"], json.loads(event["data"])["value"]) == ("4", "4")
    client.close()


def test_a_tail_begins_at_the_end_and_goes_on_where_it_was(api: ApiServer, name: str) -> None:
    write(api, name, 1, 3)
    path = f"/v1/streams/{name}/tail"
    first, second = api.client(), api.client()
    new, known = first.events(path), second.events(path, last=1)
    assert [next(known)["id"] for _ in range(2)] == ["2", "3"]
    write(api, name, 4, 5)
    assert [next(known)["id"] for _ in range(2)] == ["4", "5"]
    assert next(new)["id"] == "4"
    first.close()
    second.close()


def test_many_tails_of_one_stream_all_have_everything(api: ApiServer, name: str) -> None:
    write(api, name, 1, 1)
    clients = [api.client() for _ in range(20)]
    tails = [client.events(f"/v1/streams/{name}/tail?from=1") for client in clients]
    for tail in tails:
        assert next(tail)["id"] == "1"
    for first in range(2, 32, 10):
        write(api, name, first, first + 9)
    for tail in tails:
        assert [int(next(tail)["id"]) for _ in range(30)] == list(range(2, 32))
    for client in clients:
        client.close()


def test_what_was_evicted_is_named_and_the_rest_follows(api: ApiServer, name: str) -> None:
    write(api, name, 1, 6)
    client = api.client()
    client.post(f"/v1/streams/{name}/evict", {"up_to": 4})
    events = client.events(f"/v1/streams/{name}/tail?from=2")
    skipped = next(events)
    assert (skipped["event"], skipped["id"]) == ("skipped", "4")
    assert json.loads(skipped["data"]) == {"first": 2, "last": 4}
    assert next(events)["id"] == "5"
    client.close()


def test_a_client_that_does_not_read_holds_up_nobody_and_loses_nothing(
    api: ApiServer, name: str
) -> None:
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    slow.settimeout(30)
    slow.connect(("127.0.0.1", api.port))
    slow.sendall(f"GET /v1/streams/{name}/tail?from=1 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    quick = api.client()
    tail = quick.events(f"/v1/streams/{name}/tail?from=1")
    total = 0
    for _ in range(8):
        write(api, name, total + 1, total + 500, size=2000)
        total += 500
    assert [int(next(tail)["id"]) for _ in range(total)] == list(range(1, total + 1))
    quick.close()
    found: list[int] = []
    text = b""
    while len(found) < total:
        piece = slow.recv(1 << 16)
        assert piece, "the server has closed the connection"
        *lines, text = (text + piece).split(b"\n")
        found += [int(line[4:]) for line in lines if line.startswith(b"id: ")]
    assert found == list(range(1, total + 1))
    slow.close()


def test_a_server_that_stops_ends_tails_and_long_polls_at_once(stores: Stores, name: str) -> None:
    with ApiServer(stores.url("plain")) as api:
        write(api, name, 1, 1)
        clients = [api.client() for _ in range(10)]
        tails = [client.events(f"/v1/streams/{name}/tail?from=1") for client in clients]
        assert [next(tail)["id"] for tail in tails] == ["1"] * 10
        poll = socket.create_connection(("127.0.0.1", api.port))
        poll.settimeout(30)
        head = (
            f"GET {messages_of(name, '?from=2&block_ms=60000')} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        poll.sendall(head.encode())
        # The answer to a second request shows that the first was taken up.
        assert clients[0] is not None
        other = api.client()
        assert other.get("/healthz").status == 200
        api.stop()
        assert [list(tail) for tail in tails] == [[]] * 10, "each ends as a whole reply does"
        assert poll.recv(65536).startswith(b"HTTP/1.1 503")
        poll.close()
        for client in (*clients, other):
            client.close()


def test_a_tail_ends_when_its_token_is_taken_back(
    stores: Stores, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "tokens.json"
    reader = add_token(path, "reader", {Scope.READ: ["s-*"]})
    writer = add_token(path, "writer", {Scope.WRITE: ["*"]})
    now = [0.0]
    with ApiServer(stores.url("plain"), TokenFile(path, lambda: now[0])) as api:
        client, other = api.client(reader), api.client(writer)
        other.post(messages_of(name), {"value": "1"})
        events = client.events(f"/v1/streams/{name}/tail?from=1")
        assert next(events)["id"] == "1"
        remove_token(path, "reader")
        now[0] += 2
        other.post(messages_of(name), {"value": "2"})
        assert list(events) == [], "what came later is not for it"
        assert other.get("/healthz").status == 200
        client.close()
        other.close()


@pytest.mark.parametrize("path", ["/v1/streams/NAME/tail", "/v1/topics/NAME/tail"])
def test_an_idle_tail_ends_soon_after_its_token_is_removed(
    stores: Stores, name: str, tmp_path: Path, path: str
) -> None:
    file = tmp_path / "tokens.json"
    keeper = add_token(file, "keeper", {Scope.ADMIN: ["*"]})
    reader = add_token(file, "reader", {Scope.READ: ["*"]})
    with ApiServer(stores.url("plain"), TokenFile(file)) as api:
        admin, client = api.client(keeper), api.client(reader)
        assert admin.post(messages_of(name), {"value": "1"}).status == 201
        assert admin.ask("PUT", f"/v1/topics/{name}", {"partitions": 2}).status == 200
        events = client.events(path.replace("NAME", name))
        until(lambda: b"headwater_sse_tails 1" in admin.get("/metrics").body or "topic" in path)
        removed = time.monotonic()
        remove_token(file, "reader")
        assert list(events) == []
        # Within a second, where the machine has the time.
        assert time.monotonic() - removed < KEEP_ALIVE_MS / 1000 / 3


def test_the_tails_of_one_token_keep_no_other_and_no_health_check_out(
    stores: Stores, name: str, tmp_path: Path
) -> None:
    file = tmp_path / "tokens.json"
    keeper = add_token(file, "keeper", {Scope.ADMIN: ["*"]})
    reader = add_token(file, "reader", {Scope.READ: ["*"]})
    limits = HttpLimits(max_connections=20, max_anonymous=5)
    with ApiServer(stores.url("plain"), TokenFile(file), limits) as api:
        tails = [api.client(reader).events(f"/v1/streams/{name}/tail") for _ in range(20)]
        assert api.client(reader).get(messages_of(name)).status == 503
        assert api.client().get("/healthz").status == 200
        admin = api.client(keeper)
        assert admin.post(messages_of(name), {"value": "1"}).status == 201
        assert [next(tail)["id"] for tail in tails[1:]] == ["1"] * 19
        assert list(tails[0]) == [], "it gave up its place"
        assert api.client(reader).get(messages_of(name)).status == 503


def test_a_health_check_is_answered_soon_while_a_hundred_greedy_tails_read(
    stores: Stores, name: str
) -> None:
    with (
        serving(stores.url("plain")) as (port, _),
        headwater.connect(stores.url("plain")) as hw,
        ExitStack() as opened,
    ):
        for _ in range(6):
            # Bytes that are no text are spelled in base64, which takes the longest.
            hw.stream(name).write_many([("t", b"\xff" * 4000)] * 1000)
        checked = ApiClient(port)
        opened.callback(checked.close)
        for _ in range(100):
            greedy = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
            path = f"/v1/streams/{name}/tail?from=first"
            greedy.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        took = []
        for _ in range(100):
            began = time.monotonic()
            assert checked.get("/healthz").status == 200
            took.append(time.monotonic() - began)
        # Some hundredths of a second, and several seconds where all tails go in one round.
        assert max(took) < 2


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/streams/NAME/messages?from=4&block_ms=60000", None),
        ("POST", "/v1/streams/NAME/groups/g/read", {"start": "last", "block_ms": 60_000}),
        ("POST", "/v1/queues/NAME/pop", {"block_ms": 60_000}),
        ("GET", "/v1/topics/NAME/messages?from=last&block_ms=60000", None),
    ],
)
def test_who_waits_when_its_token_is_removed_gets_nothing_more(
    stores: Stores,
    tmp_path: Path,
    name: str,
    method: str,
    path: str,
    body: Any,
    pool: ThreadPoolExecutor,
) -> None:
    file = tmp_path / "tokens.json"
    keeper = add_token(file, "keeper", {Scope.ADMIN: ["*"]})
    token = add_token(file, "leaver", {Scope.WRITE: ["*"]})
    with ApiServer(stores.url("plain"), TokenFile(file)) as api:
        client, other = api.client(token), api.client(keeper)
        batch = [{"tag": "t", "value": "v"}] * 3
        assert other.post(messages_of(name), batch).status == 201
        assert other.ask("PUT", f"/v1/topics/{name}", {"partitions": 1}).status == 200
        waiting = pool.submit(client.ask, method, path.replace("NAME", name), body)
        remove_token(file, "leaver")
        answer = waiting.result(60)
        assert (answer.status, answer.body["title"]) == (401, "Unauthorized")
        client.close()
        other.close()


@pytest.mark.parametrize("seen", ["abc", "-1", "1.2", "9" * 5000])
def test_an_id_that_is_none_is_refused_and_not_taken_for_the_end(
    api: ApiServer, name: str, seen: str
) -> None:
    write(api, name, 1, 3)
    client = api.client()
    answer = client.get(f"/v1/streams/{name}/tail", last_event_id=seen)
    assert (answer.status, answer.body["title"]) == (400, "InvalidInput")
    client.close()


@pytest.mark.parametrize("seen", ["first", "last", "abc", "1", "1.2.3", "0.1", "1..2", "9" * 5000])
def test_an_id_that_is_none_of_a_topic_is_refused_with_the_cure(
    api: ApiServer, name: str, seen: str
) -> None:
    topic, client = f"/v1/topics/{name}", api.client()
    assert client.ask("PUT", topic, {"partitions": 2}).status == 200
    answer = client.get(f"{topic}/tail", last_event_id=seen)
    assert (answer.status, answer.body["title"]) == (400, "InvalidInput")
    assert "Last-Event-ID out" in answer.body["detail"] or "for each" in answer.body["detail"]
    client.close()


def test_a_client_that_has_seen_more_than_there_is_is_told_what_was_lost(
    api: ApiServer, name: str
) -> None:
    write(api, name, 1, 3)
    client = api.client()
    answer = client.get(f"/v1/streams/{name}/tail", last_event_id="5")
    assert answer.body["title"] == "LostFuture"
    assert (answer.body["facts"]["first"], answer.body["facts"]["last"]) == (4, 5)
    topic = f"/v1/topics/{name}"
    assert client.ask("PUT", topic, {"partitions": 2}).status == 200
    answer = client.get(f"{topic}/tail", last_event_id="1.9")
    assert answer.body["title"] == "LostFuture"
    assert answer.body["facts"]["stream"] == f"{name}/1"
    client.close()
