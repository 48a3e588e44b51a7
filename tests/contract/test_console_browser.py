"""The console in a real browser: for eyes, keys and screen readers, on servers of every kind."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa
from starlette.applications import Starlette
from starlette.routing import Mount

import headwater
from headwater import Headwater, Stream
from headwater.outbox import Outbox
from headwater.serve import Grant, Scope, asgi_app
from headwater.serve.console.calls import ConsolePage
from headwater.serve.console.pages.table import NAVIGATION, PAGES
from headwater.serve.console.service import Console
from headwater.serve.tokens import TokenFile, add_token
from tests.support.api import ApiServer
from tests.support.asgi import under_uvicorn
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


# Rulers and tails


@pytest.fixture(scope="module")
def stream(hw: Headwater) -> Stream:
    stream = hw.stream(f"ruler-{secrets.token_hex(4)}")
    stream.write_many([("t", b"x")] * 10_000)
    stream.group("mail").read(4000, ack_ms=600_000)
    return stream


RENEWED = "const at = document.getElementById('stream'); at.outerHTML = at.outerHTML"


def drag(
    tab: Tab, start: float, end: float, *, select: bool = False, renewed: bool = False
) -> None:
    """Drag over the row of the group, between two shares of its width.

    It is ``renewed`` meanwhile, as the page renews itself every few seconds.
    """
    box = tab.page.locator(".ruler .row svg.strip").nth(2).bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    if select:
        tab.page.keyboard.down("Shift")
    tab.page.mouse.move(box["x"] + box["width"] * start, middle)
    tab.page.mouse.down()
    tab.page.mouse.move(box["x"] + box["width"] * (start + end) / 2, middle)
    if renewed:
        tab.page.evaluate(RENEWED)
    tab.page.mouse.move(box["x"] + box["width"] * end, middle)
    tab.page.mouse.up()
    if select:
        tab.page.keyboard.up("Shift")


def window(tab: Tab) -> tuple[int, int]:
    """Return what the ruler shows; both ends at one moment."""
    first, last = tab.page.locator("[data-ruler]").evaluate(
        "ruler => [ruler.dataset.first, ruler.dataset.last]"
    )
    return int(first), int(last)


def wait_for_window(tab: Tab, before: tuple[int, int]) -> tuple[int, int]:
    tab.page.wait_for_function(
        "old => { const at = document.querySelector('[data-ruler]').dataset;"
        " return Number(at.first) !== old[0] || Number(at.last) !== old[1] }",
        arg=list(before),
    )
    return window(tab)


def test_a_ruler_is_zoomed_by_dragging_by_the_wheel_and_by_keys(tab: Tab, stream: Stream) -> None:
    tab.open(f"/console/streams/{stream.name}")
    assert window(tab) == (1, 10_000)
    drag(tab, 0.25, 0.5)
    low, high = wait_for_window(tab, (1, 10_000))
    assert low == pytest.approx(2500, abs=60)
    assert high == pytest.approx(5000, abs=60)
    # An address to keep.
    tab.page.wait_for_url(re.compile(f"first={low}&last={high}"))
    tab.page.locator("[data-ruler]").focus()
    tab.page.keyboard.press("End")
    assert wait_for_window(tab, (low, high))[1] == 10_000
    before = window(tab)
    tab.page.locator(".ruler .row svg.strip").nth(2).hover()
    tab.page.keyboard.down("Shift")
    tab.page.mouse.wheel(0, -100)
    tab.page.keyboard.up("Shift")
    closer = wait_for_window(tab, before)
    assert closer[1] - closer[0] < before[1] - before[0]
    tab.page.locator("a[data-zoom]", has_text="all").click()
    assert wait_for_window(tab, closer) == (1, 10_000)


@pytest.mark.parametrize("select", [False, True])
def test_a_drag_ends_where_it_ends_although_the_page_is_renewed_meanwhile(
    tab: Tab, stream: Stream, select: bool
) -> None:
    tab.open(f"/console/streams/{stream.name}")
    drag(tab, 0.25, 0.5, select=select, renewed=True)
    if select:
        found = tab.page.locator(".selection a", has_text="Zoom").get_attribute("href") or ""
        low, high = map(int, re.findall(r"=(\d+)", found))
    else:
        low, high = wait_for_window(tab, (1, 10_000))
    assert low == pytest.approx(2500, abs=60)
    assert high == pytest.approx(5000, abs=60)


def test_a_ruler_says_what_is_pointed_at_and_a_click_reads_there(tab: Tab, stream: Stream) -> None:
    tab.open(f"/console/streams/{stream.name}")
    strip = tab.page.locator(".ruler .row svg.strip").nth(2)
    box = strip.bounding_box()
    assert box is not None
    strip.hover(position={"x": box["width"] / 10, "y": box["height"] / 2})
    said = tab.page.locator(".pointed").inner_text()
    assert re.search(r"^(999|1,00\d|99\d) · about \d{4}-.* UTC · mail · .*pending, attempt 1", said)
    strip.click(position={"x": box["width"] / 10, "y": box["height"] / 2})
    tab.page.wait_for_url(re.compile(r"\?at=\d+#messages"))
    at = int(re.findall(r"at=(\d+)", tab.page.url)[0])
    assert at == pytest.approx(1000, abs=10)


def test_a_range_that_is_selected_can_be_replayed_exported_or_sought(
    tab: Tab, stream: Stream
) -> None:
    tab.open(f"/console/streams/{stream.name}")
    drag(tab, 0.6, 0.7, select=True)
    box = tab.page.locator(".selection")
    box.wait_for()
    links = {one.inner_text(): one.get_attribute("href") for one in box.locator("a").all()}
    assert set(links) == {"Read", "Zoom", "Replay", "Export", "Seek mail"}
    box.locator("a", has_text="Replay").click()
    tab.page.wait_for_selector("input[name=first]")
    first = int(tab.page.locator("input[name=first]").input_value())
    assert first == pytest.approx(6000, abs=60)


def test_counts_and_ages_of_an_open_page_stay_true(tab: Tab, hw: Headwater) -> None:
    stream = hw.stream(f"grows-{secrets.token_hex(4)}")
    stream.write("t", b"x")
    tab.open(f"/console/streams/{stream.name}")
    age = tab.page.locator("td[data-label=Time] time").inner_text()
    stream.write_many([("t", b"x")] * 41)
    # The list of messages is not renewed; what is said of the stream is.
    tab.page.locator("#stream-line", has_text="42 messages").wait_for()
    tab.page.wait_for_function(
        "old => document.querySelector('td[data-label=Time] time').textContent !== old", arg=age
    )


def test_a_long_name_and_a_hidden_character_leave_a_table_readable(tab: Tab, hw: Headwater) -> None:
    mark = secrets.token_hex(4)
    stream = hw.stream(mark + "L" * 190)
    stream.write("\u202eright\u200b" + "T" * 3000, b"first line\nsecond")
    for path in (f"/console/streams?q={mark}", f"/console/streams/{stream.name}"):
        tab.open(path)
        wider = tab.page.evaluate(
            "(table => table.scrollWidth - table.clientWidth)(document.querySelector('.table'))"
        )
        assert wider <= 0
    tag = tab.page.locator("td[data-label=Tag]").inner_text()
    assert tag.startswith(r"\u202eright\u200bTTT")
    assert tab.page.locator("td .kind").inner_text() == "text"
    tab.open(f"/console/streams/{stream.name}/tail")
    tab.page.wait_for_function(
        "() => document.getElementById('tail-state').textContent.startsWith('following')"
    )
    stream.write("\u202elive", b"x")
    row = tab.page.locator("#tail-rows tr").first
    row.locator("td", has_text=r"\u202elive").wait_for()


def test_a_tail_shows_what_is_written_and_pauses(tab: Tab, stream: Stream, hw: Headwater) -> None:
    name = f"tail-{secrets.token_hex(4)}"
    hw.stream(name).write("t", b"before")
    tab.open(f"/console/streams/{name}/tail")
    tab.page.wait_for_function(
        "() => document.getElementById('tail-state').textContent.startsWith('following')"
    )
    hw.stream(name).write("news", b"<b>now</b>")
    row = tab.page.locator("#tail-rows tr", has_text="<b>now</b>")
    row.wait_for()
    tab.page.locator("#pause").click()
    hw.stream(name).write("news", b"while paused")
    tab.page.locator("#pause").click()
    tab.page.locator("#tail-rows tr", has_text="while paused").wait_for()
    assert row.count() == 1
    tab.open(f"/console/streams/{stream.name}")


# Servers: one whose store dies, one inside an application, read-only ones, and with tokens


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
