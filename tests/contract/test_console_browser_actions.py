"""Every action of the console is clicked through in a real browser, by one person and by two."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

import headwater
from headwater import Headwater
from headwater.serve.console.actions.table import ACTIONS
from headwater.serve.console.pages.table import PAGES
from headwater.serve.console.service import Console
from tests.support.api import ApiServer
from tests.support.browser import Tab, serious_faults
from tests.support.console import ICK, TYPED, Filled, path_of
from tests.support.consumers import create_tables
from tests.support.servers import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# What needs less than the admin scope is not audited.
UNAUDITED = {"write", "push"}
# What a server does in the background.
JOBS = {"letters", "replay"}
# Where the forms are that a page has for some of what it shows only.
SHOWN_BY = {
    "promote": "/queues/{queue}?state=delayed",
    "release": "/queues/{queue}?state=unacked",
    "delete-ick": f"/ick?key={ICK}",
}

# The first of them may have to fetch a browser.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def hw(server: Server) -> Iterator[Headwater]:
    with headwater.connect(server.url) as hw:
        yield hw


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sa.Engine]:
    engine = sa.create_engine(f"sqlite:///{tmp_path_factory.mktemp('db') / 'app.db'}")
    create_tables(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def filled(hw: Headwater, engine: sa.Engine) -> Filled:
    """Objects of its own for each test, which changes them."""
    return Filled(hw, engine)


@pytest.fixture(scope="module")
def api(server: Server, engine: sa.Engine) -> Iterator[ApiServer]:
    with pytest.MonkeyPatch.context() as patch:
        # Jobs that are noted for somebody stay with them, although nobody renews the note.
        patch.setattr("headwater.serve.jobs.engine._LOOK_S", 3600.0)
        with ApiServer(server.url, front=Console, db=str(engine.url)) as api:
            yield api


@pytest.fixture(scope="module")
def forms(api: ApiServer, hw: Headwater, engine: sa.Engine) -> dict[str, str]:
    """The page on which each action has its form."""
    filled, client, found = Filled(hw, engine), api.client(), dict[str, str]()
    for page in reversed(PAGES):
        if page.template:
            shown = client.get(path_of(page.path, filled)).body.decode()
            found |= dict.fromkeys(re.findall(r'name="do" value="([^"]+)"', shown), page.path)
    return found


@pytest.fixture
def tabs(chromium: Browser, api: ApiServer) -> Iterator[list[Tab]]:
    """Two browsers, in which nothing may go wrong."""
    tabs = [Tab(chromium, f"http://127.0.0.1:{api.port}") for _ in range(2)]
    yield tabs
    for tab in tabs:
        tab.close()
        assert not tab.faults


def ask(tab: Tab, do: str, path: str) -> None:
    """Open a page and send the form of an action, with what somebody types into it."""
    tab.open(path)
    form = tab.page.locator(f'form:has(input[name="do"][value="{do}"])').first
    # A form may wait behind something to unfold.
    folded = form.locator("xpath=ancestor::details[not(@open)]")
    if folded.count():
        folded.first.locator("summary").first.click()
    for name, value in TYPED.get(do, {}).items():
        form.locator(f'[name="{name}"]').fill(value)
    form.locator("button").first.click()
    tab.page.wait_for_selector(".bill")


def agree(tab: Tab) -> None:
    tab.page.locator("form:has(input[name=agreed]) button").click()


def outcomes(hw: Headwater) -> list[str]:
    """Return how the last changes ended, by the audit."""
    audit = hw.stream("hw.audit")
    last = audit.info().last
    notes = audit.read(max(last - 1, 1), 2) if last else []
    return [json.loads(note.value)["outcome"] for note in notes if note is not None]


@pytest.mark.parametrize("do", ACTIONS)
def test_an_action_shows_its_bill_is_done_and_audited(
    tabs: list[Tab], hw: Headwater, filled: Filled, forms: dict[str, str], do: str
) -> None:
    tab = tabs[0]
    before = hw.stream("hw.audit").info().last
    page, _, query = SHOWN_BY.get(do, forms.get(do, "")).partition("?")
    ask(tab, do, f"{path_of(page, filled)}?{query}")
    assert tab.page.locator(".bill p").count() >= 1
    assert tab.page.locator(".copy:visible").count() == 3
    assert hw.stream("hw.audit").info().last == before, "a bill changes nothing"
    agree(tab)
    said = tab.page.wait_for_selector(".said")
    assert said is not None
    assert said.inner_text().startswith("Accepted: " if do in JOBS else "Done: ")
    assert "said=" not in tab.page.url, "a reload does not say it again"
    if do in UNAUDITED:
        assert hw.stream("hw.audit").info().last == before
        return
    assert hw.stream("hw.audit").info().last > before
    assert outcomes(hw) == ["begun", "done"]


def test_a_bill_is_readable_by_everybody(tabs: list[Tab], filled: Filled) -> None:
    ask(tabs[0], "seek", path_of("/streams/{stream}/groups/{group}", filled))
    assert serious_faults(tabs[0].page) == []
    assert tabs[0].page.locator("img[src=x]").count() == 0
    tabs[0].page.locator(".copy").first.click()
    tabs[0].page.wait_for_selector(".copy:has-text('Copied'), .copy:has-text('Selected')")
    marked = tabs[0].page.evaluate("getSelection().toString()")
    assert marked == tabs[0].page.locator(".forms code").first.inner_text()


def test_a_browser_without_scripts_can_act(
    chromium: Browser, api: ApiServer, filled: Filled
) -> None:
    tab = Tab(chromium, f"http://127.0.0.1:{api.port}", java_script_enabled=False)
    ask(tab, "queue-state", path_of("/queues/{queue}", filled))
    agree(tab)
    tab.page.wait_for_selector(".said")
    tab.close()
    assert filled.queue.stats().paused
    assert not tab.faults


def test_a_second_browser_sees_what_the_first_did(tabs: list[Tab], filled: Filled) -> None:
    """The open page of a group shows it by itself."""
    path = path_of("/streams/{stream}/groups/{group}", filled)
    one, two = tabs
    two.open(path)
    ask(one, "seek", path)
    one.page.locator("form:has(input[name=agreed])").wait_for()
    agree(one)
    one.page.wait_for_selector(".said")
    reached = f"{filled.group.info().next:,}"
    two.page.wait_for_function(
        "next => [...document.querySelectorAll('.facts dd')].some(one => one.innerText == next)",
        arg=reached,
    )


def test_a_stale_bill_does_nothing_and_shows_what_it_would_do_now(
    tabs: list[Tab], filled: Filled
) -> None:
    path = path_of("/queues/{queue}", filled)
    for tab in tabs:
        ask(tab, "queue-state", path)
        assert "Pause" in tab.page.locator("h1").inner_text()
    agree(tabs[0])
    tabs[0].page.wait_for_selector(".said")
    agree(tabs[1])
    tabs[1].page.wait_for_selector("[role=alert]")
    assert "Resume" in tabs[1].page.locator("h1").inner_text()
    assert filled.queue.stats().paused, "the second button agreed to a pause, not to its end"
    agree(tabs[1])
    tabs[1].page.wait_for_selector(".said")
    assert not filled.queue.stats().paused
    # A browser reports the answer 409 as an error of the page.
    tabs[1].faults = [fault for fault in tabs[1].faults if "409" not in fault]
