"""The console shows dirty lists: what waits and for how long, who holds it, how much is folded."""

from __future__ import annotations

import html
import re
import secrets
import time
from collections.abc import Iterator

import pytest

import headwater
from headwater import Headwater
from headwater.metrics.exposition import Page
from headwater.metrics.sampler import add_channel
from headwater.serve.console.pages.queues import score_time
from headwater.serve.console.service import Console
from tests.support.api import ApiClient, ApiServer
from tests.support.channels import facts
from tests.support.console import send
from tests.support.stores import Stores


@pytest.fixture(scope="module")
def hw(stores: Stores) -> Iterator[Headwater]:
    with headwater.connect(stores.url("plain")) as hw:
        yield hw


@pytest.fixture(scope="module")
def client(stores: Stores) -> Iterator[ApiClient]:
    with ApiServer(stores.url("plain"), front=Console) as api:
        client = api.client()
        yield client
        client.close()


@pytest.fixture
def name() -> str:
    return f"dirty-{secrets.token_hex(4)}"


def shown(client: ApiClient, path: str) -> str:
    found = client.get(path)
    assert found.status == 200, found.body
    return re.sub(r"<[^>]+>", " ", html.unescape(found.body.decode()))


def test_adds_of_members_that_wait_are_counted_as_folded(hw: Headwater, name: str) -> None:
    channel = hw.ick_channel(name, shards=2)
    assert channel.stats() is None
    for _ in range(4):
        channel.add({"a": 1, "b": 2})
    channel.add({"later": 3}, not_before=2**41)
    batch = channel.reserve(1)
    channel.add(dict.fromkeys(batch.members, 5))
    found = facts(channel)
    assert (found.added, found.entered, found.folding) == (10, 4, 2.5)
    page = Page()
    add_channel(page, "s", found)
    assert re.search(r"^headwater_ick_added_total\{.*\} 10", page.text(), re.MULTILINE)
    assert re.search(r"^headwater_ick_folded_total\{.*\} 6", page.text(), re.MULTILINE)
    channel.commit(batch)
    channel.delete()
    channel.add({"a": 1})
    assert (facts(channel).added, facts(channel).folding) == (1, 1.0), "a new channel counts anew"


def test_a_channel_shows_shards_leases_and_folding(
    hw: Headwater, client: ApiClient, name: str
) -> None:
    assert client.get(f"/console/lists/{name}").status == 404
    channel = hw.ick_channel(name, shards=1, consumer="indexer-7", ack_ms=600_000)
    for _ in range(3):
        channel.add({"ride-1": 5, "ride-2": 6})
    batch = channel.reserve(1)
    listed = shown(client, f"/console/lists?q={name}")
    assert re.search(rf"{name}\s+1\s+1\s+0\s+1\s+1\s+[\d.]+ m?s\s+6\s+3.0 : 1", listed)
    page = shown(client, f"/console/lists/{name}")
    assert re.search(rf"indexer-7\s+{batch.token:,}\s+in (10|9|600|59\d) (min|s)", page)
    assert re.search(r"ride-1\s+5\s+reserved\s+0", page)
    members = client.get(f"/v1/channels/{name}/members?count=1").body["members"]
    assert len(members) == 1
    body = client.get(f"/v1/channels/{name}").body
    assert (body["added"], body["entered"], body["folding"]) == (6, 2, 3.0)
    channel.commit(batch)


def test_a_channel_is_resharded_and_deleted_with_a_bill(
    hw: Headwater, client: ApiClient, name: str
) -> None:
    channel = hw.ick_channel(name, shards=2)
    channel.add({f"m{n}": n for n in range(5)})
    bill = shown(client, f"/console/act?do=reshard&channel={name}&shards=3")
    assert "The channel changes from 2 to 3 shards" in bill
    assert "5 waiting members move" in bill
    assert f"headwater ick channel shards {name} 3" in bill
    assert send(client, "/console/act", do="reshard", channel=name, shards=3).status == 303
    assert (len(facts(channel).shards), facts(channel).ready) == (3, 5)
    refused = client.get(f"/console/act?do=reshard&channel={name}&shards=0")
    assert refused.status == 400
    assert client.ask("PUT", f"/v1/channels/none-{name}/layout", {"shards": 2}).status == 404
    assert "5 ready" in shown(client, f"/console/act?do=delete-channel&channel={name}")
    assert send(client, "/console/act", do="delete-channel", channel=name).status == 303
    assert channel.stats() is None


def test_an_ick_shows_its_scores_and_reads_them_as_times_only_where_they_can_be(
    hw: Headwater, client: ApiClient, name: str
) -> None:
    assert "There is no Ick under this key" in shown(client, f"/console/ick?key={name}")
    hw.ick(name).add({"a": time.time() - 90, "b": 7})
    hw.ick(name).reserve(1)
    page = shown(client, f"/console/ick?key={name}")
    assert re.search(r"pset\s+dirty\s+1\s+1,\d{3},\d{3},\d{3}|pset\s+dirty\s+1\s+1\d{9}", page)
    assert re.search(r"(90|9\d) s ago\s+to", page)
    assert re.search(r"cset\s+reserved\s+1\s+7\s+7\s+not times", page)
    assert len(client.get(f"/v1/icks/{name}/members").body["members"]) == 2
    assert send(client, "/console/act", do="delete-ick", key=name).status == 303
    assert hw.ick(name).stats() is None


def test_a_score_is_a_time_in_seconds_or_in_ms_or_none() -> None:
    now = time.time()
    assert score_time(now) == pytest.approx(now * 1000, abs=1)
    assert score_time(now * 1000) == pytest.approx(now * 1000, abs=1)
    assert [score_time(score) for score in (0, 17, -1e9, 1e18, float("inf"))] == [None] * 5
