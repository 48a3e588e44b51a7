"""Limits by every way in: commands, HTTP, workers and applications set and show the same ones."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from headwater import App, Limits, Message
from headwater.errors import InvalidInput
from headwater.kernel.inputs import NO_LIMITS
from headwater.workers.holding import Prefetch
from tests.support.api import ApiServer
from tests.support.commands import run
from tests.support.servers import until
from tests.support.stores import Stores
from tests.support.workers import Crew, all_done, at_work


@pytest.fixture
def url(stores: Stores) -> str:
    return stores.url("plain")


def test_commands_set_show_and_take_off_limits(url: str, name: str) -> None:
    run(url, "stream", "write", name, "t", "v")
    run(url, "stream", "set-group", name, "g", "--start", "first")
    command = ("stream", "limit", name, "g")
    none = {"max_in_flight": None, "max_in_flight_per_key": None, "rate": None,
            "rate_per_key": None}  # fmt: skip
    assert run(url, *command, "--json").row["limits"] == none
    told = run(url, *command, "--rate", "100/s", "--max-in-flight-per-key", "2").out
    assert told == "limits: max_in_flight_per_key=2, rate=100/s burst 10 (before: none)\n"
    row = run(url, *command, "--max-in-flight", "8", "--json").row
    assert row["limits"] == none | {"max_in_flight": 8}
    assert row["before"] == none | {"max_in_flight_per_key": 2, "rate": "100/s burst 10"}
    assert run(url, *command).out == "limits: max_in_flight=8\n"
    assert run(url, "stream", "groups", name, "--json").row["limits"]["max_in_flight"] == 8
    assert run(url, *command, "--none").out == "limits: none (before: max_in_flight=8)\n"
    assert "a text such as '100/s'" in run(url, *command, "--rate", "fast").err
    assert "give it alone" in run(url, *command, "--rate", "1/s", "--none").err
    assert "did you mean 'g'" in run(url, "stream", "limit", name, "gg").err


def test_commands_limit_queues_and_topics(url: str, name: str) -> None:
    run(url, "queue", "push", name, "v")
    assert run(url, "queue", "limit", name, "--rate", "5/m").out.startswith(
        "limits: rate=5/m burst 1"
    )
    assert "rate=5/m burst 1" in run(url, "queue", "stats", name).out
    run(url, "topic", "create", f"{name}-t", "--partitions", "2")
    run(url, "topic", "set-group", f"{name}-t", "g", "--start", "first")
    row = run(url, "topic", "limit", f"{name}-t", "g", "--rate-per-key", "5/s", "--json").row
    assert row["limits"]["rate_per_key"] == "5/s burst 2"


def test_http_sets_limits_and_shows_them(url: str, crew: Crew, name: str) -> None:
    crew.hw.stream(name).group("g").read(0)
    with ApiServer(url) as server:
        client = server.client()
        path = f"/v1/streams/{name}/groups/g"
        assert client.ask("PUT", f"{path}/limits", {"rate": "7/s"}).status == 200
        assert client.get(path).body["limits"]["rate"] == "7/s burst 2"
        queue = f"/v1/queues/{name}/limits"
        client.ask("PUT", queue, {"max_in_flight": 3})
        assert client.ask("PUT", queue, {}).body["before"]["max_in_flight"] == 3
        assert client.ask("PUT", queue, {"rate_per_key": "1/s"}).status == 400
        for body in ({"rate": "fast"}, {"max_in_flight": 0}, {"rates": 1}):
            assert client.ask("PUT", f"{path}/limits", body).status in (400, 422)


def test_a_worker_sets_what_it_declares_and_says_what_it_replaced(
    crew: Crew, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = crew.hw.stream(name)
    stream.write_many([("t", b"v")] * 3)
    group = stream.group("g")
    group.limit(Limits(max_in_flight=7))
    running, most, lock = 0, 0, threading.Lock()

    def handle(_: Message) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1

    with at_work(crew.worker(stream, handle, limits=Limits(max_in_flight=1))):
        until(all_done(group, 3))
    assert most == 1
    assert group.info().limits == Limits(max_in_flight=1)
    assert "its limits were max_in_flight=7; this worker declares max_in_flight=1" in caplog.text
    with at_work(crew.worker(stream, handle)):
        until(lambda: group.info().members != {})
    assert group.info().limits == Limits(max_in_flight=1), "one that declares none leaves them"
    group.limit(NO_LIMITS)


def test_a_worker_with_limits_holds_no_more_than_it_handles() -> None:
    assert Prefetch(4, 1000, "ack_ms").room == 8
    assert Prefetch(4, 1000, "ack_ms", limited=True).room == 4


def test_an_application_names_limits_that_conflict_or_cannot_be_kept(url: str, name: str) -> None:
    app = App(url)

    def declare(part: str, limits: Any, **source: Any) -> None:
        app.worker(name=part, limits=limits, **source)(lambda _: None)

    declare("one", Limits(rate="5/s"), queue=name)
    declare("same", Limits(rate="5/s burst 2"), queue=name)
    declare("other", Limits(rate="6/s"), queue=name)
    declare("keyed", Limits(rate_per_key="6/s"), queue=f"{name}-q")
    declare("in-all", Limits(rate="6/s"), topic=f"{name}-t", group="g")
    declare("text", "6/s", stream=f"{name}-s", group="g")
    found = {fault.part: fault.what for fault in app.check() if fault.fatal}
    assert set(found) == {"other", "keyed", "in-all", "text"}
    assert "and one declares rate=5/s burst 2" in found["other"]
    with pytest.raises(InvalidInput, match="100/s"):
        Limits(rate="often")
