"""The page of a queue says how long messages waited, and what comes next of what is held."""

from __future__ import annotations

import html
import re
import secrets

import headwater
from headwater import testing
from headwater.serve.console.pages.queues import wait_spans
from headwater.serve.console.render import bound
from headwater.serve.console.service import Console
from tests.support.api import ApiClient, ApiServer
from tests.support.console import send
from tests.support.stores import Stores

HOUR_MS = 3_600_000


def shown(client: ApiClient, path: str) -> str:
    found = client.get(path)
    assert found.status == 200, found.body
    text = re.sub(r"<[^>]+>", " ", html.unescape(found.body.decode()))
    return re.sub(r"\s+", " ", text)


def test_waits_of_a_queue_are_shown_by_share_and_by_span() -> None:
    with testing.store() as hw:
        hw.clock.advance(1)
        queue = hw.queue("jobs")
        queue.push_many([b"x"] * 90)
        hw.clock.advance(20_000)
        queue.pop(90)
        queue.push_many([b"x"] * 10)
        hw.clock.advance(200_000)
        queue.pop(10)
        stats = queue.stats()
        spans = wait_spans(stats)
        assert [(one.bound_ms, one.messages) for one in spans] == [
            (30_000, 90),
            (60_000, 0),
            (300_000, 10),
        ]
        assert [round(one.share, 2) for one in spans] == [0.9, 0, 0.1]
        with ApiServer(hw.url, front=Console) as api:
            client = api.client()
            page = shown(client, "/console/queues/jobs")
            listed = shown(client, "/console/queues")
            client.close()
    assert "median wait up to 30 s" in page
    assert "p95 wait up to 5 min" in page
    assert "p99 wait up to 5 min" in page
    assert "up to 5 min 10 10.0%" in page
    assert "100 messages counted" in page
    assert "up to 30 s up to 5 min" in listed


def test_what_a_queue_holds_says_when_it_is_due_and_is_released_or_promoted(
    stores: Stores,
) -> None:
    url = stores.url("plain")
    with headwater.connect(url) as hw, ApiServer(url, front=Console) as api:
        client = api.client()
        queue = hw.queue(f"held-{secrets.token_hex(4)}")
        here = f"/console/queues/{queue.name}"
        queue.push(b"one")
        empty = shown(client, f"{here}?state=unacked")
        assert "No message is with a consumer." in empty
        assert f"headwater queue pop {queue.name} --ack-ms 30s" in empty
        assert "Nothing has been popped yet" in empty
        queue.pop(1, ack_ms=HOUR_MS)
        queue.push(b"two", delay_ms=2 * HOUR_MS)
        page = shown(client, here)
        assert re.search(r"with consumers 1 first deadline in (60|59) min", page)
        assert re.search(r"delayed 1 first in (2 h|120 min|119 min)", page)
        for state, action in (("unacked", "release"), ("delayed", "promote")):
            place = queue.peek(1, state=state)[0].place  # type: ignore[arg-type]
            done = send(client, "/console/act", do=action, queue=queue.name, place=place)
            assert done.status == 303, done.body
        assert queue.stats().ready == 2
        client.close()


def test_a_bound_is_spelled_in_its_unit() -> None:
    spelled = [bound(ms) for ms in (1, 500, 1000, 30_000, 300_000, HOUR_MS, 24 * HOUR_MS, None)]
    assert spelled == [
        *("up to 1 ms", "up to 500 ms", "up to 1 s", "up to 30 s", "up to 5 min", "up to 1 h"),
        *("up to 1 d", "over 1 d"),
    ]
