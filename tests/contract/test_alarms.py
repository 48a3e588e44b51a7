"""One list of alarms for the console, HTTP, the doctor and the metrics; also of what is beside."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis

import headwater
from headwater.kernel.inputs import OwnName
from headwater.serve.console.service import Console
from headwater.store.presence import MOST_SILENT, PROCESSES_KEY, SILENT_MS, Presence, ReportedPart
from headwater.timed.states import PREFIX, EndedRun, JobRecord, JobSpec, JobState, encode_record
from tests.support.api import ApiClient, ApiServer
from tests.support.commands import run
from tests.support.servers import Server, until


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A store with something wrong of every kind that takes no time to make."""
    with Server() as server, headwater.connect(server.url) as hw:
        stream = hw.stream("orders")
        stream.write_many([("t", b"v")] * 100)
        mail = stream.group("mail", dead_letters=True)
        held = mail.read(30, ack_ms=600_000)
        for number, message in enumerate(held[:20]):
            mail.bury(message, error=TimeoutError(f"no answer from host {number}"))
        mail.bury(*held[20:], error=ValueError("no address"))
        mail.pause()
        queue = hw.queue("jobs")
        queue.push(b"v")
        queue.pause()
        spec = JobSpec(cron="0 3 * * *")
        failed = EndedRun(1000, 2000, "failed", 3, error="KeyError: 'day'")
        record = JobRecord(1, (), JobState(spec, 2000, last=failed))
        hw.stream(OwnName(f"{PREFIX}report")).write("ended", encode_record(record))
        yield server


@pytest.fixture(scope="module")
def api(server: Server) -> Iterator[ApiServer]:
    with ApiServer(server.url, front=Console) as api:
        yield api


@pytest.fixture
def browser(api: ApiServer) -> Iterator[ApiClient]:
    with closing(api.client()) as client:
        yield client


def alarms(client: ApiClient) -> list[dict[str, Any]]:
    found = client.get("/v1/alarms")
    assert found.status == 200, found.body
    return list(found.body["alarms"])


EXPECTED = {
    ("paused", "orders", "mail"): "Group mail of orders is paused, and 70 messages wait",
    ("paused", "jobs"): "Queue jobs is paused",
    ("dead", "orders", "mail"): "Group mail of orders has 30 dead letters",
    ("timed", "report"): "Timed job report: the last run failed after 3 attempts: KeyError: 'day'",
}


def test_console_http_doctor_and_metrics_tell_the_same(browser: ApiClient, server: Server) -> None:
    until(lambda: any(one["kind"] == "durability" for one in alarms(browser)))
    found = {(one["kind"], *one["about"][1:]): one for one in alarms(browser)}
    assert {place: one["text"] for place, one in found.items()} | EXPECTED == {
        place: one["text"] for place, one in found.items()
    }
    grouped = "of the newest 30: 20 × TimeoutError: no answer from host # · 10 × ValueError"
    assert found["dead", "orders", "mail"]["detail"].startswith(grouped)
    page = html.unescape(browser.get("/console").body.decode())
    told = run(server.url, "doctor", "--alarms", "--json")
    assert told.code == 1, "the store is not durable, which is to be acted upon"
    listed = {one["text"] for one in json.loads(told.out)["alarms"]}
    assert listed == {one["text"] for one in found.values()}
    for one in found.values():
        assert one["text"] in page
        assert one["cure"]
    assert f"O{grouped[1:]}" in page
    levels = re.findall(r'headwater_alarms\{.*level="(\w+)"\} (\d+)', metrics(browser))
    assert {level: int(count) for level, count in levels} == {
        level: sum(one["level"] == level for one in found.values()) for level in ("act", "look")
    }


def metrics(client: ApiClient) -> str:
    body: bytes = client.get("/metrics").body
    return body.decode()


def test_the_doctor_shows_alarms_as_a_table(server: Server) -> None:
    told = run(server.url, "doctor", "--alarms")
    heading, *rows = told.out.splitlines()
    assert heading.split() == ["level", "since", "what", "cure"]
    assert any("Queue jobs is paused" in row for row in rows)


def test_a_group_is_resumed_from_its_alarm(browser: ApiClient) -> None:
    page = html.unescape(browser.get("/console").body.decode())
    button = r'name="do" value="group-state"><input[^>]*value="orders"><input[^>]*value="mail">'
    assert re.search(button, page)


def test_an_instance_of_a_farm_that_is_down_is_told(server: Server) -> None:
    farm = f"{server.url}?db=1;redis://127.0.0.1:1"
    with ApiServer(server.url, farm=farm) as api, closing(api.client()) as client:
        (found,) = until(lambda: [one for one in alarms(client) if one["kind"] == "instance"])
        assert "127.0.0.1:1" in found["text"]
        assert found["level"] == "act"


def test_processes_that_were_killed_are_kept_up_to_a_number(server: Server) -> None:
    with headwater.connect(server.url) as hw, server.client() as raw:
        for number in range(MOST_SILENT + 3):
            hw.store.run(Presence("worker", f"w{number}").beat())
        _silence(raw)
        hw.store.run(Presence("worker", "alive").beat())
        assert raw.zcard(f"{PROCESSES_KEY}:seen") == raw.hlen(PROCESSES_KEY) == MOST_SILENT + 1
        raw.delete(PROCESSES_KEY, f"{PROCESSES_KEY}:seen")


def _silence(raw: redis.Redis) -> None:
    """Set back when processes were last seen, as if they had been killed."""
    for process in raw.hkeys(PROCESSES_KEY):
        raw.zincrby(f"{PROCESSES_KEY}:seen", -SILENT_MS - 1000, process)


def test_a_part_of_a_killed_process_is_not_said_to_run(browser: ApiClient, server: Server) -> None:
    with headwater.connect(server.url) as hw, server.client() as raw:
        part = ReportedPart("mail", "worker", "orders/mail", "running")
        hw.store.run(Presence("worker", "killed").beat([part]))
        _silence(raw)

        def shown() -> str:
            return html.unescape(browser.get("/console/processes").body.decode())

        until(lambda: "ended without a word" in shown())
        assert "not known, was running" in shown()
        raw.delete(PROCESSES_KEY, f"{PROCESSES_KEY}:seen")


def test_members_are_those_that_still_read(browser: ApiClient, server: Server) -> None:
    with headwater.connect(server.url) as hw, server.client() as raw:
        hw.stream("crew").write_many([("t", b"v")] * 50)
        for number in range(32):
            hw.stream("crew").group("g", member=f"m{number}").read(1, ack_ms=60_000)
        key = "hw:s:{crew}:g:1:g:members"
        for number in range(30):
            raw.zincrby(key, -120_000, f"m{number}")
        page = browser.get("/console/streams/crew/groups").body.decode()
        assert 'data-label="Members">2<' in page
        *_, row = run(server.url, "stream", "groups", "crew").out.splitlines()
        *_, members, waiting = row.split()
        assert (members, waiting) == ("2", "0")
