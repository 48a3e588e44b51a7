"""Through the RESP door, too: a list ends at 4 MiB, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import headwater
from tests.support.groups import FAR
from tests.support.resp import RespServer
from tests.support.stores import Stores
from tests.support.watch import let_pass

MB = 1 << 20
# Packed, these have a few hundred bytes.
LARGE = [(f"t-{n}", b"%02d" % n + bytes(MB)) for n in range(12)]
# Of these messages, so many have 4 MiB.
MOST = 4


@pytest.fixture
def client(door: RespServer) -> Iterator[Any]:
    with door.redis() as client:
        yield client


@pytest.fixture
def hw(stores: Stores) -> Iterator[headwater.Headwater]:
    with headwater.connect(stores.url("plain")) as hw:
        yield hw


def numbers(rows: list[list[Any]], place: int) -> list[int]:
    return [int(row[place][:2]) for row in rows]


def test_reads_end_at_4_mib(client: Any, hw: headwater.Headwater, name: str) -> None:
    hw.stream(name).write_many(LARGE)
    at, found = 1, []
    while rows := client.execute_command("TREAD", name, at, 100):
        assert len(rows) <= MOST + 1
        found += numbers(rows, 2)
        at += len(rows)
    assert found == list(range(12))


@pytest.mark.parametrize("words", [(), ("RETRY", FAR, 0), ("WITHINFO",)])
def test_a_group_read_takes_no_more_than_4_mib(
    client: Any, hw: headwater.Headwater, name: str, words: tuple[Any, ...]
) -> None:
    hw.stream(name).write_many(LARGE)
    found: list[int] = []
    read = ("TREAD", name, 0, 1000, "GROUP", "g", *words)
    while rows := client.execute_command(*read)[1 if "WITHINFO" in words else 0 :]:
        assert len(rows) <= MOST + 1
        found += numbers(rows, 2)
    assert found == list(range(12))


def test_a_group_of_a_topic_takes_no_more_than_4_mib(
    client: Any, hw: headwater.Headwater, name: str
) -> None:
    hw.topic(name, 4).write_many(LARGE)
    found: list[int] = []
    while rows := client.execute_command("TPREAD", name, "g", 1000):
        assert len(rows) <= MOST + 1
        found += numbers(rows, 3)
    assert sorted(found) == list(range(12))


def listed(client: Any, *words: Any) -> Iterator[list[Any]]:
    """Yield the parts of a list, each from where the one before ended."""
    place: bytes | None = b""
    while place is not None:
        place, *rows = client.execute_command(
            *words, *(("FROM", place) if place else ()), "WITHNEXT"
        )
        assert len(rows) <= MOST
        yield rows


def test_dead_letters_end_at_4_mib(client: Any, hw: headwater.Headwater, name: str) -> None:
    hw.stream(name).write_many(LARGE)
    group = hw.stream(name).group("g", dead_letters=True)
    group.read(100, ack_ms=FAR, expire_ms=1)
    let_pass(hw, 1)
    assert group.bury() == 12
    assert numbers(client.execute_command("TDEAD", name, "g"), 2) == [0, 1, 2, 3]
    assert numbers(client.execute_command("TDEAD", name, "g", "COUNT", 2), 2) == [0, 1]
    found = [number for rows in listed(client, "TDEAD", name, "g") for number in numbers(rows, 2)]
    assert found == list(range(12))


def test_dead_letters_of_a_topic_end_at_4_mib(
    client: Any, hw: headwater.Headwater, name: str
) -> None:
    topic = hw.topic(name, 3)
    topic.write_many(LARGE)
    group = topic.group("g", dead_letters=True)
    while group.read(100, ack_ms=FAR, expire_ms=1):
        let_pass(hw, 1)
    group.bury()
    assert len(client.execute_command("TPDEAD", name, "g")) == MOST
    found = [n for rows in listed(client, "TPDEAD", name, "g") for n in numbers(rows, 3)]
    assert sorted(found) == list(range(12))


def test_members_of_dirty_lists_end_at_4_mib(client: Any, name: str) -> None:
    ask = client.execute_command
    for number in range(10):
        ask("ICKADD", name, number, b"%02d" % number + bytes(MB))
        ask("CHADD", f"{name}.c", number, b"%02d" % number + bytes(MB))
    assert len(ask("ICKRESERVE", name, 100)) == 2 * MOST
    assert len(ask("CHRESERVE", f"{name}.c", "me", 100, "SHARDS", 1)[2]) <= MOST
