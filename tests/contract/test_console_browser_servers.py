"""The console in a browser: on a store that dies, mounted, read-only, and with tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import headwater
from headwater.serve import Grant, Scope, asgi_app
from headwater.serve.console.service import Console
from headwater.serve.tokens import TokenFile, add_token
from tests.support.api import ApiServer
from tests.support.asgi import under_uvicorn
from tests.support.browser import Tab, serious_faults
from tests.support.console import Filled, path_of
from tests.support.servers import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# The first of them may have to fetch a browser.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def filled(server: Server) -> Iterator[Filled]:
    with headwater.connect(server.url) as hw:
        yield Filled(hw)


@pytest.mark.slow
@pytest.mark.fault
def test_the_overview_of_a_store_that_is_gone_is_not_said_to_be_live(chromium: Browser) -> None:
    with (
        Server(fsync="always") as store,
        headwater.connect(store.url) as hw,
        ApiServer(store.url, front=Console) as api,
        closing(Tab(chromium, f"http://127.0.0.1:{api.port}")) as tab,
    ):
        hw.queue("emails").push(b"a")
        hw.queue("emails").pause()
        tab.open("/console")
        tab.page.wait_for_selector("#live.on")
        assert "emails is paused" in tab.page.locator(".alarms").inner_text()
        store.kill()
        tab.page.wait_for_selector("#live.lost", timeout=60_000)
        tab.page.wait_for_selector(".alarms li.act", timeout=60_000)
        assert "The store does not answer" in tab.page.locator(".alarms li").first.inner_text()
        assert tab.page.locator("#live").inner_text().startswith("shown as of")
        assert tab.page.locator("#verdict").inner_text().endswith("store does not answer")
        assert tab.page.locator("#live.on").count() == 0
        store.restart()
        tab.page.wait_for_selector("#live.on", timeout=60_000)


@pytest.mark.fault
def test_a_page_says_that_the_store_is_gone_and_recovers_by_itself(chromium: Browser) -> None:
    with (
        Server(fsync="always") as store,
        headwater.connect(store.url) as hw,
        ApiServer(store.url, front=Console) as api,
    ):
        queue = hw.queue("emails")
        queue.push(b"a")
        address = f"http://127.0.0.1:{api.port}"
        with closing(Tab(chromium, address)) as open_, closing(Tab(chromium, address)) as late:
            open_.open("/console/queues/emails")
            open_.page.wait_for_selector("#live.on")
            store.kill()
            open_.page.wait_for_selector("#live.lost")
            assert "no answer since" in open_.page.locator("#live").inner_text()
            assert open_.page.locator(".facts").is_visible(), "what was known is still shown"
            # A page that is opened now says what is wrong, and what it does about it.
            assert late.open("/console/queues/emails").status == 503
            assert "does not answer" in late.page.locator("h1").inner_text()
            assert serious_faults(late.page) == []
            store.restart()
            queue.push(b"b")
            for tab in (open_, late):
                tab.page.wait_for_selector("#live.on")
                tab.page.wait_for_selector(".facts dd:text-is('2')")


def test_a_page_of_what_is_gone_says_so(chromium: Browser, server: Server) -> None:
    with (
        headwater.connect(server.url) as hw,
        ApiServer(server.url, front=Console) as api,
        closing(Tab(chromium, f"http://127.0.0.1:{api.port}")) as tab,
    ):
        hw.stream("brief").write("t", b"1")
        tab.open("/console/streams/brief")
        hw.stream("brief").delete()
        tab.page.wait_for_selector("h1:text('Not found')")


def test_it_works_inside_an_application_of_a_user(
    chromium: Browser, server: Server, filled: Filled
) -> None:
    api = asgi_app(server.url, grant=Grant("ann", {Scope.ADMIN: ["*"]}), console=True)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with api:
            yield

    app = Starlette(routes=[Mount("/deep/er", api)], lifespan=lifespan)
    with under_uvicorn(app) as port, closing(Tab(chromium, f"http://127.0.0.1:{port}")) as tab:
        tab.open("/deep/er" + path_of("/queues/{queue}", filled))
        tab.page.locator("form:has(input[value=queue-state]) button").click()
        tab.page.locator("form:has(input[name=agreed]) button").click()
        tab.page.wait_for_selector(".said")
        assert filled.queue.stats().paused
        tab.page.locator("header nav a", has_text="Streams").click()
        tab.page.wait_for_selector("h1:text('Streams')")
        assert "/deep/er/console/streams" in tab.page.url
        assert not tab.faults


def test_a_read_only_server_offers_nothing_to_press(
    chromium: Browser, server: Server, filled: Filled
) -> None:
    with (
        ApiServer(server.url, front=Console, read_only=True) as api,
        closing(Tab(chromium, f"http://127.0.0.1:{api.port}")) as tab,
    ):
        for page in ("/queues/{queue}", "/streams/{stream}/groups/{group}", "/dead"):
            tab.open(path_of(page, filled))
            assert tab.page.locator(".badge:text('read-only')").is_visible()
            assert tab.page.locator("form[action$='/act'] button").count() == 0
        assert not tab.faults


def test_who_signs_in_sees_and_may_press_what_the_token_allows(
    chromium: Browser, server: Server, filled: Filled, tmp_path: Path
) -> None:
    path = tmp_path / "tokens.json"
    tokens = {
        who: add_token(path, who, {scope: ["console-*"]})
        for who, scope in (("reader", Scope.READ), ("admin", Scope.ADMIN))
    }
    page = path_of("/queues/{queue}", filled)
    with (
        ApiServer(server.url, TokenFile(path), front=Console) as api,
        closing(Tab(chromium, f"http://127.0.0.1:{api.port}")) as tab,
    ):
        for who, actions in (("reader", False), ("admin", True)):
            assert tab.open(page).status == 401
            assert serious_faults(tab.page) == []
            tab.page.locator("input[name=token]").fill(tokens[who])
            tab.page.keyboard.press("Enter")
            tab.page.wait_for_selector(".facts")
            assert tab.page.url.endswith(page), "back to the page that was asked for"
            assert (tab.page.locator("form[action$='/act'] button").count() > 0) is actions
            assert tab.page.evaluate("document.cookie") == "", "no script reads the token"
            tab.page.locator("button[title='Sign out']").click()
            tab.page.wait_for_selector("input[name=token]")
