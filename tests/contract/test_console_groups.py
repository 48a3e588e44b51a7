"""A group on its page: paused, settled by hand, moved with a bill; and what it missed is told."""

from __future__ import annotations

import html
import secrets
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

import headwater
from headwater import Headwater
from headwater.serve.console.links import group_link
from headwater.serve.console.service import Console
from tests.support.api import ApiClient, ApiServer
from tests.support.console import send
from tests.support.stores import Stores


@pytest.fixture(scope="module")
def hw(stores: Stores) -> Iterator[Headwater]:
    with headwater.connect(stores.url("plain")) as hw:
        yield hw


@pytest.fixture(scope="module")
def browser(stores: Stores) -> Iterator[ApiClient]:
    with ApiServer(stores.url("plain"), front=Console) as api:
        client = api.client()
        yield client
        client.close()


@pytest.fixture
def group(hw: Headwater) -> headwater.Group:
    stream = hw.stream(f"moved-{secrets.token_hex(4)}")
    stream.write_many([("t", b"v")] * 30)
    group = stream.group("mail")
    group.ack(group.read(20, ack_ms=60_000)[:10])
    return group


def shown(browser: ApiClient, group: headwater.Group) -> str:
    found = browser.get("/console" + group_link(group.stream, group.name))
    return html.unescape(found.body.decode())


def bill(browser: ApiClient, **fields: object) -> str:
    found = browser.get("/console/act?" + urlencode(fields))
    return html.unescape(found.body.decode())


def test_a_group_is_paused_and_resumed_by_a_button(
    browser: ApiClient, group: headwater.Group
) -> None:
    asked = {"do": "group-state", "stream": group.stream, "group": "mail"}
    assert "10 messages are new, 10 pending" in bill(browser, **asked)
    assert send(browser, "/console/act", **asked).status == 303
    assert group.info().paused
    assert "paused</span>" in shown(browser, group)
    assert f"headwater stream resume {group.stream} mail" in bill(browser, **asked)
    assert send(browser, "/console/act", **asked).status == 303
    assert not group.info().paused


def test_pending_messages_are_skipped_and_returned_by_an_administrator(
    browser: ApiClient, group: headwater.Group
) -> None:
    asked = {"do": "pending", "stream": group.stream, "group": "mail"}
    skip: dict[str, Any] = {**asked, "action": "skip", "first": 5, "last": 14}
    assert "4 messages are pending there" in bill(browser, **skip)
    assert group.info().pending == 10, "a bill changes nothing"
    assert send(browser, "/console/act", **skip).status == 303
    assert group.info().pending == 6
    assert send(browser, "/console/act", **{**skip, "action": "return", "last": 16}).status == 303
    assert group.info().due == 2
    wrong = browser.get("/console/act?" + urlencode({**skip, "first": 9, "last": 8}))
    assert wrong.status == 400


def test_a_seek_says_how_long_it_takes(browser: ApiClient, group: headwater.Group) -> None:
    asked = {"do": "seek", "stream": group.stream, "group": "mail"}
    back = bill(browser, **asked, to=1)
    assert "delivers 20 messages again" in back
    assert "is unknown: no history of the group's rate is recorded" in back
    assert "The group is then up to date" in bill(browser, **asked, to="last")


def test_a_seek_says_which_pending_messages_it_delivers_again_and_which_it_drops(
    browser: ApiClient, group: headwater.Group
) -> None:
    asked = {"do": "seek", "stream": group.stream, "group": "mail"}
    # Of 11 - 20, which are pending, it goes back to 16.
    part = bill(browser, **asked, to=16)
    assert "delivers 5 messages again" in part
    assert "5 of them are pending now and become new" in part
    assert "drops 5 pending messages before that offset" in part
    whole = bill(browser, **asked, to=1)
    assert "10 of them are pending now" in whole
    assert "drops" not in whole
    assert "drops 10 pending messages" in bill(browser, **asked, to="last")
    assert send(browser, "/console/act", **asked, to=16).status == 303
    assert [one.offset for one in group.read(30, ack_ms=60_000)] == list(range(16, 31))


def test_a_group_is_sought_by_steps_and_by_times(
    browser: ApiClient, group: headwater.Group
) -> None:
    asked = {"do": "seek", "stream": group.stream, "group": "mail"}
    assert "to 11<" in bill(browser, **asked, to="-10")
    assert "to 23<" in bill(browser, **asked, to="+2")
    assert "to 1<" in bill(browser, **asked, to="−1,000")
    assert "to 1<" in bill(browser, **asked, to="1h")
    assert "to 31<" in bill(browser, **asked, to="2100-01-01T00:00")
    steps = bill(browser, **asked, to="-10")
    # Its button means the same when the group has moved on.
    assert '<input type="hidden" name="to" value="11">' in steps
    wrong = bill(browser, **asked, to="yesterday")
    assert "'yesterday' is no place in a stream; give an offset" in wrong
    page = shown(browser, group)
    for link in ("to=first", "to=-1000", "to=1h", "to=1d", "to=last"):
        assert link in page


def test_what_was_missed_is_told_with_who_evicted_it(
    browser: ApiClient, group: headwater.Group
) -> None:
    evicted = send(browser, "/console/act", do="evict", stream=group.stream, up_to=25)
    assert evicted.status == 303
    group.read(1, ack_ms=60_000)
    page = shown(browser, group)
    assert "Missed:" in page
    assert f"POST /v1/streams/{group.stream}/evict" in page
    assert "everybody" in page


def test_the_first_ranges_that_are_pending_are_shown_and_all_on_request(
    browser: ApiClient, hw: Headwater
) -> None:
    stream = hw.stream(f"console-{secrets.token_hex(4)}")
    stream.write_many([("t", b"x")] * 40)
    group = stream.group("g")
    group.read(40, ack_ms=60_000)
    group.ack(*range(1, 41, 2))
    path = f"/console/streams/{stream.name}/groups/g"
    page = browser.get(path).body.decode()
    assert "10 more rows" in page
    assert "in 20 ranges" in page
    assert "more rows" not in browser.get(f"{path}?pending=all").body.decode()
