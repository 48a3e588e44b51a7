"""The pages of a stream and of a message show what is known, within bounds, and say the rest."""

from __future__ import annotations

import html
import http.client
import json
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pyarrow as pa
import pytest
import sqlalchemy as sa

import headwater
from headwater import Headwater
from headwater.outbox import Consumer
from headwater.serve.console.service import Console
from tests.support.api import ApiClient, ApiServer
from tests.support.console import Filled, path_of, send
from tests.support.consumers import create_tables
from tests.support.stores import Stores


@pytest.fixture(scope="module")
def hw(stores: Stores) -> Iterator[Headwater]:
    with headwater.connect(stores.url("plain")) as hw:
        yield hw


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sa.Engine]:
    path: Path = tmp_path_factory.mktemp("console") / "app.db"
    engine = sa.create_engine(f"sqlite:///{path}")
    create_tables(engine)
    yield engine
    engine.dispose()


@pytest.fixture(scope="module")
def api(stores: Stores, database: sa.Engine) -> Iterator[ApiServer]:
    url = database.url.render_as_string(hide_password=False)
    with ApiServer(stores.url("plain"), front=Console, db=url) as api:
        yield api


@pytest.fixture
def browser(api: ApiServer) -> ApiClient:
    return api.client()


@pytest.fixture(scope="module")
def filled(hw: Headwater) -> Filled:
    return Filled(hw)


@pytest.fixture
def name() -> str:
    return f"console-{secrets.token_hex(4)}"


def shown(browser: ApiClient, path: str, **query: object) -> str:
    asked = "?" + urlencode(query) if query else ""
    found = browser.get(f"/console{path}{asked}")
    assert found.status == 200, found.body
    text: str = html.unescape(found.body.decode())
    return text


@pytest.mark.parametrize(
    ("offset", "said"),
    [
        (101, "done; when is not kept"),
        (600, "pending, attempt 1"),
        (601, "dead after 1 attempts: ValueError"),
        (2000, "not delivered yet; 899 messages are before it"),
        (50, "has no message any more: evicted"),
    ],
)
def test_a_message_says_what_became_of_it_in_a_group(
    browser: ApiClient, filled: Filled, offset: int, said: str
) -> None:
    path = path_of("/streams/{stream}", filled).removeprefix("/console")
    text = shown(browser, f"{path}/messages/{offset}")
    assert said in text
    assert f"--offset {offset} --count 1" in text


def test_a_message_that_is_not_written_yet_is_not_shown(browser: ApiClient, filled: Filled) -> None:
    for offset, status in (("9999", 404), ("0", 400), ("x", 400)):
        path = path_of("/streams/{stream}/messages", filled)
        assert browser.get(f"{path}/{offset}").status == status


def test_a_message_names_its_outbox_its_trace_and_its_readers(
    browser: ApiClient, hw: Headwater, name: str, database: sa.Engine
) -> None:
    stream = hw.stream(name)
    stream.write_many([("t", b"1")] * 3)
    Consumer("project", [name], database, hw, lambda *_: None, start=3).run_once()
    stream.register_reader("archive:ab12", 2)
    stream.write("t", b"x", headers={"traceparent": "00-abc-def-01"})
    text = shown(browser, f"/streams/{name}/messages/1")
    assert "SQL consumer project" in text
    assert "archived" in text
    assert "it came another way, or before the newest" in text
    last = shown(browser, f"/streams/{name}/messages/4")
    assert "00-abc-def-01" in last
    assert "not yet: it needs 2 next" in last
    ruler = shown(browser, f"/streams/{name}")
    assert '/consumers/project">project</a> <small>SQL</small>' in ruler
    assert re.search(r"ab12 <small>archive</small>", ruler)


