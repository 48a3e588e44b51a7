"""Requests are served together and fail alone, are counted, limited and allowed by tokens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading

import pytest

from headwater.kernel.instrument import installed
from headwater.serve.http.messages import Reply, Request
from headwater.serve.limits import HttpLimits
from headwater.serve.timeline.server import timeline_tokens
from headwater.serve.timeline.service import ServerMetrics, Service, shared_memory
from headwater.serve.tokens import Tokens
from headwater.timeline import AsyncFarm, Tally
from headwater.timeline.metrics import COUNTERS, DURATIONS
from headwater.timeline.pool import murmur3
from tests.support.commands import run
from tests.support.farms import DEAD, Replica, one_each, replicas
from tests.support.servers import Server
from tests.support.timeline_http import Client, LocalServer, b64, element, records, serving


def test_a_write_without_a_quorum_is_500_and_a_read_without_a_replica_too(
    three: list[Replica],
) -> None:
    with serving(f"{three[0].url};{DEAD};{DEAD}") as client:
        answer = client.insert(element("k", 1, "a"))
        assert (answer.status, answer.body["code"]) == (500, 500)
        assert answer.body["description"] == "Internal Server Error"
        found = client.select("k")
        assert records(found, "k") == [(1, b64("a"))]
        assert found.body["partial"] is True
        assert client.metric("insert_quorum_failure_count") == 1
        assert client.ask("GET", "/health").body["status"] == "degraded"
    with serving(DEAD) as client:
        assert client.select("k").status == 500
        assert client.ask("GET", "/health").status == 503


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
        query = f"key={b64(key)}"
        return Request("GET", "/", query, ("select", True), True, b"")

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


def test_requests_of_one_moment_go_together_and_each_gets_its_own(roshi: Client) -> None:
    def one(number: int) -> None:
        mine = Client(roshi.port)
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
    assert roshi.metric("insert_record_count") == 60
    assert roshi.metric("select_keys_count") == 60


def test_all_metrics_of_roshi_are_counted_and_shown(
    roshi: Client, roshi_server: LocalServer
) -> None:
    roshi.insert(element("k", 1, "a"), element("k", 2, "b"))
    roshi.delete(element("k", 3, "a"))
    roshi_server.settle()  # a write is answered by a quorum; the third copy may still be on its way
    roshi.select("k")
    roshi.ask("GET", "/?limit=x")
    roshi_server.settle()
    text = roshi.ask("GET", "/metrics")
    assert 'headwater_farm_instance_up{cluster="1",address=' in text.body
    assert "\nheadwater_farm_repairs_total 0\n" in text.body
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
    assert {name: roshi.metric(name) for name in expected} == expected
    assert roshi.metric("select_duration_nanoseconds_sum") > 0


def test_a_body_over_the_limit_is_refused(three: list[Replica]) -> None:
    with LocalServer(one_each(three), limits=HttpLimits(max_body=200)) as server:
        client = Client(server.port)
        assert client.insert(element("k", 1, "a")).status == 200
        client.close()
        for head in (b"Content-Length: 201", b"Transfer-Encoding: chunked"):
            with socket.create_connection(("127.0.0.1", server.port)) as raw:
                raw.sendall(b"POST / HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n")
                if b"chunked" in head:
                    raw.sendall(b"c9\r\n" + b"x" * 201)
                assert raw.makefile("rb").read().startswith(b"HTTP/1.1 413 ")


def test_a_client_that_does_not_wait_is_answered_in_order(roshi: Client) -> None:
    body = json.dumps([element("k", 1, "a")]).encode()
    insert = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    select = b"GET /?key=aw HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", roshi.port)) as raw:
        last = select.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        raw.sendall(insert + select + last)
        text = raw.makefile("rb").read()
    assert text.count(b"HTTP/1.1 200 OK") == 3
    assert text.count(b'"inserted":1') == 1
    assert text.count(b'"score":1.0') == 2


def test_only_who_has_a_token_may_ask_and_a_read_token_may_not_write(three: list[Replica]) -> None:
    with serving(one_each(three), tokens=timeline_tokens("all", "look")) as client:
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
        assert client.ask("GET", "/health").body == {"status": "ok"}, "not which instances"
        assert len(client.ask("GET", "/health", token="look").body["instances"]) == 3


def test_a_server_follows_a_farm_that_is_moved(valkey: Server) -> None:
    four = replicas(valkey, 4)
    before, after = one_each(four[:2]), one_each(four[2:])
    with LocalServer(before) as server, contextlib.closing(Client(server.port)) as client:
        client.insert(element("k", 1, "a"))
        words = ["timeline", "reshard", "--instances", before, "--to", after]
        assert run(None, *words).code == 0
        assert client.insert(element("k", 2, "b")).status == 200
        assert records(client.select("k"), "k") == [(2, b64("b")), (1, b64("a"))]
        health = client.ask("GET", "/health").body
        assert {one["instance"] for one in health["instances"]} == {r.url for r in four[2:]}
    assert b"b" not in four[0].states(b"k")


def test_a_fault_while_the_health_is_found_out_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def ask() -> Reply:
        async with AsyncFarm.open(DEAD) as farm:
            service = Service(farm, ServerMetrics(shared_memory(1), 0), Tokens())
            farm.status = None  # type: ignore[assignment, method-assign]
            answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            request = Request("GET", "/health", "", ("health", True), True, b"")
            service.handle(request, answered.set_result)
            return await asyncio.wait_for(answered, 60)

    reply = asyncio.run(ask())
    assert reply.status == 500
    number = json.loads(reply.body)["error"].split()[-1]
    assert f"request {number} failed" in caplog.text


def test_json_that_is_nested_too_deep_is_400_on_every_path(roshi: Client) -> None:
    deep = b"[" * 50_000 + b"]" * 50_000
    hidden = b'[{"key": "aw==", "score": 1, "member": "bQ==", "x": ' + deep + b"}]"
    for method, path in (("POST", "/"), ("DELETE", "/"), ("GET", "/"), ("POST", "/select")):
        for body in (deep, hidden):
            answer = roshi.ask(method, path, body)
            assert answer.status == 400
            assert "nested" in answer.body["error"]
