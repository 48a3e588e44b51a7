"""A replay by a server is shown by every process, is stopped, and goes on without a copy twice."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater
from headwater import Headwater
from headwater.kernel.declaring import Scope
from headwater.serve.tokens import TokenFile, add_token
from tests.support.api import ApiClient, ApiServer
from tests.support.servers import until
from tests.support.stores import Stores


@pytest.fixture(scope="module")
def hw(stores: Stores) -> Iterator[Headwater]:
    with headwater.connect(stores.url("plain")) as hw:
        yield hw


@pytest.fixture(scope="module")
def api(stores: Stores) -> Iterator[ApiServer]:
    with ApiServer(stores.url("plain")) as api:
        yield api


@pytest.fixture
def name() -> str:
    return f"replay-{secrets.token_hex(4)}"


def path_of(name: str) -> str:
    return f"/v1/streams/{name}/replays"


def write_slowly(hw: Headwater, name: str) -> None:
    """Write messages that took ten seconds each to come."""
    times = [1_000_000 + 10_000 * place for place in range(20)]
    values = [b"%d" % place for place in range(20)]
    hw.stream(name).append(pa.table({"tag": ["t"] * 20, "value": values, "time": times}))


def newest(client: ApiClient, name: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(path_of(name)).body["replays"][0]
    return found


def copies(hw: Headwater, name: str) -> list[bytes]:
    found = hw.stream(f"{name}-copy").read(1, 1000)
    return [message.value for message in found if message is not None]


def wait_for_copy(hw: Headwater, name: str, offset: int) -> None:
    assert hw.stream(f"{name}-copy").read(offset, 1, block_ms=30_000)


def test_a_replay_is_stopped_by_another_process_and_goes_on(
    stores: Stores, api: ApiServer, hw: Headwater, name: str
) -> None:
    write_slowly(hw, name)
    one, body = api.client(), {"into": f"{name}-copy", "speed": 1}
    begun = one.post(path_of(name), body)
    assert (begun.status, begun.body["state"]) == (202, "running")
    assert one.post(path_of(name), body).status == 409
    wait_for_copy(hw, name, 1)
    with ApiServer(stores.url("plain")) as other:
        two = other.client()
        assert newest(two, name)["state"] == "running"
        stopped = two.ask("DELETE", f"{path_of(name)}/{begun.body['replay']}")
        assert stopped.body["replays"][0]["state"] == "stopping"
        until(lambda: newest(two, name)["state"] != "stopping")
        ended = newest(two, name)
        assert ended["state"] == "stopped"
        assert 1 <= len(copies(hw, name)) < 20
        # The same range at another speed, under the same producer, goes on where it was.
        fast = body | {"speed": None, "producer": ended["producer"]}
        assert two.post(path_of(name), fast).status == 202
        wait_for_copy(hw, name, 20)
    assert copies(hw, name) == [b"%d" % place for place in range(20)]


def test_a_server_that_ends_hands_its_replay_over(stores: Stores, hw: Headwater, name: str) -> None:
    write_slowly(hw, name)
    body = {"into": f"{name}-copy", "speed": 10}
    with ApiServer(stores.url("plain")) as server:
        server.client().post(path_of(name), body)
        wait_for_copy(hw, name, 1)
    with ApiServer(stores.url("plain")) as server:
        client = server.client()
        wait_for_copy(hw, name, len(copies(hw, name)) + 1)
        going = newest(client, name)
        assert (going["state"], going["last"]) == ("running", 20)
        client.ask("DELETE", f"{path_of(name)}/{going['replay']}")
        until(lambda: newest(client, name)["state"] == "stopped")
    found = copies(hw, name)
    assert found == [b"%d" % place for place in range(len(found))], "nothing was copied twice"


def test_what_cannot_be_replayed_is_refused(api: ApiServer, hw: Headwater, name: str) -> None:
    client = api.client()
    assert client.post(path_of("never-written"), {"into": "x"}).status == 404
    hw.stream(name).write("t", b"1")
    for body in (
        {},
        {"into": name},
        {"into": "x", "first": 2, "last": 1},
        {"into": "x", "speed": 0},
    ):
        assert client.post(path_of(name), body).status == 400
    assert client.ask("DELETE", f"{path_of(name)}/none").status == 404


def test_a_replay_needs_the_right_to_write_its_target(
    stores: Stores, hw: Headwater, tmp_path: Path, name: str
) -> None:
    hw.stream(name).write("t", b"1")
    file = tmp_path / "tokens.json"
    token = add_token(file, "ops", {Scope.ADMIN: [name], Scope.READ: ["*"]})
    with ApiServer(stores.url("plain"), TokenFile(file)) as server:
        client = server.client(token)
        assert client.post(path_of(name), {"into": f"other-{name}"}).status == 403
        assert client.post(path_of(name), {"group": "g"}).status == 403
    assert not hw.stream(f"other-{name}").info().exists
