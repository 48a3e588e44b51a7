"""The pages of streams, messages, groups, queues and lists show what is known, within bounds."""

from __future__ import annotations

import html
import http.client
import json
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import pytest
import sqlalchemy as sa

import headwater
from headwater import Headwater, testing
from headwater.metrics.exposition import Page
from headwater.metrics.sampler import add_channel
from headwater.outbox import Consumer
from headwater.serve.console.links import group_link
from headwater.serve.console.pages.queues import score_time, wait_spans
from headwater.serve.console.render import bound
from headwater.serve.console.service import Console
from tests.support.api import ApiClient, ApiServer
from tests.support.channels import facts
from tests.support.console import Filled, path_of, send
from tests.support.consumers import create_tables
from tests.support.servers import until
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


def text(browser: ApiClient, path: str, **query: object) -> str:
    """Return what a page says, without its tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", shown(browser, path, **query)))


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


@pytest.fixture
def group(hw: Headwater) -> headwater.Group:
    stream = hw.stream(f"moved-{secrets.token_hex(4)}")
    stream.write_many([("t", b"v")] * 30)
    group = stream.group("mail")
    group.ack(group.read(20, ack_ms=60_000)[:10])
    return group


def test_a_group_is_paused_and_resumed_by_a_button(
    browser: ApiClient, group: headwater.Group
) -> None:
    asked = {"do": "group-state", "stream": group.stream, "group": "mail"}
    assert "10 messages are new, 10 pending" in shown(browser, "/act", **asked)
    assert send(browser, "/console/act", **asked).status == 303
    assert group.info().paused
    assert "paused</span>" in shown(browser, group_link(group.stream, group.name))
    assert f"headwater stream resume {group.stream} mail" in shown(browser, "/act", **asked)
    assert send(browser, "/console/act", **asked).status == 303
    assert not group.info().paused


def test_pending_messages_are_skipped_and_returned_by_an_administrator(
    browser: ApiClient, group: headwater.Group
) -> None:
    asked = {"do": "pending", "stream": group.stream, "group": "mail"}
    skip: dict[str, Any] = {**asked, "action": "skip", "first": 5, "last": 14}
    assert "4 messages are pending there" in shown(browser, "/act", **skip)
    assert group.info().pending == 10, "a bill changes nothing"
    assert send(browser, "/console/act", **skip).status == 303
    assert group.info().pending == 6
    assert send(browser, "/console/act", **{**skip, "action": "return", "last": 16}).status == 303
    assert group.info().due == 2
    wrong = browser.get("/console/act?" + urlencode({**skip, "first": 9, "last": 8}))
    assert wrong.status == 400


def test_a_seek_says_how_long_it_takes(browser: ApiClient, group: headwater.Group) -> None:
    asked = {"do": "seek", "stream": group.stream, "group": "mail"}
    back = shown(browser, "/act", **asked, to=1)
    assert "delivers 20 messages again" in back
    assert "is unknown: no history of the group's rate is recorded" in back
    assert "The group is then up to date" in shown(browser, "/act", **asked, to="last")


def test_a_seek_says_which_pending_messages_it_delivers_again_and_which_it_drops(
    browser: ApiClient, group: headwater.Group
) -> None:
    asked = {"do": "seek", "stream": group.stream, "group": "mail"}
    # Of 11 - 20, which are pending, it goes back to 16.
    part = shown(browser, "/act", **asked, to=16)
    assert "delivers 5 messages again" in part
    assert "5 of them are pending now and become new" in part
    assert "drops 5 pending messages before that offset" in part
    whole = shown(browser, "/act", **asked, to=1)
    assert "10 of them are pending now" in whole
    assert "drops" not in whole
    assert "drops 10 pending messages" in shown(browser, "/act", **asked, to="last")
    assert send(browser, "/console/act", **asked, to=16).status == 303
    assert [one.offset for one in group.read(30, ack_ms=60_000)] == list(range(16, 31))


def test_a_group_is_sought_by_steps_and_by_times(
    browser: ApiClient, group: headwater.Group
) -> None:
    asked = {"do": "seek", "stream": group.stream, "group": "mail"}
    assert "to 11<" in shown(browser, "/act", **asked, to="-10")
    assert "to 23<" in shown(browser, "/act", **asked, to="+2")
    assert "to 1<" in shown(browser, "/act", **asked, to="−1,000")
    assert "to 1<" in shown(browser, "/act", **asked, to="1h")
    assert "to 31<" in shown(browser, "/act", **asked, to="2100-01-01T00:00")
    steps = shown(browser, "/act", **asked, to="-10")
    # Its button means the same when the group has moved on.
    assert '<input type="hidden" name="to" value="11">' in steps
    wrong = browser.get("/console/act?" + urlencode({**asked, "to": "yesterday"}))
    assert b"is no place in a stream; give an offset" in wrong.body
    page = shown(browser, group_link(group.stream, group.name))
    for link in ("to=first", "to=-1000", "to=1h", "to=1d", "to=last"):
        assert link in page


def test_what_was_missed_is_told_with_who_evicted_it(
    browser: ApiClient, group: headwater.Group
) -> None:
    evicted = send(browser, "/console/act", do="evict", stream=group.stream, up_to=25)
    assert evicted.status == 303
    group.read(1, ack_ms=60_000)
    page = shown(browser, group_link(group.stream, group.name))
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


HOUR_MS = 3_600_000


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
            page = text(client, "/queues/jobs")
            listed = text(client, "/queues")
            client.close()
    assert "median wait up to 30 s" in page
    assert "p95 wait up to 5 min" in page
    assert "p99 wait up to 5 min" in page
    assert "up to 5 min 10 10.0%" in page
    assert "100 messages counted" in page
    assert "up to 30 s up to 5 min" in listed


def test_what_a_queue_holds_says_when_it_is_due_and_is_released_or_promoted(
    browser: ApiClient, hw: Headwater, name: str
) -> None:
    queue, here = hw.queue(name), f"/queues/{name}"
    queue.push(b"one")
    empty = text(browser, here, state="unacked")
    assert "No message is with a consumer." in empty
    assert f"headwater queue pop {name} --ack-ms 30s" in empty
    assert "Nothing has been popped yet" in empty
    queue.pop(1, ack_ms=HOUR_MS)
    queue.push(b"two", delay_ms=2 * HOUR_MS)
    page = text(browser, here)
    assert re.search(r"with consumers 1 first deadline in (60|59) min", page)
    assert re.search(r"delayed 1 first in (2 h|120 min|119 min)", page)
    for state, action in (("unacked", "release"), ("delayed", "promote")):
        place = queue.peek(1, state=state)[0].place  # type: ignore[arg-type]
        done = send(browser, "/console/act", do=action, queue=name, place=place)
        assert done.status == 303, done.body
    assert queue.stats().ready == 2


def test_a_bound_is_spelled_in_its_unit() -> None:
    spelled = [bound(ms) for ms in (1, 500, 1000, 30_000, 300_000, HOUR_MS, 24 * HOUR_MS, None)]
    assert spelled == [
        *("up to 1 ms", "up to 500 ms", "up to 1 s", "up to 30 s", "up to 5 min", "up to 1 h"),
        *("up to 1 d", "over 1 d"),
    ]


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
    hw: Headwater, browser: ApiClient, name: str
) -> None:
    assert browser.get(f"/console/lists/{name}").status == 404
    channel = hw.ick_channel(name, shards=1, consumer="indexer-7", ack_ms=600_000)
    for _ in range(3):
        channel.add({"ride-1": 5, "ride-2": 6})
    batch = channel.reserve(1)
    listed = text(browser, f"/lists?q={name}")
    assert re.search(rf"{name}\s+1\s+1\s+0\s+1\s+1\s+[\d.]+ m?s\s+6\s+3.0 : 1", listed)
    page = text(browser, f"/lists/{name}")
    assert re.search(rf"indexer-7\s+{batch.token:,}\s+in (10|9|600|59\d) (min|s)", page)
    assert re.search(r"ride-1\s+5\s+reserved\s+0", page)
    members = browser.get(f"/v1/channels/{name}/members?count=1").body["members"]
    assert len(members) == 1
    body = browser.get(f"/v1/channels/{name}").body
    assert (body["added"], body["entered"], body["folding"]) == (6, 2, 3.0)
    channel.commit(batch)


def test_a_channel_is_resharded_and_deleted_with_a_bill(
    hw: Headwater, browser: ApiClient, name: str
) -> None:
    channel = hw.ick_channel(name, shards=2)
    channel.add({f"m{n}": n for n in range(5)})
    bill = text(browser, f"/act?do=reshard&channel={name}&shards=3")
    assert "The channel changes from 2 to 3 shards" in bill
    assert "5 waiting members move" in bill
    assert f"headwater ick channel shards {name} 3" in bill
    assert send(browser, "/console/act", do="reshard", channel=name, shards=3).status == 303
    assert (len(facts(channel).shards), facts(channel).ready) == (3, 5)
    refused = browser.get(f"/console/act?do=reshard&channel={name}&shards=0")
    assert refused.status == 400
    assert browser.ask("PUT", f"/v1/channels/none-{name}/layout", {"shards": 2}).status == 404
    assert "5 ready" in text(browser, f"/act?do=delete-channel&channel={name}")
    assert send(browser, "/console/act", do="delete-channel", channel=name).status == 303
    assert channel.stats() is None


def test_an_ick_shows_its_scores_and_reads_them_as_times_only_where_they_can_be(
    hw: Headwater, browser: ApiClient, name: str
) -> None:
    assert "There is no Ick under this key" in text(browser, f"/ick?key={name}")
    hw.ick(name).add({"a": time.time() - 90, "b": 7})
    hw.ick(name).reserve(1)
    page = text(browser, f"/ick?key={name}")
    assert re.search(r"pset\s+dirty\s+1\s+1,\d{3},\d{3},\d{3}|pset\s+dirty\s+1\s+1\d{9}", page)
    assert re.search(r"(90|9\d) s ago\s+to", page)
    assert re.search(r"cset\s+reserved\s+1\s+7\s+7\s+not times", page)
    assert len(browser.get(f"/v1/icks/{name}/members").body["members"]) == 2
    assert send(browser, "/console/act", do="delete-ick", key=name).status == 303
    assert hw.ick(name).stats() is None


def test_a_score_is_a_time_in_seconds_or_in_ms_or_none() -> None:
    now = time.time()
    assert score_time(now) == pytest.approx(now * 1000, abs=1)
    assert score_time(now * 1000) == pytest.approx(now * 1000, abs=1)
    assert [score_time(score) for score in (0, 17, -1e9, 1e18, float("inf"))] == [None] * 5
