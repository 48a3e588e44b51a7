"""Every page of the console works in a real browser: for eyes, for keys, for screen readers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

import headwater
from headwater import Headwater
from headwater.outbox import Outbox
from headwater.serve.console.calls import ConsolePage
from headwater.serve.console.pages.table import NAVIGATION, PAGES
from headwater.serve.console.service import Console
from tests.support.api import ApiServer
from tests.support.browser import PHONE, WIDE, Tab, overflow, serious_faults
from tests.support.console import EVIL, ICK, Filled, path_of
from tests.support.consumers import create_tables
from tests.support.servers import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# The first of them may have to fetch a browser.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def hw(server: Server) -> Iterator[Headwater]:
    with headwater.connect(server.url) as hw:
        yield hw


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('db') / 'app.db'}"


@pytest.fixture(scope="module")
def filled(hw: Headwater, database: str) -> Filled:
    """Objects with hostile names, and a database with a row and a consumer of such a name."""
    engine = sa.create_engine(database)
    create_tables(engine)
    filled = Filled(hw, engine)
    with engine.begin() as conn:
        Outbox(engine).stage(conn, filled.stream.name, f"tag{EVIL}", EVIL.encode())
    engine.dispose()
    return filled


@pytest.fixture(scope="module")
def address(server: Server, filled: Filled, database: str) -> Iterator[str]:
    assert filled.consumer
    with ApiServer(server.url, front=Console, db=database) as api:
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


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.template], ids=lambda page: page.show.__name__
)
def test_a_page_is_whole_in_light_and_dark_wide_and_on_a_phone(
    tab: Tab, plain_tab: Tab, filled: Filled, page: ConsolePage
) -> None:
    """It asks nobody else, runs no code of a producer, and axe finds nothing serious in it."""
    path = path_of(page.path, filled)
    if page.path == "/ick":
        path += f"?key={ICK}"
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


def test_charts_can_be_drawn_in_a_browser_whose_language_is_not_a_language_tag(
    chromium: Browser, address: str
) -> None:
    tab = Tab(chromium, address)
    tab.page.add_init_script(
        "Object.defineProperty(navigator, 'language', {value: 'en-US@posix', configurable: true})"
    )
    tab.open("/console")
    assert tab.page.evaluate("typeof uPlot") == "function"
    assert tab.faults == []
    tab.close()


def test_keys_search_go_load_again_and_list_themselves(tab: Tab) -> None:
    keyboard = tab.page.keyboard
    tab.open("/console")
    keyboard.type("gs")
    tab.page.wait_for_url("**/console/streams")
    keyboard.press("/")
    assert tab.page.evaluate("document.activeElement.name") == "q"
    keyboard.type("gq?")
    assert tab.page.url.endswith("/streams"), "what is typed into a field is text"
    tab.page.evaluate("() => { document.activeElement.blur(); window.stays = true }")
    with tab.page.expect_navigation():
        keyboard.press("r")
    assert tab.page.evaluate("() => window.stays") is None
    keyboard.press("?")
    listed = tab.page.locator("dialog[open]").inner_text()
    assert all(word in listed for word, _, _ in NAVIGATION)
    keyboard.press("Escape")
    tab.page.locator("dialog").wait_for(state="hidden")


def test_each_key_of_the_navigation_has_one_place() -> None:
    keys = [key for _, _, key in NAVIGATION]
    assert len(set(keys)) == len(keys)
    assert {path for _, path, _ in NAVIGATION} <= {page.path for page in PAGES}


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "none"])
def test_the_navigation_of_a_phone_is_behind_one_button(
    tab: Tab, plain_tab: Tab, scripts: bool
) -> None:
    used = tab if scripts else plain_tab
    used.page.set_viewport_size(PHONE)
    used.open("/console")
    nav = used.page.locator("header nav")
    assert not nav.is_visible()
    used.page.locator("#menu").focus()
    used.page.keyboard.press("Space")
    nav.locator("a", has_text="Queues").click()
    used.page.wait_for_selector("h1:text('Queues')")
    assert urlsplit(used.page.url).path == "/console/queues"
    used.page.set_viewport_size(WIDE)


def test_a_chosen_theme_stays_and_nothing_moves_for_who_wants_no_motion(tab: Tab) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    tab.page.emulate_media(color_scheme="light", reduced_motion="reduce")
    tab.open("/console")
    light = tab.page.evaluate(back)
    while "dark" not in tab.page.locator("#theme").inner_text():
        tab.page.locator("#theme").click()
    assert tab.page.evaluate(back) != light
    tab.open("/console/streams")
    assert tab.page.evaluate(back) != light
    tab.page.evaluate("localStorage.clear()")
    moving = """() => [...document.querySelectorAll("*")].filter((one) => {
        const style = getComputedStyle(one);
        return style.animationName !== "none" || style.transitionDuration !== "0s";
    }).length"""
    assert tab.page.evaluate(moving) == 0
    tab.page.emulate_media(reduced_motion="no-preference")
