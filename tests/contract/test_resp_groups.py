"""Groups through the RESP door: what members take, acknowledge, give back, and in which turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

import headwater
from headwater.serve.resp.waiting import AT_THE_STORE
from tests.support.resp import RespServer, first_answered, until_blocked
from tests.support.stores import Stores


@pytest.fixture
def client(door: RespServer) -> Iterator[Any]:
    with door.redis() as client:
        yield client


def entries(*values: str) -> list[str]:
    return [part for value in values for part in ("t", value)]


def test_members_share_the_messages_of_a_group(client: Any, name: str) -> None:
    ask = client.execute_command
    ask("TWRITE", name, "ENTRIES", *entries("1", "2", "3"))
    first = ask("TREAD", name, 0, 2, "GROUP", "g")
    assert first == [[1, b"t", b"1"], [2, b"t", b"2"]]
    assert ask("TREAD", name, 99, 2, "GROUP", "g", "WITHINFO") == [[1, 3], [3, b"t", b"3"]]
    assert ask("TREAD", name, 0, 2, "GROUP", "g") == []
    assert ask("TREAD", name, 0, 9, "GROUP", "late", "START", "LAST") == []
    assert ask("TREAD", name, 0, 9, "GROUP", "third", "START", 3) == [[3, b"t", b"3"]]


def test_a_full_group_hands_out_nothing_new(client: Any, name: str) -> None:
    ask = client.execute_command
    ask("TWRITE", name, "ENTRIES", *entries("1", "2", "3"))
    read = ("TREAD", name, 0, 10, "GROUP", "g", "RETRY", 60_000, 0, "MAXPENDING", 2)
    assert len(ask(*read)) == 2
    assert ask(*read) == []
    ask("TACK", name, "g", 1)
    assert ask(*read) == [[3, b"t", b"3"]]


def test_a_group_that_keeps_order_hands_out_a_tag_when_its_message_is_done(
    client: Any, name: str
) -> None:
    ask = client.execute_command
    ask("TWRITE", name, "ENTRIES", *entries("1", "2"), "u", "3")
    read = ("TREAD", name, 0, 1, "GROUP", "g", "RETRY", 60_000, 0, "ORDERED")
    assert ask(*read) == [[1, b"t", b"1"]]
    assert ask(*read, "WITHINFO") == [[1, 3], [3, b"u", b"3"]]
    assert ask(*read) == []
    assert ask("TINFO", name, "GROUP", "g")[b"ordered"] in (1, True)
    ask("TACK", name, "g", 1)
    assert ask(*read) == [[2, b"t", b"2"]]
    for words, fault in ((("GROUP", "h", "ORDERED"), "needs ack_ms"), (("ORDERED",), "syntax")):
        with pytest.raises(redis.ResponseError, match=fault):
            ask("TREAD", name, 0, 1, *words, "WITHINFO")


def test_dead_letters_are_seen_and_redriven(client: Any, name: str) -> None:
    ask = client.execute_command
    ask("TWRITE", name, "t", "poison")
    read = ("TREAD", name, 0, 10, "GROUP", "g", "RETRY", 1, 1, "DEADLETTERS")
    assert len(ask(*read)) == 1
    while not (letters := ask("TDEAD", name, "g")):
        ask(*read)
    ((offset, tag, entry, attempts, buried_ms, cause),) = letters
    assert (offset, tag, entry, cause) == (1, b"t", b"poison", b"expired")
    assert attempts >= 1
    assert buried_ms > 0
    assert ask("TREDRIVE", name, "g", "COUNT", 5) == [1, 0]
    assert ask("TREAD", name, 0, 10, "GROUP", "g") == [[1, b"t", b"poison"]]


def test_dead_letters_are_chosen_and_discarded(client: Any, name: str) -> None:
    ask = client.execute_command
    ask("TWRITE", name, "ENTRIES", *entries("1", "2", "3"), "u", "4")
    ask("TREAD", name, 0, 10, "GROUP", "g", "RETRY", 60_000, 0, "DEADLETTERS")
    ask("TBURY", name, "g", "ERROR", "late", "1-2")
    ask("TBURY", name, "g", "ERROR", "broken", "3-4")
    assert [row[0] for row in ask("TDEAD", name, "g", "ERROR", "LATE", "COUNT", 9)] == [1, 2]
    assert [row[0] for row in ask("TDEAD", name, "g", "TAG", "u")] == [4]
    assert ask("TDISCARD", name, "g", "2", "7-9") == 1
    assert ask("TREDRIVE", name, "g", "ERROR", "broken", "TAG", "t") == [1, 0]
    assert ask("TDISCARD", name, "g") == 2
    with pytest.raises(redis.ResponseError, match="not an integer"):
        ask("TDISCARD", name, "g", "EVERYTHING")


def test_dead_letters_of_a_topic_are_chosen_and_discarded(client: Any, name: str) -> None:
    ask = client.execute_command
    ask("TPCREATE", name, 2)
    ask("TPWRITE", name, "ENTRIES", *entries("1", "2"))
    ((partition, *_), _) = ask("TPREAD", name, "g", 9, "RETRY", 60_000, 0, "DEADLETTERS")
    ask("TPBURY", name, "g", f"{partition}:1-2")
    assert ask("TPREDRIVE", name, "g", f"{partition}:2") == [[partition, 1, 0]]
    assert [row[:2] for row in ask("TPDEAD", name, "g")] == [[partition, 1]]
    assert ask("TPDISCARD", name, "g", "COUNT", 5) == 1


def test_dead_letters_of_a_queue_are_seen_redriven_and_discarded(
    client: Any, name: str, stores: Stores
) -> None:
    ask = client.execute_command
    with headwater.connect(stores.url("plain")) as hw:
        queue = hw.queue(name)
        ids = queue.push_many([b"1", b"2", b"3"])
        queue.bury(*queue.pop(3, ack_ms=60_000), error=TimeoutError("late"))
    rows = ask("QDEAD", name, "MINATTEMPTS", 1)
    assert [(row[0].decode(), row[1], row[2], row[4]) for row in rows] == [
        (one, value, 1, b"TimeoutError: late")
        for one, value in zip(ids, (b"1", b"2", b"3"), strict=True)
    ]
    place, *first = ask("QDEAD", name, "COUNT", 2, "WITHNEXT")
    assert first == rows[:2]
    assert ask("QDEAD", name, "FROM", place) == rows[2:]
    assert ask("QREDRIVE", name, ids[1]) == 1
    assert ask("QREDRIVE", name, "ERROR", "otherwise") == 0
    assert ask("QDISCARD", name) == 2
    assert [row[1] for row in ask("QPOP", name, "COUNT", 9)] == [b"2"]


def test_blocked_members_are_served_in_turn_and_leave_nothing_behind(
    door: RespServer, client: Any, name: str
) -> None:
    ask = client.execute_command
    members = [door.raw() for _ in range(8)]
    for number, member in enumerate(members, 1):
        member.send(b"TREAD %b 0 1 GROUP g BLOCK 0 RETRY 60000 0\r\n" % name.encode())
        until_blocked(door, number)
    # The store knows the first few of them by their turn, the others wait here.
    while ask("TINFO", name, "GROUP", "g")[b"waiting"] < 4:
        pass
    members.pop(5).close()
    members.pop(0).close()
    until_blocked(door, 6)
    for number in range(1, 7):
        ask("TWRITE", name, "t", number)
        # Of those at the store, one that is late to show itself may be passed over once.
        place = first_answered(members)
        assert place < AT_THE_STORE
        with members.pop(place) as member:
            assert member.read() == [[number, b"t", b"%d" % number]]
    until_blocked(door, 0)
    found = ask("TINFO", name, "GROUP", "g")
    assert (found[b"waiting"], found[b"pending"], found[b"lag"]) == (0, 6, 0)


def test_a_blocked_member_returns_with_nothing_in_time(
    door: RespServer, client: Any, name: str
) -> None:
    members = [door.raw() for _ in range(6)]
    for member in members:
        member.send(b"TREAD %b 0 1 GROUP g BLOCK 50\r\n" % name.encode())
    assert [member.read() for member in members] == [[]] * 6
    ask = client.execute_command
    assert ask("TREAD", name, 0, 1, "GROUP", "g", "BLOCK", 20, "WITHINFO") == [[1, 0]]
    for member in members:
        member.close()
    until_blocked(door, 0)


def test_the_member_is_named_by_the_client(door: RespServer, client: Any, name: str) -> None:
    with door.redis(client_name="worker-7") as named:
        named.execute_command("TREAD", name, 0, 1, "GROUP", "g")
    members = client.execute_command("TINFO", name, "GROUP", "g")[b"members"]
    assert list(members) == [b"worker-7"]