def test_values_are_shown_as_what_they_are(browser: ApiClient, hw: Headwater, name: str) -> None:
    batch = pa.record_batch({"fare": pa.array([1, 2, 3])})
    sink, packed = pa.BufferOutputStream(), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(packed, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    arrow = bytes(sink.getvalue())
    values = [b'{"a": [1]}', "Köln".encode(), b"\x00\xff", arrow, bytes(packed.getvalue())]
    values.append(arrow[:-20])
    hw.stream(name).write_many([("t", value) for value in values])
    kinds = [
        re.search(r'<span class="kind">(\w+)', shown(browser, f"/streams/{name}/messages/{place}"))
        for place in range(1, 7)
    ]
    # What is packed may become any size, and what is cut is no Arrow.
    assert [kind and kind[1] for kind in kinds] == ["json", "text", "hex", "arrow", "hex", "hex"]
    assert "{'fare': 1}" in shown(browser, f"/streams/{name}/messages/4")


def test_a_filter_stops_at_its_budget_and_goes_on(
    browser: ApiClient, hw: Headwater, name: str
) -> None:
    entries = [(f"ride-{n % 100}", json.dumps({"n": n})) for n in range(1, 10_001)]
    hw.stream(name).write_many(entries)
    page = shown(browser, f"/streams/{name}", tag="ride-7")
    assert "Messages that match" in page
    assert page.count('<tr id="m') == 50
    assert f'href="/console/streams/{name}/messages/9907"' in page
    further = re.search(r'href="(/console/streams/[^"]*from=\d+)#messages">Search further', page)
    assert further is not None
    rest = shown(browser, further[1].removeprefix("/console"))
    assert rest.count('<tr id="m') == 50
    assert ": all that is there." in shown(browser, f"/streams/{name}", where="n=3")
    assert "No match in the messages searched" in shown(browser, f"/streams/{name}", text="nowhere")
    assert "Messages from 9,907" in shown(browser, f"/streams/{name}", at="tag:ride-7")
    assert "No message with that tag" in shown(browser, f"/streams/{name}", at="tag:none")
    assert "Messages from 4,000" in shown(browser, f"/streams/{name}", at="-1,000", base="5000")


def test_a_histogram_counts_what_the_window_has(browser: ApiClient, filled: Filled) -> None:
    path = path_of("/streams/{stream}", filled).removeprefix("/console")
    whole = shown(browser, path)
    bars = re.findall(r": ([\d,]+) from offset", whole)
    assert sum(int(count.replace(",", "")) for count in bars) == 2903
    assert "offsets over time" in whole


def test_storage_is_counted_and_compaction_estimated(
    browser: ApiClient, hw: Headwater, name: str
) -> None:
    hw.stream(name).write_many([(f"t{n % 10}", b"x" * 50) for n in range(2000)])
    page = shown(browser, f"/streams/{name}/storage", estimate=1)
    assert "Of the 2,000 messages that are there, 1,990 would be removed" in page
    assert "99.5 %" in page


def test_retention_is_previewed_and_then_set(browser: ApiClient, hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write_many([("t", b"x")] * 3000)
    stream.group("mail", 1001).read(1)
    form = {"do": "retain", "stream": name, "max_count": "500"}
    held = shown(browser, "/act", **form)
    assert "evicts 1,001 of 2,500 messages now: 1,499 are kept for the group mail" in held
    forced = shown(browser, "/act", force=1, **form)
    assert "evicts 2,500 messages now, and one group or reader misses some of them" in forced
    assert "The group mail has not read all of it: it misses up to 1,499 messages" in forced
    none = shown(browser, "/act", do="retain", stream=name, max_age="7d", max_bytes="2GiB")
    assert "Nothing would be evicted now" in none
    assert "--max-age 7d --max-bytes 2GiB" in none
    assert stream.info().first == 1, "a preview changes nothing"
    assert send(browser, "/console/act", **form).status == 303
    assert stream.info().first == 1002
    assert stream.info().retention.max_count == 500
    for wrong in ({"max_age": "soon"}, {"max_bytes": "much"}, {"max_count": "x"}):
        assert browser.get("/console/act?" + urlencode(form | wrong)).status == 400


def test_a_message_is_written_as_it_was_typed(browser: ApiClient, hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write("first", b"1")
    form = {"do": "write", "stream": name, "tag": "a b", "headers": "k: v\r\nx: y: z"}
    asked = send(browser, "/console/act", **form, kind="text", value="two\r\nlines", ask="1")
    assert asked.status == 200
    assert "appends one message" in html.unescape(asked.body.decode())
    assert stream.info().last == 1, "a bill changes nothing"
    typed = [("text", "two\r\nlines"), ("json", '{"a": 1}'), ("hex", "00 ff 41")]
    for kind, value in typed:
        assert send(browser, "/console/act", **form, kind=kind, value=value).status == 303
    found = [message for message in stream.read(2, 3) if message is not None]
    assert [message.value for message in found] == [b"two\nlines", b'{"a": 1}', b"\x00\xffA"]
    assert {message.tag for message in found} == {"a b"}
    assert dict(found[0].headers) == {"k": b"v", "x": b"y: z"}
    wrong = [
        ("json", "{", ""),
        ("json", "[" * 10_000, ""),
        ("hex", "0g", ""),
        ("text", "x", "no header"),
    ]
    for kind, value, headers in wrong:
        sent = form | {"headers": headers}
        assert send(browser, "/console/act", **sent, kind=kind, value=value).status == 400
    assert stream.info().last == 4


def events(port: int, path: str, count: int) -> list[str]:
    """Return the first events of a feed."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    reply = connection.getresponse()
    assert reply.status == 200
    found: list[str] = []
    lines: list[str] = []
    while len(found) < count:
        line = reply.readline().decode().rstrip("\n")
        if line:
            lines.append(line)
        elif any(one.startswith("data:") for one in lines):
            found.append("\n".join(lines))
            lines = []
        else:
            lines = []
    connection.close()
    return found


def test_a_live_tail_says_what_it_skips(api: ApiServer, hw: Headwater, name: str) -> None:
    hw.stream(name).write_many([("t", b"%d" % n) for n in range(1, 5001)])
    path = f"/console/streams/{name}/tail/events"
    skipped, first, *_ = events(api.port, f"{path}?from=1", 2)
    assert skipped.startswith("event: skipped\nid: 4900\n")
    assert '"first":1,"last":4900' in skipped
    assert first.startswith("id: 4901\n")
    assert events(api.port, f"{path}?from=5000", 1)[0].startswith("id: 5000\n")


def test_hostile_places_are_refused_and_not_followed(
    api: ApiServer, browser: ApiClient, hw: Headwater, name: str
) -> None:
    hw.stream(name).write("t", b"1")
    for asked in ({"at": "9" * 5000}, {"at": "+" + "9" * 5000}, {"where": "a" + " " * 3000}):
        status = browser.get(f"/console/streams/{name}?{urlencode(asked)}").status
        assert status == (200 if "where" in asked else 400)
    assert browser.get(f"/console/streams/{name}?{urlencode({'where': '=' * 3000})}").status == 400
    assert "Replay a range" in shown(browser, f"/streams/{name}/replay")
    path = f"/console/streams/{name}/tail/events?from={'9' * 15}"
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=60)
    connection.request("GET", path, headers={"Last-Event-ID": "9" * 5000})
    assert connection.getresponse().status == 200
    connection.close()


def test_a_stream_is_deleted_with_all_that_is_counted(
    browser: ApiClient, hw: Headwater, name: str
) -> None:
    stream = hw.stream(name)
    stream.write_many([("t", b"x")] * 30)
    stream.group("g").read(1)
    assert "deletes 30 messages" in shown(browser, "/act", do="delete-stream", stream=name)
    assert send(browser, "/console/act", do="delete-stream", stream=name).status == 303
    assert not stream.info().exists


def test_a_range_is_replayed_by_the_server(browser: ApiClient, hw: Headwater, name: str) -> None:
    hw.stream(name).write_many([("t", b"%d" % n) for n in range(1, 1001)])
    form = {"do": "replay", "stream": name, "first": "11", "last": "510", "into": f"{name}-copy"}
    bill = shown(browser, "/act", **form)
    assert "writes 500 messages" in bill
    assert f"headwater stream replay {name} --into {name}-copy --first 11 --last 510" in bill
    assert send(browser, "/console/act", **form).status == 303
    target = hw.stream(f"{name}-copy")
    assert len(target.read(500, 1, block_ms=30_000)) == 1
    first = target.read(1, 1)[0]
    assert first is not None
    assert first.value == b"11"
    page = shown(browser, f"/streams/{name}/replay", first=3, last=7)
    assert f"{name}-copy</a>" in page
    assert "--offset 3 --count 5 --json" in page
    slow = shown(browser, "/act", **(form | {"speed": "1", "group": "test", "into": ""}))
    assert f"The group test of {name}.sandbox gets these messages" in slow
    assert "At 1x it takes about" in slow


def test_a_topic_shows_its_partitions_and_the_lag_of_its_groups_in_each(
    browser: ApiClient, hw: Headwater, name: str
) -> None:
    topic = hw.topic(name, 3)
    topic.write_many([(f"tag-{n}", b"x") for n in range(300)])
    taken = topic.group("mail").read(100)
    page = shown(browser, f"/topics/{name}")
    assert "300 messages in 3 partitions" in page
    assert f'<td class="n" data-label="Lag">{300 - len(taken)}</td>' in page
    lags = re.findall(rf'/streams/{name}%2F\d/groups/mail">(\d+)</a>', page)
    assert sum(map(int, lags)) == 300 - len(taken)
    assert len(lags) == 3
    assert name in shown(browser, "/topics", q=name)
    assert browser.get(f"/console/topics/{name}-none").status == 404
