"""The server speaks as Roshi's does, and says clearly what it will not do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headwater.instrument import installed
from headwater.serve.http.parsing import Parser, Request
from headwater.serve.http.replies import Reply
from headwater.serve.timeline.prometheus import ServerMetrics, shared_memory
from headwater.serve.timeline.server import timeline_tokens
from headwater.serve.timeline.service import Service
from headwater.serve.tokens import Tokens
from headwater.timeline import AsyncFarm, Cursor, Tally
from headwater.timeline.metrics import COUNTERS, DURATIONS
from headwater.timeline.pool.hashing import murmur3
from tests.support.commands import run, start
from tests.support.farms import Replica, replicas
from tests.support.servers import Server, until
from tests.support.timeline_http import Answer, Client, LocalServer, b64, element

DEAD = "127.0.0.1:1"


@pytest.fixture
def three(valkey: Server) -> list[Replica]:
    return replicas(valkey, 3)


def farm_of(three: list[Replica]) -> str:
    return ";".join(replica.url for replica in three)


@pytest.fixture
def server(three: list[Replica]) -> Iterator[LocalServer]:
    with LocalServer(farm_of(three)) as server:
        yield server


@pytest.fixture
def client(server: LocalServer) -> Iterator[Client]:
    with contextlib.closing(Client(server.port)) as client:
        yield client


def records(answer: Answer, key: str) -> list[tuple[float, str]]:
    assert answer.status == 200
    return [(row["score"], row["member"]) for row in answer.body["records"][key]]


def test_tuples_go_in_and_out_as_roshi_spells_them(client: Client) -> None:
    answer = client.insert(element("k", 1, "a"), element("k", 2.5, "b"), element("l", -3, "c"))
    assert answer.status == 200
    assert answer.body["inserted"] == 3
    assert answer.body["duration"][-1] == "s"
    found = client.select("k", "l", "nobody")
    assert found.body["records"] == {
        "k": [element("k", 2.5, "b"), element("k", 1, "a")],
        "l": [element("l", -3, "c")],
        "nobody": [],
    }
    assert set(found.body) == {"records", "duration"}
    gone = client.delete(element("k", 2.5, "b"), element("k", 0, "a"))
    assert (gone.status, gone.body["deleted"]) == (200, 2)
    assert records(client.select("k"), "k") == [(1, b64("a"))]


def test_every_way_to_name_keys_gives_the_same(client: Client) -> None:
    client.insert(element("k", 1, "a"), element(b"\xfb\xff", 1, "b"))
    expected = client.select("k", b"\xfb\xff").body["records"]
    assert client.ask("POST", "/select", [b64("k"), "+/8="]).body["records"] == expected
    for query in ("key=aw==&key=%2B%2F8%3D", "key=aw&key=-_8", "key=aw&key=+/8="):
        assert client.ask("GET", f"/?{query}").body["records"] == expected
    assert client.ask("GET", "/?key=aw", ["aw=="]).status == 400


def test_pages_by_offset_and_by_cursor_line_up(client: Client) -> None:
    client.insert(*(element("k", score // 3, f"m{score}") for score in range(12)))
    whole = records(client.select("k", query="limit=100"), "k")
    assert whole == sorted(whole, reverse=True)
    assert len(records(client.select("k"), "k")) == 10
    assert records(client.select("k", query="offset=4&limit=3"), "k") == whole[4:7]
    shown = client.select("k", query="limit=5&cursors=true").body["records"]["k"]
    assert [(row["score"], row["member"]) for row in shown] == whole[:5]
    start, stop = shown[1]["cursor"], shown[4]["cursor"]
    assert records(client.select("k", query=f"start={start}&limit=4"), "k") == whole[2:6]
    assert records(client.select("k", query=f"stop={stop}"), "k") == whole[:4]
    assert records(client.select("k", query=f"start={start}&stop={stop}"), "k") == whole[2:4]


def test_a_cursor_is_the_bits_of_the_score_and_the_member(client: Client) -> None:
    client.insert(element("k", 1.5, b"\xff\xfe"))
    (row,) = client.select("k", query="cursors=1").body["records"]["k"]
    bits, _, member = row["cursor"].partition("A")
    assert struct.pack(">Q", int(bits)) == struct.pack(">d", 1.5)
    assert member == "__4="
    assert Cursor.parse(row["cursor"]) == Cursor(1.5, b"\xff\xfe")


def test_coalesced_keys_are_one_list_newest_first(client: Client) -> None:
    client.insert(*(element(f"k{n % 3}", n // 2, f"m{n}") for n in range(12)))
    by_key = client.select("k0", "k1", "k2", query="limit=100").body["records"]
    merged = sorted(
        (row for rows in by_key.values() for row in rows),
        key=lambda row: (row["score"], row["member"]),
        reverse=True,
    )
    flat = client.select("k0", "k1", "k2", query="coalesce=true&limit=100")
    assert flat.body["records"] == merged
    part = client.select("k0", "k1", "k2", query="coalesce=true&offset=5&limit=4")
    assert part.body["records"] == merged[5:9]
    beyond = client.select("k0", query="coalesce=true&offset=50")
    assert beyond.body["records"] == []


def test_keys_that_are_not_utf8_round_trip_without_collision(client: Client) -> None:
    keys = [b"\xff", b"\xfe", "\ufffd".encode(), b"base64:/w==", b"a\x00b", b""]
    client.insert(*(element(key, n, "m") for n, key in enumerate(keys)))
    found = client.select(*keys).body["records"]
    assert len(found) == len(keys)
    assert {rows[0]["key"] for rows in found.values()} == {b64(key) for key in keys}
    assert set(found) >= {"\ufffd", "a\x00b", "", "base64:/w==", f"base64:{b64('base64:/w==')}"}
    for name, rows in found.items():
        encoded = name.removeprefix("base64:")
        assert (encoded if name != encoded else b64(name)) == rows[0]["key"]


BAD_BODIES = [
    b"",
    b"{}",
    b"nonsense",
    b'[{"key": "aw==", "score": 1}]',
    b'[{"key": "?", "score": 1, "member": "aw=="}]',
    b'[{"key": "aw==", "score": "1", "member": "aw=="}]',
    b'[{"key": "aw==", "score": NaN, "member": "aw=="}]',
    b'[{"key": "aw==", "score": 1e999, "member": "aw=="}]',
    b'[{"key": "aw==", "score": 9007199254740993, "member": "aw=="}]',
]


@pytest.mark.parametrize("body", BAD_BODIES)
def test_a_bad_body_is_refused_and_nothing_is_written(
    client: Client, three: list[Replica], body: bytes
) -> None:
    for method in ("POST", "DELETE"):
        answer = client.ask(method, "/", body)
        assert answer.status == 400
        assert set(answer.body) == {"code", "description", "error"}
        assert (answer.body["code"], answer.body["description"]) == (400, "Bad Request")
    assert not any(replica.client.dbsize() for replica in three)


BAD_QUERIES = [
    "offset=-1",
    "offset=x",
    "limit=0",
    "limit=1.5",
    "limit=10000000",
    "coalesce=perhaps",
    "start=nonsense",
    "stop=1B",
    "offset=1&start=0A",
    "offset=0&stop=0A",
    "ofset=1",
    "limit=1&limit=2",
    "key=%3F",
    "key=%FF",
]


@pytest.mark.parametrize("query", BAD_QUERIES)
def test_a_bad_query_is_refused(client: Client, query: str) -> None:
    content = None if "key" in query else [b64("k")]
    answer = client.ask("GET", f"/?{query}", content)
    assert (answer.status, answer.body["code"]) == (400, 400)


def test_what_is_not_there_is_told(client: Client) -> None:
    assert client.ask("GET", "/nowhere").status == 404
    answer = client.ask("PUT", "/", [])
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, POST, DELETE")
    assert client.ask("HEAD", "/health").body == ""
    assert client.ask("GET", "/health").status == 200


def test_a_write_without_a_quorum_is_500_and_a_read_without_a_replica_too(
    three: list[Replica],
) -> None:
    with LocalServer(f"{three[0].url};{DEAD};{DEAD}") as server:
        client = Client(server.port)
        answer = client.insert(element("k", 1, "a"))
        assert (answer.status, answer.body["code"]) == (500, 500)
        assert answer.body["description"] == "Internal Server Error"
        found = client.select("k")
        assert records(found, "k") == [(1, b64("a"))]
        assert found.body["partial"] is True
        assert client.metric("insert_quorum_failure_count") == 1
        assert client.ask("GET", "/health").body["status"] == "degraded"
        client.close()
    with LocalServer(DEAD) as server:
        client = Client(server.port)
        assert client.select("k").status == 500
        assert client.ask("GET", "/health").status == 503
        client.close()


def test_a_request_whose_keys_can_be_served_does_not_suffer_for_its_neighbours(
    three: list[Replica],
) -> None:
    # One instance of the only cluster is dead; keys lie on either by their hash.
    with LocalServer(f"{three[0].url},{DEAD}") as server:
        answers: dict[str, int] = {}
        gate = threading.Barrier(8)

        def ask(key: str) -> None:
            client = Client(server.port)
            client.ask("GET", "/health")
            gate.wait()
            answers[key] = client.insert(element(key, 1, "m")).status
            client.close()

        threads = [threading.Thread(target=ask, args=(f"key-{n}",)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        held = {key.decode()[:-1] for key in three[0].client.scan_iter()}
        assert {key for key, status in answers.items() if status == 200} == held
        assert set(answers.values()) == {200, 500}


def test_an_answer_is_not_partial_for_the_key_of_a_neighbour(three: list[Replica]) -> None:
    """The second cluster lacks an instance; all requests come at the same moment."""
    urls = [three[1].url, DEAD]
    keys = [f"key-{n}".encode() for n in range(8)]

    def select(key: bytes) -> Request:
        parser = Parser(0)
        parser.feed(b"GET /?key=%s HTTP/1.1\r\nHost: x\r\n\r\n" % b64(key).encode())
        request = parser.next()
        assert request is not None
        return request

    async def ask() -> tuple[list[Reply], Tally]:
        loop, tally = asyncio.get_running_loop(), Tally()
        farm = f"{three[0].url};{','.join(urls)}"
        async with AsyncFarm.open(farm) as opened:
            service = Service(opened, ServerMetrics(shared_memory(1), 0), Tokens())
            waiting: list[asyncio.Future[Reply]] = [loop.create_future() for _ in keys]
            for key, answered in zip(keys, waiting, strict=True):
                service.handle(select(key), answered.set_result)
            with installed(tally):
                return await asyncio.gather(*waiting), tally

    replies, tally = asyncio.run(ask())
    assert tally.counts["select_call"] == 1
    partial = [json.loads(reply.body).get("partial", False) for reply in replies]
    lacking = [murmur3(key) % 2 == 1 for key in keys]
    assert partial == lacking
    assert set(partial) == {True, False}


def test_requests_of_one_moment_go_together_and_each_gets_its_own(client: Client) -> None:
    def one(number: int) -> None:
        mine = Client(client.port)
        for turn in range(5):
            key = f"k{number}-{turn}"
            assert mine.insert(element(key, turn, f"m{number}")).body["inserted"] == 1
            assert records(mine.select(key), key) == [(turn, b64(f"m{number}"))]
        mine.close()

    threads = [threading.Thread(target=one, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.metric("insert_record_count") == 60
    assert client.metric("select_keys_count") == 60


def test_all_metrics_of_roshi_are_counted_and_shown(client: Client, server: LocalServer) -> None:
    client.insert(element("k", 1, "a"), element("k", 2, "b"))
    client.delete(element("k", 3, "a"))
    server.settle()  # a write is answered by a quorum; the third copy may still be on its way
    client.select("k")
    client.ask("GET", "/?limit=x")
    server.settle()
    text = client.ask("GET", "/metrics")
    assert text.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    for name in COUNTERS:
        assert f"headwater_{name.removesuffix('_count')}_count " in text.body
    for name in DURATIONS:
        assert f'headwater_{name}_nanoseconds_bucket{{le="+Inf"}} ' in text.body
    expected = {
        "insert_call_count": 1,
        "insert_record_count": 2,
        "delete_record_count": 1,
        "select_call_count": 1,
        "select_send_to_count": 3,
        "select_retrieved_count": 3,
        "select_returned_count": 1,
        "insert_call_duration_nanoseconds_count": 1,
        'http_request_count{code="400"}': 1,
    }
    assert {name: client.metric(name) for name in expected} == expected
    assert client.metric("select_duration_nanoseconds_sum") > 0


def test_a_body_over_the_limit_is_refused(three: list[Replica]) -> None:
    with LocalServer(farm_of(three), max_body=200) as server:
        client = Client(server.port)
        assert client.insert(element("k", 1, "a")).status == 200
        client.close()
        for head in (b"Content-Length: 201", b"Transfer-Encoding: chunked"):
            with socket.create_connection(("127.0.0.1", server.port)) as raw:
                raw.sendall(b"POST / HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n")
                if b"chunked" in head:
                    raw.sendall(b"c9\r\n")
                assert raw.makefile("rb").read().startswith(b"HTTP/1.1 413 ")


def test_a_client_that_does_not_wait_is_answered_in_order(client: Client) -> None:
    body = json.dumps([element("k", 1, "a")]).encode()
    insert = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    select = b"GET /?key=aw HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", client.port)) as raw:
        raw.sendall(insert + select + select.replace(b"Host: x", b"Connection: close"))
        text = raw.makefile("rb").read()
    assert text.count(b"HTTP/1.1 200 OK") == 3
    assert text.count(b'"inserted":1') == 1
    assert text.count(b'"score":1.0') == 2


def test_only_who_has_a_token_may_ask_and_a_read_token_may_not_write(three: list[Replica]) -> None:
    with LocalServer(farm_of(three), tokens=timeline_tokens("all", "look")) as server:
        client = Client(server.port)
        tuples = [element("k", 1, "a")]
        for token in (None, "wrong"):
            answer = client.ask("POST", "/", tuples, token=token)
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert client.ask("GET", "/metrics", token=token).status == 401
        assert client.ask("POST", "/", tuples, token="look").status == 403
        assert client.ask("DELETE", "/", tuples, token="look").status == 403
        assert client.ask("POST", "/", tuples, token="all").status == 200
        assert client.ask("POST", "/select", [b64("k")], token="look").status == 200
        assert client.ask("GET", "/metrics", token="look").status == 200
        assert client.ask("GET", "/health").status == 200
        client.close()


def test_a_server_follows_a_farm_that_is_moved(valkey: Server) -> None:
    four = replicas(valkey, 4)
    before, after = farm_of(four[:2]), farm_of(four[2:])
    with LocalServer(before) as server, contextlib.closing(Client(server.port)) as client:
        client.insert(element("k", 1, "a"))
        words = ["timeline", "reshard", "--instances", before, "--to", after]
        assert run(None, *words).code == 0
        assert client.insert(element("k", 2, "b")).status == 200
        assert records(client.select("k"), "k") == [(2, b64("b")), (1, b64("a"))]
        health = client.ask("GET", "/health").body
        assert {one["instance"] for one in health["instances"]} == {r.url for r in four[2:]}
    assert b"b" not in four[0].states(b"k")


def test_it_listens_wider_only_with_a_token() -> None:
    refused = run(None, "timeline", "serve", "--instances", DEAD, "--host", "0.0.0.0")
    assert refused.code == 1
    assert "token" in refused.err
    for words in (
        ["--quorum", "2"],
        ["--port", "70000"],
        ["--read-token", "x"],
        ["--token", ""],
        ["--workers", "0"],
        ["--max-body", "0"],
    ):
        assert run(None, "timeline", "serve", "--instances", DEAD, *words).code == 1


def test_several_processes_serve_one_port_and_outlive_one_that_is_killed(
    three: list[Replica],
) -> None:
    words = ["timeline", "serve", "--instances", farm_of(three), "--port", "0", "--workers", "2"]
    with start(None, *words) as program:
        try:
            assert program.stdout is not None
            port = int(program.stdout.readline().rpartition(":")[2])

            def ask(method: str, path: str, content: Any = None) -> Answer:
                with contextlib.closing(Client(port)) as client:
                    return client.ask(method, path, content)

            for number in range(20):
                assert ask("POST", "/", [element("k", number, "m")]).status == 200
            with contextlib.closing(Client(port)) as client:
                assert client.metric("insert_record_count") == 20
            children = _children(program.pid)
            assert len(children) == 2
            os.kill(children[0], signal.SIGKILL)
            until(lambda: len(set(_children(program.pid)) - {children[0]}) == 2)
            with contextlib.closing(Client(port)) as client:
                assert records(client.select("k"), "k") == [(19, b64("m"))]
                assert client.metric("insert_record_count") == 20
        finally:
            program.terminate()
            assert program.wait(20) == 0


def test_all_processes_end_when_their_parent_is_killed(three: list[Replica]) -> None:
    words = ["timeline", "serve", "--instances", farm_of(three), "--port", "0", "--workers", "2"]
    with start(None, *words) as program:
        assert program.stdout is not None
        program.stdout.readline()
        children = _children(program.pid)
        assert len(children) == 2
        program.kill()
        program.wait(20)
        until(lambda: not any(map(_is_running, children)))


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _children(pid: int) -> list[int]:
    listed = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in listed.stdout.split()]
