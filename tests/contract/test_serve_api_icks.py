"""Dirty lists over HTTP: a member is there once, and reserved again unless committed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.api import ApiClient, ApiServer
from tests.support.stores import Stores


@pytest.fixture(scope="module")
def client(stores: Stores) -> Iterator[ApiClient]:
    with ApiServer(stores.url("plain")) as server:
        client = server.client()
        yield client
        client.close()


@pytest.fixture
def name() -> str:
    return f"i-{secrets.token_hex(4)}"


def done(client: ApiClient, path: str, **body: Any) -> Any:
    answer = client.post(path, body)
    assert answer.status == 200, answer.body
    return answer.body


def test_members_of_an_ick_are_added_reserved_and_committed(client: ApiClient, name: str) -> None:
    path = f"/v1/icks/{name}"
    assert client.get(path).body["title"] == "UnknownIck"
    dirty = [
        {"member": "b", "score": 2},
        {"member": "a", "score": 1},
        {"member": "b", "score": 3},
        {"member": "/w==", "encoding": "base64", "score": 4},
    ]
    assert done(client, f"{path}/add", members=dirty)["new"] == 3
    taken = done(client, f"{path}/reserve", count=2)["members"]
    assert [(one["member"], one["score"]) for one in taken] == [("a", 1), ("b", 2)]
    rest = done(client, f"{path}/exchange", count=2, members=[{"member": "a"}])["members"]
    assert [one["member"] for one in rest] == ["b", "/w=="], "what is reserved comes again"
    clean = [{"member": "b"}, {"member": "/w==", "encoding": "base64"}]
    assert done(client, f"{path}/commit", members=clean)["committed"] == 2
    assert client.get(path).body["total_size"] == 0
    bad = client.post(
        f"{path}/add", {"members": [{"member": "!", "encoding": "base64", "score": 1}]}
    )
    assert bad.status == 400
    assert client.ask("DELETE", path).status == 200
    assert client.ask("DELETE", path).status == 404


def test_a_channel_hands_members_to_one_consumer(client: ApiClient, name: str) -> None:
    path = f"/v1/channels/{name}"
    assert client.get(path).status == 404
    first = done(client, f"{path}/reserve", count=5, consumer="me", shards=1)
    assert first["reserved"] == []
    done(client, f"{path}/add", members=[{"member": "a", "score": 1}, {"member": "b", "score": 2}])
    batch = done(client, f"{path}/reserve", count=5, consumer="me")
    assert [one["member"] for one in batch["reserved"]] == ["a", "b"]
    assert done(client, f"{path}/reserve", count=5, consumer="you")["reserved"] == []
    words = {"batch": batch}
    other = {"batch": {**batch, "channel": "other"}}
    assert client.post(f"{path}/commit", other).status == 400
    spoilt = {"member": "!", "encoding": "base64", "score": 1, "generation": 1}
    other = {"batch": {**batch, "reserved": [spoilt]}}
    assert client.post(f"{path}/commit", other).status == 400
    held = done(client, f"{path}/renew", **words, ack_ms=600_000)["until_ms"]
    assert held > batch["until_ms"] + 500_000
    part = {"members": [{"member": "a"}], "ack_ms": 600_000}
    assert done(client, f"{path}/commit", **words, **part)["committed"] == 1
    (shard,) = client.get(path).body["shards"]
    assert shard["lease"]["until_ms"] >= held, "what is left stays leased for as long"
    assert done(client, f"{path}/release", **words)["released"] == 1
    again = done(client, f"{path}/reserve", count=5, consumer="me")
    assert [one["member"] for one in again["reserved"]] == ["b"]
    assert client.get(path).body["reserved"] == 1
    assert name in client.get(f"/v1/channels?prefix={name}").body["channels"]
    assert client.ask("DELETE", path).body["deleted"]
    assert client.ask("DELETE", path).status == 404
