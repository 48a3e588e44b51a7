"""Timelines over HTTP are those of the farm, for those who may write or read their keys."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.kernel.declaring import Scope
from headwater.serve.tokens import TokenFile, add_token
from headwater.timeline import Farm
from tests.support.api import ApiClient, ApiServer
from tests.support.farms import DEAD, one_each, replicas
from tests.support.servers import Server
from tests.support.stores import Stores

WRITER, READER = {Scope.WRITE: ["mine-*"]}, {Scope.READ: ["mine-*"]}


@pytest.fixture(scope="module")
def farm_urls() -> Iterator[str]:
    with Server() as server:
        yield one_each(replicas(server, 2))


@pytest.fixture(scope="module")
def api(stores: Stores, farm_urls: str) -> Iterator[ApiServer]:
    with ApiServer(stores.url("plain"), farm=farm_urls) as server:
        yield server


@pytest.fixture
def client(api: ApiServer) -> Iterator[ApiClient]:
    client = api.client()
    yield client
    client.close()


@pytest.fixture
def key() -> str:
    return f"mine-{secrets.token_hex(4)}"


def test_what_is_inserted_is_selected_newest_first_and_deleted(
    client: ApiClient, key: str, farm_urls: str
) -> None:
    raw = base64.b64encode(b"\xff").decode()
    records = [{"key": key, "score": score, "member": f"m{score}"} for score in (1, 3, 2)]
    odd = {"key": key, "score": 0.5, "member": raw, "member_encoding": "base64"}
    written = client.post("/v1/timelines", {"insert": [*records, odd]})
    assert (written.status, written.body["inserted"]["applied"]) == (200, 4)
    found = client.get(f"/v1/timelines/{key}").body
    assert [record["member"] for record in found["records"]] == ["m3", "m2", "m1", raw]
    assert found["failures"] == []
    with Farm.open(farm_urls) as farm:
        assert [record.member for record in farm.select([key])[key]][:3] == ["m3", "m2", "m1"]
    second = client.get(f"/v1/timelines/{key}?offset=1&limit=1").body["records"]
    assert [record["member"] for record in second] == ["m2"]
    behind = client.get(f"/v1/timelines/{key}?start={second[0]['cursor']}&limit=1").body["records"]
    assert [record["member"] for record in behind] == ["m1"]
    assert client.get(f"/v1/timelines/{key}?offset=1&start=x").status == 400
    gone = client.post("/v1/timelines", {"delete": [{"key": key, "score": 4, "member": "m3"}]})
    assert gone.body["deleted"]["applied"] == 1
    score = client.get(f"/v1/timelines/{key}/score?member=m3").body
    assert (score["score"], score["live"]) == (4, False)
    assert client.get(f"/v1/timelines/{key}/score?member=m2").body["live"] is True
    assert client.get(f"/v1/timelines/{key}/score?member=m9").body["score"] is None


@pytest.mark.parametrize(
    "record",
    [
        {"score": 1, "member": "m", "member_encoding": "base64"},
        {"score": 2**60 + 1, "member": "m"},
        {"score": "1", "member": "m"},
        {"score": 1},
    ],
)
def test_what_no_timeline_holds_is_refused(client: ApiClient, key: str, record: object) -> None:
    assert isinstance(record, dict)
    assert client.post("/v1/timelines", {"insert": [{"key": key, **record}]}).status == 400
    assert client.get(f"/v1/timelines/{key}").body["records"] == []


def test_a_token_writes_and_reads_only_its_own_timelines(
    stores: Stores, farm_urls: str, key: str, tmp_path: Path
) -> None:
    path = tmp_path / "tokens.json"
    tokens = {name: add_token(path, name, may) for name, may in (("w", WRITER), ("r", READER))}
    mine = {"key": key, "score": 1, "member": "m"}
    with ApiServer(stores.url("plain"), TokenFile(path), farm=farm_urls) as api:
        writer, reader = api.client(tokens["w"]), api.client(tokens["r"])
        assert writer.post("/v1/timelines", {"insert": [mine]}).status == 200
        for verb in ("insert", "delete"):
            other = {"insert": [mine], verb: [mine, {**mine, "key": "yours"}]}
            assert writer.post("/v1/timelines", other).status == 403
        assert reader.post("/v1/timelines", {"insert": [mine]}).status == 403
        assert reader.get(f"/v1/timelines/{key}").status == 200
        assert reader.get("/v1/timelines/yours").status == 403
        assert reader.get("/v1/timelines").status == 403
        writer.close()
        reader.close()


def test_a_farm_shows_its_instances_and_answers_with_what_is_left_of_it(
    stores: Stores, farm_urls: str, key: str
) -> None:
    with ApiServer(stores.url("plain"), farm=f"{farm_urls};{DEAD}") as api:
        client = api.client()
        assert client.post(
            "/v1/timelines", {"insert": [{"key": key, "score": 1, "member": "m"}]}
        ).body["inserted"]["applied"]
        assert [one["up"] for one in client.get("/v1/timelines").body["instances"]] == [
            True,
            True,
            False,
        ]
        client.close()
    with ApiServer(stores.url("plain"), farm=DEAD) as api:
        client = api.client()
        refused = client.post(
            "/v1/timelines", {"insert": [{"key": key, "score": 1, "member": "m"}]}
        )
        assert (refused.status, refused.body["title"]) == (504, "QuorumFailed")
        unread = client.get(f"/v1/timelines/{key}")
        assert (unread.status, unread.body["title"]) == (503, "AllReplicasFailed")
        client.close()


def test_a_server_without_a_farm_says_how_to_give_it_one(stores: Stores) -> None:
    with ApiServer(stores.url("plain")) as api:
        client = api.client()
        for answer in (client.get("/v1/timelines/k"), client.post("/v1/timelines", {})):
            assert (answer.status, "--farm" in answer.body["detail"]) == (404, True)
        client.close()


def test_a_page_of_large_members_ends_at_4_mib_and_the_next_goes_on_by_rank(
    client: ApiClient, key: str, farm_urls: str
) -> None:
    size = 512 << 10
    with Farm.open(farm_urls) as farm:
        farm.insert([(key, n, f"{n:02}" + "z" * size) for n in range(40)])
        farm.insert([(f"{key}-small", n, f"{n:04}") for n in range(1000)])
    found: list[str] = []
    path = f"/v1/timelines/{key}?limit=100&offset="
    while records := client.get(f"{path}{len(found)}").body["records"]:
        assert len(records) <= 8
        found += [record["member"][:2] for record in records]
    assert found == [f"{n:02}" for n in reversed(range(40))]
    whole = client.get(f"/v1/timelines/{key}-small?limit=700&offset=200").body["records"]
    assert [record["member"] for record in whole] == [f"{n:04}" for n in range(799, 99, -1)]
