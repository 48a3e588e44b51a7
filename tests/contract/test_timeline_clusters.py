"""A farm writes to a quorum of its clusters, and reads from them by one of its strategies."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headwater import AllReplicasFailed, QuorumFailed
from headwater.timeline.farm.reading import READ_STRATEGIES
from headwater.timeline.pool import murmur3
from tests.support.farms import DEAD, OpenFarm, Replica, members


@pytest.mark.parametrize("strategy", READ_STRATEGIES)
def test_every_read_strategy_gives_the_same_of_clusters_that_agree(
    open_: OpenFarm, strategy: str
) -> None:
    farm = open_(read_strategy=strategy.lower())
    farm.insert([("k", i, f"m{i}") for i in range(20)] + [("j", 1, "a")])
    farm.settle()
    found = farm.select(["k", "j", "none"], offset=2, limit=3)
    assert [record.member for record in found["k"]] == ["m17", "m16", "m15"]
    assert (found["j"], found["none"], found.partial) == ([], [], False)
    found = farm.select_range(["k"], start=(15, "m15"), stop=(11, "m11"), limit=9)
    assert [record.member for record in found["k"]] == ["m14", "m13", "m12"]


def test_a_read_that_asks_all_shows_no_element_that_a_cluster_knows_to_be_deleted(
    open_: OpenFarm, three: list[Replica]
) -> None:
    """However many are: pages are read on until they are full, and all clusters are repaired."""
    first = open_(three[0].url)
    first.insert([("k", i, f"m{i:02}") for i in range(40)])
    open_(three[1].url).delete([("k", i, f"m{i:02}") for i in range(10, 40)])
    open_(three[2].url).insert([("k", 50, "m05")])
    farm = open_()
    found = [(r.score, r.member) for r in farm.select(["k"], limit=8)["k"]]
    assert found == [(50.0, "m05"), *((float(i), f"m{i:02}") for i in (9, 8, 7, 6, 4, 3, 2))]
    assert members(farm, offset=8, limit=9) == ["m01", "m00"]
    farm.settle()
    assert members(open_(three[0].url, read_strategy="SendOneReadOne"), limit=3) == [
        "m05",
        "m09",
        "m08",
    ]


def test_an_answer_tells_which_keys_lack_a_cluster(open_: OpenFarm, three: list[Replica]) -> None:
    a, b, _ = (replica.url for replica in three)
    farm = open_(f"{a};{b},{DEAD}", write_quorum=1)
    keys = [f"key-{i}" for i in range(20)]
    farm.insert([(key, 1, "m") for key in keys])
    farm.settle()
    # Half of them differ, so that clusters are asked twice.
    for key in keys[::2]:
        three[0].client.zadd(f"{key}+", {"n": 2})
    lacking = {key for key in keys if murmur3(key.encode()) % 2 == 1}
    found = farm.select(keys)
    assert found.partial_keys == lacking
    assert len(found.failures) == 1
    assert not farm.select([key for key in keys if key not in lacking]).partial


def test_an_answer_without_all_clusters_is_marked_and_one_without_any_is_an_error(
    open_: OpenFarm, three: list[Replica]
) -> None:
    one = open_(f"{three[0].url};{DEAD}", write_quorum=1)
    one.insert([("k", 1, "m")])
    found = one.select(["k"])
    assert (found["k"], found.partial) == ([("k", 1.0, "m")], True)
    assert "127.0.0.1:1" in str(found.failures[0])
    for strategy in READ_STRATEGIES:
        none = open_(f"{DEAD};{DEAD}", read_strategy=strategy)
        with pytest.raises(AllReplicasFailed) as failed:
            none.select(["k"])
        assert failed.value.keys == [b"k"]
        with pytest.raises(AllReplicasFailed):
            none.score([("k", "m")])


def test_the_keys_of_an_instance_are_read_at_one_moment(
    open_: OpenFarm, three: list[Replica]
) -> None:
    # Longer than what a server takes in at once, so that a write may come in between.
    keys = [f"{n:03d}-{'long' * 50}" for n in range(200)]
    reader, writer = open_(three[0].url), open_(three[0].url)
    writer.insert([(key, 0, "m") for key in keys])
    stop = threading.Event()

    def write() -> None:
        for score in itertools.count(1):
            if stop.is_set():
                return
            writer.insert([(key, score, "m") for key in keys])

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            for _ in range(100):
                found = reader.select(keys, limit=1)
                assert len({found[key][0].score for key in keys}) == 1
        finally:
            stop.set()
        writing.result(60)


def test_a_write_needs_its_quorum(open_: OpenFarm, three: list[Replica]) -> None:
    urls = [replica.url for replica in three]
    farm = open_(f"{urls[0]};{DEAD};{DEAD}")
    with pytest.raises(QuorumFailed) as failed:
        farm.insert([("k", 1, "m")])
    assert (failed.value.answered, failed.value.needed, failed.value.clusters) == (1, 2, 3)
    assert "127.0.0.1:1" in str(failed.value)
    assert open_(f"{urls[0]};{urls[1]};{DEAD}").insert([("k", 1, "n")]).applied == 1
    assert open_(f"{urls[0]};{DEAD};{DEAD}", write_quorum=1).insert([("k", 1, "o")]).applied == 1


def test_a_quorum_is_counted_for_each_key(open_: OpenFarm, three: list[Replica]) -> None:
    """Each cluster lacks another instance; yet every key is on two of three clusters."""
    a, b, _ = (replica.url for replica in three)
    keys = [(f"key-{i}", 1, "m") for i in range(20)]
    farm = open_(f"{a},{DEAD};{DEAD},{b};{a},{b}")
    farm.insert(keys)
    assert all(farm.select([key])[key] for key, _, _ in keys)
    with pytest.raises(QuorumFailed):
        open_(f"{a},{DEAD};{DEAD},{b};{a},{b}", write_quorum=3).insert(keys)


def test_a_write_only_cluster_is_written_and_repaired_but_not_read(
    open_: OpenFarm, three: list[Replica]
) -> None:
    a, b, c = (replica.url for replica in three)
    open_(a).insert([("k", 1, "before")])
    open_(c).insert([("k", 9, "unread")])
    farm = open_(f"{a};{b};{c},WRITEONLY")
    farm.insert([("k", 2, "m")])
    assert members(farm) == ["m", "before"]
    farm.settle()
    assert three[2].states(b"k").keys() == {b"m", b"before", b"unread"}


def test_other_things_under_a_key_harm_that_key_alone(
    open_: OpenFarm, three: list[Replica]
) -> None:
    farm = open_()
    for replica in three:
        replica.client.set("k+", "something else")
    with pytest.raises(QuorumFailed, match="WRONGTYPE"):
        farm.insert([("k", 1, "m")])
    with pytest.raises(AllReplicasFailed, match="WRONGTYPE"):
        farm.select(["k"])
    farm.insert([("j", 1, "m")])
    assert members(farm, "j") == ["m"]
