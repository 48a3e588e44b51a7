"""A scrub of a farm finds what breaks the merge rule, and names the cluster."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest

from headwater import Defect, ScrubReport, StoreError
from headwater.store.scrubbing import ScrubProgress
from headwater.timeline import AsyncFarm, Farm
from headwater.timeline.layout import safe_farm
from tests.support import resharding
from tests.support.commands import run
from tests.support.farms import DEAD, Replica, replicas
from tests.support.servers import Server

KEYS = [f"k{n}" for n in range(60)]


@pytest.fixture
def four(valkey: Server) -> list[Replica]:
    """Two clusters of two instances, all with the same timelines, inserts and deletes."""
    four = replicas(valkey, 4)
    with Farm.open(farm_of(four), write_quorum="100%") as farm:
        farm.insert([(key, n, f"m{n}") for key in KEYS for n in range(5)])
        farm.delete([(key, 9, "m1") for key in KEYS])
    return four


def farm_of(four: list[Replica]) -> str:
    a, b, c, d = (replica.url for replica in four)
    return f"{a},{b};{c},{d}"


def scrub(farm: str, keep: int | None = None, **words: Any) -> ScrubReport:
    async def look() -> ScrubReport:
        async with AsyncFarm.open(farm, max_size=10, keep=keep, timeout_ms=20_000) as opened:
            return await opened.scrub(**words)

    return asyncio.run(look())


def test_a_farm_of_either_kind_is_scrubbed_by_its_own_method(four: list[Replica]) -> None:
    with Farm.open(farm_of(four), max_size=10, timeout_ms=20_000) as farm:
        report = farm.scrub()
        assert (report.objects, report.defects, report.complete) == (60, (), True)
        assert not farm.scrub(stop=lambda: True).complete
    assert scrub(farm_of(four)).objects == 60


def the_one(four: list[Replica], keep: int | None = None) -> Defect:
    (defect,) = scrub(farm_of(four), keep).defects
    assert defect.kind == "timeline"
    return defect


def home(four: list[Replica], key: str, cluster: int = 2) -> Replica:
    """Return the instance of a cluster that has a key."""
    (found,) = (r for r in four[2 * cluster - 2 : 2 * cluster] if r.client.exists(f"{key}+"))
    return found


def walk(four: list[Replica]) -> None:
    words = ("timeline", "walk", "--once", "--instances", farm_of(four))
    assert run(None, *words, "--max-size", "10").code == 0


def test_a_sound_farm_has_no_defects_and_is_read_as_a_whole(four: list[Replica]) -> None:
    seen: list[ScrubProgress] = []
    report = scrub(farm_of(four), progress=seen.append)
    assert (report.objects, report.defects, report.complete) == (60, (), True)
    assert report.bytes > 60 * 2 * 5 * 10
    assert {at.kind for at in seen} == {"timeline"}


def test_a_member_in_both_sets_is_found_and_a_walk_completes_the_write(
    four: list[Replica],
) -> None:
    home(four, "k7").client.zadd("k7-", {"m3": 2})
    defect = the_one(four)
    assert (defect.name, defect.expected, defect.found) == ("k7", "in one set", "in both")
    assert defect.place == f"cluster 2, {safe_farm(home(four, 'k7').url)}, member m3"
    assert "headwater timeline walk" in defect.cure
    walk(four)
    assert scrub(farm_of(four)).defects == ()


def test_a_copy_that_differs_is_found_with_a_count_and_an_example(four: list[Replica]) -> None:
    home(four, "k7").client.zrem("k7+", "m2", "m3")
    defect = the_one(four)
    assert (defect.name, defect.place) == ("k7", f"cluster 2, {safe_farm(home(four, 'k7').url)}")
    assert defect.expected == "as elsewhere: member m2 inserted at 2.0"
    assert defect.found == "2 elements are missing or older"
    walk(four)
    assert scrub(farm_of(four)).defects == ()


def test_a_timeline_that_a_cluster_lacks_altogether_is_found(four: list[Replica]) -> None:
    instance = home(four, "k7", 1)
    instance.client.delete("k7+", "k7-")
    defect = the_one(four)
    assert (defect.name, defect.place) == ("k7", f"cluster 1, {safe_farm(instance.url)}")
    assert defect.found == "5 elements are missing or older"


def test_a_delete_that_a_cluster_missed_is_found(four: list[Replica]) -> None:
    home(four, "k7").client.delete("k7-")
    assert the_one(four).expected == "as elsewhere: member m1 deleted at 9.0"


def test_more_elements_than_a_key_keeps_are_found(four: list[Replica]) -> None:
    for cluster in (1, 2):
        extra = {f"x{n}": 100 + n for n in range(16)}
        home(four, "k7", cluster).client.zadd("k7+", extra)
    report = scrub(farm_of(four))
    assert [(d.name, d.expected, d.found) for d in report.defects] == [
        ("k7", "at most 20 elements", "21")
    ] * 2
    assert scrub(farm_of(four), keep=21).defects == ()
    walk(four)
    assert scrub(farm_of(four)).defects == ()


@pytest.mark.parametrize("score", ["inf", "-inf"])
def test_a_score_that_is_not_finite_is_found(four: list[Replica], score: str) -> None:
    for cluster in (1, 2):
        home(four, "k7", cluster).client.zadd("k7+", {"odd": float(score)})
    report = scrub(farm_of(four))
    assert [(d.name, d.expected, d.found) for d in report.defects] == [
        ("k7", "a finite score", score)
    ] * 2
    assert all(d.place.endswith(", member odd") for d in report.defects)


@pytest.mark.parametrize("kind", ["string", "list", "set", "hash", "stream"])
def test_a_key_of_another_type_is_found_and_hides_no_other_defect(
    four: list[Replica], kind: str
) -> None:
    client: Any = home(four, "k7").client
    client.delete("k7-")
    {
        "string": lambda: client.set("k7-", "x"),
        "list": lambda: client.rpush("k7-", "x"),
        "set": lambda: client.sadd("k7-", "x"),
        "hash": lambda: client.hset("k7-", "x", "y"),
        "stream": lambda: client.xadd("k7-", {"x": "y"}),
    }[kind]()
    home(four, "k8").client.zrem("k8+", "m2")
    found = {(d.name, d.expected, d.found) for d in scrub(farm_of(four)).defects}
    assert found == {
        ("k7", "a sorted set", f"a {kind}"),
        ("k8", "as elsewhere: member m2 inserted at 2.0", "1 elements are missing or older"),
    }


def test_a_key_on_the_wrong_instance_is_found(four: list[Replica]) -> None:
    right = home(four, "k7", 1)
    (wrong,) = (replica for replica in four[:2] if replica is not right)
    wrong.client.zadd("k7+", {"m": 1})
    defect = the_one(four)
    assert (defect.name, defect.place) == ("k7", f"cluster 1, {safe_farm(wrong.url)}, key k7+")
    assert (defect.expected, defect.found) == (f"on {safe_farm(right.url)}", "here")


def test_keys_of_others_are_none_of_its_business(four: list[Replica]) -> None:
    four[0].client.set("config", "x")
    four[1].client.zadd("board", {"m": float("inf")})
    assert scrub(farm_of(four)).defects == ()


def test_a_farm_in_use_raises_no_false_alarm(four: list[Replica]) -> None:
    ended = threading.Event()
    rounds = 0

    def use() -> None:
        nonlocal rounds
        with Farm.open(farm_of(four), max_size=10, timeout_ms=20_000) as farm:
            while not ended.is_set():
                rounds += 1
                write = farm.delete if rounds % 2 else farm.insert
                write([(key, 100 + rounds, f"m{n}") for key in KEYS for n in range(15)])

    user = threading.Thread(target=use)
    user.start()
    try:
        reports = [scrub(farm_of(four)) for _ in range(3)]
    finally:
        ended.set()
        user.join()
    assert rounds > 5
    assert [report.defects for report in reports] == [()] * 3


def test_a_farm_that_is_half_moved_raises_no_false_alarm(eight: list[Replica]) -> None:
    before, after = resharding.farm_of(eight, "01"), resharding.farm_of(eight, "012;345")
    with Farm.open(before) as farm:
        resharding.fill(farm, random.Random(4))
    resharding.stop_behind(before, after, 1)
    assert eight[2].client.dbsize()
    assert scrub(before, keep=20_000).defects == ()
    resharding.reshard(before, after)
    assert scrub(after, keep=20_000).defects == ()


def test_an_instance_that_cannot_be_read_is_an_error(four: list[Replica]) -> None:
    with pytest.raises(StoreError):
        scrub(f"{farm_of(four)};{DEAD},{DEAD}")


def test_the_command_reports_and_exits_as_for_a_store(four: list[Replica]) -> None:
    words = ("timeline", "scrub", "--max-size", "10", "--instances")
    answer = run(None, *words, farm_of(four))
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("sound: 60 objects, ")
    home(four, "k7").client.zadd("k7-", {"m3": 2})
    answer = run(None, *words, farm_of(four), "--json")
    assert answer.code == 3
    (defect,) = answer.row["defects"]
    assert (defect["kind"], defect["name"], defect["repairable"]) == ("timeline", "k7", False)
    assert answer.row["store"] == safe_farm(farm_of(four))
    assert run(None, *words, DEAD).code == 1


def test_a_scrub_ends_when_it_is_asked_to(four: list[Replica]) -> None:
    assert not scrub(farm_of(four), stop=lambda: True).complete
