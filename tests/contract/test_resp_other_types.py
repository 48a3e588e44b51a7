"""Queues, dirty lists and timelines through the RESP door."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from headwater.serve.resp.waiting import AT_THE_STORE
from tests.support.farms import one_each, replicas
from tests.support.resp import RespServer, first_answered, until_blocked
from tests.support.servers import Server
from tests.support.stores import Stores


@pytest.fixture
def client(door: RespServer) -> Iterator[Any]:
    with door.redis() as client:
        yield client


@pytest.mark.parametrize("command", ["TINFO", "QSTATS", "TPINFO", "ICKSTATS", "CHSTATS"])
def test_a_name_that_nobody_has_used_is_an_error_that_names_it(client: Any, command: str) -> None:
    with pytest.raises(redis.ResponseError, match=r"NOTFOUND .*'typo'"):
        client.execute_command(command, "typo")


def test_queues_push_pop_and_settle(client: Any, name: str) -> None:
    ask = client.execute_command
    first = ask("QPUSH", name, "one")
    urgent = ask("QPUSH", name, "PRIORITY", 5, "VALUES", "two", "three")
    assert len(urgent) == 2
    found = ask("QPOP", name, "COUNT", 2, "RETRY", 60_000)
    assert [(id_, value, attempt) for id_, value, attempt, _ in found] == [
        (urgent[0], b"two", 1),
        (urgent[1], b"three", 1),
    ]
    assert ask("QEXTEND", name, 90_000, found[0][3]) == 1
    assert ask("QACK", name, found[0][3], found[0][3]) == 1
    assert ask("QNACK", name, "DELAY", 0, found[1][3]) == 1
    assert ask("QPOP", name, "RETRY", 60_000)[0][:3] == [urgent[1], b"three", 2]
    assert ask("QPOP", name) == [[first, b"one", 1, None]]
    assert ask("QPUSH", name, "DEDUPE", "k", "VALUES", "once") == ask(
        "QPUSH", name, "DEDUPE", "k", "VALUES", "once"
    )
    stats = ask("QSTATS", name)
    assert (stats[b"ready"], stats[b"unacked"], stats[b"paused"]) == (1, 1, False)
    assert stats[b"settings"][b"backoff-ms"] == 1000
    for words in (("COUNT", 5000), ("NONSENSE",), ("BLOCK", -1)):
        with pytest.raises(redis.ResponseError):
            ask("QPOP", name, *words)
    with pytest.raises(redis.ResponseError, match="one message"):
        ask("QPUSH", name, "DEDUPE", "k", "VALUES", "a", "b")


def test_a_queue_is_looked_at_page_by_page(client: Any, name: str) -> None:
    ask = client.execute_command
    ask("QPUSH", name, "DELAY", 600_000, "VALUES", "later")
    ask("QPUSH", name, "VALUES", "a", "b")
    ((id_, value, attempt, priority, _, place),) = ask("QPEEK", name, "STATE", "delayed")
    assert (value, attempt, priority) == (b"later", 0, 0)
    assert ask("QPROMOTE", name, id_, place) == 1
    following, first = ask("QPEEK", name, "COUNT", 1, "WITHNEXT")
    assert [row[1] for row in ask("QPEEK", name, "FROM", following)] == [b"b", b"later"]
    assert first[1] == b"a"


def test_a_pop_of_large_messages_loses_none_of_them(client: Any, name: str) -> None:
    for number in range(6):
        client.execute_command("QPUSH", name, str(number) * (3 << 19))
    seen = []
    while found := client.execute_command("QPOP", name, "COUNT", 6):
        assert len(found) < 6, "more would be refused as one reply, and nobody would have it"
        seen += [value[:1] for _, value, *_ in found]
    assert seen == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_blocked_consumers_of_a_queue_are_served_in_turn(
    door: RespServer, client: Any, name: str
) -> None:
    consumers = [door.raw() for _ in range(6)]
    for number, consumer in enumerate(consumers, 1):
        consumer.send(b"QPOP %b BLOCK 0\r\n" % name.encode())
        until_blocked(door, number)
    while client.execute_command("QSTATS", name)[b"waiting"] < 4:
        pass
    for _ in range(6):
        pushed = client.execute_command("QPUSH", name, "v")
        place = first_answered(consumers)
        assert place < AT_THE_STORE
        with consumers.pop(place) as consumer:
            assert consumer.read()[0][0] == pushed
    until_blocked(door, 0)


def test_timelines_need_a_farm(client: Any, name: str) -> None:
    with pytest.raises(redis.ResponseError, match=r"^NOTFOUND .*--farm"):
        client.execute_command("TLSELECT", name)


def test_timelines_insert_delete_and_select(stores: Stores) -> None:
    with (
        Server() as server,
        RespServer(stores.url("plain"), farm=one_each(replicas(server, 2))) as door,
        door.redis() as client,
    ):
        ask = client.execute_command
        assert ask("TLINSERT", "a", 1, "x", "a", "2.5", "y", "b", 3, "z") == 3
        assert ask("TLSELECT", "a") == [b"y", 2.5, b"x", 1.0]
        assert ask("TLSELECT", "a", "OFFSET", 1, "LIMIT", 5) == [b"x", 1.0]
        assert ask("TLSELECT", "a", "START", "2.5", "y") == [b"x", 1.0]
        assert ask("TLDELETE", "a", 2, "x") == 1
        assert ask("TLSELECT", "a") == [b"y", 2.5]
        assert ask("TLSCORE", "a", "y") == [2.5, 1]
        assert ask("TLSCORE", "a", "x") == [2.0, 0]
        assert ask("TLSCORE", "a", "z") is None
        with pytest.raises(redis.ResponseError, match="wrong number"):
            ask("TLINSERT", "a", 1, "x", "b")
