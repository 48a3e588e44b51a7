"""A scrub that was begun over HTTP is known to every process, and its report outlives them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Barrier

import pytest

import headwater
from headwater.log.keys import stream_key
from tests.support.api import ApiClient, ApiServer, messages_of, serving
from tests.support.servers import Server, until

PATH = "/v1/store/scrub"


@pytest.fixture(scope="module")
def store() -> Iterator[Server]:
    with Server() as server:
        with headwater.connect(server.url) as hw:
            hw.stream("rides").write("t", b"v")
        yield server


def ended(client: ApiClient) -> None:
    until(lambda: client.get(PATH).body["running"] is None)


def test_a_scrub_reports_what_is_damaged_to_whoever_asks(store: Server) -> None:
    with ApiServer(store.url) as api:
        client = api.client()
        assert client.get(PATH).body == {"running": None, "last": None}
        client.post(messages_of("rides"), [{"value": "x"}] * 5)
        begun = client.post(PATH, {})
        assert (begun.status, begun.body["running"]["state"]) == (202, "running")
        ended(client)
        sound = client.get(PATH).body["last"]
        assert (sound["state"], sound["who"], sound["defects"]) == ("done", "everybody", 0)
        assert sound["report"]["complete"]
        store.client().hset(stream_key("rides"), "last", 3)
        assert client.post(PATH, {"names": ["rides"], "kinds": ["stream"]}).status == 202
        ended(client)
    with ApiServer(store.url, read_only=True) as other:
        client = other.client()
        damaged = client.get(PATH).body["last"]
        assert damaged["scrub"] != sound["scrub"]
        assert damaged["defects"] == len(damaged["report"]["defects"]) > 0
        assert damaged["report"]["defects"][0]["name"] == "rides"
        assert client.post(PATH, {}).status == 403
        client.close()


def test_one_scrub_runs_at_a_time_and_outlives_its_server(store: Server) -> None:
    with headwater.connect(store.url) as hw:
        hw.stream("large").write_many([("t", b"x" * 1000)] * 1000)
    with ApiServer(store.url) as api, ApiServer(store.url) as other:
        client, second = api.client(), other.client()
        slow = {"rate_mb_s": 0.001}
        assert client.post(PATH, slow).status == 202
        for one in (client, second):
            assert one.post(PATH, {}).status == 409
            assert one.get(PATH).body["running"]["state"] == "running"
        until(lambda: second.get(PATH).body["running"]["bytes"] > 0)
        begun = second.get(PATH).body
        api.stop()
        until(lambda: second.get(PATH).body["running"]["state"] == "running")
        now = second.get(PATH).body
        assert now["running"]["scrub"] == begun["running"]["scrub"]
        assert now["last"] == begun["last"], "it has not ended"
        assert second.ask("DELETE", PATH).status == 202
        ended(second)
        last = second.get(PATH).body["last"]
        assert last["scrub"] == begun["running"]["scrub"]
        assert (last["state"], last["report"]["complete"]) == ("stopped", False)


def test_of_requests_that_come_together_one_begins_a_scrub(store: Server) -> None:
    with ExitStack() as opened:
        servers = [opened.enter_context(ApiServer(store.url)) for _ in range(3)]
        clients = [api.client() for api in servers for _ in range(3)]
        threads = opened.enter_context(ThreadPoolExecutor(len(clients)))
        together = Barrier(len(clients))

        def begin(client: ApiClient) -> int:
            together.wait()
            return client.post(PATH, {"rate_mb_s": 0.001}).status

        answers = sorted(threads.map(begin, clients))
        assert answers == [202] + [409] * (len(clients) - 1)
        assert clients[0].ask("DELETE", PATH).status == 202
        ended(clients[0])


def test_a_scrub_is_stopped_from_whichever_process(store: Server) -> None:
    with ApiServer(store.url) as api, ApiServer(store.url) as other:
        client, second = api.client(), other.client()
        assert second.ask("DELETE", PATH).status == 409
        assert client.post(PATH, {"rate_mb_s": 0.001}).status == 202
        stopped = second.ask("DELETE", PATH)
        assert stopped.status == 202
        ended(second)
        last = client.get(PATH).body["last"]
        assert (last["state"], last["report"]["complete"]) == ("stopped", False)
        assert client.post(PATH, {"names": ["rides"]}).status == 202
        ended(client)
        assert client.get(PATH).body["last"]["state"] == "done", "the stop was of the one before"


def test_a_repair_says_what_it_would_do_and_then_does_it(store: Server) -> None:
    with ApiServer(store.url) as api:
        client = api.client()
        repair = "/v1/store/repair"
        client.post(messages_of("torn"), [{"value": "x"}] * 3)
        store.client().hincrby(stream_key("torn"), "bytes", 5)
        wanted = {"names": ["torn"]}
        assert client.post(repair, wanted).status == 202
        ended(client)
        tried = client.get(PATH).body["last"]
        assert (tried["what"], tried["state"], tried["report"]) == ("repair", "done", None)
        assert tried["repair"]["dry_run"]
        (left,) = tried["repair"]["left"]
        assert left["repairable"]
        assert client.post(repair, {**wanted, "dry_run": False}).status == 202
        ended(client)
        done = client.get(PATH).body["last"]["repair"]
        assert ([one["place"] for one in done["repaired"]], done["left"]) == ([left["place"]], [])
        assert client.post(repair, wanted).status == 202
        ended(client)
        assert client.get(PATH).body["last"]["defects"] == 0


def test_a_scrub_whose_process_was_killed_is_begun_again_by_the_next(store: Server) -> None:
    with serving(store.url) as (port, process):
        client = ApiClient(port)
        assert client.post(PATH, {"rate_mb_s": 0.001}).status == 202
        begun = client.get(PATH).body["running"]["scrub"]
        client.close()
        process.kill()
        process.wait()
    with ApiServer(store.url) as api:
        client = api.client()
        assert client.post(PATH, {}).status == 409
        until(lambda: client.get(PATH).body["running"]["state"] == "running", seconds=60)
        assert client.get(PATH).body["running"]["scrub"] == begun
        assert client.ask("DELETE", PATH).status == 202
        ended(client)
        assert client.get(PATH).body["last"]["scrub"] == begun


def test_a_scrub_that_fails_says_why_until_another_has_ended(store: Server) -> None:
    with ApiServer(store.url) as api:
        client = api.client()
        store.client().execute_command("ACL", "SETUSER", "default", "-hlen")
        try:
            assert client.post(PATH, {}).status == 202
            ended(client)
        finally:
            store.client().execute_command("ACL", "SETUSER", "default", "+hlen")
        failed = client.get(PATH).body["last"]
        assert (failed["state"], failed["report"]) == ("failed", None)
        assert "hlen" in failed["error"]
        assert client.post(PATH, {"names": ["rides"]}).status == 202
        ended(client)
        assert client.get(PATH).body["last"]["state"] == "done"
