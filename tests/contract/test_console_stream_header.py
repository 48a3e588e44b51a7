"""The header of a stream says how fast it grows, and what retention would do to it now."""

from __future__ import annotations

import html
import re
import secrets
from collections.abc import Iterator

import pytest

import headwater
from headwater import Headwater
from headwater.serve.console.service import Console
from tests.support.api import ApiClient, ApiServer
from tests.support.servers import until
from tests.support.stores import Stores


@pytest.fixture(scope="module")
def hw(stores: Stores) -> Iterator[Headwater]:
    with headwater.connect(stores.url("plain")) as hw:
        yield hw


@pytest.fixture(scope="module")
def browser(stores: Stores) -> Iterator[ApiClient]:
    with ApiServer(stores.url("plain"), front=Console) as api:
        yield api.client()


@pytest.fixture
def name() -> str:
    return f"header-{secrets.token_hex(4)}"


def line_of(browser: ApiClient, name: str) -> str:
    """Return the line under the name of a stream, as it is read."""
    page = html.unescape(browser.get(f"/console/streams/{name}").body.decode())
    found = re.search(r'id="stream-line">(.*?)</p>', page, re.DOTALL)
    assert found
    return re.sub(r"<[^>]*>", "", found[1])


def test_the_header_says_what_retention_would_evict_and_whom_it_would_pass(
    browser: ApiClient, hw: Headwater, name: str
) -> None:
    stream = hw.stream(name)
    stream.write_many([("t", b"x")] * 1000)
    assert line_of(browser, name).endswith("everything is kept")
    stream.retain(max_count=1000)
    assert line_of(browser, name).endswith("kept the newest 1,000: nothing to evict now")
    stream.write_many([("t", b"x")] * 500)
    first = stream.info().first
    until(lambda: "would evict 500 now, passes nobody" in line_of(browser, name))
    assert stream.info().first == first, "a forecast changes nothing"
    stream.retain(max_count=100)
    stream.group("mail", "last").read(0)
    stream.write_many([("t", b"x")] * 400)
    held = line_of(browser, name)
    assert "would evict 100 now, passes nobody; 300 wait for mail, which needs 1,501" in held
    stream.retain(max_count=100)
    kept = line_of(browser, name)
    assert "would evict nothing now; 300 wait for mail, which needs 1,501" in kept


def test_the_header_names_groups_that_retention_does_not_wait_for(
    browser: ApiClient, hw: Headwater, name: str
) -> None:
    stream = hw.stream(name)
    stream.write_many([("t", b"x")] * 100)
    stream.group("left", 51).read(0)
    stream.group("mail", 101).read(0)
    stream.retain(max_count=20, max_idle_ms=3_600_000)
    assert stream.info().first == 51
    # It was silent for longer by now.
    until(lambda: stream.retain(max_count=20, max_idle_ms=1).evicted == 30)
    assert stream.info().first == 81
    stream.write_many([("t", b"x")] * 80)
    stream.group("mail").read(0)
    found = until(lambda: "passes left by" in line_of(browser, name) and line_of(browser, name))
    assert "would evict 80 now, passes left by 80" in found


def test_the_header_says_how_many_messages_a_second_are_written(
    browser: ApiClient, hw: Headwater, name: str
) -> None:
    def rate() -> float:
        hw.stream(name).write_many([("t", b"x")] * 10)
        found = re.search(r"([\d,.]+)/s", line_of(browser, name))
        return float(found[1].replace(",", "")) if found else 0

    assert until(rate) > 0
