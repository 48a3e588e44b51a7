"""Every page of the console works in a real browser: for eyes, for keys, for screen readers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import headwater
from headwater import Headwater
from headwater.serve.console.calls import ConsolePage
from headwater.serve.console.pages.table import PAGES
from headwater.serve.console.service import Console
from tests.support.api import ApiServer
from tests.support.browser import PHONE, WIDE, Tab, open_browser, overflow, serious_faults
from tests.support.console import EVIL, Filled, path_of
from tests.support.servers import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# The first of them may have to fetch a browser.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def hw(server: Server) -> Iterator[Headwater]:
    with headwater.connect(server.url) as hw:
        yield hw


@pytest.fixture(scope="module")
def filled(hw: Headwater) -> Filled:
    return Filled(hw)


@pytest.fixture(scope="module")
def address(server: Server) -> Iterator[str]:
    with ApiServer(server.url, front=Console) as api:
        yield f"http://127.0.0.1:{api.port}"


@pytest.fixture(scope="module")
def shared_tab(chromium: Browser, address: str) -> Iterator[Tab]:
    tab = Tab(chromium, address)
    yield tab
    tab.close()


@pytest.fixture
def tab(shared_tab: Tab) -> Iterator[Tab]:
    """A tab in which nothing may go wrong."""
    shared_tab.page.set_viewport_size(WIDE)
    shared_tab.page.emulate_media(color_scheme="light")
    yield shared_tab
    faults, shared_tab.faults = shared_tab.faults, []
    assert not faults


@pytest.fixture(scope="module")
def plain_tab(chromium: Browser, address: str) -> Iterator[Tab]:
    """A tab without scripts."""
    tab = Tab(chromium, address, java_script_enabled=False)
    yield tab
    tab.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.show.__name__)
def test_a_page_is_whole_in_light_and_dark_wide_and_on_a_phone(
    tab: Tab, plain_tab: Tab, filled: Filled, page: ConsolePage
) -> None:
    """It asks nobody else, runs no code of a producer, and axe finds nothing serious in it."""
    path = path_of(page.path, filled)
    assert tab.open(path).status == 200
    assert serious_faults(tab.page) == []
    tab.page.emulate_media(color_scheme="dark")
    assert serious_faults(tab.page, "color-contrast") == []
    assert tab.page.locator("img[src=x]").count() == 0
    assert overflow(tab.page) <= 0
    tab.page.set_viewport_size(PHONE)
    assert overflow(tab.page) <= 0
    # The same is there without scripts.
    plain_tab.open(path)
    assert plain_tab.page.locator("h1").inner_text() == tab.page.locator("h1").inner_text()
    assert plain_tab.page.locator("tbody tr").count() == tab.page.locator("tbody tr").count()


def test_what_looks_for_smuggled_code_would_find_it(chromium: Browser, address: str) -> None:
    """The control of the test above: the same text, not escaped."""
    tab = Tab(chromium, address, bypass_csp=True)
    tab.open("/console")
    tab.page.evaluate("evil => { document.querySelector('main').innerHTML = evil }", EVIL)
    tab.page.wait_for_function("document.querySelector('img[src=x]').complete")
    assert tab.page.locator("img[src=x]").count() == 1
    assert "a dialog" in tab.faults
    tab.close()
