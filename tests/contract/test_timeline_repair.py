"""Clusters that differ are brought to one state, by reads and as a whole."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headwater.kernel.instrument import installed
from headwater.timeline import AsyncFarm, State, Tally, Written
from headwater.timeline.farm.reading import READ_STRATEGIES
from headwater.timeline.records import States, kept, merge, shown
from headwater.timeline.walker import Walked, Walker
from tests.support.farms import OpenFarm, Replica, members, one_each


@pytest.mark.parametrize("strategy", [name for name in READ_STRATEGIES if name != "SendOneReadOne"])
def test_reads_repair_what_they_see_to_differ(
    open_: OpenFarm, three: list[Replica], strategy: str
) -> None:
    """Ties, negative scores and deletes alike; nothing comes back."""
    one, two = open_(three[0].url), open_(three[1].url)
    one.insert([("k", -1, "neg"), ("k", 7, "tie"), ("k", 3, "gone"), ("k", 2, "behind")])
    two.delete([("k", 7, "tie"), ("k", 4, "gone")])
    two.insert([("k", 5, "behind")])
    farm = open_(read_strategy=strategy)
    farm.select(["k"])
    farm.settle()
    truth = {
        b"neg": State(-1, False),
        b"tie": State(7, True),
        b"gone": State(4, True),
        b"behind": State(5, False),
    }
    assert [replica.states(b"k") for replica in three] == [truth] * 3


def test_an_element_that_newer_ones_push_out_goes_with_the_next_repair(
    open_: OpenFarm, three: list[Replica]
) -> None:
    """A cluster that lost everything takes an insert that the others know to be too old."""
    farm = open_(max_size=3, keep=3)
    farm.delete([("k", 1, "old"), ("k", 2, "x"), ("k", 3, "y")])
    farm.insert([("k", 4, "m")])
    farm.settle()
    three[2].client.flushdb()
    open_(three[2].url, max_size=3, keep=3).insert([("k", 1, "old")])
    assert members(farm) == ["m"]
    assert farm.score([("k", "old")]) == {("k", "old"): None}
    farm.settle()
    assert three[2].states(b"k") == three[0].states(b"k")


def test_repair_of_a_key_brings_tombstones_that_no_read_sees(
    open_: OpenFarm, three: list[Replica]
) -> None:
    open_(three[0].url).delete([("k", 1, f"m{i}") for i in range(2500)])
    farm = open_()
    assert farm.repair(["k", "none"]) == (2, 2500, 2500, 5000, 0, 0, 0)
    assert farm.repair(["k", "none"]) == (2, 2500, 0, 0, 0, 0, 0)
    assert three[2].states(b"k") == three[0].states(b"k")


def test_repairs_can_be_left_out_or_limited(open_: OpenFarm, three: list[Replica]) -> None:
    open_(three[0].url).insert([("k", i, f"m{i}") for i in range(10)])
    for strategy, left, rate in (("NoRepairs", 0, 9), ("RateLimitedRepairs", 4, 4)):
        farm = open_(repair_strategy=strategy, repair_rate=rate)
        with installed(tally := Tally()):
            assert len(members(farm)) == 10
            farm.settle()
        assert len(three[1].states(b"k")) == left
        assert tally.counts["repair_discarded"] == 10 - left
        assert tally.counts["select_repair_needed"] == 10
        assert tally.counts["select_divergent_keys"] >= 1
        assert tally.counts["repair_write_success"] == 2 * left


# ── A farm on data that Roshi left: nothing live is lost, and what is trimmed is reported ────────


SIZE = 4


def brim(first_add: int, first_delete: int) -> States:
    """Return what Roshi holds of a key at most: SIZE inserts and SIZE deletes, by their scores."""
    adds = {b"a%d" % n: State(float(n), False) for n in range(first_add, first_add + SIZE)}
    deletes = {b"d%d" % n: State(float(n), True) for n in range(first_delete, first_delete + SIZE)}
    return adds | deletes


def put(replica: Replica, key: bytes, states: States) -> None:
    """Write states as Roshi lays them down."""
    for member, state in states.items():
        replica.client.zadd(key + (b"-" if state.deleted else b"+"), {member: state.score})


def walk(three: list[Replica], **words: Any) -> Walked:
    async def run() -> Walked:
        async with AsyncFarm.open(one_each(three), timeout_ms=20_000, **words) as farm:
            walked = await Walker(farm, rate=100_000).walk()
            assert walked is not None
            return walked

    return asyncio.run(run())


def test_an_insert_below_all_is_rejected_and_one_above_costs_the_oldest(
    open_: OpenFarm, three: list[Replica]
) -> None:
    filled = brim(1, 11)
    for replica in three:
        put(replica, b"k", filled)
    farm = open_(max_size=SIZE)
    assert farm.insert([("k", 0.5, "old")]) == Written(rejected=1)
    assert members(farm) == ["a4", "a3", "a2", "a1"]
    assert farm.insert([("k", 2.5, "new")]) == Written(applied=1, trimmed=1)
    # Roshi would drop the same element: its set of inserts is full.
    assert members(farm) == ["a4", "a3", "new", "a2"]
    # A delete of what is there makes no key larger.
    assert farm.delete([("k", 30, "a3")]) == Written(applied=1)
    assert members(farm) == ["a4", "new", "a2"]


def test_what_a_walk_trims_is_reported_by_it_and_by_the_metrics(three: list[Replica]) -> None:
    """Each copy holds other elements: together they are more than a key keeps."""
    copies = [brim(1, 11), brim(1, 31), brim(1, 51)]
    for replica, states in zip(three, copies, strict=True):
        put(replica, b"k", states)
    truth = kept(merge(copies), 2 * SIZE)
    with installed(tally := Tally()):
        walked = walk(three, max_size=SIZE)
    assert [replica.states(b"k") for replica in three] == [truth] * 3
    held = sum(len(states.keys() - truth.keys()) for states in copies)
    assert held > 0
    assert walked.repaired.trimmed == held
    assert tally.counts["repair_trimmed"] == held
    assert walk(three, max_size=SIZE).repaired[2:] == (0, 0, 0, 0, 0)


def test_a_key_shows_at_most_max_size_by_rank_and_by_cursor(
    open_: OpenFarm, three: list[Replica]
) -> None:
    states = brim(1, 11) | brim(21, 31)
    for replica in three:
        put(replica, b"k", states)
    farm = open_(max_size=SIZE, keep=6 * SIZE)
    expected = [member.decode() for member, _ in shown(states, SIZE)]
    assert len(expected) == SIZE
    assert members(farm, limit=100) == expected
    assert members(farm, offset=3, limit=100) == expected[3:]
    page = farm.select_range(["k"], limit=3)["k"]
    rest = farm.select_range(["k"], page[-1], limit=3)["k"]
    assert [record.member for record in (*page, *rest)] == expected
    assert farm.select_range(["k"], rest[-1], limit=3)["k"] == []
    assert farm.select_range(["k"], stop=(3.5, "x"), limit=9)["k"] == [*page, *rest]
    # What is kept and not shown is known all the same.
    assert farm.score([("k", "a3")])["k", "a3"] == State(3.0, False)


def test_long_pages_by_cursor_are_read_in_steps_and_line_up(open_: OpenFarm) -> None:
    farm = open_(max_size=4500)
    farm.insert([("k", n // 7, f"m{n:05}") for n in range(5000)])
    farm.insert([("j", 1, "m")])
    newest = [f"m{n:05}" for n in reversed(range(5000))]
    found = farm.select_range(["k", "j"], stop=(-1.0, ""), limit=4500)
    assert [record.member for record in found["k"]] == newest[:4500]
    assert [record.member for record in found["j"]] == ["m"]
    middle = farm.select_range(["k"], found["k"][9], found["k"][4300], limit=4400)["k"]
    assert [record.member for record in middle] == newest[10:4300]
    assert farm.select_range(["none"], (1.0, "x"), limit=4400) == {"none": []}


def test_deep_pages_by_rank_are_read_in_steps_and_line_up(
    open_: OpenFarm, three: list[Replica]
) -> None:
    for replica in three:
        replica.client.zadd(b"k+", {b"m%05d" % n: n // 7 for n in range(22_000)})
        replica.client.config_resetstat()
    farm = open_(max_size=21_990)
    newest = [f"m{n:05}" for n in reversed(range(22_000))]
    deep = farm.select(["k", "none"], offset=21_000, limit=10_000)
    assert [record.member for record in deep["k"]] == newest[21_000:21_990]
    assert deep["none"] == []
    farm.settle()
    stats: Any = three[0].client.info("commandstats")
    assert stats["cmdstat_zrange"]["calls"] > 10, "it reads 2000 at a time"
    assert [record.member for record in farm.select(["k"], offset=11, limit=9)["k"]] == newest[
        11:20
    ]


def test_a_key_far_over_its_size_is_trimmed_in_bounded_calls_until_nothing_is_left(
    open_: OpenFarm, three: list[Replica]
) -> None:
    for replica in three:
        replica.client.zadd(b"k+", {b"a%05d" % n: n for n in range(4000)})
        replica.client.zadd(b"k-", {b"d%05d" % n: n for n in range(4000)})
    farm = open_(max_size=100)
    assert farm.insert([("k", 9000, "new")]) == Written(applied=1, trimmed=1001)
    assert members(farm, limit=2) == ["new", "a03999"]
    farm.settle()
    assert farm.repair(["k"]).trimmed == 3 * (8001 - 1001 - 200)
    assert [len(replica.states(b"k")) for replica in three] == [200] * 3


def test_a_rising_horizon_forgets_in_bounded_calls_and_shows_nothing_below_it(
    open_: OpenFarm, three: list[Replica]
) -> None:
    for replica in three:
        replica.client.zadd(b"k+", {b"a%05d" % n: n for n in range(3000)})
    farm = open_(horizon=2990)
    assert farm.insert([("k", 5, "old")]) == Written(rejected=1, forgotten=1001)
    assert members(farm, limit=100) == [f"a{n:05}" for n in range(2999, 2989, -1)]
    farm.settle()
    repaired = farm.repair(["k"])
    assert (repaired.written, repaired.trimmed, repaired.forgotten) == (0, 0, 3 * (2990 - 1001))
    assert [len(replica.states(b"k")) for replica in three] == [10] * 3


def test_a_keep_below_max_size_is_refused(open_: OpenFarm) -> None:
    with pytest.raises(
        ValueError, match="cannot show more than it keeps; give a keep of 5 or more"
    ):
        open_(max_size=5, keep=4)
