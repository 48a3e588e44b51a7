"""Whatever an object is called, its pages open, its actions work, and HTTP clients reach it."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

import pytest
import sqlalchemy as sa

import headwater
from headwater import Headwater
from headwater.serve.console.actions.table import ACTIONS
from headwater.serve.console.pages.table import PAGES
from headwater.serve.console.service import Console
from headwater.serve.http.messages import path_part
from tests.support.api import ApiClient, ApiServer
from tests.support.browser import Tab
from tests.support.console import ICK, TYPED, Filled, path_of, send
from tests.support.consumers import create_tables
from tests.support.servers import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# The first of them may have to fetch a browser.
pytestmark = pytest.mark.timeout(300)

NAMES: Final = {
    "dot": ".",
    "dots": "..",
    "step": "../a",
    "slash": "/",
    "question": "a?b=c&d",
    "fragment": "#",
    "encoded": "%2F%2E%2e",
    "percent": "100%+1",
    "backslash": "\\..\\",
    "quotes": "`'\"<b>;$(x)",
    "emoji": "🚀é٣",
    "long": "é" * 46,
}
# Where the forms are that a page has for some of what it shows only.
QUERIES: Final = {
    "/queues/{queue}": ["", "?state=delayed", "?state=unacked"],
    "/ick": [f"?key={ICK}"],
}
# What clients remove from a path.
STEP: Final = re.compile(r"/(\.|%2e){1,2}(/|$)", re.IGNORECASE)


class World(NamedTuple):
    """A store with a database, and a server of both."""

    hw: Headwater
    engine: sa.Engine
    api: ApiServer
    client: ApiClient


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    url = f"sqlite:///{tmp_path_factory.mktemp('db') / 'app.db'}"
    engine = sa.create_engine(url)
    create_tables(engine)
    with (
        Server() as store,
        headwater.connect(store.url) as hw,
        ApiServer(store.url, front=Console, db=url) as api,
    ):
        yield World(hw, engine, api, api.client())
    engine.dispose()


def links_of(tab: Tab) -> list[str]:
    """Return where the links of a page lead, as the browser understands them."""
    found: list[str] = tab.page.evaluate("[...document.links].map((link) => link.href)")
    assert all(one.startswith(tab.address) for one in found)
    return [one.removeprefix(tab.address).partition("#")[0] for one in found]


def forms_of(tab: Tab) -> list[dict[str, str]]:
    """Return the forms of actions on a page, with what somebody types into them and ticks."""
    filled: list[dict[str, str]] = tab.page.evaluate(
        """() => [...document.forms].filter((form) => form.elements["do"]).map((form) => {
            form.querySelectorAll("td [type=checkbox]").forEach((box) => { box.checked = true });
            return Object.fromEntries(new FormData(form, form.querySelector("button")));
        })"""
    )
    return [form | TYPED.get(form["do"], {}) for form in filled]


def opened(world: World, chromium: Browser, name: str) -> tuple[set[str], list[dict[str, str]]]:
    """Open every page about objects of a name; returns its links and the forms of its actions."""
    filled = Filled(world.hw, world.engine, name)
    tab = Tab(chromium, f"http://127.0.0.1:{world.api.port}")
    links, forms = set[str](), dict[str, dict[str, str]]()
    for page in PAGES:
        if page.template:
            path = path_of(page.path, filled)
            for query in QUERIES.get(page.path, [""]):
                assert tab.open(path + query).status == 200, path
                links |= {*links_of(tab)}
                forms |= {form["do"]: form for form in forms_of(tab)}
    tab.close()
    assert tab.faults == []
    # A job is stopped by its id.
    assert forms.keys() | {"letters-stop", "replay-stop"} == ACTIONS.keys()
    return links, list(forms.values())


@pytest.mark.parametrize("kind", NAMES)
def test_every_page_link_and_action_of_an_object_opens(
    world: World, chromium: Browser, kind: str
) -> None:
    links, forms = opened(world, chromium, NAMES[kind])
    part = path_part(NAMES[kind])
    own = [link for link in links if {part, f"{part}%2F0"} & {*urlsplit(link).path.split("/")}]
    assert len(own) > 20
    assert [link for link in own if world.client.get(link).status != 200] == []
    for form in forms:
        bill = world.client.get(f"/console/act?{urlencode(form)}")
        assert bill.status == 200, form
        asked = re.search(r"curl -X .*?(http://\S+/v1/[^\s'<]+)", html.unescape(bill.body.decode()))
        assert asked
        assert not STEP.search(urlsplit(asked[1]).path), "its client would rewrite it"


@pytest.mark.parametrize("name", [".", ".."])
def test_every_action_on_an_object_whose_name_is_dots_is_done(
    world: World, chromium: Browser, name: str
) -> None:
    _, forms = opened(world, chromium, name)
    # What removes something comes after what changes it, and the stream comes last.
    last = ["remove", "consumer-remove", "delete-channel", "delete-ick", "delete-stream"]
    forms.sort(key=lambda form: last.index(form["do"]) if form["do"] in last else -1)
    for form in forms:
        bill = world.client.get(f"/console/act?{urlencode(form)}").body.decode()
        sent = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', bill))
        sent = {key: html.unescape(value) for key, value in sent.items() if key != "ask"}
        answer = send(world.client, "/console/act", **sent)
        assert answer.status == 303, (form, answer.body)
        assert not STEP.search(urlsplit(answer.headers["location"]).path)


@pytest.mark.parametrize("name", [".", "..", "{..}", "a/b", "%2F"])
def test_http_clients_reach_an_object_of_any_name(world: World, name: str) -> None:
    """A name in braces is none of a stream, but may be the key of an Ick."""
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("there is no curl")
    world.hw.ick(name).add({"m": 1})
    url = f"http://127.0.0.1:{world.api.port}/v1/icks/{path_part(name)}"
    done = subprocess.run([curl, "-s", url], capture_output=True, check=True, text=True)
    assert json.loads(done.stdout)["key"] == name
    assert world.client.get(f"/v1/icks/{path_part(name)}").status == 200


@pytest.mark.parametrize("part", ["..", "%2E%2E", "%7B..%7D", "{..}"])
def test_a_client_that_sends_the_path_as_it_is_may_spell_dots_in_any_way(
    world: World, part: str
) -> None:
    world.hw.stream("..").write("t", b"v")
    assert world.client.get(f"/v1/streams/{part}").body["name"] == ".."
    assert b"<h1>..</h1>" in world.client.get(f"/console/streams/{part}").body


@pytest.mark.parametrize("part", ["%20", "%0A", "%00", "%7B%7D", "%FF", "x" * 201, "%7B%7D%7D"])
def test_what_cannot_be_a_name_is_answered_by_a_page_that_says_so(world: World, part: str) -> None:
    for page in ("streams", "queues", "lists", "topics", "consumers", "timed"):
        answer = world.client.get(f"/console/{page}/{part}")
        assert answer.status in (400, 404)
        assert b"<h1>" in answer.body
    assert world.client.get(f"/v1/streams/{part}").status in (400, 404)
