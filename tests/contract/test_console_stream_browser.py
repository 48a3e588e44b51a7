"""A ruler is zoomed, pointed at and selected on, and a tail followed, in a real browser."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import headwater
from headwater import Headwater, Stream
from headwater.serve.console.service import Console
from tests.support.api import ApiServer
from tests.support.browser import Tab, open_browser
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
def stream(hw: Headwater) -> Stream:
    stream = hw.stream(f"ruler-{secrets.token_hex(4)}")
    stream.write_many([("t", b"x")] * 10_000)
    stream.group("mail").read(4000, ack_ms=600_000)
    return stream


@pytest.fixture(scope="module")
def tab(chromium: Browser, server: Server) -> Iterator[Tab]:
    with ApiServer(server.url, front=Console) as api:
        tab = Tab(chromium, f"http://127.0.0.1:{api.port}")
        yield tab
        tab.close()
        assert not tab.faults


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
