"""The outbox, its consumers and other readers over HTTP: what waits, and for whom."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import sqlalchemy as sa

import headwater
from headwater.errors import DatabaseUnreachable
from headwater.kernel.declaring import Scope
from headwater.outbox import Consumer, Outbox, Streamer
from headwater.serve.api.opening import ApiSettings
from headwater.serve.limits import HttpLimits
from headwater.serve.listening import ListenAddress
from headwater.serve.store_server import StoreServer
from headwater.serve.tokens import TokenFile, Tokens, add_token
from tests.support.api import ApiClient, ApiServer, messages_of, serving
from tests.support.consumers import create_tables, writes
from tests.support.farms import DEAD
from tests.support.stores import Stores


class Shop(NamedTuple):
    """A database with an outbox, its URL, and a client of the API that serves it."""

    engine: sa.Engine
    url: str
    client: ApiClient
    hw: headwater.Headwater

    def consumed(self, name: str, *streams: str) -> None:
        """Let a consumer handle what is there."""
        Consumer(name, list(streams), self.engine, self.hw, writes(name)).run_once()


@pytest.fixture(scope="module")
def shop(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    url = f"sqlite:///{tmp_path_factory.mktemp('shop') / 'app.db'}"
    engine = sa.create_engine(url)
    create_tables(engine)
    with (
        headwater.connect(stores.url("plain")) as hw,
        ApiServer(stores.url("plain"), db=url) as api,
    ):
        yield Shop(engine, url, api.client(), hw)
    engine.dispose()


@pytest.fixture
def name() -> str:
    return f"s-{secrets.token_hex(4)}"


def test_the_outbox_shows_what_waits_and_who_streams_it(shop: Shop, name: str) -> None:
    outbox = Outbox(shop.engine)
    with shop.engine.begin() as conn:
        outbox.stage_many(conn, name, [("t", b"1"), ("t", b"2")])
    waiting = shop.client.get("/v1/outbox").body
    assert (waiting["backlog"], waiting["exact"], waiting["streaming"]) == (2, True, False)
    assert waiting["oldest_ms"] >= 0
    metrics = shop.client.get("/metrics").body.decode()
    assert 'headwater_outbox_rows{database="' in metrics
    with Streamer(outbox, shop.hw) as streamer:
        assert streamer.run_once() == 2
        streamed = shop.client.get("/v1/outbox").body
    assert (streamed["backlog"], streamed["oldest_ms"]) == (0, None)
    assert streamed["batch"] == waiting["batch"] + 1


def test_a_consumer_is_shown_moved_forgotten_and_removed(shop: Shop, name: str) -> None:
    client, path = shop.client, f"/v1/consumers/c-{name}"
    client.post(messages_of(name), [{"value": str(n)} for n in range(5)])
    shop.consumed(f"c-{name}", name)
    (shown,) = client.get(path).body["consumers"]
    assert (shown["stream"], shown["next_offset"], shown["lag"]) == (name, 6, 0)
    listed = client.get("/v1/consumers").body["consumers"]
    assert f"c-{name}" in {one["consumer"] for one in listed}
    sought = client.post(f"{path}/seek", {"to": 3, "stream": name}).body
    assert sought == {"consumer": f"c-{name}", "next": {name: 3}}
    (behind,) = client.get(path).body["consumers"]
    assert (behind["lag"], 0 <= behind["lag_ms"] < 60_000) == (3, True)
    reader = f"/v1/readers/consumer%3Ac-{name}"
    assert client.get(reader).body["readers"][0]["stream"] == name
    assert client.post(f"{path}/forget", {}).body["streams"] == [name]
    assert client.get(reader).body["title"] == "UnknownReader"
    assert client.get(f"{path}/dead").body["letters"] == []
    assert client.ask("DELETE", path).body == {"consumer": f"c-{name}", "streams": [name]}
    assert client.get(path).body["title"] == "UnknownConsumer"
    notes = shop.hw.stream("hw.audit")
    said = [note for note in notes.read_from(1, 10_000).messages if name.encode() in note.value]
    assert sum(b'"done"' in note.value for note in said) == 3


def test_letters_are_shown_to_who_may_read_their_stream(
    shop: Shop, stores: Stores, name: str, tmp_path: Path
) -> None:
    def refuses(*_: object) -> None:
        raise ValueError("refused")

    shop.hw.stream(name).write("t", b"secret")
    Consumer(
        f"c-{name}", name, shop.engine, shop.hw, refuses, on_error="skip", attempts=1
    ).run_once()
    path = tmp_path / "tokens.json"
    wide = add_token(path, "wide", {Scope.READ: ["*"]})
    narrow = add_token(path, "narrow", {Scope.READ: ["c-*"]})
    with ApiServer(stores.url("plain"), TokenFile(path), db=shop.url) as api:
        seen = [
            api.client(token).get(f"/v1/consumers/c-{name}/dead").body["letters"]
            for token in (wide, narrow)
        ]
    assert [len(letters) for letters in seen] == [1, 0]


def test_a_reader_is_listed_and_forgotten_wherever_it_is_waited_for(shop: Shop, name: str) -> None:
    client = shop.client
    for place, stream in enumerate((f"{name}-a", f"{name}-b"), 1):
        client.post(messages_of(stream), [{"value": "x"}] * 3)
        client.ask("PUT", f"/v1/streams/{stream}/readers/r-{name}", {"to": place})
    own = client.get(f"/v1/readers/r-{name}").body["readers"]
    assert [(one["stream"], one["next"], one["lag"]) for one in own] == [
        (f"{name}-a", 1, 3),
        (f"{name}-b", 2, 2),
    ]
    assert all(0 <= one["lag_ms"] < 60_000 for one in own)
    (there,) = client.get(f"/v1/streams/{name}-b/readers").body["readers"]
    assert (there["reader"], there["next"], there["lag"]) == (f"r-{name}", 2, 2)
    listed = client.get("/v1/readers").body["readers"]
    assert {one["stream"] for one in listed if one["reader"] == f"r-{name}"} == {
        f"{name}-a",
        f"{name}-b",
    }
    gone = client.ask("DELETE", f"/v1/readers/r-{name}").body
    assert gone["streams"] == [f"{name}-a", f"{name}-b"]
    assert client.get(f"/v1/readers/r-{name}").status == 404


def test_a_token_sees_only_its_own_consumers_and_streams(
    shop: Shop, stores: Stores, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "tokens.json"
    token = add_token(path, "reader", {Scope.READ: [f"*{name}"]})
    for stream in (name, f"{name}-other"):
        shop.client.post(messages_of(stream), {"value": "x"})
        shop.consumed(f"c-{stream}", stream)
    with ApiServer(stores.url("plain"), TokenFile(path), db=shop.url) as api:
        client = api.client(token)
        assert {c["consumer"] for c in client.get("/v1/consumers").body["consumers"]} == {
            f"c-{name}"
        }
        assert {one["stream"] for one in client.get("/v1/readers").body["readers"]} == {name}
        assert client.get("/v1/outbox").status == 403
        client.close()


def test_the_command_serves_the_database_and_the_farm_that_it_is_given(
    shop: Shop, stores: Stores
) -> None:
    with serving(stores.url("plain"), "--db", shop.url, "--farm", DEAD) as (port, process):
        client = ApiClient(port)
        assert client.get("/v1/outbox").body["exact"] is True
        assert client.get("/v1/timelines").body["instances"][0]["up"] is False
        client.close()
        process.terminate()
        assert process.wait(60) == 0


def test_a_database_that_is_missing_is_said_before_anything_listens(
    stores: Stores, tmp_path: Path
) -> None:
    address = ListenAddress("127.0.0.1", 0)
    settings = ApiSettings(stores.url("plain"), Tokens(), db=f"sqlite:///{tmp_path}/no.db")
    server = StoreServer(settings, address, HttpLimits())
    with pytest.raises(DatabaseUnreachable, match="no such file"):
        server.bind()
    with ApiServer(stores.url("plain")) as api:
        client = api.client()
        answer = client.get("/v1/consumers")
        assert (answer.status, "--db" in answer.body["detail"]) == (404, True)
        client.close()
