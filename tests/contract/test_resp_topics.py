"""Topics, channels of dirty lists and limits through the RESP door, by a real client."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

import headwater
from tests.support.resp import RespServer, until_blocked
from tests.support.stores import Stores


@pytest.fixture
def ask(door: RespServer) -> Iterator[Any]:
    with door.redis(decode_responses=True) as client:
        yield client.execute_command


def test_a_topic_is_written_read_and_settled(ask: Any, name: str) -> None:
    assert ask("TPCREATE", name, 3) == 3
    with pytest.raises(redis.ResponseError, match="partitions"):
        ask("TPCREATE", name, 4)
    place, offset = ask("TPWRITE", name, "ann", "one")
    assert offset == 1
    tags = [f"tag-{number}" for number in range(20)]
    written = ask("TPWRITE", name, "ENTRIES", *(word for tag in tags for word in (tag, "v")))
    assert sum(last - first + 1 for _, first, last in written) == 20
    found = ask("TPREAD", name, "g", 100, "RETRY", 60_000, 0, "DEADLETTERS", "WITHATTEMPT")
    assert [place, 1, "ann", "one", 1] in found
    assert len(found) == 21
    mine = [f"{row[0]}:{row[1]}" for row in found]
    assert ask("TPEXTEND", name, "g", 90_000, *mine) == 21
    assert ask("TPACK", name, "g", *mine[1:]) == 20
    assert ask("TPNACK", name, "g", "DELAY", 0, mine[0]) == 1
    assert ask("TPREAD", name, "g", 1, "RETRY", 60_000, 0, "WITHATTEMPT")[0][4] == 2
    facts = ask("TPINFO", name, "GROUP", "g")
    assert [one["pending"] for one in facts if one["pending"]] == [1]
    assert sum(one["last"] for one in ask("TPINFO", name)) == 21
    assert ask("TREAD", f"{name}/{place}", 1, 1) == [[1, "ann", "one"]]


def test_a_group_over_a_topic_is_moved_and_its_letters_are_redriven(
    ask: Any, name: str, stores: Stores
) -> None:
    ask("TPCREATE", name, 2)
    place, _ = ask("TPWRITE", name, "t", "v")
    assert ask("TPREAD", name, "g", 1, "RETRY", 60_000, 0, "DEADLETTERS")
    with headwater.connect(stores.url("plain")) as hw:
        hw.topic(name).group("g").bury({place: [1]}, error="no address")
    (letter,) = ask("TPDEAD", name, "g")
    assert letter[:5] == [place, 1, "t", "v", 1]
    assert "no address" in letter[6]
    assert sum(row[1] for row in ask("TPREDRIVE", name, "g")) == 1
    assert len(ask("TPREAD", name, "g", 9, "RETRY", 60_000, 0)) == 1
    assert dict(ask("TPSEEK", name, "g", "LAST")) == {place: 2, 1 - place: 1}
    assert ask("TPSEEK", name, "g", f"{place}:1") == [[place, 1]]
    assert ask("TPDEL", name) == 1
    for words in (("TPREAD", name, "g", 1), ("TPACK", name, "g", "0:1")):
        with pytest.raises(redis.ResponseError, match="NOTFOUND"):
            ask(*words)


@pytest.mark.parametrize(
    "words",
    [
        ("TPREAD", 1, "g", "x"),
        ("TPREAD", 1, "g", 1, "GROUP", "h"),
        ("TPREAD", 1, "g", 1, "WITHINFO"),
        ("TPACK", 1, "g", "5"),
        ("TPACK", 1, "g", "9:5"),
        ("TPACK", 1, "g", "0:x"),
        ("TPACK", 1, "g", ":5"),
        ("TPNACK", 1, "g", "DELAY", 5),
        ("TPSEEK", 1, "g", "0:1", "LAST"),
        ("TPSEEK", 1, "g", "LAST", "0:1"),
        ("TPSEEK", 1, "g", "7:1"),
        ("TPWRITE", 1, "ENTRIES", "t", "v", "u"),
        ("TPWRITE", 1, "NONSENSE", "t", "v"),
        ("TPCREATE", 1, 0),
        ("TPCREATE", 1, 1_000_000),
        ("TPLIMIT", 1, "g", "INFLIGHT", 5),
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_what_makes_no_sense_of_a_topic_is_refused(ask: Any, name: str, words: Any) -> None:
    ask("TPCREATE", name, 2)
    ask("TPREAD", name, "g", 1)
    command, _, *rest = words
    with pytest.raises(redis.ResponseError) as caught:
        ask(command, name, *rest)
    assert "fault of its own" not in str(caught.value)


def test_blocked_members_of_a_topic_wait_at_the_door(
    door: RespServer, ask: Any, name: str, pool: ThreadPoolExecutor
) -> None:
    ask("TPCREATE", name, 4)
    with door.redis() as other:
        waiting = pool.submit(other.execute_command, "TPREAD", name, "g", 1, "BLOCK", 0)
        until_blocked(door, 1)
        placed = ask("TPWRITE", name, "t", "v")
        assert [waiting.result(60)[0][:2]] == [placed]
    until_blocked(door, 0)


def test_a_channel_leases_commits_and_fences(ask: Any, name: str) -> None:
    assert ask("CHRESERVE", name, "a", 5, "SHARDS", 1) is None
    assert ask("CHADD", name, 2, "m", 1, "n", 5, "m") == [2, 0]
    lease, until_ms, rows = ask("CHRESERVE", name, "a", 5, "RETRY", 60_000)
    assert [(member, score) for member, score, _ in rows] == [("n", 1.0), ("m", 2.0)]
    assert ask("CHRENEW", name, lease) >= until_ms
    assert ask("CHRESERVE", name, "b", 5) is None
    (_, _, first), (_, _, second) = rows
    assert ask("CHADD", name, 0, "m") == [1, 0]
    assert ask("CHCOMMIT", name, lease, first, "n") == 1
    assert ask("CHSTATS", name)["shards"][0]["lease"]["consumer"] == "a"
    assert [lease[1] for lease in ask("CHCONSUMERS", name)] == ["a"]
    assert ask("CHRELEASE", name, lease, "DELAY", 0, second, "m") == 1
    lease, _, rows = ask("CHRESERVE", name, "b", 5, "RETRY", 1)
    assert [(member, score) for member, score, _ in rows] == [("m", 0.0)]
    taken = None
    while taken is None:
        taken = ask("CHRESERVE", name, "c", 5)
    with pytest.raises(redis.ResponseError, match="LEASELOST"):
        ask("CHCOMMIT", name, lease, rows[0][2], "m")
    with pytest.raises(redis.ResponseError, match="LEASELOST"):
        ask("CHRENEW", name, lease)
    assert ask("CHCOMMIT", name, taken[0], taken[2][0][2], "m") == 1
    assert ask("CHSHARDS", name, 3) == [3, 1, 0]
    assert ask("CHDEL", name) == 1
    with pytest.raises(redis.ResponseError, match=f"there is no .*{name}"):
        ask("CHSTATS", name)


@pytest.mark.parametrize(
    "words",
    [
        ("CHCOMMIT", "nonsense", 1, "m"),
        ("CHCOMMIT", "1:0:1:-5", 1, "m"),
        ("CHCOMMIT", "1:0:1:1000", "x", "m"),
        ("CHCOMMIT", "1:0:1:1000", 1, "m", 2),
        ("CHCOMMIT", "1:9999:1:1000", 1, "m"),
        ("CHCOMMIT", "9999999999999999:0:9999999999999999:9999999999999999", 1, "m"),
        ("CHRELEASE", "1:0:1:1000", "DELAY", 5),
        ("CHRENEW", "1:0:1:1000", "RETRY", -1),
        ("CHADD", "x", "m"),
        ("CHADD", 1, "m", 2),
        ("CHRESERVE", "c", -1),
        ("CHRESERVE", "c", 1, "SHARDS", 0),
        ("CHRESERVE", "", 1),
        ("CHSHARDS", 0),
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_what_makes_no_sense_of_a_channel_is_refused(ask: Any, name: str, words: Any) -> None:
    ask("CHADD", name, 1, "m")
    command, *rest = words
    with pytest.raises(redis.ResponseError) as caught:
        ask(command, name, *rest)
    assert "fault of its own" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [(), ("RATE", "fast"), ("INFLIGHT", 0), ("NONSENSE",), ("OFF", "RATE", "1/s"), ("RATE",)],
)
def test_limits_that_make_no_sense_are_refused(ask: Any, name: str, words: Any) -> None:
    with pytest.raises(redis.ResponseError) as caught:
        ask("QLIMIT", name, *words)
    assert "fault of its own" not in str(caught.value)


def test_what_is_not_there_is_neither_removed_nor_made_by_a_change(ask: Any, name: str) -> None:
    assert ask("TPDEL", name) == 0
    assert ask("CHDEL", name) == 0
    with pytest.raises(redis.ResponseError, match=f"there is no .*{name}"):
        ask("CHSHARDS", name, 2)
    with pytest.raises(redis.ResponseError, match=f"there is no .*{name}"):
        ask("CHSTATS", name)
