"""Clusters that differ are brought to one state, by reads and as a whole."""

from __future__ import annotations

import pytest

from headwater.kernel.instrument import installed
from headwater.timeline import State, Tally
from headwater.timeline.farm.reading import READ_STRATEGIES
from tests.support.farms import OpenFarm, Replica, members


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
