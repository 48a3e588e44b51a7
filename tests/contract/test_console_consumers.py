"""The console shows the outbox and SQL consumers: staged rows, batches, positions, dead letters."""

from __future__ import annotations

import fcntl
import html
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import headwater
from headwater import Headwater
from headwater.outbox import Consumer, Outbox, Streamer
from headwater.serve.console.service import Console
from tests.support.api import ApiClient, ApiServer
from tests.support.commands import run
from tests.support.console import EVIL, send
from tests.support.consumers import create_tables
from tests.support.servers import Server, until
from tests.support.stores import Stores


class Shop:
    """A database with a consumer that gave up two of ten messages, and a server of it."""

    def __init__(self, hw: Headwater, store: str, url: str, client: ApiClient) -> None:
        self.hw, self.store, self.url, self.client = hw, store, url, client
        self.engine = engine = sa.create_engine(url)
        self.stream = f"shop-{secrets.token_hex(4)}"
        hw.stream(self.stream).write_many([("t", b"%d" % n) for n in range(10)])
        consumer = Consumer(
            "view", [self.stream], engine, hw, _handle, batch=5, on_error="skip", attempts=1
        )
        while consumer.positions()[self.stream] != 11:
            consumer.run_once()
        hw.stream(self.stream).write_many([("t", b"new")] * 3)

    def page(self, path: str) -> str:
        found = self.client.get(path)
        assert found.status == 200, found.body
        text = re.sub(r"<[^>]+>", " ", html.unescape(found.body.decode()))
        return re.sub(r"\s+", " ", text)

    def position(self) -> int:
        with self.engine.connect() as conn:
            found = conn.execute(
                sa.text("SELECT next_offset FROM headwater_checkpoints WHERE stream = :stream"),
                {"stream": self.stream},
            )
            return int(found.scalar_one())


