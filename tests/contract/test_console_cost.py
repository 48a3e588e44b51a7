"""What a page costs the store: as much for a long stream as for a short one, and little while open.

An open page makes less than five calls a second, whatever the number of tabs. The long form prints
how long a ruler of ten million messages takes.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import headwater
from headwater import Headwater
from headwater.kernel import instrument
from headwater.kernel.inputs import OwnName
from headwater.metrics import alarms
from headwater.serve.console.service import Console
from headwater.store import rights
from headwater.store.doctor import examine
from headwater.timed.states import PREFIX, JobRecord, JobSpec, JobState, encode_record
from tests.support.api import ApiServer
from tests.support.browser import Tab
from tests.support.instruments import Recorder
from tests.support.servers import Server

if TYPE_CHECKING:
    import redis
    from playwright.sync_api import Browser

# The first of them may have to fetch a browser.
pytestmark = pytest.mark.timeout(300)

LONG = int(os.environ.get("HEADWATER_LONG", "0"))
PART = 50_000
TABS = 5
PROMISED_PER_S = 5.0
# What is asked for every ten seconds is counted as often as it is asked for.
COUNTED_S = 20.0


@pytest.fixture(scope="module")
def store() -> Iterator[Server]:
    """A store of its own with something of every kind that is sampled."""
    with Server() as server, headwater.connect(server.url) as hw:
        for n in range(30):
            stream = hw.stream(f"s{n:02d}")
            stream.write_many([("t", b"v")] * 50)
            stream.group("mail").read(10, ack_ms=600_000)
            stream.retain(max_age_ms=1)
        for n in range(5):
            hw.queue(f"q{n}").push(b"v")
            hw.ick_channel(f"search{n}", shards=8).add({"a": 1})
            group = hw.stream(f"s{n:02d}").group("bills", dead_letters=True)
            group.bury(*group.read(9, ack_ms=600_000), error=ValueError("no address"))
            timed = JobRecord(1, (), JobState(JobSpec(cron="0 3 * * *"), 1))
            hw.stream(OwnName(f"{PREFIX}{n}")).write("made", encode_record(timed))
        yield server


def calls(raw: redis.Redis) -> int:
    """Return how many commands clients have sent to the server, without this look at them.

    What functions run inside the server is not sent by a client.
    """
    inside = set(rights.needed(cluster=False)) - set(rights.SENT)
    stats = raw.info("commandstats")
    return sum(
        int(facts["calls"])
        for name, facts in stats.items()
        if name.removeprefix("cmdstat_") not in inside
    )


def renew(tabs: list[Tab], part: str) -> None:
    """Wait until every tab has renewed itself, by a request for this part of its address."""
    for tab in tabs:
        # Those of the other tabs come within the same two seconds.
        with tab.page.expect_response(lambda answer: part in answer.url):
            pass


def calls_per_s(tabs: list[Tab], raw: redis.Redis, part: str) -> float:
    """Return how many calls a second the server gets while every tab renews itself again."""
    # What it takes to open a tab is not what an open one costs.
    renew(tabs, part)
    began, before = time.monotonic(), calls(raw)
    while time.monotonic() - began < COUNTED_S:
        renew(tabs, part)
    return (calls(raw) - before - 1) / (time.monotonic() - began)


def examining_per_s(store: Server, raw: redis.Redis) -> float:
    """Return how many calls a second it costs to examine the store now and then."""
    before = calls(raw)
    examine(store.url)
    return (calls(raw) - before - 1) / alarms.EXAMINED_S


def test_open_tabs_cost_the_store_less_than_five_calls_a_second(
    store: Server, chromium: Browser
) -> None:
    with store.client() as raw:
        examining = examining_per_s(store, raw)
        with ApiServer(store.url, front=Console, history=50) as api:
            tabs = [Tab(chromium, f"http://127.0.0.1:{api.port}") for _ in range(TABS)]
            try:
                for tab in tabs:
                    tab.open("/console")
                # The first examination is over when its verdict is shown.
                tabs[-1].page.wait_for_selector("#verdict a")
                steady = calls_per_s(tabs, raw, "part=now")
                print(f"\n{TABS} tabs: {steady:.1f} calls a second, examinations {examining:.1f}")
                assert steady + examining < PROMISED_PER_S, "all tabs share one sampler"
                assert [fault for tab in tabs for fault in tab.faults] == []
            finally:
                for tab in tabs:
                    tab.close()


def test_an_open_stream_with_retention_costs_the_store_less_than_five_calls_a_second(
    store: Server, chromium: Browser
) -> None:
    """With the sample that it asks for, and without the history, which is written anyway."""
    with ApiServer(store.url, front=Console, history=0) as api, store.client() as raw:
        tab = Tab(chromium, f"http://127.0.0.1:{api.port}")
        try:
            tab.open("/console")
            tab.page.wait_for_selector("#verdict a")
            tab.open("/console/streams/s00")
            assert "50 wait for mail" in tab.page.locator("#stream-line").inner_text()
            cost = calls_per_s([tab], raw, "/streams/s00")
            print(f"\n{cost:.1f} calls a second with the page of a stream")
            assert cost < PROMISED_PER_S
            assert tab.faults == []
        finally:
            tab.close()


def filled(hw: Headwater, messages: int) -> str:
    """Return a stream with three groups, of which one has many pending ranges.

    Another holds up retention, by which every message is due.
    """
    stream = hw.stream(f"scale-{secrets.token_hex(4)}")
    part = min(messages, PART)
    table = pa.table({"tag": ["t"] * part, "value": [b'{"fare": 12}'] * part})
    for _ in range(messages // part):
        stream.append(table)
    group = stream.group("mail", max(messages // 2, 1))
    held = group.read(1000, ack_ms=600_000)
    group.ack(*(message.offset for message in held[::2]))
    stream.group("totals", "last").read(0)
    stream.group("slow", 1).read(0)
    stream.retain(max_age_ms=1)
    return stream.name


def test_a_long_stream_costs_as_many_calls_as_a_short_one(server: Server) -> None:
    lengths = (1000, 10_000_000 if LONG else 300_000)
    with headwater.connect(server.url) as hw:
        names = [filled(hw, length) for length in lengths]
    asked: list[int] = []
    with ApiServer(server.url, front=Console) as api:
        client = api.client()
        for name, length in zip(names, lengths, strict=True):
            path = f"/console/streams/{name}"
            # Its header counts what retention would evict, as far as one call does.
            due = f"{256_000 if length > PART else length:,} wait for slow".encode()
            assert due in client.get(path).body
            recorder = Recorder()
            with instrument.also_installed(recorder):
                page = client.get(path)
            assert due in page.body, "known from the first page"
            own = [event.name for event in recorder.events if event.object == name]
            # The sample that all share is made at any time.
            asked.append(len([one for one in own if one != "store.looks"]))
            assert len(page.body) < 300_000, "a page does not grow with the stream"
            took_ms = []
            for _ in range(5 * LONG):
                begun = time.perf_counter()
                client.get(path)
                took_ms.append((time.perf_counter() - begun) * 1000)
            if took_ms:
                print(f"\nthe page of {length:,} messages: {median(took_ms):.0f} ms")
    # Where it stands, three groups and their rulers, the profile, and the messages that are shown.
    assert asked[0] == asked[1] <= 11, asked
