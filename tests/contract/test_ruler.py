"""A ruler says of every offset what became of it in a group, and costs no more for long ones."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

import headwater
from headwater import Group, Headwater, InvalidInput, Message, Searched, Stream
from headwater.log import inspecting
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.inspecting import DeadOffsets, GroupRuler, group_ruler
from headwater.views.overview import life_in_group
from tests.support.api import ApiServer, messages_of
from tests.support.commands import StreamCommands
from tests.support.servers import Server
from tests.support.stores import Stores


def ruler(hw: Headwater, stream: str, first: int, last: int, cells: int = 256) -> GroupRuler:
    handle = GroupHandle(StreamHandle(stream, set()), "g", "test")
    found = hw.store.run(group_ruler(handle, first, last, cells))
    assert found is not None
    return found


@pytest.fixture
def name() -> str:
    return f"ruler-{secrets.token_hex(6)}"


def test_ranges_are_exact_while_they_are_few(hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write_many([("t", b"x")] * 1000)
    group = stream.group("g", dead_letters=True)
    held = group.read(600, ack_ms=60_000)
    group.ack(held[:100], held[200:300], held[400:])
    group.bury(held[250], held[150])
    found = ruler(hw, name, 1, 1000)
    assert found.next == 601
    assert found.ack_offset == 101
    assert [(one.first, one.last) for one in found.pending] == [(101, 150), (152, 200), (301, 400)]
    assert {(one.attempt, one.ranges) for one in found.pending} == {(1, 1)}
    assert found.dead == [DeadOffsets(151, 151, 1)]
    part = ruler(hw, name, 120, 160)
    assert [(one.first, one.last) for one in part.pending] == [(101, 150), (152, 200)]
    assert ruler(hw, name, 601, 1000).pending == []


def test_ranges_of_one_cell_are_one_when_they_are_many(hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write_many([("t", b"x")] * 1000)
    group = stream.group("g")
    group.read(1000, ack_ms=60_000)
    group.ack(*range(1, 1001, 2))
    found = ruler(hw, name, 1, 1000, 10)
    assert [(one.first, one.last, one.ranges) for one in found.pending] == [
        (low + 2, low + 100, 50) for low in range(0, 1000, 100)
    ]


def buried_every_other(hw: Headwater, name: str, count: int) -> Group:
    """Return a group that has taken so many messages and given up every other one, the last too."""
    stream = hw.stream(name)
    stream.write_many([("t", b"x")] * count)
    group = stream.group("g", dead_letters=True)
    group.read(count, ack_ms=60_000)
    group.bury(*range(2, count + 1, 2))
    group.ack((1, count))
    return group


def test_every_dead_letter_is_shown_however_many_there_are(hw: Headwater, name: str) -> None:
    buried_every_other(hw, name, 1400)
    assert said(hw, name, *range(2, 1401, 2)) == {"dead"}
    for offset in (2, 4, 700, 1400):
        assert said(hw, name, offset) == {"dead"}
    for offset in (1, 3, 701, 1399):
        assert said(hw, name, offset) == {"done"}
    found = ruler(hw, name, 1, 1400, 10)
    assert [(one.first, one.last, one.ranges) for one in found.dead] == [
        (low + 2, low + 140, 70) for low in range(0, 1400, 140)
    ]
    assert found.dead_unknown == 0
    few = ruler(hw, name, 501, 520)
    assert few.dead == [DeadOffsets(at, at, 1) for at in range(502, 521, 2)]


def test_letters_that_are_redriven_or_discarded_are_not_dead(hw: Headwater, name: str) -> None:
    group = buried_every_other(hw, name, 40)
    group.discard([2, 4])
    group.redrive(letters=[6])
    assert said(hw, name, 2) == said(hw, name, 4) == {"done"}
    assert said(hw, name, 6) == {"pending-0"}
    assert said(hw, name, 8, 40) == {"dead"}
    group.discard()
    assert ruler(hw, name, 1, 40).dead == []


def test_a_message_with_two_letters_is_dead_until_both_are_gone(hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write_many([("t", b"x")] * 20)
    group = stream.group("g", dead_letters=True)
    group.bury(*group.read(20, ack_ms=60_000))
    group.seek(5)
    again = group.read(16, ack_ms=60_000)
    group.bury(again[0])
    group.ack(again[1:])
    first, *_, last = sorted(group.dead(), key=lambda one: one.offset)
    assert (first.origin, last.origin) == (1, 5)
    assert said(hw, name, 3, 4, 5, 6, 20) == {"dead"}
    assert said(hw, name, 4) == {"dead"}, "the letter of 5 alone is not before it"
    group.discard([last])
    assert said(hw, name, 5) == {"dead"}, "the first letter is left"


def test_letters_of_a_store_without_their_places_are_said_to_be_unknown(
    valkey: Server, name: str
) -> None:
    with headwater.connect(valkey.url) as hw, valkey.client() as raw:
        buried_every_other(hw, name, 20)
        assert raw.delete(f"hw:s:{{{name}}}:g:1:g:origins") == 1
        found = ruler(hw, name, 1, 20)
        assert (found.dead, found.dead_unknown) == ([], 10)
        assert said(hw, name, 1, 2, 20) == {"unknown"}


def test_what_was_missed_before_the_ranges_that_are_kept_is_not_done(
    hw: Headwater, name: str
) -> None:
    stream = hw.stream(name)
    stream.write_many([("t", b"x")] * 100)
    group = stream.group("g")
    for offset in range(1, 80, 4):
        group.read(1)
        stream.evict(offset + 3)
    group.read(1)
    found = ruler(hw, name, 1, 100)
    assert len(found.gaps) == 16
    assert found.missed > sum(high - low + 1 for low, high in found.gaps)
    assert said(hw, name, 2) == {"unknown"}
    assert said(hw, name, found.gaps[0][0]) == {"missed"}
    assert said(hw, name, 81) == {"done"}


def test_a_group_that_is_not_there_has_none(hw: Headwater, name: str) -> None:
    hw.stream(name).write("t", b"x")
    handle = GroupHandle(StreamHandle(name, set()), "g", "test")
    assert hw.store.run(group_ruler(handle, 1, 1)) is None


def test_what_a_group_never_got_is_not_done(hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write_many([("t", b"x")] * 1000)
    group = stream.group("g", start=900)
    group.read(10)
    assert said(hw, name, 1, 899) == {"before"}
    assert said(hw, name, 900, 909) == {"done"}
    group.seek(950)
    assert said(hw, name, 909) == {"done"}
    assert said(hw, name, 910, 949) == {"passed"}
    group.seek(800)
    group.read(200, ack_ms=60_000)
    group.seek(980)
    assert said(hw, name, 799) == {"before"}
    assert said(hw, name, 800, 979) == {"passed"}
    assert said(hw, name, 980, 1000) == {"new"}


def test_many_seeks_are_kept_as_few_ranges(hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write_many([("t", b"x")] * 1000)
    group = stream.group("g")
    for offset in range(10, 410, 20):
        group.read(1)
        group.seek(offset)
    found = ruler(hw, name, 1, 1000)
    assert len(found.jumps) == 16
    assert found.jumps[0][0] == 2
    assert said(hw, name, 2) == said(hw, name, 389) == {"passed"}
    assert said(hw, name, 1) == {"done"}


def test_where_an_older_group_began_is_not_known(hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write_many([("t", b"x")] * 10)
    stream.group("g").read(5)
    older = replace(ruler(hw, name, 1, 10), start=0)
    assert life_in_group(older, None, 3, 0)[0] == "unknown"
    assert life_in_group(older, None, 6, 0)[0] == "new"


def said(hw: Headwater, stream: str, *offsets: int) -> set[str]:
    """Return what is said of these offsets in the group: the states."""
    found = ruler(hw, stream, min(offsets), max(offsets))
    return {life_in_group(found, None, offset, 0)[0] for offset in offsets}


# ── A search finds every message that is wanted, within its budget, and says where to go on ──────


ROWS = 3000
CASES: list[tuple[dict[str, Any], Callable[[int], object]]] = [
    ({"tag": "ride-3"}, lambda n: n % 7 == 3),
    ({"tag": "*-3"}, lambda n: n % 7 == 3),
    ({"tag": "other*"}, lambda n: n == ROWS + 1),
    ({"tag": "ride-"}, lambda _: False),
    ({"text": "no json"}, lambda n: n == ROWS + 1),
    ({"text": '"n": 77,'}, lambda n: n == 77),
    ({"where": "paid=true"}, lambda n: n <= ROWS and n % 10 == 0),
    ({"where": "paid!=true"}, lambda n: n <= ROWS and n % 10),
    ({"where": "n>2990"}, lambda n: 2990 < n <= ROWS),
    ({"where": "n<10", "tag": "ride-*"}, lambda n: n < 10),
    (
        {"where": "legs[0].to=B", "text": '"n": 1'},
        lambda n: n <= ROWS and n % 2 == 0 and str(n)[0] == "1",
    ),
    ({"where": "legs[1]"}, lambda _: False),
    ({"where": "n"}, lambda n: n <= ROWS),
    ({}, lambda _: True),
]


def offsets(found: Searched) -> list[int]:
    return [message.offset for message in found.messages]


@pytest.fixture
def rides(client: Headwater) -> Stream:
    """Sealed messages, then some of the tail; each tenth is paid, each hundredth has headers."""
    stream = client.stream(f"search-{secrets.token_hex(6)}")
    entries = [
        (
            f"ride-{n % 7}",
            json.dumps({"n": n, "paid": n % 10 == 0, "legs": [{"to": "Köln" if n % 2 else "B"}]}),
            {"trace": str(n)} if n % 100 == 0 else {},
        )
        for n in range(1, ROWS + 1)
    ]
    stream.write_many(entries)
    stream.write("other*", b"\xffno json")
    return stream


def test_all_that_is_wanted_is_found_in_either_direction(rides: Stream) -> None:
    for asked, expected in CASES:
        wanted = [n for n in range(1, ROWS + 2) if expected(n)]
        found = rides.search(**asked, count=10_000)
        assert offsets(found) == wanted, asked
        assert (found.searched, found.next) == (ROWS + 1, None)
        back = rides.search(**asked, count=10_000, newest_first=True)
        assert offsets(back) == wanted[::-1], asked


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_search_continues_where_its_budget_ended(rides: Stream, newest_first: bool) -> None:
    found: list[int] = []
    at, rounds = None, 0
    while True:
        page = rides.search(
            where="paid=true", start=at, newest_first=newest_first, count=7, max_messages=100
        )
        assert page.searched <= 100
        assert len(page.messages) <= 7
        found += offsets(page)
        at, rounds = page.next, rounds + 1
        if at is None:
            break
    assert found == sorted(range(10, ROWS + 1, 10), reverse=newest_first)
    assert rounds >= 30


def test_a_search_ends_when_its_time_is_over(rides: Stream) -> None:
    found = rides.search(tag="none", max_ms=0)
    assert found.messages == []
    assert found.searched > 0, "it makes progress whatever its budget"


def test_a_message_that_is_found_is_as_it_was_written(rides: Stream) -> None:
    (found,) = rides.search(where="n=100").messages
    assert found == rides.read(100, 1)[0]
    assert dict(found.headers) == {"trace": b"100"}


def test_evicted_messages_are_not_searched(rides: Stream) -> None:
    rides.evict(1500)
    found = rides.search(tag="ride-*", count=10_000)
    assert offsets(found) == list(range(1501, ROWS + 1))
    assert (found.low, found.high) == (1501, ROWS + 1)
    assert rides.search(start=7, count=1).messages[0].offset == 1501


def test_a_search_of_an_empty_stream_finds_nothing(client: Headwater) -> None:
    found = client.stream("never-written").search(tag="t")
    assert (found.messages, found.searched, found.next) == ([], 0, None)


def test_a_condition_that_is_none_is_refused(client: Headwater) -> None:
    for where in ("", "a b", "n>x", "=1", "a..b", "a[x]", "[0", "n<true"):
        with pytest.raises(InvalidInput):
            client.stream("never-written").search(where=where)


def test_values_are_decoded_by_the_codec_of_the_stream(client: Headwater) -> None:
    stream = client.stream(f"search-{secrets.token_hex(6)}", codec="json")
    stream.write("t", {"a": 1})
    (found,) = stream.search(where="a=1").messages
    assert isinstance(found, Message)
    assert found.data == {"a": 1}


def test_the_command_says_how_far_it_came(hw_stream: StreamCommands) -> None:
    hw_stream.stream.write_many([("a" if n % 2 else "b", f"v{n}") for n in range(100)])
    shown = hw_stream("search", "--tag", "a", "--count", "2", "--format", "{offset}\\n")
    assert shown.out.split() == ["2", "4"]
    assert "of 100" in shown.err
    assert "--offset 5" in shown.err
    (row,) = hw_stream("search", "--text", "v99", "--newest-first", "--json").rows
    assert [message["offset"] for message in row["messages"]] == [100]


def test_a_search_over_http_has_a_budget(stores: Stores) -> None:
    name = f"search-{secrets.token_hex(6)}"
    with ApiServer(stores.url("plain")) as api:
        client = api.client()
        client.post(messages_of(name), [{"tag": "t", "data": {"n": n}} for n in range(1, 51)])
        path = f"/v1/streams/{name}/search"
        found = client.get(f"{path}?where=n%3E40&max_messages=45&from=2").body
        assert [one["offset"] for one in found["messages"]] == [*range(41, 47)]
        assert (found["searched"], found["next"], found["last"]) == (45, 47, 50)
        found = client.get(f"{path}?newest_first=true&count=1&from=last&text=n").body
        assert [one["offset"] for one in found["messages"]] == [50]
        assert client.get(f"{path}?from=last").body["messages"] == []
        refused = client.get(f"{path}?where=a%20b")
        assert refused.status == 400
        assert "no condition" in refused.body["detail"]


def heavy(count: int) -> list[tuple[str, str]]:
    """Return entries of 32 KiB of JSON each."""
    rides = [{"km": n, "by": "somebody"} for n in range(1200)]
    return [("heavy", json.dumps({"n": n, "rides": rides})) for n in range(count)]


@pytest.mark.parametrize(
    "where", ["n=" + "[" * 30_000, "n[" + "1" * 5000 + "]=1"], ids=["nested", "digits"]
)
def test_a_condition_that_nobody_could_mean_is_refused(where: str) -> None:
    with pytest.raises(InvalidInput, match="no condition"):
        inspecting.read_condition(where)


def test_a_search_decodes_little_before_others_have_their_turn(
    client: Headwater, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = client.stream(f"search-{secrets.token_hex(6)}")
    stream.write_many(heavy(100))
    decoded, most = 0, 0
    holds = inspecting.FieldCondition.holds

    def counted(condition: inspecting.FieldCondition, value: bytes) -> bool:
        nonlocal decoded
        decoded += len(value)
        return holds(condition, value)

    monkeypatch.setattr(inspecting.FieldCondition, "holds", counted)
    asked = inspecting.SearchRequest(None, None, "n>98", None, False, 10, None, None)
    operation = inspecting.search(stream._handle, asked)
    request = next(operation)
    total = 0
    while True:
        try:
            request = operation.send(client.store.ask(request))
        except StopIteration as done:
            found = done.value
            break
        total, most, decoded = total + decoded, max(most, decoded), 0
    assert [message.offset for message in found.messages] == [100]
    assert total > 3_000_000
    assert most < 200_000


def test_requests_are_answered_while_a_search_runs(
    stores: Stores, pool: ThreadPoolExecutor
) -> None:
    name = f"search-{secrets.token_hex(6)}"
    with headwater.connect(stores.url("plain")) as hw:
        for _ in range(3):
            hw.stream(name).write_many(heavy(150))
    with ApiServer(stores.url("plain")) as api:
        path = f"/v1/streams/{name}/search?where=n%3E1000&max_ms=10000"
        search = pool.submit(api.client().get, path)
        client, answered = api.client(), 0
        while not search.done():
            assert client.get("/healthz").status == 200
            answered += 1
        assert search.result(60).body["searched"] == 450
    # Of about 14 MB, it would be a few if each reply of the store were looked at as a whole.
    assert answered > 15