def _handle(_conn: Any, messages: list[Any]) -> None:
    if any(message.offset in (2, 4) for message in messages):
        raise ValueError("cannot be shown")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A shop on a store of its own, whose dead letters are all of them."""
    url = f"sqlite:///{tmp_path_factory.mktemp('shop') / 'shop.db'}"
    engine = sa.create_engine(url)
    create_tables(engine)
    engine.dispose()
    with (
        Server() as server,
        headwater.connect(server.url) as hw,
        ApiServer(server.url, front=Console, db=url) as api,
    ):
        client = api.client()
        shop = Shop(hw, server.url, url, client)
        yield shop
        client.close()
        shop.engine.dispose()


def test_the_outbox_shows_rows_batches_and_who_streamed(shop: Shop) -> None:
    outbox = Outbox(shop.engine)
    with shop.engine.begin() as conn:
        outbox.stage(conn, shop.stream, "t", b"2")
    with Streamer(outbox, shop.hw) as streamer:
        assert streamer.run_once() == 1
    with shop.engine.begin() as conn:
        outbox.stage(conn, shop.stream, "t", b"3")
    page = shop.page("/console/outbox")
    assert "staged rows 1" in page
    assert re.search(r"last batch 1 [\d.]+ m?s ago", page)
    producer = outbox.status().producer.removeprefix("outbox:")
    assert f"last batch written by {producer}" in page
    assert "streamer lock held by no process" in page
    assert re.search(r"streamed [\d.]+ rows/s, last minute", page)
    assert "No streamer runs for this outbox" in page
    body = shop.client.get("/v1/outbox").body
    assert body["batch"] == 1
    assert 0 <= body["batch_idle_ms"] < 600_000
    assert body["leader"] is None
    seen: list[str] = []

    def look(step: str) -> None:
        if step == "claimed":
            seen.append(shop.page("/console/outbox"))
            seen.append(run(None, "outbox", "status", "--db", shop.url).out)

    with Streamer(outbox, shop.hw, steps=look) as streamer:
        streamer.run_once()
    assert all(f"pid {os.getpid()}" in one for one in seen)
    assert len(seen) == 2


def test_a_consumer_shows_its_position_lag_and_dead_letters(shop: Shop) -> None:
    listed = shop.page("/console/consumers")
    row = rf"view {shop.stream} {shop.position():,} \d+ [\d.]+ m?s [\d.]+ m?s ago 2"
    assert re.search(row, listed)
    page = shop.page("/console/consumers/view")
    assert "dead letters 2" in page
    assert re.search(rf"{shop.stream} 2 t 1 ValueError: cannot be shown", page)
    assert "This is not a button, because only your application has the handler" in page
    assert "headwater consumer redrive MODULE:APP view" in page
    assert f"view {shop.stream} 2 {shop.stream}.view.sql-dead" in shop.page("/console/dead")
    (view,) = shop.client.get("/v1/consumers/view").body["consumers"]
    assert (view["dead"], view["next_offset"]) == (2, shop.position())
    listed_by_command = run(shop.store, "consumer", "list", "--db", shop.url, "--json")
    assert listed_by_command.row["dead"] == 2
    assert shop.client.get("/console/consumers/nobody").status == 404


def test_letters_of_consumers_are_counted_with_the_others(shop: Shop) -> None:
    def look() -> str:
        shop.page("/console")
        return shop.page("/console/consumers")

    # The count is that of the newest sample.
    until(lambda: "Dead letters 2 " in look())
    overview = shop.page("/console")
    assert f"SQL consumer view on {shop.stream} has 2 dead letters" in overview
    assert "dead letters 2" in overview
    assert re.search(rf"view {shop.stream} SQL consumer \d+", overview)
    with ApiServer(shop.store, front=Console) as api, closing(api.client()) as client:
        client.get("/console")
        page = client.get("/console/dead").body.decode()
        assert '<span id="dead-count" class="count">2</span>' in page
        assert f'<a href="/console/streams/{shop.stream}.view.sql-dead">' in page


def test_charts_of_an_outbox_and_of_a_consumer_are_renewed(shop: Shop) -> None:
    found = shop.client.get("/console/outbox/charts?step=10")
    assert list(found.body["charts"]) == ["staged", "age", "rows", "batches"]
    assert b'data-source="/console/outbox/charts?step=1"' in shop.client.get("/console/outbox").body
    found = shop.client.get("/console/consumers/view/charts?step=1")
    assert [line["label"] for line in found.body["charts"]["lag"]["lines"]] == [shop.stream]
    page = shop.client.get("/console/consumers/view").body
    assert b'data-source="/console/consumers/view/charts?step=1"' in page


def test_a_consumer_is_sought_and_its_letters_discarded_with_a_bill(shop: Shop) -> None:
    fields = {"consumer": "view", "stream": shop.stream}
    asked = f"consumer=view&stream={shop.stream}"
    bill = shop.page(f"/console/act?do=consumer-seek&{asked}&to=1")
    assert f"It handles {shop.position() - 1} messages again" in bill
    assert f"headwater consumer seek view 1 --stream {shop.stream}" in bill
    bill = shop.page(f"/console/act?do=consumer-seek&{asked}&to=-2")
    assert "It handles 2 messages again" in bill
    assert send(shop.client, "/console/act", do="consumer-seek", to="4", **fields).status == 303
    assert shop.position() == 4
    bill = shop.page(f"/console/act?do=consumer-discard&{asked}")
    assert "evicts 2 dead letters" in bill
    assert f"headwater consumer discard view --stream {shop.stream} --up-to 2 --yes" in bill
    assert send(shop.client, "/console/act", do="consumer-discard", **fields).status == 303
    assert send(shop.client, "/console/act", do="consumer-discard", **fields).status == 400
    assert "dead letters 0" in shop.page("/console/consumers/view")
    for action in ("consumer-forget", "consumer-remove"):
        done = send(shop.client, "/console/act", do=action, **fields)
        assert done.status == 303, done.body
    assert "No consumer has a position in this database yet" in shop.page("/console/consumers")
    path = "/v1/consumers/view"
    audited = shop.page(f"/console/audit?path={path}")
    assert audited.count("done") >= 3


def test_a_server_without_a_database_says_how_to_give_it_one(
    stores: Stores,
) -> None:
    with ApiServer(stores.url("plain"), front=Console) as api:
        client = api.client()
        for page in ("outbox", "consumers", "consumers/any"):
            assert b"headwater serve --db" in client.get(f"/console/{page}").body
        client.close()


def test_whoever_holds_the_lock_is_shown_as_text(shop: Shop) -> None:
    file = Path(str(shop.engine.url.database)).resolve()
    with Path(f"{file}.streamer.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(EVIL)
        lock.flush()
        body = shop.client.get("/console/outbox").body.decode()
    assert EVIL not in body
    assert EVIL in html.unescape(body)
