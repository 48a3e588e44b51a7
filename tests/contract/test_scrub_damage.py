"""A scrub reports damage wherever it lies, and is never ended by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from headwater import AccessDenied, Headwater, UnreadableNode
from headwater.log.keys import group_key, stream_key
from headwater.queue.keys import queue_key
from tests.contract.test_scrub_keys import use_everything
from tests.support.entries import entries
from tests.support.groups import FAR
from tests.support.scrubbed import assert_sound
from tests.support.servers import Server
from tests.support.traffic import use_stream

K, QUEUE, CHANNEL = stream_key("kept"), queue_key("jobs"), "hw:c:{dirty}"
GROUP = group_key(K, "workers")

NONSENSE: dict[str, tuple[object, ...]] = {
    "a number of shards": ("HSET", CHANNEL, "shards", "x"),
    "a priority": ("HSET", QUEUE, "priorities", "x"),
    "an end that is no offset": ("HSET", K, "last", "-1"),
    "an end beyond all offsets": ("HSET", K, "last", "9" * 23),
    "an empty place of a group": ("HSET", GROUP, "next", ""),
    "an empty count of a group": ("HSET", GROUP, "pending", ""),
    "a time when nothing is due": ("ZADD", f"{GROUP}:due", "-inf", "2301"),
    "a place of no pending range": ("ZADD", f"{GROUP}:pending", "1.5", "2360:2362:1:0"),
    "a name of no group": ("ZADD", f"{K}:groups", "1", b"\xff"),
    "a node at the end of all": ("ZADD", f"{K}:index", "inf", "3601:1:1:1:1:1"),
    "an entry of no number": ("XADD", f"{K}:tail", "0-3652", "n", "x"),
    "a name of no stream": ("SADD", "hw:{streams}", b"\xff"),
    "a name of no queue": ("SADD", "hw:{queues}", b"\xff"),
    "a name of no channel": ("SADD", "hw:{channels}", b"\xff"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def used(server: Server) -> Iterator[Headwater]:
    with Headwater(server.url) as hw:
        use_everything(hw)
        assert_sound(hw)
        yield hw


def _put_back(raw: redis.Redis, key: str | bytes, dump: bytes, left_ms: int) -> None:
    raw.restore(key, max(0, left_ms), dump, replace=True)


def test_every_key_of_another_type_is_found(used: Headwater, server: Server) -> None:
    with server.client() as raw:
        keys: list[bytes] = sorted(raw.keys("hw:*"))
        assert len(keys) > 40
        for key in keys:
            dump, left_ms = raw.dump(key), raw.pttl(key)
            raw.delete(key)
            raw.set(key, "x")
            places = [defect.place for defect in used.scrub().defects]
            assert f"key {key.decode()}" in places, key
            _put_back(raw, key, dump, left_ms)
        assert_sound(used)


@pytest.mark.parametrize("what", NONSENSE)
def test_values_of_another_form_are_found_and_do_not_end_a_scrub(
    used: Headwater, server: Server, what: str
) -> None:
    with server.client() as raw:
        change = NONSENSE[what]
        dump, left_ms = raw.dump(str(change[1])), raw.pttl(str(change[1]))
        raw.execute_command(*change)
        raw.set("hw:witness", 1)
        report = used.scrub()
        assert report.complete
        assert len(report.defects) > 1
        assert "key hw:witness" in [defect.place for defect in report.defects], "it went on"
        assert used.repair().left, "a dry run is not ended either"
        raw.delete("hw:witness")
        _put_back(raw, str(change[1]), dump, left_ms)
        assert_sound(used)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "no number": lambda fact: fact[:-1] + b"x",
    "another number": lambda fact: b"%d" % (int(fact) + 10),
}


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("damage", DAMAGES)
def test_each_fact_in_the_index_is_checked(server: Server, place: int, damage: str) -> None:
    name = f"damaged-{place}-{damage.replace(' ', '-')}"
    index = f"{stream_key(name)}:index"
    with Headwater(server.url) as hw, server.client() as raw:
        stream = hw.stream(name)
        stream.write_many(entries(30))
        stream.seal()
        ((member, last),) = raw.zrange(index, 0, -1, withscores=True)
        facts = member.split(b":")
        facts[place] = DAMAGES[damage](facts[place])
        raw.delete(index)
        raw.zadd(index, {b":".join(facts): last})
        assert hw.scrub(name).defects
        raises = damage == "no number" or place in (0, 3, 5)
        with Headwater(server.url) as other:
            if raises:
                with pytest.raises(UnreadableNode, match=name):
                    other.stream(name).read(1, 30)
            else:
                found = [m and m.value for m in other.stream(name).read(1, 30)]
                assert found == [value for _, value in entries(30)]
        assert hw.stream(name).write("t", b"v") == 31, "a write does not need it"
        raw.unlink(stream_key(name), *raw.keys(f"{stream_key(name)}:*"))
        raw.srem("hw:{streams}", name)


def test_acknowledged_messages_whose_text_could_not_be_deleted_are_not_redelivered() -> None:
    with Server() as server, server.client() as raw, Headwater(server.url) as hw:
        queue = hw.queue("jobs")
        queue.push_many([b"%d" % at for at in range(40)])
        taken = queue.pop(40, ack_ms=FAR)
        raw.execute_command("ACL", "SETUSER", "x", "on", ">p", "~*", "&*", "+@all")
        with Headwater(f"unix://x:p@{server.socket}") as limited:
            limited.queue("jobs").stats()
            raw.execute_command("ACL", "SETUSER", "x", "-hdel")
            assert limited.queue("jobs").ack(*taken) == 40
        (defect,) = hw.scrub().defects
        assert defect.cure == "headwater repair: drops what is left of them"
        assert hw.repair(dry_run=False).left == ()
        assert queue.pop(1, ack_ms=FAR) == []
        assert_sound(hw)


@pytest.mark.parametrize("right", ["hdel", "zremrangebyscore", "zadd", "xtrim"])
def test_a_compaction_that_stopped_half_way_is_found_and_repaired(right: str) -> None:
    with Server() as server, server.client() as raw, Headwater(server.url) as hw:
        stream = use_stream(hw, "half")
        newest = {m.tag: m.value for m in stream.read(1, 9999) if m}
        raw.execute_command("ACL", "SETUSER", "x", "on", ">p", "~*", "&*", "+@all")
        with Headwater(f"unix://x:p@{server.socket}") as limited:
            limited.stream("half").info()
            raw.execute_command("ACL", "SETUSER", "x", f"-{right}")
            with pytest.raises(AccessDenied):
                limited.stream("half").compact()
        hw.scrub()
        assert hw.repair(dry_run=False).left == ()
        assert_sound(hw)
        assert {m.tag: m.value for m in stream.read(1, 9999) if m} == newest
