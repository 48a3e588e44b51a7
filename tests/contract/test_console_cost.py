"""What an open page costs the store: less than five calls a second, and as much with five tabs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import headwater
from headwater.serve.console.service import Console
from tests.support.api import ApiServer
from tests.support.browser import Tab
from tests.support.servers import Server

if TYPE_CHECKING:
    import redis
    from playwright.sync_api import Browser

# The first of them may have to fetch a browser.
pytestmark = pytest.mark.timeout(300)

# What a client sends by itself; all other commands are those that functions run in the server.
SENT = ("fcall", "fcall_ro", "info", "config|get", "slowlog|get", "client|list", "function|list")
# How many times each tab renews itself while calls are counted, and what is promised.
RENEWALS = 5
PROMISED_PER_S = 5.0


@pytest.fixture(scope="module")
def store() -> Iterator[Server]:
    """A store of its own with something of every kind that is sampled."""
    with Server() as server, headwater.connect(server.url) as hw:
        for n in range(30):
            stream = hw.stream(f"s{n:02d}")
            stream.write_many([("t", b"v")] * 50)
            stream.group("mail").read(10, ack_ms=600_000)
        for n in range(5):
            hw.queue(f"q{n}").push(b"v")
        hw.ick_channel("search", shards=4).add({"a": 1})
        yield server


def calls(raw: redis.Redis) -> int:
    """Return how many calls clients have sent to the server."""
    stats = raw.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in SENT)


def renew(tabs: list[Tab]) -> None:
    """Wait until every tab has renewed itself."""
    for tab in tabs:
        # Those of the other tabs come within the same two seconds.
        with tab.page.expect_response(lambda answer: "part=now" in answer.url):
            pass


def calls_per_s(tabs: list[Tab], raw: redis.Redis) -> float:
    """Return how many calls a second the server gets while every tab renews itself some times."""
    # What it takes to open a tab is not what an open one costs.
    renew(tabs)
    began, before = time.monotonic(), calls(raw)
    for _ in range(RENEWALS):
        renew(tabs)
    # The INFO that counts is one of them.
    return (calls(raw) - before - 1) / (time.monotonic() - began)


def test_open_tabs_cost_the_store_less_than_five_calls_a_second(
    store: Server, chromium: Browser
) -> None:
    with ApiServer(store.url, front=Console, history=50) as api, store.client() as raw:
        tabs = [Tab(chromium, f"http://127.0.0.1:{api.port}")]
        try:
            tabs[0].open("/console")
            one = calls_per_s(tabs, raw)
            tabs += [Tab(chromium, f"http://127.0.0.1:{api.port}") for _ in range(4)]
            for tab in tabs[1:]:
                tab.open("/console")
            five = calls_per_s(tabs, raw)
            print(f"\n{one:.1f} calls a second with one tab, {five:.1f} with five")
            assert one < PROMISED_PER_S
            assert five < PROMISED_PER_S, "all tabs share one sampler"
            assert [fault for tab in tabs for fault in tab.faults] == []
        finally:
            for tab in tabs:
                tab.close()
