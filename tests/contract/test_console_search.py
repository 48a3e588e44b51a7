"""One search finds everything in a store by a part of its name, and a message by its place."""

from __future__ import annotations

import html
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headwater
from headwater import Headwater
from headwater.kernel import instrument
from headwater.kernel.declaring import Scope
from headwater.serve.console.service import Console
from headwater.serve.tokens import TokenFile, add_token
from headwater.spark.queries.notes import NotedQuery, note
from headwater.timed.runner import TimedRunner
from tests.support.api import ApiServer
from tests.support.browser import Tab
from tests.support.console import EVIL
from tests.support.instruments import Recorder
from tests.support.servers import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.timeout(300)
MARK = secrets.token_hex(3)


@pytest.fixture(scope="module")
def store() -> Iterator[Server]:
    with Server() as server, headwater.connect(server.url) as hw:
        fill(hw)
        yield server


def fill(hw: Headwater) -> None:
    rides = hw.stream(f"rides-{MARK}{EVIL}")
    rides.write_many([("t", b"v")] * 50)
    rides.group(f"mail-{MARK}").read(1)
    rides.register_reader(f"reader-{MARK}", 3)
    hw.stream("same").write("t", b"v")
    hw.topic(f"clicks-{MARK}", 2).write("t", b"v")
    hw.queue(f"queue-{MARK}").push(b"v")
    hw.ick_channel(f"search-{MARK}", shards=1).add({"a": 1})
    hw.store.run(note("id", "read", "rides", NotedQuery(name=f"daily-{MARK}", next={}, run="r")))
    runner = TimedRunner(hw)
    runner.every("5m", name=f"job-{MARK}")(lambda: None)
    runner.run_due()


@pytest.fixture(scope="module")
def api(store: Server) -> Iterator[ApiServer]:
    with ApiServer(store.url, front=Console) as api:
        yield api


def found(api: ApiServer, asked: str, token: str | None = None) -> str:
    answer = api.client(token).get(f"/console/search?q={asked}")
    assert answer.status == 200, answer
    page: str = answer.body.decode()
    return page


def test_all_kinds_are_found_by_a_part_of_a_name(api: ApiServer) -> None:
    page = found(api, MARK.upper())
    assert "<script>alert" not in page
    links = re.findall(r'<li><a href="([^"]*)"', html.unescape(page))
    for start in (
        "/console/streams/rides-",
        "/console/topics/clicks-",
        "/console/streams/clicks-",
        "/console/queues/queue-",
        "/console/lists/search-",
        "/console/spark",
        "/console/timed/job-",
    ):
        assert any(link.startswith(start) for link in links), (start, links)
    assert any("/groups/mail-" in link for link in links)
    assert f"reader-{MARK}" in page
    assert "Nothing has" in found(api, "nowhere")


def test_a_place_and_a_whole_name_are_gone_to(api: ApiServer) -> None:
    client = api.client()
    asked = client.get("/console/search?q=same@1")
    assert (asked.status, asked.headers["location"]) == (303, "/console/streams/same/messages/1")
    assert client.get("/console/search?q=same").headers["location"] == "/console/streams/same"
    for text in ("same@2", "same@0", "nobody@1", "@", "a@b"):
        assert client.get(f"/console/search?q={text}").status == 200
    assert client.get("/console/search?q=same&list=1").status == 200, "for whoever is typing"


def test_a_search_costs_as_much_among_many_streams(store: Server) -> None:
    counted = []
    with Server() as many, headwater.connect(many.url) as hw:
        for n in range(300):
            hw.stream(f"s{n}").write("t", b"v")
        for url in (store.url, many.url):
            with ApiServer(url, front=Console) as api:
                found(api, "5")
                recorder = Recorder()
                with instrument.also_installed(recorder):
                    page = found(api, "5")
                names = [event.name for event in recorder.events]
                counted.append(sum("registry" in name for name in names))
                assert not {"stream.info", "group.info"} & set(names)
    assert counted[0] == counted[1]
    assert "and " in page
    assert "type more of the name" in page


def test_a_token_finds_only_what_it_may_read(store: Server, tmp_path: Path) -> None:
    token = add_token(tmp_path / "tokens.json", "reader", {Scope.READ: ["queue-*"]})
    with ApiServer(store.url, TokenFile(tmp_path / "tokens.json"), front=Console) as api:
        page = found(api, MARK, token)
        assert f"queue-{MARK}" in page
        assert not any(word in page for word in ("rides-", "mail-", "clicks-", "daily-", "job-"))
        assert api.client(token).get("/console/search?q=same@1").status == 200


def test_a_search_is_made_by_keys_alone(chromium: Browser, api: ApiServer) -> None:
    tab = Tab(chromium, f"http://127.0.0.1:{api.port}")
    tab.open("/console/search")
    tab.page.keyboard.press("/")
    tab.page.keyboard.type(f"queue-{MARK}"[:-1])
    tab.page.locator(".hits a").first.wait_for()
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_url(f"**/console/queues/queue-{MARK}")
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("same@1")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_url("**/console/streams/same/messages/1")
    assert not tab.faults
    tab.close()
