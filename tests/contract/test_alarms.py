"""One list of alarms for the console, HTTP, the doctor and the metrics; also of what is beside."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import Any, TypeAlias

import pytest
import redis

import headwater
from headwater.ick.keys import CHANNELS, channel_key
from headwater.kernel import instrument
from headwater.kernel.inputs import OwnName
from headwater.log.keys import STREAMS, TOPICS, topic_key
from headwater.queue.keys import QUEUES
from headwater.serve.console.service import Console
from headwater.store.call import Call, Many, Operation
from headwater.store.presence import MOST_SILENT, PROCESSES_KEY, SILENT_MS, Presence, ReportedPart
from headwater.timed.states import PREFIX, EndedRun, JobRecord, JobSpec, JobState, encode_record
from headwater.views import overview
from tests.support.api import ApiClient, ApiServer
from tests.support.commands import run
from tests.support.entries import entries
from tests.support.instruments import Recorder
from tests.support.servers import Server, until
from tests.support.stores import Stores
from tests.support.watch import RoundTrips


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


# ── An overview shows everything in a store, in a handful of round trips, by both clients ────────


Dial: TypeAlias = Callable[[str | None], headwater.Headwater]
A_HANDFUL = 8


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(params=["plain", pytest.param("cluster", marks=pytest.mark.cluster)])
def hw(
    request: pytest.FixtureRequest, own_server: Server, stores: Stores, dial: Dial
) -> headwater.Headwater:
    return dial(own_server.url if request.param == "plain" else stores.url("cluster"))


def test_an_overview_shows_everything(hw: headwater.Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write_many(entries(5))
    for group in ("b", "a"):
        stream.group(group).read(2, ack_ms=60_000)
    topic = hw.topic(f"{name}.t", partitions=3)
    topic.write_many(entries(7))
    hw.queue(f"{name}.q").push_many([b"1", b"2"], delay_ms=60_000)
    hw.ick_channel(f"{name}.c", shards=4).add({"m": 1.0})

    streams = hw.store.run(overview.all_streams())
    infos = {info.name: info for info in streams}
    # Only how long a reader was silent has changed between the two looks.
    now = replace(stream.info(), slowest_idle_ms=infos[name].slowest_idle_ms)
    assert infos[name] == now
    mine = [row for row in hw.store.run(overview.groups_of(streams)) if row.stream == name]
    assert [(row.group.name, row.group.pending) for row in mine] == [("a", 2), ("b", 2)]
    assert mine[0].group == stream.group("a").info()
    topics = hw.store.run(overview.all_topics())
    (partitions,) = (row.partitions for row in topics if row.topic == f"{name}.t")
    assert [info.name for info in partitions] == [f"{name}.t/{place}" for place in range(3)]
    assert sum(info.length for info in partitions) == 7
    (queue,) = hw.store.run(overview.some_queues([f"{name}.q"]))
    assert queue.delayed == 2
    (channel,) = hw.store.run(overview.some_channels([f"{name}.c"]))
    assert (len(channel.shards), channel.ready) == (4, 1)


def test_what_is_removed_meanwhile_is_left_out(hw: headwater.Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write_many(entries(5))
    for group in ("a", "b"):
        stream.group(group).read(1)
    facts = stream.info()
    stream.group("a").remove()
    (left,) = hw.store.run(overview.groups_of([facts]))
    assert (left.stream, left.group.name) == (name, "b")


@pytest.mark.parametrize(("hw", "dial"), [("plain", "sync")], indirect=True)
def test_channels_are_asked_for_by_two_calls_where_one_server_has_them_all(
    hw: headwater.Headwater, name: str
) -> None:
    names = [f"{name}-{place}" for place in range(40)]
    for place, one in enumerate(names):
        hw.ick_channel(one, shards=8).add({f"m{place}": place, "other": 1})
    hw.ick_channel(names[7]).reserve(1)
    asked = [*names[:20], f"{name}-none", *names[20:]]
    apart = hw.store.run(overview.some_channels(asked))
    seen = Recorder()
    with instrument.installed(seen):
        together = hw.store.run(overview.some_channels(asked, apart=False))
    assert [one.name for one in together] == names
    assert [(one.ready, one.reserved) for one in together] == [
        (one.ready, one.reserved) for one in apart
    ]
    # 320 shards are more than one call asks for.
    assert [event.name for event in seen.events] == ["store.channels"] * 3


@pytest.fixture
def many(hw: headwater.Headwater, name: str) -> Iterator[None]:
    """Ten thousand streams and queues, and a thousand topics and channels, by name."""
    counts = {STREAMS: 10_000, QUEUES: 10_000, TOPICS: 1000, CHANNELS: 1000}
    names = {key: [f"{name}-{place}" for place in range(n)] for key, n in counts.items()}

    def register(function: str) -> Operation[None]:
        for key, some in names.items():
            yield Call(function, key, tuple(some), repeatable=True)

    def make() -> Operation[None]:
        for function, key_of, kind in (
            ("hw_channel_open", channel_key, CHANNELS),
            ("hw_topic_open", topic_key, TOPICS),
        ):
            yield Many([Call(function, key_of(n), (2, 2), repeatable=True) for n in names[kind]])

    hw.store.run(register("hw_registry_add"))
    hw.store.run(make())
    yield
    hw.store.run(register("hw_registry_remove"))


OVERVIEWS: dict[Callable[[], Operation[Any]], int] = {
    overview.all_streams: 10_000,
    overview.all_queues: 10_000,
    overview.all_topics: 1000,
    overview.all_channels: 1000,
}


# Both clients run the same operations: each counts on one kind of store.
@pytest.mark.parametrize(
    ("hw", "dial"),
    [("plain", "sync"), pytest.param("cluster", "async", marks=pytest.mark.cluster)],
    indirect=True,
)
@pytest.mark.usefixtures("many")
@pytest.mark.damages
def test_ten_thousand_objects_are_a_handful_of_round_trips(
    hw: headwater.Headwater, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hw.stream(f"{name}-77").write_many(entries(3))
    trips = RoundTrips(hw, monkeypatch)
    for operation, least in OVERVIEWS.items():
        before = trips.count
        found = hw.store.run(operation())
        assert len(found) >= least, operation
        assert trips.count - before <= A_HANDFUL, operation


LISTS = (("stream", "list"), ("stream", "groups"), ("queue", "list"), ("ick", "channel", "list"))


def test_lists_of_the_command_line_are_a_handful_of_round_trips(
    own_server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with headwater.connect(own_server.url) as hw:
        for place in range(50):
            stream = hw.stream(f"{name}-{place}")
            stream.write("tag", b"value")
            stream.group("g").read(1)
            hw.queue(f"{name}-{place}").push(b"value")
            hw.ick_channel(f"{name}-{place}", shards=2).add({"member": 1.0})
        trips = RoundTrips(hw, monkeypatch)
        monkeypatch.setattr("headwater.client.connect", lambda *_, **__: nullcontext(hw))
        for words in LISTS:
            before = trips.count
            assert len(run(None, *words, "--json").rows) >= 50, words
            assert trips.count - before <= A_HANDFUL, words
